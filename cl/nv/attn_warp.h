/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a warp computes of attention in tier nv_mma: TUNE_WARP_ROWS rows, in tiles of 16, against WARP_KEYS keys, by the
 * matrix instructions of NVIDIA's GPUs. Where the rows of a work-group are fewer than its warps, as in decode, these
 * divide the keys; then each has results of its own, which are merged in the end.
 *
 * Weights are rounded to the element of V for the product. Where the result is float32 they are cut into two such
 * parts, and so is q where it was rotated: then nothing is lost.
 */
#ifndef NV_ATTN_WARP_H
#define NV_ATTN_WARP_H

#include "nv/q_rows.h"
#include "nv/tiles.h"

#if !defined(TUNE_STAGES) || !defined(TUNE_WARP_ROWS)
#error TUNE_STAGES or TUNE_WARP_ROWS is missing
#endif
#define SUB_GROUP

#define ROW_TILES (TUNE_WARP_ROWS / 16)
#define ROW_WARPS (TUNE_ROWS / TUNE_WARP_ROWS)
#define KEY_WARPS (TUNE_WG / 32 / ROW_WARPS)
#define WARP_KEYS (TUNE_KEYS / KEY_WARPS)
#define KEY_TILES (WARP_KEYS / 8)
#define RESULT_STEPS V_STEPS

/* Sums of products that wait for one another: few tiles have two for each. */
#define CHAINS (ROW_TILES * KEY_TILES <= 4 ? 2 : 1)

#include "nv/fragments.h"
#include "nv/results.h"
#include "nv/softmax.h"
#include "nv/units.h"

/* Fragments of q stay in registers where these are enough. */
#define Q_IN_REGISTERS (ROW_TILES == 1 && K_STEPS * Q_PARTS <= 8)

/* ---- q ---- */

/* The fragment of q of one step, for a tile of the warp's rows that begins at `row`. */
static void load_q_fragment(const __local ushort *q, int row, int part, int step, uint *to) {
    const __local ushort *from = q + (part * TUNE_ROWS + row) * Q_PITCH + step * 16;
    const int lane = get_local_id(0) % 32;
#if CODES
    const uint2 first = *(const __local uint2 *)(from + lane / 4 * Q_PITCH + lane % 4 * 4);
    const uint2 second = *(const __local uint2 *)(from + (lane / 4 + 8) * Q_PITCH + lane % 4 * 4);
    to[0] = first.x;
    to[1] = second.x;
    to[2] = first.y;
    to[3] = second.y;
#else
    load_matrices(to, local_address(from + lane_place_rows(lane, Q_PITCH)));
#endif
}

#if Q_IN_REGISTERS
typedef struct q_fragments {
    uint at[K_STEPS][Q_PARTS][ROW_TILES][4];
} q_fragments;
#else
typedef int q_fragments; /* none */
#endif

static void load_q_fragments(const __local ushort *q, int warp_row, q_fragments *fragments) {
#if Q_IN_REGISTERS
#pragma unroll
    for (int step = 0; step < K_STEPS; step++)
#pragma unroll
        for (int part = 0; part < Q_PARTS; part++)
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++)
                load_q_fragment(q, warp_row + t * 16, part, step, fragments->at[step][part][t]);
#else
    (void)q;
    (void)warp_row;
    (void)fragments;
#endif
}

/* ---- products ---- */

/* The products of the warp's rows and keys. */
static void tile_products(const __local ushort *q, int warp_row, const q_fragments *fragments,
                          const __local ushort *keys, float (*scores)[KEY_TILES][4]) {
    const uint at = lane_keys(keys);
    float sums[CHAINS][ROW_TILES][KEY_TILES][4];
#pragma unroll
    for (int i = 0; i < CHAINS * ROW_TILES * KEY_TILES * 4; i++)
        sums[i / 4 / KEY_TILES / ROW_TILES][i / 4 / KEY_TILES % ROW_TILES][i / 4 % KEY_TILES][i % 4] = 0;
#pragma unroll
    for (int step = 0; step < K_STEPS; step++) {
        uint a[Q_PARTS][ROW_TILES][4];
#pragma unroll
        for (int part = 0; part < Q_PARTS; part++)
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++)
#if Q_IN_REGISTERS
#pragma unroll
                for (int e = 0; e < 4; e++)
                    a[part][t][e] = fragments->at[step][part][t][e];
#else
                load_q_fragment(q, warp_row + t * 16, part, step, a[part][t]);
#endif
#pragma unroll
        for (int n = 0; n < KEY_TILES / 2; n++) {
            uint b[4];
            load_keys(b, at, n, step);
#pragma unroll
            for (int part = 0; part < Q_PARTS; part++)
#pragma unroll
                for (int t = 0; t < ROW_TILES; t++) {
                    mma(sums[step % CHAINS][t][2 * n], a[part][t], b[0], b[1]);
                    mma(sums[step % CHAINS][t][2 * n + 1], a[part][t], b[2], b[3]);
                }
        }
    }
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
        for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                scores[t][n][e] = sums[0][t][n][e] + (CHAINS == 2 ? sums[CHAINS - 1][t][n][e] : 0);
}

/* Whether a value of the warp's keys is infinite or NaN. */
static bool has_special_value(const __local ushort *values) {
    enum { PIECES = HEAD_DIM_V / PIECE };
    bool special = false;
    for (int i = get_local_id(0) % 32; i < WARP_KEYS * PIECES; i += 32)
        special = special || piece_is_special(values + i / PIECES * V_PITCH + i % PIECES * 8);
    return any_lane(special);
}

/* acc += weights * values, where a value that a row does not see may be NaN: its zero weight must not meet it. */
static void accumulate_seen(lane_rows *own, float (*weights)[KEY_TILES][4], const __local ushort *values) {
    const int lane = get_local_id(0) % 32;
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
        for (int n = 0; n < KEY_TILES; n++)
            for (int j = 0; j < 8; j++) {
                /* Both neighbours are asked: an index that varies would put the weights into memory. */
                int source = (lane & ~3) | j / 2;
                float even[2] = {from_lane(weights[t][n][0], source), from_lane(weights[t][n][2], source)};
                float odd[2] = {from_lane(weights[t][n][1], source), from_lane(weights[t][n][3], source)};
                float weight[2] = {j % 2 ? odd[0] : even[0], j % 2 ? odd[1] : even[1]};
#pragma unroll
                for (int d = 0; d < V_STEPS * 2; d++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        float sum =
                            own->acc[t][d][e] + weight[e / 2] * value_at(values, n * 8 + j, result_column(d, e));
                        own->acc[t][d][e] = weight[e / 2] == 0 ? own->acc[t][d][e] : sum;
                    }
            }
}

/* acc += weights * values, 16 keys at a time. */
static void accumulate(lane_rows *own, float (*weights)[KEY_TILES][4], const __local ushort *values) {
    const uint at = lane_values(values);
#pragma unroll
    for (int k = 0; k < KEY_TILES / 2; k++) {
        uint a[WEIGHT_PARTS][ROW_TILES][4];
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float2 x = (float2)(weights[t][2 * k + i / 2][i % 2 * 2], weights[t][2 * k + i / 2][i % 2 * 2 + 1]);
                a[0][t][i] = pack(x.x, x.y);
#if WEIGHT_PARTS == 2
                float2 rest = x - unpack(a[0][t][i]);
                a[1][t][i] = pack(rest.x, rest.y);
#endif
            }
#pragma unroll
        for (int d = 0; d < V_STEPS; d++) {
            uint b[4];
            load_values(b, at, k, d);
#pragma unroll
            for (int part = 0; part < WEIGHT_PARTS; part++)
#pragma unroll
                for (int t = 0; t < ROW_TILES; t++) {
                    mma(own->acc[t][2 * d], a[part][t], b[0], b[1]);
                    mma(own->acc[t][2 * d + 1], a[part][t], b[2], b[3]);
                }
        }
    }
}

/* ---- scales ---- */

#if ROW_SCALED
/* Products times their keys' scales. */
static void scale_products(const __local float *scales, float (*products)[KEY_TILES][4]) {
    const int lane = get_local_id(0) % 32;
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++) {
        const float2 scale = *(const __local float2 *)(scales + n * 8 + lane % 4 * 2);
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                products[t][n][e] *= e % 2 ? scale.y : scale.x;
    }
}

/* Weights times their values' scales. Results count *unit times; returns what those before count now. */
static float scale_weights(const __local float *scales, float *unit, float (*weights)[KEY_TILES][4]) {
    const int lane = get_local_id(0) % 32;
    float2 scale[KEY_TILES];
    float largest = 0;
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++) {
        scale[n] = *(const __local float2 *)(scales + n * 8 + lane % 4 * 2);
        largest = larger_scale(larger_scale(largest, scale[n].x), scale[n].y);
    }
    largest = fmax(largest, from_lane_xor(largest, 1));
    largest = fmax(largest, from_lane_xor(largest, 2));
    float inverse;
    const float rescale = unit_raise(unit, largest, &inverse);
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
        for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                weights[t][n][e] = scaled_weight(weights[t][n][e], e % 2 ? scale[n].y : scale[n].x, inverse);
    return rescale;
}
#endif

/* ---- a tile ---- */

/* The warp's keys of a tile, in local memory. */
typedef struct warp_keys {
    const __local ushort *keys, *values; /* their rows */
#if ROW_SCALED
    const __local float *key_scales, *value_scales;
#endif
    int first;        /* the position of the first */
    bool partly_seen; /* some row may not see some key */
    bool whole;       /* no row is outside the range */
} warp_keys;

/* Adds keys to a warp's results, which count *unit times. */
static void add_keys(const attn_problem *p, const __local ushort *q, int warp_row, const q_fragments *fragments,
                     warp_keys k, score_scale scale, float *unit, lane_rows *own) {
    float scores[ROW_TILES][KEY_TILES][4];
    tile_products(q, warp_row, fragments, k.keys, scores);
#if ROW_SCALED
    scale_products(k.key_scales, scores);
#endif
    if (!scale.is_late || k.partly_seen || !k.whole)
        tile_scores(p, warp_row, k.first, scale.first, scores);
    float rescale[ROW_TILES][2];
    bool changed = tile_softmax(own, scale.late, scores, rescale);
#if ROW_SCALED
    const float rescale_unit = scale_weights(k.value_scales, unit, scores);
    changed = changed || rescale_unit != 1;
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            rescale[t][r] *= rescale_unit;
#else
    (void)unit;
#endif
    if (changed)
        rows_rescale(own, rescale);
    if (k.partly_seen && has_special_value(k.values))
        accumulate_seen(own, scores, k.values);
    else
        accumulate(own, scores, k.values);
}

/* ---- results ---- */

/* A warp's part of the results, which count `unit` times, to local memory: that of the warps with the key_warp-th keys,
   from the row warp_row on. */
static void share_results(const lane_rows *own, float unit, results_memory m, int key_warp, int warp_row) {
    const int lane = get_local_id(0) % 32;
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = warp_row + t * 16 + lane / 4 + r * 8, at = key_warp * TUNE_ROWS + row;
            float sum = own->lane_sum[t][r] + from_lane_xor(own->lane_sum[t][r], 1);
            sum += from_lane_xor(sum, 2);
            if (lane % 4 == 0) {
                m.sums[at * 2] = own->row_max[t][r];
                m.sums[at * 2 + 1] = sum;
            }
            __local float *result = m.rows + key_warp * m.step;
#pragma unroll
            for (int d = 0; d < V_STEPS * 2; d += 1 + CODES) {
                const float *x = &own->acc[t][d][2 * r];
#if CODES
                const float *y = &own->acc[t][d + 1][2 * r];
                *(__local float4 *)(result + result_place(row, result_column(d, 0))) =
                    (float4)(x[0], y[0], x[1], y[1]) * unit;
#else
                *(__local float2 *)(result + result_place(row, result_column(d, 0))) = (float2)(x[0], x[1]) * unit;
#endif
            }
        }
}

#endif
