/* SPDX-License-Identifier: Apache-2.0 */
/* What holds of attention whatever the numbers: equal bits where the contract says so, and answers known beforehand. */
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

/* One of each path, with lengths on both sides of a tile, a block and a split. */
static const attn_case cases[] = {
    {"packed", VARLEN_PACKED, .causal = 1, .seqlens_q = INTS(5, 1, 40), .seqlens_k = INTS(17, 1, 70)},
    {"paged", VARLEN_PAGED, .causal = 1, .seqlens_q = INTS(5, 1, 40), .seqlens_k = INTS(17, 1, 70)},
    {"decode", DECODE, .seqlens_k = INTS(17, 1, 1300)},
    {"decode, 3 queries, float16", DECODE, .seqlen_q = 3, .causal = 1, .seqlens_k = INTS(17, 3, 600), .q_dtype = F16,
     .kv_dtype = F16, .out_dtype = F16},
    {"decode, 5 splits", DECODE, .seqlens_k = INTS(17, 1, 600), .num_splits = 5},
};

/* For the laws of equal bits: every feature, every kind of pool. */
#define SHAPE .head_dim = 24, .group = 3
static const attn_case featured[] = {
    {"window, softcap, packed", VARLEN_PACKED, SHAPE, .window = INTS(20, 3), .softcap = 4, .seqlens_q = INTS(5, 1, 40),
     .seqlens_k = INTS(17, 1, 70)},
    {"window, softcap, paged, released blocks", VARLEN_PAGED, SHAPE, .causal = 1, .window = INTS(20, 0),
     .released = true, .softcap = 4, .seqlens_q = INTS(5, 1, 40), .seqlens_k = INTS(90, 100, 300)},
    {"ALiBi, sinks, packed", VARLEN_PACKED, SHAPE, .causal = 1, .alibi = 2, .sinks = true, .seqlens_q = INTS(5, 1, 40),
     .seqlens_k = INTS(17, 1, 70)},
    {"window, ALiBi, sinks, softcap, decode", DECODE, SHAPE, .window = INTS(600, 0), .released = true, .alibi = 2,
     .sinks = true, .softcap = 30, .seqlens_k = INTS(17, 1, 1300)},
    {"rotary, append", VARLEN_PAGED, SHAPE, .causal = 1, .rotary_dim = 12, .append = 1, .seqlens_q = INTS(5, 1, 40),
     .seqlens_k = INTS(17, 1, 70)},
    {"interleaved rotary, append, decode, float16 to bfloat16", DECODE, SHAPE, .causal = 1, .rotary_dim = 24,
     .rotary_interleaved = true, .seqlen_q = 3, .append = 3, .seqlens_k = INTS(17, 3, 600), .q_dtype = F16,
     .kv_dtype = BF16, .out_dtype = F32},
    {"tree, append", VARLEN_PAGED, SHAPE, .tree = true, .append = 1, .seqlens_q = INTS(40, 5, 65),
     .seqlens_k = INTS(70, 5, 100)},
    {"tree, append, decode", DECODE, SHAPE, .tree = true, .seqlen_q = 5, .append = 5, .seqlens_k = INTS(21, 5, 543)},
    {"int8, append", VARLEN_PAGED, SHAPE, .causal = 1, .kv_dtype = PAGEDCL_INT8, .k_scale = 0.03125f,
     .v_scale = 0.0625f, .append = 1, .seqlens_q = INTS(5, 1, 40), .seqlens_k = INTS(17, 1, 70)},
    {"int8 with scales of rows, append", VARLEN_PAGED, SHAPE, .causal = 1, .kv_dtype = PAGEDCL_INT8,
     .scale_per_row = true, .append = 1, .seqlens_q = INTS(5, 1, 40), .seqlens_k = INTS(5, 1, 40)},
    {"e4m3 with scales of rows, append, decode, heads first", DECODE, SHAPE, .causal = 1,
     .kv_dtype = PAGEDCL_FLOAT8_E4M3, .scale_per_row = true, .seqlen_q = 2, .append = 40, .seqlens_k = INTS(40, 40, 40),
     .pool = POOL_OF_LIBRARY_HND},
    {"e5m2, decode", DECODE, SHAPE, .kv_dtype = PAGEDCL_FLOAT8_E5M2, .q_dtype = F16, .out_dtype = BF16,
     .seqlens_k = INTS(17, 1, 1300)},
    {"interleaved pool, bfloat16 queries", DECODE, SHAPE, .append = 1, .pool = POOL_INTERLEAVED, .q_dtype = BF16,
     .kv_dtype = F16, .seqlens_k = INTS(17, 1, 600)},
    {"segments", DECODE, SHAPE, .append = 1, .segment_blocks = 16, .seqlens_k = INTS(17, 1, 600)},
    {"8 KV heads, append", DECODE, .num_kv_heads = 8, .group = 3, .head_dim = 24, .append = 1,
     .seqlens_k = INTS(17, 700, 2500)},
    {"4 KV heads, int8, heads first", DECODE, .num_kv_heads = 4, .head_dim = 24, .kv_dtype = PAGEDCL_INT8,
     .k_scale = 0.03125f, .v_scale = 0.0625f, .seqlens_k = INTS(17, 700, 2500), .pool = POOL_OF_LIBRARY_HND},
    {"V in K", DECODE, .num_kv_heads = 1, .group = 5, .head_dim = 36, .head_dim_v = 28, .v_in_k = true, .append = 1,
     .seqlens_k = INTS(17, 1, 600)},
};
enum { NUM_BIT_CASES = COUNT(cases) + COUNT(featured) };

static const attn_case *bit_case(size_t i) {
    return i < COUNT(cases) ? &cases[i] : &featured[i - COUNT(cases)];
}

static int64_t num_rows(const attn_problem *p) {
    return (int64_t)attn_total_q(p) * p->num_heads;
}

/* The results of two problems of equal shape, bit for bit. */
static void expect_same_bits(const char *name, const attn_problem *p, const attn_result *got, const attn_result *want) {
    expect_same_bytes(name, "out", got->out, want->out, (size_t)(num_rows(p) * p->c.head_dim_v) * sizeof(float));
    expect_same_bytes(name, "lse", got->lse, want->lse, (size_t)num_rows(p) * sizeof(float));
}

/* got's rows against those of want from query token `first` on, within the tolerance. */
static void expect_rows_close(const char *name, const attn_problem *p, const attn_result *got, const attn_result *want,
                              int32_t first) {
    int64_t rows = num_rows(p), elements = rows * p->c.head_dim;
    double *values = fixture_alloc((size_t)elements * sizeof(double));
    for (int64_t i = 0; i < elements; i++)
        values[i] = (double)want->out[(int64_t)first * p->num_heads * p->c.head_dim + i];
    expect_close(name, "out", got->out, values, elements, tolerance_of(p->c.out_dtype));
    for (int64_t i = 0; i < rows; i++)
        values[i] = (double)want->lse[(int64_t)first * p->num_heads + i];
    expect_close(name, "lse", got->lse, values, rows, tolerance_of(PAGEDCL_FLOAT32));
    free(values);
}

/* ---- equal bits ---- */

/* B32: the physical order of the blocks does not matter. */
Test(attn_laws, any_blocks_give_the_same_bits) {
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    int num_tiers = fixture_tiers(device, tiers);
    for (size_t i = 0; i < NUM_BIT_CASES; i++) {
        if (bit_case(i)->path == VARLEN_PACKED)
            continue;
        attn_problem p = attn_problem_create(bit_case(i), 1);
        for (int t = 0; t < num_tiers; t++) {
            attn_problem_scatter(&p, 1);
            attn_result want = attn_solve(device, tiers[t], &p);
            for (uint64_t seed = 2; seed < 5; seed++) {
                attn_problem_scatter(&p, seed);
                attn_result got = attn_solve(device, tiers[t], &p);
                expect_same_bits(p.c.name, &p, &got, &want);
                attn_result_destroy(&got);
            }
            attn_result_destroy(&want);
        }
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/* B35: a sequence has the same bits alone and in a batch. (A number of splits is of the longest sequence.) */
Test(attn_laws, company_changes_no_bit) {
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    int num_tiers = fixture_tiers(device, tiers);
    for (size_t i = 0; i < NUM_BIT_CASES; i++) {
        if (bit_case(i)->num_splits > 0)
            continue;
        attn_problem batch = attn_problem_create(bit_case(i), 1);
        for (int t = 0; t < num_tiers; t++) {
            attn_result all = attn_solve(device, tiers[t], &batch);
            for (int32_t b = 0; b < batch.c.num_seqs; b++) {
                int32_t first = batch.cu_seqlens_q[b];
                attn_problem alone = attn_problem_part(&batch, b, 0, batch.cu_seqlens_q[b + 1] - first,
                                                       batch.cu_seqlens_k[b + 1] - batch.cu_seqlens_k[b]);
                attn_result got = attn_solve(device, tiers[t], &alone);
                int64_t row = (int64_t)first * batch.num_heads;
                attn_result want = {all.out + row * batch.c.head_dim_v, all.lse + row};
                char name[256];
                snprintf(name, sizeof(name), "%s, %s, sequence %d", batch.c.name, pagedcl_tier_name(tiers[t]), b);
                expect_same_bits(name, &alone, &got, &want);
                attn_result_destroy(&got);
                attn_problem_destroy(&alone);
            }
            attn_result_destroy(&all);
        }
        attn_problem_destroy(&batch);
    }
    pagedcl_device_destroy(device);
}

/* B138: a missing barrier shows now and then. */
Test(attn_laws, every_run_has_the_same_bits) {
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    int num_tiers = fixture_tiers(device, tiers);
    for (size_t i = 0; i < NUM_BIT_CASES; i++) {
        attn_problem p = attn_problem_create(bit_case(i), 1);
        for (int t = 0; t < num_tiers; t++) {
            attn_rig rig = attn_rig_open(device, tiers[t], &p);
            expect_ok(attn_rig_plan(&rig, NULL));
            attn_rig_run(&rig, NULL, 0, NULL, NULL);
            attn_result want = attn_rig_read(&rig);
            for (int turn = 0; turn < (i < COUNT(cases) ? 30 : 10); turn++) {
                attn_rig_run(&rig, NULL, 0, NULL, NULL);
                attn_result got = attn_rig_read(&rig);
                expect_same_bits(rig.name, &p, &got, &want);
                attn_result_destroy(&got);
            }
            attn_result_destroy(&want);
            attn_rig_close(&rig);
        }
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/* B138 again: sums of 257 weights, as often as it takes for work-items to meet. */
Test(attn_laws, ten_thousand_runs_have_the_same_bits) {
    enum { TURNS = 10000 };
    attn_case c = {"257 keys",        DECODE,     .num_seqs = 1, .seqlens_k = INTS(257),
                   .num_kv_heads = 1, .group = 1, .head_dim = 8};
    pagedcl_device *device = fixture_open();
    cl_command_queue queue = pagedcl_device_queue(device);
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    attn_problem p = attn_problem_create(&c, 1);
    for (int t = 0, n = fixture_tiers(device, tiers); t < n; t++) {
        attn_rig rig = attn_rig_open(device, tiers[t], &p);
        expect_ok(attn_rig_plan(&rig, NULL));
        float want[8], got[8];
        for (int turn = 0; turn < TURNS; turn++) {
            attn_rig_run(&rig, NULL, 0, NULL, NULL);
            expect_cl(clEnqueueReadBuffer(queue, rig.out.view.mem, CL_TRUE, 0, sizeof(got), turn == 0 ? want : got, 0,
                                          NULL, NULL));
            if (turn > 0)
                expect_same_bytes(rig.name, "out", got, want, sizeof(got));
        }
        attn_result result = attn_rig_read(&rig);
        attn_expect_reference(&p, &result, rig.name);
        attn_result_destroy(&result);
        attn_rig_close(&rig);
    }
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}

/* ---- the same answer by another way ---- */

#define PROMPT VARLEN_PAGED, .num_seqs = 1, .seqlens_q = INTS(70), .seqlens_k = INTS(70)

/* A prompt of 70 tokens in chunks of 32, 1 and 37 has the rows of the prompt as a whole. */
Test(attn_laws, chunks_give_the_rows_of_the_whole) {
    const int32_t ends[] = {0, 32, 33, 70};
    const attn_case prompts[] = {
        {"chunked", PROMPT, .causal = 1},
        {"chunked, every feature", PROMPT, SHAPE, .causal = 1, .append = 1, .window = INTS(25, 0), .softcap = 4,
         .alibi = 2, .sinks = true, .rotary_dim = 12},
    };
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    int num_tiers = fixture_tiers(device, tiers);
    for (size_t c = 0; c < COUNT(prompts); c++) {
        attn_problem prompt = attn_problem_create(&prompts[c], 1);
        for (int t = 0; t < num_tiers; t++) {
            attn_result whole = attn_solve(device, tiers[t], &prompt);
            for (size_t i = 0; i + 1 < COUNT(ends); i++) {
                attn_problem chunk = attn_problem_part(&prompt, 0, ends[i], ends[i + 1], ends[i + 1]);
                attn_result got = attn_solve(device, tiers[t], &chunk);
                expect_rows_close(prompts[c].name, &chunk, &got, &whole, ends[i]);
                attn_result_destroy(&got);
                attn_problem_destroy(&chunk);
            }
            attn_result_destroy(&whole);
        }
        attn_problem_destroy(&prompt);
    }
    pagedcl_device_destroy(device);
}

Test(attn_laws, varlen_and_decode_agree) {
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    int num_tiers = fixture_tiers(device, tiers);
    attn_case c = {"varlen and decode", DECODE, .seqlen_q = 2, .causal = 1, .seqlens_k = INTS(17, 2, 1100)};
    attn_problem decode = attn_problem_create(&c, 1);
    attn_problem varlen = decode;
    varlen.c.path = VARLEN_PAGED;
    for (int t = 0; t < num_tiers; t++) {
        attn_result got = attn_solve(device, tiers[t], &decode), want = attn_solve(device, tiers[t], &varlen);
        expect_rows_close(pagedcl_tier_name(tiers[t]), &decode, &got, &want, 0);
        attn_result_destroy(&got);
        attn_result_destroy(&want);
    }
    attn_problem_destroy(&decode);
    pagedcl_device_destroy(device);
}

Test(attn_laws, tiers_agree) {
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    int num_tiers = fixture_tiers(device, tiers);
    for (size_t i = 0; i < COUNT(cases); i++) {
        attn_problem p = attn_problem_create(&cases[i], 1);
        attn_result want = attn_solve(device, tiers[0], &p);
        for (int t = 1; t < num_tiers; t++) {
            attn_result got = attn_solve(device, tiers[t], &p);
            expect_rows_close(p.c.name, &p, &got, &want, 0);
            attn_result_destroy(&got);
        }
        attn_result_destroy(&want);
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/* ---- answers known beforehand ---- */

static void expect_three_quarters(const attn_problem *p, const attn_result *result, const char *name) {
    for (int64_t i = 0; i < num_rows(p) * p->c.head_dim; i++)
        cr_assert(fabsf(result->out[i] - 0.75f) <= 1e-6f, "%s: element %lld: %g", name, (long long)i,
                  (double)result->out[i]);
}

Test(attn_laws, constant_value_comes_back) {
    pagedcl_device *device = fixture_open();
    for (size_t i = 0; i < COUNT(cases); i++) {
        attn_problem p = attn_problem_create(&cases[i], 1);
        for (int64_t e = 0; e < (int64_t)attn_total_k(&p) * p.c.num_kv_heads * p.c.head_dim; e++)
            p.v[e] = 0.75f;
        attn_on_every_tier(device, &p, expect_three_quarters);
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

static void expect_own_value(const attn_problem *p, const attn_result *result, const char *name) {
    int32_t dim = p->c.head_dim;
    for (int32_t b = 0; b < p->c.num_seqs; b++) {
        for (int32_t h = 0; h < p->num_heads; h++)
            expect_same_bytes(name, "out", result->out + (b * p->num_heads + h) * dim,
                              p->v + (b * p->c.num_kv_heads + h / p->c.group) * dim, (size_t)dim * sizeof(float));
    }
}

/* One key has weight 1, whatever its score, and gives its value bit for bit. */
Test(attn_laws, one_key_gives_its_value) {
    pagedcl_device *device = fixture_open();
    for (int path = VARLEN_PACKED; path <= DECODE; path++) {
        attn_case c = {"one key", (attn_path)path, .causal = 1, .seqlens_q = INTS(1, 1, 1), .seqlens_k = INTS(1, 1, 1)};
        attn_problem p = attn_problem_create(&c, 1);
        attn_on_every_tier(device, &p, expect_own_value);
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/* All keys of a sequence have the value of their position: the mean of those that are seen, and log of their number. */
static void expect_mean(const attn_problem *p, const attn_result *result, const char *name) {
    for (int32_t b = 0; b < p->c.num_seqs; b++) {
        int32_t seqlen_k = p->cu_seqlens_k[b + 1] - p->cu_seqlens_k[b];
        for (int32_t i = p->cu_seqlens_q[b]; i < p->cu_seqlens_q[b + 1]; i++) {
            int32_t seen = p->c.causal ? i + seqlen_k - p->cu_seqlens_q[b + 1] + 1 : seqlen_k;
            for (int32_t h = 0; h < p->num_heads; h++) {
                int64_t row = (int64_t)i * p->num_heads + h;
                double want = (seen - 1) / 2.0, lse = log(seen);
                expect_close(name, "out", result->out + row * p->c.head_dim, &want, 1, tolerance_of(p->c.out_dtype));
                expect_close(name, "lse", result->lse + row, &lse, 1, tolerance_of(PAGEDCL_FLOAT32));
            }
        }
    }
}

Test(attn_laws, zero_query_gives_the_mean) {
    pagedcl_device *device = fixture_open();
    for (size_t i = 0; i < COUNT(cases); i++) {
        attn_problem p = attn_problem_create(&cases[i], 1);
        int64_t row = (int64_t)p.c.num_kv_heads * p.c.head_dim;
        memset(p.q, 0, (size_t)(num_rows(&p) * p.c.head_dim) * sizeof(float));
        for (int32_t b = 0; b < p.c.num_seqs; b++) {
            for (int64_t e = p.cu_seqlens_k[b] * row; e < p.cu_seqlens_k[b + 1] * row; e++)
                p.v[e] = (float)(e / row - p.cu_seqlens_k[b]);
        }
        attn_on_every_tier(device, &p, expect_mean);
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}
