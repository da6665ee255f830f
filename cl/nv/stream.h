/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys and values of all problems that a work-group takes, one behind the other, in local memory: TUNE_STAGES tiles are
 * there or on their way, those of the next problem while one ends. The work-group's warps, in their order:
 *
 *     workers   divide a tile's keys, and leave a problem's results in the place of the last; or are warpgroups, that
 *               divide the columns of the results, store these, and load the rows of q (BY_WARPGROUPS)
 *     dealer    deals problems out, and loads their rows of q
 *     fetchers  bring the keys and values by boxes of a tensor map, each so many of a tile: one takes 100 cycles to begin
 *     storer    takes results to global memory, but those of long rows, and tells the other parts of the sequence
 *               (nv/merge.h)
 */
#ifndef NV_STREAM_H
#define NV_STREAM_H

#define FETCHERS 2
#define HELPERS ((2 + FETCHERS) * 32)
#include "nv/workers.h"

#define BY_WARPGROUPS (TUNE_ROWS == 64)

#define WORK_WARPS (WORKERS / 32)
/* Those that divide the keys. */
#define KEY_WARPS (BY_WARPGROUPS ? 1 : WORK_WARPS)
#define WARP_KEYS (TUNE_KEYS / KEY_WARPS)
#include "nv/boxed_rows.h"
#if WITH_SPLITS
#include "nv/merge.h"
#endif
#include "nv/tiles.h"
#if BY_WARPGROUPS
#include "nv/q_panels.h"
#else
#define ROW_TILES (TUNE_ROWS / 8)
#include "nv/results.h"
#endif

#if WARP_KEYS % 16 || BLOCK_SIZE % BOX_TOKENS
#error a warp's keys are whole boxes
#endif

/* A stage: of each worker's warp the boxes of its keys, then those of their values; or its results. In bytes, of a warp a
   multiple of 1024, where the orders of a panel's rows begin again. */
#define WARP_BOXES (WARP_KEYS / BOX_TOKENS)
#define V_IN_STREAM (VALUES_IN_KEYS ? 0 : WARP_BOXES * K_BOX)
#if BY_WARPGROUPS
#define WARP_STAGE (K_PANELS * PANEL_BYTES)
#else
#define WARP_FILLED (V_IN_STREAM + WARP_BOXES * V_BOX)
#define WARP_STAGE (((WARP_FILLED > RESULT_BYTES ? WARP_FILLED : RESULT_BYTES) + 1023) / 1024 * 1024)
#endif
#define STREAM_STAGE (KEY_WARPS * WARP_STAGE)
#define STREAM_BYTES (TUNE_STAGES * STREAM_STAGE)

/* Scales of a stage's rows, of keys, then of values. */
#define VALUE_SCALES (VALUES_IN_KEYS ? 0 : TUNE_KEYS)
#define STAGE_SCALES (VALUE_SCALES + TUNE_KEYS)

/* Boxes of a tile: of its keys, each of which is fetched whole or panel by panel, and the panels that are fetched at
   once. */
#define TILE_BOXES (TUNE_KEYS / BOX_TOKENS)
#define K_FETCHES (WHOLE_BOXES ? 1 : K_PANELS)
#define V_FETCHES (VALUES_IN_KEYS ? 0 : WHOLE_BOXES ? 1 : V_PANELS)
#define K_AT_ONCE (WHOLE_BOXES ? K_PANELS : 1)
#define V_AT_ONCE (WHOLE_BOXES ? V_PANELS : 1)
#define TILE_FETCHES (TILE_BOXES * (K_FETCHES + V_FETCHES))
#if 32 % TILE_BOXES
#error a warp looks up the blocks of whole tiles
#endif

/* Problems that someone may need: the one that is worked on and two before it, those whose keys are there or on their way,
   and the next. A problem is its number, below 0 when none is left, and the ints of its work item and its record. The next
   is dealt when most keys of the one before are on their way: no sooner, since other work-groups may be done before. */
#define STREAM_PROBLEMS (TUNE_STAGES + 4)
#define PROBLEM_INTS (1 + WORK_INTS + RECORD_INTS)
/* Rows of q that are there, and in bytes what lies behind the stages: these, and for warpgroups the weights of a
   tile, one panel. */
#if BY_WARPGROUPS
#define STREAM_Q 1 /* for more there is no room */
#define WEIGHT_BYTES (TUNE_ROWS * PANEL_ROW)
#define STREAM_MEMORY (STREAM_BYTES + Q_BYTES + WEIGHT_BYTES)
#else
#define STREAM_Q (TUNE_STAGES + 2) /* of those before q is not needed any more */
#define STREAM_MEMORY (STREAM_BYTES + STREAM_Q * Q_ELEMENTS * 2)
#endif

/* Barriers: a stage is filled; what is in it is not needed any more; a problem is dealt; its rows of q are there; its results
   are, and the other parts are told that these are stored, both of problems by turns; the next problem is wanted. */
enum {
    FILLED = 0,
    FREED = FILLED + TUNE_STAGES,
    DEALT = FREED + TUNE_STAGES,
    Q_THERE = DEALT + STREAM_PROBLEMS,
    DONE = Q_THERE + STREAM_Q,
    TOLD = DONE + 2,
    WANTED = TOLD + 2,
    STREAM_BARRIERS = WANTED + 1
};

/* What all warps share. */
typedef struct stream_shared {
    __local uchar *stages; /* [TUNE_STAGES][KEY_WARPS][WARP_STAGE] */
#if ROW_SCALED
    __local float *scales; /* [TUNE_STAGES][STAGE_SCALES] */
#endif
    __local ushort *q;       /* [STREAM_Q][Q_ELEMENTS], or panels */
    __local int *problems;   /* [STREAM_PROBLEMS][PROBLEM_INTS] */
    __local ulong *barriers; /* [STREAM_BARRIERS] */
#if WITH_SPLITS
    __local float *merge; /* [2][MERGE_FLOATS], of problems by turns */
#endif
} stream_shared;

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

/* A stage, and the parity of its phase. */
typedef struct stream_place {
    int stage;
    uint parity;
} stream_place;

static void stream_advance(stream_place *at) {
    at->stage++;
    if (at->stage == TUNE_STAGES) {
        at->stage = 0;
        at->parity ^= 1;
    }
}

static uint stream_barrier(stream_shared m, int which) {
    return local_address(m.barriers + which);
}
/* Of a barrier that so many problems have by turns. */
static uint turn_parity(int round, const int turns) {
    return round / turns & 1;
}
#if WITH_SPLITS
static merge_state merge_state_of(stream_shared m, int round) {
    return merge_state_in(m.merge + round % 2 * MERGE_FLOATS);
}
#endif

/* By a warp, before a barrier of all. */
static void stream_init(stream_shared m) {
    for (int i = get_local_id(0) % 32; i < STREAM_BARRIERS; i += 32) {
        const bool by_workers = (i >= FREED && i < DEALT) || (i >= DONE && i < TOLD);
        const bool by_warpgroup = BY_WARPGROUPS && i >= Q_THERE && i < DONE;
        mbarrier_init(stream_barrier(m, i), i < FREED ? FETCHERS : by_workers ? WORK_WARPS : by_warpgroup ? 4 : 1);
    }
    fence_async();
}

/* Waits for the problem of a round; whether there is one. */
static bool stream_wait_problem(stream_shared m, int round) {
    mbarrier_wait(stream_barrier(m, DEALT + round % STREAM_PROBLEMS), turn_parity(round, STREAM_PROBLEMS));
    return m.problems[round % STREAM_PROBLEMS * PROBLEM_INTS] >= 0;
}

/* Takes it. */
static void stream_take(attn_problem *p, const stream_source *from, stream_shared m, int round) {
    const __local int *place = m.problems + round % STREAM_PROBLEMS * PROBLEM_INTS;
    int ints[PROBLEM_INTS];
#pragma unroll
    for (int i = 0; i < PROBLEM_INTS; i++)
        ints[i] = place[i];
    problem_from_ints(p, from->plan, from->sections, ints + 1, ints + 1 + WORK_INTS);
    p->kv_head = ints[0] % NUM_KV_HEADS;
}

#if !BY_WARPGROUPS
static __local ushort *stream_q(stream_shared m, int round) {
    return m.q + round % STREAM_Q * Q_ELEMENTS;
}
#endif

#endif
