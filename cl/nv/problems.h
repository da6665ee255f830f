/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Problems of a launch of fewer work-groups than problems: each work-group takes the next that is left when it is done
 * with one. One of its warps, the leader, finds out which that is, and hands it to all warps through local memory: they
 * take the problems in the same order, each in its own time.
 */
#ifndef NV_PROBLEMS_H
#define NV_PROBLEMS_H

#include "lib/attn_problem.h"
#include "nv/warpgroup.h"

/* How many problems may be handed out that some warp has not taken yet. */
#define PROBLEM_PLACES 4

/* A problem in local memory: its number, or -1 behind the last, its first row, its sequence, and the sequence's record. */
#define PROBLEM_INTS (4 + RECORD_INTS)
#define PROBLEM_BYTES (PROBLEM_PLACES * (PROBLEM_INTS * 4 + 2 * 8))

typedef struct problem_list {
    const __global int *plan;
    int2 sections;          /* as of problem_from_plan */
    long count;             /* of all, NUM_KV_HEADS for each work item */
    __global int *counters; /* how many are taken besides the first of each work-group, how many work-groups are done: 0
                               before and after the launch */
    __local int *places;    /* [PROBLEM_PLACES][PROBLEM_INTS] */
    __local ulong *barriers; /* [PROBLEM_PLACES] that are handed out, [PROBLEM_PLACES] that are taken */
} problem_list;

/* By one work-item, before a barrier of all. */
static void problems_init(const problem_list *list) {
    for (int i = 0; i < 2 * PROBLEM_PLACES; i++)
        mbarrier_init(local_address(list->barriers + i), i < PROBLEM_PLACES ? 1 : TUNE_WG / 32);
}

static uint problem_barrier(const problem_list *list, bool taken, int round) {
    return local_address(list->barriers + taken * PROBLEM_PLACES + round % PROBLEM_PLACES);
}

/* The parity of a place's phase in a round. */
static uint round_parity(int round) {
    return round / PROBLEM_PLACES & 1;
}

/* The leader finds the problem of a round and hands it out. After the last one, which is none, it does so no more. */
static void problems_hand_out(const problem_list *list, int round) {
    const int lane = get_local_id(0) % 32;
    int next = get_group_id(0);
    if (round > 0 && lane == 0)
        next = get_num_groups(0) + atomic_inc(list->counters);
    next = as_int(from_lane(as_float(next), 0));
    const bool left = next < list->count;
    int x = lane == 0 ? (left ? next : -1) : 0;
    if (left) {
        const __global int *work = list->plan + list->sections.x + (long)(next / NUM_KV_HEADS) * WORK_INTS;
        const int seq = work[0];
        if (lane == 1)
            x = work[1];
        else if (lane == 2)
            x = seq;
        else if (lane >= 4 && lane < PROBLEM_INTS)
            x = list->plan[list->sections.y + (long)seq * RECORD_INTS + lane - 4];
    } else if (lane == 0) {
        /* The last work-group leaves the counters as they were. */
        fence_device();
        if (atomic_inc(list->counters + 1) == (int)get_num_groups(0) - 1)
            list->counters[0] = list->counters[1] = 0;
    }
    mbarrier_wait(problem_barrier(list, true, round), round_parity(round) ^ 1);
    if (lane < PROBLEM_INTS)
        list->places[round % PROBLEM_PLACES * PROBLEM_INTS + lane] = x;
    warp_barrier();
    if (lane == 0)
        mbarrier_arrive(problem_barrier(list, false, round));
}

/* A warp takes the problem of a round, once; false: there is none. */
static bool problem_take(attn_problem *p, const problem_list *list, int round) {
    const __local int *place = list->places + round % PROBLEM_PLACES * PROBLEM_INTS;
    mbarrier_wait(problem_barrier(list, false, round), round_parity(round));
    const int number = place[0];
    int record[RECORD_INTS];
#pragma unroll
    for (int i = 0; i < RECORD_INTS; i++)
        record[i] = place[4 + i];
    problem_take_record(p, list->plan, list->sections.y, place[2], record);
    p->first_row = place[1];
    p->split = 0;
    p->key_begin = 0;
    p->key_end = p->k_len;
    p->kv_head = number % NUM_KV_HEADS;
    warp_barrier();
    if (get_local_id(0) % 32 == 0)
        mbarrier_arrive(problem_barrier(list, true, round));
    return number >= 0;
}

#endif
