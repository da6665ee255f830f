/* SPDX-License-Identifier: Apache-2.0 */
/* Compaction: blocks in use move from the end of the pool to free blocks at its front. */
#include "blocks.h"

#include "status.h"

#include <pagedcl/swap.h>

#include <inttypes.h>
#include <string.h>

/* Chooses the moves, highest block to lowest free one; the group is found out later. */
static int64_t choose(const pagedcl_blocks *blocks, pagedcl_block_copy *copies, int64_t capacity) {
    int32_t src = (int32_t)blocks->stats.total, dst = -1;
    for (int64_t count = 0;; count++) {
        do
            src--;
        while (src > dst && blocks->block[src].refcount == 0);
        do
            dst++;
        while (dst < src && blocks->block[dst].list != PCL_READY);
        if (dst >= src || count == capacity)
            return count;
        copies[count] = (pagedcl_block_copy){.src = src, .dst = dst};
    }
}

/* Changes the entry if its block moves; the copy, or NULL. blocks->counted says which copy moves a block, from 1. */
static pagedcl_block_copy *redirect(const pagedcl_blocks *blocks, int32_t group, pagedcl_block_copy *copies,
                                    int32_t *entry) {
    if (*entry < 0 || blocks->counted[*entry] == 0)
        return NULL;
    pagedcl_block_copy *copy = &copies[blocks->counted[*entry] - 1];
    copy->group = group;
    *entry = copy->dst;
    return copy;
}

static void redirect_table(pagedcl_blocks *blocks, pcl_sequence *s, uint64_t fence, pagedcl_block_copy *copies) {
    uint64_t before = s->fence;
    for (int32_t g = 0; g < blocks->num_groups; g++)
        for (int64_t i = pcl_blocks_for(&blocks->groups[g], s->length); i-- > 0;) {
            const pagedcl_block_copy *copy =
                redirect(blocks, g, copies, &s->table[pcl_entry(blocks, &blocks->groups[g], i)]);
            if (copy == NULL)
                continue;
            /* Its earlier commands use the old block, and later ones go behind the copy. */
            if (before > blocks->block[copy->src].fence)
                blocks->block[copy->src].fence = before;
            if (fence > s->fence)
                s->fence = fence;
        }
}

pagedcl_status pagedcl_blocks_compact(pagedcl_blocks *blocks, uint64_t fence, pagedcl_block_copy *copies,
                                      int64_t capacity, int64_t *num_copies) {
    if (blocks == NULL || num_copies == NULL || capacity < 0 || (copies == NULL && capacity > 0))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "blocks, copies or num_copies is NULL, or capacity is %" PRId64,
                        capacity);
    if (blocks->step.open)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "a step is open; commit or roll back first");
    int64_t count = choose(blocks, copies, capacity);
    int32_t *moves = blocks->counted;
    memset(moves, 0, (size_t)blocks->stats.total * sizeof *moves);
    for (int64_t i = 0; i < count; i++)
        moves[copies[i].src] = (int32_t)i + 1;
    for (int32_t i = 0; i < blocks->num_seqs && count > 0; i++) {
        pcl_sequence *s = &blocks->seqs[i];
        if (s->state != PCL_SEQ_LIVE || s->swapped)
            continue;
        redirect_table(blocks, s, fence, copies);
    }
    for (int64_t i = 0; i < count; i++) {
        int32_t node = blocks->block[copies[i].src].node;
        for (int32_t column = 0; node != PCL_ROOT && column < blocks->width; column++)
            redirect(blocks, pcl_group_of_column(blocks, column), copies, &pcl_node_row(blocks, node)[column]);
    }
    for (int64_t i = 0; i < count; i++)
        pcl_block_move(blocks, copies[i].src, copies[i].dst, fence);
    blocks->stats.compacted += count;
    *num_copies = count;
    return PAGEDCL_SUCCESS;
}
