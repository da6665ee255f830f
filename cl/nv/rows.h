/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of keys and values on their way to local memory, as elements of 16 bits or codes of 8.
 */
#ifndef NV_ROWS_H
#define NV_ROWS_H

#include "lib/attn_problem.h"
#include "nv/warp.h"

/* Whether values are the beginning of the keys' rows, and not there a second time. */
#if WITH_PAGED
#define VALUES_IN_KEYS V_IN_K
#else
#define VALUES_IN_KEYS 0
#endif

/* The 16-bit elements of 8 values. */
static ushort8 bits_of8(float8 x) {
#if IS_BFLOAT16(MATRIX)
    return bfloat16_bits8(x);
#else
    ushort bits[8];
    vstore_half8_rte(x, 0, (__private half *)bits);
    return vload8(0, bits);
#endif
}

static void tile_store8(__local ushort *to, float8 x) {
    *(__local ushort8 *)to = bits_of8(x);
}

/* Elements, or codes, in 16 bytes. */
#define PIECE (CODES ? 16 : 8)
#define ROW_BYTES(elements) ((elements)*16 / PIECE)

#if CODES
#define IS_CODE_int8 1
#define IS_CODE_float8_e4m3 2
#define IS_CODE_float8_e5m2 3
#define CODE_KIND PASTE(IS_CODE_, KV_DTYPE)
#endif

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

#if WITH_PAGED && CODES
/* Codes d .. d + 7 of the key or value at a position, and the scale of its row, as the pool holds them or will. */
static uchar8 row_codes8(const attn_problem *p, bool of_keys, int position, int d) {
#if WITH_APPEND
    if (position >= p->new_first) {
        const float scale = of_keys ? new_key_scale(p, position, d) : new_value_scale(p, position, d);
        return ENCODE8(KV)((of_keys ? new_key8(p, position, d) : new_value8(p, position, d)) / scale);
    }
#endif
    const pool_row row = of_keys ? key_row(p, position) : value_row(p, position);
    return vload8(0, (const __global uchar *)row.base + row.at + d);
}
static float row_scale(const attn_problem *p, bool of_keys, int position) {
#if WITH_APPEND
    if (position >= p->new_first)
        return of_keys ? new_key_scale(p, position, 0) : new_value_scale(p, position, 0);
#endif
    return pool_scale_at(of_keys ? key_row(p, position) : value_row(p, position), 0);
}
#endif

/* Stores elements d .. d + 7 of the key or value at a position to local memory; zeros where not inside. */
static void tile_store_row8(__local uchar *to, const attn_problem *p, bool of_keys, int position, int d, bool inside) {
#if CODES
    *(__local uchar8 *)to = inside ? row_codes8(p, of_keys, position, d) : (uchar8)0;
#else
    float8 x = 0;
    if (inside)
        x = of_keys ? key8(p, position, d) : value8(p, position, d);
    tile_store8((__local ushort *)to, x);
#endif
}

/* Whether all rows of old keys lie at multiples of 16 bytes. */
static bool keys_are_aligned(const attn_problem *p) {
#if WITH_PAGED
    const long all = p->keys.k.offset | p->keys.k.block_stride | p->keys.k.token_stride | p->keys.k.head_stride |
                     p->keys.v.offset | p->keys.v.block_stride | p->keys.v.token_stride | p->keys.v.head_stride;
#else
    const long all = p->keys.k_layout.x | p->keys.k_layout.y | p->keys.k_layout.z | p->keys.v_layout.x |
                     p->keys.v_layout.y | p->keys.v_layout.z;
#endif
    return all % PIECE == 0;
}

/* Whether there is a key at a position: it is one of begin .. p->key_end - 1, and in a block. */
static bool key_exists(const attn_problem *p, int begin, int position) {
    return position >= begin && position < p->key_end && problem_has(p, position);
}

/* Where the row of a key, or of its value, is in the pool or among the packed keys; 0 where there is none. */
static ulong find_row(const attn_problem *p, bool of_keys, int begin, int position) {
    if (!key_exists(p, begin, position))
        return 0;
    keys_row row = of_keys ? key_row(p, position) : value_row(p, position);
#if WITH_PAGED
    return (ulong)(row.base + row.at);
#else
    return (ulong)row;
#endif
}

#if ROW_SCALED
/* The same of the row's scale. */
static ulong find_scale(const attn_problem *p, bool of_keys, int begin, int position) {
    if (position < begin || position >= p->key_end || !problem_has(p, position))
        return 0;
    return (ulong)(of_keys ? key_row(p, position) : value_row(p, position)).scales;
}
#endif

#endif
