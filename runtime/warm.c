/* SPDX-License-Identifier: Apache-2.0 */
#include "warm.h"

#include "attn_run.h"
#include "device.h"
#include "plan_tables.h"
#include "status.h"

#include <string.h>

/* A queue of our own: the caller's may hold work that waits for something the caller does later. */
static pagedcl_status open_queue(const pagedcl_device *device, cl_command_queue *queue) {
    cl_int code = CL_SUCCESS;
    *queue = clCreateCommandQueue(device->context, device->id, 0, &code);
    return code == CL_SUCCESS ? PAGEDCL_SUCCESS : pcl_fail_opencl(code, "clCreateCommandQueue");
}

/* Waits for the queue's commands and closes it. */
static pagedcl_status close_queue(cl_command_queue queue, pagedcl_status status) {
    cl_int code = clFinish(queue);
    clReleaseCommandQueue(queue);
    return status == PAGEDCL_SUCCESS && code != CL_SUCCESS ? pcl_fail_opencl(code, "clFinish") : status;
}

static pagedcl_status launch_cache(pagedcl_cache *cache, pcl_chain *chain) {
    cl_mem any = cache->k.buffers[0];
    PCL_TRY(pcl_cache_enqueue_write(cache, chain, 0, &(pagedcl_tensor){.mem = any}, &(pagedcl_tensor){.mem = any},
                                    PAGEDCL_FLOAT32, any, 0, 0));
    PCL_TRY(pcl_cache_enqueue_gather(cache, chain, 0, any, 0, &(pagedcl_tensor){.mem = any},
                                     &(pagedcl_tensor){.mem = any}));
    PCL_TRY(pcl_cache_enqueue_copy(cache, chain, 0, any, 0, 0));
    return pcl_cache_enqueue_wipe(cache, chain, 0, any, 0, 0);
}

pagedcl_status pcl_warm_cache(pagedcl_cache *cache) {
    if (!cache->device->quirks.compiles_at_launch)
        return PAGEDCL_SUCCESS;
    cl_command_queue queue = NULL;
    PCL_TRY(open_queue(cache->device, &queue));
    pcl_chain chain;
    pagedcl_status status = pcl_chain_begin(&chain, cache->device, queue, 0, NULL);
    if (status == PAGEDCL_SUCCESS)
        status = pcl_chain_end(&chain, launch_cache(cache, &chain), NULL);
    return close_queue(queue, status);
}

/* Runs a plan of one sequence of no tokens, which the checks of a real batch would leave out. */
static pagedcl_status launch_attn(pagedcl_attn *attn, pagedcl_plan *plan, cl_command_queue queue, cl_mem any) {
    pcl_chain chain;
    PCL_TRY(pcl_chain_begin(&chain, attn->device, queue, 0, NULL));
    void *staging = NULL;
    const size_t size = 256;
    pagedcl_status status = pcl_upload_begin(&plan->upload, size, &staging);
    if (status == PAGEDCL_SUCCESS) {
        memset(staging, 0, size);
        status = pcl_upload_send(&plan->upload, &chain, size);
    }
    pagedcl_attn_args args = PAGEDCL_ATTN_ARGS_INIT;
    args.q.mem = args.out.mem = any;
    args.k.mem = args.v.mem = attn->desc.cache == NULL ? any : NULL;
    args.k_new.mem = any;
    const pcl_plan_batch tables = {.num_seqs = 1};
    if (status == PAGEDCL_SUCCESS && attn->desc.device_tables)
        status = pcl_plan_tables_take(plan, &chain, pcl_upload_buffer(&plan->upload), &tables, &(pcl_device_table){0});
    plan->batch = (pcl_plan_batch){.kind = PCL_PLAN_VARLEN, .num_work = 1, .num_appends = attn->desc.cache != NULL};
    if (status == PAGEDCL_SUCCESS && attn->programs[PCL_ATTN_VARLEN] != NULL)
        status = pcl_attn_enqueue(attn, plan, &args, &chain);
    plan->batch = (pcl_plan_batch){.kind = PCL_PLAN_DECODE, .num_work = 1, .num_merges = 1, .seqlen_q = 1};
    if (status == PAGEDCL_SUCCESS && attn->programs[PCL_ATTN_DECODE] != NULL)
        status = pcl_attn_enqueue(attn, plan, &args, &chain);
    return pcl_chain_end(&chain, status, NULL);
}

pagedcl_status pcl_warm_attn(pagedcl_attn *attn) {
    if (!attn->device->quirks.compiles_at_launch)
        return PAGEDCL_SUCCESS;
    /* A merge of nothing writes zeros to one row of out. */
    size_t size = (size_t)attn->desc.num_heads * (size_t)attn->desc.head_dim_v * sizeof(cl_float);
    cl_int code = CL_SUCCESS;
    cl_mem any = clCreateBuffer(attn->device->context, CL_MEM_READ_WRITE, size, NULL, &code);
    if (code != CL_SUCCESS)
        return pcl_fail_opencl(code, "clCreateBuffer");
    pagedcl_plan *plan = NULL;
    cl_command_queue queue = NULL;
    pagedcl_status status = pagedcl_plan_create(attn, &plan);
    if (status == PAGEDCL_SUCCESS)
        status = open_queue(attn->device, &queue);
    if (status == PAGEDCL_SUCCESS)
        status = close_queue(queue, launch_attn(attn, plan, queue, any));
    pagedcl_plan_destroy(plan);
    clReleaseMemObject(any);
    return status;
}

pagedcl_status pcl_warm_merge(pagedcl_merge *merge) {
    pagedcl_device *device = pcl_merge_device(merge);
    if (!device->quirks.compiles_at_launch)
        return PAGEDCL_SUCCESS;
    cl_int code = CL_SUCCESS;
    cl_mem any = clCreateBuffer(device->context, CL_MEM_READ_WRITE, sizeof(cl_float), NULL, &code);
    if (code != CL_SUCCESS)
        return pcl_fail_opencl(code, "clCreateBuffer");
    cl_command_queue queue = NULL;
    pcl_chain chain;
    pagedcl_status status = open_queue(device, &queue);
    if (status == PAGEDCL_SUCCESS) {
        status = pcl_chain_begin(&chain, device, queue, 0, NULL);
        if (status == PAGEDCL_SUCCESS)
            status = pcl_chain_end(&chain, pcl_merge_launch_nothing(merge, &chain, any), NULL);
        status = close_queue(queue, status);
    }
    clReleaseMemObject(any);
    return status;
}
