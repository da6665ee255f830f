/* SPDX-License-Identifier: Apache-2.0 */
/* Whole blocks of a pool: copy, wipe, upload, download. */
#include "cache.h"

#include "dtype.h"
#include "launch.h"
#include "status.h"

#include <inttypes.h>

enum { MARK_READ = 1, MARK_WRITTEN = 2 };

pagedcl_status pcl_cache_check_block(const pagedcl_cache *cache, const char *what, int64_t index, int32_t block) {
    if (block < 0 || block >= cache->desc.num_blocks)
        return pcl_fail(PAGEDCL_INVALID_BLOCK, "%s %" PRId64 " names block %d; the pool has blocks 0 to %d", what,
                        index, block, cache->desc.num_blocks - 1);
    return PAGEDCL_SUCCESS;
}

/*
 * How many of the pairs, from the first on, may be copied at once: until one reads a block that an earlier one wrote,
 * or writes one that an earlier one read or wrote.
 */
static int64_t independent_pairs(pagedcl_cache *cache, const int32_t *pairs, int64_t num_pairs) {
    int64_t count = 0;
    for (; count < num_pairs; count++) {
        int32_t *from = &cache->marks[pairs[2 * count]], *to = &cache->marks[pairs[2 * count + 1]];
        if ((*from & MARK_WRITTEN) != 0 || *to != 0)
            break;
        *from |= MARK_READ;
        *to |= MARK_WRITTEN;
    }
    for (int64_t i = 0; i < 2 * count; i++)
        cache->marks[pairs[i]] = 0;
    return count;
}

pagedcl_status pcl_cache_enqueue_copy(const pagedcl_cache *cache, pcl_chain *chain, int32_t layer, cl_mem pairs,
                                      int64_t first, int64_t num_pairs) {
    pcl_arguments arguments = pcl_arguments_of(cache->kernels[PCL_CACHE_COPY]);
    pcl_cache_arguments(cache, layer, &arguments);
    pcl_argument_mem(&arguments, pairs);
    pcl_argument_long(&arguments, first);
    pcl_argument_long(&arguments, num_pairs);
    return pcl_launch_items(chain, &arguments, num_pairs, cache->desc.block_size * cache->token_items);
}

pagedcl_status pcl_cache_enqueue_wipe(const pagedcl_cache *cache, pcl_chain *chain, int32_t layer, cl_mem blocks,
                                      int64_t first, int64_t num_blocks) {
    pcl_arguments arguments = pcl_arguments_of(cache->kernels[PCL_CACHE_WIPE]);
    pcl_cache_arguments(cache, layer, &arguments);
    pcl_argument_mem(&arguments, blocks);
    pcl_argument_long(&arguments, first);
    pcl_argument_long(&arguments, num_blocks);
    return pcl_launch_items(chain, &arguments, num_blocks, cache->desc.block_size * cache->token_items);
}

pagedcl_status pcl_cache_enqueue_copies(pagedcl_cache *cache, pcl_chain *chain, const int32_t *pairs, int64_t first,
                                        int64_t num_pairs) {
    cl_mem uploaded = pcl_upload_buffer(&cache->upload);
    for (int64_t done = 0, count = 0; done < num_pairs; done += count) {
        count = independent_pairs(cache, pairs + 2 * done, num_pairs - done);
        for (int32_t layer = 0; layer < cache->desc.num_layers; layer++)
            PCL_TRY(pcl_cache_enqueue_copy(cache, chain, layer, uploaded, first + 2 * done, count));
    }
    return PAGEDCL_SUCCESS;
}

pagedcl_status pcl_cache_enqueue_wipes(pagedcl_cache *cache, pcl_chain *chain, int64_t first, int64_t num_pairs) {
    cl_mem uploaded = pcl_upload_buffer(&cache->upload);
    for (int32_t layer = 0; layer < cache->desc.num_layers; layer++)
        PCL_TRY(pcl_cache_enqueue_wipe(cache, chain, layer, uploaded, first + 1, num_pairs));
    return PAGEDCL_SUCCESS;
}

/* Uploads pairs of blocks, or single ones as the second of a pair, and enqueues their copies or wipes. */
static pagedcl_status upload_and_enqueue(pagedcl_cache *cache, pcl_chain *chain, const int32_t *blocks,
                                         int64_t num_pairs, bool wipe) {
    size_t size = (size_t)num_pairs * 2 * sizeof *blocks;
    void *staging = NULL;
    PCL_TRY(pcl_upload_begin(&cache->upload, size, &staging));
    int32_t *pairs = staging;
    for (int64_t i = 0; i < num_pairs; i++) {
        pairs[2 * i] = wipe ? -1 : blocks[2 * i];
        pairs[2 * i + 1] = wipe ? blocks[i] : blocks[2 * i + 1];
    }
    PCL_TRY(pcl_upload_send(&cache->upload, chain, size));
    pagedcl_status status = wipe ? pcl_cache_enqueue_wipes(cache, chain, 0, num_pairs)
                                 : pcl_cache_enqueue_copies(cache, chain, pairs, 0, num_pairs);
    /* After a failure too: the commands before it still read the pairs. */
    pcl_upload_used(&cache->upload, chain);
    return status;
}

pagedcl_status pagedcl_cache_copy_blocks(pagedcl_cache *cache, cl_command_queue queue, const int32_t *pairs,
                                         int64_t num_pairs, cl_uint num_events, const cl_event *events,
                                         cl_event *event) {
    PCL_TRY(pcl_cache_check_layer(cache, 0));
    if (num_pairs < 0 || (pairs == NULL && num_pairs > 0))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "pairs must not be NULL, num_pairs not below 0");
    if (num_pairs > INT32_MAX)
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "%" PRId64 " pairs", num_pairs);
    for (int64_t i = 0; i < num_pairs; i++) {
        PCL_TRY(pcl_cache_check_block(cache, "pair", i, pairs[2 * i]));
        PCL_TRY(pcl_cache_check_block(cache, "pair", i, pairs[2 * i + 1]));
        if (pairs[2 * i] == pairs[2 * i + 1])
            return pcl_fail(PAGEDCL_INVALID_BLOCK, "pair %" PRId64 " copies block %d to itself", i, pairs[2 * i]);
    }
    pcl_chain chain;
    PCL_TRY(pcl_chain_begin(&chain, cache->device, queue, num_events, events));
    pagedcl_status status = PAGEDCL_SUCCESS;
    if (num_pairs > 0)
        status = upload_and_enqueue(cache, &chain, pairs, num_pairs, false);
    return pcl_chain_end(&chain, status, event);
}

pagedcl_status pagedcl_cache_wipe_blocks(pagedcl_cache *cache, cl_command_queue queue, const int32_t *blocks,
                                         int64_t num_blocks, cl_uint num_events, const cl_event *events,
                                         cl_event *event) {
    PCL_TRY(pcl_cache_check_layer(cache, 0));
    if (num_blocks < 0 || (blocks == NULL && num_blocks > 0))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "blocks must not be NULL, num_blocks not below 0");
    if (num_blocks > INT32_MAX)
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "%" PRId64 " blocks", num_blocks);
    for (int64_t i = 0; i < num_blocks; i++)
        PCL_TRY(pcl_cache_check_block(cache, "entry", i, blocks[i]));
    pcl_chain chain;
    PCL_TRY(pcl_chain_begin(&chain, cache->device, queue, num_events, events));
    pagedcl_status status = PAGEDCL_SUCCESS;
    if (num_blocks > 0)
        status = upload_and_enqueue(cache, &chain, blocks, num_blocks, true);
    return pcl_chain_end(&chain, status, event);
}

/* Checks the blocks of a transfer: in the pool and, when `once`, none of them twice. */
static pagedcl_status check_blocks(pagedcl_cache *cache, const int32_t *blocks, int64_t num_blocks, bool once) {
    if (num_blocks < 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "num_blocks is %" PRId64, num_blocks);
    if (blocks == NULL && num_blocks > cache->desc.num_blocks)
        return pcl_fail(PAGEDCL_INVALID_BLOCK, "%" PRId64 " blocks of a pool of %d", num_blocks,
                        cache->desc.num_blocks);
    if (blocks == NULL)
        return PAGEDCL_SUCCESS;
    pagedcl_status status = PAGEDCL_SUCCESS;
    int64_t marked = 0;
    for (; marked < num_blocks && status == PAGEDCL_SUCCESS; marked++) {
        status = pcl_cache_check_block(cache, "entry", marked, blocks[marked]);
        if (status != PAGEDCL_SUCCESS)
            break;
        if (once && cache->marks[blocks[marked]] != 0)
            status = pcl_fail(PAGEDCL_INVALID_BLOCK, "entry %" PRId64 " names block %d, which an earlier one names too",
                              marked, blocks[marked]);
        cache->marks[blocks[marked]] = MARK_WRITTEN;
    }
    for (int64_t i = 0; i < marked; i++)
        cache->marks[blocks[i]] = 0;
    return status;
}

/* One command for each run of blocks that lie side by side in a segment. */
static pagedcl_status enqueue_side(const pagedcl_cache *cache, const pcl_pool_side *side, pcl_chain *chain,
                                   int32_t layer, const int32_t *blocks, int64_t num_blocks, char *host, bool upload) {
    const pagedcl_dtype dtype = cache->desc.dtype;
    const int64_t block_stride = pcl_dtype_bytes(dtype, side->strides.block);
    bool adjacent = block_stride == side->block_bytes;
    for (int64_t i = 0, run = 0; i < num_blocks && side->block_bytes > 0; i += run) {
        int32_t first = blocks != NULL ? blocks[i] : (int32_t)i;
        int32_t segment = first >> cache->segment_shift;
        for (run = 1; adjacent && i + run < num_blocks; run++) {
            int32_t next = blocks != NULL ? blocks[i + run] : (int32_t)(i + run);
            if (next != first + run || next >> cache->segment_shift != segment)
                break;
        }
        int64_t inside = first - ((int64_t)segment << cache->segment_shift);
        size_t offset = (size_t)(pcl_dtype_bytes(dtype, side->offsets[layer]) + inside * block_stride);
        size_t size = (size_t)(run * side->block_bytes);
        cl_mem buffer = side->buffers[(int64_t)layer * cache->num_segments + segment];
        char *at = host + i * side->block_bytes;
        PCL_TRY(upload ? pcl_chain_write(chain, buffer, offset, size, at)
                       : pcl_chain_read(chain, buffer, offset, size, at));
    }
    return PAGEDCL_SUCCESS;
}

static pagedcl_status enqueue_transfer(const pagedcl_cache *cache, pcl_chain *chain, int32_t layer,
                                       const int32_t *blocks, int64_t num_blocks, void *host[2], bool upload) {
    PCL_TRY(enqueue_side(cache, &cache->k, chain, layer, blocks, num_blocks, host[0], upload));
    return enqueue_side(cache, &cache->v, chain, layer, blocks, num_blocks, host[1], upload);
}

static pagedcl_status transfer(pagedcl_cache *cache, cl_command_queue queue, int32_t layer, const int32_t *blocks,
                               int64_t num_blocks, void *host[2], bool upload, cl_uint num_events,
                               const cl_event *events, cl_event *event) {
    PCL_TRY(pcl_cache_check_layer(cache, layer));
    PCL_TRY(check_blocks(cache, blocks, num_blocks, upload));
    if (cache->desc.v_in_k && host[1] != NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "v is given, but V of this pool lies in K");
    if (num_blocks > 0 && (host[0] == NULL || (host[1] == NULL && !cache->desc.v_in_k)))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "k and v must not be NULL");
    if (!cache->k.contiguous || !cache->v.contiguous)
        return pcl_fail(PAGEDCL_UNSUPPORTED, "a block of this pool is not one piece of memory: its strides leave gaps");
    pcl_chain chain;
    PCL_TRY(pcl_chain_begin(&chain, cache->device, queue, num_events, events));
    return pcl_chain_end(&chain, enqueue_transfer(cache, &chain, layer, blocks, num_blocks, host, upload), event);
}

pagedcl_status pagedcl_cache_upload_blocks(pagedcl_cache *cache, cl_command_queue queue, int32_t layer,
                                           const int32_t *blocks, int64_t num_blocks, const void *k, const void *v,
                                           cl_uint num_events, const cl_event *events, cl_event *event) {
    void *host[2] = {(void *)k, (void *)v}; /* only read when uploading */
    return transfer(cache, queue, layer, blocks, num_blocks, host, true, num_events, events, event);
}

pagedcl_status pagedcl_cache_download_blocks(pagedcl_cache *cache, cl_command_queue queue, int32_t layer,
                                             const int32_t *blocks, int64_t num_blocks, void *k, void *v,
                                             cl_uint num_events, const cl_event *events, cl_event *event) {
    void *host[2] = {k, v};
    return transfer(cache, queue, layer, blocks, num_blocks, host, false, num_events, events, event);
}
