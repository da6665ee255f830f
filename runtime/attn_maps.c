/* SPDX-License-Identifier: Apache-2.0 */
#include "attn_maps.h"

#include "cache.h"
#include "device.h"
#include "launch.h"
#include "status.h"

/* Of cl/nv/pool_maps.h and cl/attn_maps.cl. */
enum { MAPS_RECORD = 640, WORK_GROUP = 32 };

/* What the hardware takes as a distance in bytes. */
static bool is_map_stride(int64_t elements, size_t size) {
    return elements % (16 / (int64_t)size) == 0 && elements >= 0 && elements < INT64_C(1) << 39;
}

static bool has_map(const pcl_pool_side *side, size_t size) {
    return is_map_stride(side->strides.block, size) && is_map_stride(side->strides.token, size) &&
           is_map_stride(side->strides.head, size);
}

bool pcl_pool_has_maps(const pagedcl_cache *cache) {
    if (cache == NULL || cache->desc.dtype == PAGEDCL_FLOAT32 || cache->desc.dtype == PAGEDCL_INT4)
        return false;
    const size_t size = pagedcl_dtype_size(cache->desc.dtype);
    return cache->desc.block_size % 8 == 0 && has_map(&cache->k, size) && has_map(&cache->v, size);
}

bool pcl_attn_has_maps(const pagedcl_attn *attn) {
    return attn->desc.tier == PAGEDCL_TIER_NV_WGMMA && pcl_pool_has_maps(attn->desc.cache);
}

void pcl_attn_maps_variant(const pagedcl_attn *attn, pcl_variant *variant) {
    pcl_variant_init(variant, "attn_maps");
    pcl_cache_macros(attn->desc.cache, variant);
    variant->for_hopper = true;
}

/* The kernel has NUM_SEGMENTS of a layer, of which the pool may have fewer. */
static int32_t first_record(const pagedcl_attn *attn, int32_t layer) {
    return layer * attn->desc.cache->num_parameters;
}

static pagedcl_status launch_layers(const pagedcl_attn *attn, cl_kernel kernel, pcl_chain *chain) {
    const pagedcl_cache *cache = attn->desc.cache;
    for (int32_t layer = 0; layer < cache->desc.num_layers; layer++) {
        pcl_arguments arguments = pcl_arguments_of(kernel);
        pcl_argument_mem(&arguments, attn->maps);
        pcl_argument_int(&arguments, first_record(attn, layer));
        pcl_argument_long(&arguments, cache->desc.num_blocks);
        pcl_cache_arguments(cache, layer, &arguments);
        PCL_TRY(pcl_launch_groups(chain, &arguments, cache->num_parameters, 1, WORK_GROUP));
    }
    return PAGEDCL_SUCCESS;
}

/* On a queue of its own: the device's may be at work, or wait for what comes later. */
static pagedcl_status launch(const pagedcl_attn *attn, cl_kernel kernel) {
    cl_int code = CL_SUCCESS;
    cl_command_queue queue = clCreateCommandQueue(attn->device->context, attn->device->id, 0, &code);
    if (code != CL_SUCCESS)
        return pcl_fail_opencl(code, "clCreateCommandQueue");
    pcl_chain chain;
    pagedcl_status status = pcl_chain_begin(&chain, attn->device, queue, 0, NULL);
    if (status == PAGEDCL_SUCCESS)
        status = pcl_chain_end(&chain, launch_layers(attn, kernel, &chain), NULL);
    code = clFinish(queue);
    clReleaseCommandQueue(queue);
    return status == PAGEDCL_SUCCESS && code != CL_SUCCESS ? pcl_fail_opencl(code, "clFinish") : status;
}

pagedcl_status pcl_attn_maps_make(pagedcl_attn *attn) {
    const pagedcl_cache *cache = attn->desc.cache;
    size_t size = (size_t)cache->desc.num_layers * (size_t)cache->num_parameters * MAPS_RECORD;
    cl_int code = CL_SUCCESS;
    attn->maps = clCreateBuffer(attn->device->context, CL_MEM_READ_WRITE, size, NULL, &code);
    if (code != CL_SUCCESS)
        return pcl_fail_opencl(code, "clCreateBuffer");
    cl_kernel kernel = NULL;
    PCL_TRY(pcl_variant_kernel(&attn->variants[PCL_ATTN_MAPS], attn->programs[PCL_ATTN_MAPS], &kernel));
    pagedcl_status status = launch(attn, kernel);
    clReleaseKernel(kernel);
    clReleaseProgram(attn->programs[PCL_ATTN_MAPS]);
    attn->programs[PCL_ATTN_MAPS] = NULL;
    return status;
}

void pcl_attn_maps_arguments(const pagedcl_attn *attn, int32_t layer, pcl_arguments *arguments) {
    pcl_argument_mem(arguments, attn->maps);
    pcl_argument_int(arguments, first_record(attn, layer));
}
