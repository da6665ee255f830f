/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies whole blocks inside a pool, bit for bit: pairs[2i] to pairs[2i+1]. No block is written that another pair of
 * the same launch reads or writes. One work-item moves TUNE_VECTORS times 8 elements of K and of V of one token
 * and head. Launch: one dimension of num_pairs * BLOCK_SIZE * NUM_KV_HEADS * ROW_ITEMS work-items or more, ROW_ITEMS =
 * ceil(ceil(max(HEAD_DIM, HEAD_DIM_V) / 8) / TUNE_VECTORS).
 */
#ifndef CACHE_COPY_H
#define CACHE_COPY_H

#include "cache/raw_row.h"

/* Stores 8 elements of a row, and the scale that begins with them, where one does. */
static void copy_store8(RAW8(KV) x, pool_row from, pool_row to, int d, int dim, bool aligned) {
    if (d >= dim)
        return;
    ROW_STORE_RAW8(KV, x, to.base, to.at, d, dim, aligned);
    (void)from;
#if KV_STORED_SCALES
    if (d % SCALE_GROUP(KV) == 0)
        to.scales[d / SCALE_GROUP(KV)] = from.scales[d / SCALE_GROUP(KV)];
#endif
}

__kernel void cache_copy(POOL_PARAMS, const __global int *pairs, long pairs_offset, long num_pairs) {
    long i = (long)get_global_id(0);
    long pair = i / ((long)BLOCK_SIZE * NUM_KV_HEADS * ROW_ITEMS);
    if (pair >= num_pairs)
        return;
    int kv_head = (int)(i / ROW_ITEMS % NUM_KV_HEADS);
    int token = (int)(i / (ROW_ITEMS * NUM_KV_HEADS) % BLOCK_SIZE);
    int first = (int)(i % ROW_ITEMS) * TUNE_VECTORS * 8;
    int from = pairs[pairs_offset + 2 * pair];
    int to = pairs[pairs_offset + 2 * pair + 1];
    pool keys = POOL_KEYS;
    pool values = POOL_VALUES;
    const pool_row from_key = pool_row_at(&keys, from, token, kv_head), to_key = pool_row_at(&keys, to, token, kv_head);
    const pool_row from_value = pool_row_at(&values, from, token, kv_head);
    const pool_row to_value = pool_row_at(&values, to, token, kv_head);
    const bool aligned = pool_is_aligned(&keys) && pool_is_aligned(&values);
    const int end = first + TUNE_VECTORS * 8;
    /* V's first vector, a GPU's only one, is on its way while K is moved. */
    RAW8(KV) next = V_IN_K ? (RAW8(KV))0 : raw_load8(from_value, first, HEAD_DIM_V, aligned);
    for (int d = first; d < end; d += 8)
        copy_store8(raw_load8(from_key, d, HEAD_DIM, aligned), from_key, to_key, d, HEAD_DIM, aligned);
    for (int d = first; !V_IN_K && d < end; d += 8) {
        copy_store8(next, from_value, to_value, d, HEAD_DIM_V, aligned);
        if (d + 8 < end)
            next = raw_load8(from_value, d + 8, HEAD_DIM_V, aligned);
    }
}

#endif
