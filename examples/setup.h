/* SPDX-License-Identifier: Apache-2.0 */
/* What the longer examples begin with; shortest.c has it in full. An engine would return errors, not exit. */
#ifndef SETUP_H
#define SETUP_H

#include <pagedcl/pagedcl.h>

#include <stdio.h>
#include <stdlib.h>

static inline void check(pagedcl_status status) {
    if (status != PAGEDCL_SUCCESS) {
        fprintf(stderr, "%s: %s\n", pagedcl_status_name(status), pagedcl_last_error());
        exit(1);
    }
}

static inline void check_cl(cl_int code) {
    if (code != CL_SUCCESS) {
        fprintf(stderr, "OpenCL error %d\n", code);
        exit(1);
    }
}

static inline cl_mem make_buffer(cl_context context, size_t bytes) {
    cl_int code;
    cl_mem mem = clCreateBuffer(context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    check_cl(code);
    return mem;
}

/* A pool in float32. */
static inline pagedcl_cache *make_cache(pagedcl_device *device, int32_t num_layers, int32_t num_blocks,
                                        int32_t block_size, int32_t num_kv_heads, int32_t head_dim) {
    pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT;
    desc.num_layers = num_layers;
    desc.num_blocks = num_blocks;
    desc.block_size = block_size;
    desc.num_kv_heads = num_kv_heads;
    desc.head_dim = head_dim;
    desc.dtype = PAGEDCL_FLOAT32;
    pagedcl_cache *cache;
    check(pagedcl_cache_create(device, &desc, &cache));
    return cache;
}

/* Causal attention over the pool. */
static inline pagedcl_attn *make_attn(pagedcl_device *device, pagedcl_cache *cache, int32_t num_heads) {
    pagedcl_attn_desc desc = PAGEDCL_ATTN_DESC_INIT;
    desc.cache = cache;
    desc.num_heads = num_heads;
    desc.causal = 1;
    pagedcl_attn *attn;
    check(pagedcl_attn_create(device, &desc, &attn));
    return attn;
}

#endif
