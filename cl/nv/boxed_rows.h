/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of K and V in local memory as boxes of a tensor map bring them (nv/pool_maps.h): a box has BOX_TOKENS rows, as
 * panels of 64 columns (of 16 bits) one behind the other. A panel's rows have 128 bytes each, whose 16-byte pieces 8
 * rows have in 8 orders. BY_WARPGROUPS: for products of warpgroups a panel has the rows of all boxes of a tile, one
 * behind the other.
 */
#ifndef NV_BOXED_ROWS_H
#define NV_BOXED_ROWS_H

#include "nv/codes.h"
#include "nv/pool_maps.h"
#include "nv/q_rows.h"

/* Boxes are of whole rows, or of columns. */
#define WHOLE_BOXES (ROW_BOXES && !BY_WARPGROUPS)
#define BOX_TOKENS (WHOLE_BOXES ? ROW_TOKENS : COLUMN_TOKENS)

#define K_PANELS ((MAP_COLUMNS(HEAD_DIM) + BOX_COLUMNS - 1) / BOX_COLUMNS)
#define V_PANELS ((MAP_COLUMNS(HEAD_DIM_V) + BOX_COLUMNS - 1) / BOX_COLUMNS)

/* In bytes, what lies between a panel and the next, a box and the next. */
#define BOX_PANEL (BOX_TOKENS * 128)
#if BY_WARPGROUPS
#define PANEL_BYTES (TUNE_KEYS * 128)
#define K_BOX BOX_PANEL
#define V_BOX BOX_PANEL
#else
#define PANEL_BYTES BOX_PANEL
#define K_BOX (K_PANELS * PANEL_BYTES)
#define V_BOX (VALUES_IN_KEYS ? K_BOX : V_PANELS * PANEL_BYTES)
#endif

/* Where a piece of a row lies in the first box of some, of `box` bytes each. */
static int boxed_place(int box, int row, int piece) {
    return row / BOX_TOKENS * box + piece / 8 * PANEL_BYTES + row % BOX_TOKENS * 128 + ((piece % 8) ^ (row % 8)) * 16;
}

/* Address of a piece `step` steps of 2, a constant, behind the one at `at`, which is the first or second of its
   panel: orders differ in bits that the addresses of rows do not have. */
static uint boxed_step(uint at, const int step) {
    return (at ^ (uint)(step % 4 * 32)) + step / 4 * PANEL_BYTES;
}

/* Where elements from d on lie, in one piece with it. */
static int boxed_element(int box, int row, int d) {
    return boxed_place(box, row, d / PIECE) + ROW_BYTES(d % PIECE);
}

/* Element d of a key's values, without its scale. */
static float boxed_value(const __local uchar *values, int key, int d) {
    const __local uchar *at = values + boxed_element(V_BOX, key, d);
#if CODES
    return unpack(codes_pair(*at, 0, 1)).x;
#else
    return unpack(*(const __local ushort *)at).x;
#endif
}

#endif
