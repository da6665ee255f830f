/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads slots of a pool into contiguous rows, bit for bit: slots[t] to row t of k and v. One work-item moves 8 elements
 * of K and of V. Launch: one dimension of num_slots * NUM_KV_HEADS * HEAD_DIM / 8 work-items or more.
 */
#include "lib/pool.h"

/* Offsets are in elements. */
__kernel void cache_gather(POOL_PARAMS(k_pool), POOL_PARAMS(v_pool), int segment_shift, const __global long *slots,
                           long slots_offset, long num_slots, __global STORAGE(KV) * k, long k_offset,
                           __global STORAGE(KV) * v, long v_offset) {
    const int row_vectors = NUM_KV_HEADS * (HEAD_DIM / 8);
    long i = (long)get_global_id(0);
    long t = i / row_vectors;
    if (t >= num_slots)
        return;
    long slot = slots[slots_offset + t];
    int vector = (int)(i % row_vectors);
    int kv_head = vector / (HEAD_DIM / 8);
    int d = vector % (HEAD_DIM / 8) * 8;
    int block = (int)(slot / BLOCK_SIZE);
    int token = (int)(slot % BLOCK_SIZE);
    pool keys = POOL(k_pool);
    pool values = POOL(v_pool);
    vstore8(vload8(0, pool_row(&keys, segment_shift, block, token, kv_head) + d), 0, k + k_offset + i * 8);
    vstore8(vload8(0, pool_row(&values, segment_shift, block, token, kv_head) + d), 0, v + v_offset + i * 8);
}
