/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Built programs on disk. An entry is one file, named by a hash of its key, with the whole key inside: a hash never
 * decides alone. Whatever is wrong with a file, it is a miss.
 */
#ifndef PCL_PROGRAM_DISK_H
#define PCL_PROGRAM_DISK_H

#include <pagedcl/program.h>

#include <stdbool.h>
#include <stddef.h>

typedef enum pcl_disk_result { PCL_DISK_HIT, PCL_DISK_MISS, PCL_DISK_DAMAGED } pcl_disk_result;

/*
 * The key of a program on a device: library version, platform, device, driver, options, whether runtime/ptx.h changes
 * it, and length and hash of the source. The caller's to free; NULL when memory is short.
 */
char *pcl_disk_key(const pagedcl_device_info *info, const pagedcl_program_desc *desc, bool for_hopper);

/* Reads the entry of `key`. On a hit *binary is the caller's to free. */
pcl_disk_result pcl_disk_load(const char *dir, const char *key, unsigned char **binary, size_t *size);

/*
 * Writes the entry of `key`, making the folder when it is not there: to a temporary file, renamed when it is whole, so
 * that others never see a part. Errors: IO_ERROR, OUT_OF_MEMORY.
 */
pagedcl_status pcl_disk_store(const char *dir, const char *key, const unsigned char *binary, size_t size);

#endif
