/* SPDX-License-Identifier: Apache-2.0 */
#include "pool_model.h"

#include "elements.h"
#include "expect.h"
#include "fixture.h"
#include "random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

pool_model pool_model_create(const pagedcl_cache_desc *desc) {
    pool_model model = {.desc = *desc};
    if (desc->head_dim_v == 0)
        model.desc.head_dim_v = desc->head_dim;
    pagedcl_cache_desc nhd = model.desc;
    nhd.layout = PAGEDCL_LAYOUT_NHD;
    model.k_layout = block_layout_of(&nhd, nhd.head_dim, nhd.k_scale);
    model.v_layout = block_layout_of(&nhd, nhd.head_dim_v, nhd.v_scale);
    size_t heads = (size_t)desc->num_kv_heads, blocks = (size_t)desc->num_blocks;
    model.row_bytes = heads * model.k_layout.row_bytes;
    model.layer_bytes = blocks * model.k_layout.bytes;
    model.v_row_bytes = desc->v_in_k ? 0 : heads * model.v_layout.row_bytes;
    model.v_layer_bytes = desc->v_in_k ? 0 : blocks * model.v_layout.bytes;
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

static size_t slot_at(const pool_model *model, const block_layout *layout, int64_t slot) {
    return (size_t)(slot / model->desc.block_size) * layout->bytes +
           block_row(layout, (int32_t)(slot % model->desc.block_size), 0);
}

unsigned char *pool_model_k(const pool_model *model, int32_t layer, int64_t slot) {
    return model->k + (size_t)layer * model->layer_bytes + slot_at(model, &model->k_layout, slot);
}

unsigned char *pool_model_v(const pool_model *model, int32_t layer, int64_t slot) {
    return model->v + (size_t)layer * model->v_layer_bytes +
           (model->desc.v_in_k ? 0 : slot_at(model, &model->v_layout, slot));
}

float pool_model_round(pagedcl_dtype dtype, float scale, float value) {
    return scale == 0 ? element_round(dtype, value) : element_round(dtype, value / scale) * scale;
}

void pool_model_write(pool_model *model, int32_t layer, int64_t slot, const float *k, const float *v) {
    int32_t token = (int32_t)(slot % model->desc.block_size);
    for (int32_t head = 0; head < model->desc.num_kv_heads; head++) {
        block_store(&model->k_layout, pool_model_k(model, layer, slot - token), token, head,
                    k + (ptrdiff_t)head * model->desc.head_dim);
        if (!model->desc.v_in_k)
            block_store(&model->v_layout, pool_model_v(model, layer, slot - token), token, head,
                        v + (ptrdiff_t)head * model->desc.head_dim_v);
    }
}

/* Waits for the event and lets it go. */
static void wait_for(cl_event event) {
    expect_cl(clWaitForEvents(1, &event));
    expect_cl(clReleaseEvent(event));
}

/* The blocks of a layer with their rows in the order in which the pool holds them. */
static unsigned char *in_pool_order(const pool_model *model, const block_layout *layout, const unsigned char *blocks,
                                    size_t bytes) {
    unsigned char *ordered = fixture_alloc(bytes);
    if (bytes > 0)
        memcpy(ordered, blocks, bytes);
    block_layout own = *layout;
    own.order = model->desc.layout;
    for (size_t at = 0; at < bytes; at += layout->bytes)
        for (int32_t token = 0; token < layout->block_size; token++)
            for (int32_t head = 0; head < layout->num_kv_heads; head++)
                memcpy(ordered + at + block_row(&own, token, head), blocks + at + block_row(layout, token, head),
                       layout->row_bytes);
    return ordered;
}

static unsigned char *k_in_pool_order(const pool_model *model, int32_t layer) {
    return in_pool_order(model, &model->k_layout, pool_model_k(model, layer, 0), model->layer_bytes);
}

static unsigned char *v_in_pool_order(const pool_model *model, int32_t layer) {
    return in_pool_order(model, &model->v_layout, pool_model_v(model, layer, 0), model->v_layer_bytes);
}

void pool_model_upload(const pool_model *model, pagedcl_cache *cache) {
    for (int32_t layer = 0; layer < model->desc.num_layers; layer++) {
        unsigned char *k = k_in_pool_order(model, layer), *v = v_in_pool_order(model, layer);
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
        unsigned char *k_want = k_in_pool_order(model, layer), *v_want = v_in_pool_order(model, layer);
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
