/* SPDX-License-Identifier: Apache-2.0 */
#include "attn_case.h"

#include "expect.h"
#include "fixture.h"
#include "random.h"

#include "ref/ref_attn.h"

#include <math.h>
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

/* Values that a tensor, or a pool with that scale, holds exactly. */
static float *random_stored(random_state *state, pagedcl_dtype dtype, float scale, int64_t count) {
    float *values = fixture_alloc((size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++)
        values[i] = pool_model_round(dtype, scale, random_normal(state));
    return values;
}

static float *random_values(random_state *state, pagedcl_dtype dtype, int64_t count) {
    return random_stored(state, dtype, 0, count);
}

/* Rows that the pool holds exactly. Those of an int4 pool have scales that are powers of two, since every group of values
   that shares one has the largest in it. */
static float *random_rows(random_state *state, const attn_case *full, float scale, int64_t rows, int32_t head_dim) {
    if (full->kv_dtype != PAGEDCL_INT4)
        return random_stored(state, full->kv_dtype, scale, rows * head_dim);
    float *values = random_values(state, PAGEDCL_FLOAT32, rows * head_dim);
    for (int64_t row = 0; row < rows; row++)
        for (int32_t first = 0; first < head_dim; first += PAGEDCL_INT4_GROUP) {
            float *group = values + row * head_dim + first;
            int32_t count = head_dim - first < PAGEDCL_INT4_GROUP ? head_dim - first : PAGEDCL_INT4_GROUP;
            double step = ldexp(1, -1 - random_below(state, 3));
            for (int32_t d = 0; d < count; d++)
                group[d] = (float)(code_value(PAGEDCL_INT4, code_of(PAGEDCL_INT4, (double)group[d] / step)) * step);
            group[random_below(state, count)] = (float)(code_largest(PAGEDCL_INT4) * step);
        }
    return values;
}

/* What the pool makes of a value. */
static float stored(const attn_problem *p, float scale, float value) {
    return p->c.kv_dtype == PAGEDCL_INT4 ? value : pool_model_round(p->c.kv_dtype, scale, value);
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

/* Tokens before the keys of the sequence's queries and its new ones. */
static int32_t settled_of(const attn_problem *p, int32_t seq) {
    int32_t seqlen_q = p->cu_seqlens_q[seq + 1] - p->cu_seqlens_q[seq], seqlen_new = p->seqlens_new[seq];
    int32_t seqlen_k = p->cu_seqlens_k[seq + 1] - p->cu_seqlens_k[seq];
    return seqlen_k - (seqlen_q > seqlen_new ? seqlen_q : seqlen_new);
}

/* Tokens that a sequence has in common with the first one: whole blocks. */
static int32_t shared_of(const attn_problem *p, int32_t seq) {
    int32_t shared = seq > 0 ? p->c.shared : 0, first = settled_of(p, 0), own = settled_of(p, seq);
    shared = first < shared ? first : shared;
    shared = own < shared ? own : shared;
    return shared > 0 ? shared / p->c.block_size * p->c.block_size : 0;
}

void attn_problem_scatter(attn_problem *p, uint64_t seed) {
    random_state state = {seed};
    int32_t *order = fixture_alloc((size_t)p->num_blocks * sizeof(int32_t)), used = 0;
    random_permutation(&state, order, p->num_blocks);
    for (int32_t b = 0; b < p->c.num_seqs; b++) {
        for (int32_t i = 0; i < p->block_table_stride; i++) {
            bool has = i >= first_block_of(p, b) && i < blocks_of(p, b);
            /* A block that the first sequence has released is each one's own. */
            int32_t shared = has && i < shared_of(p, b) / p->c.block_size ? p->block_table[i] : -1;
            p->block_table[b * p->block_table_stride + i] = shared >= 0 ? shared : has ? order[used++] : -1;
        }
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

/* Words of a sequence's tree mask. */
static int32_t words_of(const attn_problem *p, int32_t seq) {
    int32_t seqlen_q = p->cu_seqlens_q[seq + 1] - p->cu_seqlens_q[seq];
    return seqlen_q * ((seqlen_q + 31) / 32);
}

int32_t attn_tree_words(const attn_problem *p) {
    int32_t words = 0;
    for (int32_t b = 0; b < p->c.num_seqs; b++)
        words += words_of(p, b);
    return words;
}

static void fill_nan(float *row, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        row[i] = NAN;
}

static void fill_tree(attn_problem *p, random_state *state) {
    p->tree_mask = fixture_alloc((size_t)attn_tree_words(p) * sizeof(uint32_t));
    uint32_t *mask = p->tree_mask;
    for (int32_t b = 0; b < p->c.num_seqs; b++) {
        int32_t seqlen_q = p->cu_seqlens_q[b + 1] - p->cu_seqlens_q[b], words = (seqlen_q + 31) / 32;
        for (int32_t i = 0; i < seqlen_q * words; i++)
            *mask++ = (uint32_t)random_bits(state) & (i % words == 0 ? ~2u : ~0u);
        int32_t hidden = p->cu_seqlens_k[b + 1] - seqlen_q + 1, to = p->cu_seqlens_k[b + 1] - p->seqlens_new[b];
        /* Which NaN a narrower element becomes, devices decide for themselves. */
        bool can_hold_nan = pagedcl_dtype_size(p->c.kv_dtype) >= 2 && (hidden < to || p->c.kv_dtype == PAGEDCL_FLOAT32);
        if (seqlen_q < 2 || hidden < p->cu_seqlens_k[b] || !can_hold_nan)
            continue;
        int64_t row = p->c.v_in_k ? k_row(p) : v_row(p);
        fill_nan((p->c.v_in_k ? p->k : p->v) + hidden * row, row);
        int32_t first_new = 0;
        for (int32_t before = 0; before < b; before++)
            first_new += p->seqlens_new[before];
        if (hidden >= to)
            fill_nan((p->c.v_in_k ? p->k_new : p->v_new) + (first_new + hidden - to) * row, row);
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
                    p->k[(to * heads + h) * dim + d] = stored(p, p->c.k_scale, (float)rotated[d]);
            }
            for (int64_t d = 0; d < v_row(p); d++)
                p->v[to * v_row(p) + d] = stored(p, p->c.v_scale, p->v_new[from * v_row(p) + d]);
        }
    }
    free(rotated);
}

static void share_tokens(attn_problem *p) {
    for (int32_t b = 1; b < p->c.num_seqs; b++) {
        size_t tokens = (size_t)shared_of(p, b), bytes = tokens * sizeof(float);
        memcpy(p->k + p->cu_seqlens_k[b] * k_row(p), p->k, bytes * (size_t)k_row(p));
        memcpy(p->v + p->cu_seqlens_k[b] * v_row(p), p->v, bytes * (size_t)v_row(p));
    }
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
    int64_t heads = p.c.num_kv_heads;
    p.k = random_rows(&state, &p.c, p.c.k_scale, attn_total_k(&p) * heads, p.c.head_dim);
    p.v = random_rows(&state, &p.c, p.c.v_scale, attn_total_k(&p) * heads, p.c.head_dim_v);
    if (p.c.kv_dtype == PAGEDCL_INT4) {
        p.k_new = random_rows(&state, &p.c, 0, p.total_new * heads, p.c.head_dim);
        p.v_new = random_rows(&state, &p.c, 0, p.total_new * heads, p.c.head_dim_v);
        cr_assert(p.total_new == 0 || !p.c.rotary_dim, "%s: int4 does not hold rotated keys exactly", p.c.name);
    } else {
        p.k_new = random_values(&state, p.c.q_dtype, p.total_new * k_row(&p));
        p.v_new = random_values(&state, p.c.q_dtype, p.total_new * v_row(&p));
    }
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
    share_tokens(&p);
    if (p.c.tree)
        fill_tree(&p, &state);
    if (p.c.v_in_k)
        take_v_from_k(&p);
    return p;
}

/* A copy of `count` floats, or NULL of NULL. */
static float *copy_floats(const float *values, int64_t count) {
    if (!values)
        return NULL;
    float *copy = fixture_alloc((size_t)count * sizeof(float));
    return count > 0 ? memcpy(copy, values, (size_t)count * sizeof(float)) : copy;
}

/* What the features of a sequence's part need of the whole. */
static void take_features(attn_problem *part, const attn_problem *whole, int32_t seq) {
    int64_t angles = (int64_t)attn_rotary_positions(part) * (part->c.rotary_dim / 2);
    part->rotary_cos = copy_floats(whole->rotary_cos, angles);
    part->rotary_sin = copy_floats(whole->rotary_sin, angles);
    part->sinks = copy_floats(whole->sinks, part->num_heads);
    int64_t slopes = whole->c.alibi == 2 ? (int64_t)seq * part->num_heads : 0;
    part->alibi_slopes = whole->alibi_slopes ? copy_floats(whole->alibi_slopes + slopes, part->num_heads) : NULL;
    if (!whole->tree_mask)
        return;
    const uint32_t *mask = whole->tree_mask;
    for (int32_t b = 0; b < seq; b++)
        mask += words_of(whole, b);
    cr_assert_eq(words_of(part, 0), words_of(whole, seq), "a part of a tree");
    size_t bytes = (size_t)words_of(part, 0) * sizeof(uint32_t);
    part->tree_mask = fixture_alloc(bytes);
    if (bytes > 0)
        memcpy(part->tree_mask, mask, bytes);
}

attn_problem attn_problem_part(const attn_problem *whole, int32_t seq, int32_t q_begin, int32_t q_end,
                               int32_t seqlen_k) {
    attn_case c = whole->c;
    int32_t seqlen_q = q_end - q_begin;
    c.num_seqs = 1;
    c.seqlens_q = &seqlen_q;
    c.seqlens_k = &seqlen_k;
    c.seqlen_q = seqlen_q;
    attn_problem p = lay_out(&c);
    p.c.seqlens_q = p.c.seqlens_k = NULL; /* laid out, and about to go out of scope */
    int64_t q_row = (int64_t)p.num_heads * p.c.head_dim, first_k = whole->cu_seqlens_k[seq];
    p.q = copy_floats(whole->q + (whole->cu_seqlens_q[seq] + q_begin) * q_row, seqlen_q * q_row);
    p.k = copy_floats(whole->k + first_k * k_row(&p), seqlen_k * k_row(&p));
    p.v = copy_floats(whole->v + first_k * v_row(&p), seqlen_k * v_row(&p));
    /* The first of the new tokens, counted among those of all sequences. */
    int64_t first_new = seqlen_k - p.total_new - (whole->cu_seqlens_k[seq + 1] - first_k - whole->seqlens_new[seq]);
    cr_assert(p.total_new == 0 || first_new >= 0, "a part that appends what the whole does not");
    for (int32_t b = 0; b < seq; b++)
        first_new += whole->seqlens_new[b];
    p.k_new = copy_floats(p.total_new ? whole->k_new + first_new * k_row(&p) : whole->k_new, p.total_new * k_row(&p));
    p.v_new = copy_floats(p.total_new ? whole->v_new + first_new * v_row(&p) : whole->v_new, p.total_new * v_row(&p));
    take_features(&p, whole, seq);
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

/* ---- the pool ---- */

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
    desc.scale_per_row = p->c.scale_per_row;
    desc.k_scale = p->c.k_scale;
    desc.v_scale = p->c.v_scale;
    if (p->c.pool == POOL_OF_LIBRARY_HND)
        desc.layout = PAGEDCL_LAYOUT_HND;
    int32_t longer = p->c.head_dim > p->c.head_dim_v ? p->c.head_dim : p->c.head_dim_v;
    desc.max_segment_bytes = (uint64_t)p->c.segment_blocks * block_layout_of(&desc, longer, 0).bytes;
    return desc;
}

/* Stores the old tokens (false) or the new ones (true) of every sequence into the model of the pool. */
static void store_tokens(const attn_problem *p, pool_model *pool, bool new_ones) {
    for (int32_t b = 0; b < p->c.num_seqs; b++) {
        int32_t seqlen = p->cu_seqlens_k[b + 1] - p->cu_seqlens_k[b], old = seqlen - p->seqlens_new[b];
        for (int32_t t = new_ones ? old : 0; t < (new_ones ? seqlen : old); t++) {
            int64_t block = p->block_table[b * p->block_table_stride + t / p->c.block_size];
            int64_t row = p->cu_seqlens_k[b] + t;
            if (block >= 0 && block < p->num_blocks)
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

/* ---- the answer ---- */

/* Keys whose table entries name no block; of packed keys there are none. */
static bool *hidden_of(const attn_problem *p) {
    bool *hidden = fixture_alloc((size_t)attn_total_k(p) * sizeof(bool)), *next = hidden;
    for (int32_t b = 0; b < p->c.num_seqs; b++)
        for (int32_t t = 0; t < p->cu_seqlens_k[b + 1] - p->cu_seqlens_k[b]; t++) {
            int32_t block = p->block_table[b * p->block_table_stride + t / p->c.block_size];
            *next++ = p->c.path != VARLEN_PACKED && (block < 0 || block >= p->num_blocks);
        }
    return hidden;
}

void attn_reference(const attn_problem *p, double **out, double **lse) {
    ref_attn attn = reference_of(p);
    bool *hidden = hidden_of(p);
    attn.hidden = hidden;
    int64_t rows = (int64_t)attn_total_q(p) * p->num_heads;
    *out = fixture_poisoned((size_t)(rows * p->c.head_dim_v) * sizeof(double));
    *lse = fixture_poisoned((size_t)rows * sizeof(double));
    ref_attn_varlen(&attn, p->c.num_seqs, p->q, p->cu_seqlens_q, p->k, p->v, p->cu_seqlens_k, *out, *lse);
    free(hidden);
}
