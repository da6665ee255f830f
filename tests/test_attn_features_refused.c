/* SPDX-License-Identifier: Apache-2.0 */
/* What an operator with features refuses: descriptions, tensors, batches, pools. */
#include "support/attn_rig.h"
#include "support/expect.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define F32 PAGEDCL_FLOAT32
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define INTS(...) ((const int32_t[]){__VA_ARGS__})
#define SHAPE .head_dim = 24

Test(attn_features_refused, impossible_descriptions_are_refused) {
    const struct {
        size_t field;
        int32_t value;
        pagedcl_status status;
        const char *words;
    } cases[] = {
#define FIELD(name) offsetof(pagedcl_attn_desc, name)
        {FIELD(head_dim_v), 577, PAGEDCL_UNSUPPORTED, "head_dim_v"},
        {FIELD(head_dim_v), -1, PAGEDCL_UNSUPPORTED, "head_dim_v"},
        {FIELD(has_window), 2, PAGEDCL_INVALID_ARGUMENT, "has_window"},
        {FIELD(window_left), 1, PAGEDCL_INVALID_ARGUMENT, "has_window"},
        {FIELD(window_right), 1, PAGEDCL_INVALID_ARGUMENT, "has_window"},
        {FIELD(window_left), -2, PAGEDCL_INVALID_ARGUMENT, "has_window"},
        {FIELD(window_right), -2, PAGEDCL_INVALID_ARGUMENT, "has_window"},
        {FIELD(has_alibi), -1, PAGEDCL_INVALID_ARGUMENT, "has_alibi"},
        {FIELD(has_sinks), 2, PAGEDCL_INVALID_ARGUMENT, "has_sinks"},
        {FIELD(has_tree), 2, PAGEDCL_INVALID_ARGUMENT, "has_tree"},
        {FIELD(rotary_dim), 3, PAGEDCL_INVALID_ARGUMENT, "rotary_dim"},
        {FIELD(rotary_dim), -2, PAGEDCL_INVALID_ARGUMENT, "rotary_dim"},
        {FIELD(rotary_dim), 26, PAGEDCL_INVALID_ARGUMENT, "rotary_dim"},
        {FIELD(rotary_interleaved), 2, PAGEDCL_INVALID_ARGUMENT, "rotary_interleaved"},
        {FIELD(rotary_interleaved), 1, PAGEDCL_INVALID_ARGUMENT, "rotary_interleaved"},
        {FIELD(paths), 3, PAGEDCL_INVALID_ARGUMENT, "paths"},
        {FIELD(paths), PAGEDCL_PATH_DECODE, PAGEDCL_INVALID_ARGUMENT, "without a cache"},
#undef FIELD
    };
    pagedcl_device *device = fixture_open();
    const pagedcl_attn_desc good = {
        .struct_size = sizeof(pagedcl_attn_desc), .num_heads = 2, .num_kv_heads = 1, .head_dim = 24};
    pagedcl_attn *attn = NULL;
    for (size_t i = 0; i < COUNT(cases); i++) {
        pagedcl_attn_desc desc = good;
        memcpy((char *)&desc + cases[i].field, &cases[i].value, sizeof(int32_t));
        expect_refused(pagedcl_attn_create(device, &desc, &attn), cases[i].status, cases[i].words);
    }
    const float softcaps[] = {-1, NAN, INFINITY};
    for (size_t i = 0; i < COUNT(softcaps); i++) {
        pagedcl_attn_desc desc = good;
        desc.softcap = softcaps[i];
        expect_refused(pagedcl_attn_create(device, &desc, &attn), PAGEDCL_INVALID_ARGUMENT, "softcap");
    }
    pagedcl_attn_desc desc = good;
    desc.has_window = 1;
    desc.window_left = -2;
    expect_refused(pagedcl_attn_create(device, &desc, &attn), PAGEDCL_INVALID_ARGUMENT, "window_left");
    desc.window_left = 0;
    desc.window_right = -2;
    expect_refused(pagedcl_attn_create(device, &desc, &attn), PAGEDCL_INVALID_ARGUMENT, "window_right");
    cr_assert_null(attn);
    pagedcl_device_destroy(device);
}

/* A tensor of a feature is there when, and only when, the operator has the feature. Nothing is written otherwise. */
static void expect_runs_refused(pagedcl_device *device, const attn_problem *p, bool has) {
    const struct {
        size_t mem, offset;
        const char *words;
    } tensors[] = {
#define TENSOR(mem, offset) offsetof(pagedcl_attn_args, mem), offsetof(pagedcl_attn_args, offset)
        {TENSOR(alibi_slopes, alibi_offset), "alibi_slopes"},
        {TENSOR(sinks, sinks_offset), "sinks"},
        {TENSOR(rotary_cos, rotary_cos_offset), "rotary_cos"},
        {TENSOR(rotary_sin, rotary_sin_offset), "rotary_sin"},
#undef TENSOR
    };
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, p);
    expect_ok(attn_rig_plan(&rig, NULL));
#define RUN(args) pagedcl_attn_run(rig.attn, NULL, rig.plan, args, 0, NULL, NULL)
    for (size_t i = 0; i < COUNT(tensors); i++) {
        pagedcl_attn_args args = attn_rig_args(&rig);
        cl_mem mem = has ? NULL : rig.q.view.mem;
        memcpy((char *)&args + tensors[i].mem, &mem, sizeof(mem));
        expect_refused(RUN(&args), PAGEDCL_INVALID_ARGUMENT, tensors[i].words);
        const int64_t offsets[] = {-1, 4}; /* 3 is the last that fits */
        for (int j = 0; j < 2; j++) {
            args = attn_rig_args(&rig);
            memcpy((char *)&args + tensors[i].offset, &offsets[j], sizeof(int64_t));
            expect_refused(RUN(&args), has && j == 1 ? PAGEDCL_BUFFER_TOO_SMALL : PAGEDCL_INVALID_ARGUMENT,
                           tensors[i].words);
        }
    }
    pagedcl_attn_args args = attn_rig_args(&rig);
    if (!has) {
        args.alibi_seq_stride = p->num_heads;
        expect_refused(RUN(&args), PAGEDCL_INVALID_ARGUMENT, "alibi_seq_stride");
        args = attn_rig_args(&rig);
        args.rotary_positions = 1000;
        expect_refused(RUN(&args), PAGEDCL_INVALID_ARGUMENT, "rotary_positions");
        args = attn_rig_args(&rig);
        args.lse = NULL;
        expect_refused(RUN(&args), PAGEDCL_INVALID_ARGUMENT, "lse_offset");
    }
    if (has) {
        args.rotary_positions--;
        expect_refused(RUN(&args), PAGEDCL_BUFFER_TOO_SMALL, "rotary");
        args.rotary_positions = INT64_MAX;
        expect_refused(RUN(&args), PAGEDCL_SIZE_OVERFLOW, "rotary");
        args = attn_rig_args(&rig);
        args.alibi_seq_stride = -1;
        expect_refused(RUN(&args), PAGEDCL_INVALID_ARGUMENT, "alibi_seq_stride");
        args.alibi_seq_stride = INT64_MAX;
        expect_refused(RUN(&args), PAGEDCL_INVALID_ARGUMENT, "alibi_seq_stride");
        args.alibi_seq_stride = p->num_heads + 1;
        expect_refused(RUN(&args), PAGEDCL_BUFFER_TOO_SMALL, "alibi_slopes");
    }
#undef RUN
    unsigned char *out = guarded_read(device, &rig.out.buffer, rig.name);
    unsigned char *poison = fixture_poisoned(rig.out.buffer.bytes);
    expect_same_bytes(rig.name, "out", out, poison, rig.out.buffer.bytes);
    free(out);
    free(poison);
    attn_rig_close(&rig);
}

Test(attn_features_refused, tensors_come_with_their_feature) {
    const attn_case with = {"with", .alibi = 2, .sinks = true, .rotary_dim = 6, .seqlens_k = INTS(30, 1, 17), SHAPE};
    const attn_case without = {"without", SHAPE};
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&with, 1);
    expect_runs_refused(device, &p, true);
    attn_problem_destroy(&p);
    p = attn_problem_create(&without, 1);
    expect_runs_refused(device, &p, false);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}

/* Keys that nothing would read, by any of their fields: packed ones of a pool, new ones of packed keys, and new ones
   that the plan does not append. */
Test(attn_features_refused, tensors_that_nothing_reads_are_refused) {
    const struct {
        attn_case c;
        size_t tensors[4];
        const char *names[4];
    } cases[] = {
#define TENSOR(name) offsetof(pagedcl_attn_args, name)
        {{"packed", SHAPE}, {TENSOR(k_new), TENSOR(v_new)}, {"k_new", "v_new"}},
        {{"paged", VARLEN_PAGED, SHAPE},
         {TENSOR(k), TENSOR(v), TENSOR(k_new), TENSOR(v_new)},
         {"k", "v", "k_new", "v_new"}},
        {{"decode", DECODE, SHAPE}, {TENSOR(k), TENSOR(v), TENSOR(k_new), TENSOR(v_new)}, {"k", "v", "k_new", "v_new"}},
        {{"decode, append", DECODE, .append = 1, SHAPE}, {TENSOR(k), TENSOR(v)}, {"k", "v"}},
        {{"V in K", DECODE, .append = 1, .v_in_k = true, SHAPE}, {TENSOR(v_new)}, {"v_new"}},
#undef TENSOR
    };
    pagedcl_device *device = fixture_open();
    for (size_t i = 0; i < COUNT(cases); i++) {
        attn_problem p = attn_problem_create(&cases[i].c, 1);
        attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, &p);
        expect_ok(attn_rig_plan(&rig, NULL));
        const pagedcl_tensor given[] = {rig.q.view, {.offset = 1}, {.token_stride = 1}, {.head_stride = 1}};
        for (int t = 0; t < 4 && cases[i].names[t]; t++)
            for (size_t g = 0; g < COUNT(given); g++) {
                pagedcl_attn_args args = attn_rig_args(&rig);
                memcpy((char *)&args + cases[i].tensors[t], &given[g], sizeof(given[g]));
                char words[32];
                snprintf(words, sizeof(words), "%s is given", cases[i].names[t]);
                expect_refused(pagedcl_attn_run(rig.attn, NULL, rig.plan, &args, 0, NULL, NULL),
                               PAGEDCL_INVALID_ARGUMENT, words);
            }
        attn_rig_run(&rig, NULL, 0, NULL, NULL);
        attn_result result = attn_rig_read(&rig);
        attn_expect_reference(&p, &result, rig.name);
        attn_result_destroy(&result);
        attn_rig_close(&rig);
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/* Batches that do not suit the operator's features. */
Test(attn_features_refused, batches_fit_the_operator) {
    pagedcl_device *device = fixture_open();
    const int32_t q[] = {0, 5}, k[] = {0, 4};
    const uint32_t masks[5] = {0};
    attn_case c = {"batches", .num_seqs = 1, .rotary_dim = 6, .seqlens_q = INTS(4), .seqlens_k = INTS(4), SHAPE};
    for (int has_tree = 0; has_tree <= 1; has_tree++) {
        c.tree = has_tree;
        attn_problem p = attn_problem_create(&c, 1);
        attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, &p);
        pagedcl_varlen_batch batch = PAGEDCL_VARLEN_BATCH_INIT;
        batch.num_seqs = 1;
        batch.cu_seqlens_q = q;
        batch.cu_seqlens_k = k;
        batch.tree_mask = has_tree ? NULL : masks;
        expect_refused(pagedcl_plan_varlen(rig.plan, NULL, &batch), PAGEDCL_INVALID_ARGUMENT, "tree_mask");
        if (!has_tree) { /* of no sequence either */
            batch.num_seqs = 0;
            expect_refused(pagedcl_plan_varlen(rig.plan, NULL, &batch), PAGEDCL_INVALID_ARGUMENT, "tree_mask");
            batch.num_seqs = 1;
        }
        batch.tree_mask = has_tree ? masks : NULL;
        expect_refused(pagedcl_plan_varlen(rig.plan, NULL, &batch), PAGEDCL_INVALID_LENGTH, "sequence 0");
        batch.block_table_stride = 1;
        expect_refused(pagedcl_plan_varlen(rig.plan, NULL, &batch), PAGEDCL_INVALID_ARGUMENT, "block_table_stride");
        attn_rig_close(&rig);
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/* V that lies in K is neither given nor stored. */
Test(attn_features_refused, v_in_k_takes_no_v) {
    attn_case c = {"v_in_k",    DECODE,         .v_in_k = true,  .num_kv_heads = 1, .group = 2,
                   .append = 1, .head_dim = 12, .head_dim_v = 8, .num_seqs = 1};
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&c, 1);
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, &p);
    expect_ok(attn_rig_plan(&rig, NULL));
    pagedcl_attn_args args = attn_rig_args(&rig);
    args.v_new = args.k_new;
    expect_refused(pagedcl_attn_run(rig.attn, NULL, rig.plan, &args, 0, NULL, NULL), PAGEDCL_INVALID_ARGUMENT, "v_new");
    attn_rig_close(&rig);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}

Test(attn_features_refused, impossible_pools_are_refused) {
    pagedcl_device *device = fixture_open();
    guarded buffer = guarded_create(device, 2 * 4 * 3 * 8 * sizeof(float), NULL);
    pagedcl_pool_buffers buffers = {.k = buffer.mem, .v = buffer.mem};
    const pagedcl_cache_desc good = {.struct_size = sizeof(pagedcl_cache_desc),
                                     .num_blocks = 2,
                                     .block_size = 4,
                                     .num_kv_heads = 3,
                                     .head_dim = 8,
                                     .dtype = F32};
    pagedcl_cache *cache = NULL;
    pagedcl_cache_desc desc = good;
#define REFUSED(status, words) expect_refused(pagedcl_cache_create(device, &desc, &cache), status, words)
    desc.head_dim_v = 577;
    REFUSED(PAGEDCL_UNSUPPORTED, "head_dim_v");
    desc.head_dim_v = 9;
    desc.v_in_k = 1;
    REFUSED(PAGEDCL_INVALID_ARGUMENT, "v_in_k");
    desc.head_dim_v = 8;
    desc.v_in_k = 2;
    REFUSED(PAGEDCL_INVALID_ARGUMENT, "v_in_k");
    desc = good;
    desc.layout = (pagedcl_layout)2;
    REFUSED(PAGEDCL_INVALID_ARGUMENT, "layout");
    desc = good;
    desc.buffers = &buffers;
    buffers.k_offset = 1;
    REFUSED(PAGEDCL_BUFFER_TOO_SMALL, "K of layer 0");
    buffers.k_offset = -1;
    REFUSED(PAGEDCL_INVALID_ARGUMENT, "K of layer 0");
    buffers.k_offset = 0;
    buffers.v = NULL;
    REFUSED(PAGEDCL_INVALID_ARGUMENT, "V of layer 0");
    buffers.v = buffer.mem;
    desc.v_strides = (pagedcl_pool_strides){.block = 97, .token = 24, .head = 8};
    REFUSED(PAGEDCL_BUFFER_TOO_SMALL, "V of layer 0");
    desc.v_strides.block = -96;
    REFUSED(PAGEDCL_INVALID_ARGUMENT, "stride");
    desc.v_strides.block = INT64_MAX;
    REFUSED(PAGEDCL_SIZE_OVERFLOW, "the strides of the pool's V");

    /* B29: buffers of heads of 8, described as heads of 16. */
    desc = good;
    desc.buffers = &buffers;
    desc.head_dim = 16;
    REFUSED(PAGEDCL_BUFFER_TOO_SMALL, "K of layer 0");

    /* What belongs to something that the pool does not have. */
    desc = good;
    desc.v_strides = (pagedcl_pool_strides){.token = 24};
    REFUSED(PAGEDCL_INVALID_ARGUMENT, "v_strides");
    desc = good;
    desc.k_strides.block = 96;
    REFUSED(PAGEDCL_INVALID_ARGUMENT, "k_strides");
    desc = good;
    desc.buffers = &buffers;
    desc.max_segment_bytes = 1 << 20;
    REFUSED(PAGEDCL_INVALID_ARGUMENT, "max_segment_bytes");
    desc.max_segment_bytes = 0;
    desc.v_in_k = 1;
    REFUSED(PAGEDCL_INVALID_ARGUMENT, "buffers[0] has a v");
    buffers.v = NULL;
    buffers.v_offset = 8;
    REFUSED(PAGEDCL_INVALID_ARGUMENT, "v_offset");
    buffers.v_offset = 0;
    desc.v_strides.head = 8;
    REFUSED(PAGEDCL_INVALID_ARGUMENT, "v_strides");
#undef REFUSED
    cr_assert_null(cache);
    guarded_destroy(&buffer);
    pagedcl_device_destroy(device);
}
