/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving blocks: sequences to host memory and back, and blocks together at the front of the pool. The manager decides
 * and keeps the books; the caller owns the memory of the host tier (num_host_blocks of the description; host_pool.h has
 * an object for it) and enqueues the transfers that are named (actions.h does), under a fence (step.h) that it chooses
 * beforehand. Sources and targets are not used
 * otherwise until that fence is reached. A transfer that fails is reached too: the caller then frees the sequence.
 */
#ifndef PAGEDCL_SWAP_H
#define PAGEDCL_SWAP_H

#include <pagedcl/step.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A block to transfer, in all layers of the group, between the pool and the host tier. */
typedef struct pagedcl_block_swap {
    int32_t group;
    int32_t block;      /* physical block of the pool */
    int32_t host_block; /* 0 .. num_host_blocks - 1 */
} pagedcl_block_swap;

/*
 * Moves a sequence to the host tier: names a transfer for each block of its tables, shared ones included, and releases
 * them. Until it is swapped in the sequence has no tables and cannot be appended to, shared, shortened or recorded.
 * swaps: room for `capacity` transfers; *num_swaps says how many there are.
 * Errors: INVALID_HANDLE, NOT_READY (swapped out, or in the open step), CAPACITY, OUT_OF_BLOCKS (of the host tier),
 * NEVER_FITS (it is larger than the host tier).
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_swap_out(pagedcl_blocks *blocks, pagedcl_seq seq, uint64_t fence,
                                                   pagedcl_block_swap *swaps, int64_t capacity, int64_t *num_swaps);

/*
 * Brings it back, into any blocks, and frees its blocks of the host tier.
 * Errors: INVALID_HANDLE, INVALID_ARGUMENT (it is not swapped out), NOT_READY (the fence of its transfer to the host is
 * not reached), CAPACITY, OUT_OF_BLOCKS.
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_swap_in(pagedcl_blocks *blocks, pagedcl_seq seq, uint64_t fence,
                                                  pagedcl_block_swap *swaps, int64_t capacity, int64_t *num_swaps);

/* How many transfers a swap of the sequence names, either way. Errors: INVALID_HANDLE. */
PAGEDCL_API pagedcl_status pagedcl_blocks_swap_size(const pagedcl_blocks *blocks, pagedcl_seq seq, int64_t *num_swaps);

/*
 * Names up to `capacity` freed blocks of the host tier that must be wiped before they are taken again (with the
 * description's `wipe`). Nothing uses them any more: the caller fills them with zeros before its next call of the
 * manager (pagedcl_host_pool_wipe), and they can be taken.
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_wipe_host(pagedcl_blocks *blocks, int32_t *wiped, int64_t capacity,
                                                    int64_t *num_wiped);

/*
 * Moves up to `capacity` blocks in use from the end of the pool to free blocks at its front, and changes all tables at
 * once; a shared block moves once. The caller enqueues the copies before anything else uses the new tables. Cached
 * blocks stay where they are; pagedcl_prefix_evict makes room of them.
 * Errors: INVALID_ARGUMENT (also: a step is open).
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_compact(pagedcl_blocks *blocks, uint64_t fence, pagedcl_block_copy *copies,
                                                  int64_t capacity, int64_t *num_copies);

#ifdef __cplusplus
}
#endif
#endif
