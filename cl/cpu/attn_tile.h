/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by one work-item, CPU tier: TUNE_ROWS rows of a problem against tiles of TUNE_KEYS keys (a multiple of 16)
 * in private memory, which is the first-level cache of a core. Vectors of 16 floats run along head_dim, padded with
 * zeros to a multiple of 16. No barriers, no local memory. Online softmax in base 2, as lib/attn_tile.h.
 */
#ifndef CPU_ATTN_TILE_H
#define CPU_ATTN_TILE_H

#include "lib/attn_problem.h"
#include "lib/attn_result.h"

#define WHOLE16 (HEAD_DIM / 16)
#define VECTORS16 ((HEAD_DIM + 15) / 16)
#define CHUNKS (TUNE_KEYS / 16)

/* The portable tier has local memory here; this one needs none. */
typedef int tile_memory;
#define TILE_MEMORY(name) tile_memory name = 0

/* Adds neighbouring lanes: the result's lower half belongs to a, its upper half to b. */
static float16 add_neighbours(float16 a, float16 b) {
    return (float16)(a.even + a.odd, b.even + b.odd);
}

/* Lane i is the sum of all lanes of x[i]. */
static float16 sums_of_16(const float16 *x) {
    float16 level1[8], level2[4];
#pragma unroll
    for (int i = 0; i < 8; i++)
        level1[i] = add_neighbours(x[2 * i], x[2 * i + 1]);
#pragma unroll
    for (int i = 0; i < 4; i++)
        level2[i] = add_neighbours(level1[2 * i], level1[2 * i + 1]);
    return add_neighbours(add_neighbours(level2[0], level2[1]), add_neighbours(level2[2], level2[3]));
}

static float max_of(float16 x) {
    float8 a = fmax(x.lo, x.hi);
    float4 b = fmax(a.lo, a.hi);
    float2 c = fmax(b.lo, b.hi);
    return fmax(c.x, c.y);
}

static float sum_of(float16 x) {
    float8 a = x.lo + x.hi;
    float4 b = a.lo + a.hi;
    float2 c = b.lo + b.hi;
    return c.x + c.y;
}

/* A row of the pool or of packed keys into one of the tile. */
static void row_load(float16 *to, const __global STORAGE(KV) * row) {
    for (int c = 0; c < WHOLE16; c++)
        to[c] = LOAD16(KV)(row + c * 16);
#if HEAD_DIM % 16 != 0
    to[WHOLE16] = (float16)(LOAD8(KV)(row + WHOLE16 * 16), (float8)0);
#endif
}

/* Keys or values first .. first + TUNE_KEYS - 1 of the part; behind its last they are zeros, and nothing is read. */
static void tile_load(const attn_problem *p, int first, int values, float16 *tile) {
    for (int j = 0; j < TUNE_KEYS; j++) {
        int position = first + j;
        float16 *to = tile + j * VECTORS16;
        if (position >= p->key_end) {
            for (int c = 0; c < VECTORS16; c++)
                to[c] = 0;
            continue;
        }
#if WITH_APPEND
        if (position >= p->new_first) {
            for (int c = 0; c < VECTORS16; c++)
                to[c].lo = values ? value8(p, position, c * 16) : key8(p, position, c * 16);
            for (int c = 0; c < WHOLE16; c++)
                to[c].hi = values ? value8(p, position, c * 16 + 8) : key8(p, position, c * 16 + 8);
            for (int c = WHOLE16; c < VECTORS16; c++)
                to[c].hi = 0;
            continue;
        }
#endif
        row_load(to, values ? value_row(p, position) : key_row(p, position));
    }
}

/* Query row `row`, scaled; zeros behind the last. */
static void q_load(const attn_problem *p, const __global STORAGE(Q) * q, long4 q_layout, float scale_log2, int row,
                   float16 *to) {
    for (int c = 0; c < VECTORS16; c++)
        to[c] = 0;
    if (row >= p->num_rows)
        return;
    const __global STORAGE(Q) *from = q + layout_at(q_layout, problem_token(p, row), problem_head(p, row));
    for (int c = 0; c < WHOLE16; c++)
        to[c] = LOAD16(Q)(from + c * 16) * scale_log2;
#if HEAD_DIM % 16 != 0
    to[WHOLE16].lo = LOAD8(Q)(from + WHOLE16 * 16) * scale_log2;
#endif
}

/* The scores of a query row with 16 keys of the tile: 16 sums at once keep the multiply-adds independent. */
static float16 scores_of_16(const float16 *q, const float16 *keys) {
    float16 sums[16];
#pragma unroll
    for (int i = 0; i < 16; i++)
        sums[i] = q[0] * keys[i * VECTORS16];
    for (int c = 1; c < VECTORS16; c++) {
        float16 x = q[c];
#pragma unroll
        for (int i = 0; i < 16; i++)
            sums[i] += x * keys[i * VECTORS16 + c];
    }
    return sums_of_16(sums);
}

/* acc = acc * rescale + the first num_keys values, weighted. */
static void accumulate(float16 *acc, float rescale, const float *weights, const float16 *values, int num_keys) {
    float16 sums[VECTORS16];
#pragma unroll
    for (int c = 0; c < VECTORS16; c++)
        sums[c] = acc[c] * rescale;
    for (int j = 0; j < num_keys; j++) {
        float weight = weights[j];
#pragma unroll
        for (int c = 0; c < VECTORS16; c++)
            sums[c] += weight * values[j * VECTORS16 + c];
    }
#pragma unroll
    for (int c = 0; c < VECTORS16; c++)
        acc[c] = sums[c];
}

static void attn_tile(const attn_problem *p, const __global STORAGE(Q) * q, long4 q_layout, float scale_log2,
                      tile_memory unused, attn_result_target target) {
    (void)unused;
    float16 queries[TUNE_ROWS * VECTORS16];
    float16 tile[TUNE_KEYS * VECTORS16];
    float16 acc[TUNE_ROWS * VECTORS16];
    float weights[TUNE_ROWS * TUNE_KEYS];
    float row_max[TUNE_ROWS], row_sum[TUNE_ROWS], rescale[TUNE_ROWS];
    const int rows = min(TUNE_ROWS, p->num_rows - p->first_row);
    const int end = min(p->key_end, problem_limit(p, p->first_row + rows - 1));
    const int16 lanes = (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);

    for (int r = 0; r < rows; r++) {
        q_load(p, q, q_layout, scale_log2, p->first_row + r, queries + r * VECTORS16);
        for (int c = 0; c < VECTORS16; c++)
            acc[r * VECTORS16 + c] = 0;
        row_max[r] = -INFINITY;
        row_sum[r] = 0;
    }
    for (int first = p->key_begin; first < end; first += TUNE_KEYS) {
        tile_load(p, first, 0, tile);
        for (int r = 0; r < rows; r++) {
            int seen = min(p->key_end, problem_limit(p, p->first_row + r)) - first;
            float16 scores[CHUNKS];
            float new_max = row_max[r];
            for (int k = 0; k < CHUNKS; k++) {
                float16 s = scores_of_16(queries + r * VECTORS16, tile + k * 16 * VECTORS16);
                scores[k] = select((float16)(-INFINITY), s, lanes + k * 16 < seen);
                new_max = fmax(new_max, max_of(scores[k]));
            }
            /* While a row has seen no key its maximum is -infinity, and infinity minus infinity would be NaN. */
            float base = new_max == -INFINITY ? 0 : new_max;
            rescale[r] = exp2(row_max[r] - base);
            float sum = 0;
            for (int k = 0; k < CHUNKS; k++) {
                float16 w = exp2(scores[k] - base);
                sum += sum_of(w);
                vstore16(w, 0, weights + r * TUNE_KEYS + k * 16);
            }
            row_sum[r] = row_sum[r] * rescale[r] + sum;
            row_max[r] = new_max;
        }
        tile_load(p, first, 1, tile);
        for (int r = 0; r < rows; r++) {
            /* Values that the row does not see may be NaN: its zero weights must not meet them. */
            int seen = clamp(min(p->key_end, problem_limit(p, p->first_row + r)) - first, 0, TUNE_KEYS);
            accumulate(acc + r * VECTORS16, rescale[r], weights + r * TUNE_KEYS, tile, seen);
        }
    }
    for (int r = 0; r < rows; r++) {
        int row = p->first_row + r;
        result_store_sums(p, &target, row, row_max[r], row_sum[r]);
        for (int c = 0; c < VECTORS16; c++)
            result_store8(p, &target, row, c * 16, acc[r * VECTORS16 + c].lo, row_sum[r]);
        for (int c = 0; c < WHOLE16; c++)
            result_store8(p, &target, row, c * 16 + 8, acc[r * VECTORS16 + c].hi, row_sum[r]);
    }
}

#endif
