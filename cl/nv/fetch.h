/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the warps that fetch fill the ring of nv/key_ring.h: by copies of 16 bytes, each to its place in the panels; with
 * WITH_MAPS by boxes of a tensor map (nv/pool_maps.h), of which a tile has few.
 */
#ifndef NV_FETCH_H
#define NV_FETCH_H

#include "nv/key_ring.h"
#include "nv/rows.h"
#if WITH_MAPS
#include "nv/pool_maps.h"
#endif

/* A fetching warp. It fetches keys, or values; of every FETCH_TURNS tiles, one. */
typedef struct fetcher {
    int lane;
    bool of_keys;
    int turn;                   /* its next tile, counted from the problem's first */
    __local ulong *rows;        /* [TUNE_KEYS]: where rows of a tile come from */
    const __global uchar *maps; /* records of the layer's pool; 0: rows are copied */
    uint landed;                /* a barrier of its own, for boxes, and the parity of its phase */
    uint landed_parity;
} fetcher;

/* ---- copies ---- */

/* Begins to copy a tile's rows, `vectors` pieces of each. Addresses are read ahead, so many at a time: a copy writes
   local memory, and the compiler keeps every read behind it, one by one. */
#define COPIES(vectors) (TUNE_KEYS * (vectors) / 32)
#define AT_ONCE(copies) ((copies) % 8 == 0 ? 8 : 1 + ((copies) % 2 == 0))
#define COPY_ROWS(to, rows, vectors, lane)                                                                          \
    do {                                                                                                            \
        for (int i = 0; i < COPIES(vectors); i += AT_ONCE(COPIES(vectors))) {                                       \
            ulong from[AT_ONCE(COPIES(vectors))];                                                                   \
            _Pragma("unroll") for (int j = 0; j < AT_ONCE(COPIES(vectors)); j++) from[j] =                          \
                (rows)[((i + j) * 32 + (lane)) / (vectors)];                                                        \
            _Pragma("unroll") for (int j = 0; j < AT_ONCE(COPIES(vectors)); j++) {                                  \
                const int at = (i + j) * 32 + (lane), key = at / (vectors), piece = at % (vectors);                 \
                copy_begin16((to) + panel_at(TILE_PANEL, key, piece), (const __global ushort *)from[j] + piece * 8, \
                             from[j] != 0);                                                                         \
            }                                                                                                       \
        }                                                                                                           \
    } while (0)

/* The same through registers, for rows that are not aligned. first: position of the tile's first key. */
static void copy_unaligned(const attn_problem *p, const fetcher *f, __local uchar *to, int begin, int first) {
    const int vectors = f->of_keys ? K_VECTORS : V_VECTORS;
    for (int i = f->lane; i < TUNE_KEYS * vectors; i += 32) {
        const int key = i / vectors, piece = i % vectors;
        float8 x = 0;
        if (key_exists(p, begin, first + key))
            x = f->of_keys ? key8(p, first + key, piece * 8) : value8(p, first + key, piece * 8);
        tile_store8((__local ushort *)(to + panel_at(TILE_PANEL, key, piece)), x);
    }
}

static void find_rows(const attn_problem *p, const fetcher *f, int begin, int first) {
#pragma unroll
    for (int i = f->lane; i < TUNE_KEYS; i += 32)
        f->rows[i] = find_row(p, f->of_keys, begin, first + i);
}

/* Whether a value of the tile that some row does not see is infinite or NaN. */
static bool find_special(const attn_problem *p, const key_range *range, int first, const __local uchar *values,
                         int lane) {
    if (all_see(p, range, first))
        return false;
    /* Added to a magnitude it reaches the sign's bit where the exponent is the largest. Two elements a word. */
    const uint magnitude = 0x7fff7fff, lowest_exponent = IS_BFLOAT16(KV) ? 0x00800080 : 0x04000400;
    const int to = min(first + TUNE_KEYS, p->key_end);
    const int begin = first < range->full_begin ? first : max(first, range->full_end);
    const int end = to > range->full_end ? to : min(range->full_begin, to);
    uint4 reached = 0;
#pragma unroll 4
    for (int i = lane; i < (end - begin) * V_VECTORS; i += 32) {
        const int key = begin - first + i / V_VECTORS;
        const uint4 x = *(const __local uint4 *)(values + panel_at(TILE_PANEL, key, i % V_VECTORS));
        reached |= (x & magnitude) + lowest_exponent;
    }
    return any_lane(((reached.x | reached.y | reached.z | reached.w) & ~magnitude) != 0);
}

/* What is fetched is there: says so. */
static void publish(const attn_problem *p, const key_range *range, const fetcher *f, key_ring ring, ring_place at,
                    int first) {
    warp_barrier();
    if (!f->of_keys) {
        const bool special = find_special(p, range, first, ring_values(ring, at), f->lane);
        if (f->lane == 0)
            ring.hides_special[at.stage] = special;
    }
    if (f->lane == 0)
        mbarrier_arrive(ring_barrier(ring, f->of_keys ? KEYS_THERE : VALUES_THERE, at));
}

/* Fetches a tile, whose rows are found already, to its place in the ring, and finds those of its next one meanwhile. It
   waits for its copies, so that the fence behind them is its own and not the workers'. */
static void fetch_copies(const attn_problem *p, const key_range *range, const fetcher *f, key_ring ring, ring_place at,
                         int first) {
    __local uchar *to = f->of_keys ? ring_keys(ring, at) : ring_values(ring, at);
    warp_barrier();
    mbarrier_wait(ring_barrier(ring, f->of_keys ? KEYS_DONE : VALUES_DONE, at), at.parity ^ 1);
    if (!keys_are_aligned(p))
        copy_unaligned(p, f, to, range->begin, first);
    else if (f->of_keys)
        COPY_ROWS(local_address(to), f->rows, K_VECTORS, f->lane);
    else
        COPY_ROWS(local_address(to), f->rows, V_VECTORS, f->lane);
    copy_commit();
    warp_barrier();
    find_rows(p, f, range->begin, first + FETCH_TURNS * TUNE_KEYS);
    COPY_WAIT(0);
    fence_async();
    publish(p, range, f, ring, at, first);
}

/* ---- boxes ---- */

#if WITH_MAPS

/* Zeros for values of keys that do not exist: a weight of 0 meets them. */
static void clear_values(const attn_problem *p, int begin, int first, __local uchar *values, int lane) {
    for (int key = lane; key < TUNE_KEYS; key += 32)
        if (!key_exists(p, begin, first + key))
            for (int i = 0; i < V_VECTORS; i++)
                tile_store8((__local ushort *)(values + panel_at(TILE_PANEL, key, i)), 0);
    fence_async();
}

/* Fetches a tile to its place in the ring. Keys that do not exist are not cleared: their scores are not used. */
static void fetch_boxes(const attn_problem *p, const key_range *range, fetcher *f, key_ring ring, ring_place at,
                        int first) {
    /* The tokens of a lane. */
    const int position = first + f->lane * COLUMN_TOKENS;
    const bool fetched = f->lane < TUNE_KEYS / COLUMN_TOKENS && position + COLUMN_TOKENS > range->begin &&
                         position < p->key_end && problem_has(p, position);
    const int block = fetched ? p->table[position / BLOCK_SIZE] : 0;
    const int segment = address_segment(block, p->keys.k.segment_shift);
    const int panels = f->of_keys ? K_PANELS : V_PANELS;
    const uint there = ring_barrier(ring, f->of_keys ? KEYS_THERE : VALUES_THERE, at);
    const bool whole = !WITH_GUARD && first >= range->begin && first + TUNE_KEYS <= p->key_end;
    const bool as_it_is = f->of_keys || (whole && all_see(p, range, first));
    const uint barrier_at = as_it_is ? there : f->landed;
    __local uchar *to = f->of_keys ? ring_keys(ring, at) : ring_values(ring, at);
    const uint bytes = popcount(lanes_with(fetched)) * panels * COLUMN_TOKENS * PANEL_ROW;
    mbarrier_wait(ring_barrier(ring, f->of_keys ? KEYS_DONE : VALUES_DONE, at), at.parity ^ 1);
    if (f->lane == 0) {
        if (as_it_is && !f->of_keys)
            ring.hides_special[at.stage] = false;
        mbarrier_arrive_expecting(barrier_at, bytes);
    }
    warp_barrier();
    if (fetched)
        for (int i = 0; i < panels; i++)
            box_begin(local_address(to) + i * TILE_PANEL + f->lane * COLUMN_TOKENS * PANEL_ROW,
                      f->maps + segment * MAPS_RECORD + (f->of_keys ? 0 : MAP_BYTES),
                      (int4)(i * BOX_COLUMNS, position % BLOCK_SIZE, p->kv_head,
                             block & ((1 << p->keys.k.segment_shift) - 1)),
                      barrier_at);
    if (as_it_is)
        return;
    mbarrier_wait(f->landed, f->landed_parity);
    f->landed_parity ^= 1;
    if (!whole)
        clear_values(p, range->begin, first, to, f->lane);
    publish(p, range, f, ring, at, first);
}

#endif

/* ---- all tiles ---- */

/* What a fetching warp does for a problem, whose first tile is at `at`. */
static void ring_fetch(const attn_problem *p, const key_range *range, fetcher *f, key_ring ring, ring_place at) {
    int t = f->turn;
    at = ring_further(at, t);
    if (f->maps == 0)
        find_rows(p, f, range->begin, range->start + t * TUNE_KEYS);
    for (; t < range->num_tiles; t += FETCH_TURNS) {
        const int first = range->start + t * TUNE_KEYS;
#if WITH_MAPS
        if (f->maps != 0)
            fetch_boxes(p, range, f, ring, at, first);
        else
#endif
            fetch_copies(p, range, f, ring, at, first);
        at = ring_further(at, FETCH_TURNS);
    }
    f->turn = t - range->num_tiles;
}

#endif
