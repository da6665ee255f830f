/* SPDX-License-Identifier: Apache-2.0 */
#include "attn_rig.h"

#include "expect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- open and close ---- */

static void open_pool(attn_rig *rig) {
    const attn_problem *p = rig->problem;
    pool_model before = attn_problem_pool(p, false);
    pagedcl_cache_desc desc = before.desc;
    if (pool_form_is_adopted(p->c.pool)) {
        rig->adopted = adopted_pool_create(rig->device, p->c.pool, &before);
        adopted_pool_describe(&rig->adopted, &desc);
    }
    pagedcl_status status = pagedcl_cache_create(rig->device, &desc, &rig->cache);
    cr_assert_eq(status, PAGEDCL_SUCCESS, "%s: %s", rig->name, pagedcl_last_error());
    if (!pool_form_is_adopted(p->c.pool) && !p->c.scale_per_row)
        pool_model_upload(&before, rig->cache);
    pool_model_destroy(&before);
    rig->pool = attn_problem_pool(p, true);
    int32_t heads = p->c.num_kv_heads;
    rig->k_new =
        strided_create(rig->device, p->c.q_dtype, p->total_new, heads, p->c.head_dim, p->c.layout, 0, p->k_new);
    if (!p->c.v_in_k)
        rig->v_new =
            strided_create(rig->device, p->c.q_dtype, p->total_new, heads, p->c.head_dim_v, p->c.layout, 0, p->v_new);
}

/* Floats of a feature behind three of poison. */
enum { FLOATS_OFFSET = 3 };
static guarded open_floats(const pagedcl_device *device, const float *values, int64_t count) {
    if (!values)
        return (guarded){0};
    float *content = fixture_poisoned((size_t)(FLOATS_OFFSET + count) * sizeof(float));
    memcpy(content + FLOATS_OFFSET, values, (size_t)count * sizeof(float));
    guarded buffer = guarded_create(device, (size_t)(FLOATS_OFFSET + count) * sizeof(float), content);
    free(content);
    return buffer;
}

static void open_features(attn_rig *rig, pagedcl_attn_desc *desc) {
    const attn_problem *p = rig->problem;
    if (p->c.window) {
        desc->has_window = 1;
        desc->window_left = p->c.window[0];
        desc->window_right = p->c.window[1];
    }
    desc->softcap = p->c.softcap;
    desc->has_alibi = p->c.alibi != 0;
    desc->has_sinks = p->c.sinks;
    desc->has_tree = p->c.tree;
    desc->rotary_dim = p->c.rotary_dim;
    desc->rotary_interleaved = p->c.rotary_interleaved;
    int64_t angles = (int64_t)attn_rotary_positions(p) * (p->c.rotary_dim / 2);
    rig->alibi_slopes =
        open_floats(rig->device, p->alibi_slopes, (int64_t)p->num_heads * (p->c.alibi == 2 ? p->c.num_seqs : 1));
    rig->sinks = open_floats(rig->device, p->sinks, p->num_heads);
    rig->rotary_cos = open_floats(rig->device, p->rotary_cos, angles);
    rig->rotary_sin = open_floats(rig->device, p->rotary_sin, angles);
}

/* A table behind two entries of poison. */
enum { TABLE_OFFSET = 2 };
static guarded open_table(const pagedcl_device *device, const attn_problem *p) {
    size_t entries = (size_t)p->c.num_seqs * (size_t)p->block_table_stride;
    int32_t *content = fixture_poisoned((TABLE_OFFSET + entries) * sizeof(int32_t));
    memcpy(content + TABLE_OFFSET, p->block_table, entries * sizeof(int32_t));
    guarded buffer = guarded_create(device, (TABLE_OFFSET + entries) * sizeof(int32_t), content);
    free(content);
    return buffer;
}

attn_rig attn_rig_open(pagedcl_device *device, pagedcl_tier tier, const attn_problem *p) {
    attn_rig rig = {.problem = p, .device = device};
    snprintf(rig.name, sizeof(rig.name), "%s, %s", p->c.name, pagedcl_tier_name(tier));
    if (p->c.device_table)
        rig.block_table = open_table(device, p);
    pagedcl_attn_desc desc = PAGEDCL_ATTN_DESC_INIT;
    if (p->c.path == VARLEN_PACKED) {
        desc.num_kv_heads = p->c.num_kv_heads;
        desc.head_dim = p->c.head_dim;
        desc.head_dim_v = p->c.head_dim_v;
        desc.kv_dtype = p->c.kv_dtype;
        rig.k = strided_create(device, p->c.kv_dtype, attn_total_k(p), p->c.num_kv_heads, p->c.head_dim, p->c.layout, 0,
                               p->k);
        rig.v = strided_create(device, p->c.kv_dtype, attn_total_k(p), p->c.num_kv_heads, p->c.head_dim_v, p->c.layout,
                               0, p->v);
    } else {
        open_pool(&rig);
        desc.cache = rig.cache;
    }
    desc.num_heads = p->num_heads;
    desc.q_dtype = p->c.q_dtype;
    desc.out_dtype = p->c.out_dtype;
    desc.softmax_scale = p->c.scale;
    desc.causal = p->c.causal;
    desc.device_tables = p->c.device_table;
    if (!p->c.both_paths)
        desc.paths = p->c.path == DECODE ? PAGEDCL_PATH_DECODE : PAGEDCL_PATH_VARLEN;
    open_features(&rig, &desc);
    pagedcl_status status = fixture_attn_create(device, &desc, tier, &rig.attn);
    cr_assert_eq(status, PAGEDCL_SUCCESS, "%s: %s", rig.name, pagedcl_last_error());
    expect_ok(pagedcl_plan_create(rig.attn, &rig.plan));

    int32_t total_q = attn_total_q(p);
    rig.q = strided_create(device, p->c.q_dtype, total_q, p->num_heads, p->c.head_dim, p->c.layout, 0, p->q);
    rig.out = strided_create(device, p->c.out_dtype, total_q, p->num_heads, p->c.head_dim_v, p->c.layout, 3, NULL);
    /* Two rows of heads before and three behind that no sequence owns. */
    rig.lse = guarded_create(device, (size_t)(total_q + 5) * (size_t)p->num_heads * sizeof(float), NULL);
    return rig;
}

void attn_rig_close(attn_rig *rig) {
    pagedcl_plan_destroy(rig->plan);
    pagedcl_attn_destroy(rig->attn);
    pagedcl_cache_destroy(rig->cache);
    pool_model_destroy(&rig->pool);
    adopted_pool_destroy(&rig->adopted);
    strided *tensors[] = {&rig->q, &rig->k, &rig->v, &rig->k_new, &rig->v_new, &rig->out};
    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++)
        strided_destroy(tensors[i]);
    guarded *buffers[] = {&rig->block_table, &rig->lse,        &rig->alibi_slopes,
                          &rig->sinks,       &rig->rotary_cos, &rig->rotary_sin};
    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++)
        guarded_destroy(buffers[i]);
}

/* ---- plan and run ---- */

static void *copy_ints(const void *values, size_t count) {
    void *copy = fixture_alloc(count * sizeof(int32_t));
    if (count > 0)
        memcpy(copy, values, count * sizeof(int32_t));
    return copy;
}

pagedcl_status attn_rig_plan(attn_rig *rig, cl_command_queue queue) {
    const attn_problem *p = rig->problem;
    size_t seqs = (size_t)p->c.num_seqs, entries = seqs * (size_t)p->block_table_stride;
    size_t words = p->tree_mask ? (size_t)attn_tree_words(p) : 0;
    struct {
        void *values;
        size_t count;
    } arrays[] = {
        {copy_ints(p->cu_seqlens_q, seqs + 1), seqs + 1}, {copy_ints(p->cu_seqlens_k, seqs + 1), seqs + 1},
        {copy_ints(p->cache_seqlens, seqs), seqs},        {copy_ints(p->block_table, entries), entries},
        {copy_ints(p->tree_mask, words), words},
    };
    const uint32_t *tree_mask = p->tree_mask ? arrays[4].values : NULL;
    const int32_t *host_table = p->c.device_table ? NULL : arrays[3].values;
    int64_t table_offset = p->c.device_table ? TABLE_OFFSET : 0;
    pagedcl_status status;
    if (p->c.path == DECODE) {
        pagedcl_decode_batch batch = PAGEDCL_DECODE_BATCH_INIT;
        batch.num_seqs = p->c.num_seqs;
        batch.seqlen_q = p->c.seqlen_q;
        batch.seqlen_new = p->c.append;
        batch.cache_seqlens = arrays[2].values;
        batch.block_table = host_table;
        batch.block_table_mem = rig->block_table.mem;
        batch.block_table_offset = table_offset;
        batch.block_table_stride = p->block_table_stride;
        batch.num_splits = p->c.num_splits;
        batch.tree_mask = tree_mask;
        batch.share_prefix = p->c.share_prefix;
        status = pagedcl_plan_decode(rig->plan, queue, &batch);
    } else {
        pagedcl_varlen_batch batch = PAGEDCL_VARLEN_BATCH_INIT;
        batch.num_seqs = p->c.num_seqs;
        batch.cu_seqlens_q = arrays[0].values;
        batch.tree_mask = tree_mask;
        if (p->c.path == VARLEN_PACKED) {
            batch.cu_seqlens_k = arrays[1].values;
        } else {
            batch.cache_seqlens = arrays[2].values;
            batch.block_table = host_table;
            batch.block_table_mem = rig->block_table.mem;
            batch.block_table_offset = table_offset;
            batch.block_table_stride = p->block_table_stride;
            batch.append = p->c.append;
        }
        status = pagedcl_plan_varlen(rig->plan, queue, &batch);
    }
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        memset(arrays[i].values, 0x7f, arrays[i].count * sizeof(int32_t));
        free(arrays[i].values);
    }
    return status;
}

pagedcl_attn_args attn_rig_args(const attn_rig *rig) {
    pagedcl_attn_args args = PAGEDCL_ATTN_ARGS_INIT;
    args.layer = rig->problem->c.path == VARLEN_PACKED ? 0 : rig->problem->c.num_layers - 1;
    args.q = rig->q.view;
    args.k = rig->k.view;
    args.v = rig->v.view;
    if (rig->problem->total_new > 0) {
        args.k_new = rig->k_new.view;
        args.v_new = rig->v_new.view;
    }
    args.out = rig->out.view;
    if (!rig->problem->c.without_lse) {
        args.lse = rig->lse.mem;
        args.lse_offset = 2 * rig->problem->num_heads;
    }
    args.alibi_slopes = rig->alibi_slopes.mem;
    args.sinks = rig->sinks.mem;
    args.rotary_cos = rig->rotary_cos.mem;
    args.rotary_sin = rig->rotary_sin.mem;
    args.alibi_offset = args.alibi_slopes ? FLOATS_OFFSET : 0;
    args.alibi_seq_stride = rig->problem->c.alibi == 2 ? rig->problem->num_heads : 0;
    args.sinks_offset = args.sinks ? FLOATS_OFFSET : 0;
    if (args.rotary_cos) {
        args.rotary_cos_offset = args.rotary_sin_offset = FLOATS_OFFSET;
        args.rotary_positions = attn_rotary_positions(rig->problem);
    }
    return args;
}

void attn_rig_run(attn_rig *rig, cl_command_queue queue, cl_uint num_events, const cl_event *events, cl_event *event) {
    pagedcl_attn_args args = attn_rig_args(rig);
    pagedcl_status status = pagedcl_attn_run(rig->attn, queue, rig->plan, &args, num_events, events, event);
    cr_assert_eq(status, PAGEDCL_SUCCESS, "%s: %s", rig->name, pagedcl_last_error());
}

/* ---- results ---- */

attn_result attn_rig_read(attn_rig *rig) {
    const attn_problem *p = rig->problem;
    attn_result result = {.out = strided_read(rig->device, &rig->out, rig->name)};
    float *lse = guarded_read(rig->device, &rig->lse, rig->name);
    size_t heads = (size_t)p->num_heads, rows = (size_t)attn_total_q(p) * heads * sizeof(float);
    char *poison = fixture_poisoned(rig->lse.bytes);
    if (!p->c.without_lse) {
        result.lse = memcpy(fixture_alloc(rows), lse + 2 * heads, rows);
        memset(lse + 2 * heads, POISON, rows);
    }
    expect_same_bytes(rig->name, "lse that no row owns", lse, poison, rig->lse.bytes);
    free(lse);
    free(poison);
    if (pool_form_is_adopted(p->c.pool))
        adopted_pool_expect(rig->device, &rig->adopted, &rig->pool, rig->name);
    else if (rig->cache && !p->c.scale_per_row)
        pool_model_expect(&rig->pool, rig->cache, rig->name);
    return result;
}

void attn_result_destroy(attn_result *result) {
    free(result->out);
    free(result->lse);
    *result = (attn_result){0};
}

attn_result attn_solve(pagedcl_device *device, pagedcl_tier tier, const attn_problem *problem) {
    attn_rig rig = attn_rig_open(device, tier, problem);
    pagedcl_status status = attn_rig_plan(&rig, NULL);
    cr_assert_eq(status, PAGEDCL_SUCCESS, "%s: %s", rig.name, pagedcl_last_error());
    attn_rig_run(&rig, NULL, 0, NULL, NULL);
    attn_result result = attn_rig_read(&rig);
    attn_rig_close(&rig);
    return result;
}

/* ---- many ---- */

void attn_expect_reference(const attn_problem *p, const attn_result *result, const char *name) {
    int64_t rows = (int64_t)attn_total_q(p) * p->num_heads;
    double *out, *lse;
    attn_reference(p, &out, &lse);
    expect_close(name, "out", result->out, out, rows * p->c.head_dim_v, tolerance_of(p->c.out_dtype));
    if (result->lse)
        expect_close(name, "lse", result->lse, lse, rows, tolerance_of(PAGEDCL_FLOAT32));
    free(out);
    free(lse);
}

void attn_on_every_tier(pagedcl_device *device, const attn_problem *problem, attn_check *check) {
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    int num_tiers = fixture_tiers(device, tiers);
    for (int t = 0; t < num_tiers; t++) {
        char name[128];
        snprintf(name, sizeof(name), "%s, %s", problem->c.name, pagedcl_tier_name(tiers[t]));
        attn_result result = attn_solve(device, tiers[t], problem);
        check(problem, &result, name);
        attn_result_destroy(&result);
    }
}

void attn_check_cases_on(pagedcl_device *device, pagedcl_tier tier, const attn_case *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        attn_problem problem = attn_problem_create(&cases[i], i + 1);
        attn_result result = attn_solve(device, tier, &problem);
        attn_expect_reference(&problem, &result, cases[i].name);
        attn_result_destroy(&result);
        attn_problem_destroy(&problem);
    }
}

void attn_check_cases(const attn_case *cases, size_t count) {
    pagedcl_device *device = fixture_open();
    for (size_t i = 0; i < count; i++) {
        attn_problem problem = attn_problem_create(&cases[i], i + 1);
        attn_on_every_tier(device, &problem, attn_expect_reference);
        attn_problem_destroy(&problem);
    }
    pagedcl_device_destroy(device);
}
