/* SPDX-License-Identifier: Apache-2.0 */
/* The sequences of the block manager: handles, sharing, growth with copy-on-write, shortening, windows. */
#include "blocks.h"

#include "status.h"

#include <pagedcl/step.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A handle is generation << 32 | index. Generations begin at 1, so no handle is 0. */
pagedcl_seq pcl_sequence_handle(const pagedcl_blocks *blocks, int32_t index) {
    return (pagedcl_seq)blocks->seqs[index].generation << 32 | (uint32_t)index;
}

pagedcl_status pcl_sequence_find(const pagedcl_blocks *blocks, pagedcl_seq seq, pcl_sequence **found) {
    if (blocks == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "blocks is NULL");
    uint32_t index = (uint32_t)seq;
    uint32_t generation = (uint32_t)(seq >> 32);
    if (index >= (uint32_t)blocks->num_seqs || blocks->seqs[index].state != PCL_SEQ_LIVE ||
        blocks->seqs[index].generation != generation)
        return pcl_fail(PAGEDCL_INVALID_HANDLE,
                        "0x%" PRIx64 " names no sequence: it was freed, or this manager did not make it", seq);
    *found = &blocks->seqs[index];
    return PAGEDCL_SUCCESS;
}

pagedcl_status pcl_sequence_find_resident(const pagedcl_blocks *blocks, pagedcl_seq seq, pcl_sequence **found) {
    pcl_sequence *s = NULL;
    PCL_TRY(pcl_sequence_find(blocks, seq, &s));
    if (s->swapped)
        return pcl_fail(PAGEDCL_NOT_READY, "sequence 0x%" PRIx64 " is swapped out; swap it in first", seq);
    *found = s;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pcl_sequence_find_settled(const pagedcl_blocks *blocks, pagedcl_seq seq, pcl_sequence **found) {
    pcl_sequence *s = NULL;
    PCL_TRY(pcl_sequence_find_resident(blocks, seq, &s));
    if (s->in_step)
        return pcl_fail(PAGEDCL_NOT_READY, "sequence 0x%" PRIx64 " is in the open step; commit or roll back first",
                        seq);
    *found = s;
    return PAGEDCL_SUCCESS;
}

/* Moves the sequences into memory for `capacity` of them. */
static bool move_seqs(pagedcl_blocks *blocks, size_t capacity) {
    size_t seq_bytes, chain_bytes;
    if (__builtin_mul_overflow(capacity + 1, sizeof *blocks->seqs, &seq_bytes) ||
        __builtin_mul_overflow(capacity, sizeof *blocks->chains, &chain_bytes))
        return false;
    pcl_chain *chains = realloc(blocks->chains, chain_bytes);
    if (chains == NULL)
        return false;
    blocks->chains = chains;
    char *memory = malloc(seq_bytes);
    if (memory == NULL)
        return false;
    pcl_sequence *seqs = (pcl_sequence *)(memory + (PCL_LINE - (uintptr_t)memory % PCL_LINE) % PCL_LINE);
    if (blocks->seq_capacity > 0)
        memcpy(seqs, blocks->seqs, (size_t)blocks->seq_capacity * sizeof *seqs);
    free(blocks->seqs_memory);
    blocks->seqs_memory = memory;
    blocks->seqs = seqs;
    return true;
}

/* Makes sure that there is an entry for one more sequence. May move the sequences. */
static pagedcl_status reserve_entry(pagedcl_blocks *blocks) {
    if (blocks->free_seq >= 0 || blocks->num_seqs < blocks->seq_capacity)
        return PAGEDCL_SUCCESS;
    int32_t capacity;
    if (__builtin_add_overflow(blocks->seq_capacity, blocks->seq_capacity / 2 + 16, &capacity) ||
        !move_seqs(blocks, (size_t)capacity))
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no host memory for more than %" PRId32 " sequences", blocks->num_seqs);
    for (int32_t i = blocks->seq_capacity; i < capacity; i++) {
        blocks->seqs[i] = (pcl_sequence){0};
        blocks->chains[i] = (pcl_chain){0};
    }
    blocks->seq_capacity = capacity;
    return PAGEDCL_SUCCESS;
}

/* Makes sure that the table has memory for num_rows rows. */
static pagedcl_status reserve_table(const pagedcl_blocks *blocks, pcl_sequence *s, int64_t num_rows) {
    if (num_rows <= s->capacity)
        return PAGEDCL_SUCCESS;
    /* By half more each time: appending costs constant time a block on average. */
    int64_t capacity = s->capacity + s->capacity / 2;
    if (capacity < num_rows)
        capacity = num_rows;
    size_t bytes;
    int32_t *table = NULL;
    if (!__builtin_mul_overflow(capacity, (int64_t)sizeof *table * blocks->width, &bytes))
        table = realloc(s->table, bytes);
    if (table == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY,
                        "no host memory for a block table of %" PRId64 " rows of %" PRId32 " blocks", num_rows,
                        blocks->width);
    s->table = table;
    s->capacity = capacity;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pcl_sequence_reserve(pagedcl_blocks *blocks, int64_t num_rows, int32_t *index) {
    PCL_TRY(reserve_entry(blocks));
    int32_t next = blocks->free_seq >= 0 ? blocks->free_seq : blocks->num_seqs;
    PCL_TRY(reserve_table(blocks, &blocks->seqs[next], num_rows));
    PCL_TRY(pcl_chain_reserve(blocks, &blocks->chains[next]));
    *index = next;
    return PAGEDCL_SUCCESS;
}

pcl_sequence *pcl_sequence_take(pagedcl_blocks *blocks, int32_t index) {
    pcl_sequence *s = &blocks->seqs[index];
    if (index == blocks->num_seqs)
        blocks->num_seqs++;
    else
        blocks->free_seq = s->next_free;
    *s = (pcl_sequence){.generation = s->generation + 1,
                        .state = PCL_SEQ_LIVE,
                        .created = ++blocks->num_created,
                        .table = s->table,
                        .capacity = s->capacity};
    pcl_chain_reset(&blocks->chains[index]);
    blocks->stats.num_seqs++;
    return s;
}

void pcl_sequence_set_length(pagedcl_blocks *blocks, pcl_sequence *s, int64_t length) {
    blocks->stats.num_tokens += length - s->length;
    s->length = length;
}

static void release_entry(pagedcl_blocks *blocks, pcl_sequence *s, int64_t entry) {
    int32_t block = s->table[entry];
    if (block < 0)
        s->num_dropped--;
    else if (s->swapped)
        pcl_host_block_release(blocks, block, s->fence);
    else
        pcl_block_release(blocks, block, s->fence);
}

void pcl_sequence_shorten(pagedcl_blocks *blocks, pcl_sequence *s, int64_t num_tokens) {
    /* The last one first: they are taken again in table order, and evicted before those that lead to them. */
    for (int64_t row = pcl_rows_for(blocks, s->length); row-- > num_tokens / blocks->unit;)
        for (int32_t g = blocks->num_groups; g-- > 0;) {
            const pcl_group *group = &blocks->groups[g];
            int64_t keep = pcl_blocks_for(group, num_tokens), used = pcl_blocks_for(group, s->length);
            for (int64_t j = group->per_unit; j-- > 0;) {
                int64_t i = row * group->per_unit + j;
                if (i >= keep && i < used)
                    release_entry(blocks, s, row * blocks->width + group->column + j);
            }
        }
    s->room = 0;
    pcl_sequence_set_length(blocks, s, num_tokens);
    pcl_chain_shorten(blocks, pcl_sequence_chain(blocks, s), num_tokens);
}

void pcl_sequence_end(pagedcl_blocks *blocks, pcl_sequence *s) {
    pcl_chain *chain = pcl_sequence_chain(blocks, s);
    pcl_sequence_shorten(blocks, s, 0);
    blocks->stats.num_swapped -= s->swapped;
    pcl_keys_release(chain->keys);
    chain->keys = NULL;
    s->state = PCL_SEQ_FREE;
    /* An entry whose generations are spent is never used again, so that no handle comes twice. */
    if (s->generation < UINT32_MAX) {
        s->next_free = blocks->free_seq;
        blocks->free_seq = (int32_t)(s - blocks->seqs);
    }
}

void pcl_sequence_drop_left(pagedcl_blocks *blocks, pcl_sequence *s, int64_t length) {
    if (!blocks->windowed)
        return;
    for (int32_t g = 0; g < blocks->num_groups; g++) {
        const pcl_group *group = &blocks->groups[g];
        int64_t end = pcl_first_seen(group, length), used = pcl_blocks_for(group, s->length);
        /* What was dropped before ends at the first -1. The right ones go first, as when a sequence ends. */
        for (int64_t i = end < used ? end : used; i-- > 0;) {
            int32_t *entry = &s->table[pcl_entry(blocks, group, i)];
            if (*entry < 0)
                break;
            pcl_block_release(blocks, *entry, s->fence);
            *entry = -1;
            s->num_dropped++;
        }
    }
}

/* Refuses a length at which a query would see a dropped block. */
static pagedcl_status check_windows(const pagedcl_blocks *blocks, const pcl_sequence *s, int64_t num_tokens) {
    for (int32_t g = 0; g < blocks->num_groups && s->num_dropped > 0; g++) {
        const pcl_group *group = &blocks->groups[g];
        int64_t first = pcl_first_seen(group, num_tokens);
        if (first < pcl_blocks_for(group, num_tokens) && s->table[pcl_entry(blocks, group, first)] < 0)
            return pcl_fail(PAGEDCL_INVALID_LENGTH,
                            "after %" PRId64 " tokens, a query of group %" PRId32 " sees %" PRId64
                            " keys, whose blocks were given back as the window went on",
                            num_tokens, g, group->window);
    }
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_seq_create(pagedcl_blocks *blocks, pagedcl_seq *seq) {
    if (blocks == NULL || seq == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s is NULL", blocks == NULL ? "blocks" : "seq");
    int32_t index;
    PCL_TRY(pcl_sequence_reserve(blocks, 0, &index));
    pcl_sequence_take(blocks, index);
    *seq = pcl_sequence_handle(blocks, index);
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_share(pagedcl_blocks *blocks, pagedcl_seq parent, int64_t num_tokens, pagedcl_seq *seq) {
    pcl_sequence *from = NULL;
    PCL_TRY(pcl_sequence_find_settled(blocks, parent, &from));
    if (seq == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "seq is NULL");
    if (num_tokens < 0 || num_tokens > from->length)
        return pcl_fail(PAGEDCL_INVALID_LENGTH, "%" PRId64 " tokens cannot be shared of a sequence of %" PRId64,
                        num_tokens, from->length);
    PCL_TRY(check_windows(blocks, from, num_tokens));
    int32_t index;
    PCL_TRY(pcl_sequence_reserve(blocks, pcl_rows_for(blocks, num_tokens), &index));

    pcl_sequence *made = pcl_sequence_take(blocks, index);
    from = &blocks->seqs[(uint32_t)parent]; /* reserving may have moved it */
    from->room = 0;
    for (int32_t g = 0; g < blocks->num_groups; g++) {
        const pcl_group *group = &blocks->groups[g];
        for (int64_t i = pcl_blocks_for(group, num_tokens); i-- > 0;) {
            int64_t entry = pcl_entry(blocks, group, i);
            made->table[entry] = from->table[entry];
            if (made->table[entry] >= 0)
                pcl_block_retain(blocks, made->table[entry]);
            else
                made->num_dropped++;
        }
    }
    pcl_sequence_set_length(blocks, made, num_tokens);
    pcl_chain_inherit(blocks, pcl_sequence_chain(blocks, made), pcl_sequence_chain(blocks, from), num_tokens);
    *seq = pcl_sequence_handle(blocks, index);
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_fork(pagedcl_blocks *blocks, pagedcl_seq parent, pagedcl_seq *seq) {
    pcl_sequence *from = NULL;
    PCL_TRY(pcl_sequence_find(blocks, parent, &from));
    return pagedcl_blocks_share(blocks, parent, from->length, seq);
}

/* The entry of the group's last block if an append writes into it, -1 when it begins a new one. */
static int64_t partial_entry(const pagedcl_blocks *blocks, const pcl_group *group, int64_t length) {
    return length % group->block_size == 0 ? -1 : pcl_entry(blocks, group, length / group->block_size);
}

/* Others read the block, will find it by its tokens, or released it while their commands may still read it. */
static bool must_copy(const pagedcl_blocks *blocks, int32_t block) {
    const pcl_block *b = &blocks->block[block];
    return b->refcount > 1 || b->node != PCL_ROOT || b->fence > blocks->reached;
}

/* What an append of num_tokens takes. */
struct growth {
    int64_t length;     /* afterwards */
    int64_t num_copies; /* last blocks that are replaced by copies */
    int64_t num_needed; /* free blocks, those of the copies included */
    int64_t num_held;   /* blocks that the sequence has afterwards */
};

static pagedcl_status measure_append(const pagedcl_blocks *blocks, const pcl_sequence *s, int64_t num_tokens,
                                     struct growth *growth) {
    if (num_tokens < 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "num_tokens is %" PRId64 "; it is 0 or more", num_tokens);
    if (__builtin_add_overflow(s->length, num_tokens, &growth->length))
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "%" PRId64 " tokens more than %" PRId64 " do not fit 64 bits",
                        num_tokens, s->length);
    growth->num_copies = growth->num_needed = 0;
    growth->num_held = -s->num_dropped;
    for (int32_t g = 0; g < blocks->num_groups; g++) {
        const pcl_group *group = &blocks->groups[g];
        int64_t held = pcl_blocks_for(group, growth->length);
        int64_t needed = held - pcl_blocks_for(group, s->length);
        int64_t entry = num_tokens > 0 && s->room == 0 ? partial_entry(blocks, group, s->length) : -1;
        int copies = entry >= 0 && must_copy(blocks, s->table[entry]);
        growth->num_copies += copies;
        if (__builtin_add_overflow(growth->num_needed, needed + copies, &growth->num_needed) ||
            __builtin_add_overflow(growth->num_held, held, &growth->num_held))
            return pcl_fail(PAGEDCL_SIZE_OVERFLOW,
                            "the blocks of %" PRId64 " tokens in %" PRId32 " groups do not fit 64 bits", growth->length,
                            blocks->num_groups);
    }
    return PAGEDCL_SUCCESS;
}

/* Whether there are blocks for the growth, `spare` more remaining. */
static pagedcl_status check_room(const pagedcl_blocks *blocks, int64_t num_tokens, const struct growth *growth,
                                 int64_t spare) {
    int64_t available = pcl_blocks_available(blocks);
    if (growth->num_held > blocks->stats.total - spare)
        return pcl_fail(
            PAGEDCL_NEVER_FITS,
            "a sequence of %" PRId64 " tokens needs %" PRId64 " blocks; the pool has %" PRId64 "%s, whoever else goes",
            growth->length, growth->num_held, blocks->stats.total - spare, spare > 0 ? " above the watermark" : "");
    if (growth->num_needed > available - spare)
        return pcl_fail(PAGEDCL_OUT_OF_BLOCKS,
                        "append of %" PRId64 " tokens needs %" PRId64 " blocks, %" PRId64
                        " %s available; free or truncate a sequence%s",
                        num_tokens, growth->num_needed, available, available == 1 ? "is" : "are",
                        blocks->lists[PCL_UNWIPED].count > 0   ? ", or wipe those that wait for it"
                        : blocks->lists[PCL_WAITING].count > 0 ? ", or wait for a fence"
                                                               : "");
    return PAGEDCL_SUCCESS;
}

/* Replaces the last blocks that must be copied by free ones, and names the copies. */
static size_t copy_on_write(pagedcl_blocks *blocks, pcl_sequence *s, pagedcl_block_copy *copies) {
    pcl_step *step = &blocks->step;
    size_t num_copies = 0;
    /* All are chosen before any is taken: that may evict, and so change what must be copied. */
    for (int32_t g = 0; g < blocks->num_groups; g++) {
        int64_t entry = partial_entry(blocks, &blocks->groups[g], s->length);
        if (entry >= 0 && must_copy(blocks, s->table[entry]))
            copies[num_copies++] = (pagedcl_block_copy){.group = g, .src = s->table[entry]};
    }
    for (size_t i = 0; i < num_copies; i++) {
        int64_t entry = partial_entry(blocks, &blocks->groups[copies[i].group], s->length);
        s->table[entry] = copies[i].dst = pcl_block_take(blocks);
        if (step->open)
            step->copies[step->num_copies++] = (pcl_step_copy){.entry = entry, .src = copies[i].src};
        else
            pcl_block_release(blocks, copies[i].src, s->fence);
    }
    blocks->stats.copies += (int64_t)num_copies;
    return num_copies;
}

/* Measures an append that does not fit the room of the last blocks, and makes sure of all that it takes. */
static pagedcl_status prepare_growth(pagedcl_blocks *blocks, pcl_sequence *s, int64_t num_tokens, bool has_copies,
                                     struct growth *growth) {
    PCL_TRY(measure_append(blocks, s, num_tokens, growth));
    if (growth->num_copies > 0 && !has_copies)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "the append needs %" PRId64 " copies of shared blocks, but copies or num_copies is NULL",
                        growth->num_copies);
    pagedcl_status status = check_room(blocks, num_tokens, growth, 0);
    if (status != PAGEDCL_SUCCESS) {
        blocks->stats.out_of_blocks += status == PAGEDCL_OUT_OF_BLOCKS;
        return status;
    }
    return reserve_table(blocks, s, pcl_rows_for(blocks, growth->length));
}

/* Takes the blocks behind those of the sequence. */
static void take_blocks(pagedcl_blocks *blocks, pcl_sequence *s, int64_t length) {
    /* Group by group, so that one group's new blocks are often adjacent in memory. */
    for (int32_t g = 0; g < blocks->num_groups; g++) {
        const pcl_group *group = &blocks->groups[g];
        int64_t end = pcl_blocks_for(group, length);
        for (int64_t i = pcl_blocks_for(group, s->length); i < end; i++)
            s->table[pcl_entry(blocks, group, i)] = pcl_block_take(blocks);
    }
}

pagedcl_status pagedcl_blocks_append(pagedcl_blocks *blocks, pagedcl_seq seq, int64_t num_tokens,
                                     pagedcl_block_copy *copies, size_t *num_copies) {
    pcl_sequence *s = NULL;
    struct growth growth = {0};
    PCL_TRY(pcl_sequence_find_resident(blocks, seq, &s));
    bool fits = num_tokens > 0 && num_tokens <= s->room;
    if (!fits)
        PCL_TRY(prepare_growth(blocks, s, num_tokens, copies != NULL && num_copies != NULL, &growth));
    if (blocks->step.open)
        PCL_TRY(pcl_step_reserve(blocks, growth.num_copies));

    int64_t before = s->length;
    size_t named = growth.num_copies > 0 ? copy_on_write(blocks, s, copies) : 0;
    if (growth.num_needed > growth.num_copies)
        take_blocks(blocks, s, growth.length);
    pcl_sequence_set_length(blocks, s, before + num_tokens);
    if (fits)
        s->room -= (int32_t)num_tokens;
    else if (num_tokens > 0)
        s->room = (int32_t)(blocks->smallest - 1 - (s->length - 1) % blocks->smallest);
    if (blocks->step.open) {
        s->in_step = true;
        blocks->step.appends[blocks->step.num_appends++] =
            (pcl_step_append){.seq = (int32_t)(s - blocks->seqs), .num_copies = (int32_t)named, .length = before};
    } else if (num_tokens > 0) {
        pcl_sequence_drop_left(blocks, s, before);
    }
    if (num_copies != NULL)
        *num_copies = named;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_needed(const pagedcl_blocks *blocks, pagedcl_seq seq, int64_t num_tokens,
                                     int64_t *num_blocks) {
    pcl_sequence *s = NULL;
    struct growth growth;
    PCL_TRY(pcl_sequence_find_resident(blocks, seq, &s));
    if (num_blocks == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "num_blocks is NULL");
    PCL_TRY(measure_append(blocks, s, num_tokens, &growth));
    *num_blocks = growth.num_needed;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_fits(const pagedcl_blocks *blocks, pagedcl_seq seq, int64_t num_tokens) {
    pcl_sequence none = {0}, *s = &none;
    struct growth growth;
    if (blocks == NULL || seq != 0)
        PCL_TRY(pcl_sequence_find_resident(blocks, seq, &s));
    PCL_TRY(measure_append(blocks, s, num_tokens, &growth));
    return check_room(blocks, num_tokens, &growth, blocks->watermark);
}

pagedcl_status pagedcl_blocks_truncate(pagedcl_blocks *blocks, pagedcl_seq seq, int64_t num_tokens) {
    pcl_sequence *s = NULL;
    PCL_TRY(pcl_sequence_find_settled(blocks, seq, &s));
    if (num_tokens < 0 || num_tokens > s->length)
        return pcl_fail(PAGEDCL_INVALID_LENGTH, "a sequence of %" PRId64 " tokens cannot be shortened to %" PRId64,
                        s->length, num_tokens);
    PCL_TRY(check_windows(blocks, s, num_tokens));
    pcl_sequence_shorten(blocks, s, num_tokens);
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_seq_free(pagedcl_blocks *blocks, pagedcl_seq seq) {
    pcl_sequence *s = NULL;
    PCL_TRY(pcl_sequence_find(blocks, seq, &s));
    blocks->stats.num_seqs--;
    if (s->in_step)
        s->state = PCL_SEQ_ENDING;
    else
        pcl_sequence_end(blocks, s);
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_seq_length(const pagedcl_blocks *blocks, pagedcl_seq seq, int64_t *length) {
    pcl_sequence *s = NULL;
    PCL_TRY(pcl_sequence_find(blocks, seq, &s));
    if (length == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "length is NULL");
    *length = s->length;
    return PAGEDCL_SUCCESS;
}
