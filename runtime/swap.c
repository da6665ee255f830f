/* SPDX-License-Identifier: Apache-2.0 */
/* The host tier: its blocks, and sequences that move there and back. */
#include "blocks.h"

#include "status.h"

#include <pagedcl/swap.h>

#include <inttypes.h>
#include <stdlib.h>

pagedcl_status pcl_host_tier_create(pagedcl_blocks *blocks, int32_t num_blocks) {
    pcl_host_tier *host = &blocks->host;
    host->ready = host->waiting = host->last_waiting = host->unwiped = -1;
    if (num_blocks == 0)
        return PAGEDCL_SUCCESS;
    host->next = calloc((size_t)num_blocks, sizeof *host->next);
    host->fences = calloc((size_t)num_blocks, sizeof *host->fences);
    if (host->next == NULL || host->fences == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no host memory for a host tier of %" PRId32 " blocks", num_blocks);
    for (int32_t block = num_blocks; block-- > 0; host->ready = block)
        host->next[block] = host->ready;
    host->num_ready = num_blocks;
    blocks->stats.host_total = blocks->stats.host_free = num_blocks;
    return PAGEDCL_SUCCESS;
}

void pcl_host_tier_destroy(pagedcl_blocks *blocks) {
    free(blocks->host.next);
    free(blocks->host.fences);
}

static int32_t take(pagedcl_blocks *blocks) {
    int32_t block = blocks->host.ready;
    blocks->host.ready = blocks->host.next[block];
    blocks->host.num_ready--;
    blocks->stats.host_free--;
    blocks->stats.host_used++;
    return block;
}

static void make_ready(pcl_host_tier *host, int32_t block) {
    host->next[block] = host->ready;
    host->ready = block;
    host->num_ready++;
}

/* The block is free, and nothing uses it any more. */
static void make_free(pagedcl_blocks *blocks, int32_t block) {
    pcl_host_tier *host = &blocks->host;
    if (!blocks->wipe) {
        make_ready(host, block);
        return;
    }
    host->next[block] = host->unwiped;
    host->unwiped = block;
    blocks->stats.host_unwiped++;
}

void pcl_host_block_release(pagedcl_blocks *blocks, int32_t block, uint64_t fence) {
    pcl_host_tier *host = &blocks->host;
    blocks->stats.host_used--;
    blocks->stats.host_free++;
    if (fence <= blocks->reached) {
        make_free(blocks, block);
        return;
    }
    int32_t last = host->last_waiting;
    host->fences[block] = last >= 0 && host->fences[last] > fence ? host->fences[last] : fence;
    host->next[block] = -1;
    *(last >= 0 ? &host->next[last] : &host->waiting) = block;
    host->last_waiting = block;
}

void pcl_host_tier_reached(pagedcl_blocks *blocks) {
    pcl_host_tier *host = &blocks->host;
    while (host->waiting >= 0 && host->fences[host->waiting] <= blocks->reached) {
        int32_t block = host->waiting;
        host->waiting = host->next[block];
        make_free(blocks, block);
    }
    if (host->waiting < 0)
        host->last_waiting = -1;
}

pagedcl_status pagedcl_blocks_wipe_host(pagedcl_blocks *blocks, int32_t *wiped, int64_t capacity, int64_t *num_wiped) {
    if (blocks == NULL || num_wiped == NULL || capacity < 0 || (wiped == NULL && capacity > 0))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "blocks, wiped or num_wiped is NULL, or capacity is %" PRId64,
                        capacity);
    pcl_host_tier *host = &blocks->host;
    int64_t count = 0;
    for (; count < capacity && host->unwiped >= 0; count++) {
        int32_t block = host->unwiped;
        host->unwiped = host->next[block];
        blocks->stats.host_unwiped--;
        make_ready(host, block);
        wiped[count] = block;
    }
    *num_wiped = count;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pcl_host_tier_check(const pagedcl_blocks *blocks) {
    const pcl_host_tier *host = &blocks->host;
    int64_t ready = 0, waiting = 0, unwiped = 0;
    for (int32_t block = host->ready; block >= 0 && ready <= blocks->stats.host_total; block = host->next[block])
        ready++;
    for (int32_t block = host->waiting; block >= 0 && waiting <= blocks->stats.host_total; block = host->next[block])
        waiting++;
    for (int32_t block = host->unwiped; block >= 0 && unwiped <= blocks->stats.host_total; block = host->next[block])
        unwiped++;
    if (ready != host->num_ready || unwiped != blocks->stats.host_unwiped ||
        ready + waiting + unwiped != blocks->stats.host_free ||
        blocks->stats.host_free + blocks->stats.host_used != blocks->stats.host_total)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "broken: of %" PRId64 " blocks of the host tier, %" PRId64 " are ready, %" PRId64
                        " wait, %" PRId64 " are to be wiped and %" PRId64 " are used",
                        blocks->stats.host_total, ready, waiting, unwiped, blocks->stats.host_used);
    return PAGEDCL_SUCCESS;
}

static int64_t held_blocks(const pagedcl_blocks *blocks, const pcl_sequence *s) {
    int64_t held = -s->num_dropped;
    for (int32_t g = 0; g < blocks->num_groups; g++)
        held += pcl_blocks_for(&blocks->groups[g], s->length);
    return held;
}

static pagedcl_status check_swaps(int64_t held, const pagedcl_block_swap *swaps, int64_t capacity,
                                  const int64_t *num_swaps) {
    if (num_swaps == NULL || (swaps == NULL && capacity > 0))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s is NULL", num_swaps == NULL ? "num_swaps" : "swaps");
    if (held > capacity)
        return pcl_fail(PAGEDCL_CAPACITY,
                        "the sequence has %" PRId64 " blocks, there is room for %" PRId64 " transfers", held, capacity);
    return PAGEDCL_SUCCESS;
}

/* Exchanges every entry of the tables for one of the other side, and names the transfers. */
static int64_t exchange(pagedcl_blocks *blocks, pcl_sequence *s, uint64_t fence, pagedcl_block_swap *swaps) {
    pagedcl_seq seq = pcl_sequence_handle(blocks, (int32_t)(s - blocks->seqs));
    bool out = !s->swapped;
    int64_t count = 0;
    if (fence > s->fence)
        s->fence = fence;
    for (int32_t g = 0; g < blocks->num_groups; g++) {
        const pcl_group *group = &blocks->groups[g];
        /* The last one first: blocks that lead to others are evicted after them. */
        for (int64_t i = pcl_blocks_for(group, s->length); i-- > 0;) {
            int32_t *entry = &s->table[pcl_entry(blocks, group, i)];
            if (*entry < 0)
                continue;
            int32_t from = *entry, to = out ? take(blocks) : pcl_block_take(blocks);
            if (out)
                pcl_block_release(blocks, from, s->fence);
            else
                pcl_host_block_release(blocks, from, s->fence);
            *entry = to;
            swaps[count] = (pagedcl_block_swap){g, out ? from : to, out ? to : from};
            if (blocks->listener != NULL) {
                pagedcl_block_event event = {.type = out ? PAGEDCL_BLOCK_SWAPPED_OUT : PAGEDCL_BLOCK_SWAPPED_IN,
                                             .group = g,
                                             .block = swaps[count].block,
                                             .host_block = swaps[count].host_block,
                                             .seq = seq};
                blocks->listener(blocks->listener_user, &event);
            }
            count++;
        }
    }
    s->swapped = out;
    blocks->stats.num_swapped += out ? 1 : -1;
    *(out ? &blocks->stats.swapped_out : &blocks->stats.swapped_in) += count;
    return count;
}

pagedcl_status pagedcl_blocks_swap_out(pagedcl_blocks *blocks, pagedcl_seq seq, uint64_t fence,
                                       pagedcl_block_swap *swaps, int64_t capacity, int64_t *num_swaps) {
    pcl_sequence *s = NULL;
    PCL_TRY(pcl_sequence_find_settled(blocks, seq, &s));
    int64_t held = held_blocks(blocks, s);
    PCL_TRY(check_swaps(held, swaps, capacity, num_swaps));
    if (held > blocks->stats.host_total)
        return pcl_fail(PAGEDCL_NEVER_FITS,
                        "the sequence has %" PRId64 " blocks, the host tier %" PRId64 "; free it and compute it again",
                        held, blocks->stats.host_total);
    if (held > blocks->host.num_ready) {
        blocks->stats.out_of_blocks++;
        return pcl_fail(
            PAGEDCL_OUT_OF_BLOCKS, "swapping out needs %" PRId64 " blocks of the host tier, %" PRId64 " can be taken%s",
            held, blocks->host.num_ready, blocks->host.unwiped >= 0 ? "; pagedcl_blocks_wipe_host names more" : "");
    }
    *num_swaps = exchange(blocks, s, fence, swaps);
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_swap_in(pagedcl_blocks *blocks, pagedcl_seq seq, uint64_t fence,
                                      pagedcl_block_swap *swaps, int64_t capacity, int64_t *num_swaps) {
    pcl_sequence *s = NULL;
    PCL_TRY(pcl_sequence_find(blocks, seq, &s));
    if (!s->swapped)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "sequence 0x%" PRIx64 " is not swapped out", seq);
    int64_t held = held_blocks(blocks, s);
    PCL_TRY(check_swaps(held, swaps, capacity, num_swaps));
    if (s->fence > blocks->reached)
        return pcl_fail(PAGEDCL_NOT_READY,
                        "sequence 0x%" PRIx64 " is on its way to the host tier: fence %" PRIu64 " is not reached", seq,
                        s->fence);
    int64_t available = pcl_blocks_available(blocks);
    if (held > available) {
        blocks->stats.out_of_blocks++;
        return pcl_fail(PAGEDCL_OUT_OF_BLOCKS, "swapping in needs %" PRId64 " blocks, %" PRId64 " can be taken", held,
                        available);
    }
    *num_swaps = exchange(blocks, s, fence, swaps);
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_blocks_swap_size(const pagedcl_blocks *blocks, pagedcl_seq seq, int64_t *num_swaps) {
    pcl_sequence *s = NULL;
    PCL_TRY(pcl_sequence_find(blocks, seq, &s));
    if (num_swaps == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "num_swaps is NULL");
    *num_swaps = held_blocks(blocks, s);
    return PAGEDCL_SUCCESS;
}
