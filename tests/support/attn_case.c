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
    full.head_dim_v = or_default(c->head_dim_v, full.head_dim);
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

static int64_t k_row(const attn_problem *p) {
    return (int64_t)p->c.num_kv_heads * p->c.head_dim;
}

static int64_t v_row(const attn_problem *p) {
    return (int64_t)p->c.num_kv_heads * p->c.head_dim_v;
}

static int32_t blocks_of(const attn_problem *p, int32_t seq) {
    int32_t tokens = p->cu_seqlens_k[seq + 1] - p->cu_seqlens_k[seq];
    return (tokens + p->c.block_size - 1) / p->c.block_size;
}

/* The first block that the table of the sequence must have. */
static int32_t first_block_of(const attn_problem *p, int32_t seq) {
    if (!p->c.released)
        return 0;
    int32_t seqlen_k = p->cu_seqlens_k[seq + 1] - p->cu_seqlens_k[seq];
    int32_t seen = seqlen_k - (p->cu_seqlens_q[seq + 1] - p->cu_seqlens_q[seq]) - p->c.window[0];
    int32_t stored = seqlen_k - p->seqlens_new[seq];
    int32_t first = seen < stored ? seen : stored;
    return first > 0 ? first / p->c.block_size : 0;
}

void attn_problem_scatter(attn_problem *p, uint64_t seed) {
    random_state state = {seed};
    int32_t *order = fixture_alloc((size_t)p->num_blocks * sizeof(int32_t)), used = 0;
    random_permutation(&state, order, p->num_blocks);
    for (int32_t b = 0; b < p->c.num_seqs; b++) {
        for (int32_t i = 0; i < p->block_table_stride; i++)
            p->block_table[b * p->block_table_stride + i] =
                i >= first_block_of(p, b) && i < blocks_of(p, b) ? order[used++] : -1;
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

/* ---- features ---- */

static float *random_floats(random_state *state, int64_t count) {
    return random_values(state, PAGEDCL_FLOAT32, count);
}

static ref_attn reference_of(const attn_problem *p) {
    return (ref_attn){
        .num_heads = p->num_heads,
        .num_kv_heads = p->c.num_kv_heads,
        .head_dim = p->c.head_dim,
        .scale = (double)p->c.scale,
        .causal = p->c.causal != 0,
        .head_dim_v = p->c.head_dim_v,
        .has_window = p->c.window != NULL,
        .window_left = p->c.window ? p->c.window[0] : -1,
        .window_right = p->c.window ? p->c.window[1] : -1,
        .softcap = (double)p->c.softcap,
        .alibi_slopes = p->alibi_slopes,
        .alibi_seq_stride = p->c.alibi == 2 ? p->num_heads : 0,
        .sinks = p->sinks,
        .tree_mask = p->tree_mask,
        .rotary_dim = p->c.rotary_dim,
        .rotary_interleaved = p->c.rotary_interleaved,
        .rotary_cos = p->rotary_cos,
        .rotary_sin = p->rotary_sin,
    };
}

int32_t attn_rotary_positions(const attn_problem *p) {
    int32_t positions = 1;
    for (int32_t b = 0; b < p->c.num_seqs; b++) {
        int32_t seqlen = p->cu_seqlens_k[b + 1] - p->cu_seqlens_k[b];
        positions = seqlen > positions ? seqlen : positions;
    }
    return positions;
}

/* A few bits of x: products and sums of two such numbers are exact in float32, and so is a rotated row. */
static float coarse(double x, double steps) {
    return (float)(round(x * steps) / steps);
}

static void fill_rotary(attn_problem *p) {
    int32_t pairs = p->c.rotary_dim / 2, positions = attn_rotary_positions(p);
    p->rotary_cos = fixture_alloc((size_t)positions * (size_t)pairs * sizeof(float));
    p->rotary_sin = fixture_alloc((size_t)positions * (size_t)pairs * sizeof(float));
    for (int32_t i = 0; i < positions * pairs; i++) {
        double angle = i / pairs * pow(10000, -(double)(i % pairs) / pairs);
        p->rotary_cos[i] = coarse(cos(angle), 64);
        p->rotary_sin[i] = coarse(sin(angle), 64);
    }
    for (int64_t i = 0; i < p->total_new * k_row(p); i++)
        p->k_new[i] = coarse((double)p->k_new[i], 16);
}

static int32_t tree_words(const attn_problem *p) {
    int32_t words = 0;
    for (int32_t b = 0; b < p->c.num_seqs; b++) {
        int32_t seqlen_q = p->cu_seqlens_q[b + 1] - p->cu_seqlens_q[b];
        words += seqlen_q * ((seqlen_q + 31) / 32);
    }
    return words;
}

static void fill_tree(attn_problem *p, random_state *state) {
    p->tree_mask = fixture_alloc((size_t)tree_words(p) * sizeof(uint32_t));
    uint32_t *mask = p->tree_mask;
    for (int32_t b = 0; b < p->c.num_seqs; b++) {
        int32_t seqlen_q = p->cu_seqlens_q[b + 1] - p->cu_seqlens_q[b], words = (seqlen_q + 31) / 32;
        for (int32_t i = 0; i < seqlen_q * words; i++)
            *mask++ = (uint32_t)random_bits(state) & (i % words == 0 ? ~2u : ~0u);
        int32_t hidden = p->cu_seqlens_k[b + 1] - seqlen_q + 1;
        bool can_hold_nan = p->c.q_dtype == PAGEDCL_FLOAT32 && p->c.kv_dtype == PAGEDCL_FLOAT32 && !p->c.v_in_k;
        if (seqlen_q < 2 || hidden < p->cu_seqlens_k[b] || !can_hold_nan)
            continue;
        for (int64_t d = 0; d < v_row(p); d++)
            p->v[hidden * v_row(p) + d] = NAN;
        int32_t to = p->cu_seqlens_k[b + 1] - p->seqlens_new[b], first_new = 0;
        for (int32_t before = 0; before < b; before++)
            first_new += p->seqlens_new[before];
        for (int64_t d = 0; d < v_row(p) && hidden >= to; d++)
            p->v_new[(first_new + hidden - to) * v_row(p) + d] = NAN;
    }
}

/* The last keys of each sequence are what the run will have stored. */
static void append_new(attn_problem *p) {
    ref_attn attn = reference_of(p);
    double *rotated = fixture_alloc((size_t)p->c.head_dim * sizeof(double));
    int64_t heads = p->c.num_kv_heads, dim = p->c.head_dim, from = 0;
    for (int32_t b = 0; b < p->c.num_seqs; b++) {
        int32_t seqlen_k = p->cu_seqlens_k[b + 1] - p->cu_seqlens_k[b];
        for (int32_t t = seqlen_k - p->seqlens_new[b]; t < seqlen_k; t++, from++) {
            int64_t to = p->cu_seqlens_k[b] + t;
            for (int64_t h = 0; h < heads; h++) {
                ref_attn_rotate(&attn, t, p->k_new + (from * heads + h) * dim, rotated);
                for (int64_t d = 0; d < dim; d++)
                    p->k[(to * heads + h) * dim + d] = element_round(p->c.kv_dtype, (float)rotated[d]);
            }
            for (int64_t d = 0; d < v_row(p); d++)
                p->v[to * v_row(p) + d] = element_round(p->c.kv_dtype, p->v_new[from * v_row(p) + d]);
        }
    }
    free(rotated);
}

static void take_v_from_k(attn_problem *p) {
    int64_t rows = (int64_t)attn_total_k(p) * p->c.num_kv_heads;
    for (int64_t row = 0; row < rows; row++)
        memcpy(p->v + row * p->c.head_dim_v, p->k + row * p->c.head_dim, (size_t)p->c.head_dim_v * sizeof(float));
}

attn_problem attn_problem_create(const attn_case *c, uint64_t seed) {
    attn_problem p = lay_out(c);
    random_state state = {seed};
    p.q = random_values(&state, p.c.q_dtype, (int64_t)attn_total_q(&p) * p.num_heads * p.c.head_dim);
    p.k = random_values(&state, p.c.kv_dtype, attn_total_k(&p) * k_row(&p));
    p.v = random_values(&state, p.c.kv_dtype, attn_total_k(&p) * v_row(&p));
    p.k_new = random_values(&state, p.c.q_dtype, p.total_new * k_row(&p));
    p.v_new = random_values(&state, p.c.q_dtype, p.total_new * v_row(&p));
    if (p.c.alibi) {
        int64_t count = (int64_t)p.num_heads * (p.c.alibi == 2 ? p.c.num_seqs : 1);
        p.alibi_slopes = random_floats(&state, count);
        for (int64_t i = 0; i < count; i++) /* as models have them: what is far away counts less */
            p.alibi_slopes[i] = fabsf(p.alibi_slopes[i]);
    }
    if (p.c.sinks)
        p.sinks = random_floats(&state, p.num_heads);
    if (p.c.rotary_dim)
        fill_rotary(&p);
    append_new(&p);
    if (p.c.tree)
        fill_tree(&p, &state);
    if (p.c.v_in_k)
        take_v_from_k(&p);
    return p;
}

attn_problem attn_problem_part(const attn_problem *whole, int32_t seq, int32_t q_begin, int32_t q_end,
                               int32_t seqlen_k) {
    cr_assert_eq(whole->total_new, 0, "a part of a problem that appends");
    cr_assert(!whole->alibi_slopes && !whole->sinks && !whole->rotary_cos && !whole->tree_mask);
    attn_case c = whole->c;
    int32_t seqlen_q = q_end - q_begin;
    c.num_seqs = 1;
    c.seqlens_q = &seqlen_q;
    c.seqlens_k = &seqlen_k;
    c.seqlen_q = seqlen_q;
    attn_problem p = lay_out(&c);
    p.c.seqlens_q = p.c.seqlens_k = NULL; /* laid out, and about to go out of scope */
    int64_t q_row = (int64_t)p.num_heads * p.c.head_dim, q_count = seqlen_q * q_row, k_count = seqlen_k * k_row(&p),
            v_count = seqlen_k * v_row(&p);
    p.q = fixture_alloc((size_t)q_count * sizeof(float));
    p.k = fixture_alloc((size_t)k_count * sizeof(float));
    p.v = fixture_alloc((size_t)v_count * sizeof(float));
    p.k_new = fixture_alloc(0);
    p.v_new = fixture_alloc(0);
    memcpy(p.q, whole->q + (whole->cu_seqlens_q[seq] + q_begin) * q_row, (size_t)q_count * sizeof(float));
    memcpy(p.k, whole->k + whole->cu_seqlens_k[seq] * k_row(&p), (size_t)k_count * sizeof(float));
    memcpy(p.v, whole->v + whole->cu_seqlens_k[seq] * v_row(&p), (size_t)v_count * sizeof(float));
    return p;
}

void attn_problem_destroy(attn_problem *p) {
    void *owned[] = {p->cu_seqlens_q,
                     p->cu_seqlens_k,
                     p->seqlens_new,
                     p->q,
                     p->k,
                     p->v,
                     p->k_new,
                     p->v_new,
                     p->block_table,
                     p->cache_seqlens,
                     p->alibi_slopes,
                     p->sinks,
                     p->rotary_cos,
                     p->rotary_sin,
                     p->tree_mask};
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
    desc.head_dim_v = p->c.head_dim_v;
    desc.v_in_k = p->c.v_in_k;
    desc.dtype = p->c.kv_dtype;
    uint64_t row = (uint64_t)(k_row(p) > v_row(p) ? k_row(p) : v_row(p));
    desc.max_segment_bytes =
        (uint64_t)p->c.segment_blocks * (uint64_t)p->c.block_size * row * pagedcl_dtype_size(p->c.kv_dtype);
    return desc;
}

/* Stores the old tokens (false) or the new ones (true) of every sequence into the model of the pool. */
static void store_tokens(const attn_problem *p, pool_model *pool, bool new_ones) {
    for (int32_t b = 0; b < p->c.num_seqs; b++) {
        int32_t seqlen = p->cu_seqlens_k[b + 1] - p->cu_seqlens_k[b], old = seqlen - p->seqlens_new[b];
        for (int32_t t = new_ones ? old : 0; t < (new_ones ? seqlen : old); t++) {
            int64_t block = p->block_table[b * p->block_table_stride + t / p->c.block_size];
            int64_t row = p->cu_seqlens_k[b] + t;
            if (block >= 0)
                pool_model_write(pool, p->c.num_layers - 1, block * p->c.block_size + t % p->c.block_size,
                                 p->k + row * k_row(p), p->v + row * v_row(p));
        }
    }
}

pool_model attn_problem_pool(const attn_problem *p, bool after) {
    pagedcl_cache_desc desc = pool_desc(p);
    pool_model pool = pool_model_create(&desc);
    store_tokens(p, &pool, false);
    if (after)
        store_tokens(p, &pool, true);
    return pool;
}

static void open_pool(attn_rig *rig) {
    const attn_problem *p = rig->problem;
    pagedcl_cache_desc desc = pool_desc(p);
    pool_model before = attn_problem_pool(p, false);
    if (p->c.pool != POOL_OF_LIBRARY) {
        rig->adopted = adopted_pool_create(rig->device, p->c.pool, &before);
        adopted_pool_describe(&rig->adopted, &desc);
    }
    pagedcl_status status = pagedcl_cache_create(rig->device, &desc, &rig->cache);
    cr_assert_eq(status, PAGEDCL_SUCCESS, "%s: %s", rig->name, pagedcl_last_error());
    if (p->c.pool == POOL_OF_LIBRARY)
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

attn_rig attn_rig_open(pagedcl_device *device, pagedcl_tier tier, const attn_problem *p) {
    attn_rig rig = {.problem = p, .device = device};
    snprintf(rig.name, sizeof(rig.name), "%s, %s", p->c.name, pagedcl_tier_name(tier));
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
    desc.tier = tier;
    if (!p->c.both_paths)
        desc.paths = p->c.path == DECODE ? PAGEDCL_PATH_DECODE : PAGEDCL_PATH_VARLEN;
    open_features(&rig, &desc);
    pagedcl_status status = pagedcl_attn_create(device, &desc, &rig.attn);
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
    guarded *buffers[] = {&rig->lse, &rig->alibi_slopes, &rig->sinks, &rig->rotary_cos, &rig->rotary_sin};
    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++)
        guarded_destroy(buffers[i]);
}

static void *copy_ints(const void *values, size_t count) {
    void *copy = fixture_alloc(count * sizeof(int32_t));
    if (count > 0)
        memcpy(copy, values, count * sizeof(int32_t));
    return copy;
}

pagedcl_status attn_rig_plan(attn_rig *rig, cl_command_queue queue) {
    const attn_problem *p = rig->problem;
    size_t seqs = (size_t)p->c.num_seqs, entries = seqs * (size_t)p->block_table_stride;
    size_t words = p->tree_mask ? (size_t)tree_words(p) : 0;
    struct {
        void *values;
        size_t count;
    } arrays[] = {
        {copy_ints(p->cu_seqlens_q, seqs + 1), seqs + 1}, {copy_ints(p->cu_seqlens_k, seqs + 1), seqs + 1},
        {copy_ints(p->cache_seqlens, seqs), seqs},        {copy_ints(p->block_table, entries), entries},
        {copy_ints(p->tree_mask, words), words},
    };
    const uint32_t *tree_mask = p->tree_mask ? arrays[4].values : NULL;
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
        batch.tree_mask = tree_mask;
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
    args.alibi_slopes = rig->alibi_slopes.mem;
    args.sinks = rig->sinks.mem;
    args.rotary_cos = rig->rotary_cos.mem;
    args.rotary_sin = rig->rotary_sin.mem;
    args.alibi_offset = args.sinks_offset = args.rotary_cos_offset = args.rotary_sin_offset = FLOATS_OFFSET;
    args.alibi_seq_stride = rig->problem->c.alibi == 2 ? rig->problem->num_heads : 0;
    args.rotary_positions = attn_rotary_positions(rig->problem);
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
    if (p->c.pool != POOL_OF_LIBRARY)
        adopted_pool_expect(rig->device, &rig->adopted, &rig->pool, rig->name);
    else if (rig->cache)
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

void attn_reference(const attn_problem *p, double **out, double **lse) {
    ref_attn attn = reference_of(p);
    int64_t rows = (int64_t)attn_total_q(p) * p->num_heads;
    *out = fixture_poisoned((size_t)(rows * p->c.head_dim_v) * sizeof(double));
    *lse = fixture_poisoned((size_t)rows * sizeof(double));
    ref_attn_varlen(&attn, p->c.num_seqs, p->q, p->cu_seqlens_q, p->k, p->v, p->cu_seqlens_k, *out, *lse);
}

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

void attn_check_cases(const attn_case *cases, size_t count) {
    pagedcl_device *device = fixture_open();
    for (size_t i = 0; i < count; i++) {
        attn_problem problem = attn_problem_create(&cases[i], i + 1);
        attn_on_every_tier(device, &problem, attn_expect_reference);
        attn_problem_destroy(&problem);
    }
    pagedcl_device_destroy(device);
}
