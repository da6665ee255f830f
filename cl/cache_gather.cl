/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads slots of a pool into contiguous rows, bit for bit: slots[t] to row t of k and v. One work-item moves 8 elements
 * of K and of V of one head. Launch: one dimension of num_slots * NUM_KV_HEADS * ROW_VECTORS work-items or more,
 * ROW_VECTORS = ceil(max(HEAD_DIM, HEAD_DIM_V) / 8).
 */
#include "lib/pool.h"

static void read8(pool_row from, __global STORAGE(KV) * to, long to_at, int d, int dim) {
    if (d + 8 <= dim)
        vstore8(vload8(0, from.base + from.at + d), 0, to + to_at + d);
    else
        for (int j = d; j < dim; j++)
            to[to_at + j] = from.base[from.at + j];
}

/* Offsets are in elements. */
__kernel void cache_gather(POOL_PARAMS, const __global long *slots, long slots_offset, long num_slots,
                           __global STORAGE(KV) * k, long k_offset, __global STORAGE(KV) * v, long v_offset) {
    long i = (long)get_global_id(0);
    long t = i / (NUM_KV_HEADS * ROW_VECTORS);
    if (t >= num_slots)
        return;
    long slot = slots[slots_offset + t];
    int kv_head = (int)(i / ROW_VECTORS % NUM_KV_HEADS);
    int d = (int)(i % ROW_VECTORS) * 8;
    int block = (int)(slot / BLOCK_SIZE);
    int token = (int)(slot % BLOCK_SIZE);
    long row = t * NUM_KV_HEADS + kv_head;
    pool keys = POOL_KEYS;
    pool values = POOL_VALUES;
    read8(pool_row_at(&keys, block, token, kv_head), k, k_offset + row * HEAD_DIM, d, HEAD_DIM);
    read8(pool_row_at(&values, block, token, kv_head), v, v_offset + row * HEAD_DIM_V, d, HEAD_DIM_V);
}
