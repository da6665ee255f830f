/* SPDX-License-Identifier: Apache-2.0 */
/* The count of host memory: the linker sends every allocation of the program and of the library here. */
#define _POSIX_C_SOURCE 200809L

#include "stub.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define DECLARE(call) __typeof__(call) __wrap_##call, __real_##call;
DECLARE(malloc)
DECLARE(calloc)
DECLARE(realloc)
DECLARE(strdup)
DECLARE(free)
#undef DECLARE

static atomic_size_t made, freed;

size_t stub_allocations(void) {
    return atomic_load(&made);
}

size_t stub_memory(void) {
    return atomic_load(&made) - atomic_load(&freed);
}

static void *count(void *memory) {
    if (memory != NULL)
        atomic_fetch_add(&made, 1);
    return memory;
}

void *__wrap_malloc(size_t size) {
    return count(__real_malloc(size));
}

void *__wrap_calloc(size_t number, size_t size) {
    return count(__real_calloc(number, size));
}

char *__wrap_strdup(const char *text) {
    return count(__real_strdup(text));
}

/* Other memory in the place of the old. */
void *__wrap_realloc(void *memory, size_t size) {
    void *other = count(__real_realloc(memory, size));
    if (memory != NULL && other != NULL)
        atomic_fetch_add(&freed, 1);
    return other;
}

void __wrap_free(void *memory) {
    if (memory != NULL)
        atomic_fetch_add(&freed, 1);
    __real_free(memory);
}
