/* SPDX-License-Identifier: Apache-2.0 */
#include "plan_layout.h"

#include "device.h"
#include "status.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { WORK_INTS = 4, RECORD_INTS = 12 };

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

static sequence sequence_at(const pcl_planning *p, int32_t seq) {
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

static int64_t blocks_of(const pcl_planning *p, const sequence *s) {
    return p->cache != NULL ? ((int64_t)s->k_len + p->cache->desc.block_size - 1) / p->cache->desc.block_size : 0;
}

/* The first position that matters: that a query row sees, or that the run stores to. */
static int64_t first_position(const pcl_planning *p, const sequence *s) {
    int32_t left = p->attn->desc.window_left;
    int64_t first = left < 0 ? 0 : (int64_t)s->k_len - s->q_len - left;
    int64_t new_first = (int64_t)s->k_len - s->new_len;
    if (s->new_len > 0 && new_first < first)
        first = new_first;
    return first < 0 ? 0 : first < s->k_len ? first : s->k_len;
}

/* How many splits of about fast_keys the sequence has. */
static int64_t fast_splits(const pcl_planning *p, const sequence *s) {
    int64_t splits = (s->k_len + p->fast_keys - 1) / p->fast_keys;
    return splits < 1 ? 1 : splits < PCL_MAX_SPLITS ? splits : PCL_MAX_SPLITS;
}

/* Keys of a split that has a fixed number. */
static int32_t fixed_keys(const pcl_planning *p) {
    return pcl_attn_split_keys(&p->attn->tuning[PCL_ATTN_DECODE]);
}

/* Keys of a split of the sequence: fixed, or as many as make the asked number of splits, in whole tiles. */
static int64_t split_size(const pcl_planning *p, const sequence *s) {
    if (p->num_splits == 0)
        return fixed_keys(p);
    int64_t keys = p->attn->tuning[PCL_ATTN_DECODE].keys;
    int64_t splits = p->num_splits > 0 ? p->num_splits : fast_splits(p, s);
    int64_t size = ((int64_t)s->k_len + splits - 1) / splits;
    size = (size + keys - 1) / keys * keys;
    return size > 0 ? size : keys;
}

/* Splits are counted from position 0, whatever the window; those before the first position are left out. */
static int64_t first_split(const pcl_planning *p, const sequence *s) {
    return p->decode != NULL ? first_position(p, s) / split_size(p, s) : 0;
}

static int64_t splits_of(const pcl_planning *p, const sequence *s) {
    if (p->decode == NULL)
        return 1;
    int64_t splits = (s->k_len + split_size(p, s) - 1) / split_size(p, s) - first_split(p, s);
    return splits > 0 ? splits : 1;
}

static int64_t append_items(const sequence *s) {
    return ((int64_t)s->new_len + APPEND_TOKENS - 1) / APPEND_TOKENS;
}

static int64_t tree_words(const pcl_planning *p, const sequence *s) {
    return p->tree_mask != NULL ? ((int64_t)s->q_len + 31) / 32 * s->q_len : 0;
}

/* Tiles of query rows of the sequence, for each KV head. */
static int64_t tiles_of(const pcl_planning *p, const sequence *s) {
    const pagedcl_attn_desc *desc = &p->attn->desc;
    int64_t tile = p->attn->tuning[p->decode != NULL ? PCL_ATTN_DECODE : PCL_ATTN_VARLEN].rows;
    int64_t rows = (int64_t)s->q_len * (desc->num_heads / desc->num_kv_heads);
    return (rows + tile - 1) / tile;
}

/* The keys of a split that give each compute unit WORK_OF_UNIT work-groups. */
static int64_t fast_keys(const pcl_planning *p) {
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
static pagedcl_status check_owners(const pcl_planning *p, int32_t seq, const sequence *s) {
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
static pagedcl_status begin_owners(pcl_planning *p) {
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
static pagedcl_status measure_sequence(pcl_planning *p, int32_t seq, int64_t *table_ints, int64_t *tree_ints) {
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
static pcl_share_range full_splits(const pcl_planning *p, const sequence *s) {
    int32_t left = p->attn->desc.window_left;
    int64_t last_low = left < 0 ? 0 : (int64_t)s->k_len - 1 - left;
    int64_t end = ((int64_t)s->k_len - (s->q_len > s->new_len ? s->q_len : s->new_len)) / fixed_keys(p);
    int64_t begin = last_low <= 0 ? 0 : (last_low + fixed_keys(p) - 1) / fixed_keys(p);
    return begin < end ? (pcl_share_range){begin, end} : (pcl_share_range){0};
}

/* Puts splits that several sequences have in common into fewer work items. */
static pagedcl_status share_splits(pcl_planning *p) {
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
        .split_keys = fixed_keys(p),
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
    return PAGEDCL_SUCCESS;
}

pagedcl_status pcl_plan_measure(pcl_planning *p) {
    pcl_plan_batch *batch = &p->batch;
    int64_t table_ints = 0, tree_ints = 0;
    if (p->cache != NULL && !p->attn->desc.device_tables)
        PCL_TRY(begin_owners(p));
    if (p->decode != NULL && p->num_splits == PAGEDCL_SPLITS_FAST)
        p->fast_keys = fast_keys(p);
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

static void lay_out_sequence(const pcl_planning *p, int32_t seq, cursor *c) {
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
    /* Causal tiles have the more keys the later they are: those that take longest start first. Those of a split read the
       same keys. */
    for (int64_t split = first_split(p, &s), end = split + splits; split < end; split++) {
        const bool is_shared = pcl_share_has(&p->plan->share, seq, split);
        for (int64_t t = tiles_of(p, &s) - 1; t >= 0 && !is_shared; t--) {
            const int32_t work[WORK_INTS] = {seq, (int32_t)(t * tile), (int32_t)split, size};
            memcpy(c->work, work, sizeof work);
            c->work += WORK_INTS;
        }
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
static void lay_out_shared(const pcl_planning *p, cursor *c) {
    const pcl_share *share = &p->plan->share;
    for (int64_t i = 0; i < share->num_items; i++) {
        const pcl_share_item *item = &share->items[i];
        const int32_t work[WORK_INTS] = {~(int32_t)(p->batch.members + item->first), item->count, item->split,
                                         fixed_keys(p)};
        memcpy(c->work, work, sizeof work);
        c->work += WORK_INTS;
    }
    if (share->num_members > 0)
        memcpy(c->ints + p->batch.members, share->members, (size_t)share->num_members * sizeof *c->ints);
}

void pcl_plan_lay_out(const pcl_planning *p, int32_t *ints) {
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
