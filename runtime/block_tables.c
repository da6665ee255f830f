/* SPDX-License-Identifier: Apache-2.0 */
/* What a sequence's tables say: rows, slots, tags. */
#include "blocks.h"

#include "status.h"

#include <inttypes.h>

static pagedcl_status find_group(const pagedcl_blocks *blocks, pagedcl_seq seq, int32_t index, pcl_sequence **s,
                                 const pcl_group **group) {
    PCL_TRY(pcl_sequence_find_resident(blocks, seq, s));
    if (index < 0 || index >= blocks->num_groups)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "group %" PRId32 " is not one of the %" PRId32, index,
                        blocks->num_groups);
    *group = &blocks->groups[index];
    return PAGEDCL_SUCCESS;
}

static pagedcl_status check_capacity(int64_t used, const void *row, int64_t capacity, const char *name) {
    if (used > capacity)
        return pcl_fail(PAGEDCL_CAPACITY, "the sequence has %" PRId64 " blocks, the row has room for %" PRId64, used,
                        capacity);
    if (row == NULL && capacity > 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s is NULL", name);
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_table(const pagedcl_blocks *blocks, pagedcl_seq seq, int32_t group, int32_t *row,
                                    int64_t capacity, int64_t *num_blocks) {
    pcl_sequence *s = NULL;
    const pcl_group *g = NULL;
    PCL_TRY(find_group(blocks, seq, group, &s, &g));
    int64_t used = pcl_blocks_for(g, s->length);
    PCL_TRY(check_capacity(used, row, capacity, "row"));
    for (int64_t i = 0; i < capacity; i++)
        row[i] = i < used ? s->table[pcl_entry(blocks, g, i)] : -1;
    if (num_blocks != NULL)
        *num_blocks = used;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_tags(const pagedcl_blocks *blocks, pagedcl_seq seq, int32_t group, uint32_t *tags,
                                   int64_t capacity) {
    pcl_sequence *s = NULL;
    const pcl_group *g = NULL;
    PCL_TRY(find_group(blocks, seq, group, &s, &g));
    int64_t used = pcl_blocks_for(g, s->length);
    PCL_TRY(check_capacity(used, tags, capacity, "tags"));
    for (int64_t i = 0; i < capacity; i++) {
        int32_t block = i < used ? s->table[pcl_entry(blocks, g, i)] : -1;
        tags[i] = block < 0 ? 0 : blocks->block[block].tag;
    }
    return PAGEDCL_SUCCESS;
}

/* A sequence whose table points at the block, 0: none. */
static pagedcl_seq owner_of(const pagedcl_blocks *blocks, int32_t block) {
    for (int32_t i = 0; i < blocks->num_seqs; i++) {
        const pcl_sequence *s = &blocks->seqs[i];
        if (s->state == PCL_SEQ_FREE || s->swapped)
            continue;
        for (int32_t g = 0; g < blocks->num_groups; g++)
            for (int64_t b = pcl_blocks_for(&blocks->groups[g], s->length); b-- > 0;)
                if (s->table[pcl_entry(blocks, &blocks->groups[g], b)] == block)
                    return pcl_sequence_handle(blocks, i);
    }
    return 0;
}

pagedcl_status pagedcl_blocks_check_tags(const pagedcl_blocks *blocks, const int32_t *row, const uint32_t *tags,
                                         int64_t num_entries) {
    if (blocks == NULL || ((row == NULL || tags == NULL) && num_entries > 0) || num_entries < 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "blocks, row or tags is NULL, or num_entries is %" PRId64,
                        num_entries);
    for (int64_t i = 0; i < num_entries; i++) {
        int32_t block = row[i];
        if (block == -1)
            continue;
        if (block < 0 || block >= blocks->stats.total)
            return pcl_fail(PAGEDCL_INVALID_BLOCK,
                            "entry %" PRId64 ": block %" PRId32 " is not in the pool of %" PRId64 " blocks", i, block,
                            blocks->stats.total);
        const pcl_block *b = &blocks->block[block];
        if (b->refcount > 0 && b->tag == tags[i])
            continue;
        pagedcl_seq owner = b->refcount > 0 ? owner_of(blocks, block) : 0;
        if (owner == 0)
            return pcl_fail(PAGEDCL_INVALID_BLOCK, "entry %" PRId64 " is stale: block %" PRId32 " was released", i,
                            block);
        return pcl_fail(PAGEDCL_INVALID_BLOCK,
                        "entry %" PRId64 " is stale: block %" PRId32 " belongs to sequence 0x%" PRIx64 " now", i, block,
                        owner);
    }
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_slots(const pagedcl_blocks *blocks, pagedcl_seq seq, int32_t group, int64_t first,
                                    int64_t num_tokens, int64_t *slots) {
    pcl_sequence *s = NULL;
    const pcl_group *g = NULL;
    PCL_TRY(find_group(blocks, seq, group, &s, &g));
    if (first < 0 || first > s->length || num_tokens < 0 || num_tokens > s->length - first)
        return pcl_fail(PAGEDCL_INVALID_LENGTH,
                        "%" PRId64 " tokens from position %" PRId64 " are not inside a sequence of %" PRId64,
                        num_tokens, first, s->length);
    if (slots == NULL && num_tokens > 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "slots is NULL");
    for (int64_t i = 0; i < num_tokens; i++) {
        int64_t position = first + i;
        int64_t block = s->table[pcl_entry(blocks, g, position / g->block_size)];
        slots[i] = block < 0 ? -1 : block * g->block_size + position % g->block_size;
    }
    return PAGEDCL_SUCCESS;
}
