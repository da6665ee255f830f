/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step's batch: checked, divided into work items, laid out as the kernels read it (cl/lib/attn_problem.h), uploaded.
 *
 * The upload is ints: the work items, one record per sequence, its block table's used part, the sequences to merge; and
 * for a varlen append, aligned to 8 bytes, the slots of the new tokens.
 */
#include "plan.h"

#include "device.h"
#include "status.h"
#include "struct_size.h"
#include "table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { WORK_INTS = 4, RECORD_INTS = 8, MAX_SPLITS = 256 };

/* One sequence of either kind of batch. */
typedef struct sequence {
    int32_t q_start, q_len;
    int32_t k_start; /* packed keys */
    int32_t k_len;   /* with the new tokens */
    int32_t new_len; /* the last of the keys, appended by the run */
    int32_t new_start;
} sequence;

/* A batch while it is being planned: its sequences, and how their keys are cut. */
typedef struct planning {
    pagedcl_plan *plan;
    const pagedcl_attn *attn;
    pagedcl_cache *cache; /* NULL: packed keys */
    pcl_table table;
    const pagedcl_varlen_batch *varlen; /* one of the two */
    const pagedcl_decode_batch *decode;
    int32_t num_seqs;
    int32_t num_splits;
    pcl_plan_batch batch;
} planning;

static sequence sequence_at(const planning *p, int32_t seq) {
    if (p->decode != NULL) {
        const pagedcl_decode_batch *batch = p->decode;
        return (sequence){
            .q_start = seq * batch->seqlen_q,
            .q_len = batch->seqlen_q,
            .k_len = batch->cache_seqlens[seq] + batch->seqlen_new,
            .new_len = batch->seqlen_new,
            .new_start = seq * batch->seqlen_new,
        };
    }
    const pagedcl_varlen_batch *batch = p->varlen;
    sequence s = {.q_start = batch->cu_seqlens_q[seq]};
    s.q_len = batch->cu_seqlens_q[seq + 1] - s.q_start;
    if (p->cache != NULL) {
        s.k_len = batch->cache_seqlens[seq];
        s.new_len = batch->append ? s.q_len : 0;
        s.new_start = s.q_start;
    } else {
        s.k_start = batch->cu_seqlens_k[seq];
        s.k_len = batch->cu_seqlens_k[seq + 1] - s.k_start;
    }
    return s;
}

static int64_t blocks_of(const planning *p, const sequence *s) {
    return p->cache != NULL ? ((int64_t)s->k_len + p->cache->desc.block_size - 1) / p->cache->desc.block_size : 0;
}

/* Keys of a split of the sequence: fixed, or as many as make the asked number of splits, in whole tiles. */
static int64_t split_size(const planning *p, const sequence *s) {
    if (p->num_splits == 0)
        return PCL_SPLIT_KEYS;
    int64_t keys = p->attn->tuning[PCL_ATTN_DECODE].keys;
    int64_t size = ((int64_t)s->k_len + p->num_splits - 1) / p->num_splits;
    size = (size + keys - 1) / keys * keys;
    return size > 0 ? size : keys;
}

static int64_t splits_of(const planning *p, const sequence *s) {
    if (p->decode == NULL || s->k_len == 0)
        return 1;
    return (s->k_len + split_size(p, s) - 1) / split_size(p, s);
}

/* Tiles of query rows of the sequence, for each KV head. */
static int64_t tiles_of(const planning *p, const sequence *s) {
    const pagedcl_attn_desc *desc = &p->attn->desc;
    int64_t tile = p->attn->tuning[p->decode != NULL ? PCL_ATTN_DECODE : PCL_ATTN_VARLEN].rows;
    int64_t rows = (int64_t)s->q_len * (desc->num_heads / desc->num_kv_heads);
    return (rows + tile - 1) / tile;
}

/* The blocks that the run stores new tokens into must be no other sequence's of the batch to store into. */
static pagedcl_status check_owners(const planning *p, int32_t seq, const sequence *s) {
    if (s->new_len == 0)
        return PAGEDCL_SUCCESS;
    pagedcl_plan *plan = p->plan;
    int64_t block_size = p->cache->desc.block_size, end = blocks_of(p, s);
    for (int64_t i = (s->k_len - s->new_len) / block_size; i < end; i++) {
        int32_t block = p->table.entries[seq * p->table.stride + i];
        if (plan->owners[block] == plan->epoch)
            return pcl_fail(PAGEDCL_INVALID_BLOCK,
                            "sequence %d appends to block %d, to which an earlier sequence of the batch, or an earlier "
                            "entry of its table, appends too; copy the block first (copy-on-write)",
                            seq, block);
        plan->owners[block] = plan->epoch;
    }
    return PAGEDCL_SUCCESS;
}

/* A new epoch forgets all owners. */
static pagedcl_status begin_owners(planning *p) {
    pagedcl_plan *plan = p->plan;
    if (plan->owners == NULL || plan->epoch == INT32_MAX) {
        size_t count = (size_t)p->cache->desc.num_blocks;
        int32_t *owners = calloc(count, sizeof *owners);
        if (owners == NULL)
            return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory to check the owners of %zu blocks", count);
        free(plan->owners);
        plan->owners = owners;
        plan->epoch = 0;
    }
    plan->epoch++;
    return PAGEDCL_SUCCESS;
}

static pagedcl_status too_large(void) {
    return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "the batch is too large for one plan: its work items, table entries or "
                                           "partial results are more than 2^31 - 1; divide it");
}

/* sum += a * b, all at least 0; false beyond 2^31 - 1. */
static bool add_product(int64_t *sum, int64_t a, int64_t b) {
    int64_t product = 0;
    return !__builtin_mul_overflow(a, b, &product) && !__builtin_add_overflow(*sum, product, sum) && *sum <= INT32_MAX;
}

/* Checks every sequence, and adds up what the upload and the partial results will hold. */
static pagedcl_status measure(planning *p) {
    pcl_plan_batch *batch = &p->batch;
    int64_t table_ints = 0;
    for (int32_t seq = 0; seq < p->num_seqs; seq++) {
        sequence s = sequence_at(p, seq);
        if (p->cache != NULL) {
            PCL_TRY(pcl_table_check(p->cache, &p->table, seq, s.k_len));
            PCL_TRY(check_owners(p, seq, &s));
        }
        int64_t splits = splits_of(p, &s);
        if (!add_product(&batch->num_work, tiles_of(p, &s), splits))
            return too_large();
        if (splits > 1 && !add_product(&batch->num_partials, splits * s.q_len, p->attn->desc.num_heads))
            return too_large();
        batch->num_merges += splits > 1;
        batch->total_new += s.new_len;
        table_ints += blocks_of(p, &s);
    }
    int64_t work = batch->num_work * WORK_INTS, records = (int64_t)p->num_seqs * RECORD_INTS;
    int64_t ints = work + records + table_ints + batch->num_merges;
    if (ints > INT32_MAX - 1)
        return too_large();
    batch->work = 0;
    batch->records = (int32_t)work;
    batch->merges = (int32_t)(work + records + table_ints);
    batch->slots = (ints + 1) / 2;
    int64_t slots = batch->kind == PCL_PLAN_VARLEN ? batch->total_new : 0;
    batch->size = (size_t)(batch->slots + slots) * sizeof(int64_t);
    return PAGEDCL_SUCCESS;
}

/* Writes the measured batch into staging memory. */
static void lay_out(const planning *p, void *staging) {
    const pcl_plan_batch *batch = &p->batch;
    int32_t *ints = staging, *work = ints + batch->work, *records = ints + batch->records;
    int32_t *tables = records + (int64_t)p->num_seqs * RECORD_INTS, *merges = ints + batch->merges;
    int64_t *slots = (int64_t *)staging + batch->slots;
    int32_t tile = p->attn->tuning[batch->kind == PCL_PLAN_DECODE ? PCL_ATTN_DECODE : PCL_ATTN_VARLEN].rows;
    int64_t partial = 0;
    for (int32_t seq = 0; seq < p->num_seqs; seq++) {
        sequence s = sequence_at(p, seq);
        int64_t splits = splits_of(p, &s), size = split_size(p, &s), blocks = blocks_of(p, &s);
        int32_t *record = records + (int64_t)seq * RECORD_INTS;
        record[0] = s.q_start;
        record[1] = s.q_len;
        record[2] = p->cache != NULL ? (int32_t)(tables - ints) : s.k_start;
        record[3] = s.k_len;
        record[4] = s.k_len - s.new_len;
        record[5] = s.new_start;
        record[6] = (int32_t)splits;
        record[7] = (int32_t)partial;
        if (blocks > 0)
            memcpy(tables, p->table.entries + seq * p->table.stride, (size_t)blocks * sizeof *tables);
        tables += blocks;
        if (splits > 1) {
            *merges++ = seq;
            partial += splits * s.q_len * p->attn->desc.num_heads;
        }
        /* Causal tiles have the more keys the later they are: those that take longest start first. */
        for (int64_t t = tiles_of(p, &s) - 1; t >= 0; t--)
            for (int64_t split = 0; split < splits; split++) {
                work[0] = seq;
                work[1] = (int32_t)(t * tile);
                work[2] = (int32_t)split;
                work[3] = (int32_t)size;
                work += WORK_INTS;
            }
        if (batch->kind == PCL_PLAN_VARLEN && s.new_len > 0) {
            pcl_table_slots(p->cache, &p->table, seq, s.k_len - s.new_len, s.new_len, slots);
            slots += s.new_len;
        }
    }
}

/* Makes room for partial results; the old buffers live on until the commands that use them are done. */
static pagedcl_status grow_partials(pagedcl_plan *plan, int64_t rows) {
    if (rows <= plan->partial_capacity)
        return PAGEDCL_SUCCESS;
    cl_context context = plan->attn->device->context;
    int64_t capacity = rows > 2 * plan->partial_capacity ? rows : 2 * plan->partial_capacity;
    size_t sums_size = (size_t)capacity * 2 * sizeof(cl_float);
    size_t acc_size = (size_t)capacity * (size_t)plan->attn->desc.head_dim * sizeof(cl_float);
    cl_int code = CL_SUCCESS;
    cl_mem acc = clCreateBuffer(context, CL_MEM_READ_WRITE, acc_size, NULL, &code);
    if (code != CL_SUCCESS)
        return pcl_fail_opencl(code, "clCreateBuffer of partial results");
    cl_mem sums = clCreateBuffer(context, CL_MEM_READ_WRITE, sums_size, NULL, &code);
    if (code != CL_SUCCESS) {
        clReleaseMemObject(acc);
        return pcl_fail_opencl(code, "clCreateBuffer of partial results");
    }
    if (plan->partial_acc != NULL) {
        clReleaseMemObject(plan->partial_acc);
        clReleaseMemObject(plan->partial_sums);
    }
    plan->partial_acc = acc;
    plan->partial_sums = sums;
    plan->partial_capacity = capacity;
    return PAGEDCL_SUCCESS;
}

/* The rest of both kinds of batch, whose arrays are known to be there and whose totals are set. */
static pagedcl_status plan_batch(planning *p, cl_command_queue queue) {
    pagedcl_plan *plan = p->plan;
    if (p->cache != NULL)
        PCL_TRY(begin_owners(p));
    PCL_TRY(measure(p));
    PCL_TRY(grow_partials(plan, p->batch.num_partials));
    if (p->batch.num_work > 0 || p->batch.total_new > 0) {
        void *staging = NULL;
        PCL_TRY(pcl_upload_begin(&plan->upload, p->batch.size, &staging));
        lay_out(p, staging);
        pcl_chain chain;
        PCL_TRY(pcl_chain_begin(&chain, plan->attn->device, queue, 0, NULL));
        PCL_TRY(pcl_chain_end(&chain, pcl_upload_send(&plan->upload, &chain, p->batch.size), NULL));
    }
    plan->batch = p->batch;
    return PAGEDCL_SUCCESS;
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

static pagedcl_status check_varlen(const pagedcl_attn *attn, const pagedcl_varlen_batch *batch) {
    bool paged = attn->desc.cache != NULL;
    if (batch->num_seqs < 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "num_seqs is %d", batch->num_seqs);
    if (batch->append != 0 && batch->append != 1)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "append is %d, not 0 or 1", batch->append);
    if (paged && batch->cu_seqlens_k != NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "cu_seqlens_k is for packed keys, and the operator has a cache: make one without for them");
    if (!paged && (batch->block_table != NULL || batch->cache_seqlens != NULL || batch->append))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "block_table, cache_seqlens and append need an operator with a cache");
    if (batch->num_seqs == 0)
        return PAGEDCL_SUCCESS;
    if (batch->cu_seqlens_q == NULL || (paged ? batch->cache_seqlens : batch->cu_seqlens_k) == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "cu_seqlens_q and %s must not be NULL",
                        paged ? "cache_seqlens" : "cu_seqlens_k");
    PCL_TRY(check_cumulative("cu_seqlens_q", batch->cu_seqlens_q, batch->num_seqs));
    if (!paged)
        return check_cumulative("cu_seqlens_k", batch->cu_seqlens_k, batch->num_seqs);
    if (batch->block_table_stride < 0 || (batch->block_table == NULL && batch->block_table_stride > 0))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "block_table must not be NULL, nor its stride below 0");
    for (int32_t seq = 0; seq < batch->num_seqs && batch->append; seq++) {
        int32_t q_len = batch->cu_seqlens_q[seq + 1] - batch->cu_seqlens_q[seq];
        if (batch->cache_seqlens[seq] < q_len)
            return pcl_fail(PAGEDCL_INVALID_LENGTH,
                            "sequence %d appends %d tokens, but its cache_seqlens, which counts them, is %d", seq,
                            q_len, batch->cache_seqlens[seq]);
    }
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_plan_varlen(pagedcl_plan *plan, cl_command_queue queue, const pagedcl_varlen_batch *batch) {
    if (plan == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "plan is NULL");
    pagedcl_varlen_batch own;
    PCL_TRY(PCL_READ_STRUCT(&own, batch, append));
    PCL_TRY(check_varlen(plan->attn, &own));
    planning p = {
        .plan = plan,
        .attn = plan->attn,
        .cache = plan->attn->desc.cache,
        .table = {own.block_table, own.block_table_stride},
        .varlen = &own,
        .num_seqs = own.num_seqs,
        .batch = {.kind = PCL_PLAN_VARLEN},
    };
    if (own.num_seqs > 0) {
        p.batch.total_q = own.cu_seqlens_q[own.num_seqs];
        p.batch.total_k = own.cu_seqlens_k != NULL ? own.cu_seqlens_k[own.num_seqs] : 0;
    }
    return plan_batch(&p, queue);
}

static pagedcl_status check_decode(const pagedcl_attn *attn, const pagedcl_decode_batch *batch) {
    if (attn->desc.cache == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "decode attention needs an operator with a cache");
    if (batch->num_seqs < 0 || batch->seqlen_q < 1 || batch->seqlen_new < 0 || batch->num_splits < 0)
        return pcl_fail(
            PAGEDCL_INVALID_ARGUMENT,
            "num_seqs %d, seqlen_q %d, seqlen_new %d, num_splits %d: seqlen_q must be at least 1, the others "
            "0",
            batch->num_seqs, batch->seqlen_q, batch->seqlen_new, batch->num_splits);
    int64_t rows = batch->seqlen_q > batch->seqlen_new ? batch->seqlen_q : batch->seqlen_new;
    if (rows * batch->num_seqs > INT32_MAX)
        return pcl_fail(PAGEDCL_INVALID_LENGTH, "%d sequences of %" PRId64 " tokens are more than 2^31 - 1",
                        batch->num_seqs, rows);
    if (batch->num_seqs == 0)
        return PAGEDCL_SUCCESS;
    if (batch->cache_seqlens == NULL || batch->block_table_stride < 0 ||
        (batch->block_table == NULL && batch->block_table_stride > 0))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "cache_seqlens and block_table must not be NULL, nor the stride below 0");
    for (int32_t seq = 0; seq < batch->num_seqs; seq++)
        if (batch->cache_seqlens[seq] < 0 || batch->cache_seqlens[seq] > INT32_MAX - batch->seqlen_new)
            return pcl_fail(PAGEDCL_INVALID_LENGTH, "sequence %d has cache_seqlens %d and appends %d", seq,
                            batch->cache_seqlens[seq], batch->seqlen_new);
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_plan_decode(pagedcl_plan *plan, cl_command_queue queue, const pagedcl_decode_batch *batch) {
    if (plan == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "plan is NULL");
    pagedcl_decode_batch own;
    PCL_TRY(PCL_READ_STRUCT(&own, batch, num_splits));
    PCL_TRY(check_decode(plan->attn, &own));
    planning p = {
        .plan = plan,
        .attn = plan->attn,
        .cache = plan->attn->desc.cache,
        .table = {own.block_table, own.block_table_stride},
        .decode = &own,
        .num_seqs = own.num_seqs,
        .num_splits = own.num_splits < MAX_SPLITS ? own.num_splits : MAX_SPLITS,
        .batch = {.kind = PCL_PLAN_DECODE, .seqlen_q = own.seqlen_q},
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
    pcl_upload_init(&plan->upload, attn->device->context);
    /* A kernel object holds its arguments: plans of one operator are used by several threads, so each has its own. */
    pagedcl_status status = PAGEDCL_SUCCESS;
    for (int i = 0; i < PCL_ATTN_KERNELS && status == PAGEDCL_SUCCESS; i++)
        if (attn->programs[i] != NULL)
            status = pcl_variant_kernel(&attn->variants[i], attn->programs[i], &plan->kernels[i]);
    pagedcl_cache *cache = attn->desc.cache;
    if (cache != NULL && status == PAGEDCL_SUCCESS)
        status = pcl_variant_kernel(&cache->variants[PCL_CACHE_WRITE], cache->programs[PCL_CACHE_WRITE], &plan->write);
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
    pcl_fence_release(&plan->runs);
    for (int i = 0; i < PCL_ATTN_KERNELS; i++)
        if (plan->kernels[i] != NULL)
            clReleaseKernel(plan->kernels[i]);
    if (plan->write != NULL)
        clReleaseKernel(plan->write);
    if (plan->partial_acc != NULL) {
        clReleaseMemObject(plan->partial_acc);
        clReleaseMemObject(plan->partial_sums);
    }
    free(plan->owners);
    pagedcl_attn_destroy(plan->attn);
    free(plan);
}
