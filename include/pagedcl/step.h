/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of the block manager: make room for a whole batch, enqueue, then commit or roll back.
 *
 *     pagedcl_blocks_begin(blocks);
 *     pagedcl_blocks_append(blocks, ...);    for every sequence of the batch; OUT_OF_BLOCKS: choose a victim
 *     enqueue the copies, the writes and the attention of the step
 *     pagedcl_blocks_commit(blocks, fence);  or pagedcl_blocks_rollback when something could not be enqueued
 *     pagedcl_blocks_reached(blocks, fence); when the commands are complete, or have failed
 *
 * A fence is a number of the caller's for commands that it enqueues, in ascending order; 0 is none. A fence is reached
 * when its commands and those of all smaller fences are complete. A block that is released while commands under a fence
 * may still use it is not taken before that fence is reached, and a sequence that still has it writes into a copy.
 * Whoever has one in-order queue needs no fences. Commands for one sequence always go behind its earlier ones.
 */
#ifndef PAGEDCL_STEP_H
#define PAGEDCL_STEP_H

#include <pagedcl/blocks.h>
#include <pagedcl/init.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Opens a step: appends from here on can be rolled back together. A sequence that was appended to cannot be shared,
 * shortened, recorded or swapped before the step ends; it can be freed. Errors: INVALID_ARGUMENT (a step is open).
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_begin(pagedcl_blocks *blocks);

/*
 * Ends the step; its appends stay. The blocks of its sequences, and the sources of its copies, are under `fence`.
 * Errors: INVALID_ARGUMENT (no step is open).
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_commit(pagedcl_blocks *blocks, uint64_t fence);

/*
 * Ends the step and undoes its appends: lengths, tables and refcounts are as they were at its begin. What was evicted
 * from the prefix cache to make room stays evicted. fence: of the commands that were enqueued nevertheless, 0 if none.
 * Errors: INVALID_ARGUMENT (no step is open).
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_rollback(pagedcl_blocks *blocks, uint64_t fence);

/* Says that commands under `fence` use the sequence's blocks, outside a step. Errors: INVALID_HANDLE. */
PAGEDCL_API pagedcl_status pagedcl_blocks_use(pagedcl_blocks *blocks, pagedcl_seq seq, uint64_t fence);

/* Says that `fence` and all smaller ones are reached: their commands are complete, or have failed. */
PAGEDCL_API pagedcl_status pagedcl_blocks_reached(pagedcl_blocks *blocks, uint64_t fence);

/*
 * Names up to `capacity` freed blocks that must be wiped before they are taken again (with the description's `wipe`),
 * the longest freed ones first. The caller wipes them in all layers of every group by commands under `fence`, after which
 * they can be taken. With `wipe`, evicting a cached block gives no block that can be taken at once: see pagedcl_prefix_evict.
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_wipe(pagedcl_blocks *blocks, uint64_t fence, int32_t *wiped, int64_t capacity,
                                               int64_t *num_wiped);

/*
 * Whether num_tokens more tokens of `seq` (0: of a new sequence) can be admitted: SUCCESS when there are blocks for
 * them and `watermark` more; OUT_OF_BLOCKS when there are not now; NEVER_FITS when there would not be if the sequence
 * had the pool alone. Changes nothing, and counts nothing. Other errors: as append's.
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_fits(const pagedcl_blocks *blocks, pagedcl_seq seq, int64_t num_tokens);

/* Whom to preempt when blocks run out. */
typedef enum pagedcl_victim_policy {
    PAGEDCL_VICTIM_LAST_IN = 0, /* who was made last */
    PAGEDCL_VICTIM_SHORTEST,    /* who has the fewest tokens to compute again; of those the last in */
    PAGEDCL_VICTIM_MOST_FREED,  /* who gives back most blocks; of those the last in */
} pagedcl_victim_policy;

typedef struct pagedcl_victim {
    size_t struct_size; /* sizeof(pagedcl_victim), set by PAGEDCL_VICTIM_INIT */
    pagedcl_seq seq;
    int64_t num_tokens; /* its length: what is to be computed again, less what the prefix cache will still have */
    int64_t num_blocks; /* blocks that become free or cached when it goes */
    int32_t can_swap;   /* 1: the host tier has room for it (pagedcl_blocks_swap_out); 0: free and compute it again */
} pagedcl_victim;
#define PAGEDCL_VICTIM_INIT PAGEDCL_INIT(pagedcl_victim)

/*
 * Proposes one of the candidates by `policy`; sequences that give back no block, are swapped out or are in the open
 * step are passed over. Changes nothing.
 * Errors: INVALID_ARGUMENT, INVALID_HANDLE (of a candidate), OUT_OF_BLOCKS (nobody gives back a block).
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_victim(const pagedcl_blocks *blocks, pagedcl_victim_policy policy,
                                                 const pagedcl_seq *candidates, int64_t num_candidates,
                                                 pagedcl_victim *victim);

#ifdef __cplusplus
}
#endif
#endif
