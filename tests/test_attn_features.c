/* SPDX-License-Identifier: Apache-2.0 */
/* Every feature of the attention operators, alone and with others, against the reference. */
#include "support/attn_rig.h"
#include "support/expect.h"

#include <math.h>
#include <stdlib.h>

#define F32 PAGEDCL_FLOAT32
#define F16 PAGEDCL_FLOAT16
#define BF16 PAGEDCL_BFLOAT16
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define INTS(...) ((const int32_t[]){__VA_ARGS__})

/* The shape of most cases: few shapes make few kernels to build. */
#define SHAPE .head_dim = 24

/* ---- windows ---- */

static const attn_case windows[] = {
    {"left", .window = INTS(9, -1), SHAPE},
    {"right", .window = INTS(-1, 3), SHAPE},
    {"both", .window = INTS(6, 2), SHAPE},
    {"unbounded", .window = INTS(-1, -1), SHAPE},
    {"its own position alone", .window = INTS(0, 0), SHAPE},
    {"W = 1, causal", .causal = 1, .window = INTS(0, 0), SHAPE},
    {"causal bounds the right side", .causal = 1, .window = INTS(20, 5), SHAPE},
    {"wider than any sequence", .window = INTS(INT32_MAX, INT32_MAX), SHAPE},
    {"wider than any sequence, more queries than keys", .num_seqs = 2, .window = INTS(INT32_MAX, -1),
     .seqlens_q = INTS(9, 40), .seqlens_k = INTS(4, 3), SHAPE},
    {"rows without a key", .num_seqs = 2, .window = INTS(2, 1), .seqlens_q = INTS(9, 40), .seqlens_k = INTS(4, 3),
     SHAPE},
    {"long", .num_seqs = 1, .causal = 1, .window = INTS(31, 0), .seqlens_q = INTS(130), .seqlens_k = INTS(300), SHAPE},
    {"paged", VARLEN_PAGED, .causal = 1, .window = INTS(9, 0), SHAPE},
    {"paged, released blocks", VARLEN_PAGED, .causal = 1, .window = INTS(20, 0), .released = true,
     .seqlens_q = INTS(5, 1, 17), .seqlens_k = INTS(90, 100, 300), SHAPE},
    {"paged, released blocks, right side", VARLEN_PAGED, .window = INTS(20, 4), .released = true,
     .seqlens_q = INTS(5, 1, 17), .seqlens_k = INTS(90, 100, 300), SHAPE},
    {"appended tokens, more than the window", VARLEN_PAGED, .causal = 1, .append = 1, .window = INTS(2, 0),
     .released = true, .seqlens_q = INTS(33, 1, 16), .seqlens_k = INTS(80, 49, 16), SHAPE},
    {"decode", DECODE, .append = 1, .window = INTS(7, 0), SHAPE},
    {"B12: decode, the last 20 of 50 keys", DECODE, .num_seqs = 1, .window = INTS(19, 0), .seqlens_k = INTS(50), SHAPE},
    {"decode, W = 1", DECODE, .append = 1, .window = INTS(0, 0), SHAPE},
    {"decode, released blocks", DECODE, .append = 1, .window = INTS(40, 0), .released = true,
     .seqlens_k = INTS(1000, 41, 90), SHAPE},
    {"decode, released blocks, splits", DECODE, .append = 1, .window = INTS(200, 0), .released = true, .num_splits = 7,
     .seqlens_k = INTS(1000, 300, 90), SHAPE},
    {"decode, window across two splits of fixed size", DECODE, .append = 1, .window = INTS(300, -1), .released = true,
     .seqlens_k = INTS(1100, 600, 513), SHAPE},
    {"decode, 5 queries, 5 new, splits", DECODE, .seqlen_q = 5, .append = 5, .causal = 1, .window = INTS(33, 0),
     .released = true, .num_splits = 4, .seqlens_k = INTS(400, 38, 5), SHAPE},
    {"decode, window smaller than the appended tokens", DECODE, .seqlen_q = 2, .append = 40, .causal = 1,
     .window = INTS(3, 0), .released = true, .num_splits = 3, .seqlens_k = INTS(40, 100, 57), SHAPE},
    {"decode, more queries than keys", DECODE, .seqlen_q = 9, .window = INTS(2, 1), .seqlens_k = INTS(4, 1, 30), SHAPE},
    {"decode, segments, released blocks", DECODE, .append = 1, .window = INTS(40, 0), .released = true,
     .seqlens_k = INTS(90, 41, 33), .segment_blocks = 4, SHAPE},
};

Test(attn_features, windows) {
    attn_check_cases(windows, COUNT(windows));
}

/* ---- scores ---- */

static const attn_case scores[] = {
    {"softcap, packed", .softcap = 1.5f, .scale = 1, .causal = 1, SHAPE},
    {"softcap, decode", DECODE, .softcap = 30, .append = 1, .num_splits = 3, .seqlens_k = INTS(200, 17, 1), SHAPE},
    {"softcap beyond all scores", .softcap = 1e6f, SHAPE},
    {"ALiBi, packed", .alibi = 1, SHAPE},
    {"ALiBi per sequence, packed, causal", .alibi = 2, .causal = 1, SHAPE},
    {"ALiBi per sequence, more queries than keys", .alibi = 2, .num_seqs = 2, .seqlens_q = INTS(9, 4),
     .seqlens_k = INTS(4, 3), SHAPE},
    {"ALiBi, paged, append", VARLEN_PAGED, .alibi = 1, .append = 1, .causal = 1, SHAPE},
    {"ALiBi per sequence, decode", DECODE, .alibi = 2, .append = 1, .num_splits = 5, .seqlens_k = INTS(200, 17, 1),
     SHAPE},
    {"sinks, packed", .sinks = true, SHAPE},
    {"sinks of rows that see no key", .sinks = true, .causal = 1, .seqlens_q = INTS(9, 40, 3),
     .seqlens_k = INTS(4, 3, 0), SHAPE},
    {"sinks, paged, window", VARLEN_PAGED, .sinks = true, .causal = 1, .window = INTS(4, 0), SHAPE},
    {"sinks, decode, one part", DECODE, .sinks = true, .append = 1, .num_splits = 1, SHAPE},
    {"sinks, decode, parts", DECODE, .sinks = true, .append = 1, .num_splits = 6, .seqlens_k = INTS(400, 100, 1),
     SHAPE},
    {"sinks, decode, parts of a fixed number of tokens", DECODE, .sinks = true, .seqlen_q = 3,
     .seqlens_k = INTS(1300, 513, 2), SHAPE},
    {"sinks, decode, no keys", DECODE, .sinks = true, .seqlens_k = INTS(0, 7, 0), SHAPE},
};

Test(attn_features, scores) {
    attn_check_cases(scores, COUNT(scores));
}

/* ---- rotary embedding ---- */

static const attn_case rotary[] = {
    {"halves, packed", .rotary_dim = 24, .seqlens_q = INTS(5, 1, 17), .seqlens_k = INTS(40, 1, 17), SHAPE},
    {"interleaved, paged", VARLEN_PAGED, .rotary_dim = 12, .rotary_interleaved = true, .causal = 1, SHAPE,
     .seqlens_k = INTS(40, 1, 17)},
    {"halves, append", VARLEN_PAGED, .rotary_dim = 12, .append = 1, .causal = 1, SHAPE},
    {"interleaved, append of many", VARLEN_PAGED, .rotary_dim = 24, .rotary_interleaved = true, .append = 1,
     .causal = 1, .seqlens_q = INTS(97, 0, 65), .seqlens_k = INTS(97, 5, 130), SHAPE},
    {"2 of 24, decode", DECODE, .rotary_dim = 2, .append = 1, SHAPE},
    {"6 of 24, decode, two queries", DECODE, .rotary_dim = 6, .seqlen_q = 2, .append = 2, .causal = 1, .num_splits = 3,
     .seqlens_k = INTS(200, 17, 2), SHAPE},
    {"interleaved, float16 to a bfloat16 pool, decode", DECODE, .rotary_dim = 24, .rotary_interleaved = true,
     .append = 1, .q_dtype = F16, .kv_dtype = BF16, .out_dtype = F16, .seqlens_k = INTS(200, 17, 1), SHAPE},
    {"fewer queries than new tokens, decode", DECODE, .rotary_dim = 24, .rotary_interleaved = true, .append = 20,
     .q_dtype = F16, .kv_dtype = BF16, .out_dtype = F16, .layout = WITH_GAPS, SHAPE},
};

Test(attn_features, rotary) {
    attn_check_cases(rotary, COUNT(rotary));
}

/* ---- tree masks ---- */

static const attn_case trees[] = {
    {"packed", .tree = true, SHAPE},
    {"packed, causal, two words", .tree = true, .causal = 1, .seqlens_q = INTS(40, 5, 33), .seqlens_k = INTS(70, 5, 33),
     SHAPE},
    {"packed, more queries than keys", .tree = true, .num_seqs = 2, .seqlens_q = INTS(40, 5), .seqlens_k = INTS(38, 2),
     SHAPE},
    {"paged, append", VARLEN_PAGED, .tree = true, .append = 1, .seqlens_q = INTS(40, 5, 65),
     .seqlens_k = INTS(70, 5, 100), SHAPE},
    {"decode of 5", DECODE, .tree = true, .seqlen_q = 5, .append = 5, .seqlens_k = INTS(21, 5, 43), SHAPE},
    {"decode of 40, causal", DECODE, .tree = true, .causal = 1, .seqlen_q = 40, .append = 40,
     .seqlens_k = INTS(56, 40, 90), SHAPE},
    {"decode of 40, parts", DECODE, .tree = true, .seqlen_q = 40, .append = 40, .num_splits = 5,
     .seqlens_k = INTS(56, 40, 290), SHAPE},
    {"decode of 5 without an append, window", DECODE, .tree = true, .seqlen_q = 5, .window = INTS(12, 0),
     .seqlens_k = INTS(21, 5, 43), SHAPE},
};

Test(attn_features, trees) {
    attn_check_cases(trees, COUNT(trees));
}

/* ---- dimensions of heads ---- */

static const attn_case dims[] = {
    {"1, packed", .head_dim = 1, .group = 1, .causal = 1},
    {"3, decode", DECODE, .head_dim = 3, .append = 1, .num_splits = 3, .seqlens_k = INTS(200, 17, 1)},
    {"12, append", VARLEN_PAGED, .head_dim = 12, .append = 1, .causal = 1, .layout = WITH_GAPS},
    {"100, decode, bfloat16", DECODE, .head_dim = 100, .group = 3, .append = 1, .q_dtype = BF16, .kv_dtype = BF16,
     .out_dtype = BF16},
    {"264, packed, float16", .head_dim = 264, .group = 2, .causal = 1, .q_dtype = F16, .kv_dtype = F16,
     .out_dtype = F16},
    {"576, decode", DECODE, .head_dim = 576, .group = 2, .append = 1},
    {"192 and 128, packed", .head_dim = 192, .head_dim_v = 128, .group = 2, .causal = 1, .layout = WITH_GAPS},
    {"192 and 128, append, gaps", VARLEN_PAGED, .head_dim = 192, .head_dim_v = 128, .group = 2, .causal = 1,
     .append = 1, .layout = WITH_GAPS},
    {"12 and 64, decode", DECODE, .head_dim = 12, .head_dim_v = 64, .num_kv_heads = 1, .group = 1, .append = 1},
    {"5 and 19, decode", DECODE, .head_dim = 5, .head_dim_v = 19, .append = 1, .num_splits = 2,
     .seqlens_k = INTS(100, 17, 1), .segment_blocks = 4},
    {"19 and 5, decode", DECODE, .head_dim = 19, .head_dim_v = 5, .append = 1, .num_splits = 2,
     .seqlens_k = INTS(100, 17, 1)},
};

Test(attn_features, head_dims) {
    attn_check_cases(dims, COUNT(dims));
}

/* Latent attention: V is the beginning of K's row. */
#define LATENT .v_in_k = true, .num_kv_heads = 1, .group = 16, .head_dim = 576, .head_dim_v = 512
static const attn_case latent[] = {
    {"decode", DECODE, LATENT, .append = 1, .causal = 1, .num_splits = 2, .seqlens_k = INTS(100, 17, 1)},
    {"varlen, append", VARLEN_PAGED, LATENT, .append = 1, .causal = 1, .seqlens_q = INTS(3, 1, 2),
     .seqlens_k = INTS(20, 1, 34)},
    {"decode, rotary, small", DECODE, .v_in_k = true, .num_kv_heads = 2, .group = 3, .head_dim = 12, .head_dim_v = 7,
     .append = 2, .rotary_dim = 4, .pool = POOL_WITH_GAPS, .num_layers = 2},
};

Test(attn_features, v_in_k) {
    attn_check_cases(latent, COUNT(latent));
}

/* ---- pools ---- */

static const attn_case pools[] = {
    {"B30: K and V interleaved", DECODE, .pool = POOL_INTERLEAVED, .head_dim = 128, .group = 2, .q_dtype = BF16,
     .kv_dtype = BF16, .out_dtype = BF16, .append = 1, .num_layers = 2},
    {"heads first", DECODE, .pool = POOL_HND, .append = 1, .num_layers = 2, SHAPE},
    {"heads first, varlen, append", VARLEN_PAGED, .pool = POOL_HND, .append = 1, .causal = 1, .num_layers = 2, SHAPE},
    {"gaps, varlen, append", VARLEN_PAGED, .pool = POOL_WITH_GAPS, .append = 1, .causal = 1, .num_layers = 3, SHAPE,
     .block_size = 5},
    {"gaps, K and V of different shapes, decode", DECODE, .pool = POOL_WITH_GAPS, .head_dim = 12, .head_dim_v = 20,
     .append = 3, .seqlen_q = 2, .kv_dtype = F16, .block_size = 5},
};

Test(attn_features, adopted_pools) {
    attn_check_cases(pools, COUNT(pools));
}

/* ---- together ---- */

#define ALL .window = INTS(70, 3), .softcap = 4, .alibi = 2, .sinks = true, .tree = true, .rotary_dim = 6, SHAPE
static const attn_case together[] = {
    {"all, packed", ALL, .seqlens_q = INTS(40, 1, 5), .seqlens_k = INTS(130, 1, 5), .layout = WITH_GAPS},
    {"all, varlen, append", VARLEN_PAGED, ALL, .append = 1, .released = true, .seqlens_q = INTS(40, 1, 5),
     .seqlens_k = INTS(130, 1, 300), .layout = WITH_GAPS, .pool = POOL_WITH_GAPS},
    {"all, decode", DECODE, ALL, .seqlen_q = 5, .append = 5, .released = true, .num_splits = 6,
     .seqlens_k = INTS(300, 5, 80), .layout = WITH_GAPS, .pool = POOL_INTERLEAVED},
    {"all, decode of 40, parts of a fixed number of tokens", DECODE, ALL, .seqlen_q = 40, .append = 40,
     .seqlens_k = INTS(540, 40, 80), .layout = WITH_GAPS, .pool = POOL_INTERLEAVED},
    {"window, ALiBi, sinks, causal, decode", DECODE, .causal = 1, .window = INTS(50, 0), .released = true, .alibi = 1,
     .sinks = true, .append = 1, .num_splits = 8, .seqlens_k = INTS(300, 64, 1), SHAPE},
};

Test(attn_features, together) {
    attn_check_cases(together, COUNT(together));
}

/* ---- exact answers ---- */

/* With q = 0 and one-hot values a row's output says which keys it saw, and how much each weighed. */
static attn_problem one_hot(const attn_case *c) {
    attn_problem p = attn_problem_create(c, 1);
    for (int64_t i = 0; i < (int64_t)attn_total_q(&p) * p.num_heads * p.c.head_dim; i++)
        p.q[i] = 0;
    for (int64_t i = 0; i < (int64_t)attn_total_k(&p) * p.c.num_kv_heads * p.c.head_dim; i++)
        p.v[i] = i % p.c.head_dim == i / (p.c.num_kv_heads * p.c.head_dim) ? 1 : 0;
    return p;
}

static void expect_last_keys(const attn_problem *p, const attn_result *result, const char *name) {
    int32_t window = p->c.window[0] + 1;
    for (int32_t i = 0; i < 6; i++) {
        int32_t seen = i + 1 < window ? i + 1 : window;
        for (int32_t h = 0; h < p->num_heads; h++)
            for (int32_t j = 0; j < p->c.head_dim; j++) {
                float want = j <= i && j > i - seen ? 1.0f / (float)seen : 0;
                cr_assert_float_eq(result->out[(i * p->num_heads + h) * p->c.head_dim + j], want, 1e-6,
                                   "%s, W = %d: row %d, key %d", name, window, i, j);
            }
    }
}

/* B52: W counts the query itself. */
Test(attn_features, a_window_of_w_is_the_last_w_keys) {
    const int32_t lefts[][2] = {{2, 0}, {0, 0}, {5, 0}, {4, 0}};
    pagedcl_device *device = fixture_open();
    for (size_t i = 0; i < COUNT(lefts); i++) {
        attn_case c = {"B52",       VARLEN_PAGED,       .num_seqs = 1, .seqlens_q = INTS(6), .seqlens_k = INTS(6),
                       .causal = 1, .window = lefts[i], SHAPE};
        attn_problem p = one_hot(&c);
        attn_on_every_tier(device, &p, expect_last_keys);
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/*
 * Slopes below 0 make scores of hundreds, where the spacing of float32 is wide. A score s is the difference of two
 * rounded numbers, one of them a product with a rounded factor: it is held to 3 roundings of 2^-24 |s|, and so are the
 * logarithms of weights. A weight and the sum each may be off by that, whence the factor 2 for out.
 */
static void expect_rounded_scores(const attn_problem *p, const attn_result *result, const char *name) {
    float slope = 0, value = 0;
    for (int32_t h = 0; h < p->num_heads; h++)
        slope = fmaxf(slope, fabsf(p->alibi_slopes[h]));
    for (int64_t i = 0; i < (int64_t)attn_total_k(p) * p->c.num_kv_heads * p->c.head_dim_v; i++)
        value = fmaxf(value, fabsf(p->v[i]));
    double rounding = 3 * ldexp(1, -24) * (double)slope * attn_total_k(p);
    tolerance allowed = tolerance_of(PAGEDCL_FLOAT32);
    allowed.absolute += 2 * rounding * (double)value;
    int64_t rows = (int64_t)attn_total_q(p) * p->num_heads;
    double *out, *lse;
    attn_reference(p, &out, &lse);
    expect_close(name, "out", result->out, out, rows * p->c.head_dim_v, allowed);
    expect_close(name, "lse", result->lse, lse, rows, tolerance_of(PAGEDCL_FLOAT32));
    free(out);
    free(lse);
}

Test(attn_features, scores_of_hundreds_are_as_good_as_float32) {
    const attn_case c = {"slopes below 0", DECODE, .num_seqs = 1, .seqlens_k = INTS(700), .alibi = 1, SHAPE};
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&c, 1);
    for (int32_t h = 0; h < p.num_heads; h++)
        p.alibi_slopes[h] = -0.25f - p.alibi_slopes[h];
    attn_on_every_tier(device, &p, expect_rounded_scores);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}

static void expect_sinks_alone(const attn_problem *p, const attn_result *result, const char *name) {
    for (int32_t row = 0; row < 3 * p->num_heads; row++) {
        float sink = p->sinks[row % p->num_heads];
        cr_assert(result->lse[row] == sink || fabsf(result->lse[row] - sink) <= 1e-6f * fabsf(sink),
                  "%s: lse of row %d is %g, the sink %g", name, row, (double)result->lse[row], (double)sink);
        for (int32_t d = 0; d < p->c.head_dim; d++)
            cr_assert_eq(result->out[row * p->c.head_dim + d], 0, "%s: row %d: %g", name, row,
                         (double)result->out[row * p->c.head_dim + d]);
    }
}

/* Rows that see no key: exactly 0, and LSE = sink, be it minus infinity, which is no sink at all. */
Test(attn_features, rows_without_keys_have_their_sink) {
    const attn_case cases[] = {
        {"varlen", .sinks = true, .causal = 1, .num_seqs = 1, .seqlens_q = INTS(5), .seqlens_k = INTS(2), SHAPE},
        {"decode", DECODE, .sinks = true, .seqlens_k = INTS(0, 0, 0), SHAPE},
        {"decode in parts", DECODE, .sinks = true, .tree = true, .num_seqs = 1, .seqlen_q = 3, .window = INTS(0, 0),
         .num_splits = 3, .seqlens_k = INTS(97), SHAPE},
    };
    pagedcl_device *device = fixture_open();
    for (size_t i = 0; i < COUNT(cases); i++) {
        attn_problem p = attn_problem_create(&cases[i], 1);
        for (int32_t row = 0; row < 3 && p.tree_mask; row++)
            p.tree_mask[row] = 0;
        p.sinks[1] = -INFINITY;
        p.sinks[2] = 500;
        p.sinks[3] = -500;
        attn_on_every_tier(device, &p, attn_expect_reference);
        attn_on_every_tier(device, &p, expect_sinks_alone);
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/* ---- bits ---- */

/* Neither the sequences beside it, nor the number of released blocks, changes a bit of a sequence's result. */
Test(attn_features, released_blocks_change_no_bit) {
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    attn_case c = {"released", DECODE,      .causal = 1, .window = INTS(100, 0),
                   .alibi = 1, .append = 1, SHAPE,       .seqlens_k = INTS(1000, 513, 150)};
    attn_problem whole = attn_problem_create(&c, 1);
    c.released = true;
    attn_problem released = attn_problem_create(&c, 1);
    for (int t = 0, n = fixture_tiers(device, tiers); t < n; t++) {
        attn_result want = attn_solve(device, tiers[t], &whole), got = attn_solve(device, tiers[t], &released);
        size_t rows = 3 * (size_t)whole.num_heads;
        expect_same_bytes(pagedcl_tier_name(tiers[t]), "out", got.out, want.out, rows * 24 * sizeof(float));
        expect_same_bytes(pagedcl_tier_name(tiers[t]), "lse", got.lse, want.lse, rows * sizeof(float));
        attn_result_destroy(&want);
        attn_result_destroy(&got);
    }
    attn_problem_destroy(&whole);
    attn_problem_destroy(&released);
    pagedcl_device_destroy(device);
}
