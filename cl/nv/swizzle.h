/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A matrix in local memory as products of a warpgroup read it: panels of 64 columns, a panel rows of 128 bytes,
 * swizzled as matrix_at() of nv/warpgroup.h has it.
 */
#ifndef NV_SWIZZLE_H
#define NV_SWIZZLE_H

#define PANEL_COLUMNS 64
#define PANEL_PIECES (PANEL_COLUMNS / 8)
#define PANEL_ROW 128

/* Panels that hold so many columns. */
#define PANELS_OF(columns) (((columns) + PANEL_COLUMNS - 1) / PANEL_COLUMNS)

/* Where a row's piece of 16 bytes is in a matrix of so many bytes a panel. */
static int panel_at(int panel_bytes, int row, int piece) {
    return piece / PANEL_PIECES * panel_bytes + row * PANEL_ROW + ((piece % PANEL_PIECES) ^ (row & 7)) * 16;
}

#endif
