/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_rig.h"

#include "elements.h"
#include "expect.h"
#include "fixture.h"
#include "random.h"

#include <stdlib.h>

const pool_shape cache_shapes[NUM_CACHE_SHAPES] = {
    {"float32, block size 16", 3, 5, 16, 2, 80, PAGEDCL_FLOAT32, .segment_blocks = 0},
    {"float16, block size 1", 1, 37, 1, 7, 24, PAGEDCL_FLOAT16, .segment_blocks = 0},
    {"bfloat16, block size 7", 2, 9, 7, 3, 104, PAGEDCL_BFLOAT16, .segment_blocks = 0},
    {"float16, segments of one block", 2, 8, 7, 2, 40, PAGEDCL_FLOAT16, .segment_blocks = 1},
    {"float32, segments of two blocks", 2, 11, 1, 1, 8, PAGEDCL_FLOAT32, .segment_blocks = 2},
    {"bfloat16, room for three blocks a segment", 2, 13, 16, 1, 256, PAGEDCL_BFLOAT16, .segment_blocks = 3},
};

const pool_shape small_pool = {"small", 2, 4, 16, 2, 80, PAGEDCL_FLOAT16, .segment_blocks = 0};

cache_rig cache_rig_open(const pool_shape *shape) {
    pagedcl_cache_desc desc = pool_shape_desc(shape);
    cache_rig r = {.name = shape->name, .device = fixture_open(), .model = pool_model_create(&desc)};
    expect_ok(pagedcl_cache_create(r.device, &desc, &r.cache));
    pool_model_randomize(&r.model, 1);
    pool_model_upload(&r.model, r.cache);
    return r;
}

void cache_rig_close(cache_rig *r) {
    pagedcl_cache_destroy(r->cache);
    pool_model_destroy(&r->model);
    pagedcl_device_destroy(r->device);
}

int64_t cache_rig_slots(const cache_rig *r) {
    return (int64_t)r->model.desc.num_blocks * r->model.desc.block_size;
}

float *random_floats(pagedcl_dtype dtype, int64_t count, uint64_t seed) {
    random_state state = {seed};
    float *values = fixture_alloc((size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++)
        values[i] = element_round(dtype, random_normal(&state));
    return values;
}

cache_rows cache_rows_create(const cache_rig *r, pagedcl_dtype dtype, int64_t tokens, strided_layout layout) {
    int32_t heads = r->model.desc.num_kv_heads, head_dim = r->model.desc.head_dim;
    cache_rows x = {.k = random_floats(dtype, tokens * heads * head_dim, 2),
                    .v = random_floats(dtype, tokens * heads * head_dim, 3)};
    x.k_tensor = strided_create(r->device, dtype, tokens, heads, head_dim, layout, 0, x.k);
    x.v_tensor = strided_create(r->device, dtype, tokens, heads, head_dim, layout, 0, x.v);
    return x;
}

void cache_rows_destroy(cache_rows *x) {
    strided_destroy(&x->k_tensor);
    strided_destroy(&x->v_tensor);
    free(x->k);
    free(x->v);
}

void cache_rig_expect_faults(const cache_rig *r, uint32_t writes) {
    pagedcl_faults faults = {UINT32_MAX, UINT32_MAX};
    cl_event event;
    expect_ok(pagedcl_cache_read_faults(r->cache, NULL, &faults, 0, NULL, &event));
    expect_cl(clWaitForEvents(1, &event));
    expect_cl(clReleaseEvent(event));
    cr_assert(faults.reads == 0 && faults.writes == writes, "%s: %u reads and %u writes, want 0 and %u", r->name,
              faults.reads, faults.writes, writes);
}
