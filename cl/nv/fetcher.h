/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The warp of a work-group that fills its stream (nv/stream.h).
 */
#ifndef NV_FETCHER_H
#define NV_FETCHER_H

#include "nv/stream.h"

typedef struct fetcher {
    const stream_source *from;
    stream_shared m;
    bool has_maps;   /* those of the pool; otherwise rows are copied */
    stream_place at; /* the stage to fill next */
    /* The problem whose keys come next, the work-group's round-th. */
    attn_problem p;
    int round;
    int begin; /* the first key that is there */
    int tiles; /* that are left, */
    int first; /* and the next one's first key */
    int block; /* the lane's of the 32 boxes that were looked up last, -1: none; */
    int box;   /* which of them is the next tile's first */
    /* What is known of the problem behind it. */
    int known;        /* 0 nothing; 1 its number; 2 its work item, too; 3 all */
    int number;       /* of lane 0 */
    int work, record; /* a lane's int of them */
} fetcher;

/* ---- problems ---- */

static bool next_is_left(const fetcher *f, int number) {
    return number < (f->from->sections.y - f->from->sections.x) / WORK_INTS * NUM_KV_HEADS;
}

/*
 * Begins to load what comes next of the next problem: its number, its work item, its record. Each needs the one before.
 * Work-groups take problems as they are done with others: some get more of the memory than others.
 */
static void fetcher_look_ahead(fetcher *f) {
    const int lane = get_local_id(0) % 32;
    const stream_source *from = f->from;
    const int number = as_int(from_lane(as_float(f->number), 0));
    if (f->known == 0) {
        if (lane == 0)
            f->number = f->round < 0 ? (int)get_group_id(0) : (int)get_num_groups(0) + atomic_inc(from->counters);
    } else if (f->known == 1 && next_is_left(f, number)) {
        f->work = from->plan[from->sections.x + number / NUM_KV_HEADS * WORK_INTS + lane % WORK_INTS];
    } else if (f->known == 2 && next_is_left(f, number)) {
        const int seq = work_seq(from->plan, as_int(from_lane(as_float(f->work), 0)));
        f->record = from->plan[from->sections.y + (long)seq * RECORD_INTS + min(lane, RECORD_INTS - 1)];
    }
    f->known++;
}

/* Loads the blocks of the 32 boxes from the next tile on. */
static void fetcher_find_blocks(fetcher *f) {
    const int first = f->first + (int)get_local_id(0) % 32 * BOX_TOKENS, position = max(first, f->begin);
    f->block = position < min(first + BOX_TOKENS, f->p.key_end) ? f->p.table[position / BLOCK_SIZE] : -1;
    f->box = 0;
}

/* Goes on to the next problem, and hands it to the workers; whether there is one. */
static bool fetcher_next(fetcher *f) {
    const int lane = get_local_id(0) % 32;
    while (f->known < 3)
        fetcher_look_ahead(f);
    const int number = as_int(from_lane(as_float(f->number), 0));
    const bool is_left = next_is_left(f, number);
    f->known = 0;
    f->round++;
    __local int *place = f->m.problems + f->round % STREAM_PROBLEMS * PROBLEM_INTS;
    if (lane == 0)
        place[0] = is_left ? number : -1;
    if (lane < WORK_INTS)
        place[1 + lane] = f->work;
    if (lane < RECORD_INTS)
        place[1 + WORK_INTS + lane] = f->record;
    warp_barrier();
    if (is_left) {
        stream_take(&f->p, f->from, f->m, f->round);
        const tile_range range = tile_range_of(&f->p);
        f->begin = range.begin;
        f->first = range.start;
        f->tiles = max(range.num_tiles, 1);
        fetcher_find_blocks(f);
        const int row_tiles = f->p.num_rows - f->p.first_row <= 8 ? 1 : ROW_TILES;
        tile_load_q(&f->p, f->from->q, f->from->q_layout, stream_q(f->m, f->round), row_tiles * 8, lane, 32);
    }
    const uint there = stream_barrier(f->m, THERE + f->round % STREAM_PROBLEMS);
    copy_arrive(there);
    warp_barrier();
    if (lane == 0)
        mbarrier_arrive(there);
    return is_left;
}

/* ---- keys ---- */

/* Begins to fetch the next tile's boxes, one a lane at a time. */
static void fetcher_fetch_boxes(const fetcher *f) {
    const int lane = get_local_id(0) % 32, shift = f->p.keys.k.segment_shift;
    const uint filled = stream_barrier(f->m, FILLED + f->at.stage);
    const uint stage = local_address(f->m.stages + f->at.stage * STREAM_STAGE);
    const uint there = lanes_with(f->block >= 0 && lane >= f->box && lane < f->box + TILE_BOXES);
    if (lane == 0)
        mbarrier_arrive_expecting(filled, popcount(there) * FETCHED_BYTES);
    warp_barrier();
#pragma unroll
    for (int i = 0; i < TILE_BOXES * (K_FETCHES + V_FETCHES); i += 32) {
        const int box = (i + lane) % TILE_BOXES, part = (i + lane) / TILE_BOXES;
        const int block = as_int(from_lane(as_float(f->block), f->box + box));
        const bool of_keys = part < K_FETCHES;
        const int panel = of_keys ? part : part - K_FETCHES;
        if (part >= K_FETCHES + V_FETCHES || block < 0)
            continue;
        const uint to = stage + box / WARP_BOXES * WARP_STAGE + (of_keys ? 0 : V_IN_STREAM) +
                        box % WARP_BOXES * (of_keys ? K_BOX : V_BOX) + panel * PANEL_BYTES;
        const __global uchar *map = f->from->maps + address_segment(block, shift) * MAPS_RECORD +
                                    (ROW_BOXES ? ROW_MAPS : COLUMN_MAPS) + (of_keys ? 0 : MAP_BYTES);
        const int token = (f->first + box * BOX_TOKENS) % BLOCK_SIZE, own = block & ((1 << shift) - 1);
#if ROW_BOXES
        box_stream5(to, map, (int4)(0, token, 0, f->p.kv_head), own, filled);
#else
        box_stream(to, map, (int4)(panel * BOX_COLUMNS, token, f->p.kv_head, own), filled);
#endif
    }
}

/* Begins to copy the rows of K or V, piece by piece, of the keys that there are. What boxes fill up with zeros is filled up
   as far as it is used. */
static void fetcher_copy_rows(const fetcher *f, bool of_keys) {
    const int used = of_keys ? K_STEPS * 2 : V_STEPS * 2, pieces = (of_keys ? HEAD_DIM : HEAD_DIM_V) / PIECE;
    const bool aligned = keys_are_aligned(&f->p);
    __local uchar *stage = f->m.stages + f->at.stage * STREAM_STAGE + (of_keys ? 0 : V_IN_STREAM);
#pragma unroll 4
    for (int i = get_local_id(0) % 32; i < TUNE_KEYS * used; i += 32) {
        const int key = i / used, piece = i % used, position = f->first + key;
        const int block = as_int(from_lane(as_float(f->block), f->box + key / BOX_TOKENS));
        __local ushort *to = (__local ushort *)(stage + key / WARP_KEYS * WARP_STAGE +
                                                boxed_place(of_keys ? K_BOX : V_BOX, key % WARP_KEYS, piece));
        if (piece >= pieces) {
            tile_store8(to, 0);
        } else if (block >= 0 && position >= f->begin && position < f->p.key_end) {
            const pool *side = of_keys ? &f->p.keys.k : &f->p.keys.v;
            const pool_row row = pool_row_at(side, block, position % BLOCK_SIZE, f->p.kv_head);
            const __global ushort *from = (const __global ushort *)row.base + row.at + piece * PIECE;
            if (aligned)
                copy_begin16(local_address(to), from, true);
            else
                *(__local ushort8 *)to = vload8(0, from);
        }
    }
}

static void fetcher_copy(const fetcher *f) {
    const uint filled = stream_barrier(f->m, FILLED + f->at.stage);
    fetcher_copy_rows(f, true);
#if !VALUES_IN_KEYS
    fetcher_copy_rows(f, false);
#endif
    copy_arrive(filled);
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

/* ---- all ---- */

/* Fetches for all problems of the work-group. p: of the first the tensors. Begun before a barrier of all, so that what the
   plan says is on its way meanwhile. */
static void fetcher_begin(fetcher *f, const stream_source *from, const attn_problem *p, stream_shared m) {
    const int lane = get_local_id(0) % 32;
    /* Its fence would wait for what is loaded. */
    stream_init(m);
    f->from = from;
    f->m = m;
    f->p = *p;
    f->at = (stream_place){0, 0};
    f->round = -1;
    f->known = 0;
    f->number = f->work = f->record = 0;
    fetcher_look_ahead(f);
    fetcher_look_ahead(f);
    if (lane < 2 * NUM_SEGMENTS)
        map_acquire(from->maps + lane / 2 * MAPS_RECORD + (ROW_BOXES ? ROW_MAPS : COLUMN_MAPS) + lane % 2 * MAP_BYTES);
}

static void fetcher_run(fetcher *f) {
    const int lane = get_local_id(0) % 32;
    bool is_left = fetcher_next(f);
    f->has_maps = maps_hold(f->from->maps, &f->p.keys.k, &f->p.keys.v);
    for (; is_left; is_left = fetcher_next(f))
        do {
            fetcher_fetch(f);
            /* No sooner than that it is known in time: others may be done before. */
            if (f->tiles < 3 && f->known < 3)
                fetcher_look_ahead(f);
        } while (f->tiles > 0);
    /* The last work-group leaves the counters as they were. */
    if (lane == 0 && increment_released(f->from->counters + 1) == (int)get_num_groups(0) - 1)
        f->from->counters[0] = f->from->counters[1] = 0;
}

#endif
