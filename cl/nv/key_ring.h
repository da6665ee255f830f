/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ring of matrices (nv/swizzle.h) that a warp or more fill with keys and values while warpgroups work.
 *
 * The ring has TUNE_STAGES stages, each a tile of TUNE_KEYS keys and their values. It runs through all tiles of all
 * problems of a work-group, one behind the other. Each stage has four barriers: its keys are there, its values are,
 * its keys are not needed any more, its values are not.
 */
#ifndef NV_KEY_RING_H
#define NV_KEY_RING_H

#include "nv/rows.h"
#include "nv/swizzle.h"
#include "nv/warpgroup.h"

#define WARPGROUPS (TUNE_ROWS / 64)
#define WORKERS (WARPGROUPS * WARPGROUP)
#define FETCHERS (TUNE_WG - WORKERS)
#define FETCH_WARPS (FETCHERS / 32)
#define FETCH_TURNS (FETCH_WARPS / 2)

#define K_PANELS PANELS_OF(HEAD_DIM)
#define V_PANELS PANELS_OF(HEAD_DIM_V)

/* Sizes in bytes. */
#define TILE_PANEL (TUNE_KEYS * PANEL_ROW)
#define K_STAGE (K_PANELS * TILE_PANEL)
#define V_STAGE (V_PANELS * TILE_PANEL)
#define ZEROS 1024
#define RING_BYTES (TUNE_STAGES * (K_STAGE + V_STAGE))

/* The keys of a problem. */
typedef struct key_range {
    int begin, end;           /* that some row sees */
    int full_begin, full_end; /* that all rows see */
    int start;                /* of the first tile */
    int num_tiles;            /* 1 at least */
} key_range;

static key_range range_of(const attn_problem *p) {
    const int last_row = min(p->first_row + TUNE_ROWS, p->num_rows) - 1;
    key_range r;
    r.begin = problem_low(p, p->first_row);
    r.end = problem_high(p, last_row);
    r.full_begin = problem_low(p, last_row);
    r.full_end = min(problem_high(p, p->first_row), WITH_TREE ? p->k_len - p->q_len : p->k_len);
    r.start = r.begin / TUNE_KEYS * TUNE_KEYS;
    r.num_tiles = max((r.end - r.start + TUNE_KEYS - 1) / TUNE_KEYS, 1);
    return r;
}

/* Whether all rows see all keys of the tile whose first is at `first`, as far as there are keys. */
static bool all_see(const attn_problem *p, const key_range *range, int first) {
    return max(first, range->begin) >= range->full_begin && min(first + TUNE_KEYS, p->key_end) <= range->full_end;
}

typedef struct key_ring {
    __local uchar *keys, *values; /* of all stages */
    __local ulong *rows;          /* [FETCH_WARPS][TUNE_KEYS]: where a warp's rows come from */
    __local ulong *barriers;      /* [4][TUNE_STAGES] */
    __local ulong *landed; /* [FETCH_WARPS]: barriers, behind the others: what a warp fetches for itself is there */
    __local uchar *zeros;  /* [ZEROS] */
    __local int *hides_special; /* [TUNE_STAGES]: whether a value that some row does not see is infinite or NaN */
} key_ring;

enum { KEYS_THERE, VALUES_THERE, KEYS_DONE, VALUES_DONE };

/* The stage of a tile, and the parity of its phase there. */
typedef struct ring_place {
    int stage;
    uint parity;
} ring_place;

static ring_place ring_further(ring_place at, int tiles) {
    at.stage += tiles;
    if (at.stage >= TUNE_STAGES) {
        at.stage -= TUNE_STAGES;
        at.parity ^= 1;
    }
    return at;
}

static uint ring_barrier(key_ring ring, int which, ring_place at) {
    return local_address(ring.barriers + which * TUNE_STAGES + at.stage);
}
static __local uchar *ring_keys(key_ring ring, ring_place at) {
    return ring.keys + at.stage * K_STAGE;
}
static __local uchar *ring_values(key_ring ring, ring_place at) {
    return ring.values + at.stage * V_STAGE;
}

/* By one work-item, before a barrier of all. */
static void ring_init(key_ring ring) {
    for (int i = 0; i < 4 * TUNE_STAGES; i++)
        mbarrier_init(local_address(ring.barriers + i), i < KEYS_DONE * TUNE_STAGES ? 1 : WORKERS / 32);
    for (int i = 0; i < FETCH_WARPS; i++)
        mbarrier_init(local_address(ring.landed + i), 1);
}

/* Zeros where they are to be: in ring.zeros, and in the columns of keys behind the last, up to a whole step of the
   products; by all, before a barrier of all. */
static void ring_fill_up(key_ring ring) {
    for (int i = get_local_id(0); i < ZEROS / 16; i += TUNE_WG)
        tile_store8((__local ushort *)(ring.zeros + i * 16), 0);
#if HEAD_DIM % 16
    for (int i = get_local_id(0); i < TUNE_STAGES * TUNE_KEYS; i += TUNE_WG)
        tile_store8(
            (__local ushort *)(ring.keys + i / TUNE_KEYS * K_STAGE + panel_at(TILE_PANEL, i % TUNE_KEYS, HEAD_DIM / 8)),
            0);
#endif
    fence_async();
}

#endif
