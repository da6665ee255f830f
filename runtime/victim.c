/* SPDX-License-Identifier: Apache-2.0 */
/* Whom to preempt when blocks run out. */
#include "blocks.h"

#include "status.h"
#include "struct_size.h"

#include <pagedcl/step.h>

#include <inttypes.h>

/* Entries of the sequence, and of these the blocks that no other table points at. */
static void count_blocks(const pagedcl_blocks *blocks, const pcl_sequence *s, int64_t *held, int64_t *freed) {
    *held = *freed = 0;
    for (int32_t g = 0; g < blocks->num_groups; g++) {
        const pcl_group *group = &blocks->groups[g];
        for (int64_t i = pcl_blocks_for(group, s->length); i-- > 0;) {
            int32_t block = s->table[pcl_entry(blocks, group, i)];
            *held += block >= 0;
            *freed += block >= 0 && blocks->block[block].refcount == 1;
        }
    }
}

/* Whether `a` is to go rather than `b`. */
static bool rather(pagedcl_victim_policy policy, const pagedcl_victim *a, uint64_t a_created, const pagedcl_victim *b,
                   uint64_t b_created) {
    if (policy == PAGEDCL_VICTIM_SHORTEST && a->num_tokens != b->num_tokens)
        return a->num_tokens < b->num_tokens;
    if (policy == PAGEDCL_VICTIM_MOST_FREED && a->num_blocks != b->num_blocks)
        return a->num_blocks > b->num_blocks;
    return a_created > b_created;
}

pagedcl_status pagedcl_blocks_victim(const pagedcl_blocks *blocks, pagedcl_victim_policy policy,
                                     const pagedcl_seq *candidates, int64_t num_candidates, pagedcl_victim *victim) {
    if (blocks == NULL || num_candidates < 0 || (candidates == NULL && num_candidates > 0))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "blocks or candidates is NULL, or num_candidates is %" PRId64,
                        num_candidates);
    if ((int)policy < PAGEDCL_VICTIM_LAST_IN || policy > PAGEDCL_VICTIM_MOST_FREED)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%d is no pagedcl_victim_policy", (int)policy);
    pagedcl_victim best = PAGEDCL_VICTIM_INIT;
    uint64_t best_created = 0;
    for (int64_t i = 0; i < num_candidates; i++) {
        pcl_sequence *s = NULL;
        PCL_TRY(pcl_sequence_find(blocks, candidates[i], &s));
        if (s->swapped || s->in_step)
            continue;
        int64_t held;
        pagedcl_victim proposed = {.seq = candidates[i], .num_tokens = s->length};
        count_blocks(blocks, s, &held, &proposed.num_blocks);
        proposed.can_swap = held <= blocks->host.num_ready;
        if (proposed.num_blocks > 0 && (best.seq == 0 || rather(policy, &proposed, s->created, &best, best_created))) {
            best = proposed;
            best_created = s->created;
        }
    }
    if (best.seq == 0)
        return pcl_fail(PAGEDCL_OUT_OF_BLOCKS, "none of the %" PRId64 " candidates gives back a block", num_candidates);
    return PCL_FILL_STRUCT(victim, &best, can_swap);
}
