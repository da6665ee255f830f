/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools of 8-bit elements. What is stored is read back and must lie within half a step of what was given; attention
 * must then be exact over what is stored, that is to float32 rounding.
 */
#include "support/expect.h"
#include "support/fixture.h"
#include "support/random.h"

#include <pagedcl/pagedcl.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NUM_BLOCKS = 12, OLD = 29, NEW = 3, LENGTH = OLD + NEW };

typedef struct shape {
    const char *name;
    pagedcl_dtype dtype;
    int32_t scale_per_row;
    float k_scale, v_scale;
    pagedcl_layout layout;
    int32_t block_size, num_kv_heads, group, head_dim, head_dim_v, v_in_k;
} shape;

static const shape shapes[] = {
    {"int8, scales of rows", PAGEDCL_INT8, 1, 0, 0, PAGEDCL_LAYOUT_NHD, 3, 1, 2, 25, 25, 0},
    {"int8, scale of the pool", PAGEDCL_INT8, 0, 0.03f, 0.05f, PAGEDCL_LAYOUT_HND, 16, 2, 7, 80, 80, 0},
    {"e4m3, scales of rows", PAGEDCL_FLOAT8_E4M3, 1, 0, 0, PAGEDCL_LAYOUT_HND, 5, 2, 3, 40, 24, 0},
    {"e4m3, no scale", PAGEDCL_FLOAT8_E4M3, 0, 0, 0, PAGEDCL_LAYOUT_NHD, 4, 2, 1, 64, 64, 0},
    {"e5m2, scales of rows", PAGEDCL_FLOAT8_E5M2, 1, 0, 0, PAGEDCL_LAYOUT_NHD, 4, 1, 4, 33, 33, 0},
    {"e5m2, scale of the pool", PAGEDCL_FLOAT8_E5M2, 0, 0.5f, 2, PAGEDCL_LAYOUT_NHD, 7, 3, 2, 16, 16, 0},
    {"int8, V in K", PAGEDCL_INT8, 1, 0, 0, PAGEDCL_LAYOUT_NHD, 4, 1, 5, 72, 64, 1},
};

/* The value of a code, from the formats' definitions. */
static double decode(pagedcl_dtype dtype, unsigned char code) {
    if (dtype == PAGEDCL_INT8)
        return (signed char)code;
    int mantissa_bits = dtype == PAGEDCL_FLOAT8_E4M3 ? 3 : 2, bias = dtype == PAGEDCL_FLOAT8_E4M3 ? 7 : 15;
    int exponent = (code & 0x7f) >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
    double magnitude = exponent > 0 ? ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits)
                                    : ldexp(mantissa, 1 - bias - mantissa_bits);
    return code & 0x80 ? -magnitude : magnitude;
}

static double largest_of(pagedcl_dtype dtype) {
    return dtype == PAGEDCL_INT8 ? 127 : dtype == PAGEDCL_FLOAT8_E4M3 ? 448 : 57344;
}

/* The distance of neighbouring codes around a value. */
static double step_at(pagedcl_dtype dtype, double value) {
    if (dtype == PAGEDCL_INT8)
        return 1;
    int mantissa_bits = dtype == PAGEDCL_FLOAT8_E4M3 ? 3 : 2, least = dtype == PAGEDCL_FLOAT8_E4M3 ? -6 : -14;
    int exponent = value == 0 ? least : ilogb(value);
    return ldexp(1, (exponent < least ? least : exponent) - mantissa_bits);
}

/* One side of a pool, as downloaded. */
typedef struct side {
    const shape *s;
    int32_t head_dim;
    float scale; /* of the pool */
    size_t block_bytes, scales_offset;
    unsigned char *bytes;
} side;

static side side_make(const shape *s, int32_t head_dim, float scale) {
    size_t rows = (size_t)s->block_size * (size_t)s->num_kv_heads, elements = rows * (size_t)head_dim;
    side made = {.s = s, .head_dim = head_dim, .scale = scale == 0 ? 1 : scale};
    made.scales_offset = s->scale_per_row ? (elements + 3) / 4 * 4 : elements;
    made.block_bytes = made.scales_offset + (s->scale_per_row ? rows * sizeof(float) : 0);
    made.bytes = fixture_alloc(NUM_BLOCKS * made.block_bytes);
    return made;
}

static double side_scale(const side *x, int32_t block, int32_t token, int32_t head) {
    if (!x->s->scale_per_row)
        return x->scale;
    float scale;
    size_t row = (size_t)token * (size_t)x->s->num_kv_heads + (size_t)head;
    memcpy(&scale, x->bytes + (size_t)block * x->block_bytes + x->scales_offset + row * sizeof(scale), sizeof(scale));
    return scale;
}

static double side_value(const side *x, int32_t block, int32_t token, int32_t head, int32_t d) {
    const shape *s = x->s;
    size_t row = s->layout == PAGEDCL_LAYOUT_NHD ? (size_t)token * (size_t)s->num_kv_heads + (size_t)head
                                                 : (size_t)head * (size_t)s->block_size + (size_t)token;
    unsigned char code = x->bytes[(size_t)block * x->block_bytes + row * (size_t)x->head_dim + (size_t)d];
    return decode(s->dtype, code) * side_scale(x, block, token, head);
}

/* A sequence of LENGTH tokens in scattered blocks, its rows as floats, and the objects that work on it. */
typedef struct scene {
    const shape *s;
    pagedcl_device *device;
    pagedcl_cache *cache;
    pagedcl_attn *attn;
    pagedcl_plan *plan;
    int32_t table[NUM_BLOCKS], num_heads;
    float *k, *v, *q;
    guarded k_buffer, v_buffer, q_buffer, out, lse;
    side k_side, v_side;
} scene;

static float *rows_make(random_state *random, int32_t rows, int32_t elements) {
    float *x = fixture_alloc((size_t)rows * (size_t)elements * sizeof(*x));
    for (int32_t i = 0; i < rows * elements; i++)
        x[i] = random_normal(random);
    return x;
}

static scene scene_open(pagedcl_device *device, pagedcl_tier tier, const shape *s) {
    scene x = {.s = s, .device = device, .num_heads = s->num_kv_heads * s->group};
    random_state random = {7};
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
    desc.q_dtype = PAGEDCL_FLOAT32;
    desc.causal = 1;
    desc.tier = tier;
    expect_ok(pagedcl_attn_create(device, &desc, &x.attn));
    expect_ok(pagedcl_plan_create(x.attn, &x.plan));
    for (int32_t i = 0; i < NUM_BLOCKS; i++)
        x.table[i] = i;
    random_permutation(&random, x.table, NUM_BLOCKS);
    x.k = rows_make(&random, LENGTH, s->num_kv_heads * s->head_dim);
    x.v = rows_make(&random, LENGTH, s->num_kv_heads * s->head_dim_v);
    x.q = rows_make(&random, NEW, x.num_heads * s->head_dim);
    /* A row of zeros has no largest magnitude to take a scale from. */
    memset(x.k, 0, (size_t)(s->num_kv_heads * s->head_dim) * sizeof(float));
    x.k_buffer = guarded_create(device, (size_t)(LENGTH * s->num_kv_heads * s->head_dim) * sizeof(float), x.k);
    x.v_buffer = guarded_create(device, (size_t)(LENGTH * s->num_kv_heads * s->head_dim_v) * sizeof(float), x.v);
    x.q_buffer = guarded_create(device, (size_t)(NEW * x.num_heads * s->head_dim) * sizeof(float), x.q);
    x.out = guarded_create(device, (size_t)(NEW * x.num_heads * s->head_dim_v) * sizeof(float), NULL);
    x.lse = guarded_create(device, (size_t)(NEW * x.num_heads) * sizeof(float), NULL);
    x.k_side = side_make(s, s->head_dim, s->k_scale);
    x.v_side = side_make(s, s->head_dim_v, s->v_scale);
    return x;
}

static void scene_close(scene *x) {
    guarded *buffers[] = {&x->k_buffer, &x->v_buffer, &x->q_buffer, &x->out, &x->lse};
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

/* The tensors from a token on. */
static pagedcl_tensor k_from(const scene *x, int32_t token) {
    return (pagedcl_tensor){.mem = x->k_buffer.mem, .offset = (int64_t)token * x->s->num_kv_heads * x->s->head_dim};
}
static pagedcl_tensor v_from(const scene *x, int32_t token) {
    return (pagedcl_tensor){.mem = x->v_buffer.mem, .offset = (int64_t)token * x->s->num_kv_heads * x->s->head_dim_v};
}

static void write_tokens(scene *x, int32_t count) {
    int64_t slots[LENGTH];
    for (int32_t t = 0; t < count; t++)
        slots[t] = (int64_t)x->table[t / x->s->block_size] * x->s->block_size + t % x->s->block_size;
    pagedcl_tensor k = k_from(x, 0), v = v_from(x, 0);
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
    for (int32_t t = 0; t < count; t++)
        for (int32_t h = 0; h < s->num_kv_heads; h++)
            for (int32_t d = 0; d < stored->head_dim; d++) {
                int32_t block = x->table[t / s->block_size], token = t % s->block_size;
                double want = given[(t * s->num_kv_heads + h) * stored->head_dim + d];
                double scale = side_scale(stored, block, token, h), largest = largest_of(s->dtype) * scale;
                double got = side_value(stored, block, token, h, d);
                double clamped = fmax(-largest, fmin(largest, want));
                double allowed = 0.501 * step_at(s->dtype, clamped / scale) * scale;
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
        int32_t keys = OLD + row / x->num_heads + 1, head = row % x->num_heads / s->group;
        double weights[LENGTH], sum = 0;
        for (int32_t t = 0; t < keys; t++) {
            double score = 0;
            for (int32_t d = 0; d < s->head_dim; d++)
                score += (double)x->q[row * s->head_dim + d] *
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
    if (appends) {
        args.k_new = k_from(x, OLD);
        if (!x->s->v_in_k)
            args.v_new = v_from(x, OLD);
    }
    expect_ok(pagedcl_attn_run(x->attn, NULL, x->plan, &args, 0, NULL, NULL));
    download(x);
}

static void plan_decode(scene *x, int32_t seqlen_new, int32_t num_splits) {
    int32_t length = LENGTH - seqlen_new;
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
    int32_t length = LENGTH, cu_seqlens[2] = {0, NEW};
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

static void for_each_shape(scenario *play) {
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    for (int t = 0, n = fixture_tiers(device, tiers); t < n; t++)
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            scene x = scene_open(device, tiers[t], &shapes[i]);
            play(&x);
            scene_close(&x);
        }
    pagedcl_device_destroy(device);
}

static void write_then_attend(scene *x) {
    write_tokens(x, LENGTH);
    plan_varlen(x, 0);
    run(x, false);
    expect_stored(x, &x->k_side, x->k, LENGTH);
    if (!x->s->v_in_k)
        expect_stored(x, &x->v_side, x->v, LENGTH);
    expect_attention(x, "varlen");
    plan_decode(x, 0, 0);
    run(x, false);
    expect_attention(x, "decode");
}

Test(attn_quantized, write_then_attend) {
    for_each_shape(write_then_attend);
}

/* Whoever stores a token, its bytes are the same. */
static void every_way_to_append_agrees(scene *x) {
    write_tokens(x, LENGTH);
    download(x);
    size_t k_bytes = NUM_BLOCKS * x->k_side.block_bytes, v_bytes = NUM_BLOCKS * x->v_side.block_bytes;
    unsigned char *k = fixture_alloc(k_bytes), *v = fixture_alloc(v_bytes);
    memcpy(k, x->k_side.bytes, k_bytes);
    memcpy(v, x->v_side.bytes, v_bytes);
    for (int way = 0; way < 3; way++) {
        memset(x->k_side.bytes, 0xff, k_bytes);
        memset(x->v_side.bytes, 0xff, v_bytes);
        expect_ok(pagedcl_cache_upload_blocks(x->cache, NULL, 0, NULL, NUM_BLOCKS, x->k_side.bytes,
                                              x->s->v_in_k ? NULL : x->v_side.bytes, 0, NULL, NULL));
        write_tokens(x, OLD);
        if (way == 0)
            plan_varlen(x, 1);
        else
            plan_decode(x, NEW, way == 1 ? 0 : 4);
        run(x, true);
        expect_attention(x, way == 0 ? "varlen append" : "decode append");
        expect_stored(x, &x->k_side, x->k, LENGTH);
        for (int32_t t = 0; t < LENGTH; t++)
            for (int32_t d = 0; d < x->s->head_dim; d++) {
                side written = x->k_side;
                written.bytes = k;
                int32_t block = x->table[t / x->s->block_size], token = t % x->s->block_size;
                cr_assert(side_value(&written, block, token, 0, d) == side_value(&x->k_side, block, token, 0, d),
                          "%s, way %d: token %d, element %d", x->s->name, way, t, d);
            }
    }
    free(k);
    free(v);
}

Test(attn_quantized, every_way_to_append_agrees) {
    for_each_shape(every_way_to_append_agrees);
}

static void copies_take_the_scales_along(scene *x) {
    write_tokens(x, LENGTH);
    int32_t unused = x->table[NUM_BLOCKS - 1], pair[2] = {x->table[0], unused};
    expect_ok(pagedcl_cache_copy_blocks(x->cache, NULL, pair, 1, 0, NULL, NULL));
    x->table[0] = unused;
    plan_varlen(x, 0);
    run(x, false);
    expect_stored(x, &x->k_side, x->k, LENGTH);
    expect_attention(x, "after a copy");
}

Test(attn_quantized, copies_take_the_scales_along) {
    for_each_shape(copies_take_the_scales_along);
}

Test(attn_quantized, what_does_not_go_together_is_refused) {
    pagedcl_device *device = fixture_open();
    pagedcl_cache_desc good = PAGEDCL_CACHE_DESC_INIT, desc;
    good.num_blocks = 2;
    good.block_size = 4;
    good.num_kv_heads = 1;
    good.head_dim = 8;
    pagedcl_cache *cache = NULL;
#define REFUSED(change, words)                                                                        \
    do {                                                                                              \
        desc = good;                                                                                  \
        change;                                                                                       \
        expect_refused(pagedcl_cache_create(device, &desc, &cache), PAGEDCL_INVALID_ARGUMENT, words); \
    } while (0)
    REFUSED(desc.scale_per_row = 1, "scale_per_row");
    REFUSED(desc.k_scale = 2, "k_scale");
    REFUSED((desc.dtype = PAGEDCL_INT8, desc.scale_per_row = 2), "scale_per_row");
    REFUSED((desc.dtype = PAGEDCL_INT8, desc.scale_per_row = 1, desc.v_scale = 2), "v_scale");
    REFUSED((desc.dtype = PAGEDCL_INT8, desc.k_scale = -1), "k_scale");
    REFUSED((desc.dtype = PAGEDCL_INT8, desc.k_scale = NAN), "k_scale");
#undef REFUSED
    desc = good;
    desc.dtype = PAGEDCL_INT8;
    expect_ok(pagedcl_cache_create(device, &desc, &cache));
    int32_t table = 0, length = 1;
    guarded buffer = guarded_create(device, 64, NULL);
    pagedcl_tensor tensor = {.mem = buffer.mem};
    int64_t slot = 0;
    expect_refused(pagedcl_cache_gather(cache, NULL, 0, &table, 1, &length, 1, &tensor, &tensor, 0, NULL, NULL),
                   PAGEDCL_UNSUPPORTED, "int8");
    expect_refused(pagedcl_cache_write(cache, NULL, 0, &tensor, &tensor, PAGEDCL_INT8, &slot, 1, 0, NULL, NULL),
                   PAGEDCL_INVALID_ARGUMENT, "int8");
    pagedcl_attn_desc eight = PAGEDCL_ATTN_DESC_INIT;
    eight.cache = cache;
    eight.num_heads = 1;
    eight.q_dtype = PAGEDCL_FLOAT8_E4M3;
    pagedcl_attn *attn = NULL;
    expect_refused(pagedcl_attn_create(device, &eight, &attn), PAGEDCL_UNSUPPORTED, "q_dtype");
    guarded_destroy(&buffer);
    pagedcl_cache_destroy(cache);
    pagedcl_device_destroy(device);
}
