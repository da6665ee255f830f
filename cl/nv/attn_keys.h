/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a warp computes of attention where rows are few, by matrix products that have keys as their rows: S^T = K q^T and
 * O^T = V^T P^T. A product has 8 columns, so no more than 8 query rows are worked on where there are no more; the
 * other way round it would be 16. The warp has WARP_KEYS keys, as they lie in a stage of the stream.
 *
 * Lane l has of a tile of 8 query rows 2 * (l % 4) and the next, of a tile of 16 keys l / 4 and l / 4 + 8, of a step of 16
 * result columns those of result_column.
 *
 * Codes of 8 bits (CODES) become elements on the way to registers. Where a matrix has 8 elements in a row of 16 bytes it has
 * 16 codes, so that columns of a step have another order: K and q agree in theirs, and so do V and the results.
 */
#ifndef NV_ATTN_KEYS_H
#define NV_ATTN_KEYS_H

#include "nv/codes.h"
#include "nv/stream.h"
#include "nv/units.h"

#define KEY_TILES (WARP_KEYS / 16)

/* Fragments of q stay in registers where these are enough. */
#define Q_IN_REGISTERS (K_STEPS * Q_PARTS * ROW_TILES <= 16)

/* ---- q ---- */

/* The fragment of q of one step, for a tile of rows. */
static void load_q_fragment(const __local ushort *q, int part, int tile, int step, uint *to) {
    const int lane = get_local_id(0) % 32;
    const int row = part * TUNE_ROWS + tile * 8;
#if CODES
    const uint2 elements = *(const __local uint2 *)(q + (row + lane / 4) * Q_PITCH + step * 16 + lane % 4 * 4);
    to[0] = elements.x;
    to[1] = elements.y;
#else
    load_two_matrices(to, local_address(q + (row + lane % 8) * Q_PITCH + step * 16 + lane / 8 % 2 * 8));
#endif
}

#if Q_IN_REGISTERS
typedef struct q_fragments {
    uint at[K_STEPS][Q_PARTS][ROW_TILES][2];
} q_fragments;
#else
typedef int q_fragments; /* none */
#endif

static void load_q_fragments(const __local ushort *q, q_fragments *fragments) {
#if Q_IN_REGISTERS
#pragma unroll
    for (int step = 0; step < K_STEPS; step++)
#pragma unroll
        for (int part = 0; part < Q_PARTS; part++)
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++)
                load_q_fragment(q, part, t, step, fragments->at[step][part][t]);
#else
    (void)q;
    (void)fragments;
#endif
}

/* ---- the softmax ---- */

/* The part of a warp's results that a lane has. */
typedef struct lane_results {
    float acc[V_STEPS][ROW_TILES][4];
    float row_max[ROW_TILES][2], lane_sum[ROW_TILES][2]; /* sums of the lane's keys alone */
} lane_results;

static void results_begin(lane_results *own) {
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            own->row_max[t][r] = -INFINITY;
            own->lane_sum[t][r] = 0;
        }
#pragma unroll
        for (int d = 0; d < V_STEPS; d++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                own->acc[d][t][e] = 0;
    }
}

/* Scores from products, which are scaled to base 2 where the softmax does not do that. first: the position of the
   warp's first key. */
static void keys_scores(const attn_problem *p, int first, float scale, const int row_tiles,
                        float (*scores)[ROW_TILES][4]) {
    const int lane = get_local_id(0) % 32;
#pragma unroll
    for (int t = 0; t < row_tiles; t++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            /* A row behind the last has no mask of its own; its result is not stored. */
            const int row = min(p->first_row + t * 8 + lane % 4 * 2 + r, p->num_rows - 1);
            const int low = problem_low(p, row), high = min(problem_high(p, row), p->key_end);
#pragma unroll
            for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
                for (int e = r; e < 4; e += 2) {
                    const int position = first + n * 16 + lane / 4 + e / 2 * 8;
                    const bool seen = position >= low && position < high && problem_sees(p, row, position);
                    const float score = seen_score(p, row, position, scores[n][t][e] * scale);
                    scores[n][t][e] = seen ? score : -INFINITY;
                }
        }
}

/* Weights from scores, which count `scale` times, above 0, in their place; what was accumulated before counts with the new
   maximum, and rescale_unit times. */
static void keys_softmax(lane_results *own, float scale, float rescale_unit, const int row_tiles,
                         float (*scores)[ROW_TILES][4]) {
    float rescale[ROW_TILES][2];
    bool changed = rescale_unit != 1;
#pragma unroll
    for (int t = 0; t < row_tiles; t++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float new_max = -INFINITY;
#pragma unroll
            for (int n = 0; n < KEY_TILES; n++)
                new_max = fmax(new_max, fmax(scores[n][t][r], scores[n][t][r + 2]));
            new_max = fmax(new_max, from_lane_xor(new_max, 4));
            new_max = fmax(new_max, from_lane_xor(new_max, 8));
            new_max = fmax(new_max, from_lane_xor(new_max, 16));
            new_max = fmax(own->row_max[t][r], new_max * scale);
            /* While a row has seen no key its maximum is -infinity, and infinity minus infinity would be NaN. */
            const float base = new_max == -INFINITY ? 0 : new_max;
            rescale[t][r] = exp2_fast(own->row_max[t][r] - base);
            changed = changed || rescale[t][r] != 1;
            own->row_max[t][r] = new_max;
            float sum = 0;
#pragma unroll
            for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
                for (int e = r; e < 4; e += 2) {
                    scores[n][t][e] = exp2_fast(fma(scores[n][t][e], scale, -base));
                    sum += scores[n][t][e];
                }
            own->lane_sum[t][r] = own->lane_sum[t][r] * rescale[t][r] + sum;
            rescale[t][r] *= rescale_unit;
        }
    if (any_lane(changed))
#pragma unroll
        for (int d = 0; d < V_STEPS; d++)
#pragma unroll
            for (int t = 0; t < row_tiles; t++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    own->acc[d][t][e] *= rescale[t][e % 2];
}

/* ---- scales of rows ---- */

#if ROW_SCALED
/* Products times their keys' scales. */
static void scale_products(const __local float *scales, const int row_tiles, float (*products)[ROW_TILES][4]) {
    const int lane = get_local_id(0) % 32;
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const float scale = scales[n * 16 + side * 8 + lane / 4];
#pragma unroll
            for (int t = 0; t < row_tiles; t++)
#pragma unroll
                for (int r = 0; r < 2; r++)
                    products[n][t][side * 2 + r] *= scale;
        }
}

/* The scales of the lane's values, and what a unit that is large enough for the warp's makes of results before. */
static float value_units(const __local float *scales, float (*scale)[2], float *unit, float *inverse) {
    const int lane = get_local_id(0) % 32;
    float largest = 0;
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            scale[n][side] = scales[n * 16 + side * 8 + lane / 4];
            largest = larger_scale(largest, scale[n][side]);
        }
    largest = fmax(largest, from_lane_xor(largest, 4));
    largest = fmax(largest, from_lane_xor(largest, 8));
    largest = fmax(largest, from_lane_xor(largest, 16));
    return unit_raise(unit, largest, inverse);
}

/* Weights times their values' scales. */
static void scale_weights(float (*scale)[2], float inverse, const int row_tiles, float (*weights)[ROW_TILES][4]) {
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
        for (int t = 0; t < row_tiles; t++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                weights[n][t][e] = scaled_weight(weights[n][t][e], scale[n][e / 2], inverse);
}
#endif

/* ---- products ---- */

/* Sums of products that wait for one another: each score has two, whatever the number of row tiles, for its bits. */
#define CHAINS 2

/* The fragment of a step of 16 keys. codes: those of two steps, which come together with the first. */
static void load_key_fragment(uint *a, uint *codes, uint at, const int step) {
#if CODES
    if (step % 2 == 0)
        load_matrices(codes, boxed_step(at, step / 2));
#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = i < 2 ? codes_pair(codes[step % 2 * 2 + i], 0, 1) : codes_pair(codes[step % 2 * 2 + i - 2], 2, 3);
#else
    (void)codes;
    load_matrices(a, boxed_step(at, step));
#endif
}

/* The same of the values of 16 keys, for the result columns of a step. */
static void load_value_fragment(uint *a, uint *codes, uint at, const int step) {
#if CODES
    if (step % 2 == 0)
        load_matrices_transposed(codes, boxed_step(at, step / 2));
#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = i % 2 ? codes_pair(codes[step % 2 * 2 + i / 2], 1, 3) : codes_pair(codes[step % 2 * 2 + i / 2], 0, 2);
#else
    (void)codes;
    load_matrices_transposed(a, boxed_step(at, step));
#endif
}

/* Which column of the results a lane has in elements 0 and 1 (side 0) of a step's, or in 2 and 3. */
static int result_column(int lane, int step, int side) {
    return step * 16 + (CODES ? lane / 4 * 2 + side : side * 8 + lane / 4);
}

/* The products of the warp's keys and rows. */
static void keys_products(const __local ushort *q, const q_fragments *fragments, const __local uchar *keys,
                          const int row_tiles, float (*scores)[ROW_TILES][4]) {
    const int lane = get_local_id(0) % 32;
    float sums[CHAINS][KEY_TILES][ROW_TILES][4];
#pragma unroll
    for (int i = 0; i < CHAINS * KEY_TILES * ROW_TILES * 4; i++)
        sums[i / 4 / ROW_TILES / KEY_TILES][i / 4 / ROW_TILES % KEY_TILES][i / 4 % ROW_TILES][i % 4] = 0;
    uint at[KEY_TILES], codes[KEY_TILES][4];
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++)
        at[n] = local_address(keys) + boxed_place(K_BOX, n * 16 + lane % 16, lane / 16);
#pragma unroll
    for (int step = 0; step < K_STEPS; step++) {
        uint b[Q_PARTS][ROW_TILES][2];
#pragma unroll
        for (int part = 0; part < Q_PARTS; part++)
#pragma unroll
            for (int t = 0; t < row_tiles; t++)
#if Q_IN_REGISTERS
#pragma unroll
                for (int e = 0; e < 2; e++)
                    b[part][t][e] = fragments->at[step][part][t][e];
#else
                load_q_fragment(q, part, t, step, b[part][t]);
#endif
#pragma unroll
        for (int n = 0; n < KEY_TILES; n++) {
            uint a[4];
            load_key_fragment(a, codes[n], at[n], step);
#pragma unroll
            for (int part = 0; part < Q_PARTS; part++)
#pragma unroll
                for (int t = 0; t < row_tiles; t++)
                    mma(sums[step % CHAINS][n][t], a, b[part][t][0], b[part][t][1]);
        }
    }
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
        for (int t = 0; t < row_tiles; t++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                scores[n][t][e] = sums[0][n][t][e] + sums[1][n][t][e];
}

/* Whether a value of the warp's keys is infinite or NaN. */
static bool has_special_value(const __local uchar *values) {
    enum { PIECES = HEAD_DIM_V / PIECE };
    bool special = false;
    for (int i = get_local_id(0) % 32; i < WARP_KEYS * PIECES; i += 32)
        special =
            special || piece_is_special((const __local ushort *)(values + boxed_place(V_BOX, i / PIECES, i % PIECES)));
    return any_lane(special);
}

/* acc += weights * values, where a value that a row does not see may be NaN: its zero weight must not meet it. */
static void accumulate_seen(lane_results *own, const int row_tiles, float (*weights)[ROW_TILES][4],
                            const __local uchar *values) {
    const int lane = get_local_id(0) % 32;
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
        for (int side = 0; side < 2; side++)
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int t = 0; t < row_tiles; t++)
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        const float weight = from_lane(weights[n][t][side * 2 + r], j * 4 + lane % 4);
#pragma unroll
                        for (int i = 0; i < V_STEPS * 2; i++) {
                            const int column = result_column(lane, i / 2, i % 2);
                            float *acc = &own->acc[i / 2][t][i % 2 * 2 + r];
                            const float value =
                                column < HEAD_DIM_V ? boxed_value(values, n * 16 + side * 8 + j, column) : 0;
                            *acc = weight == 0 ? *acc : *acc + weight * value;
                        }
                    }
}

/* acc += weights * values, 16 keys at a time. */
static void accumulate(lane_results *own, const int row_tiles, float (*weights)[ROW_TILES][4],
                       const __local uchar *values) {
    const int lane = get_local_id(0) % 32;
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++) {
        uint b[WEIGHT_PARTS][ROW_TILES][2];
#pragma unroll
        for (int t = 0; t < row_tiles; t++)
#pragma unroll
            for (int side = 0; side < 2; side++) {
                float2 x = (float2)(weights[n][t][side * 2], weights[n][t][side * 2 + 1]);
                const uint rounded = pack(x.x, x.y);
                b[0][t][side] = transposed(rounded);
#if WEIGHT_PARTS == 2
                x -= unpack(rounded);
                b[1][t][side] = transposed(pack(x.x, x.y));
#endif
            }
        /* Matrices of 8 keys: of both halves of a step of elements first, of both steps of codes last. */
        const int key = n * 16 + (CODES ? lane % 16 : lane / 16 * 8 + lane % 8);
        const uint at = local_address(values) + boxed_place(V_BOX, key, CODES ? lane / 16 : lane / 8 % 2);
        uint codes[4];
#pragma unroll
        for (int d = 0; d < V_STEPS; d++) {
            uint a[4];
            load_value_fragment(a, codes, at, d);
#pragma unroll
            for (int part = 0; part < WEIGHT_PARTS; part++)
#pragma unroll
                for (int t = 0; t < row_tiles; t++)
                    mma(own->acc[d][t], a, b[part][t][0], b[part][t][1]);
        }
    }
}

/* ---- a tile ---- */

/* The warp's keys of a tile, in local memory. */
typedef struct warp_keys {
    const __local uchar *keys, *values; /* their boxes */
#if ROW_SCALED
    const __local float *key_scales, *value_scales;
#endif
    int first;        /* the position of the first */
    bool partly_seen; /* some row may not see some key */
    bool whole;       /* no row is outside the range */
} warp_keys;

/* Adds keys to a warp's results of row_tiles tiles of rows, a constant, which count *unit times. */
static void add_keys(const attn_problem *p, const __local ushort *q, const q_fragments *fragments, warp_keys k,
                     score_scale scale, const int row_tiles, float *unit, lane_results *own) {
    float scores[KEY_TILES][ROW_TILES][4];
    keys_products(q, fragments, k.keys, row_tiles, scores);
#if ROW_SCALED
    scale_products(k.key_scales, row_tiles, scores);
#endif
    if (!scale.is_late || k.partly_seen || !k.whole)
        keys_scores(p, k.first, scale.first, row_tiles, scores);
#if ROW_SCALED
    float value_scale[KEY_TILES][2], inverse;
    const float rescale_unit = value_units(k.value_scales, value_scale, unit, &inverse);
    keys_softmax(own, scale.late, rescale_unit, row_tiles, scores);
    scale_weights(value_scale, inverse, row_tiles, scores);
#else
    (void)unit;
    keys_softmax(own, scale.late, 1, row_tiles, scores);
#endif
    if (k.partly_seen && has_special_value(k.values))
        accumulate_seen(own, row_tiles, scores, k.values);
    else
        accumulate(own, row_tiles, scores, k.values);
}

/* A warp's part of the results, which count `unit` times, to local memory: that of the warp with the key_warp-th keys. */
static void share_results(const lane_results *own, float unit, results_memory m, int key_warp, int num_rows) {
    const int lane = get_local_id(0) % 32;
    __local float *results = m.rows + key_warp * m.step;
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = t * 8 + lane % 4 * 2 + r;
            float sum = own->lane_sum[t][r] + from_lane_xor(own->lane_sum[t][r], 4);
            sum += from_lane_xor(sum, 8);
            sum += from_lane_xor(sum, 16);
            if (row >= num_rows)
                continue;
            if (lane / 4 == 0) {
                m.sums[(key_warp * TUNE_ROWS + row) * 2] = own->row_max[t][r];
                m.sums[(key_warp * TUNE_ROWS + row) * 2 + 1] = sum;
            }
#pragma unroll
            for (int d = 0; d < V_STEPS; d++) {
                const float first = own->acc[d][t][r] * unit, second = own->acc[d][t][r + 2] * unit;
#if CODES
                *(__local float2 *)(results + result_place(row, result_column(lane, d, 0))) = (float2)(first, second);
#else
                results[result_place(row, result_column(lane, d, 0))] = first;
                results[result_place(row, result_column(lane, d, 1))] = second;
#endif
            }
        }
}

#endif
