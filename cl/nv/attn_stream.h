/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decode attention, tier nv_wgmma: a work-group takes one problem after the other, each a part of the keys of one sequence
 * (or of what several have in common), for TUNE_ROWS rows and one KV head. The warps that work divide a tile's keys, and wait
 * for no other one. When all have ended a problem another merges and stores their results; where the part was the last of
 * its sequence to end, those of the parts are merged (nv/merge.h), by all that work.
 */
#ifndef NV_ATTN_STREAM_H
#define NV_ATTN_STREAM_H

#include "nv/attn_keys.h"
#include "nv/dealer.h"
#include "nv/fetcher.h"

typedef struct stream_memory {
    stream_shared shared;
    __local float *sums; /* [2] of results_memory, of problems by turns: the next may end before all have read it */
} stream_memory;

/* Whether the workers store a problem's results: long rows would keep the storer longer than the next keys take. */
#define WORKERS_STORE (HEAD_DIM_V > 256)

/* The results of the round-th problem, whose last keys were in a stage. */
static results_memory stream_results(stream_memory m, int round, int stage) {
    return (results_memory){(__local float *)(m.shared.stages + stage * STREAM_STAGE), WARP_STAGE / 4,
                            m.sums + round % 2 * KEY_WARPS * TUNE_ROWS * 2};
}

/*
 * What a tile needs that is not all old keys of p from `begin` on: new ones, which are not in the pool yet, and zeros for
 * values that are none, since a weight of 0 meets them. first: the warp's first key.
 */
static void stream_patch(const attn_problem *p, int begin, int first, __local uchar *keys, __local uchar *values,
                         __local float *key_scales) {
    const int new_first = WITH_APPEND ? p->new_first : p->k_len;
    for (int i = get_local_id(0) % 32; i < WARP_KEYS * K_VECTORS; i += 32) {
        const int key = i / K_VECTORS, d = i % K_VECTORS * 8, position = first + key;
        if (position >= new_first && key_exists(p, begin, position))
            tile_store_row8(keys + boxed_element(K_BOX, key, d), p, true, position, d, true);
    }
    for (int i = get_local_id(0) % 32; i < WARP_KEYS * V_VECTORS; i += 32) {
        const int key = i / V_VECTORS, d = i % V_VECTORS * 8, position = first + key;
        const bool exists = key_exists(p, begin, position);
        if (!exists || (position >= new_first && !VALUES_IN_KEYS))
            tile_store_row8(values + boxed_element(V_BOX, key, d), p, false, position, d, exists);
    }
#if ROW_SCALED
    for (int i = get_local_id(0) % 32; i < WARP_KEYS * (VALUES_IN_KEYS ? 1 : 2); i += 32) {
        const int key = i % WARP_KEYS, position = first + key;
        if (position >= new_first && key_exists(p, begin, position))
            key_scales[i / WARP_KEYS * VALUE_SCALES + key] = row_scale(p, i < WARP_KEYS, position);
    }
#else
    (void)key_scales;
#endif
    fence_async();
    warp_barrier();
}

/* Runs a problem, the round-th, whose tiles are in the stream from *at on. */
static void run_problem(const attn_problem *p, int round, stream_place *at, stream_memory m,
                        const attn_result_target *target) {
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
            if (WITH_GUARD || !k.whole || seen_end > p->new_first)
                stream_patch(p, range.begin, first, keys, keys + V_IN_STREAM, key_scales);
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

/* Merges what the part of a problem completed, when other parts are told that it is stored. */
static void merge_told(attn_problem *p, const stream_source *from, stream_memory m, int round,
                       attn_result_target target) {
    mbarrier_wait(stream_barrier(m.shared, TOLD + round % 2), turn_parity(round, 2));
    const merge_state state = merge_state_of(m.shared, round);
    if (*state.completed == 0)
        return;
    stream_take(p, from, m.shared, round);
    merge_complete(p, &target, state);
}

static void attn_stream_work(attn_problem *p, const stream_source *from, stream_memory m, attn_result_target target) {
    stream_place at = {0, 0};
    int round = 0;
#pragma unroll 1
    for (; stream_wait_problem(m.shared, round); round++) {
        /* What was told meanwhile is not waited for. */
        if (round >= 2)
            merge_told(p, from, m, round - 2, target);
        stream_take(p, from, m.shared, round);
        run_problem(p, round, &at, m, &target);
    }
#pragma unroll 1
    for (int last = max(round - 2, 0); last < round; last++)
        merge_told(p, from, m, last, target);
}

/* By the storer: the results of each problem, and its new keys. */
static void attn_stream_store(attn_problem *p, const stream_source *from, stream_memory m, attn_result_target target) {
    const int lane = get_local_id(0) % 32;
    int last = -1; /* of a problem's tiles, in the stream */
#pragma unroll 1
    for (int round = 0; stream_wait_problem(m.shared, round); round++) {
        stream_take(p, from, m.shared, round);
        last += max(tile_range_of(p).num_tiles, 1);
        const int stage = last % TUNE_STAGES, num_rows = min(TUNE_ROWS, p->num_rows - p->first_row);
        mbarrier_wait(stream_barrier(m.shared, DONE + round % 2), turn_parity(round, 2));
        if (!WORKERS_STORE)
            store_results(p, stream_results(m, round, stage), &target, num_rows, lane, 32);
        warp_barrier();
        if (lane < KEY_WARPS)
            mbarrier_arrive(stream_barrier(m.shared, FREED + stage));
        merge_arrive_stored(p, &target, merge_state_of(m.shared, round));
        warp_barrier();
        if (lane == 0)
            mbarrier_arrive(stream_barrier(m.shared, TOLD + round % 2));
        /* One work-group for each part and KV head: that of the first rows. */
        if (p->first_row == 0)
            store_new(p, lane, 32);
    }
}

/* A kernel of 384 work-items begins with 168 registers for each; workers are to have some of what the helpers need not. */
#if TUNE_WG == 384
#define HELPERS_GIVE REGISTERS_DOWN_TO(88)
#define WORKERS_GET REGISTERS_UP_TO(208)
#else
#define HELPERS_GIVE
#define WORKERS_GET
#endif

/* Runs the problems of the work-group. p: of it the tensors. */
static void attn_stream(attn_problem *p, stream_source from, stream_memory m, attn_result_target target) {
    if (get_local_id(0) < WORKERS) {
        WORKERS_GET;
        barrier(CLK_LOCAL_MEM_FENCE);
        attn_stream_work(p, &from, m, target);
        return;
    }
    HELPERS_GIVE;
    const int helper = ((int)get_local_id(0) - WORKERS) / 32;
    if (helper == 0) {
        dealer d;
        dealer_begin(&d, &from, m.shared);
        barrier(CLK_LOCAL_MEM_FENCE);
        dealer_run(&d, p);
    } else if (helper <= FETCHERS) {
        fetcher f;
        fetcher_begin(&f, &from, p, m.shared, helper - 1);
        barrier(CLK_LOCAL_MEM_FENCE);
        fetcher_run(&f);
    } else {
        barrier(CLK_LOCAL_MEM_FENCE);
        attn_stream_store(p, &from, m, target);
    }
}

#endif
