/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Query rows of a tile in local memory, as the elements of matrices: [Q_PARTS][TUNE_ROWS][Q_PITCH].
 *
 * Where the result is float32 weights are cut into two elements for their product, and so is q where it was rotated: then
 * nothing is lost by rounding them.
 */
#ifndef NV_Q_ROWS_H
#define NV_Q_ROWS_H

#include "lib/attn_problem.h"
#include "nv/rows.h"

/* Steps of 16 elements through a row, the last filled up with zeros. */
#define K_STEPS ((HEAD_DIM + 15) / 16)
#define V_STEPS ((HEAD_DIM_V + 15) / 16)

#if HEAD_DIM % PIECE || HEAD_DIM_V % PIECE
#error matrices need rows of whole 16-byte pieces
#endif

#define WEIGHT_PARTS (IS_FLOAT32(OUT) ? 2 : 1)
#define Q_PARTS (IS_FLOAT32(OUT) && ROTARY_DIM > 0 ? 2 : 1)

#define Q_PITCH ((2 * K_STEPS + 1) * 8)
#define Q_ELEMENTS (Q_PARTS * TUNE_ROWS * Q_PITCH)

/* Query rows behind the last are zeros, and so is what fills a row up. They are not scaled: that would round them. Rows
   that need no rotation are copied asynchronously. The first `rows`, by so many work-items, of which this is one. */
static void tile_load_q(const attn_problem *p, const __global STORAGE(Q) * q, long4 q_layout, __local ushort *to_q,
                        int rows, int item, int items) {
#if ROTARY_DIM == 0
    if (((q_layout.x | q_layout.y | q_layout.z) & 7) == 0) {
#pragma unroll 1
        for (int i = 0; i < (rows * 2 * K_STEPS + items - 1) / items; i++) {
            int piece = item + i * items;
            int row = piece / (2 * K_STEPS), d = piece % (2 * K_STEPS) * 8;
            int known = min(p->first_row + row, p->num_rows - 1);
            if (row < rows)
                copy_begin16(local_address(to_q + row * Q_PITCH + d),
                             q + layout_at(q_layout, problem_token(p, known), problem_head(p, known)) + d,
                             p->first_row + row < p->num_rows && d < HEAD_DIM);
        }
        return;
    }
#endif
    for (int i = item; i < rows * 2 * K_STEPS; i += items) {
        int row = p->first_row + i / (2 * K_STEPS);
        int d = i % (2 * K_STEPS) * 8;
        float8 x = 0;
        if (row < p->num_rows && d < HEAD_DIM)
            x = rotated8(&p->rotary, q, layout_at(q_layout, problem_token(p, row), problem_head(p, row)), d,
                         problem_position(p, row));
        __local ushort *to = to_q + i / (2 * K_STEPS) * Q_PITCH + d;
        tile_store8(to, x);
#if Q_PARTS == 2
        tile_store8(to + TUNE_ROWS * Q_PITCH, x - ROUND8(MATRIX)(x));
#endif
    }
}

#endif
