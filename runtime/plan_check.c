/* SPDX-License-Identifier: Apache-2.0 */
#include "plan_check.h"

#include "status.h"
#include "tensor.h"

#include <inttypes.h>

/* The block table of a batch with a pool: on the host, or on the device where the operator was made for that. */
static pagedcl_status check_table(const pagedcl_attn *attn, int32_t num_seqs, const int32_t *host, int64_t stride,
                                  cl_mem mem, int64_t offset) {
    bool on_device = attn->desc.device_tables != 0;
    if (on_device ? host != NULL : mem != NULL || offset != 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s is given, but the operator's device_tables is %d",
                        on_device ? "block_table" : "block_table_mem, or its offset,", attn->desc.device_tables);
    if (stride < 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "block_table_stride is %" PRId64, stride);
    if (!on_device)
        return host != NULL || stride == 0 ? PAGEDCL_SUCCESS
                                           : pcl_fail(PAGEDCL_INVALID_ARGUMENT, "block_table must not be NULL");
    int64_t entries = 0;
    if (__builtin_mul_overflow((int64_t)num_seqs, stride, &entries))
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "%d rows of block_table_stride %" PRId64, num_seqs, stride);
    return entries > 0 ? pcl_buffer_check("block_table_mem", mem, offset, entries, sizeof(cl_int)) : PAGEDCL_SUCCESS;
}

/* An array of cumulative lengths: from 0, not falling. */
static pagedcl_status check_cumulative(const char *name, const int32_t *cu_seqlens, int32_t num_seqs) {
    if (cu_seqlens[0] != 0)
        return pcl_fail(PAGEDCL_INVALID_LENGTH, "%s begins with %d, not 0", name, cu_seqlens[0]);
    for (int32_t seq = 0; seq < num_seqs; seq++)
        if (cu_seqlens[seq + 1] < cu_seqlens[seq])
            return pcl_fail(PAGEDCL_INVALID_LENGTH, "%s falls from %d to %d at sequence %d", name, cu_seqlens[seq],
                            cu_seqlens[seq + 1], seq);
    return PAGEDCL_SUCCESS;
}

pagedcl_status pcl_plan_check_varlen(const pagedcl_attn *attn, const pagedcl_varlen_batch *batch) {
    bool paged = attn->desc.cache != NULL;
    if (attn->desc.paths == PAGEDCL_PATH_DECODE)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "the operator was made for decode alone");
    if (batch->num_seqs < 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "num_seqs is %d", batch->num_seqs);
    if (batch->append != 0 && batch->append != 1)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "append is %d, not 0 or 1", batch->append);
    if (paged && batch->cu_seqlens_k != NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "cu_seqlens_k is for packed keys, and the operator has a cache: make one without for them");
    if (!paged && (batch->block_table != NULL || batch->block_table_mem != NULL || batch->block_table_offset != 0 ||
                   batch->block_table_stride != 0 || batch->cache_seqlens != NULL || batch->append))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "a block table, block_table_stride, cache_seqlens and append need an operator with a cache");
    if (batch->num_seqs == 0)
        return PAGEDCL_SUCCESS;
    if (batch->cu_seqlens_q == NULL || (paged ? batch->cache_seqlens : batch->cu_seqlens_k) == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "cu_seqlens_q and %s must not be NULL",
                        paged ? "cache_seqlens" : "cu_seqlens_k");
    PCL_TRY(check_cumulative("cu_seqlens_q", batch->cu_seqlens_q, batch->num_seqs));
    if (!paged)
        return check_cumulative("cu_seqlens_k", batch->cu_seqlens_k, batch->num_seqs);
    PCL_TRY(check_table(attn, batch->num_seqs, batch->block_table, batch->block_table_stride, batch->block_table_mem,
                        batch->block_table_offset));
    for (int32_t seq = 0; seq < batch->num_seqs && batch->append; seq++) {
        int32_t q_len = batch->cu_seqlens_q[seq + 1] - batch->cu_seqlens_q[seq];
        if (batch->cache_seqlens[seq] < q_len)
            return pcl_fail(PAGEDCL_INVALID_LENGTH,
                            "sequence %d appends %d tokens, but its cache_seqlens, which counts them, is %d", seq,
                            q_len, batch->cache_seqlens[seq]);
    }
    return PAGEDCL_SUCCESS;
}

pagedcl_status pcl_plan_check_decode(const pagedcl_attn *attn, const pagedcl_decode_batch *batch) {
    if (attn->desc.cache == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "decode attention needs an operator with a cache");
    if (attn->desc.paths == PAGEDCL_PATH_VARLEN)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "the operator was made for varlen alone");
    if (batch->num_seqs < 0 || batch->seqlen_q < 1 || batch->seqlen_new < 0 || batch->num_splits < PAGEDCL_SPLITS_FAST)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "num_seqs %d, seqlen_q %d, seqlen_new %d, num_splits %d: seqlen_q must be at least 1, "
                        "num_splits -1 (PAGEDCL_SPLITS_FAST), the others 0",
                        batch->num_seqs, batch->seqlen_q, batch->seqlen_new, batch->num_splits);
    if (batch->share_prefix < PAGEDCL_SHARE_AUTO || batch->share_prefix > PAGEDCL_SHARE_ALL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "share_prefix %d is not one of pagedcl_sharing",
                        (int)batch->share_prefix);
    if (batch->share_prefix == PAGEDCL_SHARE_ALL && (batch->num_splits != 0 || attn->desc.device_tables))
        return pcl_fail(
            PAGEDCL_INVALID_ARGUMENT,
            "share_prefix is PAGEDCL_SHARE_ALL, but num_splits is %d and the operator's device_tables is %d",
            batch->num_splits, attn->desc.device_tables);
    int64_t rows = batch->seqlen_q > batch->seqlen_new ? batch->seqlen_q : batch->seqlen_new;
    if (rows * batch->num_seqs > INT32_MAX)
        return pcl_fail(PAGEDCL_INVALID_LENGTH, "%d sequences of %" PRId64 " tokens are more than 2^31 - 1",
                        batch->num_seqs, rows);
    if (batch->num_seqs == 0)
        return PAGEDCL_SUCCESS;
    if (batch->cache_seqlens == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "cache_seqlens must not be NULL");
    PCL_TRY(check_table(attn, batch->num_seqs, batch->block_table, batch->block_table_stride, batch->block_table_mem,
                        batch->block_table_offset));
    for (int32_t seq = 0; seq < batch->num_seqs; seq++)
        if (batch->cache_seqlens[seq] < 0 || batch->cache_seqlens[seq] > INT32_MAX - batch->seqlen_new)
            return pcl_fail(PAGEDCL_INVALID_LENGTH, "sequence %d has cache_seqlens %d and appends %d", seq,
                            batch->cache_seqlens[seq], batch->seqlen_new);
    return PAGEDCL_SUCCESS;
}
