/* SPDX-License-Identifier: Apache-2.0 */
/* The check of all invariants of the block manager. */
#include "blocks.h"

#include "status.h"

#include <inttypes.h>
#include <string.h>

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

/* Counts the references of one sequence. */
static pagedcl_status check_table(const pagedcl_blocks *blocks, int32_t index, int64_t *references, int64_t *host) {
    const pcl_sequence *s = &blocks->seqs[index];
    if (s->length < 0 || pcl_rows_for(blocks, s->length) > s->capacity)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "broken: sequence %" PRId32 " has %" PRId64 " tokens, its table %" PRId64 " rows", index,
                        s->length, s->capacity);
    int64_t num_dropped = 0, recorded = blocks->chains[index].recorded;
    for (int32_t g = 0; g < blocks->num_groups; g++) {
        const pcl_group *group = &blocks->groups[g];
        bool begun = false;
        for (int64_t i = 0; i < pcl_blocks_for(group, s->length); i++) {
            int32_t block = s->table[pcl_entry(blocks, group, i)];
            if (block == -1 && group->window > 0 && !begun) {
                num_dropped++;
                continue;
            }
            begun = true;
            if (s->swapped ? block < 0 || block >= blocks->stats.host_total : !is_block(blocks, block))
                return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                                "broken: sequence %" PRId32 " points at block %" PRId32 " of %" PRId64, index, block,
                                blocks->stats.total);
            if (s->swapped) {
                ++*host;
            } else {
                blocks->counted[block]++;
                ++*references;
            }
        }
    }
    for (int32_t g = 0; g < blocks->num_groups && s->room > 0 && !s->swapped; g++) {
        const pcl_group *group = &blocks->groups[g];
        if (s->length % group->block_size == 0)
            continue;
        const pcl_block *last = &blocks->block[s->table[pcl_entry(blocks, group, s->length / group->block_size)]];
        if (last->refcount > 1 || last->node != PCL_ROOT || last->fence > blocks->reached)
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "broken: sequence %" PRId32 " shares its last block unawares",
                            index);
    }
    if (s->room != 0 && s->room != blocks->smallest - 1 - (s->length - 1) % blocks->smallest)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "broken: sequence %" PRId32 " has %" PRId64 " tokens, and room for %" PRId32, index, s->length,
                        s->room);
    if (recorded < 0 || recorded > s->length)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "broken: sequence %" PRId32 " has %" PRId64 " tokens, of which %" PRId64 " are recorded", index,
                        s->length, recorded);
    return check_counter("num_dropped", s->num_dropped, num_dropped);
}

/* Counts into blocks->counted how many references each block has. */
static pagedcl_status check_tables(const pagedcl_blocks *blocks) {
    int64_t num_seqs = 0, num_swapped = 0, num_tokens = 0, references = 0, host = 0;
    memset(blocks->counted, 0, (size_t)blocks->stats.total * sizeof *blocks->counted);
    for (int32_t i = 0; i < blocks->num_seqs; i++) {
        const pcl_sequence *s = &blocks->seqs[i];
        if (s->state == PCL_SEQ_FREE)
            continue;
        PCL_TRY(check_table(blocks, i, &references, &host));
        num_seqs += s->state == PCL_SEQ_LIVE;
        num_swapped += s->swapped;
        num_tokens += s->length;
    }
    for (int64_t i = 0; i < blocks->step.num_copies; i++, references++)
        blocks->counted[blocks->step.copies[i].src]++;
    PCL_TRY(check_counter("num_seqs", blocks->stats.num_seqs, num_seqs));
    PCL_TRY(check_counter("num_swapped", blocks->stats.num_swapped, num_swapped));
    PCL_TRY(check_counter("num_tokens", blocks->stats.num_tokens, num_tokens));
    PCL_TRY(check_counter("host_used", blocks->stats.host_used, host));
    return check_counter("references", blocks->stats.references, references);
}

/* The list in which a block of this state must be. */
static int list_of(const pagedcl_blocks *blocks, const pcl_block *b) {
    if (b->refcount > 0)
        return PCL_IN_USE;
    if (b->fence > blocks->reached)
        return PCL_WAITING;
    if (b->node != PCL_ROOT)
        return PCL_IDLE + blocks->prefix.nodes[b->node].priority - PAGEDCL_PRIORITY_LOW;
    return b->dirty ? PCL_UNWIPED : PCL_READY;
}

/* Compares the refcounts with what check_tables counted, and the counters with the classes. */
static pagedcl_status check_classes(const pagedcl_blocks *blocks) {
    int64_t used = 0, shared = 0, cached = 0;
    for (int32_t block = 0; block < blocks->stats.total; block++) {
        const pcl_block *b = &blocks->block[block];
        if (b->refcount != blocks->counted[block])
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                            "broken: block %" PRId32 " has refcount %" PRId32 ", but %" PRId32 " references", block,
                            b->refcount, blocks->counted[block]);
        if (b->node < 0 || (b->node > 0 && (blocks->prefix.nodes == NULL || b->node > blocks->stats.total)))
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "broken: block %" PRId32 " is known by node %" PRId32, block,
                            b->node);
        if (b->list != list_of(blocks, b))
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "broken: block %" PRId32 " is in list %d, and belongs in %d",
                            block, b->list, list_of(blocks, b));
        used += b->refcount > 0;
        shared += b->refcount > 1;
        cached += b->refcount == 0 && b->node != PCL_ROOT;
    }
    PCL_TRY(check_counter("used", blocks->stats.used, used));
    PCL_TRY(check_counter("shared", blocks->stats.shared, shared));
    PCL_TRY(check_counter("cached", blocks->stats.cached, cached));
    return check_counter("free", blocks->stats.free, blocks->stats.total - used - cached);
}

/* The stack holds ready blocks, each in the place that it says. */
static pagedcl_status check_ready(const pagedcl_blocks *blocks) {
    const pcl_list *list = &blocks->lists[PCL_READY];
    if (list->count < 0 || list->count > blocks->stats.total)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "broken: %" PRId64 " of %" PRId64 " blocks are ready", list->count,
                        blocks->stats.total);
    for (int64_t place = 0; place < list->count; place++) {
        int32_t block = blocks->ready[place];
        if (!is_block(blocks, block) || blocks->block[block].list != PCL_READY || blocks->block[block].prev != place)
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                            "broken: the stack of ready blocks goes wrong at place %" PRId64 ", block %" PRId32, place,
                            block);
    }
    return PAGEDCL_SUCCESS;
}

/* Every list is well linked and holds the blocks that say so, each once. */
static pagedcl_status check_lists(const pagedcl_blocks *blocks) {
    int64_t listed = blocks->lists[PCL_READY].count;
    for (int name = PCL_READY + 1; name < PCL_NUM_LISTS; name++) {
        const pcl_list *list = &blocks->lists[name];
        int64_t count = 0;
        int32_t prev = -1;
        uint64_t fence = 0;
        for (int32_t block = list->head; block != -1; prev = block, block = blocks->block[block].next) {
            const pcl_block *b = is_block(blocks, block) ? &blocks->block[block] : NULL;
            if (b == NULL || b->list != name || b->prev != prev || ++count > list->count ||
                (name == PCL_WAITING && b->fence < fence))
                return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                                "broken: list %d goes wrong at block %" PRId32 ", behind block %" PRId32, name, block,
                                prev);
            fence = b->fence;
        }
        if (count != list->count || list->tail != prev)
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "broken: list %d counts %" PRId64 " of its %" PRId64 " blocks",
                            name, list->count, count);
        listed += count;
    }
    return check_counter("free and cached", blocks->stats.free + blocks->stats.cached, listed);
}

pagedcl_status pagedcl_blocks_check(const pagedcl_blocks *blocks) {
    if (blocks == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "blocks is NULL");
    PCL_TRY(check_tables(blocks));
    PCL_TRY(check_classes(blocks));
    PCL_TRY(check_ready(blocks));
    PCL_TRY(check_lists(blocks));
    PCL_TRY(pcl_prefix_check(blocks));
    PCL_TRY(pcl_host_tier_check(blocks));
    if (blocks->stats.peak_used < blocks->stats.used)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "broken: peak_used %" PRId64 " is below used %" PRId64,
                        blocks->stats.peak_used, blocks->stats.used);
    return PAGEDCL_SUCCESS;
}
