/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores rows of k and v into slots of a pool, converted to the pool's dtype: row t to slots[t], -1 skips.
 * One work-item moves 8 elements of K and of V. Launch: one dimension of num_slots * NUM_KV_HEADS * HEAD_DIM / 8
 * work-items or more.
 */
#include "lib/pool.h"

/* The host's codes of pagedcl_dtype. */
#define CODE_FLOAT32 1
#define CODE_FLOAT16 2

/* The source's dtype is an argument, not a macro: one program serves all, and the kernel waits for memory anyway. */
static float8 load8_of(const __global uchar *base, int dtype, long index) {
    if (dtype == CODE_FLOAT32)
        return load8_float32((const __global float *)base + index);
    if (dtype == CODE_FLOAT16)
        return load8_float16((const __global ushort *)base + index);
    return load8_bfloat16((const __global ushort *)base + index);
}

/* layouts: x offset, y token stride, z head stride, in elements. slots starts slots_offset elements into its buffer. */
__kernel void cache_write(const __global uchar *k, long4 k_layout, const __global uchar *v, long4 v_layout, int dtype,
                          const __global long *slots, long slots_offset, long num_slots, POOL_PARAMS(k_pool),
                          POOL_PARAMS(v_pool), int segment_shift) {
    const int row_vectors = NUM_KV_HEADS * (HEAD_DIM / 8);
    long i = (long)get_global_id(0);
    long t = i / row_vectors;
    if (t >= num_slots)
        return;
    long slot = slots[slots_offset + t];
    if (slot < 0)
        return;
    int vector = (int)(i % row_vectors);
    int kv_head = vector / (HEAD_DIM / 8);
    int d = vector % (HEAD_DIM / 8) * 8;
    int block = (int)(slot / BLOCK_SIZE);
    int token = (int)(slot % BLOCK_SIZE);
    pool keys = POOL(k_pool);
    pool values = POOL(v_pool);
    float8 key = load8_of(k, dtype, k_layout.x + t * k_layout.y + kv_head * k_layout.z + d);
    float8 value = load8_of(v, dtype, v_layout.x + t * v_layout.y + kv_head * v_layout.z + d);
    STORE8(KV)(key, pool_row(&keys, segment_shift, block, token, kv_head) + d);
    STORE8(KV)(value, pool_row(&values, segment_shift, block, token, kv_head) + d);
}
