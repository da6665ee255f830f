/* SPDX-License-Identifier: Apache-2.0 */
#include "host_pool.h"

#include "device.h"
#include "dtype.h"
#include "launch.h"
#include "status.h"
#include "struct_size.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_STAGING = 32 << 20, LARGEST_UNIT = 16 };

static pagedcl_status block_bytes_of(const pagedcl_cache *cache, int64_t *bytes) {
    if (cache == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "cache is NULL");
    if (__builtin_mul_overflow(cache->k.block_bytes + cache->v.block_bytes, cache->desc.num_layers, bytes))
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "a block of %d layers does not fit 2^63 bytes", cache->desc.num_layers);
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_host_pool_block_bytes(const pagedcl_cache *cache, uint64_t *bytes) {
    int64_t block_bytes = 0;
    if (bytes == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "bytes is NULL");
    PCL_TRY(block_bytes_of(cache, &block_bytes));
    *bytes = (uint64_t)block_bytes;
    return PAGEDCL_SUCCESS;
}

/* The largest unit, up to `unit`, that divides everything about a side. */
static int32_t unit_of_side(const pagedcl_cache *cache, const pcl_pool_side *side, int32_t unit) {
    const pagedcl_dtype dtype = cache->desc.dtype;
    int64_t all = side->block_bytes | pcl_dtype_bytes(dtype, side->strides.block);
    for (int32_t layer = 0; layer < cache->desc.num_layers; layer++)
        all |= pcl_dtype_bytes(dtype, side->offsets[layer]);
    while (all % unit != 0)
        unit /= 2;
    return unit;
}

/* Page-locked memory, which is what drivers make of a buffer that they are to allocate on the host. */
static pagedcl_status allocate_part(pagedcl_host_pool *pool, int32_t part, int32_t num_blocks) {
    size_t size = (size_t)num_blocks * (size_t)pool->block_bytes;
    cl_int code = CL_SUCCESS;
    cl_mem buffer =
        clCreateBuffer(pool->cache->device->context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, size, NULL, &code);
    if (code != CL_SUCCESS)
        return pcl_fail_opencl(code, "clCreateBuffer of host memory");
    pool->buffers[part] = buffer;
    char *memory =
        clEnqueueMapBuffer(pool->queue, buffer, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, size, 0, NULL, NULL, &code);
    if (code != CL_SUCCESS)
        return pcl_fail_opencl(code, "clEnqueueMapBuffer of host memory");
    pool->parts[part] = memory;
    return PAGEDCL_SUCCESS;
}

static pagedcl_status make_parts(pagedcl_host_pool *pool, void *memory) {
    const pagedcl_device *device = pool->cache->device;
    uint64_t fit = device->info.max_allocation / (uint64_t)pool->block_bytes;
    pool->part_blocks = memory == NULL && fit < (uint64_t)pool->num_blocks ? (int32_t)fit : pool->num_blocks;
    pool->num_parts = (int32_t)(((int64_t)pool->num_blocks + pool->part_blocks - 1) / pool->part_blocks);
    pool->parts = calloc((size_t)pool->num_parts, sizeof *pool->parts);
    pool->buffers = calloc((size_t)pool->num_parts, sizeof *pool->buffers);
    if (pool->parts == NULL || pool->buffers == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for a host pool of %d blocks", pool->num_blocks);
    if (memory != NULL) {
        pool->parts[0] = memory;
        return PAGEDCL_SUCCESS;
    }
    cl_int code = CL_SUCCESS;
    pool->queue = clCreateCommandQueue(device->context, device->id, 0, &code);
    if (code != CL_SUCCESS)
        return pcl_fail_opencl(code, "clCreateCommandQueue");
    for (int32_t part = 0; part < pool->num_parts; part++) {
        int32_t left = pool->num_blocks - part * pool->part_blocks;
        PCL_TRY(allocate_part(pool, part, left < pool->part_blocks ? left : pool->part_blocks));
    }
    return PAGEDCL_SUCCESS;
}

static pagedcl_status make_staging(pagedcl_host_pool *pool, uint64_t bytes) {
    const pagedcl_device *device = pool->cache->device;
    bytes = bytes == 0 ? DEFAULT_STAGING : bytes;
    if (bytes > device->info.max_allocation)
        bytes = device->info.max_allocation;
    uint64_t fit = bytes / (uint64_t)pool->block_bytes;
    uint64_t most =
        (uint64_t)(pool->num_blocks < pool->cache->desc.num_blocks ? pool->num_blocks : pool->cache->desc.num_blocks);
    fit = fit == 0 ? 1 : fit > most ? most : fit;
    pool->staging_blocks = (int32_t)fit;
    cl_int code = CL_SUCCESS;
    cl_mem staging =
        clCreateBuffer(device->context, CL_MEM_READ_WRITE, (size_t)(fit * (uint64_t)pool->block_bytes), NULL, &code);
    if (code != CL_SUCCESS)
        return pcl_fail_opencl(code, "clCreateBuffer of a staging buffer");
    pool->staging = staging;
    return PAGEDCL_SUCCESS;
}

static pagedcl_status build(pagedcl_host_pool *pool) {
    pcl_variant_init(&pool->variant, "host_pool");
    pcl_cache_macros(pool->cache, &pool->variant);
    pcl_variant_int(&pool->variant, "K_BLOCK_BYTES", pool->cache->k.block_bytes);
    pcl_variant_int(&pool->variant, "V_BLOCK_BYTES", pool->cache->v.block_bytes);
    pcl_variant_int(&pool->variant, "UNIT_BYTES", pool->unit_bytes);
    PCL_TRY(pcl_variants_build(pool->cache->device, &pool->variant, 1, &pool->program));
    return pcl_variant_kernel(&pool->variant, pool->program, &pool->kernel);
}

pagedcl_status pagedcl_host_pool_create(pagedcl_cache *cache, const pagedcl_host_pool_desc *desc,
                                        pagedcl_host_pool **out) {
    pagedcl_host_pool_desc own;
    int64_t block_bytes = 0, bytes = 0;
    if (out == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "pool is NULL");
    PCL_TRY(PCL_READ_STRUCT(&own, desc, memory));
    PCL_TRY(block_bytes_of(cache, &block_bytes));
    if (own.num_blocks < 1)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "num_blocks is %d; a host pool has at least 1", own.num_blocks);
    if (__builtin_mul_overflow(block_bytes, own.num_blocks, &bytes) || (uint64_t)bytes > SIZE_MAX)
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "%d blocks of %" PRId64 " bytes do not fit the host's memory",
                        own.num_blocks, block_bytes);
    if (!cache->k.contiguous || !cache->v.contiguous)
        return pcl_fail(PAGEDCL_UNSUPPORTED, "a block of this pool is not one piece of memory: its strides leave gaps");
    if ((uint64_t)block_bytes > cache->device->info.max_allocation)
        return pcl_fail(PAGEDCL_UNSUPPORTED,
                        "a block of %" PRId64 " bytes in all layers is larger than the largest allocation of %" PRIu64,
                        block_bytes, cache->device->info.max_allocation);
    pagedcl_host_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for a host pool");
    pool->cache = pcl_cache_retain(cache);
    pool->num_blocks = own.num_blocks;
    pool->block_bytes = block_bytes;
    pool->unit_bytes = unit_of_side(cache, &cache->k, LARGEST_UNIT);
    if (!cache->desc.v_in_k)
        pool->unit_bytes = unit_of_side(cache, &cache->v, pool->unit_bytes);
    pagedcl_status status = make_parts(pool, own.memory);
    if (status == PAGEDCL_SUCCESS)
        status = make_staging(pool, own.staging_bytes);
    if (status == PAGEDCL_SUCCESS)
        status = build(pool);
    if (status != PAGEDCL_SUCCESS) {
        pagedcl_host_pool_destroy(pool);
        return status;
    }
    *out = pool;
    return PAGEDCL_SUCCESS;
}

static void release_parts(pagedcl_host_pool *pool) {
    for (int32_t part = 0; pool->buffers != NULL && part < pool->num_parts; part++) {
        if (pool->buffers[part] == NULL)
            continue;
        if (pool->parts[part] != NULL)
            clEnqueueUnmapMemObject(pool->queue, pool->buffers[part], pool->parts[part], 0, NULL, NULL);
        clReleaseMemObject(pool->buffers[part]);
    }
    if (pool->queue != NULL) {
        clFinish(pool->queue);
        clReleaseCommandQueue(pool->queue);
    }
    free(pool->parts);
    free(pool->buffers);
}

void pagedcl_host_pool_destroy(pagedcl_host_pool *pool) {
    if (pool == NULL)
        return;
    /* A failed wait means that the queue is dead and nothing runs. */
    if (pool->last.last != NULL)
        clWaitForEvents(1, &pool->last.last);
    pcl_fence_release(&pool->last);
    release_parts(pool);
    if (pool->staging != NULL)
        clReleaseMemObject(pool->staging);
    if (pool->kernel != NULL)
        clReleaseKernel(pool->kernel);
    if (pool->program != NULL)
        clReleaseProgram(pool->program);
    pagedcl_cache_destroy(pool->cache);
    free(pool);
}

pagedcl_status pcl_host_pool_check_block(const pagedcl_host_pool *pool, const char *what, int64_t index,
                                         int32_t host_block) {
    if (host_block < 0 || host_block >= pool->num_blocks)
        return pcl_fail(PAGEDCL_INVALID_BLOCK, "%s %" PRId64 " names host block %d; the host pool has blocks 0 to %d",
                        what, index, host_block, pool->num_blocks - 1);
    return PAGEDCL_SUCCESS;
}

static char *host_block_at(const pagedcl_host_pool *pool, int32_t host_block) {
    return pool->parts[host_block / pool->part_blocks] + host_block % pool->part_blocks * pool->block_bytes;
}

pagedcl_status pagedcl_host_pool_block(pagedcl_host_pool *pool, int32_t host_block, void **memory) {
    if (pool == NULL || memory == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "pool and memory must not be NULL");
    PCL_TRY(pcl_host_pool_check_block(pool, "entry", 0, host_block));
    *memory = host_block_at(pool, host_block);
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_host_pool_wipe(pagedcl_host_pool *pool, const int32_t *host_blocks, int64_t num_blocks) {
    if (pool == NULL || num_blocks < 0 || (host_blocks == NULL && num_blocks > 0))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "pool and host_blocks must not be NULL, num_blocks not below 0");
    for (int64_t i = 0; i < num_blocks; i++)
        PCL_TRY(pcl_host_pool_check_block(pool, "entry", i, host_blocks[i]));
    for (int64_t i = 0; i < num_blocks; i++)
        memset(host_block_at(pool, host_blocks[i]), 0, (size_t)pool->block_bytes);
    return PAGEDCL_SUCCESS;
}

/* A launch a layer between the pool and the front of the staging buffer. */
static pagedcl_status launch(const pagedcl_host_pool *pool, pcl_chain *chain, cl_mem uploaded, int64_t first,
                             int64_t num_blocks, bool out) {
    const pagedcl_cache *cache = pool->cache;
    int64_t layer_bytes = cache->k.block_bytes + cache->v.block_bytes;
    for (int32_t layer = 0; layer < cache->desc.num_layers; layer++) {
        pcl_arguments arguments = pcl_arguments_of(pool->kernel);
        pcl_cache_arguments(cache, layer, &arguments);
        pcl_argument_mem(&arguments, pool->staging);
        pcl_argument_long(&arguments, layer * layer_bytes / pool->unit_bytes);
        pcl_argument_long(&arguments, pool->block_bytes / pool->unit_bytes);
        pcl_argument_mem(&arguments, uploaded);
        pcl_argument_long(&arguments, out ? first : first + 1);
        pcl_argument_long(&arguments, num_blocks);
        pcl_argument_int(&arguments, out ? 0 : 1);
        PCL_TRY(pcl_launch_items(chain, &arguments, num_blocks, layer_bytes / pool->unit_bytes));
    }
    return PAGEDCL_SUCCESS;
}

/* A command for each run of host blocks that lie side by side, between them and the staging buffer. */
static pagedcl_status transfer(const pagedcl_host_pool *pool, pcl_chain *chain, const int32_t *host_blocks,
                               int64_t num_blocks, bool out) {
    for (int64_t i = 0, run = 0; i < num_blocks; i += run) {
        int32_t first = host_blocks[2 * i];
        for (run = 1; i + run < num_blocks; run++) {
            int32_t next = host_blocks[2 * (i + run)];
            if (next != first + run || next % pool->part_blocks == 0)
                break;
        }
        size_t offset = (size_t)(i * pool->block_bytes), size = (size_t)(run * pool->block_bytes);
        char *at = host_block_at(pool, first);
        PCL_TRY(out ? pcl_chain_read(chain, pool->staging, offset, size, at)
                    : pcl_chain_write(chain, pool->staging, offset, size, at));
    }
    return PAGEDCL_SUCCESS;
}

/* How many transfers go through the staging buffer at once: none of them writes a block of the pool that another writes. */
static int64_t next_count(const pagedcl_host_pool *pool, const int32_t *pairs, int64_t num_pairs, bool out) {
    int64_t most = num_pairs < pool->staging_blocks ? num_pairs : pool->staging_blocks, count = 0;
    int32_t *marks = pool->cache->marks;
    while (count < most && (out || marks[pairs[2 * count + 1]]++ == 0))
        count++;
    for (int64_t i = 0; !out && i < num_pairs && i <= count; i++)
        marks[pairs[2 * i + 1]] = 0;
    return count;
}

pagedcl_status pcl_host_pool_enqueue(pagedcl_host_pool *pool, pcl_chain *chain, const int32_t *pairs, cl_mem uploaded,
                                     int64_t first, int64_t num_pairs, bool out) {
    PCL_TRY(pcl_fence_wait(&pool->last, chain));
    pagedcl_status status = PAGEDCL_SUCCESS;
    for (int64_t done = 0, count = 0; done < num_pairs && status == PAGEDCL_SUCCESS; done += count) {
        const int32_t *next = pairs + 2 * done;
        count = next_count(pool, next, num_pairs - done, out);
        if (out)
            status = launch(pool, chain, uploaded, first + 2 * done, count, out);
        if (status == PAGEDCL_SUCCESS)
            status = transfer(pool, chain, out ? next + 1 : next, count, out);
        if (!out && status == PAGEDCL_SUCCESS)
            status = launch(pool, chain, uploaded, first + 2 * done, count, out);
    }
    /* After a failure too: the commands before it still use the buffers. */
    pcl_fence_set(&pool->last, chain);
    return status;
}
