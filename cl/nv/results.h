/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The results of a work-group's warps on their way out, through local memory: those of warps that had the same rows and
 * other keys are merged there.
 */
#ifndef NV_RESULTS_H
#define NV_RESULTS_H

#include "nv/attn_warp.h"

/* A row of floats for each row of each warp, as pieces of 8, of which 8 rows have theirs in 8 orders, for the banks. */
#define RESULT_PIECES ((V_STEPS * 2 + 7) / 8 * 8)
#define RESULT_PITCH (RESULT_PIECES * 8)
#define RESULT_BYTES (TUNE_ROWS * RESULT_PITCH * 4) /* of the warps that had the same keys */

static int result_place(int row, int column) {
    return row * RESULT_PITCH + ((column / 8) ^ (row % 8)) * 8 + column % 8;
}

typedef struct results_memory {
    __local float *rows; /* [KEY_WARPS] of [TUNE_ROWS][RESULT_PITCH], which are `step` apart */
    int step;
    __local float *sums; /* [KEY_WARPS][TUNE_ROWS][2], maximum and sum */
    __local float *ends; /* [TUNE_ROWS][2], maximum of all and what to divide by */
} results_memory;

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

/* Merges the warps' parts and stores them; a work-item stores 8 elements of a row. */
static void store_results(const attn_problem *p, results_memory m, const attn_result_target *target, int num_rows) {
    for (int row = get_local_id(0); row < num_rows; row += TUNE_WG) {
        float max_all = -INFINITY, sum = 0;
        for (int w = 0; w < KEY_WARPS; w++)
            max_all = fmax(max_all, m.sums[(w * TUNE_ROWS + row) * 2]);
        const float base = max_all == -INFINITY ? 0 : max_all;
        for (int w = 0; w < KEY_WARPS; w++)
            sum += exp2_fast(m.sums[(w * TUNE_ROWS + row) * 2] - base) * m.sums[(w * TUNE_ROWS + row) * 2 + 1];
        m.ends[row * 2] = base;
        m.ends[row * 2 + 1] = result_store_sums(p, target, p->first_row + row, max_all, sum);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = get_local_id(0); i < num_rows * V_VECTORS; i += TUNE_WG) {
        const int row = i / V_VECTORS, d = i % V_VECTORS * 8;
        float8 x = 0;
        for (int w = 0; w < KEY_WARPS; w++) {
            const float weight = exp2_fast(m.sums[(w * TUNE_ROWS + row) * 2] - m.ends[row * 2]);
            const __local float4 *part = (const __local float4 *)(m.rows + w * m.step + result_place(row, d));
            x += weight * (float8)(part[0], part[1]);
        }
        result_store8(p, target, p->first_row + row, d, x, m.ends[row * 2 + 1]);
    }
}

#endif
