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
    model.row_bytes = (size_t)desc->num_kv_heads * (size_t)desc->head_dim * pagedcl_dtype_size(desc->dtype);
    model.layer_bytes = (size_t)desc->num_blocks * (size_t)desc->block_size * model.row_bytes;
    model.k = fixture_poisoned((size_t)desc->num_layers * model.layer_bytes);
    model.v = fixture_poisoned((size_t)desc->num_layers * model.layer_bytes);
    return model;
}

void pool_model_destroy(pool_model *model) {
    free(model->k);
    free(model->v);
    *model = (pool_model){0};
}

void pool_model_randomize(pool_model *model, uint64_t seed) {
    random_state state = {seed};
    size_t element = pagedcl_dtype_size(model->desc.dtype);
    for (size_t at = 0; at < (size_t)model->desc.num_layers * model->layer_bytes; at += element) {
        float k = random_normal(&state), v = random_normal(&state);
        elements_from_floats(model->desc.dtype, &k, 1, model->k + at);
        elements_from_floats(model->desc.dtype, &v, 1, model->v + at);
    }
}

unsigned char *pool_model_k(const pool_model *model, int32_t layer, int64_t slot) {
    return model->k + (size_t)layer * model->layer_bytes + (size_t)slot * model->row_bytes;
}

unsigned char *pool_model_v(const pool_model *model, int32_t layer, int64_t slot) {
    return model->v + (size_t)layer * model->layer_bytes + (size_t)slot * model->row_bytes;
}

void pool_model_write(pool_model *model, int32_t layer, int64_t slot, const float *k, const float *v) {
    int64_t elements = (int64_t)model->desc.num_kv_heads * model->desc.head_dim;
    elements_from_floats(model->desc.dtype, k, elements, pool_model_k(model, layer, slot));
    elements_from_floats(model->desc.dtype, v, elements, pool_model_v(model, layer, slot));
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
    unsigned char *k = fixture_alloc(model->layer_bytes), *v = fixture_alloc(model->layer_bytes);
    for (int32_t layer = 0; layer < model->desc.num_layers; layer++) {
        cl_event event;
        expect_ok(
            pagedcl_cache_download_blocks(cache, NULL, layer, NULL, model->desc.num_blocks, k, v, 0, NULL, &event));
        wait_for(event);
        char what[32];
        snprintf(what, sizeof(what), "K of layer %d", layer);
        expect_same_bytes(name, what, k, pool_model_k(model, layer, 0), model->layer_bytes);
        what[0] = 'V';
        expect_same_bytes(name, what, v, pool_model_v(model, layer, 0), model->layer_bytes);
    }
    free(k);
    free(v);
}
