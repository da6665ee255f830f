/* SPDX-License-Identifier: Apache-2.0 */
/* Which blocks leave the prefix cache when there is no other, and in which order. */
#include "support/manager.h"
#include "support/random.h"

enum { BLOCK = MANAGER_PREFIX_BLOCK };

/* Prompts of one block each against a plain list: evicted is who was used least recently, by priority. */
Test(eviction, least_recently_used_goes_first) {
    enum { PROMPTS = 24, POOL = 10, STEPS = 4000 };
    pagedcl_blocks *blocks = manager_with_prefixes(POOL);
    int64_t used_at[PROMPTS] = {0}; /* 0: not cached */
    int priorities[PROMPTS] = {0};
    random_state random = {5};
    for (int64_t now = 1; now <= STEPS; now++) {
        int32_t tokens[BLOCK + 1] = {random_below(&random, PROMPTS)};
        int32_t chosen = tokens[0];
        pagedcl_prompt prompt = manager_prompt(tokens, BLOCK + 1);
        prompt.min_partial = BLOCK;
        cr_assert_eq(manager_peek(blocks, &prompt), used_at[chosen] > 0 ? BLOCK : 0, "step %d", (int)now);
        if (used_at[chosen] > 0 && random_below(&random, 4) == 0) {
            priorities[chosen] = random_below(&random, 3) - 1;
            int64_t num_tokens;
            OK(pagedcl_prefix_set_priority(blocks, &prompt, (pagedcl_priority)priorities[chosen], &num_tokens));
            cr_assert_eq(num_tokens, BLOCK);
        }
        /* Of the pool, the prompt takes one block for itself and one for its last token. */
        bool known = used_at[chosen] > 0;
        int cached = 0;
        for (int i = 0; i < PROMPTS; i++)
            cached += used_at[i] > 0;
        int64_t mine = used_at[chosen];
        used_at[chosen] = 0;
        int to_evict = cached - known + 2 - POOL;
        for (int e = 0; e < to_evict; e++) {
            int victim = -1;
            for (int i = 0; i < PROMPTS; i++)
                if (used_at[i] > 0 && (victim < 0 || priorities[i] < priorities[victim] ||
                                       (priorities[i] == priorities[victim] && used_at[i] < used_at[victim])))
                    victim = i;
            used_at[victim] = 0;
            priorities[victim] = 0;
        }
        if (mine == 0)
            priorities[chosen] = 0;
        manager_serve(blocks, &prompt);
        used_at[chosen] = now;
    }
    cr_assert_gt(manager_stats(blocks).evicted, STEPS / 10);
    manager_destroy(blocks);
}

Test(eviction, children_of_an_evicted_block_go_first) {
    pagedcl_blocks *blocks = manager_with_prefixes(8);
    manager_evictions log = {0};
    OK(pagedcl_blocks_set_listener(blocks, manager_log_eviction, &log));
    pagedcl_prompt prompt = manager_prompt(manager_tokens(0), 4 * BLOCK + 1);
    pagedcl_seq seq = manager_admit(blocks, &prompt, NULL);
    int32_t row[5];
    OK(pagedcl_blocks_table(blocks, seq, 0, row, 5, NULL));
    OK(pagedcl_blocks_seq_free(blocks, seq));
    OK(pagedcl_prefix_evict(blocks, 2, NULL));
    cr_assert(log.count == 2 && log.blocks[0] == row[3] && log.blocks[1] == row[2]);
    cr_assert_eq(manager_peek(blocks, &prompt), 2 * BLOCK);
    OK(pagedcl_prefix_evict(blocks, INT64_MAX, NULL));
    cr_assert(log.count == 4 && log.blocks[2] == row[1] && log.blocks[3] == row[0]);
    cr_assert_eq(log.removed, 0);
    manager_destroy(blocks);
}

Test(eviction, pinned_blocks_are_never_evicted) {
    pagedcl_blocks *blocks = manager_with_prefixes(6);
    pagedcl_prompt prompt = manager_prompt(manager_tokens(0), 2 * BLOCK + 1),
                   other = manager_prompt(manager_tokens(500), 33);
    int64_t num_tokens;
    manager_serve(blocks, &prompt);
    OK(pagedcl_prefix_set_priority(blocks, &prompt, PAGEDCL_PRIORITY_PINNED, &num_tokens));
    cr_assert_eq(num_tokens, 2 * BLOCK);
    manager_serve(blocks, &other);
    cr_assert_eq(manager_stats(blocks).available, 4);
    pagedcl_seq seq = manager_sequence(blocks, 4 * BLOCK);
    FAILS(pagedcl_blocks_append(blocks, seq, 1, NULL, NULL), OUT_OF_BLOCKS);
    cr_assert_eq(manager_peek(blocks, &prompt), 2 * BLOCK);
    cr_assert_eq(manager_peek(blocks, &other), 0);
    int64_t num_evicted = -1;
    OK(pagedcl_prefix_evict(blocks, INT64_MAX, &num_evicted));
    cr_assert_eq(num_evicted, 0);
    /* The front part alone cannot be let go while what is behind it is pinned. */
    prompt.num_tokens = BLOCK;
    OK(pagedcl_prefix_set_priority(blocks, &prompt, PAGEDCL_PRIORITY_LOW, NULL));
    cr_assert_eq(manager_stats(blocks).available, 0);
    prompt.num_tokens = 2 * BLOCK;
    OK(pagedcl_prefix_set_priority(blocks, &prompt, PAGEDCL_PRIORITY_LOW, NULL));
    cr_assert_eq(manager_stats(blocks).available, 2);
    manager_append(blocks, seq, BLOCK);
    FAILS(pagedcl_prefix_set_priority(blocks, &prompt, (pagedcl_priority)3, NULL), INVALID_ARGUMENT);
    FAILS(pagedcl_prefix_set_priority(blocks, &prompt, (pagedcl_priority)-2, NULL), INVALID_ARGUMENT);
    manager_destroy(blocks);
}
