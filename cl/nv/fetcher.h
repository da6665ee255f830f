/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The warps of a work-group that fill its stream (nv/stream.h).
 */
#ifndef NV_FETCHER_H
#define NV_FETCHER_H

#include "nv/stream.h"

typedef struct fetcher {
    const stream_source *from;
    stream_shared m;
    int which;       /* of FETCHERS */
    bool has_maps;   /* those of the pool; otherwise rows are copied */
    stream_place at; /* the stage to fill next */
    /* The problem whose keys come next. */
    attn_problem p;
    int begin; /* the first key that is there */
    int tiles; /* that are left, */
    int first; /* and the next one's first key */
    int block; /* the lane's of the 32 boxes that were looked up last, -1: none; */
    int box;   /* which of them is the next tile's first */
} fetcher;

/* A lane's number among all fetchers: neighbours are in different ones. */
static int fetcher_item(const fetcher *f) {
    return (int)get_local_id(0) % 32 * FETCHERS + f->which;
}

/* Loads the blocks of the 32 boxes from the next tile on. */
static void fetcher_find_blocks(fetcher *f) {
    const int first = f->first + (int)get_local_id(0) % 32 * BOX_TOKENS, position = max(first, f->begin);
    f->block = position < min(first + BOX_TOKENS, f->p.key_end) ? f->p.table[position / BLOCK_SIZE] : -1;
    f->box = 0;
}

#if ROW_SCALED
/* Begins to copy the scales of rows; zeros where there are none. */
static void fetcher_copy_scales(const fetcher *f) {
    __local float *scales = f->m.scales + f->at.stage * STAGE_SCALES;
#pragma unroll 4
    for (int i = fetcher_item(f); i < STAGE_SCALES; i += FETCHERS * 32) {
        const int key = i % TUNE_KEYS, position = f->first + key;
        const int block = as_int(from_lane(as_float(f->block), f->box + key / BOX_TOKENS));
        const bool is_there = block >= 0 && position >= f->begin && position < f->p.key_end;
        const pool *side = i < TUNE_KEYS ? &f->p.keys.k : &f->p.keys.v;
        const pool_row row = pool_row_at(side, is_there ? block : 0, position % BLOCK_SIZE, f->p.kv_head);
        copy_begin4(local_address(scales + i), row.scales, is_there);
    }
}
#endif

/* A box to fetch: which of the tile's, which part of it (of K, then of V), and its block, -1: none. */
typedef struct box_fetch {
    int box, part, block;
} box_fetch;

static box_fetch fetch_of(const fetcher *f, int i) {
    const int box = i % TILE_BOXES, block = as_int(from_lane(as_float(f->block), f->box + box));
    return (box_fetch){box, i / TILE_BOXES, i < TILE_FETCHES ? block : -1};
}

/* Begins to fetch the next tile's boxes, one a lane at a time. */
static void fetcher_fetch_boxes(const fetcher *f) {
    const int shift = f->p.keys.k.segment_shift;
    const uint filled = stream_barrier(f->m, FILLED + f->at.stage);
    const uint stage = local_address(f->m.stages + f->at.stage * STREAM_STAGE);
    uint bytes = 0;
#pragma unroll
    for (int i = 0; i < TILE_FETCHES; i += FETCHERS * 32) {
        const box_fetch own = fetch_of(f, i + fetcher_item(f));
        bytes += popcount(lanes_with(own.block >= 0 && own.part < K_FETCHES)) * (K_AT_ONCE * BOX_PANEL);
#if !VALUES_IN_KEYS
        bytes += popcount(lanes_with(own.block >= 0 && own.part >= K_FETCHES)) * (V_AT_ONCE * BOX_PANEL);
#endif
    }
#if ROW_SCALED
    fetcher_copy_scales(f);
    copy_arrive(filled);
    warp_barrier();
#endif
    if (get_local_id(0) % 32 == 0)
        mbarrier_arrive_expecting(filled, bytes);
    warp_barrier();
#pragma unroll
    for (int i = 0; i < TILE_FETCHES; i += FETCHERS * 32) {
        const box_fetch own = fetch_of(f, i + fetcher_item(f));
        const bool of_keys = own.part < K_FETCHES;
        const int panel = of_keys ? own.part : own.part - K_FETCHES;
        if (own.block < 0)
            continue;
        const uint to = stage + own.box / WARP_BOXES * WARP_STAGE + (of_keys ? 0 : V_IN_STREAM) +
                        own.box % WARP_BOXES * (of_keys ? K_BOX : V_BOX) + panel * PANEL_BYTES;
        const __global uchar *map = f->from->maps + address_segment(own.block, shift) * MAPS_RECORD +
                                    (WHOLE_BOXES ? ROW_MAPS : COLUMN_MAPS) + (of_keys ? 0 : MAP_BYTES);
        const int token = (f->first + own.box * BOX_TOKENS) % BLOCK_SIZE, index = own.block & ((1 << shift) - 1);
#if WHOLE_BOXES
        box_stream5(to, map, (int4)(0, token, 0, f->p.kv_head), index, filled);
#else
        box_stream(to, map, (int4)(panel * BOX_COLUMNS, token, f->p.kv_head, index), filled);
#endif
    }
}

/* Begins to copy the rows of K or V, piece by piece, of the keys that there are. What boxes fill up with zeros is filled up
   as far as it is used. */
static void fetcher_copy_rows(const fetcher *f, bool of_keys) {
    const int used = (of_keys ? K_STEPS : V_STEPS) * 16 / PIECE, pieces = (of_keys ? HEAD_DIM : HEAD_DIM_V) / PIECE;
    const bool aligned = keys_are_aligned(&f->p);
    __local uchar *stage = f->m.stages + f->at.stage * STREAM_STAGE + (of_keys ? 0 : V_IN_STREAM);
#pragma unroll 4
    for (int i = fetcher_item(f); i < TUNE_KEYS * used; i += FETCHERS * 32) {
        const int key = i / used, piece = i % used, position = f->first + key;
        const int block = as_int(from_lane(as_float(f->block), f->box + key / BOX_TOKENS));
        __local uchar *to =
            stage + key / WARP_KEYS * WARP_STAGE + boxed_place(of_keys ? K_BOX : V_BOX, key % WARP_KEYS, piece);
        if (piece >= pieces) {
            *(__local uint4 *)to = 0;
        } else if (block >= 0 && position >= f->begin && position < f->p.key_end) {
            const pool *side = of_keys ? &f->p.keys.k : &f->p.keys.v;
            const pool_row row = pool_row_at(side, block, position % BLOCK_SIZE, f->p.kv_head);
            const __global STORAGE(KV) *from = row.base + row.at + piece * PIECE;
            if (aligned)
                copy_begin16(local_address(to), from, true);
            else
                *(__local uchar16 *)to = vload16(0, (const __global uchar *)from);
        }
    }
}

static void fetcher_copy(const fetcher *f) {
    const uint filled = stream_barrier(f->m, FILLED + f->at.stage);
    fetcher_copy_rows(f, true);
#if !VALUES_IN_KEYS
    fetcher_copy_rows(f, false);
#endif
#if ROW_SCALED
    fetcher_copy_scales(f);
#endif
#if BY_WARPGROUPS
    /* Their products see what a fence is behind. */
    copy_commit();
    COPY_WAIT(0);
    fence_async();
#else
    copy_arrive(filled);
#endif
    warp_barrier();
    if (get_local_id(0) % 32 == 0)
        mbarrier_arrive(filled);
}

/* Fills the next stage, when it is free, with the next tile. */
static void fetcher_fetch(fetcher *f) {
    if (f->box == 32)
        fetcher_find_blocks(f);
    mbarrier_wait(stream_barrier(f->m, FREED + f->at.stage), f->at.parity ^ 1);
    if (f->has_maps)
        fetcher_fetch_boxes(f);
    else
        fetcher_copy(f);
    stream_advance(&f->at);
    f->first += TUNE_KEYS;
    f->box += TILE_BOXES;
    f->tiles--;
}

/* Fetches for all problems of the work-group. p: of them the tensors. Begun before a barrier of all. */
static void fetcher_begin(fetcher *f, const stream_source *from, const attn_problem *p, stream_shared m, int which) {
    const int lane = get_local_id(0) % 32;
    f->from = from;
    f->m = m;
    f->which = which;
    f->p = *p;
    f->at = (stream_place){0, 0};
    if (lane < 2 * NUM_SEGMENTS)
        map_acquire(from->maps + lane / 2 * MAPS_RECORD + (WHOLE_BOXES ? ROW_MAPS : COLUMN_MAPS) +
                    lane % 2 * MAP_BYTES);
    f->has_maps = maps_hold(from->maps, &p->keys.k, &p->keys.v);
}

static void fetcher_run(fetcher *f) {
    const bool tells = f->which == 0 && get_local_id(0) % 32 == 0;
    for (int round = 0; stream_wait_problem(f->m, round); round++) {
        stream_take(&f->p, f->from, f->m, round);
        const tile_range range = tile_range_of(&f->p);
        f->begin = range.begin;
        f->first = range.start;
        f->tiles = max(range.num_tiles, 1);
        fetcher_find_blocks(f);
        const int wanted = min(f->tiles, 2);
        do {
            if (tells && f->tiles == wanted)
                mbarrier_arrive(stream_barrier(f->m, WANTED));
            fetcher_fetch(f);
        } while (f->tiles > 0);
    }
}

#endif
