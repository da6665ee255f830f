/* SPDX-License-Identifier: Apache-2.0 */
/* The host tier: blocks of host memory that hold swapped-out sequences. */
#ifndef PCL_SWAP_H
#define PCL_SWAP_H

#include <pagedcl/blocks.h>

typedef struct pcl_host_tier {
    int32_t *next;    /* by host block: the next one of its list, -1: none */
    uint64_t *fences; /* by host block, while it waits */
    int32_t ready;    /* free blocks, the last freed one first */
    int64_t num_ready;
    int32_t waiting, last_waiting; /* freed blocks whose fence is not reached, in the order of fences */
    int32_t unwiped;               /* free blocks to be wiped, the last freed one first */
} pcl_host_tier;

pagedcl_status pcl_host_tier_create(pagedcl_blocks *blocks, int32_t num_blocks);
void pcl_host_tier_destroy(pagedcl_blocks *blocks);

/* A block that is read or written by commands under `fence` is free; it is taken again when that is reached. */
void pcl_host_block_release(pagedcl_blocks *blocks, int32_t block, uint64_t fence);

/* blocks->reached went on. */
void pcl_host_tier_reached(pagedcl_blocks *blocks);

pagedcl_status pcl_host_tier_check(const pagedcl_blocks *blocks);

#endif
