/* SPDX-License-Identifier: Apache-2.0 */
/* The pool on the device against plain arrays on the host. */
#include "support/elements.h"
#include "support/expect.h"
#include "support/fixture.h"
#include "support/pool_model.h"
#include "support/random.h"
#include "support/strided.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A pool; segment_blocks: the most blocks of K that a segment may hold, 0: as many as the device allows. */
typedef struct pool_shape {
    const char *name;
    int32_t num_layers, num_blocks, block_size, num_kv_heads, head_dim;
    pagedcl_dtype dtype;
    int32_t segment_blocks;
} pool_shape;

static const pool_shape shapes[] = {
    {"float32, block size 16", 3, 5, 16, 2, 80, PAGEDCL_FLOAT32, 0},
    {"float16, block size 1", 1, 37, 1, 7, 24, PAGEDCL_FLOAT16, 0},
    {"bfloat16, block size 7", 2, 9, 7, 3, 104, PAGEDCL_BFLOAT16, 0},
    {"float16, segments of one block", 2, 8, 7, 2, 40, PAGEDCL_FLOAT16, 1},
    {"float32, segments of two blocks", 2, 11, 1, 1, 8, PAGEDCL_FLOAT32, 2},
    {"bfloat16, room for three blocks a segment", 2, 13, 16, 1, 256, PAGEDCL_BFLOAT16, 3},
};
enum { NUM_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

static pagedcl_cache_desc desc_of(const pool_shape *shape) {
    pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT;
    desc.num_layers = shape->num_layers;
    desc.num_blocks = shape->num_blocks;
    desc.block_size = shape->block_size;
    desc.num_kv_heads = shape->num_kv_heads;
    desc.head_dim = shape->head_dim;
    desc.dtype = shape->dtype;
    desc.max_segment_bytes = (uint64_t)shape->segment_blocks * (uint64_t)shape->block_size *
                             (uint64_t)shape->num_kv_heads * (uint64_t)shape->head_dim *
                             pagedcl_dtype_size(shape->dtype);
    return desc;
}

/* A pool with random content and its model. */
typedef struct rig {
    const char *name;
    pagedcl_device *device;
    pagedcl_cache *cache;
    pool_model model;
} rig;

static rig rig_open(const pool_shape *shape) {
    pagedcl_cache_desc desc = desc_of(shape);
    rig r = {.name = shape->name, .device = fixture_open(), .model = pool_model_create(&desc)};
    expect_ok(pagedcl_cache_create(r.device, &desc, &r.cache));
    pool_model_randomize(&r.model, 1);
    pool_model_upload(&r.model, r.cache);
    return r;
}

static void rig_close(rig *r) {
    pagedcl_cache_destroy(r->cache);
    pool_model_destroy(&r->model);
    pagedcl_device_destroy(r->device);
}

static int64_t num_slots(const rig *r) {
    return (int64_t)r->model.desc.num_blocks * r->model.desc.block_size;
}

/* count random floats that dtype holds exactly. */
static float *random_floats(pagedcl_dtype dtype, int64_t count, uint64_t seed) {
    random_state state = {seed};
    float *values = fixture_alloc((size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++)
        values[i] = element_round(dtype, random_normal(&state));
    return values;
}

/* `tokens` random rows for the pool's heads, on the host and on the device. */
typedef struct rows {
    float *k, *v;
    strided k_tensor, v_tensor;
} rows;

static rows rows_create(const rig *r, pagedcl_dtype dtype, int64_t tokens, strided_layout layout) {
    int32_t heads = r->model.desc.num_kv_heads, head_dim = r->model.desc.head_dim;
    rows x = {.k = random_floats(dtype, tokens * heads * head_dim, 2),
              .v = random_floats(dtype, tokens * heads * head_dim, 3)};
    x.k_tensor = strided_create(r->device, dtype, tokens, heads, head_dim, layout, 0, x.k);
    x.v_tensor = strided_create(r->device, dtype, tokens, heads, head_dim, layout, 0, x.v);
    return x;
}

static void rows_destroy(rows *x) {
    strided_destroy(&x->k_tensor);
    strided_destroy(&x->v_tensor);
    free(x->k);
    free(x->v);
}

/* ---- whole blocks ---- */

Test(cache, upload_and_download_in_every_shape) {
    for (int s = 0; s < NUM_SHAPES; s++) {
        rig r = rig_open(&shapes[s]);
        pool_model_expect(&r.model, r.cache, r.name);
        rig_close(&r);
    }
}

/* Every second block, in reversed order, of the last layer. */
Test(cache, upload_and_download_chosen_blocks) {
    for (int s = 0; s < NUM_SHAPES; s++) {
        rig r = rig_open(&shapes[s]);
        int32_t layer = r.model.desc.num_layers - 1, blocks[64], count = 0;
        for (int32_t b = r.model.desc.num_blocks - 1; b >= 0; b -= 2)
            blocks[count++] = b;
        size_t block_bytes = (size_t)r.model.desc.block_size * r.model.row_bytes;
        unsigned char *k = fixture_alloc((size_t)count * block_bytes), *v = fixture_alloc((size_t)count * block_bytes);
        for (size_t i = 0; i < (size_t)count * block_bytes; i++) {
            k[i] = (unsigned char)(i * 7);
            v[i] = (unsigned char)(i * 11 + 1);
        }
        int32_t passed[64];
        memcpy(passed, blocks, sizeof(blocks));
        cl_event event;
        expect_ok(pagedcl_cache_upload_blocks(r.cache, NULL, layer, passed, count, k, v, 0, NULL, &event));
        memset(passed, 0x7f, sizeof(passed)); /* the ids were copied */
        expect_cl(clWaitForEvents(1, &event));
        expect_cl(clReleaseEvent(event));
        for (int32_t i = 0; i < count; i++) {
            int64_t slot = (int64_t)blocks[i] * r.model.desc.block_size;
            memcpy(pool_model_k(&r.model, layer, slot), k + (size_t)i * block_bytes, block_bytes);
            memcpy(pool_model_v(&r.model, layer, slot), v + (size_t)i * block_bytes, block_bytes);
        }
        pool_model_expect(&r.model, r.cache, r.name);

        unsigned char *k_got = fixture_poisoned((size_t)count * block_bytes);
        unsigned char *v_got = fixture_poisoned((size_t)count * block_bytes);
        expect_ok(pagedcl_cache_download_blocks(r.cache, NULL, layer, blocks, count, k_got, v_got, 0, NULL, &event));
        expect_cl(clWaitForEvents(1, &event));
        expect_cl(clReleaseEvent(event));
        expect_same_bytes(r.name, "K", k_got, k, (size_t)count * block_bytes);
        expect_same_bytes(r.name, "V", v_got, v, (size_t)count * block_bytes);
        free(k);
        free(v);
        free(k_got);
        free(v_got);
        rig_close(&r);
    }
}

/* A chain, a swap through a spare block, and a fan; the pairs take effect in their order. */
Test(cache, copies_take_effect_in_order) {
    const int32_t pairs[] = {0, 1, 1, 2, 3, 7, 4, 3, 7, 4, 5, 6, 5, 7, 6, 0, 2, 5};
    enum { NUM_PAIRS = sizeof(pairs) / sizeof(pairs[0]) / 2 };
    for (int s = 0; s < NUM_SHAPES; s++) {
        rig r = rig_open(&shapes[s]);
        int32_t passed[2 * NUM_PAIRS];
        for (int i = 0; i < 2 * NUM_PAIRS; i++)
            passed[i] = pairs[i] % r.model.desc.num_blocks;
        size_t block_bytes = (size_t)r.model.desc.block_size * r.model.row_bytes;
        for (int i = 0; i < NUM_PAIRS; i++) {
            for (int32_t layer = 0; layer < r.model.desc.num_layers; layer++) {
                int64_t src = (int64_t)passed[2 * i] * r.model.desc.block_size;
                int64_t dst = (int64_t)passed[2 * i + 1] * r.model.desc.block_size;
                memmove(pool_model_k(&r.model, layer, dst), pool_model_k(&r.model, layer, src), block_bytes);
                memmove(pool_model_v(&r.model, layer, dst), pool_model_v(&r.model, layer, src), block_bytes);
            }
        }
        expect_ok(pagedcl_cache_copy_blocks(r.cache, NULL, passed, NUM_PAIRS, 0, NULL, NULL));
        memset(passed, 0x7f, sizeof(passed));
        pool_model_expect(&r.model, r.cache, r.name);
        rig_close(&r);
    }
}

/* ---- write ---- */

/* What rounding can get wrong: half way and just beside it, the largest half and beyond it, the smallest and half of
 * that, zeros and infinities. */
static const float special_values[] = {1.00048828125f, 1.0004884f, 1.00146484375f, 65504,       65519.996f,
                                       65520,          1e30f,      5.9604645e-8f,  2.98e-8f,    6.1e-5f,
                                       -0.0f,          0,          1.01171875f,    -1.0039063f, -INFINITY};

static void make_special(float *values, int64_t count, pagedcl_dtype dtype) {
    for (int64_t i = 0; i < count; i++)
        values[i] = element_round(dtype, special_values[(size_t)i % (sizeof(special_values) / sizeof(float))]);
}

/* Rows into every third slot in random order, rows of NaN that are skipped between them (B25). */
static void check_write(const pool_shape *shape, pagedcl_dtype dtype, strided_layout layout, bool special) {
    rig r = rig_open(shape);
    int32_t layer = shape->num_layers - 1, heads = shape->num_kv_heads, head_dim = shape->head_dim;
    int64_t row = (int64_t)heads * head_dim, tokens = 2 * (num_slots(&r) / 3 + 1);
    float *k_values = random_floats(dtype, tokens * row, 2), *v_values = random_floats(dtype, tokens * row, 3);
    if (special)
        make_special(k_values, tokens * row, dtype);
    int32_t *order = fixture_alloc((size_t)num_slots(&r) * sizeof(int32_t));
    int64_t *slots = fixture_alloc((size_t)tokens * sizeof(int64_t));
    random_state state = {4};
    random_permutation(&state, order, (int32_t)num_slots(&r));
    for (int64_t t = 0; t < tokens; t++) {
        slots[t] = t % 2 == 0 ? order[t / 2] : -1;
        if (slots[t] >= 0)
            pool_model_write(&r.model, layer, slots[t], k_values + t * row, v_values + t * row);
        for (int64_t e = 0; e < row && slots[t] < 0; e++)
            k_values[t * row + e] = v_values[t * row + e] = NAN;
    }
    strided k = strided_create(r.device, dtype, tokens, heads, head_dim, layout, 0, k_values);
    strided v = strided_create(r.device, dtype, tokens, heads, head_dim, layout, 0, v_values);
    cl_event event;
    expect_ok(pagedcl_cache_write(r.cache, NULL, layer, &k.view, &v.view, dtype, slots, tokens, 0, NULL, &event));
    memset(slots, 0x7f, (size_t)tokens * sizeof(int64_t)); /* the slots were copied */
    expect_cl(clWaitForEvents(1, &event));
    expect_cl(clReleaseEvent(event));
    pool_model_expect(&r.model, r.cache, r.name);
    strided_destroy(&k);
    strided_destroy(&v);
    free(k_values);
    free(v_values);
    free(order);
    free(slots);
    rig_close(&r);
}

Test(cache, write_in_every_shape) {
    for (int s = 0; s < NUM_SHAPES; s++)
        check_write(&shapes[s], shapes[s].dtype, s % 2 == 0 ? WITH_GAPS : CONTIGUOUS, false);
}

Test(cache, write_converts_to_nearest_even) {
    const struct {
        const char *name;
        pagedcl_dtype from, to;
    } pairs[] = {
        {"float32 into float16", PAGEDCL_FLOAT32, PAGEDCL_FLOAT16},
        {"float32 into bfloat16", PAGEDCL_FLOAT32, PAGEDCL_BFLOAT16},
        {"float16 into float32", PAGEDCL_FLOAT16, PAGEDCL_FLOAT32},
        {"float16 into bfloat16", PAGEDCL_FLOAT16, PAGEDCL_BFLOAT16},
        {"bfloat16 into float16", PAGEDCL_BFLOAT16, PAGEDCL_FLOAT16},
        {"bfloat16 into float32", PAGEDCL_BFLOAT16, PAGEDCL_FLOAT32},
    };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        pool_shape shape = {pairs[i].name, 2, 6, 5, 2, 24, pairs[i].to, 0};
        check_write(&shape, pairs[i].from, i % 2 == 0 ? CONTIGUOUS : WITH_GAPS, false);
        check_write(&shape, pairs[i].from, CONTIGUOUS, true);
    }
}

/* B37: row u holds u + 1, whatever the number of rows, and nothing else changes. */
Test(cache, write_any_number_of_rows) {
    const int32_t counts[] = {1, 31, 32, 33, 34, 40, 48, 63, 64, 65, 80, 97};
    rig r = rig_open(&(pool_shape){"row counts", 1, 10, 16, 1, 8, PAGEDCL_FLOAT32, 0});
    float minus_one[8], row[8];
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        for (int turn = 0; turn < 20; turn++) {
            float values[97 * 8];
            int64_t slots[97];
            for (int e = 0; e < 8; e++)
                minus_one[e] = -1;
            for (int64_t slot = 0; slot < num_slots(&r); slot++)
                pool_model_write(&r.model, 0, slot, minus_one, minus_one);
            pool_model_upload(&r.model, r.cache);
            for (int32_t u = 0; u < counts[i]; u++) {
                slots[u] = u + 50;
                for (int e = 0; e < 8; e++)
                    row[e] = values[u * 8 + e] = (float)(u + 1);
                pool_model_write(&r.model, 0, slots[u], row, row);
            }
            strided x = strided_create(r.device, PAGEDCL_FLOAT32, counts[i], 1, 8, CONTIGUOUS, 0, values);
            expect_ok(pagedcl_cache_write(r.cache, NULL, 0, &x.view, &x.view, PAGEDCL_FLOAT32, slots, counts[i], 0,
                                          NULL, NULL));
            char name[32];
            snprintf(name, sizeof(name), "%d rows, turn %d", counts[i], turn);
            pool_model_expect(&r.model, r.cache, name);
            strided_destroy(&x);
        }
    }
    rig_close(&r);
}

/* ---- gather ---- */

/* Sequences of 0, block_size + 1, 1 and three tokens more than a block, through scattered blocks. */
Test(cache, gather_in_every_shape) {
    for (int s = 0; s < NUM_SHAPES; s++) {
        rig r = rig_open(&shapes[s]);
        const pagedcl_cache_desc *desc = &r.model.desc;
        int32_t layer = desc->num_layers - 1, bs = desc->block_size;
        int32_t seqlens[] = {0, bs + 1, 1, bs + 3, 0};
        enum { NUM_SEQS = 5, STRIDE = 6 };
        int32_t table[NUM_SEQS * STRIDE], order[64], used = 0;
        random_state state = {5};
        random_permutation(&state, order, desc->num_blocks);
        int64_t tokens = 0;
        for (int32_t b = 0; b < NUM_SEQS; b++) {
            for (int32_t i = 0; i < STRIDE; i++) /* behind the used length anything may stand */
                table[b * STRIDE + i] = i * bs < seqlens[b] ? order[used++ % desc->num_blocks] : 1000000 - 7 * i;
            tokens += seqlens[b];
        }
        unsigned char *k_want = fixture_alloc((size_t)tokens * r.model.row_bytes);
        unsigned char *v_want = fixture_alloc((size_t)tokens * r.model.row_bytes);
        size_t row = 0;
        for (int32_t b = 0; b < NUM_SEQS; b++) {
            for (int32_t p = 0; p < seqlens[b]; p++, row++) {
                int64_t slot = (int64_t)table[b * STRIDE + p / bs] * bs + p % bs;
                memcpy(k_want + row * r.model.row_bytes, pool_model_k(&r.model, layer, slot), r.model.row_bytes);
                memcpy(v_want + row * r.model.row_bytes, pool_model_v(&r.model, layer, slot), r.model.row_bytes);
            }
        }
        /* The rows begin at an odd offset; what lies before and behind them stays. */
        size_t element = pagedcl_dtype_size(desc->dtype), lead = 3 * element;
        size_t bytes = lead + (size_t)tokens * r.model.row_bytes + 5 * element;
        guarded k_buffer = guarded_create(r.device, bytes, NULL), v_buffer = guarded_create(r.device, bytes, NULL);
        pagedcl_tensor k = {.mem = k_buffer.mem, .offset = 3}, v = {.mem = v_buffer.mem, .offset = 3};
        expect_ok(pagedcl_cache_gather(r.cache, NULL, layer, table, STRIDE, seqlens, NUM_SEQS, &k, &v, 0, NULL, NULL));
        memset(table, 0x7f, sizeof(table));
        memset(seqlens, 0x7f, sizeof(seqlens));
        unsigned char *k_got = guarded_read(r.device, &k_buffer, r.name);
        unsigned char *v_got = guarded_read(r.device, &v_buffer, r.name);
        unsigned char *poison = fixture_poisoned(bytes);
        memcpy(poison + lead, k_want, (size_t)tokens * r.model.row_bytes);
        expect_same_bytes(r.name, "K", k_got, poison, bytes);
        memcpy(poison + lead, v_want, (size_t)tokens * r.model.row_bytes);
        expect_same_bytes(r.name, "V", v_got, poison, bytes);
        void *owned[] = {k_want, v_want, k_got, v_got, poison};
        for (size_t i = 0; i < 5; i++)
            free(owned[i]);
        guarded_destroy(&k_buffer);
        guarded_destroy(&v_buffer);
        rig_close(&r);
    }
}

/* B17: block ids beyond 65,535. A block's row says which block it is. */
Test(cache, seventy_thousand_blocks) {
    rig r = rig_open(&(pool_shape){"70,000 blocks", 1, 70000, 1, 1, 8, PAGEDCL_FLOAT16, 0});
    for (int32_t b = 0; b < 70000; b++) {
        float row[8] = {(float)(b % 256), (float)(b / 256)};
        pool_model_write(&r.model, 0, b, row, row);
    }
    pool_model_upload(&r.model, r.cache);
    pool_model_expect(&r.model, r.cache, r.name);

    int32_t table[] = {65536, 65537, 0, 69999}, seqlens[] = {4};
    guarded buffer = guarded_create(r.device, 4 * 8 * 2, NULL);
    pagedcl_tensor tensor = {.mem = buffer.mem};
    expect_ok(pagedcl_cache_gather(r.cache, NULL, 0, table, 4, seqlens, 1, &tensor, &tensor, 0, NULL, NULL));
    uint16_t *got = guarded_read(r.device, &buffer, r.name);
    for (int i = 0; i < 4; i++)
        expect_same_bytes(r.name, "gathered row", got + 8 * i, pool_model_k(&r.model, 0, table[i]), 16);

    int64_t slot = 65538;
    float row[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    strided x = strided_create(r.device, PAGEDCL_FLOAT16, 1, 1, 8, CONTIGUOUS, 0, row);
    expect_ok(pagedcl_cache_write(r.cache, NULL, 0, &x.view, &x.view, PAGEDCL_FLOAT16, &slot, 1, 0, NULL, NULL));
    pool_model_write(&r.model, 0, slot, row, row);
    int32_t pair[] = {65538, 65540};
    expect_ok(pagedcl_cache_copy_blocks(r.cache, NULL, pair, 1, 0, NULL, NULL));
    pool_model_write(&r.model, 0, 65540, row, row);
    pool_model_expect(&r.model, r.cache, r.name);
    strided_destroy(&x);
    guarded_destroy(&buffer);
    free(got);
    rig_close(&r);
}

/* ---- what is refused ---- */

static const pool_shape small = {"refusals", 2, 4, 16, 2, 80, PAGEDCL_FLOAT16, 0};

Test(cache, bad_writes_change_nothing) {
    rig r = rig_open(&small);
    rows x = rows_create(&r, PAGEDCL_FLOAT16, 3, WITH_GAPS);
    const struct {
        int64_t slots[3];
        const char *words;
    } cases[] = {
        {{0, 1, 64}, "2"},
        {{-2, 1, 2}, "0"},
        {{0, INT64_MAX, 2}, "1"},
        {{0, 1, INT64_MIN}, "2"},
        {{0, (int64_t)1 << 32, 2}, "1"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_refused(pagedcl_cache_write(r.cache, NULL, 0, &x.k_tensor.view, &x.v_tensor.view, PAGEDCL_FLOAT16,
                                           cases[i].slots, 3, 0, NULL, NULL),
                       PAGEDCL_INVALID_SLOT, cases[i].words);

    int64_t slots[4] = {0, 1, 2, 3};
    pagedcl_tensor k = x.k_tensor.view, v = x.v_tensor.view;
#define WRITE(layer, k, v, dtype, slots, count) \
    pagedcl_cache_write(r.cache, NULL, layer, k, v, dtype, slots, count, 0, NULL, NULL)
    expect_refused(WRITE(2, &k, &v, PAGEDCL_FLOAT16, slots, 3), PAGEDCL_INVALID_ARGUMENT, "layer");
    expect_refused(WRITE(-1, &k, &v, PAGEDCL_FLOAT16, slots, 3), PAGEDCL_INVALID_ARGUMENT, "layer");
    expect_refused(WRITE(0, NULL, &v, PAGEDCL_FLOAT16, slots, 3), PAGEDCL_INVALID_ARGUMENT, "k");
    expect_refused(WRITE(0, &k, NULL, PAGEDCL_FLOAT16, slots, 3), PAGEDCL_INVALID_ARGUMENT, "v");
    expect_refused(WRITE(0, &k, &v, PAGEDCL_FLOAT16, NULL, 3), PAGEDCL_INVALID_ARGUMENT, "slot_mapping");
    expect_refused(WRITE(0, &k, &v, PAGEDCL_FLOAT16, slots, -1), PAGEDCL_INVALID_ARGUMENT, "num_slots");
    expect_refused(WRITE(0, &k, &v, (pagedcl_dtype)9, slots, 3), PAGEDCL_INVALID_ARGUMENT, "dtype");
    expect_refused(WRITE(0, &k, &v, PAGEDCL_FLOAT16, slots, 4), PAGEDCL_BUFFER_TOO_SMALL, "k");
    expect_refused(WRITE(0, &k, &v, PAGEDCL_FLOAT32, slots, 3), PAGEDCL_BUFFER_TOO_SMALL, "k");
    pagedcl_tensor shifted = v;
    shifted.offset++;
    expect_refused(WRITE(0, &k, &shifted, PAGEDCL_FLOAT16, slots, 3), PAGEDCL_BUFFER_TOO_SMALL, "v");
    shifted.offset = -1;
    expect_refused(WRITE(0, &k, &shifted, PAGEDCL_FLOAT16, slots, 3), PAGEDCL_INVALID_ARGUMENT, "v");
    shifted.offset = INT64_MAX;
    cr_assert_neq(WRITE(0, &k, &shifted, PAGEDCL_FLOAT16, slots, 3), PAGEDCL_SUCCESS);
    shifted = v;
    shifted.token_stride = INT64_MAX / 2;
    cr_assert_neq(WRITE(0, &k, &shifted, PAGEDCL_FLOAT16, slots, 3), PAGEDCL_SUCCESS);
#undef WRITE
    pool_model_expect(&r.model, r.cache, r.name);
    rows_destroy(&x);
    rig_close(&r);
}

/* ---- slots on the device ---- */

static void expect_write_faults(rig *r, uint32_t writes) {
    pagedcl_faults faults = {UINT32_MAX, UINT32_MAX};
    cl_event event;
    expect_ok(pagedcl_cache_read_faults(r->cache, NULL, &faults, 0, NULL, &event));
    expect_cl(clWaitForEvents(1, &event));
    expect_cl(clReleaseEvent(event));
    cr_assert(faults.reads == 0 && faults.writes == writes, "%s: %u reads and %u writes, want 0 and %u", r->name,
              faults.reads, faults.writes, writes);
}

/* B25: what names no slot is dropped and, unless it is -1, counted; rows whose slots are good are stored. */
Test(cache, slots_on_the_device_are_guarded) {
    enum { ROWS = 12, OFFSET = 3 };
    for (int s = 0; s < NUM_SHAPES; s++) {
        rig r = rig_open(&shapes[s]);
        int64_t end = num_slots(&r), kv_row = (int64_t)shapes[s].num_kv_heads * shapes[s].head_dim;
        const int64_t slots[OFFSET + ROWS] = {0,         0, 0,  5,         -1,        end - 1, end,    -2,
                                              INT64_MAX, 0, -1, INT64_MIN, 1LL << 32, 7,       end + 4};
        guarded mapping = guarded_create(r.device, sizeof(slots), slots);
        rows x = rows_create(&r, PAGEDCL_FLOAT32, ROWS, WITH_GAPS);
        int32_t layer = shapes[s].num_layers - 1;
        for (int t = 0; t < ROWS; t++)
            if (slots[OFFSET + t] >= 0 && slots[OFFSET + t] < end)
                pool_model_write(&r.model, layer, slots[OFFSET + t], x.k + t * kv_row, x.v + t * kv_row);
        for (uint32_t turn = 1; turn <= 2; turn++) {
            cl_event event;
            expect_ok(pagedcl_cache_write_mapped(r.cache, NULL, layer, &x.k_tensor.view, &x.v_tensor.view,
                                                 PAGEDCL_FLOAT32, mapping.mem, OFFSET, ROWS, 0, NULL, &event));
            expect_cl(clWaitForEvents(1, &event));
            expect_cl(clReleaseEvent(event));
            pool_model_expect(&r.model, r.cache, r.name);
            expect_write_faults(&r, 6 * turn);
        }
        expect_ok(pagedcl_cache_write_mapped(r.cache, NULL, layer, &x.k_tensor.view, &x.v_tensor.view, PAGEDCL_FLOAT32,
                                             NULL, 0, 0, 0, NULL, NULL));
        guarded_destroy(&mapping);
        rows_destroy(&x);
        rig_close(&r);
    }
}

/* Slots of the host, which are checked, never count. */
Test(cache, writes_from_the_host_count_no_fault) {
    rig r = rig_open(&small);
    rows x = rows_create(&r, PAGEDCL_FLOAT16, 2, CONTIGUOUS);
    const int64_t slots[2] = {-1, 63};
    expect_ok(pagedcl_cache_write(r.cache, NULL, 0, &x.k_tensor.view, &x.v_tensor.view, PAGEDCL_FLOAT16, slots, 2, 0,
                                  NULL, NULL));
    expect_write_faults(&r, 0);
    rows_destroy(&x);
    rig_close(&r);
}

Test(cache, bad_mapped_writes_change_nothing) {
    rig r = rig_open(&small);
    rows x = rows_create(&r, PAGEDCL_FLOAT16, 3, WITH_GAPS);
    const int64_t slots[3] = {0, 1, 2};
    guarded mapping = guarded_create(r.device, sizeof(slots), slots);
    pagedcl_tensor k = x.k_tensor.view, v = x.v_tensor.view;
#define WRITE(layer, k, v, dtype, mem, offset, count) \
    pagedcl_cache_write_mapped(r.cache, NULL, layer, k, v, dtype, mem, offset, count, 0, NULL, NULL)
    expect_refused(WRITE(2, &k, &v, PAGEDCL_FLOAT16, mapping.mem, 0, 3), PAGEDCL_INVALID_ARGUMENT, "layer");
    expect_refused(WRITE(0, NULL, &v, PAGEDCL_FLOAT16, mapping.mem, 0, 3), PAGEDCL_INVALID_ARGUMENT, "k");
    expect_refused(WRITE(0, &k, NULL, PAGEDCL_FLOAT16, mapping.mem, 0, 3), PAGEDCL_INVALID_ARGUMENT, "v");
    expect_refused(WRITE(0, &k, &v, (pagedcl_dtype)9, mapping.mem, 0, 3), PAGEDCL_INVALID_ARGUMENT, "dtype");
    expect_refused(WRITE(0, &k, &v, PAGEDCL_FLOAT16, NULL, 0, 3), PAGEDCL_INVALID_ARGUMENT, "slot_mapping");
    expect_refused(WRITE(0, &k, &v, PAGEDCL_FLOAT16, mapping.mem, 1, 3), PAGEDCL_BUFFER_TOO_SMALL, "slot_mapping");
    expect_refused(WRITE(0, &k, &v, PAGEDCL_FLOAT16, mapping.mem, -1, 3), PAGEDCL_INVALID_ARGUMENT, "slot_mapping");
    expect_refused(WRITE(0, &k, &v, PAGEDCL_FLOAT16, mapping.mem, INT64_MAX, 3), PAGEDCL_SIZE_OVERFLOW, "slot_mapping");
    expect_refused(WRITE(0, &k, &v, PAGEDCL_FLOAT16, mapping.mem, 0, 4), PAGEDCL_BUFFER_TOO_SMALL, "k");
    expect_refused(WRITE(0, &k, &v, PAGEDCL_FLOAT16, mapping.mem, 0, -1), PAGEDCL_INVALID_ARGUMENT, "num_slots");
#undef WRITE
    expect_refused(pagedcl_cache_read_faults(r.cache, NULL, NULL, 0, NULL, NULL), PAGEDCL_INVALID_ARGUMENT, "faults");
    expect_refused(pagedcl_cache_read_faults(NULL, NULL, &(pagedcl_faults){0}, 0, NULL, NULL), PAGEDCL_INVALID_ARGUMENT,
                   "cache");
    pool_model_expect(&r.model, r.cache, r.name);
    expect_write_faults(&r, 0);
    guarded_destroy(&mapping);
    rows_destroy(&x);
    rig_close(&r);
}

Test(cache, bad_gathers_change_nothing) {
    rig r = rig_open(&small);
    size_t bytes = 18 * r.model.row_bytes;
    guarded k_buffer = guarded_create(r.device, bytes, NULL), v_buffer = guarded_create(r.device, bytes, NULL);
    pagedcl_tensor k = {.mem = k_buffer.mem}, v = {.mem = v_buffer.mem};
    const struct {
        int32_t table[4];
        int32_t seqlens[2];
        int32_t stride;
        pagedcl_status status;
        const char *words;
    } cases[] = {
        {{1, 2, 1, 4}, {1, 17}, 2, PAGEDCL_INVALID_BLOCK, "4"},
        {{1, 2, 1, -5}, {1, 17}, 2, PAGEDCL_INVALID_BLOCK, "-5"},
        {{1, 2, 1, -1}, {1, 17}, 2, PAGEDCL_INVALID_BLOCK, "-1"},
        {{1, 2, INT32_MAX, 1}, {1, 17}, 2, PAGEDCL_INVALID_BLOCK, "2147483647"},
        {{1, 2, 1, 2}, {1, -3}, 2, PAGEDCL_INVALID_LENGTH, "-3"},
        {{1, 2, 1, 2}, {1, 33}, 2, PAGEDCL_CAPACITY, "1"},
        {{1, 2, 1, 2}, {1, INT32_MAX}, 2, PAGEDCL_CAPACITY, "1"},
        {{1, 2, 1, 2}, {2, 17}, 2, PAGEDCL_BUFFER_TOO_SMALL, "k"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_refused(pagedcl_cache_gather(r.cache, NULL, 0, cases[i].table, cases[i].stride, cases[i].seqlens, 2, &k,
                                            &v, 0, NULL, NULL),
                       cases[i].status, cases[i].words);
    unsigned char *poison = fixture_poisoned(bytes);
    unsigned char *got = guarded_read(r.device, &k_buffer, r.name);
    expect_same_bytes(r.name, "k", got, poison, bytes);
    free(got);
    free(poison);
    guarded_destroy(&k_buffer);
    guarded_destroy(&v_buffer);
    rig_close(&r);
}

Test(cache, bad_blocks_change_nothing) {
    rig r = rig_open(&small);
    const int32_t bad_pairs[][4] = {{0, 1, 2, 4}, {0, 1, -1, 2}, {0, 1, 4, 0}, {0, 1, 2, INT32_MIN}};
    for (size_t i = 0; i < 4; i++)
        expect_refused(pagedcl_cache_copy_blocks(r.cache, NULL, bad_pairs[i], 2, 0, NULL, NULL), PAGEDCL_INVALID_BLOCK,
                       "1");
    expect_refused(pagedcl_cache_copy_blocks(r.cache, NULL, NULL, 1, 0, NULL, NULL), PAGEDCL_INVALID_ARGUMENT, "pairs");
    expect_refused(pagedcl_cache_copy_blocks(r.cache, NULL, bad_pairs[0], -1, 0, NULL, NULL), PAGEDCL_INVALID_ARGUMENT,
                   "num_pairs");
    unsigned char *content = fixture_poisoned(5 * 16 * r.model.row_bytes);
    const int32_t bad_blocks[][2] = {{0, 4}, {-1, 0}, {1, INT32_MAX}, {2, 2}};
    for (size_t i = 0; i < 4; i++)
        expect_refused(pagedcl_cache_upload_blocks(r.cache, NULL, 0, bad_blocks[i], 2, content, content, 0, NULL, NULL),
                       PAGEDCL_INVALID_BLOCK, "");
    for (size_t i = 0; i < 3; i++)
        expect_refused(
            pagedcl_cache_download_blocks(r.cache, NULL, 0, bad_blocks[i], 2, content, content, 0, NULL, NULL),
            PAGEDCL_INVALID_BLOCK, "");
    expect_refused(pagedcl_cache_upload_blocks(r.cache, NULL, 0, NULL, 5, content, content, 0, NULL, NULL),
                   PAGEDCL_INVALID_BLOCK, "pool of 4");
    expect_refused(pagedcl_cache_upload_blocks(r.cache, NULL, 2, NULL, 4, content, content, 0, NULL, NULL),
                   PAGEDCL_INVALID_ARGUMENT, "layer");
    expect_refused(pagedcl_cache_upload_blocks(r.cache, NULL, 0, NULL, 4, NULL, content, 0, NULL, NULL),
                   PAGEDCL_INVALID_ARGUMENT, "k");
    pool_model_expect(&r.model, r.cache, r.name);
    free(content);
    rig_close(&r);
}

/* B125. Every zero-sized call is fine, gives an event when asked, and changes nothing. */
Test(cache, nothing_to_do_is_no_error) {
    rig r = rig_open(&small);
    rows x = rows_create(&r, PAGEDCL_FLOAT16, 1, CONTIGUOUS);
    const pagedcl_tensor *k = &x.k_tensor.view, *v = &x.v_tensor.view;
    int64_t skipped = -1;
    int32_t table[2] = {-1, -1}, seqlens[2] = {0, 0};
    cl_event events[7];
    expect_ok(pagedcl_cache_write(r.cache, NULL, 0, k, v, PAGEDCL_FLOAT16, NULL, 0, 0, NULL, &events[0]));
    expect_ok(pagedcl_cache_write(r.cache, NULL, 0, k, v, PAGEDCL_FLOAT16, &skipped, 1, 0, NULL, &events[1]));
    expect_ok(pagedcl_cache_gather(r.cache, NULL, 0, NULL, 0, NULL, 0, k, v, 0, NULL, &events[2]));
    expect_ok(pagedcl_cache_gather(r.cache, NULL, 0, table, 1, seqlens, 2, k, v, 0, NULL, &events[3]));
    expect_ok(pagedcl_cache_copy_blocks(r.cache, NULL, NULL, 0, 0, NULL, &events[4]));
    expect_ok(pagedcl_cache_upload_blocks(r.cache, NULL, 0, NULL, 0, NULL, NULL, 0, NULL, &events[5]));
    expect_ok(pagedcl_cache_download_blocks(r.cache, NULL, 0, NULL, 0, NULL, NULL, 0, NULL, &events[6]));
    for (int i = 0; i < 7; i++) {
        expect_cl(clWaitForEvents(1, &events[i]));
        expect_cl(clReleaseEvent(events[i]));
    }
    expect_ok(pagedcl_cache_write(r.cache, NULL, 0, k, v, PAGEDCL_FLOAT16, NULL, 0, 0, NULL, NULL));
    expect_ok(pagedcl_cache_copy_blocks(r.cache, NULL, NULL, 0, 0, NULL, NULL));
    pool_model_expect(&r.model, r.cache, r.name);
    rows_destroy(&x);
    rig_close(&r);
}

/* ---- events and queues ---- */

/* A write that waits for the caller's event, a copy and a gather behind it, on a queue that promises no order. */
Test(cache, events_order_commands_on_an_unordered_queue, .timeout = 20) {
    rig r = rig_open(&small);
    cl_int code;
    cl_command_queue queue = clCreateCommandQueue(pagedcl_device_context(r.device), pagedcl_device_id(r.device),
                                                  CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
    expect_cl(code);
    cl_event start = clCreateUserEvent(pagedcl_device_context(r.device), &code), written, copied, gathered;
    expect_cl(code);
    rows x = rows_create(&r, PAGEDCL_FLOAT16, 1, CONTIGUOUS);
    int64_t slot = 19; /* block 1 */
    int32_t pair[2] = {1, 3}, table[1] = {3}, seqlens[1] = {4};
    guarded k_buffer = guarded_create(r.device, 4 * r.model.row_bytes, NULL);
    guarded v_buffer = guarded_create(r.device, 4 * r.model.row_bytes, NULL);
    pagedcl_tensor k = {.mem = k_buffer.mem}, v = {.mem = v_buffer.mem};
    expect_ok(pagedcl_cache_write(r.cache, queue, 1, &x.k_tensor.view, &x.v_tensor.view, PAGEDCL_FLOAT16, &slot, 1, 1,
                                  &start, &written));
    expect_ok(pagedcl_cache_copy_blocks(r.cache, queue, pair, 1, 1, &written, &copied));
    expect_ok(pagedcl_cache_gather(r.cache, queue, 1, table, 1, seqlens, 1, &k, &v, 1, &copied, &gathered));
    expect_cl(clSetUserEventStatus(start, CL_COMPLETE));
    expect_cl(clWaitForEvents(1, &gathered));
    unsigned char *got = guarded_read(r.device, &k_buffer, r.name);
    pool_model_write(&r.model, 1, slot, x.k, x.v);
    expect_same_bytes(r.name, "gathered K", got, pool_model_k(&r.model, 1, 16), 4 * r.model.row_bytes);
    for (int32_t layer = 0; layer < 2; layer++) {
        memcpy(pool_model_k(&r.model, layer, 48), pool_model_k(&r.model, layer, 16), 16 * r.model.row_bytes);
        memcpy(pool_model_v(&r.model, layer, 48), pool_model_v(&r.model, layer, 16), 16 * r.model.row_bytes);
    }
    pool_model_expect(&r.model, r.cache, r.name);
    cl_event events[] = {start, written, copied, gathered};
    for (int i = 0; i < 4; i++)
        expect_cl(clReleaseEvent(events[i]));
    expect_cl(clReleaseCommandQueue(queue));
    free(got);
    guarded_destroy(&k_buffer);
    guarded_destroy(&v_buffer);
    rows_destroy(&x);
    rig_close(&r);
}

/* B116: events are OpenCL's own, so that of a list only its form can be checked: no list, an empty one, a NULL in it. */
Test(cache, bad_wait_lists_are_refused) {
    rig r = rig_open(&small);
    rows x = rows_create(&r, PAGEDCL_FLOAT16, 1, CONTIGUOUS);
    int64_t slot = 3;
    cl_int code;
    cl_event done = clCreateUserEvent(pagedcl_device_context(r.device), &code), event = NULL;
    expect_cl(code);
    expect_cl(clSetUserEventStatus(done, CL_COMPLETE));
    cl_event events[3] = {done, NULL, done};
#define WRITE(count, list)                                                                                            \
    pagedcl_cache_write(r.cache, NULL, 0, &x.k_tensor.view, &x.v_tensor.view, PAGEDCL_FLOAT16, &slot, 1, count, list, \
                        &event)
    expect_refused(WRITE(1, NULL), PAGEDCL_INVALID_ARGUMENT, "events");
    expect_refused(WRITE(0, events), PAGEDCL_INVALID_ARGUMENT, "events");
    expect_refused(WRITE(3, events), PAGEDCL_INVALID_ARGUMENT, "events[1]");
#undef WRITE
    cr_assert_null(event);
    pool_model_expect(&r.model, r.cache, r.name);
    expect_cl(clReleaseEvent(done));
    rows_destroy(&x);
    rig_close(&r);
}

Test(cache, keeps_its_device_alive) {
    rig r = rig_open(&small);
    pagedcl_device *second = fixture_open();
    pagedcl_device_destroy(r.device);
    pool_model_expect(&r.model, r.cache, r.name);
    r.device = second;
    rig_close(&r);
    pagedcl_cache_destroy(NULL);
}

/* ---- descriptions ---- */

Test(cache, description_comes_back_with_its_defaults) {
    pagedcl_device *device = fixture_open();
    pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT, got = PAGEDCL_CACHE_DESC_INIT;
    desc.num_blocks = 3;
    desc.block_size = 5;
    desc.num_kv_heads = 2;
    desc.head_dim = 16;
    pagedcl_cache *cache;
    expect_ok(pagedcl_cache_create(device, &desc, &cache));
    expect_ok(pagedcl_cache_get_desc(cache, &got));
    cr_assert(got.num_layers == 1 && got.num_blocks == 3 && got.block_size == 5 && got.num_kv_heads == 2 &&
              got.head_dim == 16 && got.dtype == PAGEDCL_FLOAT16 && got.max_segment_bytes > 0);
    pagedcl_cache_destroy(cache);
    pagedcl_device_destroy(device);
}

/* The design's worked numbers: 7 blocks a layer for 100 tokens, 196 in all, 128 KiB a block, 24.5 MiB. */
Test(cache, bytes_of_the_worked_example) {
    pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT;
    desc.num_layers = 28;
    desc.num_blocks = (100 + 15) / 16;
    desc.block_size = 16;
    desc.num_kv_heads = 8;
    desc.head_dim = 128;
    desc.dtype = PAGEDCL_FLOAT32;
    uint64_t bytes = 0;
    expect_ok(pagedcl_cache_bytes(&desc, &bytes));
    cr_assert_eq(bytes, (uint64_t)196 * 128 * 1024);
    desc.dtype = PAGEDCL_DTYPE_DEFAULT;
    expect_ok(pagedcl_cache_bytes(&desc, &bytes));
    cr_assert_eq(bytes, (uint64_t)196 * 64 * 1024);
}

/* B29, B144, B145: no description may wrap round to a small pool. */
Test(cache, impossible_descriptions_are_refused) {
    const struct {
        const char *name;
        pagedcl_cache_desc desc;
        pagedcl_status status;
    } cases[] = {
        {"no blocks", {.num_blocks = 0, .block_size = 16, .num_kv_heads = 1, .head_dim = 64}, PAGEDCL_INVALID_ARGUMENT},
        {"blocks", {.num_blocks = -1, .block_size = 16, .num_kv_heads = 1, .head_dim = 64}, PAGEDCL_INVALID_ARGUMENT},
        {"layers",
         {.num_layers = -1, .num_blocks = 1, .block_size = 16, .num_kv_heads = 1, .head_dim = 64},
         PAGEDCL_INVALID_ARGUMENT},
        {"block size", {.num_blocks = 4, .block_size = 0, .num_kv_heads = 1, .head_dim = 64}, PAGEDCL_INVALID_ARGUMENT},
        {"heads", {.num_blocks = 4, .block_size = 16, .num_kv_heads = 0, .head_dim = 64}, PAGEDCL_INVALID_ARGUMENT},
        {"head_dim 0", {.num_blocks = 4, .block_size = 16, .num_kv_heads = 1, .head_dim = 0}, PAGEDCL_UNSUPPORTED},
        {"head_dim -8", {.num_blocks = 4, .block_size = 16, .num_kv_heads = 1, .head_dim = -8}, PAGEDCL_UNSUPPORTED},
        {"head_dim 577", {.num_blocks = 4, .block_size = 16, .num_kv_heads = 1, .head_dim = 577}, PAGEDCL_UNSUPPORTED},
        {"dtype",
         {.num_blocks = 4, .block_size = 16, .num_kv_heads = 1, .head_dim = 64, .dtype = (pagedcl_dtype)9},
         PAGEDCL_UNSUPPORTED},
        {"more than 2^64 bytes",
         {.num_layers = INT32_MAX, .num_blocks = 1 << 30, .block_size = 64, .num_kv_heads = 64, .head_dim = 256},
         PAGEDCL_SIZE_OVERFLOW},
        {"2^64 bytes exactly",
         {.num_layers = 1 << 30, .num_blocks = 1 << 24, .block_size = 1, .num_kv_heads = 1, .head_dim = 256},
         PAGEDCL_SIZE_OVERFLOW},
        {"bytes that wrap when they are padded for the scales",
         {.num_blocks = 1,
          .block_size = INT32_MAX,
          .num_kv_heads = INT32_MAX,
          .head_dim = 2,
          .dtype = PAGEDCL_INT8,
          .scale_per_row = 1},
         PAGEDCL_SIZE_OVERFLOW},
        {"2^62 bytes",
         {.num_layers = 1 << 28, .num_blocks = 1 << 24, .block_size = 1, .num_kv_heads = 1, .head_dim = 256},
         PAGEDCL_POOL_TOO_LARGE},
        {"more than eight segments",
         {.num_blocks = 9, .block_size = 16, .num_kv_heads = 1, .head_dim = 64, .max_segment_bytes = 2048},
         PAGEDCL_POOL_TOO_LARGE},
        {"a segment smaller than a block",
         {.num_blocks = 2, .block_size = 16, .num_kv_heads = 1, .head_dim = 64, .max_segment_bytes = 2047},
         PAGEDCL_POOL_TOO_LARGE},
    };
    pagedcl_device *device = fixture_open();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        pagedcl_cache_desc desc = cases[i].desc;
        desc.struct_size = sizeof(desc);
        pagedcl_cache *cache = NULL;
        pagedcl_status status = pagedcl_cache_create(device, &desc, &cache);
        cr_assert_eq(status, cases[i].status, "%s: got %s: %s", cases[i].name, pagedcl_status_name(status),
                     pagedcl_last_error());
        cr_assert_null(cache, "%s", cases[i].name);
        uint64_t bytes = 4711;
        if (cases[i].status != PAGEDCL_POOL_TOO_LARGE) {
            cr_assert_eq(pagedcl_cache_bytes(&desc, &bytes), cases[i].status, "%s", cases[i].name);
            cr_assert_eq(bytes, 4711u, "%s", cases[i].name);
        }
    }
    pagedcl_device_destroy(device);
}
