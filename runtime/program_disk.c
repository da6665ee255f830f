/* SPDX-License-Identifier: Apache-2.0 */
#include "program_disk.h"

#include "file_system.h"
#include "status.h"

#include <pagedcl/version.h>

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The file: this, then the key with its zero byte, then the binary. Numbers as the machine has them: a cache is not
   carried to another. */
typedef struct entry_header {
    char magic[8]; /* changes with this struct and with what the key holds */
    uint64_t key_size;
    uint64_t binary_size;
    uint64_t checksum; /* of the key and the binary */
} entry_header;

static const char entry_magic[8] = "PCLPRG02";

/* FNV-1a, 64 bits. */
static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t size) {
    const unsigned char *at = bytes;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static const uint64_t hash_start = UINT64_C(0xcbf29ce484222325);

char *pcl_disk_key(const pagedcl_device_info *info, const pagedcl_program_desc *desc, bool for_hopper) {
    const char *options = desc->options != NULL ? desc->options : "";
    size_t source_size = strlen(desc->source);
    uint64_t source_hash = hash_bytes(hash_start, desc->source, source_size);
#define KEY_FORMAT \
    "pagedcl %s\nplatform %s\n%s\ndevice %s\n%s\n%s\ndriver %s\noptions %s\nfor Hopper %d\nsource %zu %016" PRIx64 "\n"
#define KEY_FIELDS                                                                                        \
    PAGEDCL_VERSION_STRING, info->platform_name, info->platform_version, info->device_name, info->vendor, \
        info->device_version, info->driver_version, options, for_hopper, source_size, source_hash
    int length = snprintf(NULL, 0, KEY_FORMAT, KEY_FIELDS);
    char *key = length < 0 ? NULL : malloc((size_t)length + 1);
    if (key != NULL)
        snprintf(key, (size_t)length + 1, KEY_FORMAT, KEY_FIELDS);
#undef KEY_FIELDS
#undef KEY_FORMAT
    return key;
}

/* dir/<hash of key>.bin, the caller's to free. */
static char *entry_path(const char *dir, const char *key) {
    size_t size = strlen(dir) + 32;
    char *path = malloc(size);
    if (path != NULL)
        snprintf(path, size, "%s/%016" PRIx64 ".bin", dir, hash_bytes(hash_start, key, strlen(key)));
    return path;
}

static uint64_t entry_checksum(const char *key, size_t key_size, const unsigned char *binary, size_t binary_size) {
    return hash_bytes(hash_bytes(hash_start, key, key_size), binary, binary_size);
}

/* The rest of an open entry; the file's size is known to be file_size. */
static pcl_disk_result read_entry(FILE *file, uint64_t file_size, const char *key, unsigned char **binary,
                                  size_t *size) {
    entry_header header;
    if (fread(&header, sizeof header, 1, file) != 1 || memcmp(header.magic, entry_magic, sizeof header.magic) != 0)
        return PCL_DISK_DAMAGED;
    uint64_t rest = file_size - sizeof header;
    if (header.key_size > rest || header.binary_size != rest - header.key_size || header.binary_size == 0)
        return PCL_DISK_DAMAGED;
    size_t key_size = strlen(key) + 1;
    unsigned char *bytes = malloc((size_t)rest);
    if (bytes == NULL)
        return PCL_DISK_MISS;
    if (fread(bytes, (size_t)rest, 1, file) != 1 || header.checksum != hash_bytes(hash_start, bytes, (size_t)rest)) {
        free(bytes);
        return PCL_DISK_DAMAGED;
    }
    /* Another key with the same hash is no damage. */
    if (header.key_size != key_size || memcmp(bytes, key, key_size) != 0) {
        free(bytes);
        return PCL_DISK_MISS;
    }
    memmove(bytes, bytes + key_size, (size_t)header.binary_size);
    *binary = bytes;
    *size = (size_t)header.binary_size;
    return PCL_DISK_HIT;
}

pcl_disk_result pcl_disk_load(const char *dir, const char *key, unsigned char **binary, size_t *size) {
    char *path = entry_path(dir, key);
    FILE *file = path != NULL ? fopen(path, "rb") : NULL;
    free(path);
    if (file == NULL)
        return PCL_DISK_MISS;
    int64_t file_size = pcl_fs_size(file);
    pcl_disk_result result = PCL_DISK_DAMAGED;
    if (file_size >= (int64_t)sizeof(entry_header))
        result = read_entry(file, (uint64_t)file_size, key, binary, size);
    fclose(file);
    return result;
}

static bool write_entry(const char *path, const char *key, const unsigned char *binary, size_t size) {
    FILE *file = fopen(path, "wb");
    if (file == NULL)
        return false;
    entry_header header = {.key_size = strlen(key) + 1, .binary_size = size};
    memcpy(header.magic, entry_magic, sizeof header.magic);
    header.checksum = entry_checksum(key, (size_t)header.key_size, binary, size);
    bool whole = fwrite(&header, sizeof header, 1, file) == 1 && fwrite(key, (size_t)header.key_size, 1, file) == 1 &&
                 fwrite(binary, size, 1, file) == 1;
    return (fclose(file) == 0) && whole;
}

pagedcl_status pcl_disk_store(const char *dir, const char *key, const unsigned char *binary, size_t size) {
    char *path = entry_path(dir, key), *temporary = path != NULL ? pcl_fs_temporary(path) : NULL;
    pagedcl_status status = PAGEDCL_SUCCESS;
    if (temporary == NULL || path == NULL)
        status = pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for the name of a cache entry");
    /* The folder is the user's alone: others must not be able to plant programs. */
    else if (!pcl_fs_make_folder(dir) || !write_entry(temporary, key, binary, size) ||
             !pcl_fs_replace(temporary, path)) {
        status = pcl_fail(PAGEDCL_IO_ERROR, "cannot write %s: %s", path, strerror(errno));
        remove(temporary);
    }
    free(temporary);
    free(path);
    return status;
}
