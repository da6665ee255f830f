/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fragments of K and V from a tile in local memory. A tile of 8-bit codes (CODES) becomes elements of matrices on the way
 * to registers, without their scales.
 *
 * A matrix of 16-byte rows holds 16 codes in a row where it holds 8 elements. So a lane gets four codes, and the columns
 * of a step of 16 have another order than those of elements: K and q agree in theirs, and so do V and the results.
 */
#ifndef NV_FRAGMENTS_H
#define NV_FRAGMENTS_H

#include "nv/codes.h"
#include "nv/rows.h"

/* Rows in local memory, as nv/ring.h copies them: from row to row, in units of 16 bits, an odd number of 16-byte pieces, so
   that the 8 rows of a matrix lie in different banks. */
#define K_PITCH (CODES ? (K_STEPS | 1) * 8 : (2 * K_STEPS + 1) * 8)
#define V_PITCH (VALUES_IN_KEYS ? K_PITCH : CODES ? (V_STEPS | 1) * 8 : (2 * V_STEPS + 1) * 8)

/* A lane's row of four matrices that are 16 rows x 16 columns together: its place in elements. Those of K are taken
   as the columns of B, those of A and of V by rows. */
static int lane_place_k(int lane, int pitch) {
    return (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 8;
}
static int lane_place_rows(int lane, int pitch) {
    return lane % 16 * pitch + lane / 16 * 8;
}

/* The address of a lane's row of the matrices of 16 rows. */
static uint lane_keys(const __local ushort *keys) {
    const int lane = get_local_id(0) % 32;
    return local_address(keys + (CODES ? lane % 16 * K_PITCH : lane_place_k(lane, K_PITCH)));
}
static uint lane_values(const __local ushort *values) {
    const int lane = get_local_id(0) % 32;
    return local_address(values + (CODES ? lane % 16 * V_PITCH : lane_place_rows(lane, V_PITCH)));
}

/* A step of 16 columns of 16 keys: b[0], b[1] of the first 8, b[2], b[3] of the others. at: lane_keys of a tile. */
static void load_keys(uint *b, uint at, int tile, int step) {
#if CODES
    uint codes[2];
    load_two_matrices(codes, at + tile * 16 * K_PITCH * 2 + step * 16);
    b[0] = codes_pair(codes[0], 0, 1);
    b[1] = codes_pair(codes[0], 2, 3);
    b[2] = codes_pair(codes[1], 0, 1);
    b[3] = codes_pair(codes[1], 2, 3);
#else
    load_matrices(b, at + tile * 16 * K_PITCH * 2 + step * 32);
#endif
}

/* The same of the values of 16 keys, at: lane_values: b[0], b[1] for the first 8 results of a step, b[2], b[3] for the
   others. */
static void load_values(uint *b, uint at, int tile, int step) {
#if CODES
    uint codes[2];
    load_two_matrices_transposed(codes, at + tile * 16 * V_PITCH * 2 + step * 16);
    b[0] = codes_pair(codes[0], 0, 2);
    b[1] = codes_pair(codes[1], 0, 2);
    b[2] = codes_pair(codes[0], 1, 3);
    b[3] = codes_pair(codes[1], 1, 3);
#else
    load_matrices_transposed(b, at + tile * 16 * V_PITCH * 2 + step * 32);
#endif
}

/* The place in a row of element e of a lane's fragment d of results. */
static int result_column(int d, int e) {
    const int lane = get_local_id(0) % 32;
    return CODES ? d / 2 * 16 + lane % 4 * 4 + e % 2 * 2 + d % 2 : d * 8 + lane % 4 * 2 + e % 2;
}

/* Element d of a key's values, without its scale. */
static float value_at(const __local ushort *values, int key, int d) {
#if CODES
    return unpack(codes_pair(((const __local uchar *)values)[key * V_PITCH * 2 + d], 0, 1)).x;
#else
    return unpack(values[key * V_PITCH + d]).x;
#endif
}

#endif
