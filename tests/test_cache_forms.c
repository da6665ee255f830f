/* SPDX-License-Identifier: Apache-2.0 */
/* Write, copy and gather in pools of every form: the library's and the caller's, with and without gaps, V beside K. */
#include "support/adopted_pool.h"
#include "support/elements.h"
#include "support/expect.h"
#include "support/fixture.h"
#include "support/pool_model.h"
#include "support/random.h"
#include "support/strided.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, BLOCKS = 9, BLOCK_SIZE = 5, HEADS = 3, TOKENS = 7 };

typedef struct form {
    const char *name;
    pool_form pool;
    int32_t head_dim, head_dim_v, v_in_k;
    pagedcl_dtype dtype;
} form;

/* B30: strides are those of the description, never what a contiguous pool would have. */
static const form forms[] = {
    {"the library's, heads first", POOL_OF_LIBRARY_HND, 12, 20, 0, PAGEDCL_FLOAT16},
    {"the caller's, heads first", POOL_HND, 12, 12, 0, PAGEDCL_BFLOAT16},
    {"K and V interleaved", POOL_INTERLEAVED, 128, 128, 0, PAGEDCL_BFLOAT16},
    {"gaps", POOL_WITH_GAPS, 17, 9, 0, PAGEDCL_FLOAT32},
    {"aligned gaps", POOL_WITH_ALIGNED_GAPS, 20, 24, 0, PAGEDCL_FLOAT16},
    {"the library's, V in K", POOL_OF_LIBRARY, 36, 28, 1, PAGEDCL_FLOAT16},
    {"gaps, V in K", POOL_WITH_GAPS, 36, 28, 1, PAGEDCL_FLOAT32},
};

typedef struct scene {
    const form *f;
    pagedcl_device *device;
    pagedcl_cache *cache;
    pool_model model;
    adopted_pool adopted;
} scene;

static scene scene_open(const form *f) {
    scene s = {.f = f, .device = fixture_open()};
    pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT;
    desc.num_layers = LAYERS;
    desc.num_blocks = BLOCKS;
    desc.block_size = BLOCK_SIZE;
    desc.num_kv_heads = HEADS;
    desc.head_dim = f->head_dim;
    desc.head_dim_v = f->head_dim_v;
    desc.v_in_k = f->v_in_k;
    desc.dtype = f->dtype;
    if (f->pool == POOL_OF_LIBRARY_HND)
        desc.layout = PAGEDCL_LAYOUT_HND;
    s.model = pool_model_create(&desc);
    pool_model_randomize(&s.model, 1);
    if (pool_form_is_adopted(f->pool)) {
        s.adopted = adopted_pool_create(s.device, f->pool, &s.model);
        adopted_pool_describe(&s.adopted, &desc);
    }
    expect_ok(pagedcl_cache_create(s.device, &desc, &s.cache));
    if (!pool_form_is_adopted(f->pool))
        pool_model_upload(&s.model, s.cache);
    return s;
}

static void expect_pool(const scene *s) {
    if (pool_form_is_adopted(s->f->pool))
        adopted_pool_expect(s->device, &s->adopted, &s->model, s->f->name);
    else
        pool_model_expect(&s->model, s->cache, s->f->name);
}

static void scene_close(scene *s) {
    pagedcl_cache_destroy(s->cache);
    adopted_pool_destroy(&s->adopted);
    pool_model_destroy(&s->model);
    pagedcl_device_destroy(s->device);
}

static float *random_rows(int32_t head_dim, uint64_t seed) {
    random_state state = {seed};
    float *rows = fixture_alloc((size_t)(TOKENS * HEADS * head_dim) * sizeof(float));
    for (int i = 0; i < TOKENS * HEADS * head_dim; i++)
        rows[i] = random_normal(&state);
    return rows;
}

/* Rows with gaps between them into scattered slots of the last layer, two of them skipped. */
static void write_rows(scene *s) {
    static const int64_t slots[TOKENS] = {44, 0, -1, 9, 23, -1, 24};
    int32_t dim = s->f->head_dim, dim_v = s->f->head_dim_v;
    float *k = random_rows(dim, 2), *v = random_rows(dim_v, 3);
    for (int t = 0; t < TOKENS; t++) {
        if (slots[t] >= 0)
            pool_model_write(&s->model, LAYERS - 1, slots[t], k + t * HEADS * dim, v + t * HEADS * dim_v);
        for (int i = 0; slots[t] < 0 && i < HEADS * dim; i++)
            k[t * HEADS * dim + i] = NAN;
    }
    strided k_rows = strided_create(s->device, PAGEDCL_FLOAT32, TOKENS, HEADS, dim, WITH_GAPS, 0, k);
    strided v_rows = strided_create(s->device, PAGEDCL_FLOAT32, TOKENS, HEADS, dim_v, WITH_GAPS, 0, v);
    expect_ok(pagedcl_cache_write(s->cache, NULL, LAYERS - 1, &k_rows.view, s->f->v_in_k ? NULL : &v_rows.view,
                                  PAGEDCL_FLOAT32, slots, TOKENS, 0, NULL, NULL));
    expect_pool(s);
    strided_destroy(&k_rows);
    strided_destroy(&v_rows);
    free(k);
    free(v);
}

/* A chain of copies, in all layers. */
static void copy_blocks(scene *s) {
    static const int32_t pairs[] = {4, 1, 1, 2, 8, 4};
    for (int i = 0; i < 3; i++)
        for (int32_t layer = 0; layer < LAYERS; layer++) {
            int64_t from = pairs[2 * i] * BLOCK_SIZE, to = pairs[2 * i + 1] * BLOCK_SIZE;
            memcpy(pool_model_k(&s->model, layer, to), pool_model_k(&s->model, layer, from),
                   BLOCK_SIZE * s->model.row_bytes);
            memcpy(pool_model_v(&s->model, layer, to), pool_model_v(&s->model, layer, from),
                   BLOCK_SIZE * s->model.v_row_bytes);
        }
    expect_ok(pagedcl_cache_copy_blocks(s->cache, NULL, pairs, 3, 0, NULL, NULL));
    expect_pool(s);
}

/* Three sequences, the second empty, through scattered blocks. */
static void gather_rows(scene *s) {
    enum { STRIDE = 3, GATHERED = 6 + 11 };
    static const int32_t table[] = {8, 1, -1, -1, -1, -1, 0, 7, 2}, seqlens[] = {6, 0, 11};
    size_t element = pagedcl_dtype_size(s->f->dtype), k_head = (size_t)s->f->head_dim * element;
    size_t v_head = (size_t)s->f->head_dim_v * element, k_bytes = GATHERED * HEADS * k_head;
    size_t v_bytes = GATHERED * HEADS * v_head;
    guarded k = guarded_create(s->device, k_bytes, NULL), v = guarded_create(s->device, v_bytes, NULL);
    pagedcl_tensor k_rows = {.mem = k.mem}, v_rows = {.mem = v.mem};
    expect_ok(
        pagedcl_cache_gather(s->cache, NULL, LAYERS - 1, table, STRIDE, seqlens, 3, &k_rows, &v_rows, 0, NULL, NULL));
    unsigned char *k_got = guarded_read(s->device, &k, s->f->name), *v_got = guarded_read(s->device, &v, s->f->name);
    size_t row = 0;
    for (int b = 0; b < 3; b++)
        for (int32_t t = 0; t < seqlens[b]; t++, row++) {
            int64_t slot = (int64_t)table[b * STRIDE + t / BLOCK_SIZE] * BLOCK_SIZE + t % BLOCK_SIZE;
            const unsigned char *k_want = pool_model_k(&s->model, LAYERS - 1, slot), *v_want = k_want;
            if (!s->f->v_in_k)
                v_want = pool_model_v(&s->model, LAYERS - 1, slot);
            for (size_t h = 0; h < HEADS; h++) {
                expect_same_bytes(s->f->name, "gathered K", k_got + (row * HEADS + h) * k_head, k_want + h * k_head,
                                  k_head);
                expect_same_bytes(s->f->name, "gathered V", v_got + (row * HEADS + h) * v_head,
                                  v_want + h * (s->f->v_in_k ? k_head : v_head), v_head);
            }
        }
    expect_pool(s);
    free(k_got);
    free(v_got);
    guarded_destroy(&k);
    guarded_destroy(&v);
}

Test(cache_forms, write_copy_and_gather) {
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        scene s = scene_open(&forms[i]);
        write_rows(&s);
        copy_blocks(&s);
        gather_rows(&s);
        scene_close(&s);
    }
}

static pagedcl_status exchange(const scene *s, const adopted_pool *other) {
    return pagedcl_cache_set_buffers(s->cache, other->buffers);
}

/* The operations go to the other buffers, and the ones before keep what they held. */
Test(cache_forms, buffers_are_exchanged) {
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        if (!pool_form_is_adopted(forms[i].pool))
            continue;
        scene s = scene_open(&forms[i]);
        const adopted_pool first = s.adopted;
        const pool_model first_model = s.model;
        s.model = pool_model_create(&first_model.desc);
        pool_model_randomize(&s.model, 7);
        s.adopted = adopted_pool_create(s.device, forms[i].pool, &s.model);
        expect_ok(exchange(&s, &s.adopted));
        write_rows(&s);
        copy_blocks(&s);
        gather_rows(&s);
        adopted_pool_expect(s.device, &first, &first_model, forms[i].name);
        adopted_pool_destroy((adopted_pool *)&first);
        pool_model_destroy((pool_model *)&first_model);
        scene_close(&s);
    }
}

Test(cache_forms, wrong_buffers_are_refused_and_change_nothing) {
    scene own = scene_open(&forms[0]), s = scene_open(&forms[3]);
    expect_refused(pagedcl_cache_set_buffers(own.cache, s.adopted.buffers), PAGEDCL_INVALID_ARGUMENT,
                   "without buffers");
    expect_refused(pagedcl_cache_set_buffers(s.cache, NULL), PAGEDCL_INVALID_ARGUMENT, "buffers");
    expect_refused(pagedcl_cache_set_buffers(NULL, s.adopted.buffers), PAGEDCL_INVALID_ARGUMENT, "cache");
    adopted_pool other = adopted_pool_create(s.device, forms[3].pool, &s.model);
    guarded small = guarded_create(s.device, 64, NULL);
    const pagedcl_pool_buffers right = other.buffers[LAYERS - 1];
    other.buffers[LAYERS - 1].v_offset++;
    expect_refused(exchange(&s, &other), PAGEDCL_INVALID_ARGUMENT, "the pool's V of layer 1");
    other.buffers[LAYERS - 1] = right;
    other.buffers[LAYERS - 1].v = small.mem;
    expect_refused(exchange(&s, &other), PAGEDCL_BUFFER_TOO_SMALL, "the pool's V of layer 1");
    other.buffers[LAYERS - 1].v = NULL;
    expect_refused(exchange(&s, &other), PAGEDCL_INVALID_ARGUMENT, "the pool's V of layer 1");
    write_rows(&s);
    adopted_pool_expect(s.device, &s.adopted, &s.model, forms[3].name);

    scene inside = scene_open(&forms[6]);
    other.buffers[0] = inside.adopted.buffers[0];
    other.buffers[0].v = small.mem;
    expect_refused(exchange(&inside, &other), PAGEDCL_INVALID_ARGUMENT, "V lies in K");
    guarded_destroy(&small);
    adopted_pool_destroy(&other);
    scene_close(&inside);
    scene_close(&s);
    scene_close(&own);
}
