/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of keys and values on their way to local memory, as elements of 16 bits.
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
#if IS_BFLOAT16(KV)
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

/* Whether all rows of old keys lie at multiples of 16 bytes. */
static bool keys_are_aligned(const attn_problem *p) {
#if WITH_PAGED
    const long all = p->keys.k.offset | p->keys.k.block_stride | p->keys.k.token_stride | p->keys.k.head_stride |
                     p->keys.v.offset | p->keys.v.block_stride | p->keys.v.token_stride | p->keys.v.head_stride;
#else
    const long all = p->keys.k_layout.x | p->keys.k_layout.y | p->keys.k_layout.z | p->keys.v_layout.x |
                     p->keys.v_layout.y | p->keys.v_layout.z;
#endif
    return (all & 7) == 0;
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

#endif
