/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool as kernel parameters: K and V each as segments of one buffer per parameter. Shape macros: BLOCK_SIZE,
 * NUM_KV_HEADS, HEAD_DIM, HEAD_DIM_V, NUM_SEGMENTS (1, 2, 4 or 8), KV_DTYPE, the strides of block, token and head in
 * elements, K_BLOCK_STRIDE to V_HEAD_STRIDE, and V_IN_K: a row of V is the beginning of the row of K, and not stored
 * again. KV_QUANTIZED: elements count times a scale, that of the pool or, with KV_STORED_SCALES, one of those that lie
 * behind the block's elements, from byte K_SCALES_OFFSET or V_SCALES_OFFSET on:
 * [BLOCK_SIZE, NUM_KV_HEADS, scales of a row], one for each SCALE_GROUP(KV) elements along the row, of the type
 * SCALE_DTYPE. Elements are then bytes or halves of them, and strides in elements even.
 *
 *     __kernel void f(POOL_PARAMS) {
 *         pool keys = POOL_KEYS, values = POOL_VALUES;
 *         pool_row row = pool_row_at(&keys, block, token, kv_head);
 *         ... LOAD8(KV)(row.base, row.at + d) ...
 *     }
 */
#ifndef POOL_H
#define POOL_H

#include "lib/types.h"
#include "lib/address.h"

#if NUM_SEGMENTS == 1
#define SEGMENT_PARAMS(p) __global STORAGE(KV) *p##0
#define SEGMENTS(p) {p##0}
#elif NUM_SEGMENTS == 2
#define SEGMENT_PARAMS(p) __global STORAGE(KV) *p##0, __global STORAGE(KV) *p##1
#define SEGMENTS(p) {p##0, p##1}
#elif NUM_SEGMENTS == 4
#define SEGMENT_PARAMS(p)                                                                                              \
    __global STORAGE(KV) *p##0, __global STORAGE(KV) *p##1, __global STORAGE(KV) *p##2, __global STORAGE(KV) *p##3
#define SEGMENTS(p) {p##0, p##1, p##2, p##3}
#elif NUM_SEGMENTS == 8
#define SEGMENT_PARAMS(p)                                                                                              \
    __global STORAGE(KV) *p##0, __global STORAGE(KV) *p##1, __global STORAGE(KV) *p##2, __global STORAGE(KV) *p##3,    \
        __global STORAGE(KV) *p##4, __global STORAGE(KV) *p##5, __global STORAGE(KV) *p##6, __global STORAGE(KV) *p##7
#define SEGMENTS(p) {p##0, p##1, p##2, p##3, p##4, p##5, p##6, p##7}
#else
#error NUM_SEGMENTS must be 1, 2, 4 or 8
#endif

/* Vectors of 8 elements that cover a row of K, and one of V. */
#define ROW_VECTORS (((HEAD_DIM > HEAD_DIM_V ? HEAD_DIM : HEAD_DIM_V) + 7) / 8)

/* Work-items that move a row, TUNE_VECTORS vectors each. */
#define ROW_ITEMS ((ROW_VECTORS + TUNE_VECTORS - 1) / TUNE_VECTORS)

/* How many scales a row has, and how many elements share one, or 8. */
#if KV_STORED_SCALES
#define SCALE_DTYPE SCALE_DTYPE_OF(KV)
#define ROW_SCALES(dim) (((dim) + SCALE_GROUP(KV) - 1) / SCALE_GROUP(KV))
#define STORE_WIDTH SCALE_GROUP(KV)
#else
#define SCALE_DTYPE float32
#define ROW_SCALES(dim) 0
#define STORE_WIDTH 8
#endif

/* Offsets are in elements, from the beginning of every segment's buffer. */
#define POOL_PARAMS                                                                                                    \
    SEGMENT_PARAMS(pool_k), SEGMENT_PARAMS(pool_v), long pool_k_offset, long pool_v_offset, int segment_shift,         \
        float pool_k_scale, float pool_v_scale
#define POOL_KEYS                                                                                                      \
    {SEGMENTS(pool_k), pool_k_offset,  segment_shift, K_BLOCK_STRIDE, K_TOKEN_STRIDE, K_HEAD_STRIDE, pool_k_scale,     \
     K_SCALES_OFFSET, ROW_SCALES(HEAD_DIM)}
#define POOL_VALUES                                                                                                    \
    {SEGMENTS(pool_v), pool_v_offset,  segment_shift, V_BLOCK_STRIDE, V_TOKEN_STRIDE, V_HEAD_STRIDE, pool_v_scale,     \
     V_SCALES_OFFSET, ROW_SCALES(V_IN_K ? HEAD_DIM : HEAD_DIM_V)}

typedef struct pool {
    __global STORAGE(KV) *segment[NUM_SEGMENTS];
    long offset;
    int segment_shift;
    long block_stride, token_stride, head_stride; /* constants of the program */
    float scale;
    long scales_offset; /* constants too */
    int row_scales;
} pool;

typedef struct pool_row {
    __global STORAGE(KV) *base;
    long at;
    __global STORAGE(SCALE) *scales; /* with KV_STORED_SCALES */
    float pool_scale;
} pool_row;

/* Whether 8 elements from a multiple of 8 on are a RAW8, wherever their row is. */
static bool pool_is_aligned(const pool *p) {
    size_t bytes = 0;
#pragma unroll
    for (int i = 0; i < NUM_SEGMENTS; i++)
        bytes |= (size_t)p->segment[i];
    return IS_RAW8_ALIGNED(KV, bytes, p->offset | p->block_stride | p->token_stride | p->head_stride);
}

/* The row of a KV head at a token offset of a block. */
static pool_row pool_row_at(const pool *p, int block, int token, int kv_head) {
    pool_row row;
    row.base = p->segment[0];
    /* A chain of selects among values: indexing the array by a variable would put it into memory, and compilers turn a
       select among its elements into that. */
    int segment = address_segment(block, p->segment_shift);
#pragma unroll
    for (int i = 1; i < NUM_SEGMENTS; i++) {
        __global STORAGE(KV) *other = p->segment[i];
        row.base = segment == i ? other : row.base;
    }
    row.at = p->offset + address_row(block, p->segment_shift, token, kv_head, p->block_stride, p->token_stride,
                                     p->head_stride);
    row.scales = 0;
    row.pool_scale = p->scale;
#if KV_STORED_SCALES
    /* A unit of storage is a byte, and a block a multiple of four. */
    address_index block_at = address_row(block, p->segment_shift, 0, 0, p->block_stride, 0, 0);
    row.scales = (__global STORAGE(SCALE) *)(row.base + UNIT(KV, block_at) + p->scales_offset) +
                 (token * NUM_KV_HEADS + kv_head) * p->row_scales;
#endif
    return row;
}

/* The scale of element d. */
static float pool_scale_at(pool_row row, int d) {
#if KV_STORED_SCALES
    return LOAD1(SCALE)(row.scales, d / SCALE_GROUP(KV));
#else
    (void)d;
    return row.pool_scale;
#endif
}

/* Elements d .. d + 7 of a row of dim elements, as values. */
static float8 pool_load8(pool_row row, int d, int dim) {
    float8 x = ROW_LOAD8(KV, row.base, row.at, d, dim);
#if KV_QUANTIZED
    x *= pool_scale_at(row, d);
#endif
    return x;
}

/* The scale with which elements are to be stored that share one, from their largest magnitude. The product is the same
   on every device, which a quotient need not be. A scale is a normal number, whatever the rows hold: 0 and infinity
   would make NaNs of a row's other elements. */
#define LEAST_SCALE FLT_MIN
#define MOST_SCALE (0.999999f * FLT_MAX / LARGEST(KV))
static float pool_scale_for(float pool_scale, float largest) {
#if KV_STORED_SCALES
    (void)pool_scale;
    return largest > 0 ? SCALE_UP(SCALE)(clamp(largest * (1.0f / LARGEST(KV)), LEAST_SCALE, MOST_SCALE)) : 1;
#else
    (void)largest;
    return pool_scale;
#endif
}

/* The scale of element d, if it is the first of those that share it. */
static void pool_store_scale(pool_row row, int d, float scale) {
#if KV_STORED_SCALES
    if (d % SCALE_GROUP(KV) == 0)
        STORE1(SCALE)(scale, row.scales, d / SCALE_GROUP(KV));
#else
    (void)row;
    (void)d;
    (void)scale;
#endif
}

/* Stores elements d .. d + 7 of a row, with a scale from pool_scale_for. */
static void pool_store8(pool_row row, int d, int dim, float8 x, float scale) {
    ROW_STORE8(KV, KV_QUANTIZED ? x / scale : x, row.base, row.at, d, dim);
    pool_store_scale(row, d, scale);
}

/* The same where much is stored. aligned: from pool_is_aligned. */
static void pool_store_aligned8(pool_row row, int d, int dim, float8 x, float scale, bool aligned) {
    ROW_STORE_ALIGNED8(KV, KV_QUANTIZED ? x / scale : x, row.base, row.at, d, dim, aligned);
    pool_store_scale(row, d, scale);
}

static float largest_of8(float8 x) {
    float8 a = fabs(x);
    float4 b = fmax(a.lo, a.hi);
    float2 c = fmax(b.lo, b.hi);
    return fmax(c.x, c.y);
}

#endif
