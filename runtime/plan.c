/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: a step's batch, checked and laid out, goes to the device, with room for the partial results of its runs. */
#include "plan_layout.h"

#include "device.h"
#include "nv_probe.h"
#include "plan_check.h"
#include "status.h"
#include "struct_size.h"

#include <inttypes.h>
#include <stdlib.h>

/* Ints that are 0. */
static pagedcl_status make_counters(cl_context context, int64_t count, cl_mem *counters) {
    cl_int *zeros = calloc((size_t)count + 1, sizeof *zeros), code = CL_SUCCESS;
    if (zeros == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for %" PRId64 " counters", count);
    *counters =
        clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, (size_t)count * sizeof *zeros, zeros, &code);
    free(zeros);
    return code == CL_SUCCESS ? PAGEDCL_SUCCESS : pcl_fail_opencl(code, "clCreateBuffer of counters");
}

static void release_partials(pagedcl_plan *plan) {
    cl_mem buffers[] = {plan->partial_acc, plan->partial_sums, plan->arrivals};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        if (buffers[i] != NULL)
            clReleaseMemObject(buffers[i]);
}

/* Makes room for partial results; the old buffers live on until the commands that use them are done. */
static pagedcl_status grow_partials(pagedcl_plan *plan, int64_t rows) {
    if (rows <= plan->partial_capacity)
        return PAGEDCL_SUCCESS;
    cl_context context = plan->attn->device->context;
    int64_t capacity = rows > 2 * plan->partial_capacity ? rows : 2 * plan->partial_capacity;
    size_t sums_size = (size_t)capacity * 2 * sizeof(cl_float);
    size_t acc_size = (size_t)capacity * (size_t)plan->attn->desc.head_dim_v * sizeof(cl_float);
    cl_int code = CL_SUCCESS;
    cl_mem acc = clCreateBuffer(context, CL_MEM_READ_WRITE, acc_size, NULL, &code);
    if (code != CL_SUCCESS)
        return pcl_fail_opencl(code, "clCreateBuffer of partial results");
    cl_mem sums = clCreateBuffer(context, CL_MEM_READ_WRITE, sums_size, NULL, &code);
    if (code != CL_SUCCESS) {
        clReleaseMemObject(acc);
        return pcl_fail_opencl(code, "clCreateBuffer of partial results");
    }
    cl_mem arrivals = NULL;
    if (pcl_tier_is_nv(plan->attn->desc.tier)) {
        pagedcl_status status = make_counters(context, capacity, &arrivals);
        if (status != PAGEDCL_SUCCESS) {
            clReleaseMemObject(acc);
            clReleaseMemObject(sums);
            return status;
        }
    }
    release_partials(plan);
    plan->partial_acc = acc;
    plan->partial_sums = sums;
    plan->arrivals = arrivals;
    plan->partial_capacity = capacity;
    return PAGEDCL_SUCCESS;
}

/* Enqueues what puts the batch on the device. The batch before stays current when that fails. */
static pagedcl_status send(const pcl_planning *p, pcl_chain *chain) {
    pcl_upload *upload = &p->plan->upload;
    if (!p->attn->desc.device_tables)
        return pcl_upload_send(upload, chain, p->batch.upload_size);
    PCL_TRY(pcl_upload_write(upload, chain, p->batch.upload_size));
    PCL_TRY(pcl_plan_tables_take(p->plan, chain, pcl_upload_next(upload), &p->batch, &p->device_table));
    return pcl_upload_accept(upload, chain);
}

/* The rest of both kinds of batch, whose arrays are known to be there and whose totals are set. */
static pagedcl_status plan_batch(pcl_planning *p, cl_command_queue queue) {
    pagedcl_plan *plan = p->plan;
    bool has_tree = p->attn->desc.has_tree != 0;
    if (p->tree_mask != NULL ? !has_tree : has_tree && p->batch.num_seqs > 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "tree_mask is %s, and the operator's has_tree is %d",
                        p->tree_mask != NULL ? "given" : "NULL", p->attn->desc.has_tree);
    PCL_TRY(pcl_plan_measure(p));
    PCL_TRY(grow_partials(plan, p->batch.num_partials));
    if (p->batch.num_work > 0) {
        void *staging = NULL;
        PCL_TRY(pcl_upload_begin(&plan->upload, p->batch.size, &staging));
        pcl_plan_lay_out(p, staging);
        pcl_chain chain;
        PCL_TRY(pcl_chain_begin(&chain, plan->attn->device, queue, p->num_events, p->events));
        PCL_TRY(pcl_chain_end(&chain, send(p, &chain), NULL));
    }
    plan->batch = p->batch;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_plan_varlen(pagedcl_plan *plan, cl_command_queue queue, const pagedcl_varlen_batch *batch) {
    if (plan == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "plan is NULL");
    pagedcl_varlen_batch own;
    PCL_TRY(PCL_READ_STRUCT(&own, batch, append));
    PCL_TRY(pcl_plan_check_varlen(plan->attn, &own));
    pcl_planning p = {
        .plan = plan,
        .attn = plan->attn,
        .cache = plan->attn->desc.cache,
        .table = {own.block_table, own.block_table_stride},
        .device_table = {own.block_table_mem, own.block_table_offset, own.block_table_stride},
        .num_events = own.num_events,
        .events = own.events,
        .varlen = &own,
        .tree_mask = own.tree_mask,
        .batch = {.kind = PCL_PLAN_VARLEN, .num_seqs = own.num_seqs},
    };
    if (own.num_seqs > 0) {
        p.batch.total_q = own.cu_seqlens_q[own.num_seqs];
        p.batch.total_k = own.cu_seqlens_k != NULL ? own.cu_seqlens_k[own.num_seqs] : 0;
    }
    return plan_batch(&p, queue);
}

pagedcl_status pagedcl_plan_decode(pagedcl_plan *plan, cl_command_queue queue, const pagedcl_decode_batch *batch) {
    if (plan == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "plan is NULL");
    pagedcl_decode_batch own;
    PCL_TRY(PCL_READ_STRUCT(&own, batch, num_splits));
    PCL_TRY(pcl_plan_check_decode(plan->attn, &own));
    pcl_planning p = {
        .plan = plan,
        .attn = plan->attn,
        .cache = plan->attn->desc.cache,
        .table = {own.block_table, own.block_table_stride},
        .device_table = {own.block_table_mem, own.block_table_offset, own.block_table_stride},
        .num_events = own.num_events,
        .events = own.events,
        .decode = &own,
        .tree_mask = own.tree_mask,
        .num_splits = own.num_splits < PCL_MAX_SPLITS ? own.num_splits : PCL_MAX_SPLITS,
        .batch = {.kind = PCL_PLAN_DECODE, .num_seqs = own.num_seqs, .seqlen_q = own.seqlen_q},
    };
    p.batch.total_q = (int64_t)own.num_seqs * own.seqlen_q;
    return plan_batch(&p, queue);
}

pagedcl_status pagedcl_plan_create(pagedcl_attn *attn, pagedcl_plan **out) {
    if (attn == NULL || out == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "attn and plan must not be NULL");
    pagedcl_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for a plan");
    plan->attn = pcl_attn_retain(attn);
    pcl_upload_init(&plan->upload, attn->device->context,
                    attn->desc.device_tables ? CL_MEM_READ_WRITE : CL_MEM_READ_ONLY);
    /* A kernel object holds its arguments: plans of one operator are used by several threads, so each has its own. */
    pagedcl_status status = PAGEDCL_SUCCESS;
    for (int i = 0; i < PCL_ATTN_KERNELS && status == PAGEDCL_SUCCESS; i++)
        if (attn->programs[i] != NULL)
            status = pcl_variant_kernel(&attn->variants[i], attn->programs[i], &plan->kernels[i]);
    if (attn->desc.tier == PAGEDCL_TIER_NV_WGMMA && status == PAGEDCL_SUCCESS)
        status = make_counters(attn->device->context, 2, &plan->counters);
    if (attn->desc.device_tables && status == PAGEDCL_SUCCESS)
        status = pcl_faults_create(attn->device, &plan->faults);
    if (status != PAGEDCL_SUCCESS) {
        pagedcl_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return PAGEDCL_SUCCESS;
}

void pagedcl_plan_destroy(pagedcl_plan *plan) {
    if (plan == NULL)
        return;
    pcl_upload_release(&plan->upload);
    pcl_share_release(&plan->share);
    pcl_faults_release(&plan->faults);
    pcl_fence_release(&plan->runs);
    for (int i = 0; i < PCL_ATTN_KERNELS; i++)
        if (plan->kernels[i] != NULL)
            clReleaseKernel(plan->kernels[i]);
    release_partials(plan);
    if (plan->counters != NULL)
        clReleaseMemObject(plan->counters);
    free(plan->owners);
    pagedcl_attn_destroy(plan->attn);
    free(plan);
}
