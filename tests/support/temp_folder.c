/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700 /* nftw, mkdtemp */

#include "temp_folder.h"

#include "fixture.h"

#include <criterion/criterion.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *place) {
    (void)status, (void)kind, (void)place;
    return remove(path);
}

void temp_folder_remove(char *path) {
    cr_assert_eq(nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0, "cannot remove %s", path);
    free(path);
}
