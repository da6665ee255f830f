/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads slots of a pool into contiguous rows: slots[t] to row t of k and v. A quantised pool gives float32 values, any
 * other one its elements, bit for bit. One work-item moves TUNE_VECTORS times 8 elements of K and of V of one head.
 * Launch: one dimension of num_slots * NUM_KV_HEADS * ROW_ITEMS work-items or more, ROW_ITEMS =
 * ceil(ceil(max(HEAD_DIM, HEAD_DIM_V) / 8) / TUNE_VECTORS).
 */
#include "lib/pool.h"

#if KV_QUANTIZED
#define OUT_DTYPE float32
#else
#define OUT_DTYPE KV_DTYPE
#endif

static void read8(pool_row from, __global STORAGE(OUT) * to, long to_at, int d, int dim) {
#if KV_QUANTIZED
    if (d < dim)
        ROW_STORE8(OUT, pool_load8(from, d, dim), to, to_at, d, dim);
#else
    if (d + 8 <= dim)
        vstore8(vload8(0, from.base + from.at + d), 0, to + to_at + d);
    else
        for (int j = d; j < dim; j++)
            to[to_at + j] = from.base[from.at + j];
#endif
}

/* Offsets are in elements. */
__kernel void cache_gather(POOL_PARAMS, const __global long *slots, long slots_offset, long num_slots,
                           __global STORAGE(OUT) * k, long k_offset, __global STORAGE(OUT) * v, long v_offset) {
    long i = (long)get_global_id(0);
    long t = i / (NUM_KV_HEADS * ROW_ITEMS);
    if (t >= num_slots)
        return;
    long slot = slots[slots_offset + t];
    int kv_head = (int)(i / ROW_ITEMS % NUM_KV_HEADS);
    int first = (int)(i % ROW_ITEMS) * TUNE_VECTORS * 8;
    int block = (int)(slot / BLOCK_SIZE);
    int token = (int)(slot % BLOCK_SIZE);
    long row = t * NUM_KV_HEADS + kv_head;
    pool keys = POOL_KEYS;
    pool values = POOL_VALUES;
    const pool_row key = pool_row_at(&keys, block, token, kv_head);
    const pool_row value = pool_row_at(&values, block, token, kv_head);
    for (int d = first; d < first + TUNE_VECTORS * 8; d += 8)
        read8(key, k, k_offset + row * HEAD_DIM, d, HEAD_DIM);
    for (int d = first; d < first + TUNE_VECTORS * 8; d += 8)
        read8(value, v, v_offset + row * HEAD_DIM_V, d, HEAD_DIM_V);
}
