/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool as kernel parameters: K and V each as segments of one buffer per parameter. Shape macros: BLOCK_SIZE,
 * NUM_KV_HEADS, HEAD_DIM, HEAD_DIM_V, NUM_SEGMENTS (1, 2, 4 or 8), KV_DTYPE, the strides of block, token and head in
 * elements, K_BLOCK_STRIDE to V_HEAD_STRIDE, and V_IN_K: a row of V is the beginning of the row of K, and not stored
 * again.
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

/* Offsets are in elements, from the beginning of every segment's buffer. */
#define POOL_PARAMS                                                                                                    \
    SEGMENT_PARAMS(pool_k), SEGMENT_PARAMS(pool_v), long pool_k_offset, long pool_v_offset, int segment_shift
#define POOL_KEYS                                                                                                      \
    {SEGMENTS(pool_k), pool_k_offset, segment_shift, K_BLOCK_STRIDE, K_TOKEN_STRIDE, K_HEAD_STRIDE}
#define POOL_VALUES                                                                                                    \
    {SEGMENTS(pool_v), pool_v_offset, segment_shift, V_BLOCK_STRIDE, V_TOKEN_STRIDE, V_HEAD_STRIDE}

typedef struct pool {
    __global STORAGE(KV) *segment[NUM_SEGMENTS];
    long offset;
    int segment_shift;
    long block_stride, token_stride, head_stride; /* constants of the program */
} pool;

typedef struct pool_row {
    __global STORAGE(KV) *base;
    long at;
} pool_row;

/* The row of a KV head at a token offset of a block. */
static pool_row pool_row_at(const pool *p, int block, int token, int kv_head) {
    pool_row row;
    row.base = p->segment[0];
    /* A chain of selects: indexing the array by a variable would put it into memory. */
    int segment = address_segment(block, p->segment_shift);
    for (int i = 1; i < NUM_SEGMENTS; i++)
        row.base = segment == i ? p->segment[i] : row.base;
    row.at = p->offset + address_row(block, p->segment_shift, token, kv_head, p->block_stride, p->token_stride,
                                     p->head_stride);
    return row;
}

#endif
