/* SPDX-License-Identifier: Apache-2.0 */
/* Steps, fences, room, victims, wiping, tags. Tests named by b and a number are faults that users have met. */
#include "support/manager.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { MAX_BLOCKS = 64 };

static pagedcl_blocks *create(int32_t num_blocks, int32_t block_size) {
    return manager_create((pagedcl_blocks_desc){.num_blocks = num_blocks, .block_size = block_size, .watermark = 1});
}

/* What a step must leave alone when it is rolled back. */
typedef struct picture {
    pagedcl_blocks_stats stats;
    int32_t refcounts[MAX_BLOCKS];
    int32_t rows[4][MAX_BLOCKS];
    int64_t lengths[4];
} picture;

static picture take_picture(const pagedcl_blocks *blocks, const pagedcl_seq *seqs, int num_seqs) {
    picture p = {.stats = manager_stats(blocks)};
    for (int32_t block = 0; block < p.stats.total; block++)
        OK(pagedcl_blocks_refcount(blocks, block, &p.refcounts[block]));
    for (int i = 0; i < num_seqs; i++) {
        p.lengths[i] = manager_length(blocks, seqs[i]);
        OK(pagedcl_blocks_table(blocks, seqs[i], 0, p.rows[i], MAX_BLOCKS, NULL));
    }
    /* Sums over all time go on. */
    p.stats.copies = p.stats.peak_used = 0;
    return p;
}

Test(step, rollback_restores_lengths_tables_and_refcounts) {
    pagedcl_blocks *blocks = create(32, 4);
    pagedcl_seq seqs[4] = {manager_sequence(blocks, 10), manager_sequence(blocks, 8), 0, 0};
    OK(pagedcl_blocks_fork(blocks, seqs[0], &seqs[2]));
    OK(pagedcl_blocks_share(blocks, seqs[0], 5, &seqs[3]));
    picture before = take_picture(blocks, seqs, 4);
    for (int turn = 0; turn < 3; turn++) {
        OK(pagedcl_blocks_begin(blocks));
        for (int i = 0; i < 4; i++) {
            manager_append(blocks, seqs[(i + turn) % 4], 1 + i);
            manager_append(blocks, seqs[i], 7);
        }
        manager_stats(blocks);
        OK(pagedcl_blocks_rollback(blocks, 0));
        picture after = take_picture(blocks, seqs, 4);
        cr_assert_eq(memcmp(&before, &after, sizeof before), 0, "turn %d", turn);
    }
    manager_destroy(blocks);
}

Test(step, commit_keeps_the_appends) {
    pagedcl_blocks *blocks = create(32, 4);
    pagedcl_seq a = manager_sequence(blocks, 6), b = 0;
    OK(pagedcl_blocks_fork(blocks, a, &b));
    OK(pagedcl_blocks_begin(blocks));
    cr_assert_eq(manager_append(blocks, a, 1), 1);
    cr_assert_eq(manager_stats(blocks).references, 5, "the copy's source is held");
    OK(pagedcl_blocks_seq_free(blocks, b));
    OK(pagedcl_blocks_commit(blocks, 0));
    cr_assert_eq(manager_length(blocks, a), 7);
    cr_assert_eq(manager_stats(blocks).used, 2);
    manager_destroy(blocks);
}

Test(step, sequences_in_the_open_step) {
    pagedcl_blocks *blocks = create(32, 4);
    pagedcl_seq a = manager_sequence(blocks, 6), other = manager_sequence(blocks, 6), made = 0;
    int32_t token = 1;
    FAILS(pagedcl_blocks_commit(blocks, 0), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_rollback(blocks, 0), INVALID_ARGUMENT);
    OK(pagedcl_blocks_begin(blocks));
    FAILS(pagedcl_blocks_begin(blocks), INVALID_ARGUMENT);
    manager_append(blocks, a, 1);
    FAILS(pagedcl_blocks_share(blocks, a, 3, &made), NOT_READY);
    FAILS(pagedcl_blocks_fork(blocks, a, &made), NOT_READY);
    FAILS(pagedcl_blocks_truncate(blocks, a, 3), NOT_READY);
    FAILS(pagedcl_prefix_record(blocks, a, &token, 1), NOT_READY);
    OK(pagedcl_blocks_fork(blocks, other, &made));
    OK(pagedcl_blocks_truncate(blocks, other, 3));
    OK(pagedcl_blocks_commit(blocks, 0));
    OK(pagedcl_blocks_truncate(blocks, a, 3));
    manager_destroy(blocks);
}

/* Cancelled between the enqueue and the commit: its commands are on their way all the same. */
Test(step, a_sequence_freed_in_the_step_keeps_its_blocks_until_the_fence) {
    for (int commit = 0; commit < 2; commit++) {
        pagedcl_blocks *blocks = create(4, 4);
        pagedcl_seq a = manager_sequence(blocks, 6);
        OK(pagedcl_blocks_begin(blocks));
        manager_append(blocks, a, 10);
        OK(pagedcl_blocks_seq_free(blocks, a));
        FAILS(pagedcl_blocks_seq_free(blocks, a), INVALID_HANDLE);
        FAILS(pagedcl_blocks_append(blocks, a, 1, NULL, NULL), INVALID_HANDLE);
        cr_assert(manager_stats(blocks).num_seqs == 0 && manager_stats(blocks).used == 4);
        OK(commit ? pagedcl_blocks_commit(blocks, 9) : pagedcl_blocks_rollback(blocks, 9));
        pagedcl_blocks_stats stats = manager_stats(blocks);
        cr_assert(stats.free == 4 && stats.waiting == 4 && stats.available == 0);
        pagedcl_seq b = manager_sequence(blocks, 0);
        FAILS(pagedcl_blocks_append(blocks, b, 1, NULL, NULL), OUT_OF_BLOCKS);
        cr_assert(strstr(pagedcl_last_error(), "fence"), "%s", pagedcl_last_error());
        OK(pagedcl_blocks_reached(blocks, 8));
        cr_assert_eq(manager_stats(blocks).available, 0);
        OK(pagedcl_blocks_reached(blocks, 9));
        manager_append(blocks, b, 16);
        manager_destroy(blocks);
    }
}

Test(step, blocks_wait_for_the_last_reader) {
    pagedcl_blocks *blocks = create(4, 4);
    pagedcl_seq a = manager_sequence(blocks, 8), b = 0;
    OK(pagedcl_blocks_fork(blocks, a, &b));
    OK(pagedcl_blocks_use(blocks, a, 5));
    OK(pagedcl_blocks_use(blocks, b, 7));
    OK(pagedcl_blocks_use(blocks, b, 6));
    OK(pagedcl_blocks_seq_free(blocks, b));
    cr_assert_eq(manager_stats(blocks).waiting, 0, "a has them still");
    OK(pagedcl_blocks_seq_free(blocks, a));
    cr_assert_eq(manager_stats(blocks).waiting, 2);
    OK(pagedcl_blocks_reached(blocks, 6));
    cr_assert_eq(manager_stats(blocks).waiting, 2, "b read them under 7");
    OK(pagedcl_blocks_reached(blocks, 3));
    OK(pagedcl_blocks_reached(blocks, 100));
    cr_assert_eq(manager_stats(blocks).available, 4);
    /* A fence in the past is none. */
    a = manager_sequence(blocks, 8);
    OK(pagedcl_blocks_use(blocks, a, 100));
    OK(pagedcl_blocks_seq_free(blocks, a));
    cr_assert_eq(manager_stats(blocks).available, 4);
    manager_destroy(blocks);
}

Test(step, who_is_left_alone_writes_a_copy_while_others_may_read) {
    pagedcl_blocks *blocks = create(8, 4);
    pagedcl_seq a = manager_sequence(blocks, 7), b = 0;
    OK(pagedcl_blocks_share(blocks, a, 5, &b));
    OK(pagedcl_blocks_use(blocks, a, 3));
    OK(pagedcl_blocks_seq_free(blocks, a));
    OK(pagedcl_blocks_begin(blocks));
    cr_assert_eq(manager_append(blocks, b, 1), 1, "a's commands read slots 5 and 6 of the block");
    OK(pagedcl_blocks_rollback(blocks, 0));
    OK(pagedcl_blocks_reached(blocks, 3));
    cr_assert_eq(manager_append(blocks, b, 1), 0);
    manager_destroy(blocks);
}

Test(step, cached_blocks_under_a_fence_are_found_and_not_evicted) {
    pagedcl_blocks *blocks = manager_create((pagedcl_blocks_desc){.num_blocks = 4, .block_size = 4, .prefix_cache = 1});
    const int32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    pagedcl_prompt prompt = manager_prompt(tokens, 9);
    pagedcl_seq a = manager_admit(blocks, &prompt, NULL);
    OK(pagedcl_blocks_use(blocks, a, 5));
    OK(pagedcl_blocks_seq_free(blocks, a));
    pagedcl_blocks_stats stats = manager_stats(blocks);
    cr_assert(stats.cached == 2 && stats.free == 2 && stats.waiting == 3 && stats.available == 1);
    cr_assert_eq(manager_peek(blocks, &prompt), 8);
    a = manager_sequence(blocks, 4);
    FAILS(pagedcl_blocks_append(blocks, a, 1, NULL, NULL), OUT_OF_BLOCKS);
    OK(pagedcl_blocks_reached(blocks, 5));
    cr_assert_eq(manager_stats(blocks).available, 3);
    manager_append(blocks, a, 12);
    cr_assert_eq(manager_peek(blocks, &prompt), 0);
    manager_destroy(blocks);
}

Test(step, b96_a_request_that_can_never_fit_says_so) {
    /* 50 blocks, 1 reserved. */
    pagedcl_blocks *blocks = create(50, 16);
    FAILS(pagedcl_blocks_fits(blocks, 0, 1002), NEVER_FITS);
    FAILS(pagedcl_blocks_fits(blocks, 0, 49 * 16 + 1), NEVER_FITS);
    OK(pagedcl_blocks_fits(blocks, 0, 49 * 16));
    OK(pagedcl_blocks_fits(blocks, 0, 20));
    pagedcl_seq second = manager_sequence(blocks, 20);
    FAILS(pagedcl_blocks_fits(blocks, 0, 49 * 16), OUT_OF_BLOCKS);
    OK(pagedcl_blocks_fits(blocks, second, 47 * 16 + 12));
    FAILS(pagedcl_blocks_fits(blocks, second, 47 * 16 + 13), NEVER_FITS);
    FAILS(pagedcl_blocks_append(blocks, second, 1002, NULL, NULL), NEVER_FITS);
    /* The watermark is for those who ask. */
    manager_append(blocks, second, 48 * 16);
    FAILS(pagedcl_blocks_fits(blocks, 0, -1), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_fits(blocks, 0, INT64_MAX), NEVER_FITS);
    FAILS(pagedcl_blocks_fits(blocks, second, INT64_MAX), SIZE_OVERFLOW);
    FAILS(pagedcl_blocks_fits(blocks, second + 1, 1), INVALID_HANDLE);
    FAILS(pagedcl_blocks_fits(NULL, 0, 1), INVALID_ARGUMENT);
    cr_assert_eq(manager_stats(blocks).out_of_blocks, 0);
    manager_destroy(blocks);
}

/* Appends one token to each of those that run, and preempts who came last when there is no block. */
static int decode(pagedcl_blocks *blocks, pagedcl_seq *running, int num_running, pagedcl_seq *preempted) {
    OK(pagedcl_blocks_begin(blocks));
    for (int i = 0; i < num_running; i++) {
        pagedcl_status status = pagedcl_blocks_append(blocks, running[i], 1, NULL, NULL);
        if (status == PAGEDCL_SUCCESS)
            continue;
        cr_assert_eq(status, PAGEDCL_OUT_OF_BLOCKS);
        pagedcl_victim victim = PAGEDCL_VICTIM_INIT;
        OK(pagedcl_blocks_victim(blocks, PAGEDCL_VICTIM_LAST_IN, running, num_running, &victim));
        cr_assert_eq(victim.seq, running[num_running - 1]);
        cr_assert_eq(victim.num_blocks, 2);
        *preempted = victim.seq;
        OK(pagedcl_blocks_seq_free(blocks, victim.seq));
        num_running--;
        i--;
    }
    OK(pagedcl_blocks_commit(blocks, 0));
    return num_running;
}

Test(step, b98_all_need_one_more_and_one_is_preempted) {
    pagedcl_blocks *blocks = create(6, 4);
    pagedcl_seq running[3], preempted = 0;
    for (int i = 0; i < 3; i++)
        running[i] = manager_sequence(blocks, 8);
    cr_assert_eq(decode(blocks, running, 3, &preempted), 2);
    cr_assert_eq(preempted, running[2]);
    cr_assert_eq(decode(blocks, running, 2, &preempted), 2);
    OK(pagedcl_blocks_seq_free(blocks, running[0]));
    running[2] = manager_sequence(blocks, 9);
    OK(pagedcl_blocks_seq_free(blocks, running[1]));
    OK(pagedcl_blocks_seq_free(blocks, running[2]));
    cr_assert_eq(manager_stats(blocks).free, 6);
    manager_destroy(blocks);
}

Test(step, victims) {
    pagedcl_blocks *blocks =
        manager_create((pagedcl_blocks_desc){.num_blocks = 32, .block_size = 4, .num_host_blocks = 3});
    /* `fork` gives back only its own block of the three that it points at. */
    pagedcl_seq large = manager_sequence(blocks, 20), shared = manager_sequence(blocks, 8), fork = 0;
    pagedcl_seq small = manager_sequence(blocks, 3), empty = manager_sequence(blocks, 0);
    OK(pagedcl_blocks_fork(blocks, shared, &fork));
    manager_append(blocks, fork, 1);
    const pagedcl_seq all[] = {large, shared, fork, small, empty};
    const struct {
        pagedcl_victim_policy policy;
        int64_t num_candidates;
        pagedcl_seq seq;
        int64_t num_tokens, num_blocks;
        int32_t can_swap;
    } want[] = {
        {PAGEDCL_VICTIM_LAST_IN, 5, fork, 9, 1, 1},      {PAGEDCL_VICTIM_LAST_IN, 2, large, 20, 5, 0},
        {PAGEDCL_VICTIM_SHORTEST, 5, small, 3, 1, 1},    {PAGEDCL_VICTIM_SHORTEST, 3, fork, 9, 1, 1},
        {PAGEDCL_VICTIM_MOST_FREED, 5, large, 20, 5, 0},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        pagedcl_victim victim = PAGEDCL_VICTIM_INIT;
        OK(pagedcl_blocks_victim(blocks, want[i].policy, all, want[i].num_candidates, &victim));
        cr_assert(victim.seq == want[i].seq && victim.num_tokens == want[i].num_tokens &&
                      victim.num_blocks == want[i].num_blocks && victim.can_swap == want[i].can_swap,
                  "case %zu", i);
    }
    pagedcl_victim victim = PAGEDCL_VICTIM_INIT;
    FAILS(pagedcl_blocks_victim(blocks, PAGEDCL_VICTIM_LAST_IN, all + 1, 1, &victim), OUT_OF_BLOCKS);
    FAILS(pagedcl_blocks_victim(blocks, PAGEDCL_VICTIM_LAST_IN, NULL, 0, &victim), OUT_OF_BLOCKS);
    FAILS(pagedcl_blocks_victim(blocks, (pagedcl_victim_policy)9, all, 5, &victim), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_victim(blocks, PAGEDCL_VICTIM_LAST_IN, NULL, 1, &victim), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_victim(blocks, PAGEDCL_VICTIM_LAST_IN, all, 5, NULL), INVALID_ARGUMENT);
    OK(pagedcl_blocks_seq_free(blocks, small));
    FAILS(pagedcl_blocks_victim(blocks, PAGEDCL_VICTIM_LAST_IN, all, 5, &victim), INVALID_HANDLE);
    /* Who is in the open step is no victim: its blocks would not come free. */
    OK(pagedcl_blocks_begin(blocks));
    manager_append(blocks, fork, 1);
    OK(pagedcl_blocks_victim(blocks, PAGEDCL_VICTIM_LAST_IN, all, 3, &victim));
    cr_assert_eq(victim.seq, large);
    OK(pagedcl_blocks_rollback(blocks, 0));
    manager_destroy(blocks);
}

/* The bytes of the pool, which the test keeps: a freed block is not taken before they were zeroed. */
Test(step, b142_freed_blocks_are_wiped_before_they_are_taken) {
    pagedcl_blocks *blocks =
        manager_create((pagedcl_blocks_desc){.num_blocks = 4, .block_size = 4, .wipe = 1, .prefix_cache = 1});
    const int32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    pagedcl_prompt prompt = manager_prompt(tokens, 9);
    char secret[4] = {0};
    pagedcl_seq tenant = manager_admit(blocks, &prompt, NULL);
    for (int i = 0; i < 3; i++)
        secret[manager_block(blocks, tenant, 0, i)] = 1;
    OK(pagedcl_blocks_use(blocks, tenant, 1));
    OK(pagedcl_blocks_seq_free(blocks, tenant));
    int32_t wiped[4];
    int64_t num_wiped = -1;
    OK(pagedcl_blocks_wipe(blocks, 0, wiped, 4, &num_wiped));
    cr_assert_eq(num_wiped, 0, "commands still use them");
    OK(pagedcl_blocks_reached(blocks, 1));
    cr_assert_eq(manager_stats(blocks).unwiped, 1);
    cr_assert_eq(manager_stats(blocks).available, 1, "the block never used; what is cached must be wiped first");
    pagedcl_seq next = manager_sequence(blocks, 3);
    cr_assert_eq(secret[manager_block(blocks, next, 0, 0)], 0);
    FAILS(pagedcl_blocks_append(blocks, next, 2, NULL, NULL), OUT_OF_BLOCKS);
    cr_assert(strstr(pagedcl_last_error(), "wipe"), "%s", pagedcl_last_error());
    OK(pagedcl_prefix_evict(blocks, 1, NULL));
    cr_assert_eq(manager_stats(blocks).unwiped, 2);
    OK(pagedcl_blocks_wipe(blocks, 2, wiped, 1, &num_wiped));
    cr_assert_eq(num_wiped, 1);
    FAILS(pagedcl_blocks_append(blocks, next, 2, NULL, NULL), OUT_OF_BLOCKS);
    secret[wiped[0]] = 0;
    OK(pagedcl_blocks_reached(blocks, 2));
    manager_append(blocks, next, 2);
    cr_assert_eq(secret[manager_block(blocks, next, 0, 1)], 0);
    FAILS(pagedcl_blocks_wipe(blocks, 0, NULL, 1, &num_wiped), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_wipe(blocks, 0, wiped, -1, &num_wiped), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_wipe(blocks, 0, wiped, 1, NULL), INVALID_ARGUMENT);
    manager_destroy(blocks);

    /* Without the option nothing waits. */
    blocks = create(4, 4);
    OK(pagedcl_blocks_seq_free(blocks, manager_sequence(blocks, 16)));
    OK(pagedcl_blocks_wipe(blocks, 0, wiped, 4, &num_wiped));
    cr_assert(num_wiped == 0 && manager_stats(blocks).available == 4);
    manager_destroy(blocks);
}

Test(step, tags_catch_a_stale_table_entry) {
    pagedcl_blocks *blocks = create(4, 4);
    pagedcl_seq a = manager_sequence(blocks, 12);
    int32_t row[5];
    uint32_t tags[5];
    OK(pagedcl_blocks_table(blocks, a, 0, row, 5, NULL));
    OK(pagedcl_blocks_tags(blocks, a, 0, tags, 5));
    cr_assert(tags[0] > 0 && tags[3] == 0);
    OK(pagedcl_blocks_check_tags(blocks, row, tags, 5));
    OK(pagedcl_blocks_truncate(blocks, a, 4));
    FAILS(pagedcl_blocks_check_tags(blocks, row, tags, 5), INVALID_BLOCK);
    cr_assert_str_eq(pagedcl_last_error(), "entry 1 is stale: block 1 was released");
    OK(pagedcl_blocks_check_tags(blocks, row, tags, 1));
    pagedcl_seq b = manager_sequence(blocks, 4);
    FAILS(pagedcl_blocks_check_tags(blocks, row, tags, 5), INVALID_BLOCK);
    char want[128];
    snprintf(want, sizeof want, "entry 1 is stale: block 1 belongs to sequence 0x%llx now", (unsigned long long)b);
    cr_assert_str_eq(pagedcl_last_error(), want);
    row[0] = 4;
    FAILS(pagedcl_blocks_check_tags(blocks, row, tags, 1), INVALID_BLOCK);
    row[0] = -2;
    FAILS(pagedcl_blocks_check_tags(blocks, row, tags, 1), INVALID_BLOCK);
    FAILS(pagedcl_blocks_tags(blocks, a, 1, tags, 5), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_tags(blocks, a, 0, tags, 0), CAPACITY);
    FAILS(pagedcl_blocks_check_tags(blocks, NULL, tags, 1), INVALID_ARGUMENT);
    OK(pagedcl_blocks_check_tags(blocks, NULL, NULL, 0));
    manager_destroy(blocks);
}

/* A step of the window group: what left the window comes back on rollback, and goes on commit. */
Test(step, windows_move_on_commit) {
    const int64_t window = 4;
    pagedcl_blocks *blocks =
        manager_create((pagedcl_blocks_desc){.num_blocks = 8, .block_size = 2, .group_windows = &window});
    pagedcl_seq seq = manager_sequence(blocks, 8);
    for (int commit = 0; commit < 2; commit++) {
        OK(pagedcl_blocks_begin(blocks));
        manager_append(blocks, seq, 2);
        cr_assert_geq(manager_block(blocks, seq, 0, 0), 0);
        OK(commit ? pagedcl_blocks_commit(blocks, 0) : pagedcl_blocks_rollback(blocks, 0));
        cr_assert_eq(manager_block(blocks, seq, 0, 0) < 0, commit == 1);
        cr_assert_eq(manager_stats(blocks).used, commit ? 3 : 4);
    }
    /* Blocks that a window gave back do not count against the pool. */
    for (int64_t length = 10; length < 200; length += 2)
        manager_append(blocks, seq, 2);
    cr_assert_leq(manager_stats(blocks).used, 4);
    manager_destroy(blocks);
}
