/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of sequences (blocks_file.h) from and into pools on devices: the transfers that pagedcl_blocks_save and
 * pagedcl_blocks_load call, for pools of this library. Each waits until it is done.
 *
 *     pagedcl_kv_geometry geometry;
 *     pagedcl_cache_geometry(cache, &geometry);            one for each group
 *     pagedcl_cache_transfer transfer = PAGEDCL_CACHE_TRANSFER_INIT;
 *     transfer.caches = &cache;
 *     transfer.num_groups = 1;
 *     pagedcl_blocks_save(blocks, path, &geometry, seqs, num_seqs, pagedcl_cache_save, &transfer);
 *     pagedcl_blocks_load(blocks, path, &geometry, pagedcl_cache_load, &transfer, seqs, capacity, &num_seqs);
 *
 * Pools of every dtype, scales and layout go into files and come back bit for bit, into any layout. Those whose scales are
 * the pool's own, k_scale and v_scale, load into pools with the same ones: that another one is refused keeps elements as
 * they are.
 */
#ifndef PAGEDCL_CACHE_FILE_H
#define PAGEDCL_CACHE_FILE_H

#include <pagedcl/blocks_file.h>
#include <pagedcl/cache.h>
#include <pagedcl/init.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the transfers take as `user`. */
typedef struct pagedcl_cache_transfer {
    size_t struct_size;           /* sizeof(pagedcl_cache_transfer), set by PAGEDCL_CACHE_TRANSFER_INIT */
    pagedcl_cache *const *caches; /* [num_groups] */
    int32_t num_groups;
    cl_command_queue queue; /* NULL: that of each cache's device */
} pagedcl_cache_transfer;
#define PAGEDCL_CACHE_TRANSFER_INIT PAGEDCL_INIT(pagedcl_cache_transfer)

/* What the pool holds for a token. Errors: INVALID_ARGUMENT. */
PAGEDCL_API pagedcl_status pagedcl_cache_geometry(const pagedcl_cache *cache, pagedcl_kv_geometry *geometry);

/*
 * A pagedcl_kv_transfer from the device, and one to it. They allocate a block's memory on the host.
 * Errors: INVALID_ARGUMENT, INVALID_BLOCK, INVALID_SLOT, SIZE_OVERFLOW, OUT_OF_MEMORY, OPENCL_ERROR.
 */
PAGEDCL_API pagedcl_status pagedcl_cache_save(void *user, int32_t group, int32_t block, int32_t first_slot,
                                              int32_t num_slots, void *kv);
PAGEDCL_API pagedcl_status pagedcl_cache_load(void *user, int32_t group, int32_t block, int32_t first_slot,
                                              int32_t num_slots, void *kv);

#ifdef __cplusplus
}
#endif
#endif
