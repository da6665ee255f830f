/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leave LIBRARY HOW: uses the shared library and ends the process as callers do: "return" from main with everything
 * alive, "destroy" it in an atexit handler, or "close" the library under it. Exit status 0 unless that is what fails.
 */
#include <pagedcl/cache.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *library;
static pagedcl_device *device;
static pagedcl_cache *cache;

/* _Exit: nothing of what is tested here may run. */
static void *symbol(const char *name) {
    void *address = dlsym(library, name);
    if (address == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        _Exit(1);
    }
    return address;
}

/* The function `name`, by its type in the header. */
#define FUNCTION(name) (*(__typeof__(name) **)&(void *){symbol(#name)})

static void require(pagedcl_status status, const char *what) {
    if (status != PAGEDCL_SUCCESS) {
        fprintf(stderr, "%s: %s\n", what, FUNCTION(pagedcl_last_error)());
        _Exit(1);
    }
}

static void use(void) {
    require(FUNCTION(pagedcl_device_open)(NULL, NULL, &device), "open");
    pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT;
    desc.num_blocks = desc.block_size = 4;
    desc.num_kv_heads = 1;
    desc.head_dim = 8;
    require(FUNCTION(pagedcl_cache_create)(device, &desc, &cache), "create");
    const int32_t pairs[] = {0, 1};
    require(FUNCTION(pagedcl_cache_copy_blocks)(cache, NULL, pairs, 1, 0, NULL, NULL), "copy");
}

static void destroy(void) {
    FUNCTION(pagedcl_cache_destroy)(cache);
    FUNCTION(pagedcl_device_destroy)(device);
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    use();
    if (strcmp(argv[2], "destroy") == 0 && atexit(destroy) != 0)
        return 2;
    if (strcmp(argv[2], "close") == 0)
        return dlclose(library) == 0 ? 0 : 1;
    return 0;
}
