/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor maps of a layer's pool, for attn_varlen_wgmma: a record for each of its segments (nv/pool_maps.h), from
 * record `first` on. The last segment has the blocks that the others leave of num_blocks; a parameter behind it is
 * another's memory, whose record is not used.
 *
 * Launch: NUM_SEGMENTS work-groups of 32.
 */
#include "nv/pool_maps.h"

__kernel __attribute__((reqd_work_group_size(32, 1, 1))) void attn_maps(__global uchar *maps, int first,
                                                                        long num_blocks, POOL_PARAMS) {
    __local uint scratch[MAP_BYTES / 4] __attribute__((aligned(MAP_BYTES)));
    const pool keys = POOL_KEYS, values = POOL_VALUES;
    const int segment = get_group_id(0);
    const uint blocks = clamp(num_blocks - ((long)segment << segment_shift), 1l, 1l << segment_shift);
    __global uchar *record = maps + (long)(first + segment) * MAPS_RECORD;
    const ulong k = segment_address(&keys, segment), v = segment_address(&values, segment);
    map_make(record, scratch, k, (uint4)(HEAD_DIM, BLOCK_SIZE, NUM_KV_HEADS, blocks),
             2 * (ulong3)(K_TOKEN_STRIDE, K_HEAD_STRIDE, K_BLOCK_STRIDE), BOX_TOKENS);
    warp_barrier();
    map_make(record + MAP_BYTES, scratch, v, (uint4)(HEAD_DIM_V, BLOCK_SIZE, NUM_KV_HEADS, blocks),
             2 * (ulong3)(V_TOKEN_STRIDE, V_HEAD_STRIDE, V_BLOCK_STRIDE), BOX_TOKENS);
    if (get_local_id(0) == 0)
        *(__global ulong2 *)(record + 2 * MAP_BYTES) = (ulong2)(k, v);
}
