/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PCL_CACHE_H
#define PCL_CACHE_H

#include "arguments.h"
#include "chain.h"
#include "faults.h"
#include "upload.h"
#include "variant.h"

#include <pagedcl/cache.h>

#include <stdatomic.h>

enum { PCL_MAX_SEGMENTS = 8 };

typedef enum pcl_cache_kernel {
    PCL_CACHE_WRITE,
    PCL_CACHE_GATHER,
    PCL_CACHE_COPY,
    PCL_CACHE_WIPE,
    PCL_CACHE_KERNELS
} pcl_cache_kernel;

/* K, or V, of a pool. */
typedef struct pcl_pool_side {
    cl_mem *buffers;  /* [num_layers][num_segments], retained */
    int64_t *offsets; /* [num_layers], elements */
    int32_t head_dim;
    pagedcl_pool_strides strides;
    bool contiguous;       /* a block is one piece of memory: block_bytes from its beginning on */
    int64_t block_bytes;   /* of a block in one layer, its scales included; 0: V that lies in K */
    int64_t scales_offset; /* where in these the scales begin */
} pcl_pool_side;

struct pagedcl_cache {
    atomic_int references;
    pagedcl_device *device;  /* retained */
    pagedcl_cache_desc desc; /* without defaults */
    bool adopted;            /* the buffers are the caller's */
    int32_t item_vectors;    /* TUNE_VECTORS of the kernels: what a work-item moves of a row */
    int64_t token_items;     /* the kernels' work-items for a token: NUM_KV_HEADS * ROW_ITEMS */
    int32_t segment_shift;   /* a segment has 2^segment_shift blocks */
    int32_t num_segments;    /* buffers of K, and of V, of a layer */
    int32_t num_parameters;  /* the kernels' NUM_SEGMENTS: num_segments, rounded up to 1, 2, 4 or 8 */
    pcl_pool_side k, v;
    cl_program program;
    cl_kernel kernels[PCL_CACHE_KERNELS];
    pcl_upload upload;
    pcl_faults faults; /* of slots on the device */
    /* Scratch of the checks, all 0 outside calls: a number per block, a bit per slot. */
    int32_t *marks;
    unsigned char *slot_marks;
};

/* One more owner; pagedcl_cache_destroy drops it. */
pagedcl_cache *pcl_cache_retain(pagedcl_cache *cache);

/* What a gather gives: the pool's dtype, or float32 where that is quantised. */
pagedcl_dtype pcl_cache_gathered_dtype(const pagedcl_cache *cache);

/* Adds the pool's macros to a variant: those of cl/lib/pool.h. */
void pcl_cache_macros(const pagedcl_cache *cache, pcl_variant *variant);

/* Sets the pool's arguments, POOL_PARAMS of cl/lib/pool.h, for a layer. */
void pcl_cache_arguments(const pagedcl_cache *cache, int32_t layer, pcl_arguments *arguments);

/* Errors: INVALID_ARGUMENT for a NULL cache or a layer that it does not have. */
pagedcl_status pcl_cache_check_layer(const pagedcl_cache *cache, int32_t layer);

/* Errors: INVALID_BLOCK for a block that the pool does not have; `what` and `index` say who names it. */
pagedcl_status pcl_cache_check_block(const pagedcl_cache *cache, const char *what, int64_t index, int32_t block);

/*
 * Enqueues the write of num_slots rows with slots that are on the device already, from element slots_offset (int64)
 * of a buffer on; tensors are checked and complete. Slots that the pool does not have are skipped and counted.
 */
pagedcl_status pcl_cache_enqueue_write(const pagedcl_cache *cache, pcl_chain *chain, int32_t layer,
                                       const pagedcl_tensor *k, const pagedcl_tensor *v, pagedcl_dtype dtype,
                                       cl_mem slots, int64_t slots_offset, int64_t num_slots);

/* The same for a gather into contiguous rows from the tensors' offsets on. */
pagedcl_status pcl_cache_enqueue_gather(const pagedcl_cache *cache, pcl_chain *chain, int32_t layer, cl_mem slots,
                                        int64_t num_slots, const pagedcl_tensor *k, const pagedcl_tensor *v);

/* The same for copies of blocks in a layer: pairs from element `first` (int32) of a buffer on, independent ones. */
pagedcl_status pcl_cache_enqueue_copy(const pagedcl_cache *cache, pcl_chain *chain, int32_t layer, cl_mem pairs,
                                      int64_t first, int64_t num_pairs);

/* The same for wipes: every other element (int32) of a buffer from `first` on is a block. */
pagedcl_status pcl_cache_enqueue_wipe(const pagedcl_cache *cache, pcl_chain *chain, int32_t layer, cl_mem blocks,
                                      int64_t first, int64_t num_blocks);

/*
 * Copies in all layers, in their order, independent ones at once; wipes of the second block of each pair. They are
 * checked, and the device has the pairs in the buffer that cache->upload sent last, from element `first` on.
 */
pagedcl_status pcl_cache_enqueue_copies(pagedcl_cache *cache, pcl_chain *chain, const int32_t *pairs, int64_t first,
                                        int64_t num_pairs);
pagedcl_status pcl_cache_enqueue_wipes(pagedcl_cache *cache, pcl_chain *chain, int64_t first, int64_t num_pairs);

#endif
