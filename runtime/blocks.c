/* SPDX-License-Identifier: Apache-2.0 */
/* The pool of the block manager: free stack, refcounts, counters, and the check of all invariants. */
#include "blocks.h"

#include "status.h"
#include "struct_size.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

pagedcl_status pagedcl_blocks_create(const pagedcl_blocks_desc *desc, pagedcl_blocks **blocks) {
    pagedcl_blocks_desc own;
    PCL_TRY(PCL_READ_STRUCT(&own, desc, num_groups));
    if (blocks == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "blocks is NULL");
    if (own.num_blocks < 1)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "num_blocks is %" PRId32 "; a pool has at least 1", own.num_blocks);
    if (own.block_size < 1)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "block_size is %" PRId32 "; a block holds at least 1 token",
                        own.block_size);
    if (own.num_groups < 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "num_groups is %" PRId32 "; it is at least 1, or 0 for 1",
                        own.num_groups);

    size_t num_blocks = (size_t)own.num_blocks;
    pagedcl_blocks *made = calloc(1, sizeof *made);
    if (made != NULL) {
        made->refcounts = calloc(num_blocks, sizeof *made->refcounts);
        made->free_stack = calloc(num_blocks, sizeof *made->free_stack);
        made->counted = calloc(num_blocks, sizeof *made->counted);
    }
    if (made == NULL || made->refcounts == NULL || made->free_stack == NULL || made->counted == NULL) {
        pagedcl_blocks_destroy(made);
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no host memory for a manager of %" PRId32 " blocks", own.num_blocks);
    }
    made->block_size = own.block_size;
    made->num_groups = own.num_groups == 0 ? 1 : own.num_groups;
    made->free_seq = -1;
    made->stats = (pagedcl_blocks_stats){.total = own.num_blocks, .free = own.num_blocks};
    /* Taken in ascending order. */
    for (int32_t i = 0; i < own.num_blocks; i++)
        made->free_stack[i] = own.num_blocks - 1 - i;
    *blocks = made;
    return PAGEDCL_SUCCESS;
}

void pagedcl_blocks_destroy(pagedcl_blocks *blocks) {
    if (blocks == NULL)
        return;
    for (int32_t i = 0; i < blocks->num_seqs; i++)
        free(blocks->seqs[i].table);
    free(blocks->seqs);
    free(blocks->refcounts);
    free(blocks->free_stack);
    free(blocks->counted);
    free(blocks);
}

int32_t pcl_block_take(pagedcl_blocks *blocks) {
    pagedcl_blocks_stats *stats = &blocks->stats;
    int32_t block = blocks->free_stack[--stats->free];
    blocks->refcounts[block] = 1;
    stats->references++;
    stats->used++;
    if (stats->used > stats->peak_used)
        stats->peak_used = stats->used;
    return block;
}

void pcl_block_retain(pagedcl_blocks *blocks, int32_t block) {
    blocks->stats.references++;
    if (++blocks->refcounts[block] == 2)
        blocks->stats.shared++;
}

void pcl_block_release(pagedcl_blocks *blocks, int32_t block) {
    pagedcl_blocks_stats *stats = &blocks->stats;
    stats->references--;
    int32_t left = --blocks->refcounts[block];
    if (left == 1) {
        stats->shared--;
    } else if (left == 0) {
        stats->used--;
        blocks->free_stack[stats->free++] = block;
    }
}

pagedcl_status pagedcl_blocks_refcount(const pagedcl_blocks *blocks, int32_t block, int32_t *refcount) {
    if (blocks == NULL || refcount == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s is NULL", blocks == NULL ? "blocks" : "refcount");
    if (block < 0 || block >= blocks->stats.total)
        return pcl_fail(PAGEDCL_INVALID_BLOCK, "block %" PRId32 " is not in the pool of %" PRId64 " blocks", block,
                        blocks->stats.total);
    *refcount = blocks->refcounts[block];
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_get_stats(const pagedcl_blocks *blocks, pagedcl_blocks_stats *stats) {
    if (blocks == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "blocks is NULL");
    return PCL_FILL_STRUCT(stats, &blocks->stats, out_of_blocks);
}

/* Fails when a counter is not what was counted. */
static pagedcl_status check_counter(const char *name, int64_t counter, int64_t counted) {
    if (counter == counted)
        return PAGEDCL_SUCCESS;
    return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "broken: the counter `%s` is %" PRId64 ", but %" PRId64 " were counted",
                    name, counter, counted);
}

static bool is_block(const pagedcl_blocks *blocks, int32_t block) {
    return block >= 0 && block < blocks->stats.total;
}

/* Counts into blocks->counted how many table entries point at each block. */
static pagedcl_status check_tables(const pagedcl_blocks *blocks) {
    int64_t num_seqs = 0, num_tokens = 0, references = 0;
    memset(blocks->counted, 0, (size_t)blocks->stats.total * sizeof *blocks->counted);
    for (int32_t i = 0; i < blocks->num_seqs; i++) {
        const pcl_sequence *s = &blocks->seqs[i];
        if (!s->live)
            continue;
        int64_t num_blocks = pcl_blocks_for(blocks, s->length);
        if (s->length < 0 || num_blocks > s->capacity)
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                            "broken: sequence %" PRId32 " has %" PRId64 " tokens, its table %" PRId64 " blocks", i,
                            s->length, s->capacity);
        for (int64_t entry = 0; entry < num_blocks * blocks->num_groups; entry++) {
            int32_t block = s->table[entry];
            if (!is_block(blocks, block))
                return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                                "broken: sequence %" PRId32 " points at block %" PRId32 " of %" PRId64, i, block,
                                blocks->stats.total);
            blocks->counted[block]++;
            references++;
        }
        num_seqs++;
        num_tokens += s->length;
    }
    PCL_TRY(check_counter("num_seqs", blocks->stats.num_seqs, num_seqs));
    PCL_TRY(check_counter("num_tokens", blocks->stats.num_tokens, num_tokens));
    return check_counter("references", blocks->stats.references, references);
}

/* Compares the refcounts with what check_tables counted. */
static pagedcl_status check_refcounts(const pagedcl_blocks *blocks) {
    int64_t used = 0, shared = 0;
    for (int32_t block = 0; block < blocks->stats.total; block++) {
        if (blocks->refcounts[block] != blocks->counted[block])
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                            "broken: block %" PRId32 " has refcount %" PRId32 ", but %" PRId32 " table entries", block,
                            blocks->refcounts[block], blocks->counted[block]);
        used += blocks->refcounts[block] > 0;
        shared += blocks->refcounts[block] > 1;
    }
    PCL_TRY(check_counter("used", blocks->stats.used, used));
    PCL_TRY(check_counter("shared", blocks->stats.shared, shared));
    return check_counter("free", blocks->stats.free, blocks->stats.total - used);
}

/* Every entry of the free stack is a block without references, and no block is there twice. */
static pagedcl_status check_free_stack(const pagedcl_blocks *blocks) {
    for (int64_t i = 0; i < blocks->stats.free; i++) {
        int32_t block = blocks->free_stack[i];
        if (!is_block(blocks, block) || blocks->counted[block] != 0)
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                            "broken: free stack entry %" PRId64 " is block %" PRId32
                            ", which is in use, there twice, or not in the pool",
                            i, block);
        blocks->counted[block] = -1;
    }
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_check(const pagedcl_blocks *blocks) {
    if (blocks == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "blocks is NULL");
    PCL_TRY(check_tables(blocks));
    PCL_TRY(check_refcounts(blocks));
    PCL_TRY(check_free_stack(blocks));
    if (blocks->stats.peak_used < blocks->stats.used)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "broken: peak_used %" PRId64 " is below used %" PRId64,
                        blocks->stats.peak_used, blocks->stats.used);
    return PAGEDCL_SUCCESS;
}
