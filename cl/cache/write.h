/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores rows of k and v into slots of a pool, converted to the pool's dtype: row t to slots[t], -1 skips. Other slots
 * that the pool does not have are counted in faults[1], once a row, and skipped.
 * One work-item moves TUNE_VECTORS times 8 elements of K and of V of one head. Launch: one dimension of num_slots *
 * NUM_KV_HEADS * ROW_ITEMS work-items or more, ROW_ITEMS = ceil(ceil(max(HEAD_DIM, HEAD_DIM_V) / 8) / TUNE_VECTORS).
 */
#ifndef CACHE_WRITE_H
#define CACHE_WRITE_H

#include "lib/pool.h"

/* The host's codes of pagedcl_dtype. */
#define CODE_FLOAT32 1
#define CODE_FLOAT16 2

/* Where a row of the source begins: element `at` of what is at `base`. */
typedef struct source {
    const __global uchar *base;
    long at;
} source;

/*
 * move_DTYPE: moves what a work-item has, from element `first` on, of a row of K and one of V, in that dtype. Work-items
 * that share a scale find it each for itself, and the first of them stores it. aligned: all that is moved is. Of one
 * vector, which is what GPUs take, V's is on its way while K's is moved.
 * The source's dtype is an argument of the kernel, not a macro: one program serves all.
 */
#define DEFINE_MOVE(dtype)                                                                                      \
    static float8 load_##dtype(source from, int d, int dim, bool aligned) {                                     \
        const __global storage_##dtype *base = (const __global storage_##dtype *)from.base;                     \
        const int count = dim % 8 == 0 ? 8 : dim - d;                                                           \
        if (d >= dim)                                                                                           \
            return 0;                                                                                           \
        return HAS_UNALIGNED ? load_upto8_##dtype(base, from.at + d, count)                                     \
                             : decode_raw8_##dtype(load_raw8_##dtype(base, from.at + d, count, aligned));       \
    }                                                                                                           \
    static float scale_##dtype(source from, float pool_scale, int d, int dim, bool aligned) {                   \
        const int begin = d / STORE_WIDTH * STORE_WIDTH;                                                        \
        float largest = 0;                                                                                      \
        for (int e = begin; KV_STORED_SCALES && e < min(begin + STORE_WIDTH, dim); e += 8)                      \
            largest = fmax(largest, largest_of8(load_##dtype(from, e, dim, aligned)));                          \
        return pool_scale_for(pool_scale, largest);                                                             \
    }                                                                                                           \
    static void move_row_##dtype(float8 x, source from, pool_row to, int first, int dim, bool aligned) {        \
        const int end = min(first + TUNE_VECTORS * 8, dim);                                                     \
        float scale = 0;                                                                                        \
        for (int d = first; d < end; d += 8) {                                                                  \
            if (d == first || d % STORE_WIDTH == 0)                                                             \
                scale = scale_##dtype(from, to.pool_scale, d, dim, aligned);                                    \
            pool_store_aligned8(to, d, dim, TUNE_VECTORS == 1 ? x : load_##dtype(from, d, dim, aligned), scale, \
                                aligned);                                                                       \
        }                                                                                                       \
    }                                                                                                           \
    static void move_##dtype(source k, pool_row key, source v, pool_row value, int first, bool aligned) {       \
        float8 first_k = 0, first_v = 0;                                                                        \
        if (TUNE_VECTORS == 1) {                                                                                \
            first_k = load_##dtype(k, first, HEAD_DIM, aligned);                                                \
            first_v = V_IN_K ? 0 : load_##dtype(v, first, HEAD_DIM_V, aligned);                                 \
        }                                                                                                       \
        move_row_##dtype(first_k, k, key, first, HEAD_DIM, aligned);                                            \
        if (!V_IN_K)                                                                                            \
            move_row_##dtype(first_v, v, value, first, HEAD_DIM_V, aligned);                                    \
    }
DEFINE_MOVE(float32)
DEFINE_MOVE(float16)
DEFINE_MOVE(bfloat16)

static bool source_is_aligned(const __global uchar *from, long4 layout, int dtype) {
    const long elements = layout.x | layout.y | layout.z;
    return elements % 8 == 0 && (size_t)from % (dtype == CODE_FLOAT32 ? sizeof(RAW_float32) : sizeof(RAW_float16)) == 0;
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
    const bool aligned = source_is_aligned(k, k_layout, dtype) && source_is_aligned(v, v_layout, dtype) &&
                         pool_is_aligned(&keys) && pool_is_aligned(&values);
    const source from_k = {k, k_layout.x + t * k_layout.y + kv_head * k_layout.z};
    const source from_v = {v, v_layout.x + t * v_layout.y + kv_head * v_layout.z};
    const pool_row key = pool_row_at(&keys, block, token, kv_head);
    const pool_row value = pool_row_at(&values, block, token, kv_head);
    if (dtype == CODE_FLOAT32)
        move_float32(from_k, key, from_v, value, first, aligned);
    else if (dtype == CODE_FLOAT16)
        move_float16(from_k, key, from_v, value, first, aligned);
    else
        move_bfloat16(from_k, key, from_v, value, first, aligned);
}

#endif
