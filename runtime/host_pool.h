/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PCL_HOST_POOL_H
#define PCL_HOST_POOL_H

#include "cache.h"

#include <pagedcl/host_pool.h>

struct pagedcl_host_pool {
    pagedcl_cache *cache; /* retained */
    int32_t num_blocks;
    int64_t block_bytes;
    int32_t unit_bytes; /* all bytes and addresses of blocks are multiples of it */

    /* Parts of chunk_blocks blocks each, the last one maybe less; one where the memory is the caller's. */
    char **parts;
    cl_mem *buffers; /* mapped for good; NULL where the memory is the caller's */
    int32_t num_parts;
    int32_t part_blocks;
    cl_command_queue queue; /* of the mapping alone */

    cl_mem staging;
    int32_t staging_blocks;
    pcl_fence last; /* of all transfers: they use the staging buffer one behind the other */

    pcl_variant variant;
    cl_program program;
    cl_kernel kernel;
};

/*
 * Enqueues transfers in their order: pool block pairs[2i] to host block pairs[2i+1] when `out`, and otherwise host block
 * pairs[2i] to pool block pairs[2i+1]; all of them exist. The pairs are on the device too, in `uploaded` from element
 * `first` (int32) on. The chain may have failed commands behind it; what was enqueued before a failure is guarded.
 */
pagedcl_status pcl_host_pool_enqueue(pagedcl_host_pool *pool, pcl_chain *chain, const int32_t *pairs, cl_mem uploaded,
                                     int64_t first, int64_t num_pairs, bool out);

/* Errors: INVALID_BLOCK; `index` is who names the block. */
pagedcl_status pcl_host_pool_check_block(const pagedcl_host_pool *pool, const char *what, int64_t index,
                                         int32_t host_block);

#endif
