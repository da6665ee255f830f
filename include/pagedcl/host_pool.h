/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blocks of the host tier (swap.h) of one cache group: memory of the host, and the transfers between it and the pool
 * on the device. The block manager decides which block goes where; pagedcl_actions_enqueue (actions.h) does it.
 *
 * A host block holds what a block of the pool holds in all layers, as the pool holds it: for each layer K
 * ([block_size, num_kv_heads, head_dim], or the pool's other order, with scale_per_row followed by the scales), then V
 * likewise. Transfers go through a staging buffer on the device: a launch a layer gathers or scatters the blocks there,
 * and one command moves each run of adjacent host blocks. The memory is page-locked where the driver knows how, so that
 * a transfer runs while the host goes on.
 *
 * Threads: a host pool must not be used from two threads at once, nor together with its cache.
 */
#ifndef PAGEDCL_HOST_POOL_H
#define PAGEDCL_HOST_POOL_H

#include <pagedcl/cache.h>
#include <pagedcl/init.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pagedcl_host_pool pagedcl_host_pool;

typedef struct pagedcl_host_pool_desc {
    size_t struct_size;     /* sizeof(pagedcl_host_pool_desc), set by PAGEDCL_HOST_POOL_DESC_INIT */
    int32_t num_blocks;     /* num_host_blocks of the manager, at least 1 */
    uint64_t staging_bytes; /* of the staging buffer on the device, at least a block's; 0: 32 MiB */
    void *memory; /* the caller's own, num_blocks * the bytes of a host block, which must outlive the host pool. NULL:
                     the library allocates */
} pagedcl_host_pool_desc;
#define PAGEDCL_HOST_POOL_DESC_INIT PAGEDCL_INIT(pagedcl_host_pool_desc)

/*
 * Makes a host pool for a cache, which it keeps alive, and builds its kernel (blocking). Its content is undefined.
 * Errors: INVALID_ARGUMENT, UNSUPPORTED (a caller's pool whose strides leave gaps inside a block), SIZE_OVERFLOW,
 * OUT_OF_MEMORY, OUT_OF_DEVICE_MEMORY, BUILD_FAILED.
 */
PAGEDCL_API pagedcl_status pagedcl_host_pool_create(pagedcl_cache *cache, const pagedcl_host_pool_desc *desc,
                                                    pagedcl_host_pool **pool);

/* Waits for the transfers that are under way. NULL is allowed. */
PAGEDCL_API void pagedcl_host_pool_destroy(pagedcl_host_pool *pool);

/* The bytes of a host block of this cache. Errors: INVALID_ARGUMENT, SIZE_OVERFLOW. */
PAGEDCL_API pagedcl_status pagedcl_host_pool_block_bytes(const pagedcl_cache *cache, uint64_t *bytes);

/*
 * Where a host block is, to be read or written while no transfer of it is under way: what a tier behind the host's, such
 * as a disk, needs. Errors: INVALID_ARGUMENT, INVALID_BLOCK.
 */
PAGEDCL_API pagedcl_status pagedcl_host_pool_block(pagedcl_host_pool *pool, int32_t host_block, void **memory);

/*
 * Fills host blocks with zeros before it returns. No transfer of them may be under way: that is so for those which
 * pagedcl_blocks_wipe_host names. Errors: INVALID_ARGUMENT, INVALID_BLOCK.
 */
PAGEDCL_API pagedcl_status pagedcl_host_pool_wipe(pagedcl_host_pool *pool, const int32_t *host_blocks,
                                                  int64_t num_blocks);

#ifdef __cplusplus
}
#endif
#endif
