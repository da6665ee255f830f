/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The segments of a pool as kernel parameters. Shape macros: those of address.h, NUM_SEGMENTS (1, 2, 4 or 8), KV_DTYPE.
 *
 *     __kernel void f(POOL_PARAMS(k), POOL_PARAMS(v), int segment_shift) {
 *         pool keys = POOL(k);
 *         ... pool_row(&keys, segment_shift, block, token, kv_head) ...
 *     }
 */
#ifndef POOL_H
#define POOL_H

#include "lib/types.h"
#include "lib/address.h"

#if NUM_SEGMENTS == 1
#define POOL_PARAMS(p) __global STORAGE(KV) *p##0
#define POOL(p) {{p##0}}
#elif NUM_SEGMENTS == 2
#define POOL_PARAMS(p) __global STORAGE(KV) *p##0, __global STORAGE(KV) *p##1
#define POOL(p) {{p##0, p##1}}
#elif NUM_SEGMENTS == 4
#define POOL_PARAMS(p)                                                                                                 \
    __global STORAGE(KV) *p##0, __global STORAGE(KV) *p##1, __global STORAGE(KV) *p##2, __global STORAGE(KV) *p##3
#define POOL(p) {{p##0, p##1, p##2, p##3}}
#elif NUM_SEGMENTS == 8
#define POOL_PARAMS(p)                                                                                                 \
    __global STORAGE(KV) *p##0, __global STORAGE(KV) *p##1, __global STORAGE(KV) *p##2, __global STORAGE(KV) *p##3,    \
        __global STORAGE(KV) *p##4, __global STORAGE(KV) *p##5, __global STORAGE(KV) *p##6, __global STORAGE(KV) *p##7
#define POOL(p) {{p##0, p##1, p##2, p##3, p##4, p##5, p##6, p##7}}
#else
#error NUM_SEGMENTS must be 1, 2, 4 or 8
#endif

typedef struct pool {
    __global STORAGE(KV) *segment[NUM_SEGMENTS];
} pool;

/* The row of a KV head at a token offset of a block. */
static __global STORAGE(KV) * pool_row(const pool *p, int segment_shift, int block, int token, int kv_head) {
    __global STORAGE(KV) *base = p->segment[0];
    /* A chain of selects: indexing the array by a variable would put it into memory. */
    int segment = address_segment(block, segment_shift);
    for (int i = 1; i < NUM_SEGMENTS; i++)
        base = segment == i ? p->segment[i] : base;
    return base + address_row(block, segment_shift, token, kv_head);
}

#endif
