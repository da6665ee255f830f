/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the block manager names, done on the device: copies (pagedcl_blocks_append, pagedcl_blocks_compact), wipes
 * (pagedcl_blocks_wipe), swaps (pagedcl_blocks_swap_out, pagedcl_blocks_swap_in). The caller lists them in the order in
 * which the manager named them, and one call a cache group enqueues the whole list with one event.
 *
 *     n = 0;
 *     pagedcl_blocks_swap_out(blocks, victim, fence, swaps, MAX, &m);
 *     n += pagedcl_actions_of_swaps(PAGEDCL_ACTION_SWAP_OUT, swaps, m, actions + n);
 *     pagedcl_blocks_append(blocks, seq, 1, copies, &c);
 *     n += pagedcl_actions_of_copies(copies, c, actions + n);
 *     pagedcl_actions_enqueue(cache, host, 0, queue, actions, n, 0, NULL, &event);
 *
 * The event, or a later one of the same in-order queue, is what the manager's fence stands for: when it is complete, or
 * has failed (its status is below 0), pagedcl_blocks_reached says so. Until then no block of the list is used otherwise.
 */
#ifndef PAGEDCL_ACTIONS_H
#define PAGEDCL_ACTIONS_H

#include <pagedcl/host_pool.h>
#include <pagedcl/swap.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pagedcl_action_type {
    PAGEDCL_ACTION_COPY = 1, /* block src to block dst */
    PAGEDCL_ACTION_WIPE,     /* zeros to block dst; src is not looked at */
    PAGEDCL_ACTION_SWAP_OUT, /* block src to host block dst */
    PAGEDCL_ACTION_SWAP_IN,  /* host block src to block dst */
} pagedcl_action_type;

typedef struct pagedcl_action {
    pagedcl_action_type type;
    int32_t group; /* the cache group; -1: every group */
    int32_t src;
    int32_t dst;
} pagedcl_action;

/* What the manager named, as actions, of which there must be room for as many; they return num. Wipes are for every
   group. type: SWAP_OUT or SWAP_IN. */
PAGEDCL_API int64_t pagedcl_actions_of_copies(const pagedcl_block_copy *copies, int64_t num, pagedcl_action *actions);
PAGEDCL_API int64_t pagedcl_actions_of_wipes(const int32_t *blocks, int64_t num, pagedcl_action *actions);
PAGEDCL_API int64_t pagedcl_actions_of_swaps(pagedcl_action_type type, const pagedcl_block_swap *swaps, int64_t num,
                                             pagedcl_action *actions);

/*
 * Enqueues the actions of `group`, in all layers of its cache; the others are passed over. They take effect in their
 * order, and those that do not depend on each other go into one command a layer. host: of the cache; NULL when nothing
 * is swapped. The array is the caller's again; memory of the host pool is not, before the event.
 * A call that fails after some of its commands were enqueued has spoilt nothing but the targets of its actions.
 * Errors: INVALID_ARGUMENT, INVALID_BLOCK (names the action), OUT_OF_MEMORY, OUT_OF_DEVICE_MEMORY, OPENCL_ERROR.
 */
PAGEDCL_API pagedcl_status pagedcl_actions_enqueue(pagedcl_cache *cache, pagedcl_host_pool *host, int32_t group,
                                                   cl_command_queue queue, const pagedcl_action *actions,
                                                   int64_t num_actions, cl_uint num_events, const cl_event *events,
                                                   cl_event *event);

#ifdef __cplusplus
}
#endif
#endif
