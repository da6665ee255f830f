/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor maps of a layer's pool, for attn_varlen_wgmma and attn_decode_stream: a record for each of its segments
 * (nv/pool_maps.h), from record `first` on. The last segment has the blocks that the others leave of num_blocks; a
 * parameter behind it is another's memory, whose record is not used.
 *
 * Launch: NUM_SEGMENTS work-groups of 32.
 */
/* Of products, of which there are none here. */
#define Q_DTYPE float16

#include "nv/pool_maps.h"

__kernel __attribute__((reqd_work_group_size(32, 1, 1))) void attn_maps(__global uchar *maps, int first,
                                                                        long num_blocks, POOL_PARAMS) {
    __local uint scratch[MAP_BYTES / 4] __attribute__((aligned(MAP_BYTES)));
    const pool keys = POOL_KEYS, values = POOL_VALUES;
    const int segment = get_group_id(0);
    const uint blocks = clamp(num_blocks - ((long)segment << segment_shift), 1l, 1l << segment_shift);
    __global uchar *record = maps + (long)(first + segment) * MAPS_RECORD;
    const ulong k = segment_address(&keys, segment), v = segment_address(&values, segment);
    for (int i = 0; i < 2; i++) {
        const uint columns = MAP_COLUMNS(i == 0 ? HEAD_DIM : HEAD_DIM_V);
        const ulong address = i == 0 ? k : v;
        const ulong token = 2 * MAP_COLUMNS(i == 0 ? K_TOKEN_STRIDE : V_TOKEN_STRIDE);
        const ulong head = 2 * MAP_COLUMNS(i == 0 ? K_HEAD_STRIDE : V_HEAD_STRIDE);
        const ulong block = 2 * MAP_COLUMNS(i == 0 ? K_BLOCK_STRIDE : V_BLOCK_STRIDE);
        const tensor_shape by_columns = {4,
                                         address,
                                         {columns, BLOCK_SIZE, NUM_KV_HEADS, blocks},
                                         {token, head, block},
                                         {BOX_COLUMNS, COLUMN_TOKENS, 1, 1}};
        map_make(record + COLUMN_MAPS + i * MAP_BYTES, scratch, by_columns);
        warp_barrier();
#if ROW_BOXES
        const uint panels = columns / BOX_COLUMNS;
        const tensor_shape by_rows = {5,
                                      address,
                                      {BOX_COLUMNS, BLOCK_SIZE, panels, NUM_KV_HEADS, blocks},
                                      {token, 2 * BOX_COLUMNS, head, block},
                                      {BOX_COLUMNS, ROW_TOKENS, panels, 1, 1}};
        map_make(record + ROW_MAPS + i * MAP_BYTES, scratch, by_rows);
        warp_barrier();
#endif
    }
    if (get_local_id(0) == 0)
        *(__global ulong2 *)(record + MAPS_ADDRESSES) = (ulong2)(k, v);
}
