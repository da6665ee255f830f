/* SPDX-License-Identifier: Apache-2.0 */
#include "pool_model.h"

#include "elements.h"
#include "expect.h"
#include "fixture.h"
#include "random.h"

#include <stdio.h>
#include <stdlib.h>

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

void pool_model_write(pool_model *model, int32_t layer, int64_t slot, const float *k, const float *v) {
    int64_t heads = model->desc.num_kv_heads;
    elements_from_floats(model->desc.dtype, k, heads * model->desc.head_dim, pool_model_k(model, layer, slot));
    if (!model->desc.v_in_k)
        elements_from_floats(model->desc.dtype, v, heads * model->desc.head_dim_v, pool_model_v(model, layer, slot));
}

/* Waits for the event and lets it go. */
static void wait_for(cl_event event) {
    expect_cl(clWaitForEvents(1, &event));
    expect_cl(clReleaseEvent(event));
}

void pool_model_upload(const pool_model *model, pagedcl_cache *cache) {
    for (int32_t layer = 0; layer < model->desc.num_layers; layer++) {
        cl_event event;
        expect_ok(pagedcl_cache_upload_blocks(cache, NULL, layer, NULL, model->desc.num_blocks,
                                              pool_model_k(model, layer, 0), pool_model_v(model, layer, 0), 0, NULL,
                                              &event));
        wait_for(event);
    }
}

void pool_model_expect(const pool_model *model, pagedcl_cache *cache, const char *name) {
    unsigned char *k = fixture_alloc(model->layer_bytes), *v = fixture_alloc(model->v_layer_bytes);
    for (int32_t layer = 0; layer < model->desc.num_layers; layer++) {
        cl_event event;
        expect_ok(
            pagedcl_cache_download_blocks(cache, NULL, layer, NULL, model->desc.num_blocks, k, v, 0, NULL, &event));
        wait_for(event);
        char what[32];
        snprintf(what, sizeof(what), "K of layer %d", layer);
        expect_same_bytes(name, what, k, pool_model_k(model, layer, 0), model->layer_bytes);
        what[0] = 'V';
        expect_same_bytes(name, what, v, pool_model_v(model, layer, 0), model->v_layer_bytes);
    }
    free(k);
    free(v);
}
