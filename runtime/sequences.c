/* SPDX-License-Identifier: Apache-2.0 */
/* The sequences of the block manager: handles, block tables, sharing, copy-on-write. */
#include "blocks.h"

#include "status.h"

#include <inttypes.h>
#include <stdlib.h>

/* A handle is generation << 32 | index. Generations begin at 1, so no handle is 0. */
static pagedcl_seq handle_of(const pagedcl_blocks *blocks, int32_t index) {
    return (pagedcl_seq)blocks->seqs[index].generation << 32 | (uint32_t)index;
}

static pagedcl_status find_sequence(const pagedcl_blocks *blocks, pagedcl_seq seq, pcl_sequence **found) {
    if (blocks == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "blocks is NULL");
    uint32_t index = (uint32_t)seq;
    uint32_t generation = (uint32_t)(seq >> 32);
    if (index >= (uint32_t)blocks->num_seqs || !blocks->seqs[index].live ||
        blocks->seqs[index].generation != generation)
        return pcl_fail(PAGEDCL_INVALID_HANDLE,
                        "0x%" PRIx64 " names no sequence: it was freed, or this manager did not make it", seq);
    *found = &blocks->seqs[index];
    return PAGEDCL_SUCCESS;
}

/* Makes sure that take_sequence has an entry to take. May move the sequences. */
static pagedcl_status reserve_sequence(pagedcl_blocks *blocks) {
    if (blocks->free_seq >= 0 || blocks->num_seqs < blocks->seq_capacity)
        return PAGEDCL_SUCCESS;
    size_t bytes;
    pcl_sequence *seqs = NULL;
    int32_t capacity;
    if (!__builtin_add_overflow(blocks->seq_capacity, blocks->seq_capacity / 2 + 16, &capacity) &&
        !__builtin_mul_overflow((size_t)capacity, sizeof *seqs, &bytes))
        seqs = realloc(blocks->seqs, bytes);
    if (seqs == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no host memory for more than %" PRId32 " sequences", blocks->num_seqs);
    blocks->seqs = seqs;
    blocks->seq_capacity = capacity;
    return PAGEDCL_SUCCESS;
}

/* An empty sequence in an entry that reserve_sequence made sure of; its index. */
static int32_t take_sequence(pagedcl_blocks *blocks) {
    uint32_t generation = 0;
    int32_t index = blocks->free_seq;
    if (index >= 0) {
        generation = blocks->seqs[index].generation;
        blocks->free_seq = blocks->seqs[index].next_free;
    } else {
        index = blocks->num_seqs++;
    }
    blocks->seqs[index] = (pcl_sequence){.generation = generation + 1, .live = true};
    blocks->stats.num_seqs++;
    return index;
}

/* Releases the blocks behind the first `keep`, the last one first: they are taken again in table order. */
static void release_blocks(pagedcl_blocks *blocks, const pcl_sequence *s, int64_t keep) {
    for (int64_t entry = pcl_blocks_for(blocks, s->length) * blocks->num_groups; entry-- > keep * blocks->num_groups;)
        pcl_block_release(blocks, s->table[entry]);
}

static void set_length(pagedcl_blocks *blocks, pcl_sequence *s, int64_t length) {
    blocks->stats.num_tokens += length - s->length;
    s->length = length;
}

pagedcl_status pagedcl_blocks_seq_create(pagedcl_blocks *blocks, pagedcl_seq *seq) {
    if (blocks == NULL || seq == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s is NULL", blocks == NULL ? "blocks" : "seq");
    PCL_TRY(reserve_sequence(blocks));
    *seq = handle_of(blocks, take_sequence(blocks));
    return PAGEDCL_SUCCESS;
}

/* Makes sure that the table has memory for num_blocks logical blocks. */
static pagedcl_status reserve_table(const pagedcl_blocks *blocks, pcl_sequence *s, int64_t num_blocks) {
    if (num_blocks <= s->capacity)
        return PAGEDCL_SUCCESS;
    /* By half more each time: appending costs constant time a block on average. */
    int64_t capacity = s->capacity + s->capacity / 2;
    if (capacity < num_blocks)
        capacity = num_blocks;
    size_t bytes;
    int32_t *table = NULL;
    if (!__builtin_mul_overflow(capacity, (int64_t)sizeof *table * blocks->num_groups, &bytes))
        table = realloc(s->table, bytes);
    if (table == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY,
                        "no host memory for a block table of %" PRId64 " blocks in %" PRId32 " groups", num_blocks,
                        blocks->num_groups);
    s->table = table;
    s->capacity = capacity;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_share(pagedcl_blocks *blocks, pagedcl_seq parent, int64_t num_tokens, pagedcl_seq *seq) {
    pcl_sequence *from = NULL;
    PCL_TRY(find_sequence(blocks, parent, &from));
    if (seq == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "seq is NULL");
    if (num_tokens < 0 || num_tokens > from->length)
        return pcl_fail(PAGEDCL_INVALID_LENGTH, "%" PRId64 " tokens cannot be shared of a sequence of %" PRId64,
                        num_tokens, from->length);

    int64_t num_blocks = pcl_blocks_for(blocks, num_tokens);
    pcl_sequence table_of = {0};
    PCL_TRY(reserve_sequence(blocks));
    PCL_TRY(reserve_table(blocks, &table_of, num_blocks));

    int32_t index = take_sequence(blocks);
    pcl_sequence *made = &blocks->seqs[index];
    from = &blocks->seqs[(uint32_t)parent]; /* reserve_sequence may have moved it */
    made->table = table_of.table;
    made->capacity = table_of.capacity;
    for (int64_t entry = 0; entry < num_blocks * blocks->num_groups; entry++) {
        made->table[entry] = from->table[entry];
        pcl_block_retain(blocks, made->table[entry]);
    }
    set_length(blocks, made, num_tokens);
    *seq = handle_of(blocks, index);
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_fork(pagedcl_blocks *blocks, pagedcl_seq parent, pagedcl_seq *seq) {
    pcl_sequence *from = NULL;
    PCL_TRY(find_sequence(blocks, parent, &from));
    return pagedcl_blocks_share(blocks, parent, from->length, seq);
}

/* The entries of the last block, one a group, that an append writes into; NULL when it begins a new block. */
static int32_t *last_block(const pagedcl_blocks *blocks, const pcl_sequence *s) {
    if (s->length % blocks->block_size == 0)
        return NULL;
    return s->table + s->length / blocks->block_size * blocks->num_groups;
}

/* What an append of num_tokens takes. */
struct growth {
    int64_t length;     /* afterwards */
    int64_t num_copies; /* shared last blocks, replaced by copies */
    int64_t num_needed; /* free blocks, those of the copies included */
};

static pagedcl_status measure_append(const pagedcl_blocks *blocks, const pcl_sequence *s, int64_t num_tokens,
                                     struct growth *growth) {
    if (num_tokens < 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "num_tokens is %" PRId64 "; it is 0 or more", num_tokens);
    if (__builtin_add_overflow(s->length, num_tokens, &growth->length))
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "%" PRId64 " tokens more than %" PRId64 " do not fit 64 bits",
                        num_tokens, s->length);
    growth->num_copies = 0;
    const int32_t *last = last_block(blocks, s);
    if (last != NULL && num_tokens > 0)
        for (int32_t group = 0; group < blocks->num_groups; group++)
            growth->num_copies += blocks->refcounts[last[group]] > 1;
    int64_t more = pcl_blocks_for(blocks, growth->length) - pcl_blocks_for(blocks, s->length);
    if (__builtin_mul_overflow(more, blocks->num_groups, &growth->num_needed) ||
        __builtin_add_overflow(growth->num_needed, growth->num_copies, &growth->num_needed))
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "%" PRId64 " blocks in %" PRId32 " groups do not fit 64 bits", more,
                        blocks->num_groups);
    return PAGEDCL_SUCCESS;
}

/* Replaces the shared ones of the last blocks by free ones, and names the copies. */
static size_t copy_on_write(pagedcl_blocks *blocks, int32_t *last, pagedcl_block_copy *copies) {
    size_t num_copies = 0;
    for (int32_t group = 0; group < blocks->num_groups; group++) {
        int32_t src = last[group];
        if (blocks->refcounts[src] == 1)
            continue;
        last[group] = pcl_block_take(blocks);
        pcl_block_release(blocks, src);
        copies[num_copies++] = (pagedcl_block_copy){.group = group, .src = src, .dst = last[group]};
    }
    blocks->stats.copies += (int64_t)num_copies;
    return num_copies;
}

pagedcl_status pagedcl_blocks_append(pagedcl_blocks *blocks, pagedcl_seq seq, int64_t num_tokens,
                                     pagedcl_block_copy *copies, size_t *num_copies) {
    pcl_sequence *s = NULL;
    struct growth growth;
    PCL_TRY(find_sequence(blocks, seq, &s));
    PCL_TRY(measure_append(blocks, s, num_tokens, &growth));
    if (growth.num_copies > 0 && (copies == NULL || num_copies == NULL))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "the append needs %" PRId64 " copies of shared blocks, but %s is NULL", growth.num_copies,
                        copies == NULL ? "copies" : "num_copies");
    if (growth.num_needed > blocks->stats.free) {
        blocks->stats.out_of_blocks++;
        return pcl_fail(PAGEDCL_OUT_OF_BLOCKS,
                        "append of %" PRId64 " tokens needs %" PRId64 " blocks, %" PRId64
                        " %s free; free or truncate a sequence",
                        num_tokens, growth.num_needed, blocks->stats.free, blocks->stats.free == 1 ? "is" : "are");
    }
    int64_t first = pcl_blocks_for(blocks, s->length);
    int64_t end = pcl_blocks_for(blocks, growth.length);
    PCL_TRY(reserve_table(blocks, s, end));

    size_t named = growth.num_copies > 0 ? copy_on_write(blocks, last_block(blocks, s), copies) : 0;
    /* Group by group, so that one group's new blocks are often adjacent in memory. */
    for (int32_t group = 0; group < blocks->num_groups; group++)
        for (int64_t i = first; i < end; i++)
            s->table[i * blocks->num_groups + group] = pcl_block_take(blocks);
    set_length(blocks, s, growth.length);
    if (num_copies != NULL)
        *num_copies = named;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_needed(const pagedcl_blocks *blocks, pagedcl_seq seq, int64_t num_tokens,
                                     int64_t *num_blocks) {
    pcl_sequence *s = NULL;
    struct growth growth;
    PCL_TRY(find_sequence(blocks, seq, &s));
    if (num_blocks == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "num_blocks is NULL");
    PCL_TRY(measure_append(blocks, s, num_tokens, &growth));
    *num_blocks = growth.num_needed;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_truncate(pagedcl_blocks *blocks, pagedcl_seq seq, int64_t num_tokens) {
    pcl_sequence *s = NULL;
    PCL_TRY(find_sequence(blocks, seq, &s));
    if (num_tokens < 0 || num_tokens > s->length)
        return pcl_fail(PAGEDCL_INVALID_LENGTH, "a sequence of %" PRId64 " tokens cannot be shortened to %" PRId64,
                        s->length, num_tokens);
    release_blocks(blocks, s, pcl_blocks_for(blocks, num_tokens));
    set_length(blocks, s, num_tokens);
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_seq_free(pagedcl_blocks *blocks, pagedcl_seq seq) {
    pcl_sequence *s = NULL;
    PCL_TRY(find_sequence(blocks, seq, &s));
    release_blocks(blocks, s, 0);
    set_length(blocks, s, 0);
    free(s->table);
    s->table = NULL;
    s->live = false;
    blocks->stats.num_seqs--;
    /* An entry whose generations are spent is never used again, so that no handle comes twice. */
    if (s->generation < UINT32_MAX) {
        s->next_free = blocks->free_seq;
        blocks->free_seq = (int32_t)(uint32_t)seq;
    }
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_seq_length(const pagedcl_blocks *blocks, pagedcl_seq seq, int64_t *length) {
    pcl_sequence *s = NULL;
    PCL_TRY(find_sequence(blocks, seq, &s));
    if (length == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "length is NULL");
    *length = s->length;
    return PAGEDCL_SUCCESS;
}

static pagedcl_status check_group(const pagedcl_blocks *blocks, int32_t group) {
    if (group < 0 || group >= blocks->num_groups)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "group %" PRId32 " is not one of the %" PRId32, group,
                        blocks->num_groups);
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_table(const pagedcl_blocks *blocks, pagedcl_seq seq, int32_t group, int32_t *row,
                                    int64_t capacity, int64_t *num_blocks) {
    pcl_sequence *s = NULL;
    PCL_TRY(find_sequence(blocks, seq, &s));
    PCL_TRY(check_group(blocks, group));
    int64_t used = pcl_blocks_for(blocks, s->length);
    if (used > capacity)
        return pcl_fail(PAGEDCL_CAPACITY, "the sequence has %" PRId64 " blocks, the row has room for %" PRId64, used,
                        capacity);
    if (row == NULL && capacity > 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "row is NULL");
    for (int64_t i = 0; i < capacity; i++)
        row[i] = i < used ? s->table[i * blocks->num_groups + group] : -1;
    if (num_blocks != NULL)
        *num_blocks = used;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_slots(const pagedcl_blocks *blocks, pagedcl_seq seq, int32_t group, int64_t first,
                                    int64_t num_tokens, int64_t *slots) {
    pcl_sequence *s = NULL;
    PCL_TRY(find_sequence(blocks, seq, &s));
    PCL_TRY(check_group(blocks, group));
    if (first < 0 || first > s->length || num_tokens < 0 || num_tokens > s->length - first)
        return pcl_fail(PAGEDCL_INVALID_LENGTH,
                        "%" PRId64 " tokens from position %" PRId64 " are not inside a sequence of %" PRId64,
                        num_tokens, first, s->length);
    if (slots == NULL && num_tokens > 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "slots is NULL");
    for (int64_t i = 0; i < num_tokens; i++) {
        int64_t position = first + i;
        int64_t block = s->table[position / blocks->block_size * blocks->num_groups + group];
        slots[i] = block * blocks->block_size + position % blocks->block_size;
    }
    return PAGEDCL_SUCCESS;
}
