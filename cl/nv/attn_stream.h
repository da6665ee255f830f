/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decode attention, tier nv_wgmma: a work-group takes one problem after the other, each a part of the keys of one sequence
 * (or of what several have in common), for TUNE_ROWS rows and one KV head. The warps that work divide a tile's keys, and need
 * no other one until the problem ends. Then their results are merged, and where the part was the last of its sequence to
 * end, those of the parts (nv/merge.h).
 */
#ifndef NV_ATTN_STREAM_H
#define NV_ATTN_STREAM_H

#include "nv/attn_keys.h"
#include "nv/fetcher.h"

typedef struct stream_memory {
    stream_shared shared;
    __local float *sums; /* [2] of results_memory, of problems by turns: the next may end before all have read it */
} stream_memory;

/* The workers' warp is done with a stage. */
static void stream_free(stream_shared m, int stage) {
    warp_barrier();
    if (get_local_id(0) % 32 == 0)
        mbarrier_arrive(stream_barrier(m, FREED + stage));
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
            tile_store8((__local ushort *)(keys + boxed_place(K_BOX, key, piece)), key8(p, position, piece * 8));
    }
    for (int i = get_local_id(0) % 32; i < WARP_KEYS * V_VECTORS; i += 32) {
        const int key = i / V_VECTORS, piece = i % V_VECTORS, position = first + key;
        const bool exists = key_exists(p, begin, position);
        if (!exists || (position >= new_first && !VALUES_IN_KEYS))
            tile_store8((__local ushort *)(values + boxed_place(V_BOX, key, piece)),
                        exists ? value8(p, position, piece * 8) : (float8)0);
    }
    fence_async();
    warp_barrier();
}

/* Runs a problem, the round-th, whose tiles are in the stream from *at on. */
static void run_problem(const attn_problem *p, int round, stream_place *at, stream_memory m,
                        attn_result_target target) {
    const int warp = get_local_id(0) / 32, num_rows = min(TUNE_ROWS, p->num_rows - p->first_row);
    const tile_range range = tile_range_of(p);
    const __local ushort *q = stream_q(m.shared, round);
    const score_scale scale = score_scale_of(p);
    q_fragments fragments;
    lane_results own;
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
            k.first = first;
            k.partly_seen = WITH_GUARD || seen_first < range.full_begin || seen_end > range.full_end;
            k.whole = seen_end - seen_first == WARP_KEYS;
            /* Any key may lie in no block where the table is guarded. */
            if (WITH_GUARD || !k.whole || seen_end > p->new_first)
                stream_patch(p, range.begin, first, keys, keys + V_IN_STREAM);
            if (ROW_TILES == 1 || num_rows <= 8)
                add_keys(p, q, &fragments, k, scale, 1, &own);
            else
                add_keys(p, q, &fragments, k, scale, ROW_TILES, &own);
        }
        if (tile == num_tiles - 1)
            break;
        stream_free(m.shared, at->stage);
        stream_advance(at);
    }

    /* Results take the place of the last keys. */
    const results_memory results = {(__local float *)(m.shared.stages + at->stage * STREAM_STAGE), WARP_STAGE / 4,
                                    m.sums + round % 2 * KEY_WARPS * TUNE_ROWS * 2};
    warp_barrier();
    share_results(&own, results, warp, num_rows);
    fence_async();
    workers_barrier();
    store_results(p, results, &target, num_rows);
    stream_free(m.shared, at->stage);
    stream_advance(at);
    /* One work-group for each part and KV head: that of the first rows. */
    if (p->first_row == 0)
        store_new(p, get_local_id(0), WORKERS);
}

/* Merges what the part of a problem completed, when other parts are told that it is stored. */
static void merge_told(attn_problem *p, const stream_source *from, stream_memory m, int round,
                       attn_result_target target) {
    mbarrier_wait(stream_barrier(m.shared, TOLD + round % 2), turn_parity(round));
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
        run_problem(p, round, &at, m, target);
        warp_barrier();
        if (get_local_id(0) % 32 == 0)
            mbarrier_arrive(stream_barrier(m.shared, STORED + round % 2));
    }
#pragma unroll 1
    for (int last = max(round - 2, 0); last < round; last++)
        merge_told(p, from, m, last, target);
}

/* By the teller: each problem that is stored. */
static void attn_stream_tell(attn_problem *p, const stream_source *from, stream_shared m, attn_result_target target) {
#pragma unroll 1
    for (int round = 0; stream_wait_problem(m, round); round++) {
        mbarrier_wait(stream_barrier(m, STORED + round % 2), turn_parity(round));
        stream_take(p, from, m, round);
        merge_arrive_stored(p, &target, merge_state_of(m, round));
        warp_barrier();
        if (get_local_id(0) % 32 == 0)
            mbarrier_arrive(stream_barrier(m, TOLD + round % 2));
    }
}

/* Runs the problems of the work-group. p: of it the tensors. */
static void attn_stream(attn_problem *p, stream_source from, stream_memory m, attn_result_target target) {
    const int helper = ((int)get_local_id(0) - WORKERS) / 32;
    if (get_local_id(0) < WORKERS) {
        barrier(CLK_LOCAL_MEM_FENCE);
        attn_stream_work(p, &from, m, target);
    } else if (helper == 0) {
        fetcher f;
        fetcher_begin(&f, &from, p, m.shared);
        barrier(CLK_LOCAL_MEM_FENCE);
        fetcher_run(&f);
    } else {
        barrier(CLK_LOCAL_MEM_FENCE);
        attn_stream_tell(p, &from, m.shared, target);
    }
}

#endif
