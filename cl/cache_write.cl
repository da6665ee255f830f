/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores rows of k and v into slots of a pool, converted to the pool's dtype: row t to slots[t], -1 skips. Other slots
 * that the pool does not have are counted in faults[1], once a row, and skipped.
 * One work-item moves TUNE_VECTORS times 8 elements of K and of V of one head. Launch: one dimension of num_slots *
 * NUM_KV_HEADS * ROW_ITEMS work-items or more, ROW_ITEMS = ceil(ceil(max(HEAD_DIM, HEAD_DIM_V) / 8) / TUNE_VECTORS).
 */
#include "lib/pool.h"

/* The host's codes of pagedcl_dtype. */
#define CODE_FLOAT32 1
#define CODE_FLOAT16 2

/* The source's dtype is an argument, not a macro: one program serves all, and the kernel waits for memory anyway. */
static float8 load_of(const __global uchar *base, int dtype, long i, int count) {
    if (dtype == CODE_FLOAT32)
        return load_upto8_float32((const __global float *)base, i, count);
    if (dtype == CODE_FLOAT16)
        return load_upto8_float16((const __global ushort *)base, i, count);
    return load_upto8_bfloat16((const __global ushort *)base, i, count);
}

static float8 row_of(const __global uchar *from, long at, int dtype, int d, int dim) {
    return load_of(from, dtype, at + d, dim % 8 == 0 ? 8 : min(8, dim - d));
}

/* What a work-item moves of a row, from element `first` on; where scales are stored, that of the first vector of those
   that share one stores all. */
static void write_row(const __global uchar *from, long at, int dtype, pool_row to, int first, int dim) {
    for (int d = first; d < min(first + TUNE_VECTORS * 8, dim); d += 8) {
        if (d % STORE_WIDTH != 0)
            continue;
        const int end = min(d + STORE_WIDTH, dim);
        float largest = 0;
#if KV_STORED_SCALES
        for (int e = d; e < end; e += 8)
            largest = fmax(largest, largest_of8(row_of(from, at, dtype, e, dim)));
#endif
        float scale = pool_scale_for(to.pool_scale, largest);
        for (int e = d; e < end; e += 8)
            pool_store8(to, e, dim, row_of(from, at, dtype, e, dim), scale);
    }
}

/* layouts: x offset, y token stride, z head stride, in elements. slots starts slots_offset elements into its buffer. */
__kernel void cache_write(const __global uchar *k, long4 k_layout, const __global uchar *v, long4 v_layout, int dtype,
                          const __global long *slots, long slots_offset, long num_slots, int num_blocks,
                          __global uint *faults, POOL_PARAMS) {
    long i = (long)get_global_id(0);
    long t = i / (NUM_KV_HEADS * ROW_ITEMS);
    if (t >= num_slots)
        return;
    long slot = slots[slots_offset + t];
    int kv_head = (int)(i / ROW_ITEMS % NUM_KV_HEADS);
    int first = (int)(i % ROW_ITEMS) * TUNE_VECTORS * 8;
    if (slot < 0 || slot >= (long)num_blocks * BLOCK_SIZE) {
        if (slot != -1 && kv_head == 0 && first == 0)
            atomic_inc(&faults[1]);
        return;
    }
    int block = (int)(slot / BLOCK_SIZE);
    int token = (int)(slot % BLOCK_SIZE);
    pool keys = POOL_KEYS;
    pool values = POOL_VALUES;
    write_row(k, k_layout.x + t * k_layout.y + kv_head * k_layout.z, dtype, pool_row_at(&keys, block, token, kv_head),
              first, HEAD_DIM);
    if (!V_IN_K)
        write_row(v, v_layout.x + t * v_layout.y + kv_head * v_layout.z, dtype,
                  pool_row_at(&values, block, token, kv_head), first, HEAD_DIM_V);
}
