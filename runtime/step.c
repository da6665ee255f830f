/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of the block manager: what an open step must undo or release; fences; wiping. */
#include "blocks.h"

#include "status.h"
#include "struct_size.h"

#include <pagedcl/step.h>

#include <inttypes.h>
#include <stdlib.h>

/* Grows *array, which has room for *capacity elements, to room for count. */
static bool grow(void **array, int64_t *capacity, int64_t count, size_t size) {
    if (count <= *capacity)
        return true;
    int64_t larger = *capacity + *capacity / 2 + 64;
    size_t bytes;
    if (larger < count)
        larger = count;
    void *grown = __builtin_mul_overflow((size_t)larger, size, &bytes) ? NULL : realloc(*array, bytes);
    if (grown == NULL)
        return false;
    *array = grown;
    *capacity = larger;
    return true;
}

pagedcl_status pcl_step_reserve(pagedcl_blocks *blocks, int64_t num_copies) {
    pcl_step *step = &blocks->step;
    void *appends = step->appends, *copies = step->copies;
    bool ok = grow(&appends, &step->appends_capacity, step->num_appends + 1, sizeof *step->appends) &&
              grow(&copies, &step->copies_capacity, step->num_copies + num_copies, sizeof *step->copies);
    step->appends = appends;
    step->copies = copies;
    if (!ok)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no host memory for a step of %" PRId64 " appends",
                        step->num_appends + 1);
    return PAGEDCL_SUCCESS;
}

void pcl_step_free(pcl_step *step) {
    free(step->appends);
    free(step->copies);
}

static pagedcl_status check_open(const pagedcl_blocks *blocks, bool open) {
    if (blocks == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "blocks is NULL");
    if (blocks->step.open != open)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, open ? "no step is open" : "a step is open already");
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_begin(pagedcl_blocks *blocks) {
    PCL_TRY(check_open(blocks, false));
    blocks->step.open = true;
    return PAGEDCL_SUCCESS;
}

static void put_under(pcl_sequence *s, uint64_t fence) {
    if (fence > s->fence)
        s->fence = fence;
}

static void close_step(pcl_step *step) {
    step->open = false;
    step->num_appends = step->num_copies = 0;
}

pagedcl_status pagedcl_blocks_commit(pagedcl_blocks *blocks, uint64_t fence) {
    PCL_TRY(check_open(blocks, true));
    pcl_step *step = &blocks->step;
    const pcl_step_copy *copy = step->copies;
    for (int64_t i = 0; i < step->num_appends; i++) {
        const pcl_step_append *append = &step->appends[i];
        pcl_sequence *s = &blocks->seqs[append->seq];
        put_under(s, fence);
        for (int32_t c = 0; c < append->num_copies; c++)
            pcl_block_release(blocks, copy++->src, s->fence);
        if (!s->in_step)
            continue; /* an earlier append of the step saw to the rest */
        s->in_step = false;
        if (s->state == PCL_SEQ_ENDING)
            pcl_sequence_end(blocks, s);
        else if (s->length > append->length)
            pcl_sequence_drop_left(blocks, s, append->length);
    }
    close_step(step);
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_rollback(pagedcl_blocks *blocks, uint64_t fence) {
    PCL_TRY(check_open(blocks, true));
    pcl_step *step = &blocks->step;
    for (int64_t i = step->num_appends; i-- > 0;) {
        const pcl_step_append *append = &step->appends[i];
        pcl_sequence *s = &blocks->seqs[append->seq];
        put_under(s, fence);
        pcl_sequence_shorten(blocks, s, append->length);
        for (int32_t c = 0; c < append->num_copies; c++) {
            const pcl_step_copy *copy = &step->copies[--step->num_copies];
            pcl_block_release(blocks, s->table[copy->entry], s->fence);
            s->table[copy->entry] = copy->src;
        }
    }
    for (int64_t i = 0; i < step->num_appends; i++) {
        pcl_sequence *s = &blocks->seqs[step->appends[i].seq];
        if (s->in_step && s->state == PCL_SEQ_ENDING)
            pcl_sequence_end(blocks, s);
        s->in_step = false;
    }
    close_step(step);
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_use(pagedcl_blocks *blocks, pagedcl_seq seq, uint64_t fence) {
    pcl_sequence *s = NULL;
    PCL_TRY(pcl_sequence_find(blocks, seq, &s));
    put_under(s, fence);
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_reached(pagedcl_blocks *blocks, uint64_t fence) {
    if (blocks == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "blocks is NULL");
    if (fence <= blocks->reached)
        return PAGEDCL_SUCCESS;
    blocks->reached = fence;
    const pcl_list *waiting = &blocks->lists[PCL_WAITING];
    while (waiting->head >= 0 && blocks->block[waiting->head].fence <= fence)
        pcl_block_place(blocks, waiting->head);
    pcl_host_tier_reached(blocks);
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_wipe(pagedcl_blocks *blocks, uint64_t fence, int32_t *wiped, int64_t capacity,
                                   int64_t *num_wiped) {
    if (blocks == NULL || num_wiped == NULL || capacity < 0 || (wiped == NULL && capacity > 0))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "blocks, wiped or num_wiped is NULL, or capacity is %" PRId64,
                        capacity);
    int64_t count = 0;
    for (; count < capacity && blocks->lists[PCL_UNWIPED].count > 0; count++) {
        int32_t block = blocks->lists[PCL_UNWIPED].head;
        pcl_block *b = &blocks->block[block];
        b->dirty = false;
        b->fence = fence;
        pcl_block_place(blocks, block);
        wiped[count] = block;
    }
    *num_wiped = count;
    return PAGEDCL_SUCCESS;
}
