/* SPDX-License-Identifier: Apache-2.0 */
/* The pool of the block manager: the three classes of blocks, their lists, refcounts, counters. */
#include "blocks.h"

#include "status.h"
#include "struct_size.h"

#include <inttypes.h>
#include <stdlib.h>

/* Of two block sizes, how often the larger may hold the smaller one. */
enum { MAX_PER_UNIT = 256 };

/* How many blocks before it is taken a ready one is fetched into the cache. */
enum { READY_AHEAD = 4 };

static pagedcl_status check_desc(const pagedcl_blocks_desc *desc) {
    const struct {
        const char *name;
        int32_t value, least;
        const char *why;
    } numbers[] = {
        {"num_blocks", desc->num_blocks, 1, "a pool has at least 1"},
        {"block_size", desc->block_size, 1, "a block holds at least 1 token"},
        {"num_groups", desc->num_groups, 0, "it is at least 1, or 0 for 1"},
        {"watermark", desc->watermark, 0, "it is 0 or more"},
        {"num_host_blocks", desc->num_host_blocks, 0, "it is 0 or more"},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].value < numbers[i].least)
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s is %" PRId32 "; %s", numbers[i].name, numbers[i].value,
                            numbers[i].why);
    for (int32_t group = 0; group < desc->num_groups; group++) {
        if (desc->group_block_sizes != NULL && desc->group_block_sizes[group] < 0)
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                            "group_block_sizes[%" PRId32 "] is %" PRId32
                            "; a block holds at least 1 token, 0: %" PRId32,
                            group, desc->group_block_sizes[group], desc->block_size);
        if (desc->group_windows != NULL && desc->group_windows[group] < 0)
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                            "group_windows[%" PRId32 "] is %" PRId64 "; a query sees at least 1 key, 0: all", group,
                            desc->group_windows[group]);
    }
    return PAGEDCL_SUCCESS;
}

static pagedcl_status create_groups(pagedcl_blocks *blocks, const pagedcl_blocks_desc *desc) {
    blocks->num_groups = desc->num_groups;
    blocks->groups = calloc((size_t)blocks->num_groups, sizeof *blocks->groups);
    if (blocks->groups == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no host memory for %" PRId32 " groups", blocks->num_groups);
    for (int32_t i = 0; i < blocks->num_groups; i++) {
        pcl_group *group = &blocks->groups[i];
        if (desc->group_block_sizes != NULL)
            group->block_size = desc->group_block_sizes[i];
        if (desc->group_windows != NULL)
            group->window = desc->group_windows[i];
        if (group->block_size == 0)
            group->block_size = desc->block_size;
        if (group->block_size > blocks->unit)
            blocks->unit = group->block_size;
        if (i == 0 || group->block_size < blocks->smallest)
            blocks->smallest = group->block_size;
        blocks->windowed |= group->window > 0;
    }
    for (int32_t i = 0; i < blocks->num_groups; i++)
        for (int32_t j = 0; j < i; j++) {
            int32_t a = blocks->groups[i].block_size, b = blocks->groups[j].block_size;
            if ((a > b ? a % b : b % a) != 0 || (a > b ? a / b : b / a) > MAX_PER_UNIT)
                return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                                "groups %" PRId32 " and %" PRId32 " have blocks of %" PRId32 " and %" PRId32
                                " tokens; the larger must be a multiple of the smaller, %d times it at most",
                                j, i, b, a, MAX_PER_UNIT);
        }
    for (int32_t i = 0; i < blocks->num_groups; i++) {
        pcl_group *group = &blocks->groups[i];
        group->per_unit = blocks->unit / group->block_size;
        group->column = blocks->width;
        if (__builtin_add_overflow(blocks->width, group->per_unit, &blocks->width))
            return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "%" PRId32 " groups have more than 2^31 blocks of a unit",
                            blocks->num_groups);
    }
    return PAGEDCL_SUCCESS;
}

/*
 * Ready blocks are in a stack, so that it is known long before which blocks will be taken: they are scattered over more
 * memory than a processor's caches hold, and each would be waited for.
 */
static void push_ready(pagedcl_blocks *blocks, int32_t block) {
    pcl_list *list = &blocks->lists[PCL_READY];
    pcl_block *b = &blocks->block[block];
    b->list = PCL_READY;
    b->prev = (int32_t)list->count;
    blocks->ready[list->count++] = block;
}

/* The last one takes its place. */
static void remove_ready(pagedcl_blocks *blocks, int32_t block) {
    pcl_list *list = &blocks->lists[PCL_READY];
    int32_t place = blocks->block[block].prev, last = blocks->ready[--list->count];
    if (last != block) {
        blocks->ready[place] = last;
        blocks->block[last].prev = place;
    }
    blocks->block[block].list = PCL_IN_USE;
    if (list->count >= READY_AHEAD)
        __builtin_prefetch(&blocks->block[blocks->ready[list->count - READY_AHEAD]], 1);
}

static void push_tail(pagedcl_blocks *blocks, pcl_list_name name, int32_t block) {
    pcl_list *list = &blocks->lists[name];
    pcl_block *b = &blocks->block[block];
    b->list = (uint8_t)name;
    b->prev = list->tail;
    b->next = -1;
    if (list->tail >= 0)
        blocks->block[list->tail].next = block;
    else
        list->head = block;
    list->tail = block;
    list->count++;
}

static void unlink_block(pagedcl_blocks *blocks, int32_t block) {
    pcl_block *b = &blocks->block[block];
    if (b->list == PCL_IN_USE)
        return;
    if (b->list == PCL_READY) {
        remove_ready(blocks, block);
        return;
    }
    pcl_list *list = &blocks->lists[b->list];
    if (b->prev >= 0)
        blocks->block[b->prev].next = b->next;
    else
        list->head = b->next;
    if (b->next >= 0)
        blocks->block[b->next].prev = b->prev;
    else
        list->tail = b->prev;
    list->count--;
    b->list = PCL_IN_USE;
}

static pagedcl_status create_pool(pagedcl_blocks *blocks, const pagedcl_blocks_desc *desc) {
    size_t num_blocks = (size_t)desc->num_blocks;
    blocks->block = calloc(num_blocks, sizeof *blocks->block);
    blocks->counted = calloc(num_blocks, sizeof *blocks->counted);
    blocks->ready = calloc(num_blocks, sizeof *blocks->ready);
    if (blocks->block == NULL || blocks->counted == NULL || blocks->ready == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no host memory for a manager of %" PRId32 " blocks", desc->num_blocks);
    for (int list = 0; list < PCL_NUM_LISTS; list++)
        blocks->lists[list] = (pcl_list){.head = -1, .tail = -1};
    /* Taken in ascending order. */
    for (int32_t block = desc->num_blocks; block-- > 0;)
        push_ready(blocks, block);
    blocks->stats.total = blocks->stats.free = desc->num_blocks;
    return PAGEDCL_SUCCESS;
}

static pagedcl_status create(pagedcl_blocks *made, const pagedcl_blocks_desc *desc) {
    made->block_size = desc->block_size;
    made->wipe = desc->wipe != 0;
    made->watermark = desc->watermark;
    made->free_seq = -1;
    PCL_TRY(create_groups(made, desc));
    PCL_TRY(create_pool(made, desc));
    PCL_TRY(pcl_host_tier_create(made, desc->num_host_blocks));
    return desc->prefix_cache != 0 ? pcl_prefix_create(made, desc->prefix_hash_seed) : PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_create(const pagedcl_blocks_desc *desc, pagedcl_blocks **blocks) {
    pagedcl_blocks_desc own;
    PCL_TRY(PCL_READ_STRUCT(&own, desc, num_groups));
    if (blocks == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "blocks is NULL");
    if (own.num_groups == 0)
        own.num_groups = 1;
    PCL_TRY(check_desc(&own));
    pagedcl_blocks *made = calloc(1, sizeof *made);
    if (made == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no host memory for a manager");
    pagedcl_status status = create(made, &own);
    if (status != PAGEDCL_SUCCESS) {
        pagedcl_blocks_destroy(made);
        return status;
    }
    *blocks = made;
    return PAGEDCL_SUCCESS;
}

void pagedcl_blocks_destroy(pagedcl_blocks *blocks) {
    if (blocks == NULL)
        return;
    for (int32_t i = 0; i < blocks->seq_capacity; i++) {
        free(blocks->seqs[i].table);
        free(blocks->chains[i].tail);
        pcl_keys_release(blocks->chains[i].keys);
    }
    pcl_prefix_destroy(blocks);
    pcl_host_tier_destroy(blocks);
    pcl_step_free(&blocks->step);
    free(blocks->seqs_memory);
    free(blocks->chains);
    free(blocks->groups);
    free(blocks->block);
    free(blocks->counted);
    free(blocks->ready);
    free(blocks);
}

int64_t pcl_blocks_available(const pagedcl_blocks *blocks) {
    int64_t available = blocks->lists[PCL_READY].count;
    /* What is evicted must be wiped first. */
    if (!blocks->wipe)
        available += pcl_prefix_evictable(blocks);
    return available;
}

void pcl_block_place(pagedcl_blocks *blocks, int32_t block) {
    pcl_block *b = &blocks->block[block];
    unlink_block(blocks, block);
    if (b->fence > blocks->reached) {
        /* A sequence that was used last long ago may be freed last: waiting a little more keeps the list in order. */
        int32_t last = blocks->lists[PCL_WAITING].tail;
        if (last >= 0 && blocks->block[last].fence > b->fence)
            b->fence = blocks->block[last].fence;
        push_tail(blocks, PCL_WAITING, block);
    } else if (b->node != PCL_ROOT) {
        int32_t priority = blocks->prefix.nodes[b->node].priority;
        push_tail(blocks, (pcl_list_name)(PCL_IDLE + priority - PAGEDCL_PRIORITY_LOW), block);
    } else if (b->dirty) {
        push_tail(blocks, PCL_UNWIPED, block);
    } else {
        push_ready(blocks, block);
    }
}

/* One more reference to a block that had none. */
static void put_in_use(pagedcl_blocks *blocks, pcl_block *b) {
    pagedcl_blocks_stats *stats = &blocks->stats;
    b->refcount = 1;
    stats->references++;
    stats->used++;
    if (stats->used > stats->peak_used)
        stats->peak_used = stats->used;
}

static void take_ready(pagedcl_blocks *blocks, int32_t block) {
    pcl_block *b = &blocks->block[block];
    unlink_block(blocks, block);
    blocks->stats.free--;
    put_in_use(blocks, b);
    b->fence = 0;
    b->dirty = blocks->wipe;
    if (++b->tag == 0)
        b->tag = 1;
}

int32_t pcl_block_take(pagedcl_blocks *blocks) {
    if (blocks->lists[PCL_READY].count == 0)
        pcl_prefix_evict_next(blocks);
    int32_t block = blocks->ready[blocks->lists[PCL_READY].count - 1];
    take_ready(blocks, block);
    return block;
}

void pcl_block_move(pagedcl_blocks *blocks, int32_t src, int32_t dst, uint64_t fence) {
    pcl_block *from = &blocks->block[src], *to = &blocks->block[dst];
    int64_t peak = blocks->stats.peak_used;
    take_ready(blocks, dst);
    to->node = from->node;
    from->node = PCL_ROOT;
    for (; from->refcount > 1; pcl_block_release(blocks, src, fence))
        pcl_block_retain(blocks, dst);
    pcl_block_release(blocks, src, fence);
    blocks->stats.peak_used = peak; /* one block all along */
}

void pcl_block_retain(pagedcl_blocks *blocks, int32_t block) {
    pcl_block *b = &blocks->block[block];
    if (b->refcount == 0) {
        unlink_block(blocks, block);
        blocks->stats.cached--;
        put_in_use(blocks, b);
        return;
    }
    blocks->stats.references++;
    if (++b->refcount == 2)
        blocks->stats.shared++;
}

void pcl_block_release(pagedcl_blocks *blocks, int32_t block, uint64_t fence) {
    pcl_block *b = &blocks->block[block];
    pagedcl_blocks_stats *stats = &blocks->stats;
    if (fence > b->fence)
        b->fence = fence;
    stats->references--;
    if (--b->refcount == 1) {
        stats->shared--;
    } else if (b->refcount == 0) {
        stats->used--;
        *(b->node != PCL_ROOT ? &stats->cached : &stats->free) += 1;
        pcl_block_place(blocks, block);
    }
}

void pcl_block_forget(pagedcl_blocks *blocks, int32_t block) {
    pcl_block *b = &blocks->block[block];
    b->node = PCL_ROOT;
    if (b->refcount == 0) {
        blocks->stats.cached--;
        blocks->stats.free++;
        pcl_block_place(blocks, block);
    }
}

pagedcl_status pagedcl_blocks_refcount(const pagedcl_blocks *blocks, int32_t block, int32_t *refcount) {
    if (blocks == NULL || refcount == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s is NULL", blocks == NULL ? "blocks" : "refcount");
    if (block < 0 || block >= blocks->stats.total)
        return pcl_fail(PAGEDCL_INVALID_BLOCK, "block %" PRId32 " is not in the pool of %" PRId64 " blocks", block,
                        blocks->stats.total);
    *refcount = blocks->block[block].refcount;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_get_stats(const pagedcl_blocks *blocks, pagedcl_blocks_stats *stats) {
    if (blocks == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "blocks is NULL");
    pagedcl_blocks_stats own = blocks->stats;
    own.available = pcl_blocks_available(blocks);
    own.waiting = blocks->lists[PCL_WAITING].count;
    own.unwiped = blocks->lists[PCL_UNWIPED].count;
    return PCL_FILL_STRUCT(stats, &own, out_of_blocks);
}
