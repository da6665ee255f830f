/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The results of a work-group's warps on their way out, through local memory: those of warps that had the same rows and
 * other keys are merged there.
 */
#ifndef NV_RESULTS_H
#define NV_RESULTS_H

#include "lib/attn_result.h"
#include "nv/q_rows.h"
#include "nv/workers.h"

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
    __local float *sums; /* [KEY_WARPS][TUNE_ROWS][2], maximum and sum; aligned to 8 bytes */
} results_memory;

/* Merges the warps' parts and stores them; a work-item, of `items` this one, stores 8 elements of a row. */
static void store_results(const attn_problem *p, results_memory m, const attn_result_target *target, int num_rows,
                          int item, int items) {
    for (int i = item; i < num_rows * V_VECTORS; i += items) {
        const int row = i / V_VECTORS, d = i % V_VECTORS * 8;
        float2 ends[KEY_WARPS];
        float max_all = -INFINITY, sum = 0;
        for (int w = 0; w < KEY_WARPS; w++) {
            ends[w] = *(const __local float2 *)(m.sums + (w * TUNE_ROWS + row) * 2);
            max_all = fmax(max_all, ends[w].x);
        }
        const float base = max_all == -INFINITY ? 0 : max_all;
        float8 x = 0;
        for (int w = 0; w < KEY_WARPS; w++) {
            const float weight = exp2_fast(ends[w].x - base);
            const __local float4 *part = (const __local float4 *)(m.rows + w * m.step + result_place(row, d));
            sum += weight * ends[w].y;
            x += weight * (float8)(part[0], part[1]);
        }
        const float divisor = result_end(p, target, p->first_row + row, max_all, sum, d == 0);
        result_store8(p, target, p->first_row + row, d, x, divisor);
    }
}

#endif
