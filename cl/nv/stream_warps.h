/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The workers of a stream as warps that divide a tile's keys, and wait for no other one. When all have ended a problem
 * another merges and stores their results.
 */
#ifndef NV_STREAM_WARPS_H
#define NV_STREAM_WARPS_H

#include "nv/attn_keys.h"
#include "nv/stream_patch.h"

/* [2] of results_memory, of problems by turns: the next may end before all have read it. */
#define STREAM_SUMS (2 * KEY_WARPS * TUNE_ROWS * 2)

typedef struct stream_memory {
    stream_shared shared;
    __local float *sums; /* [STREAM_SUMS] */
} stream_memory;

/* Whether the workers store a problem's results: long rows would keep the storer longer than the next keys take. */
#define WORKERS_STORE (HEAD_DIM_V > 256)

/* The results of the round-th problem, whose last keys were in a stage. */
static results_memory stream_results(stream_memory m, int round, int stage) {
    return (results_memory){(__local float *)(m.shared.stages + stage * STREAM_STAGE), WARP_STAGE / 4,
                            m.sums + round % 2 * KEY_WARPS * TUNE_ROWS * 2};
}

/* Before the first problem. */
static void work_begin(attn_problem *p, const stream_source *from, stream_memory m) {
    (void)p;
    (void)from;
    (void)m;
}

/* Runs a problem, the round-th, whose tiles are in the stream from *at on. */
static void run_problem(const attn_problem *p, const stream_source *from, int round, stream_place *at, stream_memory m,
                        const attn_result_target *target) {
    (void)from;
    const int warp = get_local_id(0) / 32, num_rows = min(TUNE_ROWS, p->num_rows - p->first_row);
    const tile_range range = tile_range_of(p);
    const __local ushort *q = stream_q(m.shared, round);
    const score_scale scale = score_scale_of(p);
    float unit = first_unit(p);
    q_fragments fragments;
    lane_results own;
    mbarrier_wait(stream_barrier(m.shared, Q_THERE + round % STREAM_Q), turn_parity(round, STREAM_Q));
    load_q_fragments(q, &fragments);
    results_begin(&own);

    const int num_tiles = max(range.num_tiles, 1);
    for (int tile = 0; tile < num_tiles; tile++) {
        mbarrier_wait(stream_barrier(m.shared, FILLED + at->stage), at->parity);
        __local uchar *keys = m.shared.stages + at->stage * STREAM_STAGE + warp * WARP_STAGE;
        const int first = range.start + tile * TUNE_KEYS + warp * WARP_KEYS;
        const int seen_first = max(first, range.begin), seen_end = min(first + WARP_KEYS, p->key_end);
        if (seen_first < seen_end) {
            warp_keys k;
            k.keys = keys;
            k.values = keys + V_IN_STREAM;
            __local float *key_scales = 0;
#if ROW_SCALED
            key_scales = m.shared.scales + at->stage * STAGE_SCALES + warp * WARP_KEYS;
            k.key_scales = key_scales;
            k.value_scales = key_scales + VALUE_SCALES;
#endif
            k.first = first;
            k.partly_seen = WITH_GUARD || seen_first < range.full_begin || seen_end > range.full_end;
            k.whole = seen_end - seen_first == WARP_KEYS;
            /* Any key may lie in no block where the table is guarded. */
            if (WITH_GUARD || !k.whole || seen_end > stream_new_first(p)) {
                stream_patch(p, range.begin, first, keys, keys + V_IN_STREAM, key_scales, get_local_id(0) % 32, 32);
                warp_barrier();
            }
            if (ROW_TILES == 1 || num_rows <= 8)
                add_keys(p, q, &fragments, k, scale, 1, &unit, &own);
            else
                add_keys(p, q, &fragments, k, scale, ROW_TILES, &unit, &own);
        }
        if (tile == num_tiles - 1)
            break;
        warp_barrier();
        if (get_local_id(0) % 32 == 0)
            mbarrier_arrive(stream_barrier(m.shared, FREED + at->stage));
        stream_advance(at);
    }

    warp_barrier();
    share_results(&own, unit, stream_results(m, round, at->stage), warp, num_rows);
    fence_async();
    if (WORKERS_STORE) {
        workers_barrier();
        store_results(p, stream_results(m, round, at->stage), target, num_rows, get_local_id(0), WORKERS);
    }
    warp_barrier();
    if (get_local_id(0) % 32 == 0)
        mbarrier_arrive(stream_barrier(m.shared, DONE + round % 2));
    stream_advance(at);
}

/* By the storer, when a problem's results are there, and its last keys were in a stage: stores them, and the stage is
   free. */
static void store_done(const attn_problem *p, stream_memory m, int round, int stage, const attn_result_target *target) {
    const int lane = get_local_id(0) % 32;
    if (!WORKERS_STORE)
        store_results(p, stream_results(m, round, stage), target, min(TUNE_ROWS, p->num_rows - p->first_row), lane, 32);
    warp_barrier();
    if (lane < KEY_WARPS)
        mbarrier_arrive(stream_barrier(m.shared, FREED + stage));
}

#endif
