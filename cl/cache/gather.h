/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads slots of a pool into contiguous rows: slots[t] to row t of k and v. A quantised pool gives float32 values, any
 * other one its elements, bit for bit. One work-item moves TUNE_VECTORS times 8 elements of K and of V of one head.
 * Launch: one dimension of num_slots * NUM_KV_HEADS * ROW_ITEMS work-items or more, ROW_ITEMS =
 * ceil(ceil(max(HEAD_DIM, HEAD_DIM_V) / 8) / TUNE_VECTORS).
 */
#ifndef CACHE_GATHER_H
#define CACHE_GATHER_H

#include "cache/raw_row.h"

#if KV_QUANTIZED
#define OUT_DTYPE float32
#else
#define OUT_DTYPE KV_DTYPE
#endif

static void gather_store8(RAW8(KV) x, pool_row from, __global STORAGE(OUT) * to, long to_at, int d, int dim,
                          bool aligned) {
    if (d >= dim)
        return;
#if KV_QUANTIZED
    /* Where nobody wrote, the scale may be NaN, too. The product of two has the bits of either, as the compiler orders
       the factors, which is not the same everywhere: an element that is NaN stays the one that it is. */
    const float8 element = DECODE_RAW8(KV)(x);
    const float8 value = select(element * pool_scale_at(from, d), element, isnan(element));
    const RAW8(OUT) gathered = ENCODE_RAW8(OUT)(value);
#else
    const RAW8(OUT) gathered = x;
    (void)from;
#endif
    ROW_STORE_RAW8(OUT, gathered, to, to_at, d, dim, aligned);
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
    const bool aligned = pool_is_aligned(&keys) && pool_is_aligned(&values) &&
                         IS_RAW8_ALIGNED(OUT, k, k_offset | HEAD_DIM) && IS_RAW8_ALIGNED(OUT, v, v_offset | HEAD_DIM_V);
    const int end = first + TUNE_VECTORS * 8;
    /* V's first vector, a GPU's only one, is on its way while K is moved. */
    RAW8(KV) next = raw_load8(value, first, HEAD_DIM_V, aligned);
    for (int d = first; d < end; d += 8)
        gather_store8(raw_load8(key, d, HEAD_DIM, aligned), key, k, k_offset + row * HEAD_DIM, d, HEAD_DIM, aligned);
    for (int d = first; d < end; d += 8) {
        gather_store8(next, value, v, v_offset + row * HEAD_DIM_V, d, HEAD_DIM_V, aligned);
        if (d + 8 < end)
            next = raw_load8(value, d + 8, HEAD_DIM_V, aligned);
    }
}

#endif
