/* SPDX-License-Identifier: Apache-2.0 */
#include "struct_size.h"

#include <criterion/criterion.h>

/* A struct of the API as its first version had it, as the library has it, and as a later one will. */
typedef struct first {
    size_t struct_size;
    int a;
    int b;
} first;
typedef struct present {
    size_t struct_size;
    int a;
    int b;
    int c;
    int d;
} present;
typedef struct later {
    size_t struct_size;
    int a;
    int b;
    int c;
    int d;
    int e;
    int f;
} later;

Test(struct_size, read_takes_what_both_know) {
    present mine;

    first older = {.struct_size = sizeof older, .a = 1, .b = 2};
    memset(&mine, 0xff, sizeof mine);
    cr_assert_eq(PCL_READ_STRUCT(&mine, &older, b), PAGEDCL_SUCCESS);
    cr_assert(mine.struct_size == sizeof mine && mine.a == 1 && mine.b == 2 && mine.c == 0 && mine.d == 0);

    present same = {.struct_size = sizeof same, .a = 1, .b = 2, .c = 3, .d = 4};
    cr_assert_eq(PCL_READ_STRUCT(&mine, &same, b), PAGEDCL_SUCCESS);
    cr_assert(mine.a == 1 && mine.b == 2 && mine.c == 3 && mine.d == 4);

    struct {
        later desc;
        int guard;
    } newer = {{.struct_size = sizeof(later), .a = 5, .b = 6, .c = 7, .d = 8, .e = 9}, 77};
    cr_assert_eq(PCL_READ_STRUCT(&mine, &newer.desc, b), PAGEDCL_SUCCESS);
    cr_assert(mine.struct_size == sizeof mine && mine.a == 5 && mine.d == 8);
}

Test(struct_size, fill_writes_what_both_know) {
    const present mine = {.struct_size = sizeof mine, .a = 1, .b = 2, .c = 3, .d = 4};

    struct {
        first info;
        int guard;
    } older = {{.struct_size = sizeof(first)}, 77};
    cr_assert_eq(PCL_FILL_STRUCT(&older.info, &mine, b), PAGEDCL_SUCCESS);
    cr_assert(older.info.struct_size == sizeof(first) && older.info.a == 1 && older.info.b == 2);
    cr_assert_eq(older.guard, 77);

    later newer = {.struct_size = sizeof newer, .e = 9};
    cr_assert_eq(PCL_FILL_STRUCT(&newer, &mine, b), PAGEDCL_SUCCESS);
    cr_assert(newer.struct_size == sizeof newer && newer.a == 1 && newer.d == 4 && newer.e == 9);
}

Test(struct_size, refuses_less_than_the_first_version) {
    present mine = {.a = 42};
    const first *missing = NULL;
    cr_assert_eq(PCL_READ_STRUCT(&mine, missing, b), PAGEDCL_INVALID_ARGUMENT);
    cr_assert_str_eq(pagedcl_last_error(), "missing is NULL");
    cr_assert_eq(mine.a, 42);

    first desc = {.a = 1, .b = 2};
    const size_t sizes[] = {0, 1, sizeof(size_t), offsetof(first, b), sizeof(first) - 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        desc.struct_size = sizes[i];
        cr_assert_eq(PCL_READ_STRUCT(&mine, &desc, b), PAGEDCL_INVALID_ARGUMENT, "struct_size %zu", sizes[i]);
        cr_assert_eq(mine.a, 42);
        cr_assert_eq(PCL_FILL_STRUCT(&desc, &mine, b), PAGEDCL_INVALID_ARGUMENT, "struct_size %zu", sizes[i]);
        cr_assert(desc.a == 1 && desc.b == 2);
    }
}
