/* SPDX-License-Identifier: Apache-2.0 */
/* Decode over prefixes that sequences share: the same bits as without sharing, from fewer work items. */
#include "support/attn_rig.h"
#include "support/expect.h"

#include "plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define F16 PAGEDCL_FLOAT16
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define INTS(...) ((const int32_t[]){__VA_ARGS__})

static void expect_same_result(const char *name, const attn_problem *p, const attn_result *got,
                               const attn_result *want) {
    size_t rows = (size_t)attn_total_q(p) * (size_t)p->num_heads;
    expect_same_bytes(name, "out", got->out, want->out, rows * (size_t)p->c.head_dim_v * sizeof(float));
    expect_same_bytes(name, "lse", got->lse, want->lse, rows * sizeof(float));
}

/* Solves the problem with a way of sharing; *num_work: work items of the plan. */
static attn_result solve(pagedcl_device *device, pagedcl_tier tier, attn_problem *p, pagedcl_sharing share,
                         int64_t *num_work) {
    p->c.share_prefix = share;
    attn_rig rig = attn_rig_open(device, tier, p);
    expect_ok(attn_rig_plan(&rig, NULL));
    *num_work = rig.plan->batch.num_work;
    attn_rig_run(&rig, NULL, 0, NULL, NULL);
    attn_result result = attn_rig_read(&rig);
    attn_rig_close(&rig);
    return result;
}

/*
 * Work items alone: one for each of a sequence's splits. A split of 512 keys counts as shared when it ends before the
 * last max(queries, new tokens) keys, and lies in blocks that are equal as a whole.
 */
static const struct {
    attn_case c;
    int64_t alone, shared;
} cases[] = {
    /* Splits 3, 2, 3; the first two of all three are equal. */
    {{.name = "group 3", .path = DECODE, .group = 3, .shared = 1024, .seqlens_k = INTS(1100, 1025, 1500)}, 9, 5},
    {{.name = "group 1, append, a sequence alone",
      .path = DECODE,
      .num_seqs = 4,
      .group = 1,
      .append = 1,
      .shared = 600,
      .seqlens_k = INTS(700, 17, 601, 1100)},
     8,
     6},
    /* With seven heads two sequences fill a tile of 16, where it has so many. */
    {{.name = "group 7, five sequences, float16",
      .path = DECODE,
      .num_seqs = 5,
      .shared = 512,
      .q_dtype = F16,
      .kv_dtype = F16,
      .seqlens_k = INTS(513, 520, 600, 700, 1024)},
     10,
     8},
    /* The prefix ends inside the second split, and block 15 inside the first. */
    {{.name = "block size 33",
      .path = DECODE,
      .group = 2,
      .block_size = 33,
      .shared = 1000,
      .append = 1,
      .seqlens_k = INTS(1030, 1031, 1100)},
     9,
     7},
    {{.name = "a window cuts the first split",
      .path = DECODE,
      .group = 2,
      .shared = 1536,
      .window = INTS(1200, 0),
      .released = true,
      .seqlens_k = INTS(1600, 1700, 1650)},
     12,
     8},
    {{.name = "features, 3 queries",
      .path = DECODE,
      .group = 2,
      .seqlen_q = 3,
      .append = 3,
      .shared = 520,
      .softcap = 5,
      .alibi = 2,
      .sinks = true,
      .rotary_dim = 16,
      .tree = true,
      .block_size = 4,
      .layout = WITH_GAPS,
      .seqlens_k = INTS(530, 700, 540)},
     6,
     5},
    {{.name = "V in K, 2 queries, none new",
      .path = DECODE,
      .group = 4,
      .seqlen_q = 2,
      .causal = 1,
      .head_dim = 40,
      .head_dim_v = 24,
      .v_in_k = true,
      .shared = 514,
      .block_size = 2,
      .seqlens_k = INTS(516, 600, 515)},
     6,
     5},
};

Test(attn_share, sharing_changes_no_bit) {
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    int num_tiers = fixture_tiers(device, tiers);
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int t = 0; t < num_tiers; t++) {
            attn_problem p = attn_problem_create(&cases[i].c, i + 1);
            int64_t alone = 0, shared = 0, automatic = 0;
            attn_result want = solve(device, tiers[t], &p, PAGEDCL_SHARE_OFF, &alone);
            attn_result got = solve(device, tiers[t], &p, PAGEDCL_SHARE_ALL, &shared);
            attn_result by_default = solve(device, tiers[t], &p, PAGEDCL_SHARE_AUTO, &automatic);
            char name[128];
            snprintf(name, sizeof(name), "%s, %s", p.c.name, pagedcl_tier_name(tiers[t]));
            attn_expect_reference(&p, &got, name);
            expect_same_result(name, &p, &got, &want);
            expect_same_result(name, &p, &by_default, &want);
            /* Tiles of the portable tier may hold fewer rows. */
            bool is_cpu = tiers[t] == PAGEDCL_TIER_CPU;
            cr_assert(is_cpu ? alone == cases[i].alone : alone >= cases[i].alone, "%s: %d work items without sharing",
                      name, (int)alone);
            cr_assert(is_cpu ? shared == cases[i].shared : shared >= cases[i].shared, "%s: %d work items", name,
                      (int)shared);
            cr_assert(automatic >= shared && automatic <= alone, "%s: %d work items by default", name, (int)automatic);
            attn_result_destroy(&by_default);
            attn_result_destroy(&got);
            attn_result_destroy(&want);
            attn_problem_destroy(&p);
        }
    pagedcl_device_destroy(device);
}

/* A sequence that shares has the bits that it has alone. */
Test(attn_share, company_changes_no_bit) {
    const attn_case c = {.name = "company",
                         .path = DECODE,
                         .num_seqs = 4,
                         .group = 2,
                         .shared = 1024,
                         .seqlens_k = INTS(1030, 1100, 600, 1536)};
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    int num_tiers = fixture_tiers(device, tiers);
    attn_problem batch = attn_problem_create(&c, 1);
    for (int t = 0; t < num_tiers; t++) {
        int64_t num_work = 0;
        attn_result all = solve(device, tiers[t], &batch, PAGEDCL_SHARE_ALL, &num_work);
        /* 3 + 3 + 2 + 3, of which the first split of four and the second of three are one each. */
        cr_assert(num_work == 11 - 3 - 2 || (tiers[t] != PAGEDCL_TIER_CPU && num_work < 11), "%d", (int)num_work);
        for (int32_t b = 0; b < batch.c.num_seqs; b++) {
            attn_problem alone = attn_problem_part(&batch, b, 0, 1, batch.cu_seqlens_k[b + 1] - batch.cu_seqlens_k[b]);
            attn_result got = solve(device, tiers[t], &alone, PAGEDCL_SHARE_AUTO, &num_work);
            int64_t row = (int64_t)b * batch.num_heads;
            attn_result want = {all.out + row * batch.c.head_dim, all.lse + row};
            expect_same_result("alone", &alone, &got, &want);
            attn_result_destroy(&got);
            attn_problem_destroy(&alone);
        }
        attn_result_destroy(&all);
    }
    attn_problem_destroy(&batch);
    pagedcl_device_destroy(device);
}

/* The sequences of a problem whose lengths are equal, in the order of `order`. */
static void reorder(attn_problem *p, const int32_t *order) {
    size_t q = (size_t)p->num_heads * (size_t)p->c.head_dim, keys = (size_t)p->cu_seqlens_k[1];
    size_t k = keys * (size_t)p->c.num_kv_heads * (size_t)p->c.head_dim, table = (size_t)p->block_table_stride;
    struct {
        void *array;
        size_t bytes; /* of a sequence */
    } arrays[] = {{p->q, q * sizeof(float)},
                  {p->k, k * sizeof(float)},
                  {p->v, k * sizeof(float)},
                  {p->block_table, table * sizeof(int32_t)}};
    for (size_t i = 0; i < COUNT(arrays); i++) {
        char *from = fixture_alloc((size_t)p->c.num_seqs * arrays[i].bytes), *to = arrays[i].array;
        memcpy(from, to, (size_t)p->c.num_seqs * arrays[i].bytes);
        for (int32_t b = 0; b < p->c.num_seqs; b++)
            memcpy(to + (size_t)b * arrays[i].bytes, from + (size_t)order[b] * arrays[i].bytes, arrays[i].bytes);
        free(from);
    }
}

/* Whoever shares a work item with whom: five sequences in tiles that hold fewer. */
Test(attn_share, any_order_gives_the_same_bits) {
    const attn_case c = {.name = "order",
                         .path = DECODE,
                         .num_seqs = 5,
                         .group = 5,
                         .shared = 600,
                         .seqlens_k = INTS(700, 700, 700, 700, 700)};
    const int32_t orders[][5] = {{4, 3, 2, 1, 0}, {2, 0, 4, 1, 3}, {1, 2, 3, 4, 0}};
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    int num_tiers = fixture_tiers(device, tiers);
    for (int t = 0; t < num_tiers; t++) {
        attn_problem p = attn_problem_create(&c, 1);
        int64_t num_work = 0;
        attn_result want = solve(device, tiers[t], &p, PAGEDCL_SHARE_ALL, &num_work);
        for (size_t i = 0; i < COUNT(orders); i++) {
            attn_problem other = attn_problem_create(&c, 1);
            reorder(&other, orders[i]);
            attn_result got = solve(device, tiers[t], &other, PAGEDCL_SHARE_ALL, &num_work);
            for (int32_t b = 0; b < 5; b++) {
                int64_t from = (int64_t)b * p.num_heads, to = (int64_t)orders[i][b] * p.num_heads;
                expect_same_bytes(pagedcl_tier_name(tiers[t]), "out", got.out + from * c.head_dim,
                                  want.out + to * c.head_dim, (size_t)(p.num_heads * c.head_dim) * sizeof(float));
                expect_same_bytes(pagedcl_tier_name(tiers[t]), "lse", got.lse + from, want.lse + to,
                                  (size_t)p.num_heads * sizeof(float));
            }
            attn_result_destroy(&got);
            attn_problem_destroy(&other);
        }
        attn_result_destroy(&want);
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/* B63: a NaN in one sequence's query stays there, though others are in its tile. */
Test(attn_share, nan_stays_in_its_sequence) {
    const attn_case c = {.name = "NaN", .path = DECODE, .group = 2, .shared = 512, .seqlens_k = INTS(600, 513, 700)};
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    int num_tiers = fixture_tiers(device, tiers);
    for (int t = 0; t < num_tiers; t++) {
        attn_problem p = attn_problem_create(&c, 1);
        int64_t num_work = 0, row = (int64_t)p.num_heads * p.c.head_dim;
        attn_result want = solve(device, tiers[t], &p, PAGEDCL_SHARE_ALL, &num_work);
        p.q[row] = (float)NAN;
        attn_result got = solve(device, tiers[t], &p, PAGEDCL_SHARE_ALL, &num_work);
        cr_assert(isnan(got.out[row]));
        for (int b = 0; b < 3; b += 2)
            expect_same_bytes("the others", "out", got.out + b * row, want.out + b * row, (size_t)row * sizeof(float));
        attn_result_destroy(&got);
        attn_result_destroy(&want);
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/* A plan that shares stands when the next call fails, and is forgotten when it succeeds. */
Test(attn_share, a_plan_keeps_what_it_shares) {
    const attn_case c = {.name = "kept",
                         .path = DECODE,
                         .group = 2,
                         .append = 1,
                         .shared = 512,
                         .seqlens_k = INTS(600, 513, 700),
                         .share_prefix = PAGEDCL_SHARE_ALL};
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&c, 1);
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, &p);
    expect_ok(attn_rig_plan(&rig, NULL));
    int64_t shared = rig.plan->batch.num_work;
    cr_assert_lt(shared, 6);

    pagedcl_decode_batch batch = PAGEDCL_DECODE_BATCH_INIT;
    batch.num_seqs = 3;
    batch.seqlen_q = batch.seqlen_new = 1;
    batch.cache_seqlens = p.cache_seqlens;
    batch.block_table = p.block_table;
    batch.block_table_stride = p.block_table_stride;
    batch.share_prefix = (pagedcl_sharing)3;
    expect_refused(pagedcl_plan_decode(rig.plan, NULL, &batch), PAGEDCL_INVALID_ARGUMENT, "share_prefix");
    batch.share_prefix = PAGEDCL_SHARE_ALL;
    batch.num_splits = 2;
    expect_refused(pagedcl_plan_decode(rig.plan, NULL, &batch), PAGEDCL_INVALID_ARGUMENT, "num_splits");
    batch.num_splits = 0;
    int32_t entry = p.block_table[2];
    p.block_table[2] = p.num_blocks;
    expect_refused(pagedcl_plan_decode(rig.plan, NULL, &batch), PAGEDCL_INVALID_BLOCK, "sequence 0");
    p.block_table[2] = entry;
    attn_rig_run(&rig, NULL, 0, NULL, NULL);
    attn_result result = attn_rig_read(&rig);
    attn_expect_reference(&p, &result, rig.name);

    batch.share_prefix = PAGEDCL_SHARE_OFF;
    expect_ok(pagedcl_plan_decode(rig.plan, NULL, &batch));
    cr_assert_eq(rig.plan->batch.num_work, 6);
    attn_rig_run(&rig, NULL, 0, NULL, NULL);
    attn_result again = attn_rig_read(&rig);
    expect_same_result(rig.name, &p, &again, &result);
    attn_result_destroy(&again);
    attn_result_destroy(&result);
    attn_rig_close(&rig);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}
