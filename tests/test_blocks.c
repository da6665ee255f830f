/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool of the block manager. What sequences do with it is in test_sequences.c. Tests whose names begin with b and a
 * number are faults that users of such managers have met.
 */
#include "blocks.h"

#include <pagedcl/blocks.h>

#include <criterion/criterion.h>

#include <limits.h>
#include <string.h>

static pagedcl_blocks *create(int32_t num_blocks, int32_t block_size, int32_t num_groups) {
    pagedcl_blocks_desc desc = PAGEDCL_BLOCKS_DESC_INIT;
    desc.num_blocks = num_blocks;
    desc.block_size = block_size;
    desc.num_groups = num_groups;
    pagedcl_blocks *blocks = NULL;
    cr_assert_eq(pagedcl_blocks_create(&desc, &blocks), PAGEDCL_SUCCESS, "%s", pagedcl_last_error());
    return blocks;
}

static pagedcl_seq sequence_of(pagedcl_blocks *blocks, int64_t num_tokens) {
    pagedcl_seq seq = 0;
    cr_assert_eq(pagedcl_blocks_seq_create(blocks, &seq), PAGEDCL_SUCCESS);
    cr_assert_eq(pagedcl_blocks_append(blocks, seq, num_tokens, NULL, NULL), PAGEDCL_SUCCESS, "%s",
                 pagedcl_last_error());
    return seq;
}

static pagedcl_blocks_stats stats_of(const pagedcl_blocks *blocks) {
    pagedcl_blocks_stats stats = PAGEDCL_BLOCKS_STATS_INIT;
    cr_assert_eq(pagedcl_blocks_get_stats(blocks, &stats), PAGEDCL_SUCCESS);
    cr_assert_eq(stats.free + stats.used, stats.total);
    return stats;
}

static int32_t refcount_of(const pagedcl_blocks *blocks, int32_t block) {
    int32_t refcount = -1;
    cr_assert_eq(pagedcl_blocks_refcount(blocks, block, &refcount), PAGEDCL_SUCCESS);
    return refcount;
}

Test(blocks, worked_numbers) {
    /* 100 tokens in blocks of 16: 7 blocks, of the last one 4 slots; with 28 tables 196. */
    for (int32_t num_groups = 1; num_groups <= 28; num_groups += 27) {
        pagedcl_blocks *blocks = create(200, 16, num_groups);
        pagedcl_seq seq = sequence_of(blocks, 100);
        cr_assert_eq(stats_of(blocks).used, num_groups == 1 ? 7 : 196);
        for (int32_t group = 0; group < num_groups; group++) {
            int32_t row[8];
            int64_t num_blocks, slot;
            cr_assert_eq(pagedcl_blocks_table(blocks, seq, group, row, 8, &num_blocks), PAGEDCL_SUCCESS);
            cr_assert_eq(num_blocks, 7);
            cr_assert_eq(pagedcl_blocks_slots(blocks, seq, group, 99, 1, &slot), PAGEDCL_SUCCESS);
            cr_assert_eq(slot, row[6] * 16 + 3);
        }
        cr_assert_eq(pagedcl_blocks_check(blocks), PAGEDCL_SUCCESS, "%s", pagedcl_last_error());
        pagedcl_blocks_destroy(blocks);
    }
}

Test(blocks, bad_descriptors) {
    const struct {
        int32_t num_blocks, block_size, num_groups;
        const char *names;
    } bad[] = {
        {0, 16, 1, "num_blocks is 0"},   {-1, 16, 1, "num_blocks is -1"},  {INT32_MIN, 16, 1, "num_blocks is -2147"},
        {4, 0, 1, "block_size is 0"},    {4, -16, 1, "block_size is -16"}, {4, INT32_MIN, 1, "block_size is -2147"},
        {4, 16, -1, "num_groups is -1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        pagedcl_blocks_desc desc = PAGEDCL_BLOCKS_DESC_INIT;
        desc.num_blocks = bad[i].num_blocks;
        desc.block_size = bad[i].block_size;
        desc.num_groups = bad[i].num_groups;
        pagedcl_blocks *blocks = NULL;
        cr_assert_eq(pagedcl_blocks_create(&desc, &blocks), PAGEDCL_INVALID_ARGUMENT, "%s", bad[i].names);
        cr_assert_null(blocks);
        cr_assert(strstr(pagedcl_last_error(), bad[i].names), "%s", pagedcl_last_error());
    }
    pagedcl_blocks_desc desc = {.num_blocks = 4, .block_size = 16};
    pagedcl_blocks *blocks = NULL;
    cr_assert_eq(pagedcl_blocks_create(&desc, &blocks), PAGEDCL_INVALID_ARGUMENT);
    cr_assert(strstr(pagedcl_last_error(), "struct_size is 0"), "%s", pagedcl_last_error());
    desc.struct_size = sizeof desc;
    cr_assert_eq(pagedcl_blocks_create(&desc, NULL), PAGEDCL_INVALID_ARGUMENT);
    cr_assert_eq(pagedcl_blocks_create(NULL, &blocks), PAGEDCL_INVALID_ARGUMENT);
    cr_assert_null(blocks);
    pagedcl_blocks_destroy(NULL);
}

/* No size between 2^31 and 2^63 wraps. */
Test(blocks, large_sizes) {
    pagedcl_blocks *blocks = create(3, INT32_MAX, 1);
    pagedcl_seq seq = sequence_of(blocks, (int64_t)INT32_MAX * 2 + 1);
    int64_t slot, needed;
    int32_t row[3];
    cr_assert_eq(pagedcl_blocks_table(blocks, seq, 0, row, 3, NULL), PAGEDCL_SUCCESS);
    cr_assert_eq(pagedcl_blocks_slots(blocks, seq, 0, (int64_t)INT32_MAX * 2, 1, &slot), PAGEDCL_SUCCESS);
    cr_assert_eq(slot, (int64_t)row[2] * INT32_MAX);
    cr_assert_eq(pagedcl_blocks_append(blocks, seq, INT32_MAX - 1, NULL, NULL), PAGEDCL_SUCCESS);
    cr_assert_eq(pagedcl_blocks_append(blocks, seq, 1, NULL, NULL), PAGEDCL_NEVER_FITS);
    cr_assert_eq(pagedcl_blocks_append(blocks, seq, INT64_MAX, NULL, NULL), PAGEDCL_SIZE_OVERFLOW);
    cr_assert_eq(pagedcl_blocks_needed(blocks, seq, INT64_MAX, &needed), PAGEDCL_SIZE_OVERFLOW);
    cr_assert_eq(pagedcl_blocks_check(blocks), PAGEDCL_SUCCESS, "%s", pagedcl_last_error());
    pagedcl_blocks_destroy(blocks);

    blocks = create(3, 1, 3);
    seq = sequence_of(blocks, 0);
    const int64_t fits = INT64_MAX / 3;
    cr_assert_eq(pagedcl_blocks_needed(blocks, seq, fits, &needed), PAGEDCL_SUCCESS);
    cr_assert_eq(needed, fits * 3);
    cr_assert_eq(pagedcl_blocks_append(blocks, seq, fits, NULL, NULL), PAGEDCL_NEVER_FITS);
    needed = -7;
    cr_assert_eq(pagedcl_blocks_needed(blocks, seq, fits + 1, &needed), PAGEDCL_SIZE_OVERFLOW);
    cr_assert_eq(needed, -7);
    cr_assert_eq(pagedcl_blocks_append(blocks, seq, fits + 1, NULL, NULL), PAGEDCL_SIZE_OVERFLOW);
    cr_assert_eq(stats_of(blocks).free, 3);
    pagedcl_blocks_destroy(blocks);
}

Test(blocks, b72_refcount_is_one_while_held) {
    pagedcl_blocks *blocks = create(4, 16, 1);
    for (int turn = 0; turn < 1000; turn++) {
        pagedcl_seq seq = sequence_of(blocks, 64);
        for (int32_t block = 0; block < 4; block++)
            cr_assert_eq(refcount_of(blocks, block), 1);
        cr_assert_eq(stats_of(blocks).free, 0);
        cr_assert_eq(pagedcl_blocks_seq_free(blocks, seq), PAGEDCL_SUCCESS);
        for (int32_t block = 0; block < 4; block++)
            cr_assert_eq(refcount_of(blocks, block), 0);
        cr_assert_eq(stats_of(blocks).free, 4);
    }
    pagedcl_blocks_destroy(blocks);
}

Test(blocks, refcount_refuses_blocks_outside_the_pool) {
    pagedcl_blocks *blocks = create(4, 16, 1);
    const int32_t bad[] = {-1, 4, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int32_t refcount = -7;
        cr_assert_eq(pagedcl_blocks_refcount(blocks, bad[i], &refcount), PAGEDCL_INVALID_BLOCK);
        cr_assert_eq(refcount, -7);
    }
    cr_assert_eq(pagedcl_blocks_refcount(blocks, 0, NULL), PAGEDCL_INVALID_ARGUMENT);
    cr_assert_eq(pagedcl_blocks_refcount(NULL, 0, &(int32_t){0}), PAGEDCL_INVALID_ARGUMENT);
    pagedcl_blocks_destroy(blocks);
}

Test(blocks, stats) {
    pagedcl_blocks *blocks = create(8, 4, 1);
    pagedcl_seq a = sequence_of(blocks, 10), b = 0, c = 0;
    cr_assert_eq(pagedcl_blocks_fork(blocks, a, &b), PAGEDCL_SUCCESS);
    cr_assert_eq(pagedcl_blocks_share(blocks, a, 4, &c), PAGEDCL_SUCCESS);
    pagedcl_block_copy copy;
    size_t num_copies;
    cr_assert_eq(pagedcl_blocks_append(blocks, b, 1, &copy, &num_copies), PAGEDCL_SUCCESS);
    cr_assert_eq(pagedcl_blocks_append(blocks, c, 28, &copy, &num_copies), PAGEDCL_OUT_OF_BLOCKS);
    cr_assert_eq(pagedcl_blocks_append(blocks, c, 29, &copy, &num_copies), PAGEDCL_NEVER_FITS);
    pagedcl_blocks_stats stats = stats_of(blocks);
    cr_assert_eq(stats.total, 8);
    cr_assert_eq(stats.used, 4); /* three of a, the copy of b */
    cr_assert_eq(stats.shared, 2);
    cr_assert_eq(stats.references, 3 + 3 + 1);
    cr_assert_eq(stats.peak_used, 4);
    cr_assert_eq(stats.num_seqs, 3);
    cr_assert_eq(stats.num_tokens, 10 + 11 + 4);
    cr_assert_eq(stats.copies, 1);
    cr_assert_eq(stats.out_of_blocks, 1);
    cr_assert_eq(pagedcl_blocks_seq_free(blocks, a), PAGEDCL_SUCCESS);
    cr_assert_eq(pagedcl_blocks_seq_free(blocks, b), PAGEDCL_SUCCESS);
    cr_assert_eq(pagedcl_blocks_seq_free(blocks, c), PAGEDCL_SUCCESS);
    stats = stats_of(blocks);
    cr_assert_eq(stats.free, 8);
    cr_assert_eq(stats.shared, 0);
    cr_assert_eq(stats.references, 0);
    cr_assert_eq(stats.peak_used, 4);
    cr_assert_eq(stats.num_seqs, 0);
    cr_assert_eq(stats.num_tokens, 0);

    pagedcl_blocks_stats small = {.struct_size = sizeof(size_t), .total = 77};
    cr_assert_eq(pagedcl_blocks_get_stats(blocks, &small), PAGEDCL_INVALID_ARGUMENT);
    cr_assert_eq(small.total, 77);
    cr_assert_eq(pagedcl_blocks_get_stats(blocks, NULL), PAGEDCL_INVALID_ARGUMENT);
    cr_assert_eq(pagedcl_blocks_get_stats(NULL, &stats), PAGEDCL_INVALID_ARGUMENT);
    pagedcl_blocks_destroy(blocks);
}

/* The check finds every kind of damage. The manager: a of 10 tokens in blocks 0 1 2, b shares 0 1; 3 is free. */
Test(blocks, check_finds_damage) {
    pagedcl_blocks *blocks = create(4, 4, 1);
    pagedcl_seq a = sequence_of(blocks, 10), b = 0;
    cr_assert_eq(pagedcl_blocks_share(blocks, a, 8, &b), PAGEDCL_SUCCESS);
    pcl_sequence *first = &blocks->seqs[0];
    int32_t *const words[] = {&blocks->block[0].refcount, &blocks->block[2].refcount, &blocks->block[3].refcount,
                              &first->table[0],           &blocks->ready[0],          &blocks->block[3].prev,
                              &blocks->block[1].node};
    int64_t *const counters[] = {
        &blocks->stats.free,
        &blocks->stats.used,
        &blocks->stats.shared,
        &blocks->stats.references,
        &blocks->stats.num_seqs,
        &blocks->stats.num_tokens,
        &first->length,
        &blocks->stats.cached,
        &first->num_dropped,
        &blocks->stats.host_used,
        &blocks->lists[PCL_READY].count,
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        for (int32_t damage = -5; damage <= 5; damage++) {
            *words[i] += damage;
            cr_assert_eq(pagedcl_blocks_check(blocks), damage == 0 ? PAGEDCL_SUCCESS : PAGEDCL_INVALID_ARGUMENT,
                         "word %zu, %d", i, (int)damage);
            cr_assert(damage == 0 || strncmp(pagedcl_last_error(), "broken: ", 8) == 0, "%s", pagedcl_last_error());
            *words[i] -= damage;
        }
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
        for (int64_t damage = -1; damage <= 1; damage++) {
            *counters[i] += damage;
            cr_assert_eq(pagedcl_blocks_check(blocks), damage == 0 ? PAGEDCL_SUCCESS : PAGEDCL_INVALID_ARGUMENT,
                         "counter %zu, %d", i, (int)damage);
            *counters[i] -= damage;
        }
    blocks->stats.peak_used = 2;
    cr_assert_eq(pagedcl_blocks_check(blocks), PAGEDCL_INVALID_ARGUMENT);
    blocks->stats.peak_used = 3;
    first->length = -1;
    cr_assert_eq(pagedcl_blocks_check(blocks), PAGEDCL_INVALID_ARGUMENT);
    first->length = 4 * first->capacity + 1;
    cr_assert_eq(pagedcl_blocks_check(blocks), PAGEDCL_INVALID_ARGUMENT);
    first->length = 10;
    for (int32_t room = -1; room <= 4; room++) {
        first->room = room;
        cr_assert_eq(pagedcl_blocks_check(blocks), room == 0 || room == 2 ? PAGEDCL_SUCCESS : PAGEDCL_INVALID_ARGUMENT);
    }
    first->room = 0;

    /* A free block twice in the stack, or in another list. */
    cr_assert_eq(pagedcl_blocks_truncate(blocks, a, 8), PAGEDCL_SUCCESS);
    cr_assert_eq(pagedcl_blocks_check(blocks), PAGEDCL_SUCCESS, "%s", pagedcl_last_error());
    cr_assert_eq(blocks->lists[PCL_READY].count, 2);
    pcl_block *next = &blocks->block[blocks->ready[1]];
    int32_t other = blocks->ready[0];
    blocks->ready[0] = blocks->ready[1];
    cr_assert_eq(pagedcl_blocks_check(blocks), PAGEDCL_INVALID_ARGUMENT);
    cr_assert(strstr(pagedcl_last_error(), "stack"), "%s", pagedcl_last_error());
    blocks->ready[0] = other;
    next->list = PCL_WAITING;
    cr_assert_eq(pagedcl_blocks_check(blocks), PAGEDCL_INVALID_ARGUMENT);
    next->list = PCL_READY;
    cr_assert_eq(pagedcl_blocks_check(blocks), PAGEDCL_SUCCESS, "%s", pagedcl_last_error());
    cr_assert_eq(pagedcl_blocks_check(NULL), PAGEDCL_INVALID_ARGUMENT);
    pagedcl_blocks_destroy(blocks);
}
