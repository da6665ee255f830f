/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fills whole blocks of a pool with zeros: block i of the launch is blocks[2i]. One work-item fills TUNE_VECTORS times
 * 8 elements of K and of V of one token and head. Launch: one dimension of num_blocks * BLOCK_SIZE * NUM_KV_HEADS *
 * ROW_ITEMS work-items or more.
 */
#ifndef CACHE_WIPE_H
#define CACHE_WIPE_H

#include "lib/pool.h"

static void wipe8(pool_row to, int d, int dim, bool aligned) {
    if (d >= dim)
        return;
    ROW_STORE_RAW8(KV, (RAW8(KV))0, to.base, to.at, d, dim, aligned);
#if KV_STORED_SCALES
    if (d % SCALE_GROUP(KV) == 0)
        to.scales[d / SCALE_GROUP(KV)] = 0;
#endif
}

__kernel void cache_wipe(POOL_PARAMS, const __global int *blocks, long blocks_offset, long num_blocks) {
    long i = (long)get_global_id(0);
    long index = i / ((long)BLOCK_SIZE * NUM_KV_HEADS * ROW_ITEMS);
    if (index >= num_blocks)
        return;
    int kv_head = (int)(i / ROW_ITEMS % NUM_KV_HEADS);
    int token = (int)(i / (ROW_ITEMS * NUM_KV_HEADS) % BLOCK_SIZE);
    int first = (int)(i % ROW_ITEMS) * TUNE_VECTORS * 8;
    int block = blocks[blocks_offset + 2 * index];
    pool keys = POOL_KEYS;
    pool values = POOL_VALUES;
    const pool_row key = pool_row_at(&keys, block, token, kv_head);
    const pool_row value = pool_row_at(&values, block, token, kv_head);
    const bool aligned = pool_is_aligned(&keys) && pool_is_aligned(&values);
    for (int d = first; d < first + TUNE_VECTORS * 8; d += 8)
        wipe8(key, d, HEAD_DIM, aligned);
    if (!V_IN_K)
        for (int d = first; d < first + TUNE_VECTORS * 8; d += 8)
            wipe8(value, d, HEAD_DIM_V, aligned);
}

#endif
