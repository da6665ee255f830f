/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64

#include "file_system.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int64_t pcl_fs_size(FILE *file) {
    struct stat status;
    return fstat(fileno(file), &status) == 0 && S_ISREG(status.st_mode) ? (int64_t)status.st_size : -1;
}

bool pcl_fs_seek(FILE *file, uint64_t offset) {
    return offset <= INT64_MAX && fseeko(file, (off_t)offset, SEEK_SET) == 0;
}

bool pcl_fs_sync(FILE *file) {
    return fflush(file) == 0 && fsync(fileno(file)) == 0;
}

char *pcl_fs_temporary(const char *path) {
    static atomic_uint counter;
    size_t size = strlen(path) + 64;
    char *name = malloc(size);
    if (name != NULL)
        snprintf(name, size, "%s.%ld.%u.tmp", path, (long)getpid(), atomic_fetch_add(&counter, 1));
    return name;
}

bool pcl_fs_make_folder(const char *path) {
    char *part = strdup(path);
    if (part == NULL)
        return false;
    for (char *at = part + 1; *at != '\0'; at++)
        if (*at == '/') {
            *at = '\0';
            if (mkdir(part, 0700) != 0 && errno != EEXIST) {
                free(part);
                return false;
            }
            *at = '/';
        }
    bool made = mkdir(part, 0700) == 0 || errno == EEXIST;
    free(part);
    return made;
}
