/* SPDX-License-Identifier: Apache-2.0 */
/* Enqueues the attention of a planned batch. */
#include "attn_run.h"

#include "attn_args.h"
#include "attn_maps.h"
#include "launch.h"
#include "nv_probe.h"
#include "status.h"

#include <inttypes.h>

/* The setters below follow the kernels' parameter macros. A parameter that a kernel does not use must be a buffer all
   the same: another one of the run stands in for it. */
static void set_buffer(pcl_arguments *arguments, cl_mem mem, cl_mem stand_in) {
    pcl_argument_mem(arguments, mem != NULL ? mem : stand_in);
}

static void set_plan(const pagedcl_plan *plan, int32_t first, pcl_arguments *arguments) {
    pcl_argument_mem(arguments, pcl_upload_buffer(&plan->upload));
    cl_int2 sections = {{first, plan->batch.records}};
    pcl_argument(arguments, sizeof sections, &sections);
}

static void set_tensor(pcl_arguments *arguments, const pagedcl_tensor *tensor, cl_mem stand_in) {
    pagedcl_tensor own = *tensor;
    if (own.mem == NULL)
        own = (pagedcl_tensor){.mem = stand_in};
    pcl_argument_tensor(arguments, &own);
}

/* KEYS_PARAMS */
static void set_keys(const pagedcl_attn *attn, const pagedcl_attn_args *args, pcl_arguments *arguments) {
    if (attn->desc.cache != NULL) {
        pcl_cache_arguments(attn->desc.cache, args->layer, arguments);
        return;
    }
    set_tensor(arguments, &args->k, args->q.mem);
    set_tensor(arguments, &args->v, args->q.mem);
}

/* ROTARY_PARAMS */
static void set_rotary(const pagedcl_attn_args *args, cl_mem stand_in, pcl_arguments *arguments) {
    set_buffer(arguments, args->rotary_cos, stand_in);
    set_buffer(arguments, args->rotary_sin, stand_in);
    cl_long2 offsets = {{args->rotary_cos_offset, args->rotary_sin_offset}};
    pcl_argument(arguments, sizeof offsets, &offsets);
}

/* MASK_PARAMS */
static void set_mask(const pagedcl_attn *attn, const pagedcl_attn_args *args, pcl_arguments *arguments) {
    const double log2_e = 1.4426950408889634;
    const pagedcl_attn_desc *desc = &attn->desc;
    /* With a softcap c the product goes into c * tanh(s / c): q is scaled to give s / c. */
    double q_scale = desc->softcap != 0 ? (double)desc->softmax_scale / desc->softcap : desc->softmax_scale * log2_e;
    cl_float2 scale = {{(float)q_scale, (float)(desc->softcap * log2_e)}};
    pcl_argument(arguments, sizeof scale, &scale);
    cl_int2 window = {{desc->window_left, desc->window_right}};
    pcl_argument(arguments, sizeof window, &window);
    set_buffer(arguments, args->alibi_slopes, args->q.mem);
    cl_long2 alibi_layout = {{args->alibi_offset, args->alibi_seq_stride}};
    pcl_argument(arguments, sizeof alibi_layout, &alibi_layout);
    set_buffer(arguments, args->sinks, args->q.mem);
    pcl_argument_long(arguments, args->sinks_offset);
}

/* RESULT_PARAMS */
static void set_result(const pagedcl_attn_args *args, pcl_arguments *arguments) {
    pcl_argument_tensor(arguments, &args->out);
    set_buffer(arguments, args->lse, args->out.mem);
    pcl_argument_long(arguments, args->lse != NULL ? args->lse_offset : -1);
}

/* PARTIAL_PARAMS */
static void set_partials(const pagedcl_plan *plan, const pagedcl_attn_args *args, pcl_arguments *arguments) {
    set_buffer(arguments, plan->partial_acc, args->out.mem);
    set_buffer(arguments, plan->partial_sums, args->out.mem);
}

/* NEW_PARAMS */
static void set_new(const pagedcl_attn_args *args, cl_mem stand_in, pcl_arguments *arguments) {
    set_tensor(arguments, &args->k_new, stand_in);
    set_tensor(arguments, &args->v_new, stand_in);
}

static pagedcl_status enqueue_append(const pagedcl_attn *attn, const pagedcl_plan *plan, const pagedcl_attn_args *args,
                                     pcl_chain *chain) {
    pcl_arguments arguments = pcl_arguments_of(plan->kernels[PCL_ATTN_APPEND]);
    set_plan(plan, plan->batch.appends, &arguments);
    set_keys(attn, args, &arguments);
    set_rotary(args, args->k_new.mem, &arguments);
    set_new(args, args->k_new.mem, &arguments);
    return pcl_launch_groups(chain, &arguments, plan->batch.num_appends, attn->desc.num_kv_heads,
                             (size_t)attn->tuning[PCL_ATTN_APPEND].work_group);
}

/* Of a launch of work items * KV heads, as many work-groups as run at once, so many on a compute unit: each takes the next
   problem when it is done with one. They are counted by an int. */
static pagedcl_status groups_at_once(const pagedcl_attn *attn, int64_t of_unit, int64_t *groups, int64_t *kv_heads) {
    int64_t problems = *groups * *kv_heads, at_once = attn->device->info.compute_units * of_unit;
    if (problems > INT32_MAX - at_once)
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "the batch has %" PRId64 " work items for %" PRId64 " KV heads", *groups,
                        *kv_heads);
    *groups = problems < at_once ? problems : at_once;
    *kv_heads = 1;
    return PAGEDCL_SUCCESS;
}

static pagedcl_status enqueue_varlen(const pagedcl_attn *attn, const pagedcl_plan *plan, const pagedcl_attn_args *args,
                                     pcl_chain *chain) {
    if (plan->batch.num_appends > 0)
        PCL_TRY(enqueue_append(attn, plan, args, chain));
    pcl_arguments arguments = pcl_arguments_of(plan->kernels[PCL_ATTN_VARLEN]);
    set_plan(plan, plan->batch.work, &arguments);
    pcl_argument_tensor(&arguments, &args->q);
    set_keys(attn, args, &arguments);
    set_rotary(args, args->q.mem, &arguments);
    set_mask(attn, args, &arguments);
    set_result(args, &arguments);
    int64_t groups = plan->batch.num_work, kv_heads = attn->desc.num_kv_heads;
    if (attn->warpgroups || attn->varlen_streams) {
        pcl_argument_mem(&arguments, plan->counters);
        if (attn->maps != NULL)
            pcl_attn_maps_arguments(attn, args->layer, &arguments);
        PCL_TRY(groups_at_once(attn, 1, &groups, &kv_heads));
    }
    return pcl_launch_groups(chain, &arguments, groups, kv_heads, (size_t)attn->tuning[PCL_ATTN_VARLEN].work_group);
}

static pagedcl_status enqueue_merge(const pagedcl_attn *attn, const pagedcl_plan *plan, const pagedcl_attn_args *args,
                                    pcl_chain *chain) {
    const pcl_plan_batch *batch = &plan->batch;
    pcl_arguments arguments = pcl_arguments_of(plan->kernels[PCL_ATTN_MERGE]);
    set_plan(plan, batch->merges, &arguments);
    pcl_argument_int(&arguments, batch->seqlen_q);
    set_buffer(&arguments, args->sinks, args->q.mem);
    pcl_argument_long(&arguments, args->sinks_offset);
    set_result(args, &arguments);
    set_partials(plan, args, &arguments);
    return pcl_launch_groups(chain, &arguments, batch->num_merges * batch->seqlen_q * attn->desc.num_heads, 1,
                             (size_t)attn->tuning[PCL_ATTN_MERGE].work_group);
}

/*
 * The KV heads that a work-group of decode takes. In tier cpu they are as many as leave each compute unit some
 * work-groups: a token's rows of all heads lie side by side, or those of a block do, and are then read in one go.
 */
static int64_t heads_at_once(const pagedcl_attn *attn, const pagedcl_plan *plan) {
    enum { MOST_HEADS = 8, WORK_OF_UNIT = 4 };
    if (attn->desc.tier != PAGEDCL_TIER_CPU)
        return 1;
    int64_t work = plan->batch.num_work * attn->desc.num_kv_heads;
    int64_t least = WORK_OF_UNIT * (int64_t)attn->device->info.compute_units;
    int64_t heads = 1;
    while (heads < MOST_HEADS && attn->desc.num_kv_heads % (heads * 2) == 0 && work / (heads * 2) >= least)
        heads *= 2;
    return heads;
}

static pagedcl_status enqueue_decode(const pagedcl_attn *attn, const pagedcl_plan *plan, const pagedcl_attn_args *args,
                                     pcl_chain *chain) {
    pcl_arguments arguments = pcl_arguments_of(plan->kernels[PCL_ATTN_DECODE]);
    set_plan(plan, plan->batch.work, &arguments);
    pcl_argument_tensor(&arguments, &args->q);
    set_keys(attn, args, &arguments);
    set_rotary(args, args->q.mem, &arguments);
    set_mask(attn, args, &arguments);
    set_result(args, &arguments);
    set_partials(plan, args, &arguments);
    const bool merges_itself = pcl_tier_is_nv(attn->desc.tier);
    if (merges_itself)
        set_buffer(&arguments, plan->arrivals, args->out.mem);
    set_new(args, args->q.mem, &arguments);
    const pcl_attn_tuning *tuning = &attn->tuning[PCL_ATTN_DECODE];
    int64_t groups = plan->batch.num_work, columns = attn->desc.num_kv_heads / heads_at_once(attn, plan);
    if (attn->streams) {
        int64_t local_memory = pcl_nv_local_memory(attn->device->nv_capability);
        int64_t at_once = pcl_attn_stream_groups(local_memory, &attn->desc, tuning);
        pcl_argument_mem(&arguments, plan->counters);
        pcl_attn_maps_arguments(attn, args->layer, &arguments);
        PCL_TRY(groups_at_once(attn, at_once, &groups, &columns));
    }
    PCL_TRY(pcl_launch_groups(chain, &arguments, groups, columns, (size_t)tuning->work_group));
    return plan->batch.num_merges > 0 && !merges_itself ? enqueue_merge(attn, plan, args, chain) : PAGEDCL_SUCCESS;
}

pagedcl_status pcl_attn_enqueue(const pagedcl_attn *attn, pagedcl_plan *plan, const pagedcl_attn_args *args,
                                pcl_chain *chain) {
    if (plan->batch.num_work == 0)
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
    const pcl_plan_batch *batch = &plan->batch;
    const pcl_attn_counts counts = {
        .num_seqs = batch->num_seqs,
        .total_q = batch->total_q,
        .total_k = batch->total_k,
        .total_new = batch->total_new,
        .num_positions = batch->num_positions,
    };
    pagedcl_attn_args own;
    PCL_TRY(pcl_attn_args_read(&attn->desc, &counts, args, &own));
    pcl_chain chain;
    PCL_TRY(pcl_chain_begin(&chain, attn->device, queue, num_events, events));
    return pcl_chain_end(&chain, pcl_attn_enqueue(attn, plan, &own, &chain), event);
}
