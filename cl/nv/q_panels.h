/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Query rows in local memory as panels (nv/swizzle.h), 64 of a warpgroup, and their products with the keys of a tile.
 */
#ifndef NV_Q_PANELS_H
#define NV_Q_PANELS_H

#include "nv/rows.h"
#include "nv/swizzle.h"
#include "nv/warpgroup.h"

#define Q_PANEL (64 * PANEL_ROW)
#define Q_BYTES (PANELS_OF(HEAD_DIM) * Q_PANEL)

/* A warp begins to load 16 rows of q, from `row` on, to row `place` of the panels, to.. + Q_BYTES; those behind the
   last are zeros, and so is what fills a row up. */
static void load_q_panels(const attn_problem *p, const __global STORAGE(Q) * q, long4 q_layout, int row, int place,
                          __local uchar *to) {
    const int lane = get_local_id(0) % 32;
#if ROTARY_DIM == 0
    if (((q_layout.x | q_layout.y | q_layout.z) & 7) == 0) {
        /* A lane finds the address of a row for all. */
        const int known = min(row + lane % 16, p->num_rows - 1);
        const ulong found = row + lane % 16 < p->num_rows
                                ? (ulong)(q + layout_at(q_layout, problem_token(p, known), problem_head(p, known)))
                                : 0;
#pragma unroll
        for (int i = 0; i < K_STEPS; i++) {
            const int at = (i * 32 + lane) / (2 * K_STEPS), piece = (i * 32 + lane) % (2 * K_STEPS);
            const ulong from = address_from_lane(found, at);
            copy_begin16(local_address(to) + panel_at(Q_PANEL, place + at, piece),
                         (const __global STORAGE(Q) *)from + piece * 8, from != 0 && piece < K_VECTORS);
        }
        copy_commit();
        return;
    }
#endif
    for (int i = lane; i < 16 * 2 * K_STEPS; i += 32) {
        const int at = i / (2 * K_STEPS), piece = i % (2 * K_STEPS);
        float8 x = 0;
        if (row + at < p->num_rows && piece < K_VECTORS)
            x = rotated8(&p->rotary, q, layout_at(q_layout, problem_token(p, row + at), problem_head(p, row + at)),
                         piece * 8, problem_position(p, row + at));
        tile_store8((__local ushort *)(to + panel_at(Q_PANEL, place + at, piece)), x);
    }
}

/* A step of 16 columns of a matrix whose panels have so many bytes. */
static ulong step_of(ulong matrix, uint panel, int step) {
    const uint bytes = step / 4 * panel + step % 4 * 32;
    return K_STEPS > 16 ? matrix_further_here(matrix, bytes) : matrix_further(matrix, bytes);
}

/* Begins scores = q * keys^T, of TUNE_KEYS keys, whose panels have so many bytes. */
static void begin_scores(float *scores, uint q_address, uint keys_address, const uint keys_panel) {
    const ulong q = matrix_at(q_address, 0, 1024), keys = matrix_at(keys_address, 0, 1024);
    products_begin();
#pragma unroll
    for (int step = 0; step < K_STEPS; step++)
        PRODUCT(TUNE_KEYS, scores, step_of(q, Q_PANEL, step), step_of(keys, keys_panel, step), step > 0);
    products_commit();
}

/* Weights as fragments, of steps of 16 keys. */
static void pack_weights(const float (*scores)[4], uint (*weights)[4]) {
#pragma unroll
    for (int step = 0; step < TUNE_KEYS / 16; step++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *pair = scores[2 * step + i / 2] + i % 2 * 2;
            weights[step][i] = pack(pair[0], pair[1]);
        }
}

#endif
