/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys and values of all problems that a work-group takes, one behind the other, as a warp streams them through local
 * memory: of each tile of a problem its own WARP_KEYS keys. It has TUNE_STAGES stages of its own, which it fills by boxes of
 * a tensor map and waits for alone; so those of the next problem are on their way while one ends. What else a problem is,
 * and its rows of q, go ahead of its keys through local memory of all.
 */
#ifndef NV_STREAM_H
#define NV_STREAM_H

#define PANEL_ROWS WARP_KEYS
#include "nv/attn_warp.h"
#include "nv/pool_maps.h"
#include "nv/results.h"

#if WARP_KEYS % BOX_TOKENS || BLOCK_SIZE % BOX_TOKENS || CODES
#error a warp's keys are whole boxes of 16-bit elements
#endif

/* A stage: panels of K, then of V; or a warp's results. In bytes, a multiple of 1024, where the orders of a panel's rows
   begin again. */
#define V_IN_STREAM (VALUES_IN_KEYS ? 0 : K_PANELS * PANEL_BYTES)
#define STREAM_FILLED (V_IN_STREAM + V_PANELS * PANEL_BYTES)
#define STREAM_STAGE (((STREAM_FILLED > RESULT_BYTES ? STREAM_FILLED : RESULT_BYTES) + 1023) / 1024 * 1024)
#define STREAM_BYTES (KEY_WARPS * TUNE_STAGES * STREAM_STAGE)

/* Boxes of a tile of a warp: those of its keys, each of one panel or of all. */
#define KEY_BOXES (WARP_KEYS / BOX_TOKENS)
#define WHOLE_ROWS (ROW_BOXES && KEY_BOXES == 1)
#define K_BOXES (WHOLE_ROWS ? 1 : K_PANELS)
#define V_BOXES (VALUES_IN_KEYS ? 0 : WHOLE_ROWS ? 1 : V_PANELS)
#define STREAM_BOXES (KEY_BOXES * (K_BOXES + V_BOXES))
#if STREAM_BOXES > 32
#error a lane fetches one box
#endif

/* Problems that some warp may need: that which is worked on and two before it, those whose keys are on their way, and one
   ahead. A problem is its number, below 0 when none is left, and the ints of its work item and its record. */
#define STREAM_PROBLEMS (TUNE_STAGES + 4)
#define PROBLEM_INTS (1 + WORK_INTS + RECORD_INTS)

/* What a work-group's warps share. */
typedef struct stream_shared {
    __local uchar *stages;   /* [KEY_WARPS][TUNE_STAGES][STREAM_STAGE] */
    __local ushort *q;       /* [TUNE_STAGES][Q_ELEMENTS] */
    __local int *problems;   /* [STREAM_PROBLEMS][PROBLEM_INTS] */
    __local ulong *barriers; /* [KEY_WARPS][TUNE_STAGES]: a stage is filled; [STREAM_PROBLEMS]: a problem is there */
} stream_shared;
#define STREAM_BARRIERS (KEY_WARPS * TUNE_STAGES + STREAM_PROBLEMS)

/* A place in a warp's stages, and the parity of its phase there. */
typedef struct stream_place {
    int stage;
    uint parity;
} stream_place;

/* What kernels tell the stream of their launch. */
typedef struct stream_source {
    const __global int *plan;
    int2 sections; /* as of problem_from_plan */
    const __global STORAGE(Q) * q;
    long4 q_layout;
    __global int *counters;     /* problems taken besides the first of each work-group, and work-groups that are done: 0
                                   before and after the launch */
    const __global uchar *maps; /* records of the layer's pool */
} stream_source;

typedef struct key_stream {
    stream_source from;
    stream_shared m;
    bool has_maps; /* those of the pool; otherwise rows are copied */
    /* The problem whose keys come next, the work-group's round-th. */
    bool is_left; /* there is one */
    int round;
    attn_problem p;
    int begin;     /* the first key that is there */
    int first;     /* the warp's first key of the tile that comes next, */
    int tiles;     /* one of so many that are left, */
    bool is_first; /* the problem's first one */
    int block;     /* of the lane's box of these, -1: none */
    /* What the first warp, which hands problems out, knows of the next: the `handed`-th. */
    int handed;
    int known;        /* 0 nothing; 1 its number; 2 its work item, too; 3 all */
    int number;       /* of lane 0 */
    int work, record; /* a lane's int of them */
} key_stream;

static __local uchar *stream_stage(const key_stream *s, int stage) {
    return s->m.stages + (get_local_id(0) / 32 * TUNE_STAGES + stage) * STREAM_STAGE;
}
static uint stream_barrier(const key_stream *s, int stage) {
    return local_address(s->m.barriers + get_local_id(0) / 32 * TUNE_STAGES + stage);
}

/* Loads the block of the lane's box of the next tile's keys. */
static void stream_find_block(key_stream *s) {
    const int first = s->first + (int)get_local_id(0) % KEY_BOXES * BOX_TOKENS, position = max(first, s->begin);
    s->block = position < min(first + BOX_TOKENS, s->p.key_end) ? s->p.table[position / BLOCK_SIZE] : -1;
}

/* ---- problems ---- */

static uint problem_barrier(const key_stream *s, int round) {
    return local_address(s->m.barriers + KEY_WARPS * TUNE_STAGES + round % STREAM_PROBLEMS);
}

/*
 * The first warp finds the next problem that is left and hands it out. A step at a time, each of which needs what the one
 * before has begun to load, so that nobody waits. Work-groups take problems as they are done with others: some get more of
 * the memory than others.
 */
static void stream_hand_out(key_stream *s) {
    const int lane = get_local_id(0) % 32;
    const int number = as_int(from_lane(as_float(s->number), 0));
    const int count = (s->from.sections.y - s->from.sections.x) / WORK_INTS * NUM_KV_HEADS;
    const bool is_left = number < count;
    if (s->known == 0) {
        if (lane == 0)
            s->number = s->handed == 0 ? (int)get_group_id(0) : (int)get_num_groups(0) + atomic_inc(s->from.counters);
    } else if (s->known == 1 && is_left) {
        s->work = s->from.plan[s->from.sections.x + number / NUM_KV_HEADS * WORK_INTS + lane % WORK_INTS];
    } else if (s->known == 2 && is_left) {
        const int seq = work_seq(s->from.plan, as_int(from_lane(as_float(s->work), 0)));
        s->record = s->from.plan[s->from.sections.y + (long)seq * RECORD_INTS + min(lane, RECORD_INTS - 1)];
    } else if (s->known == 3) {
        __local int *to = s->m.problems + s->handed % STREAM_PROBLEMS * PROBLEM_INTS;
        if (lane == 0)
            to[0] = is_left ? number : -1;
        if (lane < WORK_INTS)
            to[1 + lane] = s->work;
        if (lane < RECORD_INTS)
            to[1 + WORK_INTS + lane] = s->record;
        warp_barrier();
        if (lane == 0)
            mbarrier_arrive(problem_barrier(s, s->handed));
        s->handed++;
        /* The last work-group leaves the counters as they were. */
        if (!is_left && lane == 0) {
            fence_device();
            if (atomic_inc(s->from.counters + 1) == (int)get_num_groups(0) - 1)
                s->from.counters[0] = s->from.counters[1] = 0;
        }
    }
    s->known = s->known == 3 ? 0 : s->known + 1;
}

/* Hands out one problem more than the stream has taken, while there are any. */
static void stream_look_ahead(key_stream *s) {
    if (get_local_id(0) < 32 && s->is_left && s->handed <= s->round + 1)
        stream_hand_out(s);
}

/* Whether there is a problem of a round that is handed out. */
static bool stream_has(const key_stream *s, int round) {
    return s->m.problems[round % STREAM_PROBLEMS * PROBLEM_INTS] >= 0;
}

/* Takes it. */
static void stream_take(attn_problem *p, const key_stream *s, int round) {
    const __local int *from = s->m.problems + round % STREAM_PROBLEMS * PROBLEM_INTS;
    int ints[PROBLEM_INTS];
#pragma unroll
    for (int i = 0; i < PROBLEM_INTS; i++)
        ints[i] = from[i];
    problem_from_ints(p, s->from.plan, s->from.sections, ints + 1, ints + 1 + WORK_INTS);
    p->kv_head = ints[0] % NUM_KV_HEADS;
}

/* Goes on to the work-group's next problem, if there is one. */
static void stream_next(key_stream *s) {
    s->round++;
    if (get_local_id(0) < 32)
        while (s->handed <= s->round)
            stream_hand_out(s);
    mbarrier_wait(problem_barrier(s, s->round), s->round / STREAM_PROBLEMS & 1);
    s->is_left = stream_has(s, s->round);
    if (!s->is_left)
        return;
    stream_take(&s->p, s, s->round);
    const tile_range range = tile_range_of(&s->p);
    s->begin = range.begin;
    s->first = range.start + get_local_id(0) / 32 * WARP_KEYS;
    s->tiles = max(range.num_tiles, 1);
    s->is_first = true;
    stream_find_block(s);
}

/* The memory of a segment that a map is of and that the pool has; a lane looks at one. */
static void map_addresses(const stream_source *from, const attn_problem *tensors, ulong2 *of_maps, ulong2 *of_pool) {
    const int segment = get_local_id(0) % 32;
    *of_maps = *of_pool = 0;
    if (segment < NUM_SEGMENTS) {
        *of_maps = *(const __global ulong2 *)(from->maps + segment * MAPS_RECORD + MAPS_ADDRESSES);
        *of_pool = (ulong2)(segment_address(&tensors->keys.k, segment), segment_address(&tensors->keys.v, segment));
    }
}

static void acquire_maps(const stream_source *from) {
    const int lane = get_local_id(0) % 32;
    if (lane < 2 * NUM_SEGMENTS)
        map_acquire(from->maps + lane / 2 * MAPS_RECORD + (WHOLE_ROWS ? ROW_MAPS : COLUMN_MAPS) + lane % 2 * MAP_BYTES);
}

/* By all. What has to be waited for is begun before the first problem is, whose plan the first warp waits for. */
static void stream_begin(key_stream *s, stream_source from, const attn_problem *tensors, stream_shared m) {
    ulong2 of_maps, of_pool;
    s->from = from;
    s->m = m;
    s->p = *tensors;
    s->round = -1;
    s->handed = 0;
    s->known = 0;
    s->number = s->work = s->record = 0;
    map_addresses(&from, tensors, &of_maps, &of_pool);
    if (get_local_id(0) < STREAM_BARRIERS)
        mbarrier_init(local_address(m.barriers + get_local_id(0)), 1);
    fence_async();
    barrier(CLK_LOCAL_MEM_FENCE);
    if (get_local_id(0) >= 32)
        acquire_maps(&from);
    stream_next(s);
    if (get_local_id(0) < 32)
        acquire_maps(&from);
    s->has_maps = !any_lane(any(of_maps != of_pool) || any((of_pool & 15) != 0));
}

/* ---- keys ---- */

/* Begins to fetch the tile's boxes, one a lane. */
static void stream_fetch_boxes(const key_stream *s, int stage) {
    const int lane = get_local_id(0) % 32, box = lane % KEY_BOXES;
    const bool of_keys = lane / KEY_BOXES < K_BOXES, fetched = lane < STREAM_BOXES && s->block >= 0;
    const int panel = lane / KEY_BOXES - (of_keys ? 0 : K_BOXES), shift = s->p.keys.k.segment_shift;
    const uint barrier_at = stream_barrier(s, stage);
    const uint to = local_address(stream_stage(s, stage)) + (of_keys ? 0 : V_IN_STREAM) + panel * PANEL_BYTES +
                    box * BOX_TOKENS * 128;
    const __global uchar *map = s->from.maps + address_segment(s->block, shift) * MAPS_RECORD +
                                (WHOLE_ROWS ? ROW_MAPS : COLUMN_MAPS) + (of_keys ? 0 : MAP_BYTES);
    const int token = (s->first + box * BOX_TOKENS) % BLOCK_SIZE, block = s->block & ((1 << shift) - 1);
#if WHOLE_ROWS
    const uint bytes = s->block < 0 ? 0 : PANEL_BYTES * (K_PANELS + (VALUES_IN_KEYS ? 0 : V_PANELS));
#else
    const uint bytes = popcount(lanes_with(fetched)) * BOX_TOKENS * 128;
#endif
    if (lane == 0)
        mbarrier_arrive_expecting(barrier_at, bytes);
    warp_barrier();
    if (!fetched)
        return;
#if WHOLE_ROWS
    box_begin5(to, map, (int4)(0, token, 0, s->p.kv_head), block, barrier_at);
#else
    box_begin(to, map, (int4)(panel * BOX_COLUMNS, token, s->p.kv_head, block), barrier_at);
#endif
}

/* Begins to copy the rows of K or V, piece by piece, of the keys that there are. What boxes fill up with zeros is filled up
   as far as it is used. */
static void stream_copy_rows(const key_stream *s, bool of_keys, __local uchar *to) {
    const int used = of_keys ? K_STEPS * 2 : V_STEPS * 2, pieces = (of_keys ? HEAD_DIM : HEAD_DIM_V) / PIECE;
    const bool aligned = keys_are_aligned(&s->p);
#pragma unroll 1
    for (int i = get_local_id(0) % 32; i < WARP_KEYS * used; i += 32) {
        const int key = i / used, piece = i % used, position = s->first + key;
        __local ushort *own = (__local ushort *)(to + piece_place(key, piece));
        if (piece >= pieces) {
            tile_store8(own, 0);
        } else if (key_exists(&s->p, s->begin, position)) {
            const keys_row row = of_keys ? key_row(&s->p, position) : value_row(&s->p, position);
            const __global ushort *from = (const __global ushort *)row.base + row.at + piece * PIECE;
            if (aligned)
                copy_begin16(local_address(own), from, true);
            else
                *(__local ushort8 *)own = vload8(0, from);
        }
    }
}

static void stream_copy(const key_stream *s, int stage) {
    __local uchar *to = stream_stage(s, stage);
    stream_copy_rows(s, true, to);
#if !VALUES_IN_KEYS
    stream_copy_rows(s, false, to + V_IN_STREAM);
#endif
}

/* Begins to load the warp's keys of the next tile to a stage, and goes on to the tile behind it. Before a problem's first
   keys its warps load its q. */
static void stream_fetch(key_stream *s, int stage) {
    if (s->is_left) {
        if (s->is_first)
            tile_load_q(&s->p, s->from.q, s->from.q_layout, s->m.q + s->round % TUNE_STAGES * Q_ELEMENTS);
        s->is_first = false;
        if (s->has_maps)
            stream_fetch_boxes(s, stage);
        else
            stream_copy(s, stage);
        s->first += TUNE_KEYS;
        s->tiles--;
        if (s->tiles > 0) {
            stream_find_block(s);
            stream_look_ahead(s);
        } else {
            stream_next(s);
        }
    }
    copy_commit();
}

/* Waits until the stage at a place is filled. */
static void stream_wait(const key_stream *s, stream_place at) {
    if (s->has_maps)
        mbarrier_wait(stream_barrier(s, at.stage), at.parity);
    COPY_WAIT(TUNE_STAGES - 2); /* of q, and of rows that are copied */
    warp_barrier();
}

/*
 * What a tile needs that is not all old keys of p from `begin` on: new ones, which are not in the pool yet, and zeros for
 * values that are none, since a weight of 0 meets them. first: the warp's first key.
 */
static void stream_patch(const attn_problem *p, int begin, int first, __local uchar *keys, __local uchar *values) {
    const int new_first = WITH_APPEND ? p->new_first : p->k_len;
    for (int i = get_local_id(0) % 32; i < WARP_KEYS * K_VECTORS; i += 32) {
        const int key = i / K_VECTORS, piece = i % K_VECTORS, position = first + key;
        if (position >= new_first && key_exists(p, begin, position))
            tile_store8((__local ushort *)(keys + piece_place(key, piece)), key8(p, position, piece * 8));
    }
    for (int i = get_local_id(0) % 32; i < WARP_KEYS * V_VECTORS; i += 32) {
        const int key = i / V_VECTORS, piece = i % V_VECTORS, position = first + key;
        const bool exists = key_exists(p, begin, position);
        if (!exists || (position >= new_first && !VALUES_IN_KEYS))
            tile_store8((__local ushort *)(values + piece_place(key, piece)),
                        exists ? value8(p, position, piece * 8) : (float8)0);
    }
    fence_async();
    warp_barrier();
}

#endif
