/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences in every order of small families, and at random, against the model after every call. */
#include "support/random.h"
#include "support/sequence_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every order in which four members of every small family share, write and end. */
static void next_permutation(int *order) {
    int i = 2, j = 3;
    while (i >= 0 && order[i] > order[i + 1])
        i--;
    if (i < 0)
        return;
    while (order[j] < order[i])
        j--;
    int swap = order[i];
    order[i] = order[j];
    order[j] = swap;
    for (int low = i + 1, high = 3; low < high; low++, high--) {
        swap = order[low];
        order[low] = order[high];
        order[high] = swap;
    }
}

Test(sequences_walk, small_families_in_every_order, .timeout = 300) {
    enum { BLOCK = 2, ORDERS = 24 };
    const int64_t shared[] = {1, BLOCK, BLOCK + 1}; /* of BLOCK + 1 tokens */
    model m;
    model_init(&m, 12, BLOCK, 1);
    for (int tree = 0; tree < 2 * 3 * 27; tree++) {
        const int parent[] = {-1, 0, tree % 2, tree / 2 % 3};
        const int64_t at[] = {0, shared[tree / 6 % 3], shared[tree / 18 % 3], shared[tree / 54]};
        int writes[] = {0, 1, 2, 3};
        for (int w = 0; w < ORDERS; w++, next_permutation(writes)) {
            int ends[] = {0, 1, 2, 3};
            for (int e = 0; e < ORDERS; e++, next_permutation(ends)) {
                model_create(&m, 0);
                model_append(&m, 0, BLOCK + 1);
                for (int i = 1; i < 4; i++) {
                    int64_t most = m.seqs[parent[i]].length;
                    model_share(&m, parent[i], at[i] < most ? at[i] : most, i);
                }
                for (int i = 0; i < 4; i++) {
                    CHECK(model_append(&m, writes[i], 1), "tree %d: %s", tree, pagedcl_last_error());
                    model_check(&m);
                }
                for (int i = 0; i < 4; i++) {
                    model_free(&m, ends[i]);
                    model_check(&m);
                    /* Another one overwrites what was freed. */
                    model_create(&m, 4);
                    CHECK(model_append(&m, 4, model_stats(&m).free * BLOCK), "tree %d", tree);
                    model_check(&m);
                    model_free(&m, 4);
                }
                CHECK(model_stats(&m).used == 0, "tree %d leaves blocks behind", tree);
            }
        }
    }
    model_destroy(&m);
}

/* One random call on the model, whatever it may give. */
static void random_step(model *m, random_state *random) {
    int i = random_below(random, MAX_SEQS), j = random_below(random, MAX_SEQS);
    model_seq *s = &m->seqs[i];
    if (s->handle == 0) {
        if (i == j || m->seqs[j].handle == 0)
            model_create(m, i);
        else
            model_share(m, j, random_below(random, (int32_t)m->seqs[j].length + 1), i);
        return;
    }
    switch (random_below(random, 10)) {
    case 0:
        model_free(m, i);
        break;
    case 1:
        model_truncate(m, i, random_below(random, (int32_t)s->length + 1));
        break;
    case 2:
        if (i != j && m->seqs[j].handle == 0)
            model_share(m, i, s->length, j);
        break;
    case 3:
        model_append(m, i, random_below(random, 4 * m->block_size));
        break;
    default:
        model_append(m, i, random_below(random, 3));
        break;
    }
}

Test(sequences_walk, random_walk, .timeout = 300) {
    enum { STEPS = 40000 };
    /* Pools that run out all the time, and pools that seldom do. */
    static const struct {
        int32_t num_blocks, block_size, num_groups;
    } pools[] = {{1, 1, 1},   {5, 1, 1},  {40, 1, 1}, {4, 2, 1},  {24, 2, 1}, {3, 16, 1},
                 {12, 16, 1}, {10, 1, 3}, {9, 2, 3},  {40, 2, 3}, {9, 16, 3}, {24, 16, 3}};
    const char *chosen = getenv("TEST_SEED");
    uint64_t seed = chosen != NULL ? strtoull(chosen, NULL, 0) : 2026;
    printf("random_walk: TEST_SEED=%" PRIu64 "\n", seed);
    for (size_t p = 0; p < sizeof pools / sizeof *pools; p++) {
        model m;
        random_state random = {seed + p};
        model_init(&m, pools[p].num_blocks, pools[p].block_size, pools[p].num_groups);
        size_t length = strlen(m.name);
        for (int step = 0; step < STEPS; step++) {
            snprintf(m.name + length, sizeof m.name - length, ", seed %" PRIu64 ", step %d", seed, step);
            random_step(&m, &random);
            model_check(&m);
        }
        pagedcl_blocks_stats stats = model_stats(&m);
        cr_assert_gt(stats.out_of_blocks, 0, "%s: the walk never ran out of blocks", m.name);
        cr_assert(stats.copies > 0 || m.block_size == 1 || m.num_blocks < 2 * m.num_groups, "%s: the walk never copied",
                  m.name);
        for (int i = 0; i < MAX_SEQS; i++)
            if (m.seqs[i].handle != 0)
                model_free(&m, i);
        model_check(&m);
        cr_assert_eq(model_stats(&m).used, 0);
        model_destroy(&m);
    }
}
