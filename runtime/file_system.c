/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64

#include "file_system.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#ifdef _WIN32
#include <direct.h>
#include <io.h>
#include <process.h>
#include <windows.h>
#else
#include <unistd.h>
#endif

int64_t pcl_fs_size(FILE *file) {
    struct stat status;
    return fstat(fileno(file), &status) == 0 && S_ISREG(status.st_mode) ? (int64_t)status.st_size : -1;
}

bool pcl_fs_seek(FILE *file, uint64_t offset) {
    return offset <= INT64_MAX && fseeko(file, (off_t)offset, SEEK_SET) == 0;
}

bool pcl_fs_sync(FILE *file) {
#ifdef _WIN32
    return fflush(file) == 0 && _commit(fileno(file)) == 0;
#else
    return fflush(file) == 0 && fsync(fileno(file)) == 0;
#endif
}

char *pcl_fs_temporary(const char *path) {
    static atomic_uint counter;
    size_t size = strlen(path) + 64;
    char *name = malloc(size);
    if (name != NULL)
        snprintf(name, size, "%s.%ld.%u.tmp", path, (long)getpid(), atomic_fetch_add(&counter, 1));
    return name;
}

bool pcl_fs_replace(const char *from, const char *to) {
#ifdef _WIN32
    if (MoveFileExA(from, to, MOVEFILE_REPLACE_EXISTING))
        return true;
    errno = GetLastError() == ERROR_PATH_NOT_FOUND ? ENOENT : EACCES;
    return false;
#else
    return rename(from, to) == 0;
#endif
}

bool pcl_fs_cache_folder(char **path) {
    *path = NULL;
    const char *folder, *rest = "";
#ifdef _WIN32
    folder = getenv("LOCALAPPDATA");
#else
    folder = getenv("XDG_CACHE_HOME");
    if (folder == NULL || folder[0] != '/') {
        folder = getenv("HOME");
        rest = "/.cache";
        if (folder != NULL && folder[0] != '/')
            folder = NULL;
    }
#endif
    if (folder == NULL || folder[0] == '\0')
        return true;
    size_t size = strlen(folder) + strlen(rest) + 1;
    *path = malloc(size);
    if (*path != NULL)
        snprintf(*path, size, "%s%s", folder, rest);
    return *path != NULL;
}

static bool is_separator(char c) {
#ifdef _WIN32
    return c == '/' || c == '\\';
#else
    return c == '/';
#endif
}

/* Makes one folder unless it is there. */
static bool make_folder(const char *path) {
#ifdef _WIN32
    if (path[strlen(path) - 1] == ':') /* a drive */
        return true;
    int made = _mkdir(path);
#else
    int made = mkdir(path, 0700);
#endif
    int reason = errno;
    struct stat status;
    if (made == 0 || (stat(path, &status) == 0 && S_ISDIR(status.st_mode)))
        return true;
    errno = reason;
    return false;
}

bool pcl_fs_make_folder(const char *path) {
    char *part = strdup(path);
    if (part == NULL)
        return false;
    bool made = true;
    size_t length = strlen(part);
    for (size_t i = 1; made && i <= length; i++)
        if ((i == length || is_separator(part[i])) && !is_separator(part[i - 1])) {
            char end = part[i];
            part[i] = '\0';
            made = make_folder(part);
            part[i] = end;
        }
    int reason = errno;
    free(part);
    errno = reason;
    return made;
}
