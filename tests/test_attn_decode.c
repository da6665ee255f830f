/* SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"
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

static const attn_case shapes[] = {
    {.name = "the default", .path = DECODE},
    {"causal, gaps", DECODE, .causal = 1, .layout = WITH_GAPS},
    {"append", DECODE, .append = 1, .causal = 1},
    {"append, gaps, without LSE", DECODE, .append = 1, .layout = WITH_GAPS, .without_lse = true},
    {"the design's example", DECODE, .append = 1, .head_dim = 64, .group = 2, .block_size = 32,
     .seqlens_k = INTS(31, 33, 71)},
    {"empty and one key", DECODE, .num_seqs = 4, .causal = 1, .seqlens_k = INTS(0, 1, 0, 40)},
    {"append to empty sequences", DECODE, .append = 1, .seqlens_k = INTS(1, 1, 1)},
    {"block size 1, head_dim 8, append", DECODE, .append = 1, .block_size = 1, .head_dim = 8, .group = 1},
    {"block size 2, head_dim 16, group 2, float16", DECODE, .append = 1, .block_size = 2, .head_dim = 16, .group = 2,
     .q_dtype = F16, .kv_dtype = F16, .out_dtype = F16},
    {"block size 7, head_dim 24, group 3, bfloat16", DECODE, .append = 1, .block_size = 7, .head_dim = 24, .group = 3,
     .q_dtype = BF16, .kv_dtype = BF16, .out_dtype = BF16, .layout = WITH_GAPS},
    {"block size 32, head_dim 32, float16 pool", DECODE, .append = 1, .block_size = 32, .head_dim = 32,
     .kv_dtype = F16},
    {"block size 128, head_dim 40, group 5", DECODE, .append = 1, .block_size = 128, .head_dim = 40, .group = 5},
    {"block size 129, head_dim 48, bfloat16 pool, float16 queries", DECODE, .append = 1, .block_size = 129,
     .head_dim = 48, .group = 1, .q_dtype = F16, .kv_dtype = BF16},
    {"block size 256, head_dim 56", DECODE, .append = 1, .block_size = 256, .head_dim = 56, .group = 1},
    {"head_dim 96, group 8", DECODE, .append = 1, .head_dim = 96, .group = 8},
    {"head_dim 112, group 16, float32 pool, bfloat16 queries", DECODE, .append = 1, .head_dim = 112, .group = 16,
     .num_kv_heads = 1, .q_dtype = BF16, .out_dtype = F16},
    {"head_dim 192", DECODE, .append = 1, .head_dim = 192, .group = 1},
    {"head_dim 256, group 2, float16", DECODE, .append = 1, .head_dim = 256, .group = 2, .q_dtype = F16,
     .kv_dtype = F16, .out_dtype = F32},
    {"segments of one block", DECODE, .num_seqs = 2, .append = 1, .head_dim = 64, .group = 2, .segment_blocks = 1,
     .seqlens_k = INTS(40, 17)},
    {"segments of two blocks, last of three layers", DECODE, .append = 1, .head_dim = 64, .group = 2,
     .segment_blocks = 2, .num_layers = 3},
    {"room for three blocks a segment, block size 1", DECODE, .append = 1, .head_dim = 64, .group = 2, .block_size = 1,
     .segment_blocks = 3},
    /* Enough work that tier cpu takes several KV heads at once. */
    {"8 KV heads", DECODE, .append = 1, .num_seqs = 8, .num_kv_heads = 8, .group = 3, .head_dim = 40,
     .seqlens_k = INTS(17, 1, 700, 40, 70, 600, 33, 129)},
    {"8 KV heads, heads first, 2 queries, float16", DECODE, .append = 2, .seqlen_q = 2, .causal = 1, .num_seqs = 8,
     .num_kv_heads = 8, .group = 4, .head_dim = 24, .seqlens_k = INTS(17, 2, 700, 40, 70, 600, 33, 129),
     .pool = POOL_OF_LIBRARY_HND, .q_dtype = F16, .kv_dtype = F16, .out_dtype = F16},
};

Test(attn_decode, every_shape) {
    attn_check_cases(shapes, COUNT(shapes));
}

/* Several query tokens, as many as are appended, fewer, more, and none appended. */
Test(attn_decode, several_query_tokens) {
    const attn_case cases[] = {
        {"2 queries, 2 new", DECODE, .seqlen_q = 2, .append = 2, .causal = 1},
        {"3 queries, 3 new, not causal", DECODE, .seqlen_q = 3, .append = 3},
        {"4 queries, 1 new", DECODE, .seqlen_q = 4, .append = 1, .causal = 1, .head_dim = 64, .group = 2},
        {"5 queries, none new", DECODE, .seqlen_q = 5, .causal = 1, .head_dim = 64, .group = 2},
        {"1 query, 5 new", DECODE, .seqlen_q = 1, .append = 5, .causal = 1, .head_dim = 64, .group = 2},
        {"3 queries, 20 new across blocks", DECODE, .seqlen_q = 3, .append = 20, .causal = 1, .head_dim = 64,
         .group = 2, .layout = WITH_GAPS},
        {"more queries than keys", DECODE, .seqlen_q = 5, .causal = 1, .head_dim = 64, .group = 2,
         .seqlens_k = INTS(2, 0, 4)},
        {"B57: 5 after 37", DECODE, .seqlen_q = 5, .append = 5, .causal = 1, .num_seqs = 1, .head_dim = 64, .group = 2,
         .seqlens_k = INTS(42)},
        {"B57: 30 after 16 and after 17", DECODE, .seqlen_q = 30, .append = 30, .causal = 1, .num_seqs = 2,
         .head_dim = 64, .group = 2, .seqlens_k = INTS(46, 47)},
        {"5 queries, segments, float16 to bfloat16", DECODE, .seqlen_q = 5, .append = 5, .causal = 1, .head_dim = 24,
         .group = 3, .segment_blocks = 2, .q_dtype = F16, .kv_dtype = BF16, .out_dtype = F32, .num_layers = 2},
    };
    attn_check_cases(cases, COUNT(cases));
}

/* B40: every ratio of query heads to KV heads. */
Test(attn_decode, group_ratios) {
    const int32_t heads[][2] = {{28, 4}, {24, 4}, {40, 8}, {64, 4}, {15, 5}, {71, 1}};
    pagedcl_device *device = fixture_open();
    for (size_t i = 0; i < COUNT(heads); i++) {
        char name[32];
        snprintf(name, sizeof(name), "%d/%d heads", heads[i][0], heads[i][1]);
        attn_case c = {name,
                       DECODE,
                       .append = 1,
                       .num_seqs = 1,
                       .seqlens_k = INTS(257),
                       .num_kv_heads = heads[i][1],
                       .group = heads[i][0] / heads[i][1],
                       .head_dim = 128,
                       .q_dtype = BF16,
                       .kv_dtype = BF16,
                       .out_dtype = BF16};
        attn_problem p = attn_problem_create(&c, i);
        attn_on_every_tier(device, &p, attn_expect_reference);
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/* B44: whatever the block size, for lengths on both sides of it. */
Test(attn_decode, block_sizes) {
    const int32_t sizes[] = {1, 2, 7, 16, 128, 129, 256, 512, 544};
    pagedcl_device *device = fixture_open();
    for (size_t i = 0; i < COUNT(sizes); i++) {
        char name[32];
        snprintf(name, sizeof(name), "block size %d", sizes[i]);
        attn_case c = {name,
                       DECODE,
                       .num_seqs = 2,
                       .seqlens_k = INTS(1000, 5),
                       .block_size = sizes[i],
                       .group = 1,
                       .num_kv_heads = 1,
                       .head_dim = 64};
        attn_problem p = attn_problem_create(&c, 1);
        attn_on_every_tier(device, &p, attn_expect_reference);
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/* B37: as many sequences as any tile has rows, and some more: each stores its own token, and no other slot changes. */
Test(attn_decode, any_number_of_sequences) {
    const int32_t counts[] = {32, 33, 34, 40, 48, 63, 64, 65, 80, 97};
    pagedcl_device *device = fixture_open();
    int32_t lengths[97];
    for (int32_t i = 0; i < 97; i++)
        lengths[i] = 1 + i % 5;
    for (size_t i = 0; i < COUNT(counts); i++) {
        char name[32];
        snprintf(name, sizeof(name), "B37: %d sequences", counts[i]);
        attn_case c = {name,          DECODE,     .append = 1,    .num_seqs = counts[i], .seqlens_k = lengths,
                       .head_dim = 8, .group = 1, .block_size = 2};
        attn_problem p = attn_problem_create(&c, i);
        attn_on_every_tier(device, &p, attn_expect_reference);
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/* B17: block ids beyond 65,535, to read from and to append to, on both paths. */
Test(attn_decode, block_ids_beyond_16_bits) {
    const attn_case cases[] = {
        {"B17: decode", DECODE, .append = 1, .num_seqs = 1, .seqlens_k = INTS(4), .num_kv_heads = 1, .group = 2,
         .head_dim = 8, .block_size = 1},
        {"B17: varlen", VARLEN_PAGED, .append = 1, .num_seqs = 1, .seqlens_q = INTS(2), .seqlens_k = INTS(4),
         .num_kv_heads = 1, .group = 2, .head_dim = 8, .block_size = 1},
    };
    pagedcl_device *device = fixture_open();
    for (size_t i = 0; i < COUNT(cases); i++) {
        attn_problem p = attn_problem_create(&cases[i], 1);
        p.num_blocks = 70000;
        memcpy(p.block_table, INTS(65536, 65537, 0, 69999), 4 * sizeof(int32_t));
        attn_on_every_tier(device, &p, attn_expect_reference);
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/* ---- splits ---- */

/* B48, B50: any number of splits, more than there are keys too. One operator serves them all. */
Test(attn_decode, any_number_of_splits) {
    const int32_t splits[] = {PAGEDCL_SPLITS_FAST, 0, 1, 2, 3, 7, 8, 16, 64, 160, 161, 192, 255, 256, 257, 100000};
    const attn_case cases[] = {
        {"B48: 5000 keys", DECODE, .num_seqs = 2, .seqlens_k = INTS(5000, 1), .num_kv_heads = 1, .head_dim = 64},
        {"B50: few keys", DECODE, .num_seqs = 5, .seqlens_k = INTS(1, 2, 3, 7, 0), .head_dim = 64, .group = 2},
        {"B50: few keys, causal, 3 queries", DECODE, .num_seqs = 5, .seqlens_k = INTS(1, 2, 3, 7, 0), .head_dim = 64,
         .group = 2, .causal = 1, .seqlen_q = 3},
        {"append and split", DECODE, .append = 3, .seqlen_q = 2, .causal = 1, .seqlens_k = INTS(300, 3, 17),
         .head_dim = 64, .group = 2},
        {"halves, 20 rows", DECODE, .num_seqs = 2, .seqlens_k = INTS(5000, 700), .seqlen_q = 5, .causal = 1, .group = 4,
         .q_dtype = PAGEDCL_FLOAT16, .kv_dtype = PAGEDCL_FLOAT16, .out_dtype = PAGEDCL_FLOAT32},
    };
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    int num_tiers = fixture_tiers(device, tiers);
    for (size_t i = 0; i < COUNT(cases); i++) {
        attn_problem p = attn_problem_create(&cases[i], i);
        for (int t = 0; t < num_tiers; t++) {
            attn_rig rig = attn_rig_open(device, tiers[t], &p);
            for (size_t s = 0; s < COUNT(splits); s++) {
                p.c.num_splits = splits[s];
                expect_ok(attn_rig_plan(&rig, NULL));
                attn_rig_run(&rig, NULL, 0, NULL, NULL);
                attn_result result = attn_rig_read(&rig);
                char name[256];
                snprintf(name, sizeof(name), "%s, %d splits", rig.name, splits[s]);
                attn_expect_reference(&p, &result, name);
                attn_result_destroy(&result);
            }
            attn_rig_close(&rig);
        }
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/* More parts than a merge takes at once, and than it takes twice. */
Test(attn_decode, hundreds_of_parts) {
    const attn_case cases[] = {
        {"258 parts", DECODE, .num_seqs = 2, .seqlens_k = INTS(257 * PCL_SPLIT_KEYS + 1, 17 * PCL_SPLIT_KEYS),
         .num_kv_heads = 1, .group = 2, .head_dim = 8, .block_size = 256, .q_dtype = PAGEDCL_FLOAT16,
         .kv_dtype = PAGEDCL_FLOAT16, .out_dtype = PAGEDCL_FLOAT32},
    };
    attn_check_cases(cases, COUNT(cases));
}

Test(attn_decode, a_negative_number_of_splits_is_refused) {
    attn_case c = {"splits", DECODE, .num_splits = -2, .head_dim = 64, .group = 2};
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&c, 1);
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, &p);
    expect_refused(attn_rig_plan(&rig, NULL), PAGEDCL_INVALID_ARGUMENT, "num_splits");
    attn_rig_close(&rig);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}

/* One sequence of the rig's problem at length `seqlen`, planned anew on the same plan. */
static void decode_first(attn_rig *rig, int32_t num_seqs, int32_t seqlen, int32_t num_splits) {
    int32_t lengths[16];
    for (int i = 0; i < num_seqs; i++)
        lengths[i] = seqlen;
    pagedcl_decode_batch batch = PAGEDCL_DECODE_BATCH_INIT;
    batch.num_seqs = num_seqs;
    batch.seqlen_q = 1;
    batch.cache_seqlens = lengths;
    batch.block_table = rig->problem->block_table;
    batch.block_table_stride = rig->problem->block_table_stride;
    batch.num_splits = num_splits;
    expect_ok(pagedcl_plan_decode(rig->plan, NULL, &batch));
    attn_rig_run(rig, NULL, 0, NULL, NULL);
}

/* The first row of the result against the reference over the first `seqlen` keys of each sequence. */
static void expect_lengths(attn_rig *rig, int32_t num_seqs, int32_t seqlen, const char *name) {
    const attn_problem *p = rig->problem;
    attn_result result = attn_rig_read(rig);
    for (int32_t b = 0; b < num_seqs; b++) {
        attn_problem part = attn_problem_part(p, b, 0, 1, seqlen);
        attn_result row = {result.out + (int64_t)b * p->num_heads * p->c.head_dim, result.lse + b * p->num_heads};
        attn_expect_reference(&part, &row, name);
        attn_problem_destroy(&part);
    }
    attn_result_destroy(&result);
}

/* What the partial results of the plan's runs are before a run. */
static void poison_partials(const attn_rig *rig) {
    const uint32_t nan = UINT32_MAX;
    cl_mem buffers[] = {rig->plan->partial_acc, rig->plan->partial_sums};
    for (size_t i = 0; i < COUNT(buffers); i++) {
        size_t size = 0;
        if (buffers[i] == NULL)
            continue;
        expect_cl(clGetMemObjectInfo(buffers[i], CL_MEM_SIZE, sizeof(size), &size, NULL));
        expect_cl(clEnqueueFillBuffer(pagedcl_device_queue(rig->device), buffers[i], &nan, sizeof(nan), 0, size, 0,
                                      NULL, NULL));
    }
}

/* A step of one sequence that appends its tokens old .. new - 1, and the row that comes out. */
static void take_step(attn_rig *rig, const guarded rows[2], int32_t old, int32_t new, int32_t num_splits) {
    const attn_problem *p = rig->problem;
    const int64_t width = (int64_t)p->c.num_kv_heads * p->c.head_dim;
    pagedcl_decode_batch batch = PAGEDCL_DECODE_BATCH_INIT;
    batch.num_seqs = batch.seqlen_q = 1;
    batch.seqlen_new = new - old;
    batch.cache_seqlens = &old;
    batch.block_table = p->block_table;
    batch.block_table_stride = p->block_table_stride;
    batch.num_splits = num_splits;
    expect_ok(pagedcl_plan_decode(rig->plan, NULL, &batch));
    poison_partials(rig);
    pagedcl_attn_args args = attn_rig_args(rig);
    if (new > old) {
        args.k_new = (pagedcl_tensor){.mem = rows[0].mem, .offset = old * width};
        args.v_new = (pagedcl_tensor){.mem = rows[1].mem, .offset = old * width};
    }
    expect_ok(pagedcl_attn_run(rig->attn, NULL, rig->plan, &args, 0, NULL, NULL));
    const size_t heads = (size_t)p->num_heads, size = heads * (size_t)p->c.head_dim * sizeof(float);
    attn_result result = {fixture_alloc(size), fixture_alloc(heads * sizeof(float))};
    cl_command_queue queue = pagedcl_device_queue(rig->device);
    expect_cl(clEnqueueReadBuffer(queue, rig->out.view.mem, CL_TRUE, 0, size, result.out, 0, NULL, NULL));
    const size_t at = (size_t)args.lse_offset * sizeof(float);
    expect_cl(clEnqueueReadBuffer(queue, args.lse, CL_TRUE, at, heads * sizeof(float), result.lse, 0, NULL, NULL));
    attn_problem part = attn_problem_part(p, 0, 0, 1, new);
    char name[256];
    snprintf(name, sizeof(name), "%s, from %d to %d tokens, %d splits", rig->name, old, new, num_splits);
    attn_expect_reference(&part, &result, name);
    attn_problem_destroy(&part);
    attn_result_destroy(&result);
}

/* B49: a sequence that grows from nothing, token by token around the edges of blocks and splits, with the library's
   choice of splits, one split, and as many as the device would like. What was not stored yet is NaN. */
Test(attn_decode, a_sequence_grows_step_by_step, .timeout = 300) {
    enum { LENGTH = 1100 };
    attn_case c = {"B49",      DECODE,        .num_seqs = 1, .seqlens_k = INTS(LENGTH), .num_kv_heads = 1,
                   .group = 2, .head_dim = 16};
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    attn_problem p = attn_problem_create(&c, 1);
    cr_assert(PCL_SPLIT_KEYS == 512, "the steps around the edges of splits are others now");
    const size_t bytes = LENGTH * 16 * sizeof(float);
    const guarded rows[2] = {guarded_create(device, bytes, p.k), guarded_create(device, bytes, p.v)};
    for (int t = 0, n = fixture_tiers(device, tiers); t < n; t++) {
        attn_rig rig = attn_rig_open(device, tiers[t], &p);
        const size_t pool_bytes = (size_t)p.num_blocks * 16 * 16 * sizeof(float);
        void *poison = fixture_poisoned(pool_bytes);
        expect_ok(pagedcl_cache_upload_blocks(rig.cache, NULL, 0, NULL, p.num_blocks, poison, poison, 0, NULL, NULL));
        for (int32_t old = 0, new = 0; old < LENGTH; old = new) {
            new = old == 70 ? 500 : old == 540 ? 1010 : old == 1050 ? LENGTH : old + 1;
            take_step(&rig, rows, old, new, 0);
            take_step(&rig, rows, new, new, 1);
            take_step(&rig, rows, new, new, PAGEDCL_SPLITS_FAST);
        }
        attn_result last = attn_rig_read(&rig); /* the whole pool is what it must be */
        attn_expect_reference(&p, &last, rig.name);
        attn_result_destroy(&last);
        free(poison);
        attn_rig_close(&rig);
    }
    for (int i = 0; i < 2; i++) {
        guarded copy = rows[i];
        guarded_destroy(&copy);
    }
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}

/* B66: the same plan for a short batch, a long one, and a wide one. */
Test(attn_decode, one_plan_for_growing_batches) {
    attn_case c = {"B66",
                   DECODE,
                   .num_seqs = 9,
                   .num_kv_heads = 1,
                   .group = 2,
                   .head_dim = 8,
                   .seqlens_k = INTS(4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096)};
    const int32_t steps[][2] = {{1, 64}, {1, 4096}, {9, 64}, {9, 4096}, {1, 64}, {2, 1}, {9, 4095}};
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    attn_problem p = attn_problem_create(&c, 1);
    for (int t = 0, n = fixture_tiers(device, tiers); t < n; t++) {
        attn_rig rig = attn_rig_open(device, tiers[t], &p);
        for (size_t i = 0; i < COUNT(steps); i++) {
            char name[256];
            snprintf(name, sizeof(name), "%s, %d sequences of %d", rig.name, steps[i][0], steps[i][1]);
            decode_first(&rig, steps[i][0], steps[i][1], 0);
            expect_lengths(&rig, steps[i][0], steps[i][1], name);
        }
        attn_rig_close(&rig);
    }
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}

/* ---- accumulation ---- */

static void expect_the_value(const attn_problem *p, const attn_result *result, const char *name) {
    float want = p->v[0], allowed = want * (32.0f / 60000.0f);
    for (int i = 0; i < attn_total_q(p) * p->num_heads * p->c.head_dim; i++)
        cr_assert(fabsf(result->out[i] - want) <= allowed, "%s: element %d: got %g, want %g", name, i,
                  (double)result->out[i], (double)want);
}

/* B58, B61: with q = 0 and one value everywhere, sums in a 16-bit type would overflow or stick. */
Test(attn_decode, long_sums_are_in_float32) {
    const struct {
        attn_case c;
        float value;
    } cases[] = {
        {{"B58: 32,768 times 60000", DECODE, .num_seqs = 1, .seqlens_k = INTS(32768), .num_kv_heads = 1, .group = 1,
          .head_dim = 8, .q_dtype = F16, .kv_dtype = F16, .out_dtype = F16},
         60000},
        {{"B58: 70,000 times 1", DECODE, .num_seqs = 1, .seqlens_k = INTS(70000), .num_kv_heads = 1, .group = 1,
          .head_dim = 8, .q_dtype = F16, .kv_dtype = F16, .out_dtype = F16},
         1},
        {{"B58: 70,000 times 1, varlen", VARLEN_PAGED, .num_seqs = 1, .seqlens_q = INTS(2), .seqlens_k = INTS(70000),
          .num_kv_heads = 1, .group = 1, .head_dim = 8, .q_dtype = F16, .kv_dtype = F16, .out_dtype = F16},
         1},
        {{"B58: 32,768 times 60000, packed", VARLEN_PACKED, .num_seqs = 1, .seqlens_q = INTS(2),
          .seqlens_k = INTS(32768), .num_kv_heads = 1, .group = 1, .head_dim = 8, .q_dtype = F16, .kv_dtype = F16,
          .out_dtype = F16},
         60000},
        {{"B61: bfloat16, 4096 times 1, varlen", VARLEN_PAGED, .num_seqs = 1, .seqlens_q = INTS(2),
          .seqlens_k = INTS(4096), .num_kv_heads = 1, .group = 1, .head_dim = 8, .q_dtype = BF16, .kv_dtype = BF16,
          .out_dtype = BF16},
         1},
        {{"B61: bfloat16, 4096 times 1", DECODE, .num_seqs = 1, .seqlens_k = INTS(4096), .num_kv_heads = 1, .group = 1,
          .head_dim = 8, .q_dtype = BF16, .kv_dtype = BF16, .out_dtype = BF16},
         1},
    };
    pagedcl_device *device = fixture_open();
    for (size_t i = 0; i < COUNT(cases); i++) {
        attn_problem p = attn_problem_create(&cases[i].c, 1);
        for (int e = 0; e < attn_total_q(&p) * 8; e++)
            p.q[e] = 0;
        for (int64_t e = 0; e < (int64_t)attn_total_k(&p) * 8; e++)
            p.v[e] = cases[i].value;
        for (int32_t splits = 0; splits <= 1; splits++) {
            p.c.num_splits = splits;
            attn_on_every_tier(device, &p, expect_the_value);
        }
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/* ---- batches ---- */

/* B21: exactly full is fine. */
Test(attn_decode, the_last_slot_of_the_table_is_used) {
    attn_case c = {"B21", DECODE, .append = 1, .num_seqs = 1, .seqlens_k = INTS(32), .head_dim = 64, .group = 2};
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&c, 1);
    p.block_table_stride = 2;
    attn_on_every_tier(device, &p, attn_expect_reference);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}

/* B21, B23, B28 and the kind around them: refused, and the batch from before stands. */
Test(attn_decode, bad_batches_are_refused_and_change_nothing) {
    const struct {
        const char *name;
        int32_t cache_seqlens[2], table[4], stride, seqlen_q, seqlen_new;
        pagedcl_status status;
        const char *words;
    } cases[] = {
        {"B21: full table", {1, 32}, {0, 1, 2, 3}, 2, 1, 1, PAGEDCL_CAPACITY, "sequence 1"},
        {"B28: full block", {16, 1}, {0, 1}, 1, 1, 1, PAGEDCL_CAPACITY, "sequence 0"},
        {"B28: next block not allocated", {16, 1}, {0, -1, 2, 3}, 2, 1, 1, PAGEDCL_INVALID_BLOCK, "sequence 0"},
        {"too many new tokens", {1, 20}, {0, 1, 2, 3}, 2, 1, 13, PAGEDCL_CAPACITY, "sequence 1"},
        {"the most new tokens", {1, 20}, {0, 1, 2, 3}, 2, 1, INT32_MAX, PAGEDCL_INVALID_LENGTH, "2147483647"},
        {"B23: block id 6", {1, 17}, {0, 1, 2, 6}, 2, 1, 0, PAGEDCL_INVALID_BLOCK, "sequence 1"},
        {"B23: block id -5", {1, 17}, {0, 1, 2, -5}, 2, 1, 0, PAGEDCL_INVALID_BLOCK, "sequence 1"},
        {"B23: the largest block id", {1, 17}, {0, 1, 2, INT32_MAX}, 2, 1, 0, PAGEDCL_INVALID_BLOCK, "sequence 1"},
        {"block not allocated", {17, 1}, {0, -1, 2, 3}, 2, 1, 0, PAGEDCL_INVALID_BLOCK, "sequence 0"},
        {"negative length", {1, -1}, {0, 1, 2, 3}, 2, 1, 0, PAGEDCL_INVALID_LENGTH, "sequence 1"},
        {"longer than the table", {33, 1}, {0, 1, 2, 3}, 2, 1, 0, PAGEDCL_CAPACITY, "sequence 0"},
        {"the largest length", {INT32_MAX, 1}, {0, 1, 2, 3}, 2, 1, 1, PAGEDCL_INVALID_LENGTH, "sequence 0"},
        {"two appends to one block", {1, 2}, {0, 1, 0, 3}, 2, 1, 1, PAGEDCL_INVALID_BLOCK, "sequence 1"},
        {"no queries", {1, 1}, {0, 1, 2, 3}, 2, 0, 0, PAGEDCL_INVALID_ARGUMENT, "seqlen_q"},
        {"fewer than no new tokens", {1, 1}, {0, 1, 2, 3}, 2, 1, -1, PAGEDCL_INVALID_ARGUMENT, "seqlen_new"},
        {"negative stride", {0, 0}, {0, 1, 2, 3}, -1, 1, 0, PAGEDCL_INVALID_ARGUMENT, "stride"},
    };
    attn_case c = {"bad batches", DECODE, .num_seqs = 2, .seqlens_k = INTS(17, 1), .head_dim = 64, .group = 2};
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&c, 1);
    cr_assert_eq(p.num_blocks, 6);
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, &p);
    expect_ok(attn_rig_plan(&rig, NULL));
    for (size_t i = 0; i < COUNT(cases); i++) {
        pagedcl_decode_batch batch = PAGEDCL_DECODE_BATCH_INIT;
        batch.num_seqs = 2;
        batch.seqlen_q = cases[i].seqlen_q;
        batch.seqlen_new = cases[i].seqlen_new;
        batch.cache_seqlens = cases[i].cache_seqlens;
        batch.block_table = cases[i].table;
        batch.block_table_stride = cases[i].stride;
        pagedcl_status status = pagedcl_plan_decode(rig.plan, NULL, &batch);
        cr_assert_eq(status, cases[i].status, "%s: %s: %s", cases[i].name, pagedcl_status_name(status),
                     pagedcl_last_error());
        cr_assert(strstr(pagedcl_last_error(), cases[i].words), "%s: %s", cases[i].name, pagedcl_last_error());
    }
    attn_rig_run(&rig, NULL, 0, NULL, NULL);
    attn_result result = attn_rig_read(&rig);
    attn_expect_reference(&p, &result, "the batch from before");
    attn_result_destroy(&result);
    attn_rig_close(&rig);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}

/* B125 */
Test(attn_decode, an_empty_batch_is_no_error) {
    attn_case c = {"B125", DECODE, .head_dim = 64, .group = 2};
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&c, 1);
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, &p);
    for (int32_t seqlen_new = 0; seqlen_new <= 1; seqlen_new++) {
        pagedcl_decode_batch batch = PAGEDCL_DECODE_BATCH_INIT;
        batch.seqlen_q = 1;
        batch.seqlen_new = seqlen_new;
        expect_ok(pagedcl_plan_decode(rig.plan, NULL, &batch));
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
