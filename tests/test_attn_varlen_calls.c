/* SPDX-License-Identifier: Apache-2.0 */
/* What the calls of varlen attention take and refuse: descriptions, batches, runs. */
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

/* ---- operators ---- */

static pagedcl_attn_desc good_desc(void) {
    pagedcl_attn_desc desc = PAGEDCL_ATTN_DESC_INIT;
    desc.num_heads = 4;
    desc.num_kv_heads = 2;
    desc.head_dim = 64;
    return desc;
}

Test(attn_varlen_calls, description_comes_back_with_its_defaults) {
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
Test(attn_varlen_calls, impossible_operators_are_refused) {
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
Test(attn_varlen_calls, bad_batches_are_refused_and_change_nothing) {
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
Test(attn_varlen_calls, sequences_may_share_blocks_they_read) {
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
Test(attn_varlen_calls, bad_runs_write_nothing) {
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
Test(attn_varlen_calls, nothing_to_do_is_no_error) {
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
