/* SPDX-License-Identifier: Apache-2.0 */
#include "pool_shape.h"

#include "block_layout.h"

pagedcl_cache_desc pool_shape_desc(const pool_shape *shape) {
    pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT;
    desc.num_layers = shape->num_layers;
    desc.num_blocks = shape->num_blocks;
    desc.block_size = shape->block_size;
    desc.num_kv_heads = shape->num_kv_heads;
    desc.head_dim = shape->head_dim;
    desc.head_dim_v = shape->head_dim_v;
    desc.v_in_k = shape->v_in_k;
    desc.dtype = shape->dtype;
    desc.scale_per_row = shape->scale_per_row;
    desc.layout = shape->layout;
    desc.max_segment_bytes = (uint64_t)shape->segment_blocks * block_layout_of(&desc, desc.head_dim, 0).bytes;
    return desc;
}
