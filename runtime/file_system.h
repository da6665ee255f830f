/* SPDX-License-Identifier: Apache-2.0 */
/* The one place that knows the system's files and folders, as far as C's own functions do not. */
#ifndef PCL_FILE_SYSTEM_H
#define PCL_FILE_SYSTEM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Bytes of an open file; -1: it is no regular file. */
int64_t pcl_fs_size(FILE *file);

/* Goes to an offset from the beginning. */
bool pcl_fs_seek(FILE *file, uint64_t offset);

/* Returns when all that was written is on the disk. False: errno says why not. */
bool pcl_fs_sync(FILE *file);

/* Another name in the folder of `path`, which nobody else writes: that of a file in the making. The caller's to free;
   NULL: no memory. */
char *pcl_fs_temporary(const char *path);

/* Renames a file, in the place of one that has the name. False: errno says why not. */
bool pcl_fs_replace(const char *from, const char *to);

/* The user's folder for what programs can make again, which is the caller's to free; NULL: the environment names none.
   False: no memory. */
bool pcl_fs_cache_folder(char **path);

/* Makes the folder and those above it, for this user alone. True when they are there; false: errno says why not. */
bool pcl_fs_make_folder(const char *path);

#endif
