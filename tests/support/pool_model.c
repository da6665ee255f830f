/* SPDX-License-Identifier: Apache-2.0 */
#include "pool_model.h"

#include "elements.h"
#include "expect.h"
#include "fixture.h"
#include "random.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

pool_model pool_model_create(const pagedcl_cache_desc *desc) {
    pool_model model = {.desc = *desc};
    if (desc->head_dim_v == 0)
        model.desc.head_dim_v = desc->head_dim;
    size_t element = pagedcl_dtype_size(desc->dtype), slots = (size_t)desc->num_blocks * (size_t)desc->block_size;
    model.row_bytes = (size_t)desc->num_kv_heads * (size_t)desc->head_dim * element;
    model.layer_bytes = slots * model.row_bytes;
    model.v_row_bytes = desc->v_in_k ? 0 : (size_t)desc->num_kv_heads * (size_t)model.desc.head_dim_v * element;
    model.v_layer_bytes = slots * model.v_row_bytes;
    model.k = fixture_poisoned((size_t)desc->num_layers * model.layer_bytes);
    model.v = fixture_poisoned((size_t)desc->num_layers * model.v_layer_bytes);
    return model;
}

void pool_model_destroy(pool_model *model) {
    free(model->k);
    free(model->v);
    *model = (pool_model){0};
}

static void randomize(random_state *state, pagedcl_dtype dtype, unsigned char *elements, size_t bytes) {
    size_t element = pagedcl_dtype_size(dtype);
    for (size_t at = 0; at < bytes; at += element) {
        float value = random_normal(state);
        elements_from_floats(dtype, &value, 1, elements + at);
    }
}

void pool_model_randomize(pool_model *model, uint64_t seed) {
    random_state state = {seed};
    size_t layers = (size_t)model->desc.num_layers;
    randomize(&state, model->desc.dtype, model->k, layers * model->layer_bytes);
    randomize(&state, model->desc.dtype, model->v, layers * model->v_layer_bytes);
}

unsigned char *pool_model_k(const pool_model *model, int32_t layer, int64_t slot) {
    return model->k + (size_t)layer * model->layer_bytes + (size_t)slot * model->row_bytes;
}

unsigned char *pool_model_v(const pool_model *model, int32_t layer, int64_t slot) {
    return model->v + (size_t)layer * model->v_layer_bytes + (size_t)slot * model->v_row_bytes;
}

float pool_model_round(pagedcl_dtype dtype, float scale, float value) {
    return scale == 0 ? element_round(dtype, value) : element_round(dtype, value / scale) * scale;
}

/* A row of `count` floats as elements. */
static void write_row(pagedcl_dtype dtype, float scale, const float *values, int64_t count, unsigned char *row) {
    for (int64_t i = 0; i < count; i++) {
        float element = scale == 0 ? values[i] : values[i] / scale;
        elements_from_floats(dtype, &element, 1, row + (size_t)i * pagedcl_dtype_size(dtype));
    }
}

void pool_model_write(pool_model *model, int32_t layer, int64_t slot, const float *k, const float *v) {
    const pagedcl_cache_desc *desc = &model->desc;
    int64_t heads = desc->num_kv_heads;
    write_row(desc->dtype, desc->k_scale, k, heads * desc->head_dim, pool_model_k(model, layer, slot));
    if (!desc->v_in_k)
        write_row(desc->dtype, desc->v_scale, v, heads * desc->head_dim_v, pool_model_v(model, layer, slot));
}

/* Waits for the event and lets it go. */
static void wait_for(cl_event event) {
    expect_cl(clWaitForEvents(1, &event));
    expect_cl(clReleaseEvent(event));
}

/* The rows of a layer in the order in which the pool holds them. */
static unsigned char *in_pool_order(const pool_model *model, const unsigned char *rows, size_t row_bytes) {
    size_t heads = (size_t)model->desc.num_kv_heads, tokens = (size_t)model->desc.block_size;
    size_t num_blocks = (size_t)model->desc.num_blocks, bytes = row_bytes / heads;
    unsigned char *ordered = fixture_alloc(num_blocks * tokens * row_bytes);
    for (size_t i = 0; i < num_blocks * tokens * heads; i++) {
        size_t block = i / heads / tokens, token = i / heads % tokens, head = i % heads;
        bool hnd = model->desc.layout == PAGEDCL_LAYOUT_HND;
        size_t to = hnd ? (block * heads + head) * tokens + token : i;
        memcpy(ordered + to * bytes, rows + i * bytes, bytes);
    }
    return ordered;
}

void pool_model_upload(const pool_model *model, pagedcl_cache *cache) {
    for (int32_t layer = 0; layer < model->desc.num_layers; layer++) {
        unsigned char *k = in_pool_order(model, pool_model_k(model, layer, 0), model->row_bytes);
        unsigned char *v = in_pool_order(model, pool_model_v(model, layer, 0), model->v_row_bytes);
        cl_event event;
        expect_ok(pagedcl_cache_upload_blocks(cache, NULL, layer, NULL, model->desc.num_blocks, k,
                                              model->desc.v_in_k ? NULL : v, 0, NULL, &event));
        wait_for(event);
        free(k);
        free(v);
    }
}

void pool_model_expect(const pool_model *model, pagedcl_cache *cache, const char *name) {
    unsigned char *k = fixture_alloc(model->layer_bytes), *v = fixture_alloc(model->v_layer_bytes);
    for (int32_t layer = 0; layer < model->desc.num_layers; layer++) {
        cl_event event;
        expect_ok(pagedcl_cache_download_blocks(cache, NULL, layer, NULL, model->desc.num_blocks, k,
                                                model->desc.v_in_k ? NULL : v, 0, NULL, &event));
        wait_for(event);
        unsigned char *k_want = in_pool_order(model, pool_model_k(model, layer, 0), model->row_bytes);
        unsigned char *v_want = in_pool_order(model, pool_model_v(model, layer, 0), model->v_row_bytes);
        char what[32];
        snprintf(what, sizeof(what), "K of layer %d", layer);
        expect_same_bytes(name, what, k, k_want, model->layer_bytes);
        what[0] = 'V';
        expect_same_bytes(name, what, v, v_want, model->v_layer_bytes);
        free(k_want);
        free(v_want);
    }
    free(k);
    free(v);
}
