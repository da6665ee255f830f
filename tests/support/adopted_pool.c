/* SPDX-License-Identifier: Apache-2.0 */
#include "adopted_pool.h"

#include "expect.h"

#include <stdlib.h>

static pool_side lay_out(pool_form form, const pagedcl_cache_desc *desc, int32_t head_dim) {
    int64_t heads = desc->num_kv_heads, tokens = desc->block_size, blocks = desc->num_blocks;
    pool_side side = {.head_dim = head_dim};
    switch (form) {
    case POOL_OF_LIBRARY:
    case POOL_OF_LIBRARY_HND:
        break;
    case POOL_HND:
        side.strides = (pagedcl_pool_strides){tokens * heads * head_dim, head_dim, tokens * head_dim};
        break;
    case POOL_INTERLEAVED:
        side.strides = (pagedcl_pool_strides){2 * tokens * heads * head_dim, heads * head_dim, head_dim};
        break;
    case POOL_WITH_GAPS:
        side.offset = 7;
        side.strides.head = head_dim + 3;
        side.strides.token = heads * side.strides.head + 5;
        side.strides.block = tokens * side.strides.token + 11;
        break;
    case POOL_WITH_ALIGNED_GAPS:
        side.offset = 8;
        side.strides.head = (head_dim + 7) / 8 * 8 + 8;
        side.strides.token = heads * side.strides.head + 24;
        side.strides.block = tokens * side.strides.token + 16;
        break;
    }
    side.layer = blocks * side.strides.block;
    if (form == POOL_WITH_GAPS)
        side.layer += 13;
    if (form == POOL_WITH_ALIGNED_GAPS)
        side.layer += 32;
    return side;
}

/* Writes the rows of a side into an image of its buffer. */
static void place(const pool_model *model, const pool_side *side, bool is_v, unsigned char *image) {
    const pagedcl_cache_desc *desc = &model->desc;
    size_t element = pagedcl_dtype_size(desc->dtype), row_bytes = (size_t)side->head_dim * element;
    for (int32_t layer = 0; layer < desc->num_layers; layer++)
        for (int64_t slot = 0; slot < (int64_t)desc->num_blocks * desc->block_size; slot++)
            for (int32_t head = 0; head < desc->num_kv_heads; head++) {
                const unsigned char *rows = is_v ? pool_model_v(model, layer, slot) : pool_model_k(model, layer, slot);
                int64_t at = side->offset + layer * side->layer + slot / desc->block_size * side->strides.block +
                             slot % desc->block_size * side->strides.token + head * side->strides.head;
                memcpy(image + (size_t)at * element, rows + (size_t)head * row_bytes, row_bytes);
            }
}

/* What a buffer must hold: K's (which may be V's too) or V's. */
static unsigned char *image_of(const adopted_pool *pool, const pool_model *model, bool is_v) {
    unsigned char *image = fixture_poisoned(is_v ? pool->v.bytes : pool->k.bytes);
    if (!is_v)
        place(model, &pool->sides[0], false, image);
    if (pool->sides[1].head_dim && is_v == (pool->form != POOL_INTERLEAVED))
        place(model, &pool->sides[1], true, image);
    return image;
}

static size_t bytes_of(const pool_model *model, const pool_side *side) {
    int64_t elements = side->head_dim ? side->offset + model->desc.num_layers * side->layer : 0;
    return (size_t)elements * pagedcl_dtype_size(model->desc.dtype);
}

adopted_pool adopted_pool_create(const pagedcl_device *device, pool_form form, const pool_model *model) {
    const pagedcl_cache_desc *desc = &model->desc;
    adopted_pool pool = {.form = form};
    pool.sides[0] = lay_out(form, desc, desc->head_dim);
    pool.sides[1] = desc->v_in_k ? (pool_side){0} : lay_out(form, desc, desc->head_dim_v);
    if (form == POOL_INTERLEAVED) {
        cr_assert(desc->head_dim == desc->head_dim_v && !desc->v_in_k, "K and V must be of one shape to interleave");
        pool.sides[1].offset = pool.sides[1].strides.block / 2;
    }
    pool.k.bytes = bytes_of(model, &pool.sides[0]);
    pool.v.bytes = form == POOL_INTERLEAVED ? 0 : bytes_of(model, &pool.sides[1]);
    unsigned char *k = image_of(&pool, model, false), *v = image_of(&pool, model, true);
    pool.k = guarded_create(device, pool.k.bytes, k);
    pool.v = guarded_create(device, pool.v.bytes, v);
    free(k);
    free(v);
    pool.buffers = fixture_alloc((size_t)desc->num_layers * sizeof(pagedcl_pool_buffers));
    for (int32_t layer = 0; layer < desc->num_layers; layer++)
        pool.buffers[layer] = (pagedcl_pool_buffers){
            .k = pool.k.mem,
            .k_offset = pool.sides[0].offset + layer * pool.sides[0].layer,
            .v = form == POOL_INTERLEAVED ? pool.k.mem : pool.v.mem,
            .v_offset = pool.sides[1].offset + layer * pool.sides[1].layer,
        };
    return pool;
}

void adopted_pool_destroy(adopted_pool *pool) {
    guarded_destroy(&pool->k);
    guarded_destroy(&pool->v);
    free(pool->buffers);
    *pool = (adopted_pool){0};
}

void adopted_pool_describe(const adopted_pool *pool, pagedcl_cache_desc *desc) {
    desc->buffers = pool->buffers;
    if (pool->form == POOL_HND) {
        desc->layout = PAGEDCL_LAYOUT_HND;
        return;
    }
    desc->k_strides = pool->sides[0].strides;
    desc->v_strides = pool->sides[1].strides;
}

void adopted_pool_expect(const pagedcl_device *device, const adopted_pool *pool, const pool_model *model,
                         const char *name) {
    const guarded *buffers[] = {&pool->k, &pool->v};
    for (int i = 0; i < 2; i++) {
        unsigned char *got = guarded_read(device, buffers[i], name), *want = image_of(pool, model, i == 1);
        expect_same_bytes(name, i == 0 ? "the buffer of K" : "the buffer of V", got, want, buffers[i]->bytes);
        free(got);
        free(want);
    }
}
