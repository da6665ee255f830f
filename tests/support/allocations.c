/* SPDX-License-Identifier: Apache-2.0 */
#include "allocations.h"

#include <stdbool.h>
#include <stddef.h>

/* The linker gives the program these for its own. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);

static int64_t allowed = -1;

void allocations_allow(int64_t count) {
    allowed = count;
}

static bool is_allowed(void) {
    if (allowed == 0)
        return false;
    allowed -= allowed > 0;
    return true;
}

void *__wrap_malloc(size_t size) {
    return is_allowed() ? __real_malloc(size) : NULL;
}

void *__wrap_calloc(size_t count, size_t size) {
    return is_allowed() ? __real_calloc(count, size) : NULL;
}

void *__wrap_realloc(void *memory, size_t size) {
    return is_allowed() ? __real_realloc(memory, size) : NULL;
}
