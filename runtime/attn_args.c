/* SPDX-License-Identifier: Apache-2.0 */
#include "attn_args.h"

#include "cache.h"
#include "status.h"
#include "struct_size.h"
#include "tensor.h"

#include <inttypes.h>

/* Whether a tensor has anything at all. */
static bool is_given(const pagedcl_tensor *tensor) {
    return tensor->mem != NULL || tensor->offset != 0 || tensor->token_stride != 0 || tensor->head_stride != 0;
}

static pagedcl_status check_absent(const char *name, const pagedcl_tensor *tensor, const char *why) {
    return is_given(tensor) ? pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s is given, but %s", name, why) : PAGEDCL_SUCCESS;
}

static pagedcl_status check_packed_keys(const pagedcl_attn_desc *desc, const pcl_attn_counts *counts,
                                        pagedcl_attn_args *own) {
    PCL_TRY(check_absent("k_new", &own->k_new, "packed keys are not appended to"));
    PCL_TRY(check_absent("v_new", &own->v_new, "packed keys are not appended to"));
    PCL_TRY(
        pcl_tensor_check("k", &own->k, counts->total_k, desc->num_kv_heads, desc->head_dim, desc->kv_dtype, &own->k));
    return pcl_tensor_check("v", &own->v, counts->total_k, desc->num_kv_heads, desc->head_dim_v, desc->kv_dtype,
                            &own->v);
}

/* What is stored into the pool. Of a batch without a query nothing is read, so nothing need be told apart. */
static pagedcl_status check_new_keys(const pagedcl_attn_desc *desc, const pcl_attn_counts *counts,
                                     pagedcl_attn_args *own) {
    bool v_in_k = desc->cache->desc.v_in_k != 0;
    PCL_TRY(check_absent("k", &own->k, "it is for packed keys, and the operator has a cache"));
    PCL_TRY(check_absent("v", &own->v, "it is for packed keys, and the operator has a cache"));
    if (v_in_k)
        PCL_TRY(check_absent("v_new", &own->v_new, "V of this pool lies in K"));
    if (counts->total_new == 0 && counts->total_q > 0) {
        PCL_TRY(check_absent("k_new", &own->k_new, "the plan does not append"));
        PCL_TRY(check_absent("v_new", &own->v_new, "the plan does not append"));
    }
    PCL_TRY(pcl_tensor_check("k_new", &own->k_new, counts->total_new, desc->num_kv_heads, desc->head_dim, desc->q_dtype,
                             &own->k_new));
    return pcl_tensor_check("v_new", &own->v_new, v_in_k ? 0 : counts->total_new, desc->num_kv_heads, desc->head_dim_v,
                            desc->q_dtype, &own->v_new);
}

/* A number that must be 0 where the operator, or the run, lacks what it belongs to. */
static pagedcl_status check_zero(const char *name, int64_t value, bool wanted, const char *owner) {
    return wanted || value == 0
               ? PAGEDCL_SUCCESS
               : pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s is %" PRId64 ", but there is no %s", name, value, owner);
}

/* A buffer of floats that is given when, and only when, the operator has the feature. */
static pagedcl_status check_floats(const char *name, bool wanted, cl_mem mem, int64_t offset, int64_t count) {
    if (wanted)
        return pcl_buffer_check(name, mem, offset, count, sizeof(cl_float));
    if (mem != NULL || offset != 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s or its offset is given, but the operator was made without", name);
    return PAGEDCL_SUCCESS;
}

static pagedcl_status check_alibi(const pagedcl_attn_desc *desc, const pcl_attn_counts *counts,
                                  const pagedcl_attn_args *own) {
    int64_t slopes = desc->num_heads, last = counts->num_seqs > 0 ? counts->num_seqs - 1 : 0;
    PCL_TRY(check_zero("alibi_seq_stride", own->alibi_seq_stride, desc->has_alibi, "has_alibi"));
    if (own->alibi_seq_stride < 0 || __builtin_mul_overflow(last, own->alibi_seq_stride, &last) ||
        __builtin_add_overflow(slopes, last, &slopes))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "alibi_seq_stride is %" PRId64, own->alibi_seq_stride);
    return check_floats("alibi_slopes", desc->has_alibi, own->alibi_slopes, own->alibi_offset, slopes);
}

static pagedcl_status check_rotary(const pagedcl_attn_desc *desc, const pcl_attn_counts *counts,
                                   const pagedcl_attn_args *own) {
    bool rotary = desc->rotary_dim > 0;
    PCL_TRY(check_zero("rotary_positions", own->rotary_positions, rotary, "rotary_dim"));
    if (own->rotary_positions < counts->num_positions && rotary)
        return pcl_fail(PAGEDCL_BUFFER_TOO_SMALL,
                        "the rotary tables have %" PRId64 " positions, the longest sequence %" PRId64,
                        own->rotary_positions, counts->num_positions);
    int64_t angles = 0;
    if (__builtin_mul_overflow(own->rotary_positions, desc->rotary_dim / 2, &angles))
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "rotary_positions is %" PRId64, own->rotary_positions);
    PCL_TRY(check_floats("rotary_cos", rotary, own->rotary_cos, own->rotary_cos_offset, angles));
    return check_floats("rotary_sin", rotary, own->rotary_sin, own->rotary_sin_offset, angles);
}

pagedcl_status pcl_attn_args_read(const pagedcl_attn_desc *desc, const pcl_attn_counts *counts,
                                  const pagedcl_attn_args *args, pagedcl_attn_args *own) {
    PCL_TRY(PCL_READ_STRUCT(own, args, lse_offset));
    if (desc->cache != NULL)
        PCL_TRY(pcl_cache_check_layer(desc->cache, own->layer));
    else if (own->layer != 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "layer is %d, but packed keys have no layers", own->layer);
    PCL_TRY(pcl_tensor_check("q", &own->q, counts->total_q, desc->num_heads, desc->head_dim, desc->q_dtype, &own->q));
    PCL_TRY(pcl_tensor_check("out", &own->out, counts->total_q, desc->num_heads, desc->head_dim_v, desc->out_dtype,
                             &own->out));
    PCL_TRY(desc->cache != NULL ? check_new_keys(desc, counts, own) : check_packed_keys(desc, counts, own));
    PCL_TRY(check_alibi(desc, counts, own));
    PCL_TRY(check_floats("sinks", desc->has_sinks, own->sinks, own->sinks_offset, desc->num_heads));
    PCL_TRY(check_rotary(desc, counts, own));
    PCL_TRY(check_zero("lse_offset", own->lse_offset, own->lse != NULL, "lse"));
    if (own->lse != NULL && counts->total_q > 0)
        return pcl_buffer_check("lse", own->lse, own->lse_offset, counts->total_q * desc->num_heads, sizeof(cl_float));
    return PAGEDCL_SUCCESS;
}
