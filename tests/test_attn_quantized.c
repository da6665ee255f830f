/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools of 8-bit and 4-bit elements. What is stored is read back and must lie within half a step of what was given; attention
 * must then be exact over what is stored, that is to float32 rounding.
 */
#include "support/attn_rig.h"
#include "support/block_layout.h"
#include "support/elements.h"
#include "support/expect.h"
#include "support/fixture.h"
#include "support/random.h"

#include "ref/ref_attn.h"

#include <pagedcl/pagedcl.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NUM_BLOCKS = 60, NEW = 3, MAX_LENGTH = 160, OCLGRIND_LENGTH = 32 };

typedef struct shape {
    const char *name;
    pagedcl_dtype dtype;
    int32_t scale_per_row;
    float k_scale, v_scale;
    pagedcl_layout layout;
    int32_t block_size, num_kv_heads, group, head_dim, head_dim_v, v_in_k, rotary_dim;
    pagedcl_dtype q_dtype; /* 0: float32 */
} shape;

static const shape shapes[] = {
    {"int8, scales of rows", PAGEDCL_INT8, 1, 0, 0, PAGEDCL_LAYOUT_NHD, 3, 1, 2, 25, 25, 0, 0, 0},
    {"int8, scale of the pool", PAGEDCL_INT8, 0, 0.03f, 0.05f, PAGEDCL_LAYOUT_HND, 16, 2, 7, 80, 80, 0, 0, 0},
    {"e4m3, scales of rows", PAGEDCL_FLOAT8_E4M3, 1, 0, 0, PAGEDCL_LAYOUT_HND, 5, 2, 3, 40, 24, 0, 0, 0},
    {"e4m3, no scale", PAGEDCL_FLOAT8_E4M3, 0, 0, 0, PAGEDCL_LAYOUT_NHD, 4, 2, 1, 64, 64, 0, 0, 0},
    {"e5m2, scales of rows", PAGEDCL_FLOAT8_E5M2, 1, 0, 0, PAGEDCL_LAYOUT_NHD, 4, 1, 4, 33, 33, 0, 0, 0},
    {"e5m2, scale of the pool", PAGEDCL_FLOAT8_E5M2, 0, 0.5f, 2, PAGEDCL_LAYOUT_NHD, 7, 3, 2, 16, 16, 0, 0, 0},
    {"int8, V in K", PAGEDCL_INT8, 1, 0, 0, PAGEDCL_LAYOUT_NHD, 4, 1, 5, 72, 64, 1, 0, 0},
    {"int4", PAGEDCL_INT4, 0, 0, 0, PAGEDCL_LAYOUT_NHD, 16, 2, 7, 80, 80, 0, 0, 0},
    {"int4, head by head", PAGEDCL_INT4, 0, 0, 0, PAGEDCL_LAYOUT_HND, 5, 3, 2, 100, 36, 0, 0, 0},
    {"int4, an odd row", PAGEDCL_INT4, 0, 0, 0, PAGEDCL_LAYOUT_NHD, 3, 1, 3, 33, 65, 0, 0, 0},
    {"int4, a short row", PAGEDCL_INT4, 0, 0, 0, PAGEDCL_LAYOUT_HND, 4, 3, 1, 1, 7, 0, 0, 0},
    {"int4, V in K", PAGEDCL_INT4, 0, 0, 0, PAGEDCL_LAYOUT_NHD, 4, 1, 5, 72, 37, 1, 0, 0},
    {"int4, rotated", PAGEDCL_INT4, 0, 0, 0, PAGEDCL_LAYOUT_NHD, 4, 2, 2, 80, 80, 0, 40, 0},
    {"int8, rotated", PAGEDCL_INT8, 1, 0, 0, PAGEDCL_LAYOUT_HND, 4, 2, 2, 40, 40, 0, 40, 0},
    {"int8, scale of the pool, bfloat16", PAGEDCL_INT8, 0, 0.03f, 0.05f, PAGEDCL_LAYOUT_HND, 16, 2, 7, 80, 64, 0, 0,
     PAGEDCL_BFLOAT16},
    {"e4m3, scales of rows, bfloat16", PAGEDCL_FLOAT8_E4M3, 1, 0, 0, PAGEDCL_LAYOUT_HND, 5, 2, 3, 48, 16, 0, 0,
     PAGEDCL_BFLOAT16},
    {"e5m2, scales of rows, halves", PAGEDCL_FLOAT8_E5M2, 1, 0, 0, PAGEDCL_LAYOUT_NHD, 4, 1, 4, 32, 32, 0, 0,
     PAGEDCL_FLOAT16},
};

/* More of which the tiers for NVIDIA's GPUs make matrices; for others they are nothing new. */
static const shape nv_shapes[] = {
    {"int8, scales of rows, halves", PAGEDCL_INT8, 1, 0, 0, PAGEDCL_LAYOUT_NHD, 16, 2, 4, 128, 128, 0, 0,
     PAGEDCL_FLOAT16},
    {"int8, rows of 80 bytes, halves", PAGEDCL_INT8, 1, 0, 0, PAGEDCL_LAYOUT_NHD, 3, 1, 17, 80, 80, 0, 0,
     PAGEDCL_FLOAT16},
    {"e4m3, no scale, halves", PAGEDCL_FLOAT8_E4M3, 0, 0, 0, PAGEDCL_LAYOUT_NHD, 4, 2, 1, 64, 64, 0, 0,
     PAGEDCL_FLOAT16},
    {"e5m2, scale of the pool, halves", PAGEDCL_FLOAT8_E5M2, 0, 0.5f, 2, PAGEDCL_LAYOUT_NHD, 7, 3, 2, 256, 256, 0, 0,
     PAGEDCL_FLOAT16},
    {"int8, V in K, halves", PAGEDCL_INT8, 1, 0, 0, PAGEDCL_LAYOUT_NHD, 4, 1, 5, 80, 64, 1, 0, PAGEDCL_FLOAT16},
    {"int8, rotated, halves", PAGEDCL_INT8, 1, 0, 0, PAGEDCL_LAYOUT_HND, 4, 2, 2, 48, 48, 0, 32, PAGEDCL_FLOAT16},
    {"e4m3, scales of rows, blocks of 8", PAGEDCL_FLOAT8_E4M3, 1, 0, 0, PAGEDCL_LAYOUT_HND, 8, 2, 7, 80, 64, 0, 0,
     PAGEDCL_FLOAT16},
    {"e5m2, scales of rows, bfloat16, blocks of 32", PAGEDCL_FLOAT8_E5M2, 1, 0, 0, PAGEDCL_LAYOUT_NHD, 32, 3, 1, 16,
     112, 0, 0, PAGEDCL_BFLOAT16},
    {"int8, scales of rows, V in K, blocks of 24", PAGEDCL_INT8, 1, 0, 0, PAGEDCL_LAYOUT_NHD, 24, 1, 9, 128, 96, 1, 0,
     PAGEDCL_BFLOAT16},
};

/* One side of a pool, as downloaded. */
typedef struct side {
    block_layout layout;
    unsigned char *bytes;
} side;

static size_t side_bytes(const side *x) {
    return NUM_BLOCKS * x->layout.bytes;
}

static side side_make(const pagedcl_cache_desc *pool, int32_t head_dim, float scale) {
    side made = {.layout = block_layout_of(pool, head_dim, scale)};
    made.bytes = fixture_alloc(side_bytes(&made));
    return made;
}

static unsigned char *side_block(const side *x, int32_t block) {
    return x->bytes + (size_t)block * x->layout.bytes;
}

static double side_value(const side *x, int32_t block, int32_t token, int32_t head, int32_t d) {
    return block_value(&x->layout, side_block(x, block), token, head, d);
}

/* A sequence of `length` tokens in scattered blocks, the last NEW of them new, its rows as floats, and the objects that
   work on it. Rows are as they count: rotated, where a run rotates q, and k of the new tokens. */
typedef struct scene {
    const shape *s;
    pagedcl_device *device;
    pagedcl_cache *cache;
    pagedcl_attn *attn;
    pagedcl_plan *plan;
    int32_t table[NUM_BLOCKS], num_heads, length, old;
    float *k, *v;
    double *q;
    guarded k_buffer, v_buffer, k_new_buffer, v_new_buffer, q_buffer, out, lse, rotary_cos, rotary_sin;
    side k_side, v_side;
} scene;

static float *rows_make(random_state *random, int32_t rows, int32_t elements) {
    float *x = fixture_alloc((size_t)rows * (size_t)elements * sizeof(*x));
    for (int32_t i = 0; i < rows * elements; i++)
        x[i] = random_normal(random);
    return x;
}

/* A few bits of x, so that a row is rotated without rounding. */
static float coarse(double x, double steps) {
    return (float)(round(x * steps) / steps);
}

static pagedcl_dtype q_dtype(const shape *s) {
    return s->q_dtype != PAGEDCL_DTYPE_DEFAULT ? s->q_dtype : PAGEDCL_FLOAT32;
}

/* A tensor of a run, in q's dtype. */
static guarded input_create(const scene *x, const float *values, int32_t count) {
    pagedcl_dtype dtype = q_dtype(x->s);
    size_t bytes = (size_t)count * pagedcl_dtype_size(dtype);
    void *elements = fixture_alloc(bytes);
    elements_from_floats(dtype, values, count, elements);
    guarded made = guarded_create(x->device, bytes, elements);
    free(elements);
    return made;
}

/* The rows that runs are given: q, and k and v of the new tokens. They are rotated afterwards. */
static void make_inputs(scene *x, random_state *random) {
    const shape *s = x->s;
    const int32_t heads = s->num_kv_heads, pairs = s->rotary_dim / 2, dim = s->head_dim;
    float *q = rows_make(random, NEW, x->num_heads * dim), *k_new = x->k + x->old * heads * dim;
    float *v_new = x->v + x->old * heads * s->head_dim_v;
    float *tables[2] = {fixture_alloc((size_t)(x->length * pairs) * sizeof(float)),
                        fixture_alloc((size_t)(x->length * pairs) * sizeof(float))};
    for (int32_t i = 0; i < x->length * pairs; i++) {
        double angle = i / pairs * pow(100, -(double)(i % pairs) / pairs);
        tables[0][i] = coarse(cos(angle), 64);
        tables[1][i] = coarse(sin(angle), 64);
    }
    const bool halves = q_dtype(s) != PAGEDCL_FLOAT32;
    for (int32_t i = 0; (pairs > 0 || halves) && i < NEW * heads * dim; i++)
        k_new[i] = coarse((double)k_new[i], 16);
    for (int32_t i = 0; halves && i < NEW * heads * s->head_dim_v; i++)
        v_new[i] = coarse((double)v_new[i], 16);
    for (int32_t i = 0; halves && i < NEW * x->num_heads * dim; i++)
        q[i] = coarse((double)q[i], 16);
    x->q_buffer = input_create(x, q, NEW * x->num_heads * dim);
    x->k_new_buffer = input_create(x, k_new, NEW * heads * dim);
    x->v_new_buffer = input_create(x, v_new, NEW * heads * s->head_dim_v);
    x->rotary_cos = guarded_create(x->device, (size_t)(x->length * pairs) * sizeof(float), tables[0]);
    x->rotary_sin = guarded_create(x->device, (size_t)(x->length * pairs) * sizeof(float), tables[1]);

    const ref_attn attn = {
        .head_dim = dim, .rotary_dim = s->rotary_dim, .rotary_cos = tables[0], .rotary_sin = tables[1]};
    x->q = fixture_alloc((size_t)(NEW * x->num_heads * dim) * sizeof(double));
    for (int32_t row = 0; row < NEW * x->num_heads; row++)
        ref_attn_rotate(&attn, x->old + row / x->num_heads, q + row * dim, x->q + row * dim);
    double *rotated = fixture_alloc((size_t)dim * sizeof(double));
    for (int32_t row = 0; row < NEW * heads; row++) {
        ref_attn_rotate(&attn, x->old + row / heads, k_new + row * dim, rotated);
        for (int32_t d = 0; d < dim; d++)
            k_new[row * dim + d] = (float)rotated[d];
    }
    free(rotated);
    free(q);
    free(tables[0]);
    free(tables[1]);
}

/* The streaming kernels of the tiers for NVIDIA's GPUs are not at work on fewer than MAX_LENGTH; oclgrind, which checks
   each instruction, has none of them. */
static int32_t tokens_on(const pagedcl_device *device) {
    pagedcl_device_info info = PAGEDCL_DEVICE_INFO_INIT;
    expect_ok(pagedcl_device_get_info(device, &info));
    return strcmp(info.platform_name, "Oclgrind") == 0 ? OCLGRIND_LENGTH : MAX_LENGTH;
}

static scene scene_open(pagedcl_device *device, pagedcl_tier tier, const shape *s) {
    scene x = {.s = s, .device = device, .num_heads = s->num_kv_heads * s->group};
    random_state random = {7};
    x.length = tokens_on(device);
    x.old = x.length - NEW;
    pagedcl_cache_desc pool = PAGEDCL_CACHE_DESC_INIT;
    pool.num_blocks = NUM_BLOCKS;
    pool.block_size = s->block_size;
    pool.num_kv_heads = s->num_kv_heads;
    pool.head_dim = s->head_dim;
    pool.head_dim_v = s->head_dim_v;
    pool.v_in_k = s->v_in_k;
    pool.layout = s->layout;
    pool.dtype = s->dtype;
    pool.scale_per_row = s->scale_per_row;
    pool.k_scale = s->k_scale;
    pool.v_scale = s->v_scale;
    expect_ok(pagedcl_cache_create(device, &pool, &x.cache));
    pagedcl_attn_desc desc = PAGEDCL_ATTN_DESC_INIT;
    desc.cache = x.cache;
    desc.num_heads = x.num_heads;
    desc.q_dtype = q_dtype(s);
    desc.out_dtype = PAGEDCL_FLOAT32;
    desc.causal = 1;
    desc.rotary_dim = s->rotary_dim;
    expect_ok(fixture_attn_create(device, &desc, tier, &x.attn));
    expect_ok(pagedcl_plan_create(x.attn, &x.plan));
    for (int32_t i = 0; i < NUM_BLOCKS; i++)
        x.table[i] = i;
    random_permutation(&random, x.table, NUM_BLOCKS);
    x.k = rows_make(&random, x.length, s->num_kv_heads * s->head_dim);
    x.v = rows_make(&random, x.length, s->num_kv_heads * s->head_dim_v);
    make_inputs(&x, &random);
    /* A row of zeros has no largest magnitude to take a scale from. */
    memset(x.k, 0, (size_t)(s->num_kv_heads * s->head_dim) * sizeof(float));
    x.k_buffer = guarded_create(device, (size_t)(x.length * s->num_kv_heads * s->head_dim) * sizeof(float), x.k);
    x.v_buffer = guarded_create(device, (size_t)(x.length * s->num_kv_heads * s->head_dim_v) * sizeof(float), x.v);
    x.out = guarded_create(device, (size_t)(NEW * x.num_heads * s->head_dim_v) * sizeof(float), NULL);
    x.lse = guarded_create(device, (size_t)(NEW * x.num_heads) * sizeof(float), NULL);
    x.k_side = side_make(&pool, s->head_dim, s->k_scale);
    x.v_side = side_make(&pool, s->head_dim_v, s->v_scale);
    return x;
}

static void scene_close(scene *x) {
    guarded *buffers[] = {&x->k_buffer, &x->v_buffer, &x->k_new_buffer, &x->v_new_buffer, &x->q_buffer,
                          &x->out,      &x->lse,      &x->rotary_cos,   &x->rotary_sin};
    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++)
        guarded_destroy(buffers[i]);
    pagedcl_plan_destroy(x->plan);
    pagedcl_attn_destroy(x->attn);
    pagedcl_cache_destroy(x->cache);
    free(x->k);
    free(x->v);
    free(x->q);
    free(x->k_side.bytes);
    free(x->v_side.bytes);
}

static void write_tokens(scene *x, int32_t count) {
    int64_t slots[MAX_LENGTH];
    for (int32_t t = 0; t < count; t++)
        slots[t] = (int64_t)x->table[t / x->s->block_size] * x->s->block_size + t % x->s->block_size;
    pagedcl_tensor k = {.mem = x->k_buffer.mem}, v = {.mem = x->v_buffer.mem};
    expect_ok(pagedcl_cache_write(x->cache, NULL, 0, &k, x->s->v_in_k ? NULL : &v, PAGEDCL_FLOAT32, slots, count, 0,
                                  NULL, NULL));
}

static void download(scene *x) {
    expect_ok(pagedcl_cache_download_blocks(x->cache, NULL, 0, NULL, NUM_BLOCKS, x->k_side.bytes,
                                            x->s->v_in_k ? NULL : x->v_side.bytes, 0, NULL, NULL));
    expect_cl(clFinish(pagedcl_device_queue(x->device)));
}

/* Every element of the first `count` tokens is within half a step of what was given, or the largest there is. */
static void expect_stored(const scene *x, const side *stored, const float *given, int32_t count) {
    const shape *s = x->s;
    const int32_t head_dim = stored->layout.head_dim;
    for (int32_t t = 0; t < count; t++)
        for (int32_t h = 0; h < s->num_kv_heads; h++)
            for (int32_t d = 0; d < head_dim; d++) {
                int32_t block = x->table[t / s->block_size], token = t % s->block_size;
                double want = (double)given[(t * s->num_kv_heads + h) * head_dim + d];
                double scale = block_scale(&stored->layout, side_block(stored, block), token, h, d);
                double largest = code_largest(s->dtype) * scale, got = side_value(stored, block, token, h, d);
                /* A stored scale is such that no value is too large. */
                double clamped = stored->layout.scale_group > 0 ? want : fmax(-largest, fmin(largest, want));
                double allowed = 0.501 * code_step(s->dtype, clamped / scale) * scale;
                cr_assert(fabs(got - clamped) <= allowed, "%s: token %d, head %d, element %d: %g is stored as %g",
                          s->name, t, h, d, want, got);
            }
}

/* Attention of the last NEW tokens over what is stored, from the definition. */
static void expect_attention(const scene *x, const char *what) {
    const shape *s = x->s;
    const side *values = s->v_in_k ? &x->k_side : &x->v_side;
    float *got = guarded_read(x->device, &x->out, s->name), *lse = guarded_read(x->device, &x->lse, s->name);
    for (int32_t row = 0; row < NEW * x->num_heads; row++) {
        int32_t keys = x->old + row / x->num_heads + 1, head = row % x->num_heads / s->group;
        double weights[MAX_LENGTH], sum = 0;
        for (int32_t t = 0; t < keys; t++) {
            double score = 0;
            for (int32_t d = 0; d < s->head_dim; d++)
                score += x->q[row * s->head_dim + d] *
                         side_value(&x->k_side, x->table[t / s->block_size], t % s->block_size, head, d);
            weights[t] = exp(score / sqrt(s->head_dim));
            sum += weights[t];
        }
        double want_lse = log(sum);
        expect_close(s->name, what, &lse[row], &want_lse, 1, tolerance_of(PAGEDCL_FLOAT32));
        for (int32_t d = 0; d < s->head_dim_v; d++) {
            double want = 0;
            for (int32_t t = 0; t < keys; t++)
                want += weights[t] / sum * side_value(values, x->table[t / s->block_size], t % s->block_size, head, d);
            expect_close(s->name, what, &got[row * s->head_dim_v + d], &want, 1, tolerance_of(PAGEDCL_FLOAT32));
        }
    }
    free(got);
    free(lse);
}

static void run(scene *x, bool appends) {
    pagedcl_attn_args args = PAGEDCL_ATTN_ARGS_INIT;
    args.q.mem = x->q_buffer.mem;
    args.out.mem = x->out.mem;
    args.lse = x->lse.mem;
    if (x->s->rotary_dim > 0) {
        args.rotary_cos = x->rotary_cos.mem;
        args.rotary_sin = x->rotary_sin.mem;
        args.rotary_positions = x->length;
    }
    if (appends) {
        args.k_new.mem = x->k_new_buffer.mem;
        if (!x->s->v_in_k)
            args.v_new.mem = x->v_new_buffer.mem;
    }
    expect_ok(pagedcl_attn_run(x->attn, NULL, x->plan, &args, 0, NULL, NULL));
    download(x);
}

static void plan_decode(scene *x, int32_t seqlen_new, int32_t num_splits) {
    int32_t length = x->length - seqlen_new;
    pagedcl_decode_batch batch = PAGEDCL_DECODE_BATCH_INIT;
    batch.num_seqs = 1;
    batch.seqlen_q = NEW;
    batch.seqlen_new = seqlen_new;
    batch.cache_seqlens = &length;
    batch.block_table = x->table;
    batch.block_table_stride = NUM_BLOCKS;
    batch.num_splits = num_splits;
    expect_ok(pagedcl_plan_decode(x->plan, NULL, &batch));
}

static void plan_varlen(scene *x, int32_t append) {
    int32_t length = x->length, cu_seqlens[2] = {0, NEW};
    pagedcl_varlen_batch batch = PAGEDCL_VARLEN_BATCH_INIT;
    batch.num_seqs = 1;
    batch.cu_seqlens_q = cu_seqlens;
    batch.cache_seqlens = &length;
    batch.block_table = x->table;
    batch.block_table_stride = NUM_BLOCKS;
    batch.append = append;
    expect_ok(pagedcl_plan_varlen(x->plan, NULL, &batch));
}

typedef void scenario(scene *x);

static void play_shapes(pagedcl_device *device, const shape *of, size_t count, scenario *play) {
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    for (int t = 0, n = fixture_tiers(device, tiers); t < n; t++)
        for (size_t i = 0; i < count; i++) {
            scene x = scene_open(device, tiers[t], &of[i]);
            play(&x);
            scene_close(&x);
        }
}

static void for_each_shape(scenario *play) {
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    const bool is_nv = tiers[fixture_tiers(device, tiers) - 1] >= PAGEDCL_TIER_NV_MMA;
    play_shapes(device, shapes, sizeof(shapes) / sizeof(shapes[0]), play);
    if (is_nv)
        play_shapes(device, nv_shapes, sizeof(nv_shapes) / sizeof(nv_shapes[0]), play);
    pagedcl_device_destroy(device);
}

static void write_then_attend(scene *x) {
    write_tokens(x, x->length);
    plan_varlen(x, 0);
    run(x, false);
    expect_stored(x, &x->k_side, x->k, x->length);
    if (!x->s->v_in_k)
        expect_stored(x, &x->v_side, x->v, x->length);
    expect_attention(x, "varlen");
    plan_decode(x, 0, 0);
    run(x, false);
    expect_attention(x, "decode");
}

Test(attn_quantized, write_then_attend) {
    for_each_shape(write_then_attend);
}

/* The sequence's values are those in other bytes of the side. */
static void expect_same_rows(const scene *x, const side *got, unsigned char *bytes) {
    const shape *s = x->s;
    const side want = {.layout = got->layout, .bytes = bytes};
    for (int32_t t = 0; t < x->length; t++)
        for (int32_t h = 0; h < s->num_kv_heads; h++)
            for (int32_t d = 0; d < got->layout.head_dim; d++) {
                int32_t block = x->table[t / s->block_size], token = t % s->block_size;
                cr_assert(side_value(got, block, token, h, d) == side_value(&want, block, token, h, d),
                          "%s: token %d, head %d, element %d", s->name, t, h, d);
            }
}

/* Whoever stores a token, its elements and scales are the same. */
static void every_way_to_append_agrees(scene *x) {
    write_tokens(x, x->length);
    download(x);
    size_t k_bytes = side_bytes(&x->k_side), v_bytes = side_bytes(&x->v_side);
    unsigned char *k = fixture_alloc(k_bytes), *v = fixture_alloc(v_bytes);
    memcpy(k, x->k_side.bytes, k_bytes);
    memcpy(v, x->v_side.bytes, v_bytes);
    for (int way = 0; way < 3; way++) {
        memset(x->k_side.bytes, 0xff, k_bytes);
        memset(x->v_side.bytes, 0xff, v_bytes);
        expect_ok(pagedcl_cache_upload_blocks(x->cache, NULL, 0, NULL, NUM_BLOCKS, x->k_side.bytes,
                                              x->s->v_in_k ? NULL : x->v_side.bytes, 0, NULL, NULL));
        write_tokens(x, x->old);
        if (way == 0)
            plan_varlen(x, 1);
        else
            plan_decode(x, NEW, way == 1 ? 0 : 4);
        run(x, true);
        expect_attention(x, way == 0 ? "varlen append" : "decode append");
        expect_stored(x, &x->k_side, x->k, x->length);
        expect_same_rows(x, &x->k_side, k);
        if (!x->s->v_in_k)
            expect_same_rows(x, &x->v_side, v);
    }
    free(k);
    free(v);
}

Test(attn_quantized, every_way_to_append_agrees) {
    for_each_shape(every_way_to_append_agrees);
}

/* Rows as float32: each element times its scale. */
static void gather_gives_the_values(scene *x) {
    const shape *s = x->s;
    const side *sides[2] = {&x->k_side, s->v_in_k ? &x->k_side : &x->v_side};
    const int32_t dims[2] = {s->head_dim, s->head_dim_v}, length = x->length;
    write_tokens(x, x->length);
    guarded out[2];
    pagedcl_tensor tensors[2];
    for (int i = 0; i < 2; i++) {
        out[i] = guarded_create(x->device, (size_t)(1 + x->length * s->num_kv_heads * dims[i]) * sizeof(float), NULL);
        tensors[i] = (pagedcl_tensor){.mem = out[i].mem, .offset = 1};
    }
    expect_ok(pagedcl_cache_gather(x->cache, NULL, 0, x->table, NUM_BLOCKS, &length, 1, &tensors[0], &tensors[1], 0,
                                   NULL, NULL));
    download(x);
    for (int i = 0; i < 2; i++) {
        float *got = guarded_read(x->device, &out[i], s->name);
        for (int32_t t = 0; t < x->length; t++)
            for (int32_t h = 0; h < s->num_kv_heads; h++)
                for (int32_t d = 0; d < dims[i]; d++) {
                    float want = (float)side_value(sides[i], x->table[t / s->block_size], t % s->block_size, h, d);
                    cr_assert_eq(got[1 + (t * s->num_kv_heads + h) * dims[i] + d], want,
                                 "%s: token %d, head %d, element %d", s->name, t, h, d);
                }
        free(got);
        guarded_destroy(&out[i]);
    }
}

Test(attn_quantized, gather_gives_the_values) {
    for_each_shape(gather_gives_the_values);
}

static void copies_take_the_scales_along(scene *x) {
    write_tokens(x, x->length);
    int32_t unused = x->table[NUM_BLOCKS - 1], pair[2] = {x->table[0], unused};
    expect_ok(pagedcl_cache_copy_blocks(x->cache, NULL, pair, 1, 0, NULL, NULL));
    x->table[0] = unused;
    plan_varlen(x, 0);
    run(x, false);
    expect_stored(x, &x->k_side, x->k, x->length);
    expect_attention(x, "after a copy");
}

Test(attn_quantized, copies_take_the_scales_along) {
    for_each_shape(copies_take_the_scales_along);
}

/* Out to the host one block at a time, and back into other blocks. */
static void blocks_travel_alone(scene *x) {
    write_tokens(x, x->length);
    const int32_t used = (x->length + x->s->block_size - 1) / x->s->block_size;
    const size_t k_bytes = x->k_side.layout.bytes, v_bytes = x->s->v_in_k ? 0 : x->v_side.layout.bytes;
    unsigned char *k = fixture_alloc((size_t)used * k_bytes), *v = fixture_alloc((size_t)used * v_bytes);
    for (int32_t i = 0; i < used; i++)
        expect_ok(pagedcl_cache_download_blocks(x->cache, NULL, 0, &x->table[i], 1, k + (size_t)i * k_bytes,
                                                x->s->v_in_k ? NULL : v + (size_t)i * v_bytes, 0, NULL, NULL));
    expect_cl(clFinish(pagedcl_device_queue(x->device)));
    for (int32_t i = 0; i < NUM_BLOCKS; i++)
        x->table[i] = NUM_BLOCKS - 1 - x->table[i];
    expect_ok(
        pagedcl_cache_upload_blocks(x->cache, NULL, 0, x->table, used, k, x->s->v_in_k ? NULL : v, 0, NULL, NULL));
    plan_varlen(x, 0);
    run(x, false);
    expect_stored(x, &x->k_side, x->k, x->length);
    expect_attention(x, "after the way to the host and back");
    free(k);
    free(v);
}

Test(attn_quantized, blocks_travel_alone) {
    for_each_shape(blocks_travel_alone);
}

Test(attn_quantized, in_segments) {
    const attn_case cases[] = {
        {.name = "int4, varlen", .path = VARLEN_PAGED, .kv_dtype = PAGEDCL_INT4, .segment_blocks = 2, .append = 1},
        {.name = "int4, decode",
         .path = DECODE,
         .kv_dtype = PAGEDCL_INT4,
         .segment_blocks = 4,
         .num_layers = 2,
         .head_dim = 33,
         .head_dim_v = 100,
         .append = 1},
    };
    attn_check_cases(cases, sizeof(cases) / sizeof(cases[0]));
}
