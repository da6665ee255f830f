/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies whole blocks inside a pool, bit for bit: pairs[2i] to pairs[2i+1]. No block is written that another pair of
 * the same launch reads or writes. One work-item moves TUNE_VECTORS times 8 elements of K and of V of one token
 * and head. Launch: one dimension of num_pairs * BLOCK_SIZE * NUM_KV_HEADS * ROW_ITEMS work-items or more, ROW_ITEMS =
 * ceil(ceil(max(HEAD_DIM, HEAD_DIM_V) / 8) / TUNE_VECTORS).
 */
#include "lib/pool.h"

/* The units of storage of 8 elements at once. */
#define LOAD_UNITS8 PASTE(vload, UNITS8(KV))
#define STORE_UNITS8 PASTE(vstore, UNITS8(KV))

static void copy8(pool_row from, pool_row to, int d, int dim) {
    const long from_at = UNIT(KV, from.at + d), to_at = UNIT(KV, to.at + d);
    if (d + 8 <= dim)
        STORE_UNITS8(LOAD_UNITS8(0, from.base + from_at), 0, to.base + to_at);
    else
        for (int j = 0; d + j * (8 / UNITS8(KV)) < dim; j++)
            to.base[to_at + j] = from.base[from_at + j];
#if KV_STORED_SCALES
    if (d < dim && d % SCALE_GROUP(KV) == 0)
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
    for (int d = first; d < first + TUNE_VECTORS * 8; d += 8)
        copy8(from_key, to_key, d, HEAD_DIM);
    if (!V_IN_K)
        for (int d = first; d < first + TUNE_VECTORS * 8; d += 8)
            copy8(from_value, to_value, d, HEAD_DIM_V);
}
