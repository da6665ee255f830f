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

/* Vectors of 16 elements that cover a row. */
#define K_VECTORS16 ((HEAD_DIM + 15) / 16)
#define V_VECTORS16 ((HEAD_DIM_V + 15) / 16)
#define MAX_VECTORS16 (K_VECTORS16 > V_VECTORS16 ? K_VECTORS16 : V_VECTORS16)
#define CHUNKS (TUNE_KEYS / 16)

/* The portable tier has local memory and a size of sub-groups here; this one needs none. */
#define SUB_GROUP
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

/* A row of dim elements of the pool, or of packed keys, into one of the tile. */
static void row_load(float16 *to, keys_row row, int dim) {
#if WITH_PAGED
    const __global STORAGE(KV) *from = row.base + UNIT(KV, row.at);
#else
    const __global STORAGE(KV) *from = row;
#endif
#if WITH_PAGED && KV_QUANTIZED
    for (int group = 0; group < dim; group += SCALE_GROUP(KV)) {
        const float scale = pool_scale_at(row, group);
        for (int c = group / 16; c < min(group + SCALE_GROUP(KV), dim) / 16; c++)
            to[c] = LOAD16(KV)(from, c * 16) * scale;
    }
#else
    for (int c = 0; c < dim / 16; c++)
        to[c] = LOAD16(KV)(from, c * 16);
#endif
    if (dim % 16 == 0)
        return;
    int d = dim / 16 * 16;
    to[dim / 16] = (float16)(keys_load8(row, d, dim), d + 8 < dim ? keys_load8(row, d + 8, dim) : (float8)0);
}

/* Keys first .. first + TUNE_KEYS - 1; outside begin .. p->key_end - 1, and without a block, they are zeros, and nothing
   is read. */
static void tile_load_keys(const attn_problem *p, int first, int begin, float16 *tile) {
    for (int j = 0; j < TUNE_KEYS; j++) {
        int position = first + j;
        float16 *to = tile + j * K_VECTORS16;
        if (position < begin || position >= p->key_end || !problem_has(p, position)) {
            for (int c = 0; c < K_VECTORS16; c++)
                to[c] = 0;
            continue;
        }
#if WITH_APPEND
        if (position >= p->new_first) {
            for (int c = 0; c < K_VECTORS16; c++) {
                to[c].lo = key8(p, position, c * 16);
                to[c].hi = c * 16 + 8 < HEAD_DIM ? key8(p, position, c * 16 + 8) : (float8)0;
            }
            continue;
        }
#endif
        row_load(to, key_row(p, position), HEAD_DIM);
    }
}
static void tile_load_values(const attn_problem *p, int first, int begin, float16 *tile) {
    for (int j = 0; j < TUNE_KEYS; j++) {
        int position = first + j;
        float16 *to = tile + j * V_VECTORS16;
        if (position < begin || position >= p->key_end || !problem_has(p, position)) {
            for (int c = 0; c < V_VECTORS16; c++)
                to[c] = 0;
            continue;
        }
#if WITH_APPEND
        if (position >= p->new_first) {
            for (int c = 0; c < V_VECTORS16; c++) {
                to[c].lo = value8(p, position, c * 16);
                to[c].hi = c * 16 + 8 < HEAD_DIM_V ? value8(p, position, c * 16 + 8) : (float8)0;
            }
            continue;
        }
#endif
        row_load(to, value_row(p, position), HEAD_DIM_V);
    }
}

/* A query row, ready for the products. */
static void q_load(const attn_problem *p, const __global STORAGE(Q) * q, long4 q_layout, int row, float16 *to) {
    for (int c = 0; c < K_VECTORS16; c++) {
        to[c].lo = query8(p, q, q_layout, row, c * 16);
        to[c].hi = c * 16 + 8 < HEAD_DIM ? query8(p, q, q_layout, row, c * 16 + 8) : (float8)0;
    }
}

/* The scores of a query row with 16 keys of the tile: 16 sums at once keep the multiply-adds independent. */
static float16 scores_of_16(const float16 *q, const float16 *keys) {
    float16 sums[16];
#pragma unroll
    for (int i = 0; i < 16; i++)
        sums[i] = q[0] * keys[i * K_VECTORS16];
    for (int c = 1; c < K_VECTORS16; c++) {
        float16 x = q[c];
#pragma unroll
        for (int i = 0; i < 16; i++)
            sums[i] += x * keys[i * K_VECTORS16 + c];
    }
    return sums_of_16(sums);
}

/* acc = acc * rescale + the values, weighted. masked: some weights are 0 because the row does not see the value, which
   may be NaN and must not be met. */
static void accumulate(float16 *acc, float rescale, const float *weights, const float16 *values, bool masked) {
    float16 sums[V_VECTORS16];
#pragma unroll
    for (int c = 0; c < V_VECTORS16; c++)
        sums[c] = acc[c] * rescale;
    for (int j = 0; j < TUNE_KEYS; j++) {
        float weight = weights[j];
        if (masked && weight == 0)
            continue;
#pragma unroll
        for (int c = 0; c < V_VECTORS16; c++)
            sums[c] += weight * values[j * V_VECTORS16 + c];
    }
#pragma unroll
    for (int c = 0; c < V_VECTORS16; c++)
        acc[c] = sums[c];
}

/* problem_score of 16 keys from `position` on. */
static float16 score_of_16(const attn_problem *p, int row, int position, float16 product) {
    const int16 positions = position + (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    float16 score = product;
#if WITH_SOFTCAP
    score = p->mask.scale.y * tanh(product);
#endif
#if WITH_ALIBI
    long slopes = p->mask.alibi_layout.x + row_seq(p, row) * p->mask.alibi_layout.y;
    float slope = p->mask.alibi[slopes + problem_head(p, row)];
    score -= slope * LOG2_E * fabs(convert_float16(problem_position(p, row) - positions));
#endif
    int16 seen = positions >= problem_low(p, row) && positions < min(problem_high(p, row), p->key_end);
#if WITH_TREE || WITH_GUARD
    int sees[16];
    for (int i = 0; i < 16; i++)
        sees[i] = position + i < p->k_len && problem_sees(p, row, position + i) ? -1 : 0;
    seen = seen && vload16(0, sees);
#endif
    return select((float16)(-INFINITY), score, seen);
}

/* Runs the tile's rows over the part's keys, and stores their results. */
static void attn_tile(const attn_problem *p, const __global STORAGE(Q) * q, long4 q_layout, tile_memory unused,
                      attn_result_target target) {
    (void)unused;
    float16 queries[TUNE_ROWS * K_VECTORS16];
    float16 tile[TUNE_KEYS * MAX_VECTORS16];
    float16 acc[TUNE_ROWS * V_VECTORS16];
    float weights[TUNE_ROWS * TUNE_KEYS];
    float row_max[TUNE_ROWS], row_sum[TUNE_ROWS], rescale[TUNE_ROWS];
    const int rows = min(TUNE_ROWS, p->num_rows - p->first_row);
    const int last_row = p->first_row + rows - 1;
    /* As in lib/attn_tile.h: keys that some row sees, and keys that all see. */
    const int begin = max(p->key_begin, problem_low(p, p->first_row));
    const int end = min(p->key_end, problem_high(p, last_row));
    const int full_begin = problem_low(p, last_row);
    const int full_end = min(problem_high(p, p->first_row), WITH_TREE ? p->k_len - p->q_len : p->k_len);

    for (int r = 0; r < rows; r++) {
        q_load(p, q, q_layout, p->first_row + r, queries + r * K_VECTORS16);
        for (int c = 0; c < V_VECTORS16; c++)
            acc[r * V_VECTORS16 + c] = 0;
        row_max[r] = -INFINITY;
        row_sum[r] = 0;
    }
    for (int first = p->key_begin + (begin - p->key_begin) / TUNE_KEYS * TUNE_KEYS; first < end; first += TUNE_KEYS) {
        tile_load_keys(p, first, begin, tile);
        for (int r = 0; r < rows; r++) {
            float16 scores[CHUNKS];
            float new_max = row_max[r];
            for (int k = 0; k < CHUNKS; k++) {
                float16 product = scores_of_16(queries + r * K_VECTORS16, tile + k * 16 * K_VECTORS16);
                scores[k] = score_of_16(p, p->first_row + r, first + k * 16, product);
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
        tile_load_values(p, first, begin, tile);
        const bool masked = first < full_begin || first + TUNE_KEYS > full_end;
        for (int r = 0; r < rows; r++)
            accumulate(acc + r * V_VECTORS16, rescale[r], weights + r * TUNE_KEYS, tile, masked);
    }
    for (int r = 0; r < rows; r++) {
        int row = p->first_row + r;
        float divisor = result_store_sums(p, &target, row, row_max[r], row_sum[r]);
        for (int c = 0; c < V_VECTORS16; c++) {
            result_store8(p, &target, row, c * 16, acc[r * V_VECTORS16 + c].lo, divisor);
            if (c * 16 + 8 < HEAD_DIM_V)
                result_store8(p, &target, row, c * 16 + 8, acc[r * V_VECTORS16 + c].hi, divisor);
        }
    }
}

#endif
