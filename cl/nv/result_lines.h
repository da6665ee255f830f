/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results of a warp of a warpgroup on their way to global memory, as elements: 16 rows, RESULT_COLUMNS of each.
 */
#ifndef NV_RESULT_LINES_H
#define NV_RESULT_LINES_H

#include "nv/softmax.h"
#include "nv/swizzle.h"
#include "nv/warpgroup.h"

/* Of local memory. */
#define LINES (8 * PANEL_ROW)

/* The results of a lane's two rows, ready to be stored. Not the accumulators: of registers that products have written
   ptxas does not know, while later products run, that nobody writes them any more. */
typedef struct lane_results {
    uint words[2][PANELS_OF(RESULT_COLUMNS) * PANEL_PIECES]; /* of each piece of 8, the lane's 2 elements */
    __global ushort *to[2];                                  /* where the row begins; 0: behind the last */
} lane_results;

/* Results from sums. */
static void finish_results(const lane_rows *own, const float *factor, lane_results *results) {
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int d = 0; d < PANELS_OF(RESULT_COLUMNS) * PANEL_PIECES; d++)
            results->words[r][d] = d < RESULT_STEPS * 2
                                       ? pack(own->acc[0][d][2 * r] * factor[r], own->acc[0][d][2 * r + 1] * factor[r])
                                       : 0;
}

/* Stores them, 8 rows of a panel of columns at a time, through local memory, LINES bytes of the warp's: whole lines.
   vectors: of 8 elements, as many as there are; aligned: whether rows are, to 16 bytes. */
static void store_lines(const lane_results *results, __local uchar *lines, int vectors, bool aligned) {
    const int lane = get_local_id(0) % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        /* A lane stores a piece of row lane / 8, and one of the row 4 further. */
        __global ushort *to[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            to[i] = (__global ushort *)address_from_lane((ulong)results->to[r], (i * 4 + lane / 8) * 4);
#pragma unroll
        for (int panel = 0; panel < PANELS_OF(RESULT_COLUMNS); panel++) {
            const int piece = panel * PANEL_PIECES + lane % 8;
            warp_barrier();
#pragma unroll
            for (int i = 0; i < PANEL_PIECES; i += 4)
                store_matrices(local_address(lines + panel_at(0, lane % 8, i + lane / 8)),
                               results->words[r] + panel * PANEL_PIECES + i);
            warp_barrier();
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (to[i] == 0 || piece >= vectors)
                    continue;
                const uint4 x = *(const __local uint4 *)(lines + panel_at(0, i * 4 + lane / 8, lane % 8));
                if (aligned)
                    *(__global uint4 *)(to[i] + piece * 8) = x;
                else
                    vstore8(as_ushort8(x), 0, to[i] + piece * 8);
            }
        }
    }
}

#endif
