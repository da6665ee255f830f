/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ring of TUNE_STAGES stages in local memory, each a tile of TUNE_KEYS keys and their values as elements of 16 bits, or
 * codes of 8, filled by asynchronous copies. Where rows come from is found a round
 * before they are fetched.
 */
#ifndef NV_RING_H
#define NV_RING_H

#include "nv/fragments.h"

/* A stage is K [TUNE_KEYS][K_PITCH], then V [TUNE_KEYS][V_PITCH]. */
#define V_IN_STAGE (VALUES_IN_KEYS ? 0 : TUNE_KEYS * K_PITCH)
#define STAGE_ELEMENTS (V_IN_STAGE + TUNE_KEYS * V_PITCH)
#define RING_BYTES (TUNE_STAGES * STAGE_ELEMENTS * 2)

/* Rows of a stage, of keys, then of values; a work-item finds so many of their addresses in global memory. */
#define STAGE_ROWS (VALUES_IN_KEYS ? TUNE_KEYS : 2 * TUNE_KEYS)
#define RING_ROWS (TUNE_STAGES * STAGE_ROWS)
#define ITEM_ROWS ((STAGE_ROWS + TUNE_WG - 1) / TUNE_WG)

typedef struct ring_stage {
    __local ushort *tile; /* [STAGE_ELEMENTS] */
    __local ulong *rows;  /* [STAGE_ROWS], where they come from */
#if ROW_SCALED
    __local ulong *scales_from; /* [STAGE_ROWS] */
    __local float *scales;      /* [STAGE_ROWS] */
#endif
} ring_stage;

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

/* What a work-item finds of a stage. An address of 0 is zeros in the ring: of a key outside begin .. p->key_end - 1, or in
   no block. */
typedef struct found_rows {
    ulong rows[ITEM_ROWS];
#if ROW_SCALED
    ulong scales[ITEM_ROWS];
#endif
} found_rows;

static void ring_find_rows(const attn_problem *p, int begin, int first, found_rows *found) {
#pragma unroll
    for (int i = 0; i < ITEM_ROWS; i++) {
        const int row = get_local_id(0) + i * TUNE_WG;
        found->rows[i] = row >= STAGE_ROWS ? 0 : find_row(p, row < TUNE_KEYS, begin, first + row % TUNE_KEYS);
#if ROW_SCALED
        found->scales[i] = row >= STAGE_ROWS ? 0 : find_scale(p, row < TUNE_KEYS, begin, first + row % TUNE_KEYS);
#endif
    }
}

static void ring_keep_rows(const ring_stage *stage, const found_rows *found) {
#pragma unroll
    for (int i = 0; i < ITEM_ROWS; i++) {
        const int row = get_local_id(0) + i * TUNE_WG;
        if (row < STAGE_ROWS) {
            stage->rows[row] = found->rows[i];
#if ROW_SCALED
            stage->scales_from[row] = found->scales[i];
#endif
        }
    }
}

/* The i-th piece of 16 bytes that a work-item copies of rows of so many: which key's, and its first element. Where that
   divides the work-group it is the same piece of every row, which saves registers. */
#define PIECE_KEY(i, pieces)                                                                \
    (TUNE_WG % (pieces) == 0 ? (int)get_local_id(0) / (pieces) + (i) * (TUNE_WG / (pieces)) \
                             : ((int)get_local_id(0) + (i)*TUNE_WG) / (pieces))
#define PIECE_ELEMENT(i, pieces)                                     \
    (TUNE_WG % (pieces) == 0 ? (int)get_local_id(0) % (pieces)*PIECE \
                             : ((int)get_local_id(0) + (i)*TUNE_WG) % (pieces)*PIECE)

#if ROW_SCALED
/* Begins to load the scales of a stage's rows; those of keys from skip_first to skip_end - 1 at once. */
static void ring_fetch_scales(const attn_problem *p, int begin, int first, int skip_first, int skip_end,
                              const ring_stage *stage) {
#pragma unroll
    for (int i = 0; i < ITEM_ROWS; i++) {
        const int row = get_local_id(0) + i * TUNE_WG, key = row % TUNE_KEYS, position = first + key;
        if (row >= STAGE_ROWS)
            continue;
        if (key < skip_first || key >= skip_end) {
            const ulong from = stage->scales_from[row];
            copy_begin4(local_address(stage->scales + row), (const __global void *)from, from != 0);
        } else {
            const bool inside = position >= begin && position < p->key_end && problem_has(p, position);
            stage->scales[row] = inside ? row_scale(p, row < TUNE_KEYS, position) : 0;
        }
    }
}
#endif

/* Begins to load the tile whose first key is at position `first`: by asynchronous copies; new keys, and rows that are
   not aligned, at once. */
static void ring_fetch(const attn_problem *p, int begin, int first, bool aligned, const ring_stage *stage) {
    /* Keys of the tile from skip_first to skip_end - 1 are not copied. */
    const int new_first = WITH_APPEND ? p->new_first : p->k_len;
    const int skip_first = aligned ? clamp(new_first - first, 0, TUNE_KEYS) : 0;
    const int skip_end = aligned ? clamp(p->key_end - first, skip_first, TUNE_KEYS) : TUNE_KEYS;
    enum {
        K_PIECES = HEAD_DIM / PIECE, /* of a row */
        V_PIECES = HEAD_DIM_V / PIECE,
        K_COPIES = (TUNE_KEYS * K_PIECES + TUNE_WG - 1) / TUNE_WG,
        V_COPIES = VALUES_IN_KEYS ? 0 : (TUNE_KEYS * V_PIECES + TUNE_WG - 1) / TUNE_WG
    };
    /* All addresses first: a copy, which writes local memory, would keep later ones from being read. */
    ulong from[K_COPIES + V_COPIES];
#pragma unroll
    for (int i = 0; i < K_COPIES; i++)
        from[i] = stage->rows[min(PIECE_KEY(i, K_PIECES), TUNE_KEYS - 1)];
#pragma unroll
    for (int i = 0; i < V_COPIES; i++)
        from[K_COPIES + i] = stage->rows[TUNE_KEYS + min(PIECE_KEY(i, V_PIECES), TUNE_KEYS - 1)];
#pragma unroll
    for (int i = 0; i < K_COPIES + V_COPIES; i++) {
        const bool of_keys = i < K_COPIES;
        const int key = of_keys ? PIECE_KEY(i, K_PIECES) : PIECE_KEY(i - K_COPIES, V_PIECES);
        const int d = of_keys ? PIECE_ELEMENT(i, K_PIECES) : PIECE_ELEMENT(i - K_COPIES, V_PIECES);
        if (key < TUNE_KEYS && (key < skip_first || key >= skip_end))
            copy_begin16(local_address(stage->tile + (of_keys ? key * K_PITCH : V_IN_STAGE + key * V_PITCH)) +
                             ROW_BYTES(d),
                         (const __global STORAGE(KV) *)from[i] + d, from[i] != 0);
    }
#if ROW_SCALED
    ring_fetch_scales(p, begin, first, skip_first, skip_end, stage);
#endif
    for (int i = get_local_id(0); i < (skip_end - skip_first) * K_VECTORS; i += TUNE_WG) {
        const int key = skip_first + i / K_VECTORS, d = i % K_VECTORS * 8, position = first + key;
        const bool inside = position >= begin && position < p->key_end && problem_has(p, position);
        tile_store_row8((__local uchar *)(stage->tile + key * K_PITCH) + ROW_BYTES(d), p, true, position, d, inside);
    }
#if !VALUES_IN_KEYS
    for (int i = get_local_id(0); i < (skip_end - skip_first) * V_VECTORS; i += TUNE_WG) {
        const int key = skip_first + i / V_VECTORS, d = i % V_VECTORS * 8, position = first + key;
        const bool inside = position >= begin && position < p->key_end && problem_has(p, position);
        tile_store_row8((__local uchar *)(stage->tile + V_IN_STAGE + key * V_PITCH) + ROW_BYTES(d), p, false, position,
                        d, inside);
    }
#endif
}

#endif
