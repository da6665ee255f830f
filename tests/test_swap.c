/* SPDX-License-Identifier: Apache-2.0 */
/* The host tier and compaction. Tests named by b and a number are faults that users have met. */
#include "support/manager.h"

#include <string.h>

enum { MAX_SWAPS = 64 };

static pagedcl_blocks *create(int32_t num_blocks, int32_t num_host_blocks) {
    return manager_create((pagedcl_blocks_desc){
        .num_blocks = num_blocks, .block_size = 4, .num_host_blocks = num_host_blocks, .prefix_cache = 1});
}

static int64_t swap_out(pagedcl_blocks *blocks, pagedcl_seq seq, uint64_t fence, pagedcl_block_swap *swaps) {
    int64_t num_swaps = -1;
    OK(pagedcl_blocks_swap_out(blocks, seq, fence, swaps, MAX_SWAPS, &num_swaps));
    return num_swaps;
}

static int64_t swap_in(pagedcl_blocks *blocks, pagedcl_seq seq, uint64_t fence, pagedcl_block_swap *swaps) {
    int64_t num_swaps = -1;
    OK(pagedcl_blocks_swap_in(blocks, seq, fence, swaps, MAX_SWAPS, &num_swaps));
    return num_swaps;
}

/* The test keeps what each block holds, here and there. */
Test(swap, out_and_back_into_other_blocks) {
    pagedcl_blocks *blocks = create(8, 8);
    int pool[8] = {0}, host[8] = {0};
    pagedcl_block_swap swaps[MAX_SWAPS];
    pagedcl_seq a = manager_sequence(blocks, 15), fork = 0;
    OK(pagedcl_blocks_fork(blocks, a, &fork));
    for (int i = 0; i < 4; i++)
        pool[manager_block(blocks, a, 0, i)] = 100 + i;
    cr_assert_eq(swap_out(blocks, a, 0, swaps), 4);
    for (int i = 0; i < 4; i++)
        host[swaps[i].host_block] = pool[swaps[i].block];
    pagedcl_blocks_stats stats = manager_stats(blocks);
    cr_assert(stats.used == 4 && stats.host_used == 4 && stats.num_swapped == 1 && stats.shared == 0);
    cr_assert_eq(swap_in(blocks, a, 0, swaps), 4);
    for (int i = 0; i < 4; i++)
        pool[swaps[i].block] = host[swaps[i].host_block];
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(pool[manager_block(blocks, a, 0, i)], 100 + i);
        cr_assert_eq(pool[manager_block(blocks, fork, 0, i)], 100 + i);
        cr_assert_neq(manager_block(blocks, a, 0, i), manager_block(blocks, fork, 0, i));
    }
    stats = manager_stats(blocks);
    cr_assert(stats.used == 8 && stats.host_used == 0 && stats.num_swapped == 0 && stats.swapped_out == 4 &&
              stats.swapped_in == 4);
    manager_destroy(blocks);
}

Test(swap, a_swapped_sequence_waits) {
    pagedcl_blocks *blocks = create(8, 4);
    pagedcl_block_swap swaps[MAX_SWAPS];
    pagedcl_seq seq = manager_sequence(blocks, 10), made = 0;
    int64_t number = 77;
    int32_t row[8], token = 1;
    uint32_t tags[8];
    FAILS(pagedcl_blocks_swap_in(blocks, seq, 0, swaps, MAX_SWAPS, &number), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_swap_out(blocks, seq, 0, swaps, 2, &number), CAPACITY);
    FAILS(pagedcl_blocks_swap_out(blocks, seq, 0, NULL, 3, &number), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_swap_out(blocks, seq, 0, swaps, 3, NULL), INVALID_ARGUMENT);
    swap_out(blocks, seq, 5, swaps);
    FAILS(pagedcl_blocks_swap_out(blocks, seq, 0, swaps, MAX_SWAPS, &number), NOT_READY);
    FAILS(pagedcl_blocks_append(blocks, seq, 1, NULL, NULL), NOT_READY);
    FAILS(pagedcl_blocks_needed(blocks, seq, 1, &number), NOT_READY);
    FAILS(pagedcl_blocks_fits(blocks, seq, 1), NOT_READY);
    FAILS(pagedcl_blocks_table(blocks, seq, 0, row, 8, &number), NOT_READY);
    FAILS(pagedcl_blocks_tags(blocks, seq, 0, tags, 8), NOT_READY);
    FAILS(pagedcl_blocks_slots(blocks, seq, 0, 0, 1, &number), NOT_READY);
    FAILS(pagedcl_blocks_share(blocks, seq, 0, &made), NOT_READY);
    FAILS(pagedcl_blocks_truncate(blocks, seq, 0), NOT_READY);
    FAILS(pagedcl_prefix_record(blocks, seq, &token, 1), NOT_READY);
    cr_assert_eq(manager_length(blocks, seq), 10);
    /* The transfer to the host is not complete. */
    FAILS(pagedcl_blocks_swap_in(blocks, seq, 6, swaps, MAX_SWAPS, &number), NOT_READY);
    cr_assert(number == 77 && manager_stats(blocks).waiting == 3);
    OK(pagedcl_blocks_reached(blocks, 5));
    FAILS(pagedcl_blocks_swap_in(blocks, seq, 6, swaps, 2, &number), CAPACITY);
    cr_assert_eq(swap_in(blocks, seq, 6, swaps), 3);
    manager_append(blocks, seq, 1);
    manager_destroy(blocks);
}

Test(swap, the_host_tier_may_be_too_small) {
    pagedcl_blocks *blocks = create(16, 4);
    pagedcl_block_swap swaps[MAX_SWAPS];
    int64_t number = 77;
    pagedcl_seq large = manager_sequence(blocks, 17), a = manager_sequence(blocks, 12), b = manager_sequence(blocks, 8);
    FAILS(pagedcl_blocks_swap_out(blocks, large, 0, swaps, MAX_SWAPS, &number), NEVER_FITS);
    swap_out(blocks, a, 0, swaps);
    FAILS(pagedcl_blocks_swap_out(blocks, b, 0, swaps, MAX_SWAPS, &number), OUT_OF_BLOCKS);
    OK(pagedcl_blocks_seq_free(blocks, a));
    swap_out(blocks, b, 0, swaps);
    cr_assert_eq(manager_stats(blocks).host_used, 2);
    /* The pool may be too full for the way back. */
    pagedcl_seq fill = manager_sequence(blocks, 40);
    FAILS(pagedcl_blocks_swap_in(blocks, b, 0, swaps, MAX_SWAPS, &number), OUT_OF_BLOCKS);
    cr_assert_eq(number, 77);
    OK(pagedcl_blocks_seq_free(blocks, fill));
    swap_in(blocks, b, 0, swaps);
    manager_destroy(blocks);
}

Test(swap, b125_nothing_to_swap) {
    pagedcl_blocks *blocks = create(4, 0);
    pagedcl_seq seq = manager_sequence(blocks, 0);
    int64_t number = -1;
    OK(pagedcl_blocks_swap_out(blocks, seq, 0, NULL, 0, &number));
    cr_assert_eq(number, 0);
    OK(pagedcl_blocks_swap_in(blocks, seq, 0, NULL, 0, &number));
    cr_assert_eq(number, 0);
    OK(pagedcl_blocks_compact(blocks, 0, NULL, 0, &number));
    cr_assert_eq(number, 0);
    manager_destroy(blocks);
}

/* Cancelled while its blocks come in. Whether the transfer ends well or badly, its fence is reached. */
Test(swap, b95_cancelled_while_on_its_way) {
    pagedcl_blocks *blocks = create(4, 4);
    pagedcl_block_swap swaps[MAX_SWAPS];
    pagedcl_seq seq = manager_sequence(blocks, 16), next = 0;
    swap_out(blocks, seq, 1, swaps);
    OK(pagedcl_blocks_seq_create(blocks, &next));
    FAILS(pagedcl_blocks_append(blocks, next, 1, NULL, NULL), OUT_OF_BLOCKS);
    OK(pagedcl_blocks_reached(blocks, 1));
    swap_in(blocks, seq, 2, swaps);
    OK(pagedcl_blocks_seq_free(blocks, seq));
    pagedcl_blocks_stats stats = manager_stats(blocks);
    cr_assert(stats.free == 4 && stats.waiting == 4 && stats.available == 0 && stats.host_free == 4);
    FAILS(pagedcl_blocks_append(blocks, next, 1, NULL, NULL), OUT_OF_BLOCKS);
    /* Nor are the blocks of the host tier used again. */
    OK(pagedcl_blocks_seq_free(blocks, next));
    OK(pagedcl_blocks_reached(blocks, 2));
    next = manager_sequence(blocks, 16);
    swap_out(blocks, next, 3, swaps);
    OK(pagedcl_blocks_seq_free(blocks, next));
    stats = manager_stats(blocks);
    cr_assert(stats.waiting == 4 && stats.host_free == 4);
    pagedcl_victim victim = PAGEDCL_VICTIM_INIT;
    OK(pagedcl_blocks_reached(blocks, 3));
    next = manager_sequence(blocks, 16);
    OK(pagedcl_blocks_victim(blocks, PAGEDCL_VICTIM_LAST_IN, &next, 1, &victim));
    cr_assert_eq(victim.can_swap, 1);
    manager_destroy(blocks);
}

/* What a tenant left in the host tier is wiped, too, when nothing uses it any more. */
Test(swap, b142_host_blocks_are_wiped_before_they_are_taken) {
    pagedcl_blocks *blocks =
        manager_create((pagedcl_blocks_desc){.num_blocks = 8, .block_size = 4, .num_host_blocks = 3, .wipe = 1});
    pagedcl_block_swap swaps[MAX_SWAPS];
    int32_t wiped[3];
    int64_t number = -1;
    pagedcl_seq tenant = manager_sequence(blocks, 12), next = manager_sequence(blocks, 4);
    swap_out(blocks, tenant, 1, swaps);
    int32_t first = swaps[0].host_block, last = swaps[2].host_block;
    OK(pagedcl_blocks_seq_free(blocks, tenant));
    OK(pagedcl_blocks_wipe_host(blocks, wiped, 3, &number));
    cr_assert_eq(number, 0, "they are still written");
    OK(pagedcl_blocks_reached(blocks, 1));
    pagedcl_blocks_stats stats = manager_stats(blocks);
    cr_assert(stats.host_free == 3 && stats.host_unwiped == 3);
    FAILS(pagedcl_blocks_swap_out(blocks, next, 2, swaps, MAX_SWAPS, &number), OUT_OF_BLOCKS);
    cr_assert(strstr(pagedcl_last_error(), "pagedcl_blocks_wipe_host"), "%s", pagedcl_last_error());
    OK(pagedcl_blocks_wipe_host(blocks, wiped, 2, &number));
    cr_assert(number == 2 && wiped[0] != wiped[1]);
    cr_assert_eq(manager_stats(blocks).host_unwiped, 1);
    swap_out(blocks, next, 2, swaps);
    cr_assert(swaps[0].host_block == wiped[0] || swaps[0].host_block == wiped[1]);
    OK(pagedcl_blocks_wipe_host(blocks, wiped + 2, 1, &number));
    cr_assert_eq(number, 1);
    cr_assert_eq(wiped[0] + wiped[1] + wiped[2], 0 + 1 + 2, "each of them once, from %d to %d", first, last);

    /* Coming back leaves a copy on the host. */
    OK(pagedcl_blocks_reached(blocks, 2));
    swap_in(blocks, next, 3, swaps);
    OK(pagedcl_blocks_wipe_host(blocks, wiped, 3, &number));
    cr_assert_eq(number, 0);
    OK(pagedcl_blocks_reached(blocks, 3));
    OK(pagedcl_blocks_wipe_host(blocks, wiped, 3, &number));
    cr_assert(number == 1 && wiped[0] == swaps[0].host_block);
    FAILS(pagedcl_blocks_wipe_host(NULL, wiped, 3, &number), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_wipe_host(blocks, NULL, 3, &number), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_wipe_host(blocks, wiped, -1, &number), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_wipe_host(blocks, wiped, 3, NULL), INVALID_ARGUMENT);
    manager_destroy(blocks);

    blocks = create(8, 3);
    swap_out(blocks, manager_sequence(blocks, 12), 1, swaps);
    OK(pagedcl_blocks_reached(blocks, 1));
    OK(pagedcl_blocks_wipe_host(blocks, wiped, 3, &number));
    cr_assert_eq(number, 0, "nobody asked for it");
    manager_destroy(blocks);
}

Test(swap, b103_back_into_whatever_is_free) {
    pagedcl_blocks *blocks = create(8, 4);
    pagedcl_block_swap swaps[MAX_SWAPS];
    pagedcl_seq swapped = manager_sequence(blocks, 16);
    swap_out(blocks, swapped, 0, swaps);
    pagedcl_seq singles[8];
    for (int i = 0; i < 8; i++)
        singles[i] = manager_sequence(blocks, 1);
    for (int i = 0; i < 8; i++)
        if (manager_block(blocks, singles[i], 0, 0) % 2 == 1)
            OK(pagedcl_blocks_seq_free(blocks, singles[i]));
    cr_assert_eq(swap_in(blocks, swapped, 0, swaps), 4);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(manager_block(blocks, swapped, 0, i) % 2, 1);
    manager_destroy(blocks);
}

/* Two interleaved sequences with a shared prefix, holes between; what each reads stays the same. */
Test(swap, b101_compaction_changes_no_content) {
    for (int shared = 0; shared < 2; shared++) {
        pagedcl_blocks *blocks = create(16, 0);
        int pool[16];
        pagedcl_seq a = manager_sequence(blocks, shared ? 8 : 0), b = 0, hole[4];
        OK(pagedcl_blocks_fork(blocks, a, &b));
        for (int i = 0; i < 4; i++) {
            hole[i] = manager_sequence(blocks, 4);
            manager_append(blocks, a, 4);
            manager_append(blocks, b, 4);
        }
        for (int i = 0; i < 16; i++)
            pool[i] = 100 + i;
        int want[2][8];
        pagedcl_seq seqs[2] = {a, b};
        int length = shared ? 6 : 4;
        for (int s = 0; s < 2; s++)
            for (int i = 0; i < length; i++)
                want[s][i] = pool[manager_block(blocks, seqs[s], 0, i)];
        for (int i = 0; i < 4; i++)
            OK(pagedcl_blocks_seq_free(blocks, hole[i]));
        int64_t used = manager_stats(blocks).used, moved = 0, num_copies;
        int times[16] = {0}; /* that each block's content moved */
        /* A few at a time, as a step leaves room for. */
        do {
            pagedcl_block_copy copies[2];
            OK(pagedcl_blocks_compact(blocks, 0, copies, 2, &num_copies));
            for (int64_t c = 0; c < num_copies; c++) {
                cr_assert_eq(++times[pool[copies[c].src] - 100], 1, "a block moves once, shared or not");
                pool[copies[c].dst] = pool[copies[c].src];
            }
            moved += num_copies;
            manager_stats(blocks);
        } while (num_copies > 0);
        cr_assert_gt(moved, 0);
        cr_assert_eq(used, shared ? 10 : 8);
        for (int s = 0; s < 2; s++)
            for (int i = 0; i < length; i++) {
                cr_assert_eq(pool[manager_block(blocks, seqs[s], 0, i)], want[s][i]);
                cr_assert_lt(manager_block(blocks, seqs[s], 0, i), used, "the front of the pool is full");
            }
        manager_destroy(blocks);
    }
}

Test(swap, compaction_keeps_what_is_known) {
    pagedcl_blocks *blocks = create(8, 0);
    const int32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    pagedcl_prompt prompt = manager_prompt(tokens, 9);
    pagedcl_seq hole = manager_sequence(blocks, 12), seq = manager_admit(blocks, &prompt, NULL);
    pagedcl_block_copy copies[8];
    int64_t num_copies;
    OK(pagedcl_blocks_seq_free(blocks, hole));
    OK(pagedcl_blocks_begin(blocks));
    FAILS(pagedcl_blocks_compact(blocks, 0, copies, 8, &num_copies), INVALID_ARGUMENT);
    OK(pagedcl_blocks_commit(blocks, 0));
    OK(pagedcl_blocks_compact(blocks, 4, copies, 8, &num_copies));
    cr_assert_eq(num_copies, 3);
    cr_assert_eq(manager_stats(blocks).waiting, 3, "the copies read the old blocks");
    cr_assert_eq(manager_stats(blocks).compacted, 3);
    OK(pagedcl_blocks_seq_free(blocks, seq));
    cr_assert_eq(manager_stats(blocks).waiting, 6, "and write the new ones");
    cr_assert_eq(manager_stats(blocks).available, 2);
    cr_assert_eq(manager_peek(blocks, &prompt), 8);
    OK(pagedcl_blocks_reached(blocks, 4));
    cr_assert_eq(manager_stats(blocks).waiting, 0);
    cr_assert_eq(manager_peek(blocks, &prompt), 8);
    manager_destroy(blocks);
}

Test(swap, b106_stale_handles) {
    pagedcl_blocks *blocks = create(8, 8);
    pagedcl_block_swap swaps[MAX_SWAPS];
    pagedcl_seq seq = manager_sequence(blocks, 8);
    int64_t number = 77;
    swap_out(blocks, seq, 0, swaps);
    OK(pagedcl_blocks_seq_free(blocks, seq));
    const pagedcl_seq bad[] = {seq, 0, UINT64_MAX, UINT32_MAX, seq + 1};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        FAILS(pagedcl_blocks_swap_in(blocks, bad[i], 0, swaps, MAX_SWAPS, &number), INVALID_HANDLE);
        FAILS(pagedcl_blocks_swap_out(blocks, bad[i], 0, swaps, MAX_SWAPS, &number), INVALID_HANDLE);
        FAILS(pagedcl_blocks_swap_size(blocks, bad[i], &number), INVALID_HANDLE);
        FAILS(pagedcl_blocks_use(blocks, bad[i], 1), INVALID_HANDLE);
        FAILS(pagedcl_prefix_record(blocks, bad[i], NULL, 0), INVALID_HANDLE);
    }
    cr_assert(number == 77 && manager_stats(blocks).host_used == 0);
    manager_destroy(blocks);
}
