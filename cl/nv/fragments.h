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

#include "nv/rows.h"

/*
 * Rows in local memory. As nv/ring.h copies them: from row to row, in units of 16 bits, an odd number of 16-byte pieces, so
 * that the 8 rows of a matrix lie in different banks. As boxes of a tensor map bring them (PANEL_ROWS): in panels of so
 * many rows of 128 bytes, whose pieces 8 rows have in 8 orders.
 */
#ifdef PANEL_ROWS
#define PANEL_BYTES (PANEL_ROWS * 128)
#define K_PANELS ((HEAD_DIM + 63) / 64)
#define V_PANELS ((HEAD_DIM_V + 63) / 64)
#else
#define K_PITCH (CODES ? (K_STEPS | 1) * 8 : (2 * K_STEPS + 1) * 8)
#define V_PITCH (VALUES_IN_KEYS ? K_PITCH : CODES ? (V_STEPS | 1) * 8 : (2 * V_STEPS + 1) * 8)
#endif

/* Where a piece of a row lies, in bytes. */
#ifdef PANEL_ROWS
static int piece_place(int row, int piece) {
    return piece / 8 * PANEL_BYTES + row * 128 + ((piece % 8) ^ (row % 8)) * 16;
}
#define K_PLACE(row, piece) piece_place(row, piece)
#define V_PLACE(row, piece) piece_place(row, piece)
#else
#define K_PLACE(row, piece) ((row) * K_PITCH * 2 + (piece) * 16)
#define V_PLACE(row, piece) ((row) * V_PITCH * 2 + (piece) * 16)
#endif

#if CODES
#define IS_CODE_int8 1
#define IS_CODE_float8_e4m3 2
#define IS_CODE_float8_e5m2 3
#define CODE_KIND PASTE(IS_CODE_, KV_DTYPE)

/* Bytes of two words: nibble i of `which`, a constant, tells byte i of the result, 0 to 3 of a and 4 to 7 of b. */
static uint choose_bytes(uint a, uint b, const uint which) {
    uint chosen;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(chosen) : "r"(a), "r"(b), "r"(which));
    return chosen;
}

/* Bytes `low` and `high`, constants, of four codes as halves. All codes are halves exactly. */
static uint codes_halves(uint codes, const uint low, const uint high) {
    uint halves;
#if CODE_KIND == 1
    /* 1024 and x + 128 more have the bits of x + 128 in their lowest places. */
    uint large = choose_bytes(codes ^ 0x80808080, 0x64646464, 0x4040 | high << 8 | low);
    asm("sub.f16x2 %0, %1, %2;" : "=r"(halves) : "r"(large), "r"(0x64806480));
#elif CODE_KIND == 2
    uint both = choose_bytes(codes, 0, high << 4 | low);
    asm("{ .reg .b16 pair, none; mov.b32 {pair, none}, %1; cvt.rn.f16x2.e4m3x2 %0, pair; }" : "=r"(halves) : "r"(both));
#else
    halves = choose_bytes(codes, 0, 0x0404 | high << 12 | low << 4);
#endif
    return halves;
}

/* The same as elements of matrices, `low` in the lower half. */
static uint codes_pair(uint codes, const uint low, const uint high) {
    uint halves = codes_halves(codes, low, high);
#if IS_BFLOAT16(MATRIX)
    float2 x;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(x.x), "=f"(x.y)
        : "r"(halves));
    return pack(x.x, x.y);
#else
    return halves;
#endif
}
#endif

/* A lane's row of four matrices that are 16 rows x 16 columns together: its place in elements. Those of K are taken
   as the columns of B, those of A and of V by rows. */
static int lane_place_k(int lane, int pitch) {
    return (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 8;
}
static int lane_place_rows(int lane, int pitch) {
    return lane % 16 * pitch + lane / 16 * 8;
}

/* Where a lane's row of the matrices of 16 rows begins, and where that of others is: the tile-th of 16 rows, and so many
   bytes further along the row. */
#ifdef PANEL_ROWS
static uint lane_keys(const __local ushort *keys) {
    const int lane = get_local_id(0) % 32;
    return local_address(keys) + piece_place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}
static uint lane_values(const __local ushort *values) {
    const int lane = get_local_id(0) % 32;
    return local_address(values) + piece_place(lane % 16, lane / 16);
}
#define KEYS_AT(at, tile, bytes) (((at) ^ (uint)((bytes) % 128)) + (bytes) / 128 * PANEL_BYTES + (tile) * 16 * 128)
#define VALUES_AT(at, tile, bytes) KEYS_AT(at, tile, bytes)
#else
static uint lane_keys(const __local ushort *keys) {
    const int lane = get_local_id(0) % 32;
    return local_address(keys + (CODES ? lane % 16 * K_PITCH : lane_place_k(lane, K_PITCH)));
}
static uint lane_values(const __local ushort *values) {
    const int lane = get_local_id(0) % 32;
    return local_address(values + (CODES ? lane % 16 * V_PITCH : lane_place_rows(lane, V_PITCH)));
}
#define KEYS_AT(at, tile, bytes) ((at) + (tile) * 16 * K_PITCH * 2 + (bytes))
#define VALUES_AT(at, tile, bytes) ((at) + (tile) * 16 * V_PITCH * 2 + (bytes))
#endif

/* A step of 16 columns of 16 keys: b[0], b[1] of the first 8, b[2], b[3] of the others. at: lane_keys of a tile. */
static void load_keys(uint *b, uint at, int tile, int step) {
#if CODES
    uint codes[2];
    load_two_matrices(codes, KEYS_AT(at, tile, step * 16));
    b[0] = codes_pair(codes[0], 0, 1);
    b[1] = codes_pair(codes[0], 2, 3);
    b[2] = codes_pair(codes[1], 0, 1);
    b[3] = codes_pair(codes[1], 2, 3);
#else
    load_matrices(b, KEYS_AT(at, tile, step * 32));
#endif
}

/* The same of the values of 16 keys, at: lane_values: b[0], b[1] for the first 8 results of a step, b[2], b[3] for the
   others. */
static void load_values(uint *b, uint at, int tile, int step) {
#if CODES
    uint codes[2];
    load_two_matrices_transposed(codes, VALUES_AT(at, tile, step * 16));
    b[0] = codes_pair(codes[0], 0, 2);
    b[1] = codes_pair(codes[1], 0, 2);
    b[2] = codes_pair(codes[0], 1, 3);
    b[3] = codes_pair(codes[1], 1, 3);
#else
    load_matrices_transposed(b, VALUES_AT(at, tile, step * 32));
#endif
}

/* The place in a row of element e of a lane's fragment d of results. */
static int result_column(int d, int e) {
    const int lane = get_local_id(0) % 32;
    return CODES ? d / 2 * 16 + lane % 4 * 4 + e % 2 * 2 + d % 2 : d * 8 + lane % 4 * 2 + e % 2;
}

/* Element d of a key's values, without its scale. */
static float value_at(const __local ushort *values, int key, int d) {
    const __local uchar *at = (const __local uchar *)values + V_PLACE(key, d / PIECE);
#if CODES
    return unpack(codes_pair(at[d % PIECE], 0, 1)).x;
#else
    return unpack(((const __local ushort *)at)[d % PIECE]).x;
#endif
}

/* Whether any of 16 bytes of a row is infinite or NaN. */
static bool piece_is_special(const __local ushort *piece) {
#if CODES
    const uint4 x = *(const __local uint4 *)piece;
    /* Such a byte has all these bits; the lowest of them added carries into its sign. */
    const uint bits = CODE_KIND == 2 ? 0x7f7f7f7f : 0x7c7c7c7c, lowest = CODE_KIND == 2 ? 0x01010101 : 0x04040404;
    return CODE_KIND != 1 && any((((x & bits) + lowest) & 0x80808080) != 0);
#else
    const ushort exponent = IS_BFLOAT16(KV) ? 0x7f80 : 0x7c00;
    return any((*(const __local ushort8 *)piece & exponent) == exponent);
#endif
}

#endif
