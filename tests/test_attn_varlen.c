/* SPDX-License-Identifier: Apache-2.0 */
#include "support/attn_rig.h"
#include "support/elements.h"
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

/* ---- operators ---- */

static pagedcl_attn_desc good_desc(void) {
    pagedcl_attn_desc desc = PAGEDCL_ATTN_DESC_INIT;
    desc.num_heads = 4;
    desc.num_kv_heads = 2;
    desc.head_dim = 64;
    return desc;
}

Test(attn_varlen, description_comes_back_with_its_defaults) {
    pagedcl_device *device = fixture_open();
    pagedcl_attn_desc desc = good_desc(), got = PAGEDCL_ATTN_DESC_INIT;
    pagedcl_attn *attn;
    expect_ok(pagedcl_attn_create(device, &desc, &attn));
    expect_ok(pagedcl_attn_get_desc(attn, &got));
    cr_assert(got.kv_dtype == F16 && got.q_dtype == F16 && got.out_dtype == F16);
    cr_assert_float_eq(got.softmax_scale, 0.125, 1e-7);
    pagedcl_device_info info = PAGEDCL_DEVICE_INFO_INIT;
    expect_ok(pagedcl_device_get_info(device, &info));
    cr_assert_eq(got.tier, info.tier);
    pagedcl_attn_destroy(attn);

    desc.kv_dtype = BF16;
    expect_ok(pagedcl_attn_create(device, &desc, &attn));
    expect_ok(pagedcl_attn_get_desc(attn, &got));
    cr_assert(got.kv_dtype == BF16 && got.q_dtype == BF16 && got.out_dtype == BF16);
    pagedcl_attn_destroy(attn);

    desc.kv_dtype = PAGEDCL_DTYPE_DEFAULT;
    desc.q_dtype = F32;
    expect_ok(pagedcl_attn_create(device, &desc, &attn));
    expect_ok(pagedcl_attn_get_desc(attn, &got));
    cr_assert(got.kv_dtype == F32 && got.q_dtype == F32 && got.out_dtype == F32);
    pagedcl_attn_destroy(attn);
    pagedcl_attn_destroy(NULL);
    pagedcl_plan_destroy(NULL);
    pagedcl_device_destroy(device);
}

/* B42 and the kind around it. */
Test(attn_varlen, impossible_operators_are_refused) {
    pagedcl_device *device = fixture_open();
    pagedcl_attn_desc desc = good_desc();
    pagedcl_attn *attn = NULL;
    const int32_t heads[][2] = {{33, 2}, {3, 2}, {4, 0}, {0, 2}, {-4, 2}, {4, -2}, {2, 4}};
    for (size_t i = 0; i < COUNT(heads); i++) {
        desc.num_heads = heads[i][0];
        desc.num_kv_heads = heads[i][1];
        expect_refused(pagedcl_attn_create(device, &desc, &attn), PAGEDCL_INVALID_HEADS, "heads");
    }
    const int32_t head_dims[] = {0, 577, -8};
    for (size_t i = 0; i < COUNT(head_dims); i++) {
        desc = good_desc();
        desc.head_dim = head_dims[i];
        expect_refused(pagedcl_attn_create(device, &desc, &attn), PAGEDCL_UNSUPPORTED, "head_dim");
    }
    desc = good_desc();
    desc.softmax_scale = NAN;
    expect_refused(pagedcl_attn_create(device, &desc, &attn), PAGEDCL_INVALID_ARGUMENT, "softmax_scale");
    desc = good_desc();
    desc.causal = 2;
    expect_refused(pagedcl_attn_create(device, &desc, &attn), PAGEDCL_INVALID_ARGUMENT, "causal");
    desc = good_desc();
    desc.out_dtype = (pagedcl_dtype)9;
    expect_refused(pagedcl_attn_create(device, &desc, &attn), PAGEDCL_UNSUPPORTED, "out_dtype");
    desc = good_desc();
    desc.tier = (pagedcl_tier)99;
    expect_refused(pagedcl_attn_create(device, &desc, &attn), PAGEDCL_INVALID_ARGUMENT, "tier");
    desc = good_desc();
    desc.struct_size = 8;
    expect_refused(pagedcl_attn_create(device, &desc, &attn), PAGEDCL_INVALID_ARGUMENT, "struct_size");
    cr_assert_null(attn);

    /* With a cache, its numbers hold. */
    pagedcl_cache_desc pool = PAGEDCL_CACHE_DESC_INIT;
    pool.num_blocks = 2;
    pool.block_size = 16;
    pool.num_kv_heads = 2;
    pool.head_dim = 64;
    pagedcl_cache *cache;
    expect_ok(pagedcl_cache_create(device, &pool, &cache));
    desc = good_desc();
    desc.cache = cache;
    desc.head_dim = 80;
    expect_refused(pagedcl_attn_create(device, &desc, &attn), PAGEDCL_INVALID_ARGUMENT,
                   "head_dim is 80, the cache's is 64");
    desc.head_dim = 0;
    desc.num_kv_heads = 4;
    expect_refused(pagedcl_attn_create(device, &desc, &attn), PAGEDCL_INVALID_ARGUMENT,
                   "num_kv_heads is 4, the cache's is 2");
    desc.num_kv_heads = 0;
    desc.kv_dtype = F32;
    expect_refused(pagedcl_attn_create(device, &desc, &attn), PAGEDCL_INVALID_ARGUMENT, "kv_dtype is");
    cr_assert_null(attn);
    pagedcl_cache_destroy(cache);
    pagedcl_device_destroy(device);
}

/* ---- batches ---- */

/* A paged rig whose batch tests may spoil. */
static attn_problem batch_problem(void) {
    attn_case c = {"batch",
                   .path = VARLEN_PAGED,
                   .causal = 1,
                   .head_dim = 64,
                   .group = 2,
                   .seqlens_q = INTS(4, 1, 2),
                   .seqlens_k = INTS(17, 1, 34)};
    return attn_problem_create(&c, 1);
}

static pagedcl_varlen_batch batch_of(const attn_problem *p) {
    pagedcl_varlen_batch batch = PAGEDCL_VARLEN_BATCH_INIT;
    batch.num_seqs = p->c.num_seqs;
    batch.cu_seqlens_q = p->cu_seqlens_q;
    batch.cache_seqlens = p->cache_seqlens;
    batch.block_table = p->block_table;
    batch.block_table_stride = p->block_table_stride;
    return batch;
}

/* B23 and the kind around it. The batch planned before stands. */
Test(attn_varlen, bad_batches_are_refused_and_change_nothing) {
    pagedcl_device *device = fixture_open();
    attn_problem p = batch_problem();
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, &p);
    pagedcl_attn_args args = attn_rig_args(&rig);
    expect_refused(pagedcl_attn_run(rig.attn, NULL, rig.plan, &args, 0, NULL, NULL), PAGEDCL_INVALID_ARGUMENT, "plan");
    expect_ok(attn_rig_plan(&rig, NULL));
    int32_t stride = p.block_table_stride, *table = p.block_table;
    const struct {
        int32_t *value;
        int32_t bad;
        pagedcl_status status;
        const char *words;
    } cases[] = {
        {&table[1], p.num_blocks, PAGEDCL_INVALID_BLOCK, "sequence 0"},
        {&table[1], -5, PAGEDCL_INVALID_BLOCK, "sequence 0"},
        {&table[1], -1, PAGEDCL_INVALID_BLOCK, "sequence 0"},
        {&table[2 * stride + 2], INT32_MAX, PAGEDCL_INVALID_BLOCK, "sequence 2"},
        {&p.cache_seqlens[1], -1, PAGEDCL_INVALID_LENGTH, "sequence 1"},
        {&p.cache_seqlens[1], INT32_MIN, PAGEDCL_INVALID_LENGTH, "sequence 1"},
        {&p.cache_seqlens[0], stride * 16 + 1, PAGEDCL_CAPACITY, "sequence 0"},
        {&p.cache_seqlens[2], INT32_MAX, PAGEDCL_CAPACITY, "sequence 2"},
        {&p.cu_seqlens_q[0], 1, PAGEDCL_INVALID_LENGTH, "cu_seqlens_q"},
        {&p.cu_seqlens_q[2], 3, PAGEDCL_INVALID_LENGTH, "cu_seqlens_q"},
        {&p.cu_seqlens_q[3], -1, PAGEDCL_INVALID_LENGTH, "cu_seqlens_q"},
    };
    pagedcl_varlen_batch batch = batch_of(&p);
    for (size_t i = 0; i < COUNT(cases); i++) {
        int32_t good = *cases[i].value;
        *cases[i].value = cases[i].bad;
        expect_refused(pagedcl_plan_varlen(rig.plan, NULL, &batch), cases[i].status, cases[i].words);
        *cases[i].value = good;
    }
    batch.num_seqs = -1;
    expect_refused(pagedcl_plan_varlen(rig.plan, NULL, &batch), PAGEDCL_INVALID_ARGUMENT, "num_seqs");
    batch = batch_of(&p);
    batch.cu_seqlens_q = NULL;
    expect_refused(pagedcl_plan_varlen(rig.plan, NULL, &batch), PAGEDCL_INVALID_ARGUMENT, "cu_seqlens_q");
    batch = batch_of(&p);
    batch.block_table = NULL;
    expect_refused(pagedcl_plan_varlen(rig.plan, NULL, &batch), PAGEDCL_INVALID_ARGUMENT, "block_table");
    batch = batch_of(&p);
    batch.block_table_stride = -1;
    expect_refused(pagedcl_plan_varlen(rig.plan, NULL, &batch), PAGEDCL_INVALID_ARGUMENT, "block_table_stride");
    batch = batch_of(&p);
    batch.cu_seqlens_k = p.cu_seqlens_k;
    expect_refused(pagedcl_plan_varlen(rig.plan, NULL, &batch), PAGEDCL_INVALID_ARGUMENT, "cu_seqlens_k");
    batch = batch_of(&p);
    batch.append = 1;
    p.cache_seqlens[0] = 3;
    expect_refused(pagedcl_plan_varlen(rig.plan, NULL, &batch), PAGEDCL_INVALID_LENGTH, "sequence 0");
    p.cache_seqlens[0] = 17;
    int32_t good = table[stride];
    table[stride] = table[1];
    expect_refused(pagedcl_plan_varlen(rig.plan, NULL, &batch), PAGEDCL_INVALID_BLOCK, "sequence 1 appends to block");
    table[stride] = good;

    attn_rig_run(&rig, NULL, 0, NULL, NULL);
    attn_result result = attn_rig_read(&rig);
    attn_expect_reference(&p, &result, "the batch from before");
    attn_result_destroy(&result);
    attn_rig_close(&rig);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}

/* A block that two sequences only read is shared, not refused. */
Test(attn_varlen, sequences_may_share_blocks_they_read) {
    attn_case c = {
        "shared blocks",         .path = VARLEN_PAGED,     .causal = 1, .head_dim = 64, .group = 2, .num_seqs = 2,
        .seqlens_q = INTS(3, 3), .seqlens_k = INTS(20, 20)};
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&c, 1);
    memcpy(p.k + 20 * 128, p.k, 20 * 128 * sizeof(float));
    memcpy(p.v + 20 * 128, p.v, 20 * 128 * sizeof(float));
    memcpy(p.block_table + p.block_table_stride, p.block_table, 2 * sizeof(int32_t));
    attn_on_every_tier(device, &p, attn_expect_reference);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}

/* Nothing is enqueued when an argument of a run is refused. */
Test(attn_varlen, bad_runs_write_nothing) {
    attn_case c = {"runs",         .path = VARLEN_PAGED, .append = 1,     .causal = 1,
                   .head_dim = 64, .group = 2,           .num_layers = 2, .layout = WITH_GAPS};
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&c, 1);
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, &p);
    expect_ok(attn_rig_plan(&rig, NULL));
    const struct {
        const char *name;
        size_t tensor; /* offset in the arguments */
    } tensors[] = {
        {"q", offsetof(pagedcl_attn_args, q)},
        {"k_new", offsetof(pagedcl_attn_args, k_new)},
        {"v_new", offsetof(pagedcl_attn_args, v_new)},
        {"out", offsetof(pagedcl_attn_args, out)},
    };
#define RUN(args) pagedcl_attn_run(rig.attn, NULL, rig.plan, args, 0, NULL, NULL)
    for (size_t i = 0; i < COUNT(tensors); i++) {
        pagedcl_attn_args args = attn_rig_args(&rig);
        pagedcl_tensor *tensor = (pagedcl_tensor *)(void *)((char *)&args + tensors[i].tensor), good = *tensor;
        char words[64];
#define REFUSED(status, ...)                                 \
    do {                                                     \
        snprintf(words, sizeof(words), __VA_ARGS__);         \
        expect_refused(RUN(&args), PAGEDCL_##status, words); \
    } while (0)
        tensor->mem = NULL;
        REFUSED(INVALID_ARGUMENT, "%s has no buffer", tensors[i].name);
        *tensor = good;
        tensor->offset = -1;
        REFUSED(INVALID_ARGUMENT, "%s has offset -1", tensors[i].name);
        *tensor = good;
        tensor->offset += 100000;
        REFUSED(BUFFER_TOO_SMALL, "%s needs", tensors[i].name);
        *tensor = good;
        tensor->token_stride = INT64_MAX / 2;
        REFUSED(SIZE_OVERFLOW, "%s", tensors[i].name);
        tensor->token_stride = -1;
        REFUSED(INVALID_ARGUMENT, "%s has token_stride -1", tensors[i].name);
#undef REFUSED
    }
    pagedcl_attn_args args = attn_rig_args(&rig);
    args.lse_offset = 5 * p.num_heads + 1;
    expect_refused(RUN(&args), PAGEDCL_BUFFER_TOO_SMALL, "lse needs");
    args.lse_offset = -1;
    expect_refused(RUN(&args), PAGEDCL_INVALID_ARGUMENT, "lse has offset -1");
    args = attn_rig_args(&rig);
    args.layer = 2;
    expect_refused(RUN(&args), PAGEDCL_INVALID_ARGUMENT, "layer");
    args.layer = -1;
    expect_refused(RUN(&args), PAGEDCL_INVALID_ARGUMENT, "layer");
    args = attn_rig_args(&rig);
    args.struct_size = 0;
    expect_refused(RUN(&args), PAGEDCL_INVALID_ARGUMENT, "struct_size");
    expect_refused(RUN(NULL), PAGEDCL_INVALID_ARGUMENT, "args");
#undef RUN
    unsigned char *out = guarded_read(device, &rig.out.buffer, rig.name);
    unsigned char *poison = fixture_poisoned(rig.out.buffer.bytes);
    expect_same_bytes(rig.name, "out", out, poison, rig.out.buffer.bytes);
    free(out);
    free(poison);

    attn_rig_run(&rig, NULL, 0, NULL, NULL);
    attn_result result = attn_rig_read(&rig);
    attn_expect_reference(&p, &result, "the good run");
    attn_result_destroy(&result);
    attn_rig_close(&rig);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}

/* B125: a batch of nothing runs, and its event comes. */
Test(attn_varlen, nothing_to_do_is_no_error) {
    pagedcl_device *device = fixture_open();
    attn_problem p = batch_problem();
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, &p);
    int32_t zeros[5] = {0}, lengths[4] = {17, 1, 0, 34};
    pagedcl_varlen_batch batches[3] = {PAGEDCL_VARLEN_BATCH_INIT, batch_of(&p), batch_of(&p)};
    batches[0].cu_seqlens_q = zeros; /* no sequence */
    batches[1].cu_seqlens_q = zeros; /* keys, but no query */
    batches[1].cache_seqlens = lengths;
    batches[2].cu_seqlens_q = zeros; /* neither */
    batches[2].cache_seqlens = zeros;
    for (int i = 0; i < 3; i++) {
        expect_ok(pagedcl_plan_varlen(rig.plan, NULL, &batches[i]));
        attn_rig_run(&rig, NULL, 0, NULL, NULL);
        cl_event event;
        attn_rig_run(&rig, NULL, 0, NULL, &event);
        expect_cl(clWaitForEvents(1, &event));
        expect_cl(clReleaseEvent(event));
    }
    unsigned char *out = guarded_read(device, &rig.out.buffer, rig.name);
    unsigned char *poison = fixture_poisoned(rig.out.buffer.bytes);
    expect_same_bytes(rig.name, "out", out, poison, rig.out.buffer.bytes);
    free(out);
    free(poison);
    attn_rig_close(&rig);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}
