/* SPDX-License-Identifier: Apache-2.0 */
#include "support/attn_rig.h"
#include "support/expect.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define F32 PAGEDCL_FLOAT32
#define F16 PAGEDCL_FLOAT16
#define BF16 PAGEDCL_BFLOAT16
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define INTS(...) ((const int32_t[]){__VA_ARGS__})

/* ---- against the reference ---- */

static const attn_case packed[] = {
    {.name = "the default"},
    {"causal", .causal = 1},
    {"the design's example", .head_dim = 64, .group = 2, .seqlens_q = INTS(10, 3, 1), .seqlens_k = INTS(0, 1, 7)},
    {"the design's example, causal", .head_dim = 64, .group = 2, .causal = 1, .seqlens_q = INTS(10, 3, 1),
     .seqlens_k = INTS(0, 1, 7)},
    {"B03: more queries than keys", .num_seqs = 1, .num_kv_heads = 1, .group = 1, .head_dim = 64, .causal = 1,
     .seqlens_q = INTS(5), .seqlens_k = INTS(2)},
    {"B06: rows behind the last sequence", .num_seqs = 2, .head_dim = 16, .group = 1, .seqlens_q = INTS(3, 4),
     .seqlens_k = INTS(3, 4)},
    {"B08: lengths 1, 129, 64", .head_dim = 64, .group = 2, .causal = 1, .seqlens_q = INTS(1, 129, 64),
     .seqlens_k = INTS(1, 129, 64)},
    {"empty sequences between full ones", .num_seqs = 7, .head_dim = 24, .group = 3, .causal = 1,
     .seqlens_q = INTS(0, 4, 0, 0, 2, 3, 0), .seqlens_k = INTS(0, 4, 9, 0, 0, 70, 0)},
    {"head_dim 8, one head", .num_kv_heads = 1, .group = 1, .head_dim = 8, .causal = 1},
    {"head_dim 40, group 5, gaps", .group = 5, .head_dim = 40, .layout = WITH_GAPS},
    {"head_dim 96, group 8, float16", .group = 8, .head_dim = 96, .q_dtype = F16, .kv_dtype = F16, .out_dtype = F16,
     .layout = WITH_GAPS},
    {"head_dim 112, group 16, bfloat16", .num_kv_heads = 1, .group = 16, .head_dim = 112, .causal = 1, .q_dtype = BF16,
     .kv_dtype = BF16, .out_dtype = BF16},
    {"head_dim 256, group 2, float16 in, float32 out", .group = 2, .head_dim = 256, .q_dtype = F16, .kv_dtype = F16},
    {"float32 queries, bfloat16 keys, float16 out", .head_dim = 64, .group = 6, .causal = 1, .kv_dtype = BF16,
     .out_dtype = F16},
    {"without LSE", .without_lse = true, .layout = WITH_GAPS},
    {"scale 0.5, sharp softmax", .scale = 0.5f, .seqlens_q = INTS(3, 2, 4), .seqlens_k = INTS(300, 33, 64)},
};

Test(attn_varlen, packed_keys) {
    attn_check_cases(packed, COUNT(packed));
}

static const attn_case paged[] = {
    {"the default", .path = VARLEN_PAGED},
    {"causal, gaps", .path = VARLEN_PAGED, .causal = 1, .layout = WITH_GAPS},
    {"B09: block size 4, 13 keys", .path = VARLEN_PAGED, .num_seqs = 1, .head_dim = 64, .group = 1, .block_size = 4,
     .seqlens_q = INTS(13), .seqlens_k = INTS(13)},
    {"block size 1, head_dim 16, group 2", .path = VARLEN_PAGED, .block_size = 1, .head_dim = 16, .group = 2,
     .causal = 1},
    {"block size 2, head_dim 24, group 3, float16", .path = VARLEN_PAGED, .block_size = 2, .head_dim = 24, .group = 3,
     .q_dtype = F16, .kv_dtype = F16, .out_dtype = F16},
    {"block size 7, head_dim 64, group 6, bfloat16", .path = VARLEN_PAGED, .block_size = 7, .head_dim = 64, .group = 6,
     .causal = 1, .q_dtype = BF16, .kv_dtype = BF16, .out_dtype = BF16},
    {"block size 32, head_dim 192, float16 pool", .path = VARLEN_PAGED, .block_size = 32, .head_dim = 192, .group = 1,
     .causal = 1, .kv_dtype = F16},
    {"block size 129, head_dim 96", .path = VARLEN_PAGED, .block_size = 129, .head_dim = 96, .group = 1, .causal = 1},
    {"block size 512, float16 queries, float32 pool", .path = VARLEN_PAGED, .block_size = 512, .head_dim = 8,
     .group = 1, .q_dtype = F16, .out_dtype = BF16},
    {"segments of one block", .path = VARLEN_PAGED, .head_dim = 64, .group = 2, .segment_blocks = 1, .num_seqs = 2,
     .seqlens_q = INTS(20, 3), .seqlens_k = INTS(40, 17)},
    {"segments of two blocks, last of three layers", .path = VARLEN_PAGED, .head_dim = 64, .group = 2,
     .segment_blocks = 2, .num_layers = 3, .causal = 1},
    {"room for three blocks a segment, block size 1", .path = VARLEN_PAGED, .head_dim = 64, .group = 2, .block_size = 1,
     .segment_blocks = 3},
    {"empty sequences", .path = VARLEN_PAGED, .num_seqs = 6, .causal = 1, .seqlens_q = INTS(0, 4, 0, 1, 3, 0),
     .seqlens_k = INTS(0, 4, 33, 0, 1, 0)},
    {"without LSE", .path = VARLEN_PAGED, .without_lse = true},
};

Test(attn_varlen, keys_in_the_pool) {
    attn_check_cases(paged, COUNT(paged));
}

static const attn_case appending[] = {
    {"append", .path = VARLEN_PAGED, .append = 1, .causal = 1},
    {"append, not causal, gaps", .path = VARLEN_PAGED, .append = 1, .layout = WITH_GAPS},
    {"append only", .path = VARLEN_PAGED, .append = 1, .causal = 1, .head_dim = 64, .seqlens_q = INTS(33, 1, 16),
     .seqlens_k = INTS(33, 1, 16)},
    {"B57: 5 after 37, 30 after 16, 30 after 17", .path = VARLEN_PAGED, .append = 1, .causal = 1, .head_dim = 64,
     .group = 2, .seqlens_q = INTS(5, 30, 30), .seqlens_k = INTS(42, 46, 47)},
    {"append float32 to a float16 pool", .path = VARLEN_PAGED, .append = 1, .causal = 1, .head_dim = 64, .group = 2,
     .kv_dtype = F16},
    {"append float16 to a bfloat16 pool, block size 7", .path = VARLEN_PAGED, .append = 1, .causal = 1, .block_size = 7,
     .head_dim = 24, .group = 3, .q_dtype = F16, .kv_dtype = BF16, .layout = WITH_GAPS},
    {"append bfloat16, block size 1, segments, second layer", .path = VARLEN_PAGED, .append = 1, .causal = 1,
     .block_size = 1, .head_dim = 16, .group = 2, .q_dtype = BF16, .kv_dtype = BF16, .out_dtype = F32,
     .segment_blocks = 16, .num_layers = 2},
    {"append with empty sequences", .path = VARLEN_PAGED, .append = 1, .causal = 1, .num_seqs = 5,
     .seqlens_q = INTS(0, 3, 0, 1, 0), .seqlens_k = INTS(0, 3, 20, 17, 1)},
    {"B25 for an append of many rows", .path = VARLEN_PAGED, .append = 1, .causal = 1, .num_seqs = 2, .head_dim = 8,
     .group = 1, .seqlens_q = INTS(97, 65), .seqlens_k = INTS(97, 130)},
};

Test(attn_varlen, append_then_attend) {
    attn_check_cases(appending, COUNT(appending));
}

/* B40: every ratio of query heads to KV heads. */
Test(attn_varlen, group_ratios) {
    const int32_t heads[][2] = {{28, 4}, {24, 4}, {40, 8}, {64, 4}, {15, 5}, {71, 1}};
    pagedcl_device *device = fixture_open();
    for (size_t i = 0; i < COUNT(heads); i++) {
        char name[32];
        snprintf(name, sizeof(name), "%d/%d heads", heads[i][0], heads[i][1]);
        attn_case c = {name,
                       .path = VARLEN_PAGED,
                       .num_seqs = 1,
                       .seqlens_q = INTS(9),
                       .seqlens_k = INTS(256),
                       .num_kv_heads = heads[i][1],
                       .group = heads[i][0] / heads[i][1],
                       .head_dim = 128,
                       .causal = 1,
                       .q_dtype = BF16,
                       .kv_dtype = BF16,
                       .out_dtype = BF16};
        attn_problem p = attn_problem_create(&c, i);
        attn_on_every_tier(device, &p, attn_expect_reference);
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/* ---- exact answers ---- */

static void expect_own_value(const attn_problem *p, const attn_result *result, const char *name) {
    for (int h = 0; h < p->num_heads; h++)
        expect_same_bytes(name, "out", result->out + h * p->c.head_dim, p->v + h / p->c.group * p->c.head_dim,
                          (size_t)p->c.head_dim * sizeof(float));
}

/* B02: fewer tokens than sequences; the one key comes back bit for bit, whatever the scale. */
Test(attn_varlen, one_key_among_empty_sequences) {
    pagedcl_device *device = fixture_open();
    for (int i = 0; i < 4; i++) {
        attn_case c = {"B02",
                       .path = i % 2 == 0 ? VARLEN_PACKED : VARLEN_PAGED,
                       .num_seqs = 4,
                       .seqlens_q = INTS(0, 0, 0, 1),
                       .seqlens_k = INTS(0, 0, 0, 1),
                       .num_kv_heads = 7,
                       .group = 3,
                       .head_dim = 120,
                       .scale = i < 2 ? 0 : 9,
                       .q_dtype = BF16,
                       .kv_dtype = BF16,
                       .out_dtype = BF16};
        attn_problem p = attn_problem_create(&c, 1);
        attn_on_every_tier(device, &p, expect_own_value);
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

static void expect_three_empty_rows(const attn_problem *p, const attn_result *result, const char *name) {
    for (int i = 0; i < 3 * 64; i++)
        cr_assert(result->out[i] == 0 && result->lse[i / 64] == -INFINITY, "%s: element %d: %g, lse %g", name, i,
                  (double)result->out[i], (double)result->lse[i / 64]);
    expect_same_bytes(name, "row 3", result->out + 3 * 64, p->v, 64 * sizeof(float));
}

/* B03 exactly: zeros and -infinity above the diagonal's start, then the first value itself. */
Test(attn_varlen, rows_without_keys_are_exactly_zero) {
    attn_case c = {"B03",          .num_seqs = 1, .num_kv_heads = 1,    .group = 1,
                   .head_dim = 64, .causal = 1,   .seqlens_q = INTS(5), .seqlens_k = INTS(2)};
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&c, 1);
    attn_on_every_tier(device, &p, expect_three_empty_rows);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}

static void expect_mean_of_64(const attn_problem *p, const attn_result *result, const char *name) {
    for (int i = 0; i < 64 * p->num_heads * p->c.head_dim; i++)
        cr_assert_float_eq(result->out[i], 31.5, 1e-4, "%s: element %d: %g", name, i, (double)result->out[i]);
}

/* B55: 64 queries, 64 keys and no mask: equal lengths do not make it causal. */
Test(attn_varlen, equal_lengths_are_not_causal) {
    attn_case c = {"B55", .num_seqs = 1, .seqlens_q = INTS(64), .seqlens_k = INTS(64), .head_dim = 64, .group = 1};
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&c, 1);
    for (int i = 0; i < 64 * 2 * 64; i++) {
        p.q[i] = 0;
        p.v[i] = (float)(i / (2 * 64));
    }
    attn_on_every_tier(device, &p, expect_mean_of_64);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}

/* B63: what is no number in one head of one query reaches that row of that head and nothing else. */
Test(attn_varlen, nan_stays_in_its_row) {
    enum { DIM = 80, HEADS = 14, BAD_TOKEN = 2, BAD_HEAD = 3 };
    const float bad[] = {NAN, INFINITY, -INFINITY};
    const attn_case cases[] = {
        {"B63: packed", VARLEN_PACKED, .causal = 1},
        {"B63: paged", VARLEN_PAGED, .causal = 1},
        {"B63: decode", DECODE, .seqlen_q = 2, .causal = 1, .seqlens_k = INTS(17, 600, 40), .num_splits = 3},
    };
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    int num_tiers = fixture_tiers(device, tiers);
    for (size_t i = 0; i < COUNT(cases) * (size_t)num_tiers; i++) {
        pagedcl_tier tier = tiers[i / COUNT(cases)];
        attn_problem p = attn_problem_create(&cases[i % COUNT(cases)], 1);
        int32_t total_q = attn_total_q(&p);
        float *poisoned = &p.q[(BAD_TOKEN * HEADS + BAD_HEAD) * DIM + 7], clean = *poisoned;
        attn_result want = attn_solve(device, tier, &p);
        for (size_t b = 0; b < COUNT(bad); b++) {
            *poisoned = bad[b];
            attn_result got = attn_solve(device, tier, &p);
            *poisoned = clean;
            for (int row = 0; row < total_q * HEADS; row++) {
                if (row == BAD_TOKEN * HEADS + BAD_HEAD)
                    continue;
                char name[128];
                snprintf(name, sizeof(name), "%s, %s, %g, row %d", p.c.name, pagedcl_tier_name(tier), (double)bad[b],
                         row);
                expect_same_bytes(name, "out", got.out + row * DIM, want.out + row * DIM, DIM * sizeof(float));
                expect_same_bytes(name, "lse", got.lse + row, want.lse + row, sizeof(float));
            }
            attn_result_destroy(&got);
        }
        attn_result_destroy(&want);
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/* A key that is not a number reaches the rows that see it and no others: a weight of zero never meets it. */
Test(attn_varlen, nan_key_stays_with_the_rows_that_see_it) {
    enum { DIM = 80, HEADS = 14, ROW = 2 * DIM };
    const attn_case cases[] = {
        {"packed", VARLEN_PACKED, .causal = 1, .num_seqs = 1, .seqlens_q = INTS(40), .seqlens_k = INTS(50)},
        {"paged", VARLEN_PAGED, .causal = 1, .num_seqs = 1, .seqlens_q = INTS(40), .seqlens_k = INTS(50)},
    };
    const int32_t bad_key = 30; /* the first row that sees it is 20 */
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    int num_tiers = fixture_tiers(device, tiers);
    for (size_t i = 0; i < COUNT(cases); i++) {
        attn_problem p = attn_problem_create(&cases[i], 1);
        for (int t = 0; t < num_tiers; t++) {
            attn_result want = attn_solve(device, tiers[t], &p);
            for (int kind = 0; kind < 2; kind++) {
                float *key = (kind == 0 ? p.k : p.v) + bad_key * ROW, good[ROW];
                memcpy(good, key, sizeof(good));
                for (int e = 0; e < ROW; e++)
                    key[e] = NAN;
                attn_result got = attn_solve(device, tiers[t], &p);
                memcpy(key, good, sizeof(good));
                char name[128];
                snprintf(name, sizeof(name), "%s, %s, NaN in %s", p.c.name, pagedcl_tier_name(tiers[t]),
                         kind == 0 ? "K" : "V");
                expect_same_bytes(name, "out", got.out, want.out, 20 * HEADS * DIM * sizeof(float));
                expect_same_bytes(name, "lse", got.lse, want.lse, 20 * HEADS * sizeof(float));
                for (int e = 20 * HEADS * DIM; e < 40 * HEADS * DIM; e++)
                    cr_assert(isnan(got.out[e]), "%s: element %d hides the NaN: %g", name, e, (double)got.out[e]);
                attn_result_destroy(&got);
            }
            attn_result_destroy(&want);
        }
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/* Keys of a sequence all have the value of its first. */
static void expect_first_value(const attn_problem *p, const attn_result *result, const char *name) {
    int64_t count = (int64_t)attn_total_q(p) * p->c.head_dim;
    for (int64_t i = 0; i < count; i++)
        cr_assert(fabsf(result->out[i] - p->v[i]) <= 0.2f, "%s: element %lld: got %g, want %g", name, (long long)i,
                  (double)result->out[i], (double)p->v[i]);
}

/* B64: more sequences than any device has work-groups in a row. Sequence b's values are all b mod 251. */
Test(attn_varlen, eighty_thousand_sequences) {
    enum { SEQS = 80000, TOKENS = 16, DIM = 8 };
    int32_t *lengths = fixture_alloc(SEQS * sizeof(int32_t));
    for (int i = 0; i < SEQS; i++)
        lengths[i] = TOKENS;
    attn_case c = {"B64",
                   .num_seqs = SEQS,
                   .seqlens_q = lengths,
                   .seqlens_k = lengths,
                   .num_kv_heads = 1,
                   .group = 1,
                   .head_dim = DIM,
                   .causal = 1,
                   .q_dtype = F16,
                   .kv_dtype = F16,
                   .out_dtype = F16,
                   .without_lse = true};
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&c, 1);
    for (int64_t i = 0; i < (int64_t)SEQS * TOKENS * DIM; i++)
        p.v[i] = (float)(i / (TOKENS * DIM) % 251);
    attn_on_every_tier(device, &p, expect_first_value);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
    free(lengths);
}
