/* SPDX-License-Identifier: Apache-2.0 */
/* What a pool of the library is like, in one line of a table. */
#ifndef POOL_SHAPE_H
#define POOL_SHAPE_H

#include <pagedcl/cache.h>

typedef struct pool_shape {
    const char *name;
    int32_t num_layers, num_blocks, block_size, num_kv_heads, head_dim;
    pagedcl_dtype dtype;
    int32_t segment_blocks; /* the most blocks of K that a segment may hold, 0: as many as the device allows */
    pagedcl_layout layout;
    int32_t scale_per_row, head_dim_v, v_in_k;
} pool_shape;

pagedcl_cache_desc pool_shape_desc(const pool_shape *shape);

#endif
