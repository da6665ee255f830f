/* SPDX-License-Identifier: Apache-2.0 */
#include "attn_case.h"

#include "elements.h"
#include "expect.h"
#include "random.h"

#include "ref/ref_attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- problems ---- */

static int32_t or_default(int32_t value, int32_t otherwise) {
    return value ? value : otherwise;
}

static pagedcl_dtype or_float32(pagedcl_dtype dtype) {
    return dtype ? dtype : PAGEDCL_FLOAT32;
}

/* The scalars of the case with nothing left out. */
static attn_case complete(const attn_case *c) {
    attn_case full = *c;
    full.num_seqs = or_default(c->num_seqs, 3);
    full.seqlen_q = or_default(c->seqlen_q, 1);
    full.num_kv_heads = or_default(c->num_kv_heads, 2);
    full.group = or_default(c->group, 7);
    full.head_dim = or_default(c->head_dim, 80);
    full.block_size = or_default(c->block_size, 16);
    full.q_dtype = or_float32(c->q_dtype);
    full.kv_dtype = or_float32(c->kv_dtype);
    full.out_dtype = or_float32(c->out_dtype);
    full.num_layers = or_default(c->num_layers, 1);
    if (full.scale == 0)
        full.scale = 1 / sqrtf((float)full.head_dim);
    return full;
}

static int32_t seqlen_q_of(const attn_case *full, int32_t seq) {
    static const int32_t varlen[] = {5, 1, 17};
    return full->path == DECODE ? full->seqlen_q : full->seqlens_q ? full->seqlens_q[seq] : varlen[seq % 3];
}

static int32_t seqlen_new_of(const attn_case *full, int32_t seq) {
    return full->path == DECODE || !full->append ? full->append : seqlen_q_of(full, seq);
}

static int32_t seqlen_k_of(const attn_case *full, int32_t seq) {
    const int32_t old[] = {full->block_size, 0, 2 * full->block_size + 2};
    return full->seqlens_k ? full->seqlens_k[seq] : old[seq % 3] + or_default(seqlen_new_of(full, seq), 1);
}

static float *random_values(random_state *state, pagedcl_dtype dtype, int64_t count) {
    float *values = fixture_alloc((size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++)
        values[i] = element_round(dtype, random_normal(state));
    return values;
}

static int64_t kv_row(const attn_problem *p) {
    return (int64_t)p->c.num_kv_heads * p->c.head_dim;
}

static int32_t blocks_of(const attn_problem *p, int32_t seq) {
    int32_t tokens = p->cu_seqlens_k[seq + 1] - p->cu_seqlens_k[seq];
    return (tokens + p->c.block_size - 1) / p->c.block_size;
}

void attn_problem_scatter(attn_problem *p, uint64_t seed) {
    random_state state = {seed};
    int32_t *order = fixture_alloc((size_t)p->num_blocks * sizeof(int32_t)), used = 0;
    random_permutation(&state, order, p->num_blocks);
    for (int32_t b = 0; b < p->c.num_seqs; b++) {
        for (int32_t i = 0; i < p->block_table_stride; i++)
            p->block_table[b * p->block_table_stride + i] = i < blocks_of(p, b) ? order[used++] : -1;
    }
    free(order);
}

/* The lengths, and room for them in scattered blocks: three blocks and two table columns more than needed. */
static attn_problem lay_out(const attn_case *c) {
    attn_problem p = {.c = complete(c)};
    p.num_heads = p.c.num_kv_heads * p.c.group;
    size_t ints = (size_t)p.c.num_seqs + 1;
    p.cu_seqlens_q = fixture_alloc(ints * sizeof(int32_t));
    p.cu_seqlens_k = fixture_alloc(ints * sizeof(int32_t));
    p.seqlens_new = fixture_alloc(ints * sizeof(int32_t));
    p.cache_seqlens = fixture_alloc(ints * sizeof(int32_t));
    p.cu_seqlens_q[0] = p.cu_seqlens_k[0] = 0;
    p.num_blocks = 3;
    for (int32_t b = 0; b < p.c.num_seqs; b++) {
        p.cu_seqlens_q[b + 1] = p.cu_seqlens_q[b] + seqlen_q_of(&p.c, b);
        p.cu_seqlens_k[b + 1] = p.cu_seqlens_k[b] + seqlen_k_of(&p.c, b);
        p.seqlens_new[b] = seqlen_new_of(&p.c, b);
        p.total_new += p.seqlens_new[b];
        p.cache_seqlens[b] = seqlen_k_of(&p.c, b) - (p.c.path == DECODE ? p.seqlens_new[b] : 0);
        p.num_blocks += blocks_of(&p, b);
        if (p.block_table_stride < blocks_of(&p, b) + 2)
            p.block_table_stride = blocks_of(&p, b) + 2;
    }
    p.block_table = fixture_alloc((size_t)p.c.num_seqs * (size_t)p.block_table_stride * sizeof(int32_t));
    attn_problem_scatter(&p, 1);
    return p;
}

attn_problem attn_problem_create(const attn_case *c, uint64_t seed) {
    attn_problem p = lay_out(c);
    random_state state = {seed};
    p.q = random_values(&state, p.c.q_dtype, (int64_t)attn_total_q(&p) * p.num_heads * p.c.head_dim);
    p.k = random_values(&state, p.c.kv_dtype, attn_total_k(&p) * kv_row(&p));
    p.v = random_values(&state, p.c.kv_dtype, attn_total_k(&p) * kv_row(&p));
    p.k_new = random_values(&state, p.c.q_dtype, p.total_new * kv_row(&p));
    p.v_new = random_values(&state, p.c.q_dtype, p.total_new * kv_row(&p));
    int64_t from = 0;
    for (int32_t b = 0; b < p.c.num_seqs; b++) {
        int64_t to = (p.cu_seqlens_k[b + 1] - p.seqlens_new[b]) * kv_row(&p);
        for (int64_t i = 0; i < p.seqlens_new[b] * kv_row(&p); i++, from++, to++) {
            p.k[to] = element_round(p.c.kv_dtype, p.k_new[from]);
            p.v[to] = element_round(p.c.kv_dtype, p.v_new[from]);
        }
    }
    return p;
}

attn_problem attn_problem_part(const attn_problem *whole, int32_t seq, int32_t q_begin, int32_t q_end,
                               int32_t seqlen_k) {
    cr_assert_eq(whole->total_new, 0, "a part of a problem that appends");
    attn_case c = whole->c;
    int32_t seqlen_q = q_end - q_begin;
    c.num_seqs = 1;
    c.seqlens_q = &seqlen_q;
    c.seqlens_k = &seqlen_k;
    c.seqlen_q = seqlen_q;
    attn_problem p = lay_out(&c);
    p.c.seqlens_q = p.c.seqlens_k = NULL; /* laid out, and about to go out of scope */
    int64_t q_row = (int64_t)p.num_heads * p.c.head_dim, q_count = seqlen_q * q_row, k_count = seqlen_k * kv_row(&p);
    p.q = fixture_alloc((size_t)q_count * sizeof(float));
    p.k = fixture_alloc((size_t)k_count * sizeof(float));
    p.v = fixture_alloc((size_t)k_count * sizeof(float));
    p.k_new = fixture_alloc(0);
    p.v_new = fixture_alloc(0);
    memcpy(p.q, whole->q + (whole->cu_seqlens_q[seq] + q_begin) * q_row, (size_t)q_count * sizeof(float));
    memcpy(p.k, whole->k + whole->cu_seqlens_k[seq] * kv_row(&p), (size_t)k_count * sizeof(float));
    memcpy(p.v, whole->v + whole->cu_seqlens_k[seq] * kv_row(&p), (size_t)k_count * sizeof(float));
    return p;
}

void attn_problem_destroy(attn_problem *p) {
    void *owned[] = {p->cu_seqlens_q, p->cu_seqlens_k, p->seqlens_new,  p->q, p->k, p->v, p->k_new,
                     p->v_new,        p->block_table,  p->cache_seqlens};
    for (size_t i = 0; i < sizeof(owned) / sizeof(owned[0]); i++)
        free(owned[i]);
    *p = (attn_problem){0};
}

/* ---- on the device ---- */

static pagedcl_cache_desc pool_desc(const attn_problem *p) {
    pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT;
    desc.num_layers = p->c.num_layers;
    desc.num_blocks = p->num_blocks;
    desc.block_size = p->c.block_size;
    desc.num_kv_heads = p->c.num_kv_heads;
    desc.head_dim = p->c.head_dim;
    desc.dtype = p->c.kv_dtype;
    desc.max_segment_bytes = (uint64_t)p->c.segment_blocks * (uint64_t)p->c.block_size * (uint64_t)kv_row(p) *
                             pagedcl_dtype_size(p->c.kv_dtype);
    return desc;
}

/* Stores the old tokens (false) or the new ones (true) of every sequence into the model of the pool. */
static void store_tokens(const attn_problem *p, pool_model *pool, bool new_ones) {
    for (int32_t b = 0; b < p->c.num_seqs; b++) {
        int32_t seqlen = p->cu_seqlens_k[b + 1] - p->cu_seqlens_k[b], old = seqlen - p->seqlens_new[b];
        for (int32_t t = new_ones ? old : 0; t < (new_ones ? seqlen : old); t++) {
            int64_t block = p->block_table[b * p->block_table_stride + t / p->c.block_size];
            int64_t row = (p->cu_seqlens_k[b] + t) * kv_row(p);
            pool_model_write(pool, p->c.num_layers - 1, block * p->c.block_size + t % p->c.block_size, p->k + row,
                             p->v + row);
        }
    }
}

attn_rig attn_rig_open(pagedcl_device *device, pagedcl_tier tier, const attn_problem *p) {
    attn_rig rig = {.problem = p, .device = device};
    snprintf(rig.name, sizeof(rig.name), "%s, %s", p->c.name, pagedcl_tier_name(tier));
    pagedcl_attn_desc desc = PAGEDCL_ATTN_DESC_INIT;
    if (p->c.path == VARLEN_PACKED) {
        desc.num_kv_heads = p->c.num_kv_heads;
        desc.head_dim = p->c.head_dim;
        desc.kv_dtype = p->c.kv_dtype;
        rig.k = strided_create(device, p->c.kv_dtype, attn_total_k(p), p->c.num_kv_heads, p->c.head_dim, p->c.layout, 0,
                               p->k);
        rig.v = strided_create(device, p->c.kv_dtype, attn_total_k(p), p->c.num_kv_heads, p->c.head_dim, p->c.layout, 0,
                               p->v);
    } else {
        pagedcl_cache_desc pool = pool_desc(p);
        expect_ok(pagedcl_cache_create(device, &pool, &rig.cache));
        rig.pool = pool_model_create(&pool);
        store_tokens(p, &rig.pool, false);
        pool_model_upload(&rig.pool, rig.cache);
        store_tokens(p, &rig.pool, true);
        desc.cache = rig.cache;
        rig.k_new = strided_create(device, p->c.q_dtype, p->total_new, p->c.num_kv_heads, p->c.head_dim, p->c.layout, 0,
                                   p->k_new);
        rig.v_new = strided_create(device, p->c.q_dtype, p->total_new, p->c.num_kv_heads, p->c.head_dim, p->c.layout, 0,
                                   p->v_new);
    }
    desc.num_heads = p->num_heads;
    desc.q_dtype = p->c.q_dtype;
    desc.out_dtype = p->c.out_dtype;
    desc.softmax_scale = p->c.scale;
    desc.causal = p->c.causal;
    desc.tier = tier;
    pagedcl_status status = pagedcl_attn_create(device, &desc, &rig.attn);
    cr_assert_eq(status, PAGEDCL_SUCCESS, "%s: %s", rig.name, pagedcl_last_error());
    expect_ok(pagedcl_plan_create(rig.attn, &rig.plan));

    int32_t total_q = attn_total_q(p);
    rig.q = strided_create(device, p->c.q_dtype, total_q, p->num_heads, p->c.head_dim, p->c.layout, 0, p->q);
    rig.out = strided_create(device, p->c.out_dtype, total_q, p->num_heads, p->c.head_dim, p->c.layout, 3, NULL);
    /* Two rows of heads before and three behind that no sequence owns. */
    rig.lse = guarded_create(device, (size_t)(total_q + 5) * (size_t)p->num_heads * sizeof(float), NULL);
    return rig;
}

void attn_rig_close(attn_rig *rig) {
    pagedcl_plan_destroy(rig->plan);
    pagedcl_attn_destroy(rig->attn);
    pagedcl_cache_destroy(rig->cache);
    pool_model_destroy(&rig->pool);
    strided *tensors[] = {&rig->q, &rig->k, &rig->v, &rig->k_new, &rig->v_new, &rig->out};
    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++)
        strided_destroy(tensors[i]);
    guarded_destroy(&rig->lse);
}

static int32_t *copy_ints(const int32_t *values, size_t count) {
    return memcpy(fixture_alloc(count * sizeof(int32_t)), values, count * sizeof(int32_t));
}

pagedcl_status attn_rig_plan(attn_rig *rig, cl_command_queue queue) {
    const attn_problem *p = rig->problem;
    size_t seqs = (size_t)p->c.num_seqs, entries = seqs * (size_t)p->block_table_stride;
    struct {
        int32_t *values;
        size_t count;
    } arrays[] = {
        {copy_ints(p->cu_seqlens_q, seqs + 1), seqs + 1},
        {copy_ints(p->cu_seqlens_k, seqs + 1), seqs + 1},
        {copy_ints(p->cache_seqlens, seqs), seqs},
        {copy_ints(p->block_table, entries), entries},
    };
    pagedcl_status status;
    if (p->c.path == DECODE) {
        pagedcl_decode_batch batch = PAGEDCL_DECODE_BATCH_INIT;
        batch.num_seqs = p->c.num_seqs;
        batch.seqlen_q = p->c.seqlen_q;
        batch.seqlen_new = p->c.append;
        batch.cache_seqlens = arrays[2].values;
        batch.block_table = arrays[3].values;
        batch.block_table_stride = p->block_table_stride;
        batch.num_splits = p->c.num_splits;
        status = pagedcl_plan_decode(rig->plan, queue, &batch);
    } else {
        pagedcl_varlen_batch batch = PAGEDCL_VARLEN_BATCH_INIT;
        batch.num_seqs = p->c.num_seqs;
        batch.cu_seqlens_q = arrays[0].values;
        if (p->c.path == VARLEN_PACKED) {
            batch.cu_seqlens_k = arrays[1].values;
        } else {
            batch.cache_seqlens = arrays[2].values;
            batch.block_table = arrays[3].values;
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
    args.k_new = rig->k_new.view;
    args.v_new = rig->v_new.view;
    args.out = rig->out.view;
    if (!rig->problem->c.without_lse) {
        args.lse = rig->lse.mem;
        args.lse_offset = 2 * rig->problem->num_heads;
    }
    return args;
}

void attn_rig_run(attn_rig *rig, cl_command_queue queue, cl_uint num_events, const cl_event *events, cl_event *event) {
    pagedcl_attn_args args = attn_rig_args(rig);
    pagedcl_status status = pagedcl_attn_run(rig->attn, queue, rig->plan, &args, num_events, events, event);
    cr_assert_eq(status, PAGEDCL_SUCCESS, "%s: %s", rig->name, pagedcl_last_error());
}

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
    if (rig->cache)
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

/* ---- against the reference ---- */

void attn_expect_reference(const attn_problem *p, const attn_result *result, const char *name) {
    ref_attn attn = {.num_heads = p->num_heads,
                     .num_kv_heads = p->c.num_kv_heads,
                     .head_dim = p->c.head_dim,
                     .scale = (double)p->c.scale,
                     .causal = p->c.causal != 0};
    int64_t rows = (int64_t)attn_total_q(p) * p->num_heads;
    double *out = fixture_poisoned((size_t)(rows * p->c.head_dim) * sizeof(double));
    double *lse = fixture_poisoned((size_t)rows * sizeof(double));
    ref_attn_varlen(&attn, p->c.num_seqs, p->q, p->cu_seqlens_q, p->k, p->v, p->cu_seqlens_k, out, lse);
    expect_close(name, "out", result->out, out, rows * p->c.head_dim, tolerance_of(p->c.out_dtype));
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

void attn_check_cases(const attn_case *cases, size_t count) {
    pagedcl_device *device = fixture_open();
    for (size_t i = 0; i < count; i++) {
        attn_problem problem = attn_problem_create(&cases[i], i + 1);
        attn_on_every_tier(device, &problem, attn_expect_reference);
        attn_problem_destroy(&problem);
    }
    pagedcl_device_destroy(device);
}
