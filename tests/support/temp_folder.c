/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L

#include "temp_folder.h"

#include "fixture.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *temp_folder_create(void) {
    const char *parent = getenv("TMPDIR");
    if (!parent || !parent[0])
        parent = "/tmp";
    static const char name[] = "/pagedcl-test-XXXXXX";
    char *path = fixture_alloc(strlen(parent) + sizeof(name));
    strcpy(path, parent);
    strcat(path, name);
    cr_assert(mkdtemp(path), "cannot make a folder in %s", parent);
    return path;
}

void temp_folder_remove(char *path) {
    DIR *folder = opendir(path);
    cr_assert(folder, "cannot open %s", path);
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            cr_assert_eq(unlinkat(dirfd(folder), entry->d_name, 0), 0, "cannot remove %s/%s", path, entry->d_name);
    }
    closedir(folder);
    cr_assert_eq(rmdir(path), 0, "cannot remove %s", path);
    free(path);
}
