/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decode attention, tier nv_wgmma: a work-group takes one problem after the other, each a part of the keys of one sequence
 * (or of what several have in common), for TUNE_ROWS rows and one KV head. Its warps divide the keys: each streams its own
 * (nv/stream.h) and needs no other one until the problem ends. Then their results are merged, and where the part was
 * the last of its sequence to end, those of the parts (nv/merge.h).
 */
#ifndef NV_ATTN_STREAM_H
#define NV_ATTN_STREAM_H

#include "nv/merge.h"
#include "nv/stream.h"

#if ROW_WARPS != 1
#error the warps of a work-group divide the keys
#endif

typedef struct stream_memory {
    stream_shared shared;
    __local float *sums, *ends; /* of results_memory */
    __local float *merge;       /* [2][MERGE_FLOATS], of problems by turns */
} stream_memory;

static merge_state merge_state_of(stream_memory m, int round) {
    return merge_state_in(m.merge + round % 2 * MERGE_FLOATS);
}

static int stage_before(int stage) {
    return stage == 0 ? TUNE_STAGES - 1 : stage - 1;
}

/* Runs a problem, the round-th: the warp's tiles come from the stream, the first of them to *at, where it is already. */
static void run_problem(const attn_problem *p, int round, key_stream *stream, stream_place *at, stream_memory m,
                        attn_result_target target) {
    const int warp = get_local_id(0) / 32;
    const int num_rows = min(TUNE_ROWS, p->num_rows - p->first_row);
    const tile_range range = tile_range_of(p);
    const __local ushort *q = m.shared.q + round % TUNE_STAGES * Q_ELEMENTS;
    q_fragments fragments;
    load_q_fragments(q, 0, &fragments);
    const score_scale scale = score_scale_of(p);
    float unit = first_unit(p);
    lane_rows own;
    rows_begin(&own);

    for (int tile = 0; tile < max(range.num_tiles, 1); tile++) {
        if (tile > 0)
            stream_wait(stream, *at);
        /* All lanes are done with the tile before, whose stage is filled anew. */
        stream_fetch(stream, stage_before(at->stage));
        __local uchar *keys = stream_stage(stream, at->stage), *values = keys + V_IN_STREAM;
        const int first = range.start + tile * TUNE_KEYS + warp * WARP_KEYS;
        const int seen_first = max(first, range.begin), seen_end = min(first + WARP_KEYS, p->key_end);
        const bool whole = seen_end - seen_first == WARP_KEYS;
        if (seen_first < seen_end) {
            /* Any key may lie in no block where the table is guarded. */
            if (WITH_GUARD || !whole || seen_end > p->new_first)
                stream_patch(p, range.begin, first, keys, values);
            warp_keys k;
            k.keys = (const __local ushort *)keys;
            k.values = (const __local ushort *)values;
            k.first = first;
            k.partly_seen = WITH_GUARD || seen_first < range.full_begin || seen_end > range.full_end;
            k.whole = whole;
            add_keys(p, q, 0, &fragments, k, scale, &unit, &own);
        }
        at->stage++;
        if (at->stage == TUNE_STAGES) {
            at->stage = 0;
            at->parity ^= 1;
        }
    }

    /* Results take the place of the last keys. */
    const int last = stage_before(at->stage);
    const results_memory results = {(__local float *)(m.shared.stages + last * STREAM_STAGE),
                                    TUNE_STAGES * STREAM_STAGE / 4, m.sums, m.ends};
    warp_barrier();
    share_results(&own, unit, results, warp, 0);
    fence_async();
    barrier(CLK_LOCAL_MEM_FENCE);
    store_results(p, results, &target, num_rows);
    /* One work-group for each part and KV head: that of the first rows. */
    if (p->first_row == 0)
        store_new(p, get_local_id(0), TUNE_WG);
}

/* Runs the problems of the work-group. p: of it the tensors. */
static void attn_stream(attn_problem *p, stream_source from, stream_memory m, attn_result_target target) {
    const int warp = get_local_id(0) / 32;
    key_stream stream;
    stream_begin(&stream, from, p, m.shared);
#pragma unroll 1
    for (int i = 0; i < TUNE_STAGES - 1; i++)
        stream_fetch(&stream, i);
    stream_place at = {0, 0};
    /* A problem's part is stored when it has run. Behind the next barrier one warp tells the other parts so, and waits for it
       while the others go on; behind the one after that all know what the part completed, and merge it. */
    bool is_left = true;
    int num_run = 0;
#pragma unroll 1
    for (int round = 0; is_left || round < num_run + 2; round++) {
        is_left = is_left && stream_has(&stream, round);
        if (is_left)
            stream_wait(&stream, at);
        /* What all warps load of the problem is there, too. */
        barrier(CLK_LOCAL_MEM_FENCE);
        const merge_state told = merge_state_of(m, round + 1);
        const int merged = round - 2, stored = round - 1;
        if (merged >= 0 && *told.is_any) {
            stream_take(p, &stream, merged);
            merge_complete(p, &target, told);
        }
        if (stored >= 0 && stored < num_run && warp == round % KEY_WARPS) {
            stream_take(p, &stream, stored);
            merge_arrive_stored(p, &target, merge_state_of(m, round));
        }
        if (is_left) {
            stream_take(p, &stream, round);
            run_problem(p, round, &stream, &at, m, target);
            num_run++;
        }
    }
}

#endif
