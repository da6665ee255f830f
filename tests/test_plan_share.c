/* SPDX-License-Identifier: Apache-2.0 */
/* Finding splits that several sequences have in common, against a search by pairs. */
#include "plan_share.h"

#include "support/expect.h"
#include "support/random.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_SEQS = 40, MAX_SPLITS = 6, MAX_STRIDE = 64 };

typedef struct scene {
    pcl_share share;
    pcl_share_batch batch;
    int32_t table[MAX_SEQS * MAX_STRIDE];
    pcl_share_range ranges[MAX_SEQS];
} scene;

/* Tables that agree in their first blocks, some of them for longer. */
static void draw(scene *s, random_state *state) {
    static const int32_t block_sizes[] = {1, 3, 4, 7, 16, 40};
    s->batch = (pcl_share_batch){.table = s->table, .split_keys = 8};
    s->batch.block_size = block_sizes[random_below(state, 6)];
    s->batch.num_seqs = random_below(state, MAX_SEQS + 1);
    s->batch.stride = MAX_SPLITS * 8 / s->batch.block_size + 1;
    s->batch.most_members = random_below(state, 9);
    s->batch.num_work = 0;
    for (int32_t seq = 0; seq < s->batch.num_seqs; seq++) {
        int32_t *row = s->table + seq * s->batch.stride;
        for (int32_t i = 0; i < s->batch.stride; i++)
            row[i] = random_below(state, 12) == 0 ? random_below(state, 3) : i;
        int32_t end = random_below(state, MAX_SPLITS + 1), begin = end > 0 ? random_below(state, 3) : 0;
        s->ranges[seq] = begin < end ? (pcl_share_range){begin, end} : (pcl_share_range){0};
        s->batch.num_work += end + 1;
    }
}

static void find(scene *s) {
    expect_ok(pcl_share_begin(&s->share, s->batch.num_seqs));
    cr_assert_eq(s->share.num_items, 0);
    if (s->batch.num_seqs > 0)
        memcpy(s->share.ranges, s->ranges, (size_t)s->batch.num_seqs * sizeof(s->ranges[0]));
    expect_ok(pcl_share_find(&s->share, &s->batch));
}

static bool in_range(const scene *s, int32_t seq, int64_t split) {
    return split >= s->ranges[seq].begin && split < s->ranges[seq].end;
}

/* Position by position. */
static bool is_equal(const scene *s, int32_t a, int32_t b, int64_t split) {
    for (int64_t position = split * 8; position < split * 8 + 8; position++) {
        int64_t entry = position / s->batch.block_size;
        if (s->table[a * s->batch.stride + entry] != s->table[b * s->batch.stride + entry])
            return false;
    }
    return true;
}

/* Every item has equal splits, every split is in one item at most; returns the work items that are left. */
static int64_t check_items(const scene *s) {
    static int32_t times[MAX_SEQS][MAX_SPLITS];
    memset(times, 0, sizeof(times));
    int64_t members = 0;
    for (int64_t i = 0; i < s->share.num_items; i++) {
        const pcl_share_item *item = &s->share.items[i];
        const int32_t *seqs = s->share.members + item->first;
        cr_assert_eq(item->first, members, "members lie one item behind the other");
        cr_assert(item->count >= 2 && item->count <= s->batch.most_members, "%d members", item->count);
        members += item->count;
        for (int32_t m = 0; m < item->count; m++) {
            cr_assert(in_range(s, seqs[m], item->split) && is_equal(s, seqs[0], seqs[m], item->split));
            times[seqs[m]][item->split]++;
        }
    }
    cr_assert_eq(members, s->share.num_members);
    for (int32_t seq = 0; seq < s->batch.num_seqs; seq++)
        for (int64_t split = 0; split < MAX_SPLITS; split++) {
            cr_assert(times[seq][split] <= 1);
            cr_assert_eq(pcl_share_has(&s->share, seq, split), times[seq][split] == 1);
        }
    return s->batch.num_work - s->share.num_members + s->share.num_items;
}

/* What is left if sequences with equal splits go together as far as a tile holds them. */
static int64_t least_work(const scene *s) {
    int64_t work = s->batch.num_work;
    for (int64_t split = 0; split < MAX_SPLITS; split++)
        for (int32_t seq = 0; seq < s->batch.num_seqs; seq++) {
            int64_t equal = 0;
            bool is_first = in_range(s, seq, split);
            for (int32_t other = 0; other < s->batch.num_seqs && is_first; other++)
                if (in_range(s, other, split) && is_equal(s, seq, other, split)) {
                    is_first = other >= seq;
                    equal++;
                }
            int64_t most = s->batch.most_members;
            if (is_first && most > 1)
                work -= equal - (equal + most - 1) / most;
        }
    return work;
}

Test(plan_share, finds_what_a_search_by_pairs_finds) {
    scene *s = calloc(1, sizeof *s);
    cr_assert_not_null(s);
    random_state state = {1};
    int64_t items = 0;
    for (int turn = 0; turn < 2000; turn++) {
        draw(s, &state);
        find(s);
        cr_assert_eq(check_items(s), least_work(s), "turn %d", turn);
        items += s->share.num_items;
    }
    cr_assert_gt(items, 10000);
    pcl_share_release(&s->share);
    free(s);
}

/* As much work is left as was asked for, unless there was less; and no more sharing is given up than that takes. */
Test(plan_share, leaves_work_enough) {
    scene *s = calloc(1, sizeof *s);
    cr_assert_not_null(s);
    random_state state = {2};
    for (int turn = 0; turn < 500; turn++) {
        draw(s, &state);
        for (s->batch.least_work = 0; s->batch.least_work <= s->batch.num_work + 1; s->batch.least_work += 7) {
            find(s);
            int64_t work = check_items(s);
            cr_assert(work >= s->batch.least_work || s->share.num_items == 0);
            cr_assert(s->share.num_items > 0 || s->batch.least_work > least_work(s) ||
                      least_work(s) == s->batch.num_work);
        }
    }
    pcl_share_release(&s->share);
    free(s);
}

/* 16 sequences of 8,192 tokens in common, in tiles of 16 rows. */
Test(plan_share, divides_evenly) {
    const int32_t most[] = {16, 8, 7, 2}, counts[] = {1, 2, 3, 8};
    int32_t table[16 * 32];
    for (int i = 0; i < 16 * 32; i++)
        table[i] = i % 32;
    pcl_share share = {0};
    for (int i = 0; i < 4; i++) {
        expect_ok(pcl_share_begin(&share, 16));
        for (int seq = 0; seq < 16; seq++)
            share.ranges[seq] = (pcl_share_range){0, 16};
        pcl_share_batch batch = {table, 32, 16, 256, 512, most[i], INT64_C(16) * 17, 0};
        expect_ok(pcl_share_find(&share, &batch));
        cr_assert_eq(share.num_items, (int64_t)16 * counts[i]);
        for (int64_t item = 0; item < share.num_items; item++)
            cr_assert(share.items[item].count == 16 / counts[i] || share.items[item].count == 16 / counts[i] + 1);
    }
    pcl_share_release(&share);
}
