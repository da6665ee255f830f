/* SPDX-License-Identifier: Apache-2.0 */
/* Enqueues the attention of a planned batch. */
#include "attn_run.h"

#include "launch.h"
#include "status.h"
#include "struct_size.h"
#include "tensor.h"

/* Checks the tensors of a run against the plan and fills in their default strides. */
static pagedcl_status read_args(const pagedcl_attn *attn, const pagedcl_plan *plan, const pagedcl_attn_args *args,
                                pagedcl_attn_args *own) {
    const pagedcl_attn_desc *desc = &attn->desc;
    const pcl_plan_batch *batch = &plan->batch;
    PCL_TRY(PCL_READ_STRUCT(own, args, lse_offset));
    if (desc->cache != NULL)
        PCL_TRY(pcl_cache_check_layer(desc->cache, own->layer));
    else if (own->layer != 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "layer is %d, but packed keys have no layers", own->layer);
    PCL_TRY(pcl_tensor_check("q", &own->q, batch->total_q, desc->num_heads, desc->head_dim, desc->q_dtype, &own->q));
    PCL_TRY(pcl_tensor_check("out", &own->out, batch->total_q, desc->num_heads, desc->head_dim, desc->out_dtype,
                             &own->out));
    if (desc->cache == NULL) {
        PCL_TRY(pcl_tensor_check("k", &own->k, batch->total_k, desc->num_kv_heads, desc->head_dim, desc->kv_dtype,
                                 &own->k));
        PCL_TRY(pcl_tensor_check("v", &own->v, batch->total_k, desc->num_kv_heads, desc->head_dim, desc->kv_dtype,
                                 &own->v));
    } else if (own->k.mem != NULL || own->v.mem != NULL) {
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "k and v are for packed keys, and the operator has a cache");
    }
    if (batch->total_new == 0 && (own->k_new.mem != NULL || own->v_new.mem != NULL))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "k_new and v_new are given, but the plan does not append");
    PCL_TRY(pcl_tensor_check("k_new", &own->k_new, batch->total_new, desc->num_kv_heads, desc->head_dim, desc->q_dtype,
                             &own->k_new));
    PCL_TRY(pcl_tensor_check("v_new", &own->v_new, batch->total_new, desc->num_kv_heads, desc->head_dim, desc->q_dtype,
                             &own->v_new));
    if (own->lse != NULL && batch->total_q > 0)
        PCL_TRY(pcl_buffer_check("lse", own->lse, own->lse_offset, batch->total_q * desc->num_heads, sizeof(cl_float)));
    return PAGEDCL_SUCCESS;
}

static void set_result(const pagedcl_attn_args *args, pcl_arguments *arguments) {
    pcl_argument_tensor(arguments, &args->out);
    /* Where no LSE is wanted the parameter must be a buffer all the same. */
    pcl_argument_mem(arguments, args->lse != NULL ? args->lse : args->out.mem);
    pcl_argument_long(arguments, args->lse != NULL ? args->lse_offset : -1);
}

static void set_partials(const pagedcl_plan *plan, const pagedcl_attn_args *args, pcl_arguments *arguments) {
    pcl_argument_mem(arguments, plan->partial_acc != NULL ? plan->partial_acc : args->out.mem);
    pcl_argument_mem(arguments, plan->partial_sums != NULL ? plan->partial_sums : args->out.mem);
}

static void set_plan(const pagedcl_plan *plan, int32_t first, pcl_arguments *arguments) {
    pcl_argument_mem(arguments, pcl_upload_buffer(&plan->upload));
    cl_int2 sections = {{first, plan->batch.records}};
    pcl_argument(arguments, sizeof sections, &sections);
}

static void set_scale_and_mask(const pagedcl_attn *attn, pcl_arguments *arguments) {
    const double log2_e = 1.4426950408889634;
    pcl_argument_float(arguments, (float)(attn->desc.softmax_scale * log2_e));
    pcl_argument_int(arguments, attn->desc.causal);
}

static pagedcl_status enqueue_varlen(const pagedcl_attn *attn, const pagedcl_plan *plan, const pagedcl_attn_args *args,
                                     pcl_chain *chain) {
    const pcl_plan_batch *batch = &plan->batch;
    const pagedcl_cache *cache = attn->desc.cache;
    if (batch->total_new > 0)
        PCL_TRY(pcl_cache_enqueue_write(cache, chain, plan->write, args->layer, &args->k_new, &args->v_new,
                                        attn->desc.q_dtype, pcl_upload_buffer(&plan->upload), batch->slots,
                                        batch->total_new));
    if (batch->num_work == 0)
        return PAGEDCL_SUCCESS;
    pcl_arguments arguments = pcl_arguments_of(plan->kernels[PCL_ATTN_VARLEN]);
    set_plan(plan, batch->work, &arguments);
    pcl_argument_tensor(&arguments, &args->q);
    if (cache != NULL) {
        pcl_cache_arguments(cache, args->layer, &arguments);
    } else {
        /* Without any key the buffers are not read, but must be there. */
        pagedcl_tensor k = args->k, v = args->v;
        if (batch->total_k == 0)
            k.mem = v.mem = args->q.mem;
        pcl_argument_tensor(&arguments, &k);
        pcl_argument_tensor(&arguments, &v);
    }
    set_result(args, &arguments);
    set_scale_and_mask(attn, &arguments);
    return pcl_launch_groups(chain, &arguments, batch->num_work, attn->desc.num_kv_heads,
                             (size_t)attn->tuning[PCL_ATTN_VARLEN].work_group);
}

static pagedcl_status enqueue_merge(const pagedcl_attn *attn, const pagedcl_plan *plan, const pagedcl_attn_args *args,
                                    pcl_chain *chain) {
    const pcl_plan_batch *batch = &plan->batch;
    pcl_arguments arguments = pcl_arguments_of(plan->kernels[PCL_ATTN_MERGE]);
    set_plan(plan, batch->merges, &arguments);
    pcl_argument_int(&arguments, batch->seqlen_q);
    set_result(args, &arguments);
    set_partials(plan, args, &arguments);
    return pcl_launch_groups(chain, &arguments, batch->num_merges * batch->seqlen_q * attn->desc.num_heads, 1,
                             (size_t)attn->tuning[PCL_ATTN_MERGE].work_group);
}

static pagedcl_status enqueue_decode(const pagedcl_attn *attn, const pagedcl_plan *plan, const pagedcl_attn_args *args,
                                     pcl_chain *chain) {
    const pcl_plan_batch *batch = &plan->batch;
    if (batch->num_work == 0)
        return PAGEDCL_SUCCESS;
    pcl_arguments arguments = pcl_arguments_of(plan->kernels[PCL_ATTN_DECODE]);
    set_plan(plan, batch->work, &arguments);
    pcl_argument_tensor(&arguments, &args->q);
    pcl_cache_arguments(attn->desc.cache, args->layer, &arguments);
    /* Without an append no position is new and these are not read. */
    pagedcl_tensor k_new = args->k_new, v_new = args->v_new;
    if (batch->total_new == 0)
        k_new.mem = v_new.mem = args->q.mem;
    pcl_argument_tensor(&arguments, &k_new);
    pcl_argument_tensor(&arguments, &v_new);
    set_result(args, &arguments);
    set_partials(plan, args, &arguments);
    set_scale_and_mask(attn, &arguments);
    PCL_TRY(pcl_launch_groups(chain, &arguments, batch->num_work, attn->desc.num_kv_heads,
                              (size_t)attn->tuning[PCL_ATTN_DECODE].work_group));
    return batch->num_merges > 0 ? enqueue_merge(attn, plan, args, chain) : PAGEDCL_SUCCESS;
}

pagedcl_status pcl_attn_enqueue(const pagedcl_attn *attn, pagedcl_plan *plan, const pagedcl_attn_args *args,
                                pcl_chain *chain) {
    if (plan->batch.num_work == 0 && plan->batch.total_new == 0)
        return PAGEDCL_SUCCESS;
    PCL_TRY(pcl_fence_wait(&plan->runs, chain));
    PCL_TRY(pcl_upload_use(&plan->upload, chain));
    pagedcl_status status = plan->batch.kind == PCL_PLAN_VARLEN ? enqueue_varlen(attn, plan, args, chain)
                                                                : enqueue_decode(attn, plan, args, chain);
    /* After a failure too: the commands before it still read the plan. */
    pcl_upload_used(&plan->upload, chain);
    pcl_fence_set(&plan->runs, chain);
    return status;
}

pagedcl_status pagedcl_attn_run(pagedcl_attn *attn, cl_command_queue queue, pagedcl_plan *plan,
                                const pagedcl_attn_args *args, cl_uint num_events, const cl_event *events,
                                cl_event *event) {
    if (attn == NULL || plan == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "attn and plan must not be NULL");
    if (plan->attn != attn)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "the plan was made for another operator");
    if (plan->batch.kind == PCL_PLAN_EMPTY)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "the plan holds no batch: call pagedcl_plan_varlen or pagedcl_plan_decode first");
    pagedcl_attn_args own;
    PCL_TRY(read_args(attn, plan, args, &own));
    pcl_chain chain;
    PCL_TRY(pcl_chain_begin(&chain, attn->device, queue, num_events, events));
    return pcl_chain_end(&chain, pcl_attn_enqueue(attn, plan, &own, &chain), event);
}
