/* SPDX-License-Identifier: Apache-2.0 */
#include "cache.h"

#include "device.h"
#include "status.h"
#include "struct_size.h"
#include "warm.h"

#include <inttypes.h>
#include <stdlib.h>

enum { MAX_HEAD_DIM = 256, MAX_BLOCKS = 1 << 30 };

/* Checks a description and fills in its defaults. */
static pagedcl_status read_desc(const pagedcl_cache_desc *desc, pagedcl_cache_desc *own) {
    PCL_TRY(PCL_READ_STRUCT(own, desc, max_segment_bytes));
    if (own->num_layers == 0)
        own->num_layers = 1;
    if (own->dtype == PAGEDCL_DTYPE_DEFAULT)
        own->dtype = PAGEDCL_FLOAT16;
    if (own->num_layers < 1 || own->num_blocks < 1 || own->block_size < 1 || own->num_kv_heads < 1)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "num_layers %d, num_blocks %d, block_size %d and num_kv_heads %d must be at least 1",
                        own->num_layers, own->num_blocks, own->block_size, own->num_kv_heads);
    if (own->num_blocks > MAX_BLOCKS)
        return pcl_fail(PAGEDCL_UNSUPPORTED, "num_blocks %d is more than %d", own->num_blocks, MAX_BLOCKS);
    if (own->head_dim < 8 || own->head_dim > MAX_HEAD_DIM || own->head_dim % 8 != 0)
        return pcl_fail(PAGEDCL_UNSUPPORTED, "head_dim %d is not a multiple of 8 from 8 to %d", own->head_dim,
                        MAX_HEAD_DIM);
    if (pagedcl_dtype_size(own->dtype) == 0)
        return pcl_fail(PAGEDCL_UNSUPPORTED, "dtype %d is not one of pagedcl_dtype", (int)own->dtype);
    return PAGEDCL_SUCCESS;
}

/* Bytes of K of one block in one layer, and of the whole pool. */
static pagedcl_status sizes_of(const pagedcl_cache_desc *desc, int64_t *block_bytes, int64_t *pool_bytes) {
    int64_t block = (int64_t)pagedcl_dtype_size(desc->dtype), pool = 0;
    if (__builtin_mul_overflow(block, desc->head_dim, &block) ||
        __builtin_mul_overflow(block, desc->num_kv_heads, &block) ||
        __builtin_mul_overflow(block, desc->block_size, &block) || __builtin_mul_overflow(block, 2, &pool) ||
        __builtin_mul_overflow(pool, desc->num_blocks, &pool) || __builtin_mul_overflow(pool, desc->num_layers, &pool))
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW,
                        "a pool of %d layers, %d blocks of %d tokens, %d heads of %d does not fit 2^63 bytes",
                        desc->num_layers, desc->num_blocks, desc->block_size, desc->num_kv_heads, desc->head_dim);
    *block_bytes = block;
    *pool_bytes = pool;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_cache_bytes(const pagedcl_cache_desc *desc, uint64_t *bytes) {
    pagedcl_cache_desc own;
    int64_t block_bytes = 0, pool_bytes = 0;
    if (bytes == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "bytes is NULL");
    PCL_TRY(read_desc(desc, &own));
    PCL_TRY(sizes_of(&own, &block_bytes, &pool_bytes));
    *bytes = (uint64_t)pool_bytes;
    return PAGEDCL_SUCCESS;
}

/* Divides a layer's blocks into segments that the device can allocate. */
static pagedcl_status divide(pagedcl_cache *cache) {
    const pagedcl_cache_desc *desc = &cache->desc;
    uint64_t largest = cache->device->info.max_allocation;
    if (desc->max_segment_bytes != 0 && desc->max_segment_bytes < largest)
        largest = desc->max_segment_bytes;
    uint64_t fit = largest / (uint64_t)cache->block_bytes;
    if (fit == 0)
        return pcl_fail(PAGEDCL_POOL_TOO_LARGE,
                        "a block of %" PRId64 " bytes is larger than the largest allocation of %" PRIu64
                        " bytes; use a smaller block_size",
                        cache->block_bytes, largest);
    /* 2^30 blocks, the most there may be, stand for no division. */
    cache->segment_shift = 30;
    cache->num_segments = 1;
    if (fit < (uint64_t)desc->num_blocks) {
        while ((UINT64_C(1) << cache->segment_shift) > fit)
            cache->segment_shift--;
        int64_t blocks = INT64_C(1) << cache->segment_shift, count = (desc->num_blocks + blocks - 1) / blocks;
        if (count > PCL_MAX_SEGMENTS)
            return pcl_fail(PAGEDCL_POOL_TOO_LARGE,
                            "K of a layer has %" PRId64 " bytes: with a largest allocation of %" PRIu64
                            " bytes it needs %" PRId64 " segments, and %d is the most",
                            cache->block_bytes * desc->num_blocks, largest, count, PCL_MAX_SEGMENTS);
        cache->num_segments = (int32_t)count;
    }
    cache->num_parameters = 1;
    while (cache->num_parameters < cache->num_segments)
        cache->num_parameters *= 2;
    return PAGEDCL_SUCCESS;
}

static pagedcl_status allocate(pagedcl_cache *cache) {
    size_t count = (size_t)cache->desc.num_layers * (size_t)cache->num_segments;
    cache->k = calloc(count, sizeof *cache->k);
    cache->v = calloc(count, sizeof *cache->v);
    cache->marks = calloc((size_t)cache->desc.num_blocks, sizeof *cache->marks);
    cache->slot_marks = calloc(((size_t)cache->desc.num_blocks * (size_t)cache->desc.block_size + 7) / 8, 1);
    if (cache->k == NULL || cache->v == NULL || cache->marks == NULL || cache->slot_marks == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for a pool of %d layers and %d blocks",
                        cache->desc.num_layers, cache->desc.num_blocks);
    for (size_t i = 0; i < 2 * count; i++) {
        int64_t first = (int64_t)(i / 2 % (size_t)cache->num_segments) << cache->segment_shift;
        int64_t blocks = cache->desc.num_blocks - first;
        if (blocks > INT64_C(1) << cache->segment_shift)
            blocks = INT64_C(1) << cache->segment_shift;
        cl_int code = CL_SUCCESS;
        cl_mem *mem = i % 2 == 0 ? &cache->k[i / 2] : &cache->v[i / 2];
        *mem = clCreateBuffer(cache->device->context, CL_MEM_READ_WRITE, (size_t)(blocks * cache->block_bytes), NULL,
                              &code);
        if (code != CL_SUCCESS) {
            *mem = NULL;
            return pcl_fail_opencl(code, "clCreateBuffer of a pool segment");
        }
    }
    return PAGEDCL_SUCCESS;
}

static pagedcl_status build(pagedcl_cache *cache) {
    static const char *const names[PCL_CACHE_KERNELS] = {"cache_write", "cache_gather", "cache_copy"};
    for (int i = 0; i < PCL_CACHE_KERNELS; i++) {
        pcl_variant_init(&cache->variants[i], names[i]);
        pcl_cache_macros(cache, &cache->variants[i]);
    }
    PCL_TRY(pcl_variants_build(cache->device, cache->variants, PCL_CACHE_KERNELS, cache->programs));
    for (int i = 0; i < PCL_CACHE_KERNELS; i++)
        PCL_TRY(pcl_variant_kernel(&cache->variants[i], cache->programs[i], &cache->kernels[i]));
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_cache_create(pagedcl_device *device, const pagedcl_cache_desc *desc, pagedcl_cache **out) {
    if (device == NULL || out == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "device and cache must not be NULL");
    pagedcl_cache_desc own;
    int64_t block_bytes = 0, pool_bytes = 0;
    PCL_TRY(read_desc(desc, &own));
    PCL_TRY(sizes_of(&own, &block_bytes, &pool_bytes));
    if ((uint64_t)pool_bytes > device->info.global_memory)
        return pcl_fail(PAGEDCL_POOL_TOO_LARGE,
                        "a pool of %d layers and %d blocks has %" PRId64 " bytes, the device has %" PRIu64,
                        own.num_layers, own.num_blocks, pool_bytes, device->info.global_memory);
    pagedcl_cache *cache = calloc(1, sizeof *cache);
    if (cache == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for a cache");
    atomic_init(&cache->references, 1);
    cache->device = pcl_device_retain(device);
    cache->desc = own;
    cache->row_elements = (int64_t)own.num_kv_heads * own.head_dim;
    cache->block_bytes = block_bytes;
    pcl_upload_init(&cache->upload, device->context);
    pagedcl_status status = divide(cache);
    if (status == PAGEDCL_SUCCESS)
        status = allocate(cache);
    if (status == PAGEDCL_SUCCESS)
        status = build(cache);
    if (status == PAGEDCL_SUCCESS)
        status = pcl_warm_cache(cache);
    if (status != PAGEDCL_SUCCESS) {
        pagedcl_cache_destroy(cache);
        return status;
    }
    *out = cache;
    return PAGEDCL_SUCCESS;
}

pagedcl_cache *pcl_cache_retain(pagedcl_cache *cache) {
    atomic_fetch_add(&cache->references, 1);
    return cache;
}

void pagedcl_cache_destroy(pagedcl_cache *cache) {
    if (cache == NULL || atomic_fetch_sub(&cache->references, 1) > 1)
        return;
    pcl_upload_release(&cache->upload);
    for (int i = 0; i < PCL_CACHE_KERNELS; i++) {
        if (cache->kernels[i] != NULL)
            clReleaseKernel(cache->kernels[i]);
        if (cache->programs[i] != NULL)
            clReleaseProgram(cache->programs[i]);
    }
    size_t count = (size_t)cache->desc.num_layers * (size_t)cache->num_segments;
    for (size_t i = 0; i < count; i++) {
        if (cache->k != NULL && cache->k[i] != NULL)
            clReleaseMemObject(cache->k[i]);
        if (cache->v != NULL && cache->v[i] != NULL)
            clReleaseMemObject(cache->v[i]);
    }
    free(cache->k);
    free(cache->v);
    free(cache->marks);
    free(cache->slot_marks);
    pagedcl_device_destroy(cache->device);
    free(cache);
}

pagedcl_status pagedcl_cache_get_desc(const pagedcl_cache *cache, pagedcl_cache_desc *desc) {
    if (cache == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "cache is NULL");
    return PCL_FILL_STRUCT(desc, &cache->desc, max_segment_bytes);
}

void pcl_cache_macros(const pagedcl_cache *cache, pcl_variant *variant) {
    pcl_variant_int(variant, "BLOCK_SIZE", cache->desc.block_size);
    pcl_variant_int(variant, "NUM_KV_HEADS", cache->desc.num_kv_heads);
    pcl_variant_int(variant, "HEAD_DIM", cache->desc.head_dim);
    pcl_variant_int(variant, "NUM_SEGMENTS", cache->num_parameters);
    pcl_variant_dtype(variant, "KV_DTYPE", cache->desc.dtype);
}

void pcl_cache_arguments(const pagedcl_cache *cache, int32_t layer, pcl_arguments *arguments) {
    for (int which = 0; which < 2; which++) {
        const cl_mem *segments = (which == 0 ? cache->k : cache->v) + (int64_t)layer * cache->num_segments;
        /* A parameter behind the last segment is never used, but must be a buffer. */
        for (int32_t i = 0; i < cache->num_parameters; i++)
            pcl_argument_mem(arguments, segments[i < cache->num_segments ? i : 0]);
    }
    pcl_argument_int(arguments, cache->segment_shift);
}

pagedcl_status pcl_cache_check_layer(const pagedcl_cache *cache, int32_t layer) {
    if (cache == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "cache is NULL");
    if (layer < 0 || layer >= cache->desc.num_layers)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "layer %d of a cache of %d layers", layer, cache->desc.num_layers);
    return PAGEDCL_SUCCESS;
}
