/* SPDX-License-Identifier: Apache-2.0 */
/* A trace under several pools: how many blocks it needs. */
#ifndef SIMULATE_CURVE_H
#define SIMULATE_CURVE_H

#include "simulate_run.h"

enum { CURVE_MAX_POOLS = 64 };

typedef struct simulate_curve {
    simulate_result pools[CURVE_MAX_POOLS]; /* ascending */
    int32_t num_pools;
    int32_t enough; /* the smallest pool of those from which on no pool preempts; -1: none */
    int32_t knee;   /* the same for a mean time to first token within KNEE_SLACK of the best one */
} simulate_curve;

#define CURVE_KNEE_SLACK 0.1

/* Adds a pool, unless it is there; at most CURVE_MAX_POOLS. The status is that of simulate_run. */
pagedcl_status curve_add(simulate_curve *curve, const trace *t, const simulate_options *options, int32_t num_blocks,
                         simulate_progress progress, void *user);

/*
 * Adds pools from what the largest request takes to where nothing is preempted and more blocks do not shorten the wait,
 * closer to each other where preemption ends.
 */
pagedcl_status curve_search(simulate_curve *curve, const trace *t, const simulate_options *options,
                            simulate_progress progress, void *user);

#endif
