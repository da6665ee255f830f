/* SPDX-License-Identifier: Apache-2.0 */
#include "cache.h"

#include "device.h"
#include "dtype.h"
#include "scales.h"
#include "status.h"
#include "struct_size.h"
#include "tensor.h"
#include "warm.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEAD_DIM = 576, MAX_BLOCKS = 1 << 30 };

/* Whether scales lie behind a block's elements. */
static bool has_stored_scales(const pagedcl_cache_desc *desc) {
    return pcl_scales_stored(desc->dtype, desc->scale_per_row, desc->head_dim) > 0;
}

static pagedcl_status read_scales(pagedcl_cache_desc *own) {
    pcl_scales scales = {own->dtype, own->v_in_k, own->scale_per_row, own->k_scale, own->v_scale};
    PCL_TRY(pcl_scales_read(&scales));
    own->k_scale = scales.k;
    own->v_scale = scales.v;
    if (own->buffers != NULL && own->dtype == PAGEDCL_INT4)
        return pcl_fail(PAGEDCL_UNSUPPORTED, "an int4 pool in the caller's buffers: the library allocates these, with "
                                             "the scales behind each block's elements");
    if (own->buffers != NULL && own->scale_per_row)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "scale_per_row is 1, but the pool is in the caller's buffers");
    return PAGEDCL_SUCCESS;
}

static bool is_set(const pagedcl_pool_strides *strides) {
    return (strides->block | strides->token | strides->head) != 0;
}

/* What belongs to the caller's buffers, or to V, is set only where there are such. */
static pagedcl_status check_buffers(const pagedcl_cache_desc *own) {
    if (own->buffers == NULL && (is_set(&own->k_strides) || is_set(&own->v_strides)))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "k_strides or v_strides are set, but buffers is NULL");
    if (own->buffers != NULL && own->max_segment_bytes != 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "max_segment_bytes is %" PRIu64 ", but the pool is in the caller's buffers",
                        own->max_segment_bytes);
    if (own->v_in_k && is_set(&own->v_strides))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "v_strides are set, but V lies in K");
    for (int32_t layer = 0; own->buffers != NULL && own->v_in_k && layer < own->num_layers; layer++)
        if (own->buffers[layer].v != NULL || own->buffers[layer].v_offset != 0)
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "buffers[%d] has a v, or a v_offset, but V lies in K", layer);
    return PAGEDCL_SUCCESS;
}

/* Checks a description and fills in its defaults. */
static pagedcl_status read_desc(const pagedcl_cache_desc *desc, pagedcl_cache_desc *own) {
    PCL_TRY(PCL_READ_STRUCT(own, desc, max_segment_bytes));
    if (own->num_layers == 0)
        own->num_layers = 1;
    if (own->dtype == PAGEDCL_DTYPE_DEFAULT)
        own->dtype = PAGEDCL_FLOAT16;
    if (own->head_dim_v == 0)
        own->head_dim_v = own->head_dim;
    if (own->num_layers < 1 || own->num_blocks < 1 || own->block_size < 1 || own->num_kv_heads < 1)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "num_layers %d, num_blocks %d, block_size %d and num_kv_heads %d must be at least 1",
                        own->num_layers, own->num_blocks, own->block_size, own->num_kv_heads);
    if (own->num_blocks > MAX_BLOCKS)
        return pcl_fail(PAGEDCL_UNSUPPORTED, "num_blocks %d is more than %d", own->num_blocks, MAX_BLOCKS);
    if (own->head_dim < 1 || own->head_dim > MAX_HEAD_DIM || own->head_dim_v < 1 || own->head_dim_v > MAX_HEAD_DIM)
        return pcl_fail(PAGEDCL_UNSUPPORTED, "head_dim %d and head_dim_v %d must be 1 to %d", own->head_dim,
                        own->head_dim_v, MAX_HEAD_DIM);
    if (own->v_in_k != 0 && (own->v_in_k != 1 || own->head_dim_v > own->head_dim))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "v_in_k is %d, with head_dim %d and head_dim_v %d: V must fit K's row", own->v_in_k,
                        own->head_dim, own->head_dim_v);
    if (own->layout != PAGEDCL_LAYOUT_NHD && own->layout != PAGEDCL_LAYOUT_HND)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "layout %d is not one of pagedcl_layout", (int)own->layout);
    if (pagedcl_dtype_size(own->dtype) == 0 && own->dtype != PAGEDCL_INT4)
        return pcl_fail(PAGEDCL_UNSUPPORTED, "dtype %d is not one of pagedcl_dtype", (int)own->dtype);
    PCL_TRY(check_buffers(own));
    return read_scales(own);
}

/* Bytes of K, or V, of a block as the library lays it out: the elements, and from *scales_offset on their scales. */
static bool block_bytes_of(const pagedcl_cache_desc *desc, int32_t head_dim, int64_t *scales_offset, int64_t *bytes) {
    const int64_t row_bytes = pcl_dtype_bytes(desc->dtype, pcl_dtype_padded(desc->dtype, head_dim));
    const int64_t row_scales = pcl_scales_stored(desc->dtype, desc->scale_per_row, head_dim);
    int64_t rows = 0;
    if (__builtin_mul_overflow((int64_t)desc->block_size, desc->num_kv_heads, &rows) || rows > INT64_MAX / 16 / 4096)
        return false;
    *scales_offset = *bytes = rows * row_bytes;
    if (row_scales > 0) {
        *scales_offset = (*bytes + 3) / 4 * 4;
        *bytes = *scales_offset + (rows * row_scales + 3) / 4 * 4;
    }
    return true;
}

/* Bytes of the whole pool as the library would allocate it. */
static pagedcl_status pool_bytes_of(const pagedcl_cache_desc *desc, int64_t *bytes) {
    int64_t k = 0, v = 0, scales_offset = 0, pool = 0;
    if (!block_bytes_of(desc, desc->head_dim, &scales_offset, &k) ||
        !block_bytes_of(desc, desc->head_dim_v, &scales_offset, &v) ||
        __builtin_mul_overflow(k + (desc->v_in_k ? 0 : v), desc->num_blocks, &pool) ||
        __builtin_mul_overflow(pool, desc->num_layers, &pool))
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW,
                        "a pool of %d layers, %d blocks of %d tokens, %d heads of %d and %d does not fit 2^63 bytes",
                        desc->num_layers, desc->num_blocks, desc->block_size, desc->num_kv_heads, desc->head_dim,
                        desc->head_dim_v);
    *bytes = pool;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_cache_bytes(const pagedcl_cache_desc *desc, uint64_t *bytes) {
    pagedcl_cache_desc own;
    int64_t pool_bytes = 0;
    if (bytes == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "bytes is NULL");
    PCL_TRY(read_desc(desc, &own));
    PCL_TRY(pool_bytes_of(&own, &pool_bytes));
    *bytes = (uint64_t)pool_bytes;
    return PAGEDCL_SUCCESS;
}

/* The strides of a contiguous pool. The pool's size is known not to overflow. */
static pagedcl_pool_strides strides_of(const pagedcl_cache_desc *desc, int32_t head_dim) {
    const int64_t row = pcl_dtype_padded(desc->dtype, head_dim);
    pagedcl_pool_strides strides = {.block = (int64_t)desc->block_size * desc->num_kv_heads * row};
    bool nhd = desc->layout == PAGEDCL_LAYOUT_NHD;
    strides.token = nhd ? desc->num_kv_heads * row : row;
    strides.head = nhd ? row : desc->block_size * row;
    return strides;
}

/* Whether tokens and heads of a block lie side by side, in either order. */
static bool is_contiguous(const pagedcl_cache_desc *desc, const pagedcl_pool_strides *strides, int32_t head_dim) {
    int64_t heads = (int64_t)desc->num_kv_heads * head_dim, tokens = (int64_t)desc->block_size * head_dim;
    return (strides->head == head_dim && strides->token == heads) ||
           (strides->token == head_dim && strides->head == tokens);
}

static pagedcl_status make_side(pagedcl_cache *cache, pcl_pool_side *side, int32_t head_dim,
                                const pagedcl_pool_strides *asked) {
    const pagedcl_cache_desc *desc = &cache->desc;
    size_t layers = (size_t)desc->num_layers;
    side->head_dim = head_dim;
    side->strides = strides_of(desc, head_dim);
    if (desc->buffers != NULL && is_set(asked))
        side->strides = *asked;
    if (side->strides.block < 0 || side->strides.token < 0 || side->strides.head < 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "a pool stride is below 0");
    side->contiguous = is_contiguous(desc, &side->strides, (int32_t)pcl_dtype_padded(desc->dtype, head_dim));
    /* The pool's size is known not to overflow. Scales go with elements of a byte, or of half of one. */
    (void)block_bytes_of(desc, head_dim, &side->scales_offset, &side->block_bytes);
    if (has_stored_scales(desc))
        side->strides.block = desc->dtype == PAGEDCL_INT4 ? 2 * side->block_bytes : side->block_bytes;
    side->buffers = calloc(layers * (size_t)cache->num_segments, sizeof *side->buffers);
    side->offsets = calloc(layers, sizeof *side->offsets);
    if (side->buffers == NULL || side->offsets == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for a pool of %d layers", desc->num_layers);
    return PAGEDCL_SUCCESS;
}

/* Divides a layer's blocks into segments that the device can allocate. A caller's pool is one. */
static pagedcl_status divide(pagedcl_cache *cache) {
    const pagedcl_cache_desc *desc = &cache->desc;
    /* 2^30 blocks, the most there may be, stand for no division. */
    cache->segment_shift = 30;
    cache->num_segments = cache->num_parameters = 1;
    if (desc->buffers != NULL)
        return PAGEDCL_SUCCESS;
    uint64_t largest = cache->device->info.max_allocation;
    if (desc->max_segment_bytes != 0 && desc->max_segment_bytes < largest)
        largest = desc->max_segment_bytes;
    cache->desc.max_segment_bytes = largest;
    int32_t head_dim = desc->head_dim > desc->head_dim_v ? desc->head_dim : desc->head_dim_v;
    int64_t scales_offset = 0, block_bytes = 0;
    (void)block_bytes_of(desc, head_dim, &scales_offset, &block_bytes);
    uint64_t fit = largest / (uint64_t)block_bytes;
    if (fit == 0)
        return pcl_fail(PAGEDCL_POOL_TOO_LARGE,
                        "a block of %" PRId64 " bytes is larger than the largest allocation of %" PRIu64
                        " bytes; use a smaller block_size",
                        block_bytes, largest);
    if (fit >= (uint64_t)desc->num_blocks)
        return PAGEDCL_SUCCESS;
    while ((UINT64_C(1) << cache->segment_shift) > fit)
        cache->segment_shift--;
    int64_t blocks = INT64_C(1) << cache->segment_shift, count = (desc->num_blocks + blocks - 1) / blocks;
    if (count > PCL_MAX_SEGMENTS)
        return pcl_fail(PAGEDCL_POOL_TOO_LARGE,
                        "K of a layer has %" PRId64 " bytes: with a largest allocation of %" PRIu64
                        " bytes it needs %" PRId64 " segments, and %d is the most",
                        block_bytes * desc->num_blocks, largest, count, PCL_MAX_SEGMENTS);
    cache->num_segments = (int32_t)count;
    while (cache->num_parameters < cache->num_segments)
        cache->num_parameters *= 2;
    return PAGEDCL_SUCCESS;
}

static pagedcl_status allocate_side(const pagedcl_cache *cache, pcl_pool_side *side) {
    int64_t whole = INT64_C(1) << cache->segment_shift;
    for (int64_t i = 0; i < (int64_t)cache->desc.num_layers * cache->num_segments; i++) {
        int64_t blocks = cache->desc.num_blocks - i % cache->num_segments * whole;
        size_t size = (size_t)((blocks < whole ? blocks : whole) * side->block_bytes);
        cl_int code = CL_SUCCESS;
        cl_mem buffer = clCreateBuffer(cache->device->context, CL_MEM_READ_WRITE, size, NULL, &code);
        if (code != CL_SUCCESS)
            return pcl_fail_opencl(code, "clCreateBuffer of a pool segment");
        side->buffers[i] = buffer;
    }
    return PAGEDCL_SUCCESS;
}

/* Whether a buffer holds every element of a layer of the pool. */
static pagedcl_status check_buffer(const pagedcl_cache *cache, const pcl_pool_side *side, int32_t layer,
                                   const char *name, cl_mem buffer, int64_t offset) {
    const pagedcl_cache_desc *desc = &cache->desc;
    int64_t elements = side->head_dim, part = 0;
    const int64_t counts[3] = {desc->num_blocks - 1, desc->block_size - 1, desc->num_kv_heads - 1};
    const int64_t strides[3] = {side->strides.block, side->strides.token, side->strides.head};
    for (int i = 0; i < 3; i++)
        if (__builtin_mul_overflow(counts[i], strides[i], &part) || __builtin_add_overflow(elements, part, &elements))
            return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "the strides of %s reach beyond 2^63 elements", name);
    char what[64];
    snprintf(what, sizeof what, "%s of layer %d", name, layer);
    return pcl_buffer_check(what, buffer, offset, elements, pagedcl_dtype_size(desc->dtype));
}

/* Takes the caller's buffer of a layer. */
static pagedcl_status adopt_buffer(const pagedcl_cache *cache, pcl_pool_side *side, int32_t layer, const char *name,
                                   cl_mem buffer, int64_t offset) {
    PCL_TRY(check_buffer(cache, side, layer, name, buffer, offset));
    cl_int code = clRetainMemObject(buffer);
    if (code != CL_SUCCESS)
        return pcl_fail_opencl(code, "clRetainMemObject");
    side->buffers[layer] = buffer;
    side->offsets[layer] = offset;
    return PAGEDCL_SUCCESS;
}

static pagedcl_status adopt(pagedcl_cache *cache) {
    for (int32_t layer = 0; layer < cache->desc.num_layers; layer++) {
        const pagedcl_pool_buffers *buffers = &cache->desc.buffers[layer];
        PCL_TRY(adopt_buffer(cache, &cache->k, layer, "the pool's K", buffers->k, buffers->k_offset));
        if (!cache->desc.v_in_k)
            PCL_TRY(adopt_buffer(cache, &cache->v, layer, "the pool's V", buffers->v, buffers->v_offset));
    }
    /* The array is the caller's. */
    cache->desc.buffers = NULL;
    cache->adopted = true;
    return PAGEDCL_SUCCESS;
}

/* Makes V what the kernels find inside K. */
static pagedcl_status share_k(pagedcl_cache *cache) {
    for (int64_t i = 0; i < (int64_t)cache->desc.num_layers * cache->num_segments; i++) {
        cl_int code = clRetainMemObject(cache->k.buffers[i]);
        if (code != CL_SUCCESS)
            return pcl_fail_opencl(code, "clRetainMemObject");
        cache->v.buffers[i] = cache->k.buffers[i];
    }
    memcpy(cache->v.offsets, cache->k.offsets, (size_t)cache->desc.num_layers * sizeof *cache->v.offsets);
    cache->v.strides = cache->k.strides;
    cache->v.scales_offset = cache->k.scales_offset;
    cache->v.block_bytes = 0;
    return PAGEDCL_SUCCESS;
}

static pagedcl_status make_pool(pagedcl_cache *cache) {
    const pagedcl_cache_desc *desc = &cache->desc;
    size_t slots = (size_t)desc->num_blocks * (size_t)desc->block_size;
    cache->marks = calloc((size_t)desc->num_blocks, sizeof *cache->marks);
    cache->slot_marks = calloc((slots + 7) / 8, 1);
    if (cache->marks == NULL || cache->slot_marks == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for the checks of a pool of %d blocks", desc->num_blocks);
    PCL_TRY(divide(cache));
    PCL_TRY(make_side(cache, &cache->k, desc->head_dim, &desc->k_strides));
    PCL_TRY(make_side(cache, &cache->v, desc->head_dim_v, &desc->v_strides));
    if (desc->buffers != NULL)
        PCL_TRY(adopt(cache));
    else
        PCL_TRY(allocate_side(cache, &cache->k));
    if (desc->v_in_k)
        return share_k(cache);
    return cache->v.buffers[0] == NULL ? allocate_side(cache, &cache->v) : PAGEDCL_SUCCESS;
}

static pagedcl_status build(pagedcl_cache *cache) {
    static const char *const names[PCL_CACHE_KERNELS] = {"cache_write", "cache_gather", "cache_copy", "cache_wipe"};
    pcl_variant variant;
    pcl_variant_init(&variant, "cache");
    pcl_cache_macros(cache, &variant);
    pcl_variant_int(&variant, "TUNE_VECTORS", cache->item_vectors);
    pcl_variant_int(&variant, "HAS_UNALIGNED", cache->device->info.kind == PAGEDCL_DEVICE_CPU);
    PCL_TRY(pcl_variants_build(cache->device, &variant, 1, &cache->program));
    for (int i = 0; i < PCL_CACHE_KERNELS; i++)
        PCL_TRY(pcl_program_kernel(&variant, cache->program, names[i], &cache->kernels[i]));
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_cache_create(pagedcl_device *device, const pagedcl_cache_desc *desc, pagedcl_cache **out) {
    if (device == NULL || out == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "device and cache must not be NULL");
    pagedcl_cache_desc own;
    int64_t pool_bytes = 0;
    PCL_TRY(read_desc(desc, &own));
    PCL_TRY(pool_bytes_of(&own, &pool_bytes));
    if (own.buffers == NULL && (uint64_t)pool_bytes > device->info.global_memory)
        return pcl_fail(PAGEDCL_POOL_TOO_LARGE,
                        "a pool of %d layers and %d blocks has %" PRId64 " bytes, the device has %" PRIu64,
                        own.num_layers, own.num_blocks, pool_bytes, device->info.global_memory);
    pagedcl_cache *cache = calloc(1, sizeof *cache);
    if (cache == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for a cache");
    atomic_init(&cache->references, 1);
    cache->device = pcl_device_retain(device);
    cache->desc = own;
    int32_t head_dim = own.head_dim > own.head_dim_v ? own.head_dim : own.head_dim_v;
    int32_t row_vectors = (head_dim + 7) / 8;
    /* A core that walks along whole rows is faster; on a GPU neighbours take neighbours. */
    cache->item_vectors = device->info.kind == PAGEDCL_DEVICE_CPU ? row_vectors : 1;
    cache->token_items = (int64_t)own.num_kv_heads * (row_vectors / cache->item_vectors);
    pcl_upload_init(&cache->upload, device->context, CL_MEM_READ_ONLY);
    pagedcl_status status = make_pool(cache);
    if (status == PAGEDCL_SUCCESS)
        status = pcl_faults_create(device, &cache->faults);
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

static pagedcl_status check_other_buffer(const pagedcl_cache *cache, const pcl_pool_side *side, int32_t layer,
                                         const char *name, cl_mem buffer, int64_t offset) {
    if (offset != side->offsets[layer])
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "%s of layer %d is at offset %" PRId64 ", but the pool was made with %" PRId64, name, layer,
                        offset, side->offsets[layer]);
    return check_buffer(cache, side, layer, name, buffer, offset);
}

/* Gives back what retain_buffers took. */
static void release_buffers(const pagedcl_pool_buffers *buffers, bool v_in_k, int32_t count) {
    for (int32_t layer = 0; layer < count; layer++) {
        clReleaseMemObject(buffers[layer].k);
        clReleaseMemObject(v_in_k ? buffers[layer].k : buffers[layer].v);
    }
}

/* A reference to each buffer: to K's twice where V lies in it. All or none. */
static pagedcl_status retain_buffers(const pagedcl_pool_buffers *buffers, bool v_in_k, int32_t count) {
    for (int32_t layer = 0; layer < count; layer++) {
        cl_int code = clRetainMemObject(buffers[layer].k);
        if (code == CL_SUCCESS) {
            code = clRetainMemObject(v_in_k ? buffers[layer].k : buffers[layer].v);
            if (code != CL_SUCCESS)
                clReleaseMemObject(buffers[layer].k);
        }
        if (code != CL_SUCCESS) {
            release_buffers(buffers, v_in_k, layer);
            return pcl_fail_opencl(code, "clRetainMemObject");
        }
    }
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_cache_set_buffers(pagedcl_cache *cache, const pagedcl_pool_buffers *buffers) {
    if (cache == NULL || buffers == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "cache and buffers must not be NULL");
    if (!cache->adopted)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "the pool was made without buffers: the library allocated its own");
    const bool v_in_k = cache->desc.v_in_k != 0;
    for (int32_t layer = 0; layer < cache->desc.num_layers; layer++) {
        const pagedcl_pool_buffers *b = &buffers[layer];
        if (v_in_k && (b->v != NULL || b->v_offset != 0))
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "buffers[%d] has a v, or a v_offset, but V lies in K", layer);
        PCL_TRY(check_other_buffer(cache, &cache->k, layer, "the pool's K", b->k, b->k_offset));
        if (!v_in_k)
            PCL_TRY(check_other_buffer(cache, &cache->v, layer, "the pool's V", b->v, b->v_offset));
    }
    PCL_TRY(retain_buffers(buffers, v_in_k, cache->desc.num_layers));
    for (int32_t layer = 0; layer < cache->desc.num_layers; layer++) {
        clReleaseMemObject(cache->k.buffers[layer]);
        clReleaseMemObject(cache->v.buffers[layer]);
        cache->k.buffers[layer] = buffers[layer].k;
        cache->v.buffers[layer] = v_in_k ? buffers[layer].k : buffers[layer].v;
    }
    return PAGEDCL_SUCCESS;
}

pagedcl_cache *pcl_cache_retain(pagedcl_cache *cache) {
    atomic_fetch_add(&cache->references, 1);
    return cache;
}

static void release_side(const pagedcl_cache *cache, pcl_pool_side *side) {
    for (int64_t i = 0; side->buffers != NULL && i < (int64_t)cache->desc.num_layers * cache->num_segments; i++)
        if (side->buffers[i] != NULL)
            clReleaseMemObject(side->buffers[i]);
    free(side->buffers);
    free(side->offsets);
}

void pagedcl_cache_destroy(pagedcl_cache *cache) {
    if (cache == NULL || atomic_fetch_sub(&cache->references, 1) > 1)
        return;
    pcl_upload_release(&cache->upload);
    pcl_faults_release(&cache->faults);
    for (int i = 0; i < PCL_CACHE_KERNELS; i++)
        if (cache->kernels[i] != NULL)
            clReleaseKernel(cache->kernels[i]);
    if (cache->program != NULL)
        clReleaseProgram(cache->program);
    release_side(cache, &cache->k);
    release_side(cache, &cache->v);
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

pagedcl_dtype pcl_cache_gathered_dtype(const pagedcl_cache *cache) {
    return pcl_dtype_is_quantized(cache->desc.dtype) ? PAGEDCL_FLOAT32 : cache->desc.dtype;
}

void pcl_cache_macros(const pagedcl_cache *cache, pcl_variant *variant) {
    pcl_variant_int(variant, "BLOCK_SIZE", cache->desc.block_size);
    pcl_variant_int(variant, "NUM_KV_HEADS", cache->desc.num_kv_heads);
    pcl_variant_int(variant, "HEAD_DIM", cache->desc.head_dim);
    pcl_variant_int(variant, "HEAD_DIM_V", cache->desc.head_dim_v);
    pcl_variant_int(variant, "V_IN_K", cache->desc.v_in_k);
    pcl_variant_int(variant, "NUM_SEGMENTS", cache->num_parameters);
    pcl_variant_dtype(variant, "KV_DTYPE", cache->desc.dtype);
    pcl_variant_int(variant, "KV_QUANTIZED", pcl_dtype_is_quantized(cache->desc.dtype));
    pcl_variant_int(variant, "KV_STORED_SCALES", has_stored_scales(&cache->desc));
    pcl_variant_int(variant, "K_SCALES_OFFSET", cache->k.scales_offset);
    pcl_variant_int(variant, "V_SCALES_OFFSET", cache->v.scales_offset);
    pcl_variant_int(variant, "K_BLOCK_STRIDE", cache->k.strides.block);
    pcl_variant_int(variant, "K_TOKEN_STRIDE", cache->k.strides.token);
    pcl_variant_int(variant, "K_HEAD_STRIDE", cache->k.strides.head);
    pcl_variant_int(variant, "V_BLOCK_STRIDE", cache->v.strides.block);
    pcl_variant_int(variant, "V_TOKEN_STRIDE", cache->v.strides.token);
    pcl_variant_int(variant, "V_HEAD_STRIDE", cache->v.strides.head);
}

void pcl_cache_arguments(const pagedcl_cache *cache, int32_t layer, pcl_arguments *arguments) {
    const pcl_pool_side *sides[2] = {&cache->k, &cache->v};
    for (int which = 0; which < 2; which++) {
        const cl_mem *segments = sides[which]->buffers + (int64_t)layer * cache->num_segments;
        /* A parameter behind the last segment is never used, but must be a buffer. */
        for (int32_t i = 0; i < cache->num_parameters; i++)
            pcl_argument_mem(arguments, segments[i < cache->num_segments ? i : 0]);
    }
    pcl_argument_long(arguments, cache->k.offsets[layer]);
    pcl_argument_long(arguments, cache->v.offsets[layer]);
    pcl_argument_int(arguments, cache->segment_shift);
    pcl_argument_float(arguments, cache->desc.k_scale);
    pcl_argument_float(arguments, cache->desc.v_scale);
}

pagedcl_status pcl_cache_check_layer(const pagedcl_cache *cache, int32_t layer) {
    if (cache == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "cache is NULL");
    if (layer < 0 || layer >= cache->desc.num_layers)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "layer %d of a cache of %d layers", layer, cache->desc.num_layers);
    return PAGEDCL_SUCCESS;
}
