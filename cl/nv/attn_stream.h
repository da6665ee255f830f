/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of tier nv_wgmma, decode and where warpgroups work varlen, too: a work-group takes one problem after the
 * other, each a part of the keys of one sequence (or of what several have in common) for TUNE_ROWS rows and one KV
 * head; in varlen (not WITH_SPLITS) all keys of one. Where the part was the last of its sequence to end, those of the
 * parts are merged (nv/merge.h), by all that work.
 */
#ifndef NV_ATTN_STREAM_H
#define NV_ATTN_STREAM_H

#include "nv/dealer.h"
#include "nv/fetcher.h"
#if BY_WARPGROUPS
#include "nv/stream_warpgroups.h"
#else
#include "nv/stream_warps.h"
#endif

#if WITH_SPLITS
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
#endif

static void attn_stream_work(attn_problem *p, const stream_source *from, stream_memory m, attn_result_target target) {
    stream_place at = {0, 0};
    int round = 0;
    work_begin(p, from, m);
#pragma unroll 1
    for (; stream_wait_problem(m.shared, round); round++) {
#if WITH_SPLITS
        /* What was told meanwhile is not waited for. */
        if (round >= 2)
            merge_told(p, from, m, round - 2, target);
#endif
        stream_take(p, from, m.shared, round);
        run_problem(p, from, round, &at, m, &target);
    }
#if WITH_SPLITS
#pragma unroll 1
    for (int last = max(round - 2, 0); last < round; last++)
        merge_told(p, from, m, last, target);
#endif
}

#if WITH_SPLITS
/* By the storer: the results of each problem, and its new keys. */
static void attn_stream_store(attn_problem *p, const stream_source *from, stream_memory m, attn_result_target target) {
    const int lane = get_local_id(0) % 32;
    int last = -1; /* of a problem's tiles, in the stream */
#pragma unroll 1
    for (int round = 0; stream_wait_problem(m.shared, round); round++) {
        stream_take(p, from, m.shared, round);
        last += max(tile_range_of(p).num_tiles, 1);
        mbarrier_wait(stream_barrier(m.shared, DONE + round % 2), turn_parity(round, 2));
        store_done(p, m, round, last % TUNE_STAGES, &target);
        merge_arrive_stored(p, &target, merge_state_of(m.shared, round));
        warp_barrier();
        if (lane == 0)
            mbarrier_arrive(stream_barrier(m.shared, TOLD + round % 2));
        /* One work-group for each part and KV head: that of the first rows. */
        if (p->first_row == 0)
            store_new(p, lane, 32);
    }
}
#endif

/* A kernel of 384 work-items begins with 168 registers for each; workers are to have some of what the helpers need not. */
#if TUNE_WG == 384 && BY_WARPGROUPS
#define HELPERS_GIVE REGISTERS_DOWN_TO(56)
#define WORKERS_GET REGISTERS_UP_TO(224)
#elif TUNE_WG == 384
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
#if WITH_SPLITS
        attn_stream_store(p, &from, m, target);
#endif
    }
}

#endif
