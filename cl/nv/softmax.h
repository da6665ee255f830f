/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Online softmax in base 2, as in lib/attn_tile.h, of what the lanes of a warp have of matrix products: ROW_TILES
 * tiles of 16 rows, against KEY_TILES tiles of 8 keys; RESULT_STEPS steps of 16 columns of the results.
 */
#ifndef NV_SOFTMAX_H
#define NV_SOFTMAX_H

#include "lib/attn_problem.h"
#include "nv/warp.h"

/* The part of a warp's results that a lane has: of each tile of 16 rows, rows lane / 4 and lane / 4 + 8. */
typedef struct lane_rows {
    float acc[ROW_TILES][RESULT_STEPS * 2][4];
    float row_max[ROW_TILES][2];
    float lane_sum[ROW_TILES][2];
} lane_rows;

/* Scores from products, which are scaled to base 2 where the softmax does not do that. first: the position of the
   warp's first key. */
static void tile_scores(const attn_problem *p, int warp_row, int first, float scale, float (*scores)[KEY_TILES][4]) {
    const int lane = get_local_id(0) % 32, lane_first = first + lane % 4 * 2;
    if (scale != 1)
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
            for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    scores[t][n][e] *= scale;
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            /* A row behind the last has no mask of its own; its result is not stored. */
            const int row = min(p->first_row + warp_row + t * 16 + lane / 4 + r * 8, p->num_rows - 1);
            /* Of the lane's keys, as their distance from its first, so that it is compared with constants. */
            const int low = problem_low(p, row) - lane_first;
            const int high = min(problem_high(p, row), p->key_end) - lane_first;
#pragma unroll
            for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
                for (int e = 2 * r; e < 2 * r + 2; e++) {
                    const int key = n * 8 + e % 2;
                    const bool seen = key >= low && key < high && problem_sees(p, row, lane_first + key);
                    const float score = seen_score(p, row, lane_first + key, scores[t][n][e]);
                    scores[t][n][e] = seen ? score : -INFINITY;
                }
        }
}

/* No key is summed up. */
static void rows_begin(lane_rows *own) {
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            own->row_max[t][r] = -INFINITY;
            own->lane_sum[t][r] = 0;
        }
#pragma unroll
        for (int d = 0; d < RESULT_STEPS * 2; d++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                own->acc[t][d][e] = 0;
    }
}

/* Weights from scores, which count `scale` times, above 0, in their place. rescale: what accumulated before counts
   with the new maximum; whether that is not 1 for some row of the warp. */
static bool tile_softmax(lane_rows *own, float scale, float (*scores)[KEY_TILES][4], float (*rescale)[2]) {
    bool changed = false;
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float new_max = -INFINITY;
#pragma unroll
            for (int n = 0; n < KEY_TILES; n++)
                new_max = fmax(new_max, fmax(scores[t][n][2 * r], scores[t][n][2 * r + 1]));
            new_max = fmax(new_max, from_lane_xor(new_max, 1));
            new_max = fmax(new_max, from_lane_xor(new_max, 2));
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
                for (int e = 2 * r; e < 2 * r + 2; e++) {
                    scores[t][n][e] = exp2_fast(fma(scores[t][n][e], scale, -base));
                    sum += scores[t][n][e];
                }
            own->lane_sum[t][r] = own->lane_sum[t][r] * rescale[t][r] + sum;
        }
    return any_lane(changed);
}

static void rows_rescale(lane_rows *own, float (*rescale)[2]) {
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
        for (int d = 0; d < RESULT_STEPS * 2; d++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                own->acc[t][d][e] *= rescale[t][e / 2];
}

#endif
