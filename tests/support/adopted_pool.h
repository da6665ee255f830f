/* SPDX-License-Identifier: Apache-2.0 */
/* Pools in buffers of the caller's own, with every byte between the rows poisoned and checked. */
#ifndef ADOPTED_POOL_H
#define ADOPTED_POOL_H

#include "fixture.h"
#include "pool_model.h"

typedef enum pool_form {
    POOL_OF_LIBRARY = 0,
    POOL_OF_LIBRARY_HND = 4,
    POOL_HND = 1,               /* a head's tokens lie together; the strides are left to the library */
    POOL_INTERLEAVED = 2,       /* K and V in one buffer [num_blocks, 2, block_size, num_kv_heads, head_dim] */
    POOL_WITH_GAPS = 3,         /* an odd offset, and gaps between heads, tokens, blocks and layers */
    POOL_WITH_ALIGNED_GAPS = 5, /* the same, but every row begins at a multiple of 8 elements */
} pool_form;

/* Where the rows of K, or of V, lie, in elements. */
typedef struct pool_side {
    int64_t offset, layer;
    pagedcl_pool_strides strides;
    int32_t head_dim; /* 0: V lies in K */
} pool_side;

typedef struct adopted_pool {
    guarded k, v; /* v has no bytes when both are in k */
    pool_side sides[2];
    pool_form form;
    pagedcl_pool_buffers *buffers; /* [num_layers] */
} adopted_pool;

static inline bool pool_form_is_adopted(pool_form form) {
    return form != POOL_OF_LIBRARY && form != POOL_OF_LIBRARY_HND;
}

/* Holds what the model holds. */
adopted_pool adopted_pool_create(const pagedcl_device *device, pool_form form, const pool_model *model);
void adopted_pool_destroy(adopted_pool *pool);

/* Makes a cache's description one of this pool. */
void adopted_pool_describe(const adopted_pool *pool, pagedcl_cache_desc *desc);

/* Asserts that the rows are what the model holds, bit for bit, and all else is poison still. */
void adopted_pool_expect(const pagedcl_device *device, const adopted_pool *pool, const pool_model *model,
                         const char *name);

#endif
