/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The warp of a work-group that deals its stream's problems out (nv/stream.h).
 */
#ifndef NV_DEALER_H
#define NV_DEALER_H

#include "nv/stream.h"

typedef struct dealer {
    const stream_source *from;
    stream_shared m;
    int round; /* of the work-group's problems, the one that was dealt last */
    /* What is known of the problem behind it. */
    int known;        /* 0 nothing; 1 its number; 2 its work item, too; 3 all */
    int number;       /* of lane 0 */
    int work, record; /* a lane's int of them */
} dealer;

static bool next_is_left(const dealer *d, int number) {
    return number < (d->from->sections.y - d->from->sections.x) / WORK_INTS * NUM_KV_HEADS;
}

/*
 * Begins to load what comes next of the next problem: its number, its work item, its record. Each needs the one before.
 * Work-groups take problems as they are done with others: some get more of the memory than others.
 */
static void dealer_look_ahead(dealer *d) {
    const int lane = get_local_id(0) % 32;
    const stream_source *from = d->from;
    const int number = as_int(from_lane(as_float(d->number), 0));
    if (d->known == 0) {
        if (lane == 0)
            d->number = d->round < 0 ? (int)get_group_id(0) : (int)get_num_groups(0) + atomic_inc(from->counters);
    } else if (d->known == 1 && next_is_left(d, number)) {
        d->work = from->plan[from->sections.x + number / NUM_KV_HEADS * WORK_INTS + lane % WORK_INTS];
    } else if (d->known == 2 && next_is_left(d, number)) {
        const int seq = work_seq(from->plan, as_int(from_lane(as_float(d->work), 0)));
        d->record = from->plan[from->sections.y + (long)seq * RECORD_INTS + min(lane, RECORD_INTS - 1)];
    }
    d->known++;
}

/* Deals the next problem, and begins to load its rows of q, unless the workers do. p: of it the tensors. Whether
   there is one. */
static bool dealer_deal(dealer *d, attn_problem *p) {
    const int lane = get_local_id(0) % 32;
    while (d->known < 3)
        dealer_look_ahead(d);
    const int number = as_int(from_lane(as_float(d->number), 0));
    const bool is_left = next_is_left(d, number);
    d->known = 0;
    d->round++;
    __local int *place = d->m.problems + d->round % STREAM_PROBLEMS * PROBLEM_INTS;
    if (lane == 0)
        place[0] = is_left ? number : -1;
    if (lane < WORK_INTS)
        place[1 + lane] = d->work;
    if (lane < RECORD_INTS)
        place[1 + WORK_INTS + lane] = d->record;
    warp_barrier();
    if (lane == 0)
        mbarrier_arrive(stream_barrier(d->m, DEALT + d->round % STREAM_PROBLEMS));
    if (!is_left)
        return false;
#if !BY_WARPGROUPS
    stream_take(p, d->from, d->m, d->round);
    const int row_tiles = p->num_rows - p->first_row <= 8 ? 1 : ROW_TILES;
    tile_load_q(p, d->from->q, d->from->q_layout, stream_q(d->m, d->round), row_tiles * 8, lane, 32);
    const uint there = stream_barrier(d->m, Q_THERE + d->round % STREAM_Q);
    copy_arrive(there);
    warp_barrier();
    if (lane == 0)
        mbarrier_arrive(there);
#else
    (void)p;
#endif
    return true;
}

/* Begun before a barrier of all, so that what the plan says is on its way meanwhile. */
static void dealer_begin(dealer *d, const stream_source *from, stream_shared m) {
    /* Its fence would wait for what is loaded. */
    stream_init(m);
    d->from = from;
    d->m = m;
    d->round = -1;
    d->known = 0;
    d->number = d->work = d->record = 0;
    dealer_look_ahead(d);
    dealer_look_ahead(d);
}

static void dealer_run(dealer *d, attn_problem *p) {
    while (dealer_deal(d, p))
        mbarrier_wait(stream_barrier(d->m, WANTED), d->round & 1);
    /* The last work-group leaves the counters as they were. */
    if (get_local_id(0) % 32 == 0 && increment_released(d->from->counters + 1) == (int)get_num_groups(0) - 1)
        d->from->counters[0] = d->from->counters[1] = 0;
}

#endif
