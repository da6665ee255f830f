/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step's batch: checked, divided into work items, laid out as the kernels read it (cl/lib/attn_problem.h), uploaded.
 *
 * The upload is ints: the work items, one record per sequence, the sequences to merge, the items of a varlen append, the
 * tree masks, the sequences of work items that are for several, and the used parts of the block tables, which may come
 * from a buffer of the caller's instead.
 */
#include "plan.h"

#include "device.h"
#include "plan_check.h"
#include "plan_tables.h"
#include "status.h"
#include "struct_size.h"
#include "table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { WORK_INTS = 4, RECORD_INTS = 12, MAX_SPLITS = 256 };

/* Tokens that one work-group of a varlen append stores. */
enum { APPEND_TOKENS = 32 };

/* Work-groups that a compute unit needs not to be idle. */
enum { WORK_OF_UNIT = 4 };

/* Fewer keys than that are not worth a work-group of their own. */
enum { LEAST_FAST_KEYS = 128 };

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
    pcl_table table;      /* of the two the one that the operator has */
    pcl_device_table device_table;
    cl_uint num_events; /* the caller's */
    const cl_event *events;
    const pagedcl_varlen_batch *varlen; /* one of the two */
    const pagedcl_decode_batch *decode;
    const uint32_t *tree_mask;
    int32_t num_splits; /* or PAGEDCL_SPLITS_FAST, and then: */
    int64_t fast_keys;  /* keys of a split, about */
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

/* The first position that matters: that a query row sees, or that the run stores to. */
static int64_t first_position(const planning *p, const sequence *s) {
    int32_t left = p->attn->desc.window_left;
    int64_t first = left < 0 ? 0 : (int64_t)s->k_len - s->q_len - left;
    int64_t new_first = (int64_t)s->k_len - s->new_len;
    if (s->new_len > 0 && new_first < first)
        first = new_first;
    return first < 0 ? 0 : first < s->k_len ? first : s->k_len;
}

/* How many splits of about fast_keys the sequence has. */
static int64_t fast_splits(const planning *p, const sequence *s) {
    int64_t splits = (s->k_len + p->fast_keys - 1) / p->fast_keys;
    return splits < 1 ? 1 : splits < MAX_SPLITS ? splits : MAX_SPLITS;
}

/* Keys of a split of the sequence: fixed, or as many as make the asked number of splits, in whole tiles. */
static int64_t split_size(const planning *p, const sequence *s) {
    if (p->num_splits == 0)
        return PCL_SPLIT_KEYS;
    int64_t keys = p->attn->tuning[PCL_ATTN_DECODE].keys;
    int64_t splits = p->num_splits > 0 ? p->num_splits : fast_splits(p, s);
    int64_t size = ((int64_t)s->k_len + splits - 1) / splits;
    size = (size + keys - 1) / keys * keys;
    return size > 0 ? size : keys;
}

/* Splits are counted from position 0, whatever the window; those before the first position are left out. */
static int64_t first_split(const planning *p, const sequence *s) {
    return p->decode != NULL ? first_position(p, s) / split_size(p, s) : 0;
}

static int64_t splits_of(const planning *p, const sequence *s) {
    if (p->decode == NULL)
        return 1;
    int64_t splits = (s->k_len + split_size(p, s) - 1) / split_size(p, s) - first_split(p, s);
    return splits > 0 ? splits : 1;
}

static int64_t append_items(const sequence *s) {
    return ((int64_t)s->new_len + APPEND_TOKENS - 1) / APPEND_TOKENS;
}

static int64_t tree_words(const planning *p, const sequence *s) {
    return p->tree_mask != NULL ? ((int64_t)s->q_len + 31) / 32 * s->q_len : 0;
}

/* Tiles of query rows of the sequence, for each KV head. */
static int64_t tiles_of(const planning *p, const sequence *s) {
    const pagedcl_attn_desc *desc = &p->attn->desc;
    int64_t tile = p->attn->tuning[p->decode != NULL ? PCL_ATTN_DECODE : PCL_ATTN_VARLEN].rows;
    int64_t rows = (int64_t)s->q_len * (desc->num_heads / desc->num_kv_heads);
    return (rows + tile - 1) / tile;
}

/* The keys of a split that give each compute unit WORK_OF_UNIT work-groups. */
static int64_t fast_keys(const planning *p) {
    const pagedcl_attn_desc *desc = &p->attn->desc;
    double keys = 0; /* of all work-groups together: beyond 2^63 for the largest batches */
    for (int32_t seq = 0; seq < p->batch.num_seqs; seq++) {
        sequence s = sequence_at(p, seq);
        keys += (double)s.k_len * (double)tiles_of(p, &s) * desc->num_kv_heads;
    }
    double share = keys / (WORK_OF_UNIT * (double)p->attn->device->info.compute_units + 1);
    return share < LEAST_FAST_KEYS ? LEAST_FAST_KEYS : share < INT32_MAX ? (int64_t)share : INT32_MAX;
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

/* Checks one sequence, and adds up what the upload and the partial results will hold of it. */
static pagedcl_status measure_sequence(planning *p, int32_t seq, int64_t *table_ints, int64_t *tree_ints) {
    pcl_plan_batch *batch = &p->batch;
    sequence s = sequence_at(p, seq);
    if (p->cache != NULL && p->attn->desc.device_tables) {
        PCL_TRY(pcl_table_check_room(p->cache, p->device_table.stride, seq, s.k_len));
    } else if (p->cache != NULL) {
        PCL_TRY(pcl_table_check(p->cache, &p->table, seq, first_position(p, &s), s.k_len));
        PCL_TRY(check_owners(p, seq, &s));
    }
    if (p->attn->desc.rotary_dim > 0 && s.k_len < s.q_len)
        return pcl_fail(PAGEDCL_INVALID_LENGTH,
                        "sequence %d has %d query tokens and %d keys: a query before position 0 has no rotary angle",
                        seq, s.q_len, s.k_len);
    int64_t splits = splits_of(p, &s);
    bool fits = add_product(&batch->num_work, tiles_of(p, &s), splits) &&
                add_product(table_ints, blocks_of(p, &s), 1) && add_product(tree_ints, tree_words(p, &s), 1) &&
                add_product(&batch->num_partials, splits > 1 ? splits * s.q_len : 0, p->attn->desc.num_heads);
    if (!fits)
        return too_large();
    batch->num_merges += splits > 1;
    batch->num_appends += p->decode == NULL ? append_items(&s) : 0;
    batch->total_new += s.new_len;
    if (s.k_len > batch->num_positions)
        batch->num_positions = s.k_len;
    return PAGEDCL_SUCCESS;
}

/* Splits in front of the sequence's queries and new tokens that no window cuts. */
static pcl_share_range full_splits(const planning *p, const sequence *s) {
    int32_t left = p->attn->desc.window_left;
    int64_t last_low = left < 0 ? 0 : (int64_t)s->k_len - 1 - left;
    int64_t end = ((int64_t)s->k_len - (s->q_len > s->new_len ? s->q_len : s->new_len)) / PCL_SPLIT_KEYS;
    int64_t begin = last_low <= 0 ? 0 : (last_low + PCL_SPLIT_KEYS - 1) / PCL_SPLIT_KEYS;
    return begin < end ? (pcl_share_range){begin, end} : (pcl_share_range){0};
}

/* Puts splits that several sequences have in common into fewer work items. */
static pagedcl_status share_splits(planning *p) {
    const pagedcl_attn_desc *desc = &p->attn->desc;
    pcl_plan_batch *batch = &p->batch;
    pcl_share *share = &p->plan->share;
    PCL_TRY(pcl_share_begin(share, (int32_t)batch->num_seqs));
    if (p->decode == NULL || p->num_splits != 0 || desc->device_tables || p->decode->share_prefix == PAGEDCL_SHARE_OFF)
        return PAGEDCL_SUCCESS;
    int64_t rows = (int64_t)batch->seqlen_q * (desc->num_heads / desc->num_kv_heads);
    pcl_share_batch offer = {
        .table = p->table.entries,
        .stride = p->table.stride,
        .num_seqs = (int32_t)batch->num_seqs,
        .block_size = p->cache->desc.block_size,
        .split_keys = PCL_SPLIT_KEYS,
        .most_members = (int32_t)(p->attn->tuning[PCL_ATTN_DECODE].rows / rows),
        .num_work = batch->num_work,
    };
    if (offer.most_members < 2)
        return PAGEDCL_SUCCESS;
    if (p->decode->share_prefix == PAGEDCL_SHARE_AUTO)
        offer.least_work = WORK_OF_UNIT * (int64_t)p->attn->device->info.compute_units / desc->num_kv_heads;
    for (int32_t seq = 0; seq < batch->num_seqs; seq++) {
        sequence s = sequence_at(p, seq);
        share->ranges[seq] = full_splits(p, &s);
    }
    PCL_TRY(pcl_share_find(share, &offer));
    batch->num_work -= share->num_members - share->num_items;
    batch->has_shared = share->num_items > 0;
    return PAGEDCL_SUCCESS;
}

/* Checks every sequence and decides where in the upload everything lies. */
static pagedcl_status measure(planning *p) {
    pcl_plan_batch *batch = &p->batch;
    int64_t table_ints = 0, tree_ints = 0;
    for (int32_t seq = 0; seq < batch->num_seqs; seq++)
        PCL_TRY(measure_sequence(p, seq, &table_ints, &tree_ints));
    PCL_TRY(share_splits(p));
    int64_t records = batch->num_work * WORK_INTS, merges = records + batch->num_seqs * RECORD_INTS;
    int64_t appends = merges + batch->num_merges, trees = appends + batch->num_appends * WORK_INTS;
    int64_t members = trees + tree_ints, tables = members + p->plan->share.num_members, end = tables + table_ints;
    if (end > INT32_MAX)
        return too_large();
    batch->work = 0;
    batch->records = (int32_t)records;
    batch->merges = (int32_t)merges;
    batch->appends = (int32_t)appends;
    batch->trees = (int32_t)trees;
    batch->members = (int32_t)members;
    batch->tables = (int32_t)tables;
    batch->size = (size_t)end * sizeof(int32_t);
    batch->upload_size = (size_t)(p->attn->desc.device_tables ? tables : end) * sizeof(int32_t);
    return PAGEDCL_SUCCESS;
}

/* Where the next item of each section is written. */
typedef struct cursor {
    int32_t *ints, *work, *records, *merges, *appends, *trees, *tables;
    const uint32_t *tree_mask;
    int64_t partials;
} cursor;

static void lay_out_sequence(const planning *p, int32_t seq, cursor *c) {
    const pcl_plan_batch *batch = &p->batch;
    bool decode = batch->kind == PCL_PLAN_DECODE;
    sequence s = sequence_at(p, seq);
    int64_t splits = splits_of(p, &s), blocks = blocks_of(p, &s), words = tree_words(p, &s);
    const int32_t record[RECORD_INTS] = {
        s.q_start,
        s.q_len,
        p->cache != NULL ? (int32_t)(c->tables - c->ints) : s.k_start,
        s.k_len,
        s.k_len - s.new_len,
        s.new_start,
        (int32_t)splits,
        (int32_t)c->partials,
        (int32_t)first_split(p, &s),
        (int32_t)(c->trees - c->ints),
        (int32_t)first_position(p, &s),
    };
    memcpy(c->records, record, sizeof record);
    c->records += RECORD_INTS;
    if (blocks > 0 && p->table.entries != NULL)
        memcpy(c->tables, p->table.entries + seq * p->table.stride, (size_t)blocks * sizeof *c->tables);
    c->tables += blocks;
    if (words > 0)
        memcpy(c->trees, c->tree_mask, (size_t)words * sizeof *c->trees);
    c->trees += words;
    c->tree_mask += words;
    if (splits > 1) {
        *c->merges++ = seq;
        c->partials += splits * s.q_len * p->attn->desc.num_heads;
    }
    int32_t tile = p->attn->tuning[decode ? PCL_ATTN_DECODE : PCL_ATTN_VARLEN].rows;
    int32_t size = decode ? (int32_t)split_size(p, &s) : 0;
    /* Causal tiles have the more keys the later they are: those that take longest start first. */
    for (int64_t t = tiles_of(p, &s) - 1; t >= 0; t--)
        for (int64_t split = first_split(p, &s), end = split + splits; split < end; split++) {
            if (pcl_share_has(&p->plan->share, seq, split))
                continue;
            const int32_t work[WORK_INTS] = {seq, (int32_t)(t * tile), (int32_t)split, size};
            memcpy(c->work, work, sizeof work);
            c->work += WORK_INTS;
        }
    for (int64_t i = 0; !decode && i < append_items(&s); i++) {
        int32_t first = (int32_t)(i * APPEND_TOKENS), rest = s.new_len - first;
        const int32_t append[WORK_INTS] = {seq, s.k_len - s.new_len + first,
                                           rest < APPEND_TOKENS ? rest : APPEND_TOKENS};
        memcpy(c->appends, append, sizeof append);
        c->appends += WORK_INTS;
    }
}

/* Work items for several sequences: the place of their list, which is told from a sequence by its sign. */
static void lay_out_shared(const planning *p, cursor *c) {
    const pcl_share *share = &p->plan->share;
    for (int64_t i = 0; i < share->num_items; i++) {
        const pcl_share_item *item = &share->items[i];
        const int32_t work[WORK_INTS] = {~(int32_t)(p->batch.members + item->first), item->count, item->split,
                                         PCL_SPLIT_KEYS};
        memcpy(c->work, work, sizeof work);
        c->work += WORK_INTS;
    }
    if (share->num_members > 0)
        memcpy(c->ints + p->batch.members, share->members, (size_t)share->num_members * sizeof *c->ints);
}

/* Writes the measured batch into staging memory. */
static void lay_out(const planning *p, int32_t *ints) {
    const pcl_plan_batch *batch = &p->batch;
    cursor c = {
        .ints = ints,
        .work = ints + batch->work,
        .records = ints + batch->records,
        .merges = ints + batch->merges,
        .appends = ints + batch->appends,
        .trees = ints + batch->trees,
        .tables = ints + batch->tables,
        .tree_mask = p->tree_mask,
    };
    /* They have the most rows, and take longest. */
    lay_out_shared(p, &c);
    for (int32_t seq = 0; seq < batch->num_seqs; seq++)
        lay_out_sequence(p, seq, &c);
}

static pagedcl_status make_arrivals(cl_context context, int64_t count, cl_mem *arrivals) {
    cl_int *zeros = calloc((size_t)count + 1, sizeof *zeros), code = CL_SUCCESS;
    if (zeros == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for %" PRId64 " counters", count);
    *arrivals =
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
    if (plan->attn->desc.tier == PAGEDCL_TIER_NV_MMA) {
        pagedcl_status status = make_arrivals(context, capacity, &arrivals);
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
static pagedcl_status send(const planning *p, pcl_chain *chain) {
    pcl_upload *upload = &p->plan->upload;
    if (!p->attn->desc.device_tables)
        return pcl_upload_send(upload, chain, p->batch.upload_size);
    PCL_TRY(pcl_upload_write(upload, chain, p->batch.upload_size));
    PCL_TRY(pcl_plan_tables_take(p->plan, chain, pcl_upload_next(upload), &p->batch, &p->device_table));
    return pcl_upload_accept(upload, chain);
}

/* The rest of both kinds of batch, whose arrays are known to be there and whose totals are set. */
static pagedcl_status plan_batch(planning *p, cl_command_queue queue) {
    pagedcl_plan *plan = p->plan;
    bool has_tree = p->attn->desc.has_tree != 0;
    if (p->tree_mask != NULL ? !has_tree : has_tree && p->batch.num_seqs > 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "tree_mask is %s, and the operator's has_tree is %d",
                        p->tree_mask != NULL ? "given" : "NULL", p->attn->desc.has_tree);
    if (p->cache != NULL && !p->attn->desc.device_tables)
        PCL_TRY(begin_owners(p));
    if (p->decode != NULL && p->num_splits == PAGEDCL_SPLITS_FAST)
        p->fast_keys = fast_keys(p);
    PCL_TRY(measure(p));
    PCL_TRY(grow_partials(plan, p->batch.num_partials));
    if (p->batch.num_work > 0) {
        void *staging = NULL;
        PCL_TRY(pcl_upload_begin(&plan->upload, p->batch.size, &staging));
        lay_out(p, staging);
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
    planning p = {
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
    planning p = {
        .plan = plan,
        .attn = plan->attn,
        .cache = plan->attn->desc.cache,
        .table = {own.block_table, own.block_table_stride},
        .device_table = {own.block_table_mem, own.block_table_offset, own.block_table_stride},
        .num_events = own.num_events,
        .events = own.events,
        .decode = &own,
        .tree_mask = own.tree_mask,
        .num_splits = own.num_splits < MAX_SPLITS ? own.num_splits : MAX_SPLITS,
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
    free(plan->owners);
    pagedcl_attn_destroy(plan->attn);
    free(plan);
}
