/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ring of TUNE_STAGES stages in local memory, each a tile of TUNE_KEYS keys and their values as elements of 16 bits,
 * filled by asynchronous copies. Rows are an odd number of 16-byte pieces apart, so that the 8 rows of a matrix lie in
 * different banks. Where rows come from is found a round before they are fetched.
 */
#ifndef NV_RING_H
#define NV_RING_H

#include "nv/rows.h"

/* From row to row, in elements. */
#define K_PITCH ((2 * K_STEPS + 1) * 8)
#define V_PITCH (VALUES_IN_KEYS ? K_PITCH : (2 * V_STEPS + 1) * 8)

/* A stage is K [TUNE_KEYS][K_PITCH], then V [TUNE_KEYS][V_PITCH]. */
#define V_IN_STAGE (VALUES_IN_KEYS ? 0 : TUNE_KEYS * K_PITCH)
#define STAGE_ELEMENTS (V_IN_STAGE + TUNE_KEYS * V_PITCH)
#define RING_BYTES (TUNE_STAGES * STAGE_ELEMENTS * 2)

/* Addresses of a stage's rows in global memory: of keys, then of values. Each work-item finds one at most. */
#define STAGE_ROWS (VALUES_IN_KEYS ? TUNE_KEYS : 2 * TUNE_KEYS)
#define RING_ROWS (TUNE_STAGES * STAGE_ROWS)
#if 2 * TUNE_KEYS > TUNE_WG
#error a stage has more rows than the work-group work-items
#endif

/* Zeros behind the rows up to whole steps, once. */
static void ring_fill_up(__local ushort *ring) {
#if HEAD_DIM % 16 || HEAD_DIM_V % 16
    for (int i = get_local_id(0); i < TUNE_STAGES * TUNE_KEYS; i += TUNE_WG) {
        __local ushort *stage = ring + i / TUNE_KEYS * STAGE_ELEMENTS;
#if HEAD_DIM % 16
        tile_store8(stage + i % TUNE_KEYS * K_PITCH + HEAD_DIM, 0);
#endif
#if HEAD_DIM_V % 16 && !VALUES_IN_KEYS
        tile_store8(stage + V_IN_STAGE + i % TUNE_KEYS * V_PITCH + HEAD_DIM_V, 0);
#endif
    }
#else
    (void)ring;
#endif
}

/* Row i of the stage whose first key is at position `first`; 0, which is zeros in the ring, for a key outside begin ..
   p->key_end - 1, or in no block. */
static ulong ring_find_row(const attn_problem *p, int begin, int first, int i) {
    return i >= STAGE_ROWS ? 0 : find_row(p, i < TUNE_KEYS, begin, first + i % TUNE_KEYS);
}

/* The i-th piece of 16 bytes that a work-item copies of rows of so many: which key's, and its first element. Where that
   divides the work-group it is the same piece of every row, which saves registers. */
#define PIECE_KEY(i, vectors)                                                                  \
    (TUNE_WG % (vectors) == 0 ? (int)get_local_id(0) / (vectors) + (i) * (TUNE_WG / (vectors)) \
                              : ((int)get_local_id(0) + (i)*TUNE_WG) / (vectors))
#define PIECE_ELEMENT(i, vectors) \
    (TUNE_WG % (vectors) == 0 ? (int)get_local_id(0) % (vectors)*8 : ((int)get_local_id(0) + (i)*TUNE_WG) % (vectors)*8)

/* Begins to load the tile whose first key is at position `first`: by asynchronous copies; new keys, and rows that are
   not aligned, at once. */
static void ring_fetch(const attn_problem *p, int begin, int first, bool aligned, __local ushort *stage,
                       const __local ulong *rows) {
    /* Keys of the tile from skip_first to skip_end - 1 are not copied. */
    const int new_first = WITH_APPEND ? p->new_first : p->k_len;
    const int skip_first = aligned ? clamp(new_first - first, 0, TUNE_KEYS) : 0;
    const int skip_end = aligned ? clamp(p->key_end - first, skip_first, TUNE_KEYS) : TUNE_KEYS;
    enum {
        K_PIECES = (TUNE_KEYS * K_VECTORS + TUNE_WG - 1) / TUNE_WG,
        V_PIECES = VALUES_IN_KEYS ? 0 : (TUNE_KEYS * V_VECTORS + TUNE_WG - 1) / TUNE_WG
    };
    /* All addresses first: a copy, which writes local memory, would keep later ones from being read. */
    ulong from[K_PIECES + V_PIECES];
#pragma unroll
    for (int i = 0; i < K_PIECES; i++)
        from[i] = rows[min(PIECE_KEY(i, K_VECTORS), TUNE_KEYS - 1)];
#pragma unroll
    for (int i = 0; i < V_PIECES; i++)
        from[K_PIECES + i] = rows[TUNE_KEYS + min(PIECE_KEY(i, V_VECTORS), TUNE_KEYS - 1)];
#pragma unroll
    for (int i = 0; i < K_PIECES + V_PIECES; i++) {
        const bool of_keys = i < K_PIECES;
        const int key = of_keys ? PIECE_KEY(i, K_VECTORS) : PIECE_KEY(i - K_PIECES, V_VECTORS);
        const int d = of_keys ? PIECE_ELEMENT(i, K_VECTORS) : PIECE_ELEMENT(i - K_PIECES, V_VECTORS);
        if (key < TUNE_KEYS && (key < skip_first || key >= skip_end))
            copy_begin16(local_address(stage + (of_keys ? key * K_PITCH : V_IN_STAGE + key * V_PITCH) + d),
                         (const __global ushort *)from[i] + d, from[i] != 0);
    }
    for (int i = get_local_id(0); i < (skip_end - skip_first) * K_VECTORS; i += TUNE_WG) {
        const int key = skip_first + i / K_VECTORS, d = i % K_VECTORS * 8, position = first + key;
        const bool inside = position >= begin && position < p->key_end && problem_has(p, position);
        tile_store8(stage + key * K_PITCH + d, inside ? key8(p, position, d) : (float8)0);
    }
#if !VALUES_IN_KEYS
    for (int i = get_local_id(0); i < (skip_end - skip_first) * V_VECTORS; i += TUNE_WG) {
        const int key = skip_first + i / V_VECTORS, d = i % V_VECTORS * 8, position = first + key;
        const bool inside = position >= begin && position < p->key_end && problem_has(p, position);
        tile_store8(stage + V_IN_STAGE + key * V_PITCH + d, inside ? value8(p, position, d) : (float8)0);
    }
#endif
}

#endif
