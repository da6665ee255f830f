/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace through the block manager, under a plain scheduler and a virtual clock.
 *
 * A request is admitted, in the order of arrival, when the pool has blocks for all its tokens; whole blocks are found in
 * the prefix cache. Its prompt is computed in chunks, then each step gives it a token. When blocks run out, the request
 * admitted last gives its blocks up and waits in front of the others: to be computed again with what it has generated,
 * or, when it was swapped out to the host tier, to be swapped in.
 */
#ifndef SIMULATE_RUN_H
#define SIMULATE_RUN_H

#include "simulate_trace.h"

#include <pagedcl/pagedcl.h>

typedef struct simulate_options {
    int32_t block_size;
    int32_t max_batch;   /* requests that run at once, at most */
    int32_t chunk;       /* prompt tokens of a step, at most */
    int32_t watermark;   /* blocks that stay free on admission */
    bool swap;           /* preempt by swapping where the host tier has room, not by computing again */
    int32_t host_blocks; /* of the host tier; 0: as many as the pool has */
    /* The clock: what a step costs, in seconds. */
    double step_seconds;
    double prefill_seconds; /* for each prompt token in it */
    double decode_seconds;  /* for each request that decodes in it */
    double swap_seconds;    /* for each block that is swapped before it, out or in */
} simulate_options;

/* Shares are from 0 to 1; means are over the time from the first arrival to the last token. */
typedef struct simulate_result {
    int32_t num_blocks;
    pagedcl_status status; /* SUCCESS; NEVER_FITS: the largest request is too large, and nothing was run */
    int64_t steps;
    double seconds;  /* to the last token */
    double hit_rate; /* prompt tokens that were in the prefix cache when their request was first admitted */
    double peak_occupancy;
    double mean_occupancy;
    double fragmentation; /* slots of blocks in use behind the last token of a sequence */
    int64_t preemptions;
    int64_t recomputed_tokens; /* computed more than once, because of preemptions */
    int64_t swapped_blocks;    /* moved to the host tier or back, because of preemptions */
    double mean_first_token;   /* seconds from arrival to the first token */
} simulate_result;

/* Called now and then. */
typedef void (*simulate_progress)(void *user, int32_t num_blocks, int64_t num_finished, int64_t num_requests);

/* Blocks that a request takes when it is complete. */
int64_t simulate_blocks_needed(const trace_request *request, int32_t block_size);

/* The request that needs most blocks, the first one of these. The trace is not empty. */
const trace_request *simulate_largest(const trace *t);

/*
 * Runs a sorted trace. The status of a call that failed, with pagedcl_last_error() unless it is OUT_OF_MEMORY; that a
 * request never fits is no failure, but a result.
 */
pagedcl_status simulate_run(const trace *t, const simulate_options *options, int32_t num_blocks,
                            simulate_progress progress, void *user, simulate_result *result);

#endif
