/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which tokens of which requests a step computes. Host only.
 *
 * A request waits, runs and finishes. It is admitted when the pool has blocks for all tokens it has so far; these are
 * prefilled in chunks, and from then on each step decodes one token. On admission it shares the blocks of the longest
 * prefix that it has in common with a running request, or that the prefix cache still has of one that ended; it waits
 * while a running request computes a longer one. When a running request finds no block, the request admitted last gives
 * up its blocks and waits, in front of the others, to be computed again with what it has generated, as far as the prefix
 * cache does not have it by then.
 */
#ifndef ENGINE_SCHEDULER_H
#define ENGINE_SCHEDULER_H

#include "tool_error.h"
#include "step.h"

#include <pagedcl/blocks.h>

typedef struct scheduler scheduler;

typedef struct scheduler_options {
    int32_t num_blocks;
    int32_t block_size;
    int32_t max_batch;         /* requests that run at once, at most */
    int32_t chunk_tokens;      /* prefill tokens of a step, at most */
    int32_t max_tokens;        /* tokens of a request, prompt and generated, at most */
    bool without_prefix_cache; /* share with running requests alone */
} scheduler_options;

typedef struct scheduler_stats {
    int64_t steps;
    int64_t prefill_tokens;  /* computed through the prefill path, recomputed ones included */
    int64_t decode_tokens;   /* computed through the decode path */
    int64_t admitted_tokens; /* that requests had on admission, those apart that preemption took from them */
    int64_t shared_tokens;   /* of these, that sharing saved from being computed */
    int64_t shared_blocks;   /* whole blocks that sharing saved from being taken */
    int64_t preemptions;
    int64_t recomputed_tokens; /* that preemption threw away, and the prefix cache had no more */
    int32_t peak_running;
    pagedcl_blocks_stats blocks;
} scheduler_stats;

/* A request as it stands. The tokens belong to the scheduler. */
typedef struct scheduler_request {
    const int32_t *tokens; /* the prompt, then what was generated */
    int32_t num_prompt;
    int32_t num_tokens;
    bool finished;
} scheduler_request;

scheduler *scheduler_create(const scheduler_options *options, tool_error *error);
void scheduler_destroy(scheduler *s); /* NULL is allowed */

/*
 * Adds a request that wants 1 or more new tokens; requests count from 0. One that could never run, alone in an empty
 * pool, is refused.
 */
bool scheduler_add(scheduler *s, const int32_t *prompt, int32_t num_prompt, int32_t max_new_tokens, tool_error *error);

int32_t scheduler_num_unfinished(const scheduler *s);
scheduler_request scheduler_get(const scheduler *s, int32_t index);

/*
 * Decides the next step; it holds until the next call. At least one row while a request is unfinished. Every plan must
 * be followed by a commit once the step was computed.
 */
bool scheduler_plan(scheduler *s, const engine_step **step, tool_error *error);

/*
 * The step was computed: next_tokens[i] follows output i of it, and ends its request when ends[i] or when the request
 * has all the tokens that it wants.
 */
bool scheduler_commit(scheduler *s, const int32_t *next_tokens, const bool *ends, tool_error *error);

bool scheduler_get_stats(const scheduler *s, scheduler_stats *stats, tool_error *error);

#endif
