/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that are written by slot, those of the host and those on the device, against plain arrays on the host. */
#include "support/cache_rig.h"
#include "support/elements.h"
#include "support/expect.h"
#include "support/fixture.h"
#include "support/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    cache_rig r = cache_rig_open(shape);
    int32_t layer = shape->num_layers - 1, heads = shape->num_kv_heads, head_dim = shape->head_dim;
    int64_t row = (int64_t)heads * head_dim, tokens = 2 * (cache_rig_slots(&r) / 3 + 1);
    float *k_values = random_floats(dtype, tokens * row, 2), *v_values = random_floats(dtype, tokens * row, 3);
    if (special)
        make_special(k_values, tokens * row, dtype);
    int32_t *order = fixture_alloc((size_t)cache_rig_slots(&r) * sizeof(int32_t));
    int64_t *slots = fixture_alloc((size_t)tokens * sizeof(int64_t));
    random_state state = {4};
    random_permutation(&state, order, (int32_t)cache_rig_slots(&r));
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
    cache_rig_close(&r);
}

Test(cache_write, write_in_every_shape) {
    for (int s = 0; s < NUM_CACHE_SHAPES; s++)
        check_write(&cache_shapes[s], cache_shapes[s].dtype, s % 2 == 0 ? WITH_GAPS : CONTIGUOUS, false);
}

Test(cache_write, write_converts_to_nearest_even) {
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
        pool_shape shape = {pairs[i].name, 2, 6, 5, 2, 24, pairs[i].to, .segment_blocks = 0};
        check_write(&shape, pairs[i].from, i % 2 == 0 ? CONTIGUOUS : WITH_GAPS, false);
        check_write(&shape, pairs[i].from, CONTIGUOUS, true);
    }
}

/* B37: row u holds u + 1, whatever the number of rows, and nothing else changes. */
Test(cache_write, write_any_number_of_rows) {
    const int32_t counts[] = {1, 31, 32, 33, 34, 40, 48, 63, 64, 65, 80, 97};
    cache_rig r = cache_rig_open(&(pool_shape){"row counts", 1, 10, 16, 1, 8, PAGEDCL_FLOAT32, .segment_blocks = 0});
    float minus_one[8], row[8];
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        for (int turn = 0; turn < 20; turn++) {
            float values[97 * 8];
            int64_t slots[97];
            for (int e = 0; e < 8; e++)
                minus_one[e] = -1;
            for (int64_t slot = 0; slot < cache_rig_slots(&r); slot++)
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
    cache_rig_close(&r);
}

Test(cache_write, bad_writes_change_nothing) {
    cache_rig r = cache_rig_open(&small_pool);
    cache_rows x = cache_rows_create(&r, PAGEDCL_FLOAT16, 3, WITH_GAPS);
    const struct {
        int64_t slots[3];
        const char *words;
    } cases[] = {
        {{0, 1, 64}, "slot_mapping[2] is 64; the pool has slots 0 to 63"},
        {{-2, 1, 2}, "slot_mapping[0] is -2;"},
        {{0, INT64_MAX, 2}, "slot_mapping[1] is 9223372036854775807;"},
        {{0, 1, INT64_MIN}, "slot_mapping[2] is -9223372036854775808;"},
        {{0, (int64_t)1 << 32, 2}, "slot_mapping[1] is 4294967296;"},
        {{63, -1, 63}, "slot_mapping[2] is 63, which an earlier row has too"},
        {{8, 8, 64}, "slot_mapping[1] is 8, which an earlier row has too"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_refused(pagedcl_cache_write(r.cache, NULL, 0, &x.k_tensor.view, &x.v_tensor.view, PAGEDCL_FLOAT16,
                                           cases[i].slots, 3, 0, NULL, NULL),
                       PAGEDCL_INVALID_SLOT, cases[i].words);
    /* The checks leave nothing behind: -1 may occur twice, and a slot again in the next call. */
    pool_model_expect(&r.model, r.cache, "after refused slots");
    const int64_t again[] = {-1, 8, -1};
    for (int turn = 0; turn < 2; turn++)
        expect_ok(pagedcl_cache_write(r.cache, NULL, 0, &x.k_tensor.view, &x.v_tensor.view, PAGEDCL_FLOAT16, again, 3,
                                      0, NULL, NULL));
    const int64_t row = (int64_t)small_pool.num_kv_heads * small_pool.head_dim;
    pool_model_write(&r.model, 0, 8, x.k + row, x.v + row);

    int64_t slots[4] = {0, 1, 2, 3};
    pagedcl_tensor k = x.k_tensor.view, v = x.v_tensor.view;
#define WRITE(layer, k, v, dtype, slots, count) \
    pagedcl_cache_write(r.cache, NULL, layer, k, v, dtype, slots, count, 0, NULL, NULL)
    expect_refused(WRITE(2, &k, &v, PAGEDCL_FLOAT16, slots, 3), PAGEDCL_INVALID_ARGUMENT, "layer");
    expect_refused(WRITE(-1, &k, &v, PAGEDCL_FLOAT16, slots, 3), PAGEDCL_INVALID_ARGUMENT, "layer");
    expect_refused(WRITE(0, NULL, &v, PAGEDCL_FLOAT16, slots, 3), PAGEDCL_INVALID_ARGUMENT, "k and v must not be NULL");
    expect_refused(WRITE(0, &k, NULL, PAGEDCL_FLOAT16, slots, 3), PAGEDCL_INVALID_ARGUMENT, "k and v must not be NULL");
    expect_refused(WRITE(0, &k, &v, PAGEDCL_FLOAT16, NULL, 3), PAGEDCL_INVALID_ARGUMENT, "slot_mapping");
    expect_refused(WRITE(0, &k, &v, PAGEDCL_FLOAT16, slots, -1), PAGEDCL_INVALID_ARGUMENT, "num_slots");
    expect_refused(WRITE(0, &k, &v, (pagedcl_dtype)9, slots, 3), PAGEDCL_INVALID_ARGUMENT, "dtype");
    expect_refused(WRITE(0, &k, &v, PAGEDCL_FLOAT16, slots, 4), PAGEDCL_BUFFER_TOO_SMALL, "k needs");
    expect_refused(WRITE(0, &k, &v, PAGEDCL_FLOAT32, slots, 3), PAGEDCL_BUFFER_TOO_SMALL, "k needs");
    pagedcl_tensor shifted = v;
    shifted.offset++;
    expect_refused(WRITE(0, &k, &shifted, PAGEDCL_FLOAT16, slots, 3), PAGEDCL_BUFFER_TOO_SMALL, "v needs");
    shifted.offset = -1;
    expect_refused(WRITE(0, &k, &shifted, PAGEDCL_FLOAT16, slots, 3), PAGEDCL_INVALID_ARGUMENT, "v has offset -1");
    shifted.offset = INT64_MAX;
    expect_refused(WRITE(0, &k, &shifted, PAGEDCL_FLOAT16, slots, 3), PAGEDCL_SIZE_OVERFLOW, "v ends beyond 2^63");
    shifted = v;
    shifted.token_stride = INT64_MAX / 2;
    expect_refused(WRITE(0, &k, &shifted, PAGEDCL_FLOAT16, slots, 3), PAGEDCL_SIZE_OVERFLOW, "v has strides");
    shifted.token_stride = -1;
    expect_refused(WRITE(0, &k, &shifted, PAGEDCL_FLOAT16, slots, 3), PAGEDCL_INVALID_ARGUMENT,
                   "v has token_stride -1");
#undef WRITE
    pool_model_expect(&r.model, r.cache, r.name);
    cache_rows_destroy(&x);
    cache_rig_close(&r);
}

/* ---- slots on the device ---- */

/* B25: what names no slot is dropped and, unless it is -1, counted; rows whose slots are good are stored. */
Test(cache_write, slots_on_the_device_are_guarded) {
    enum { ROWS = 12, OFFSET = 3 };
    for (int s = 0; s < NUM_CACHE_SHAPES; s++) {
        cache_rig r = cache_rig_open(&cache_shapes[s]);
        int64_t end = cache_rig_slots(&r), kv_row = (int64_t)cache_shapes[s].num_kv_heads * cache_shapes[s].head_dim;
        const int64_t slots[OFFSET + ROWS] = {0,         0, 0,  5,         -1,        end - 1, end,    -2,
                                              INT64_MAX, 0, -1, INT64_MIN, 1LL << 32, 7,       end + 4};
        guarded mapping = guarded_create(r.device, sizeof(slots), slots);
        cache_rows x = cache_rows_create(&r, PAGEDCL_FLOAT32, ROWS, WITH_GAPS);
        int32_t layer = cache_shapes[s].num_layers - 1;
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
            cache_rig_expect_faults(&r, 6 * turn);
        }
        expect_ok(pagedcl_cache_write_mapped(r.cache, NULL, layer, &x.k_tensor.view, &x.v_tensor.view, PAGEDCL_FLOAT32,
                                             NULL, 0, 0, 0, NULL, NULL));
        guarded_destroy(&mapping);
        cache_rows_destroy(&x);
        cache_rig_close(&r);
    }
}

/* Slots of the host, which are checked, never count. */
Test(cache_write, writes_from_the_host_count_no_fault) {
    cache_rig r = cache_rig_open(&small_pool);
    cache_rows x = cache_rows_create(&r, PAGEDCL_FLOAT16, 2, CONTIGUOUS);
    const int64_t slots[2] = {-1, 63};
    expect_ok(pagedcl_cache_write(r.cache, NULL, 0, &x.k_tensor.view, &x.v_tensor.view, PAGEDCL_FLOAT16, slots, 2, 0,
                                  NULL, NULL));
    cache_rig_expect_faults(&r, 0);
    cache_rows_destroy(&x);
    cache_rig_close(&r);
}

Test(cache_write, bad_mapped_writes_change_nothing) {
    cache_rig r = cache_rig_open(&small_pool);
    cache_rows x = cache_rows_create(&r, PAGEDCL_FLOAT16, 3, WITH_GAPS);
    const int64_t slots[3] = {0, 1, 2};
    guarded mapping = guarded_create(r.device, sizeof(slots), slots);
    pagedcl_tensor k = x.k_tensor.view, v = x.v_tensor.view;
#define WRITE(layer, k, v, dtype, mem, offset, count) \
    pagedcl_cache_write_mapped(r.cache, NULL, layer, k, v, dtype, mem, offset, count, 0, NULL, NULL)
    expect_refused(WRITE(2, &k, &v, PAGEDCL_FLOAT16, mapping.mem, 0, 3), PAGEDCL_INVALID_ARGUMENT, "layer");
    expect_refused(WRITE(0, NULL, &v, PAGEDCL_FLOAT16, mapping.mem, 0, 3), PAGEDCL_INVALID_ARGUMENT,
                   "k and v must not be NULL");
    expect_refused(WRITE(0, &k, NULL, PAGEDCL_FLOAT16, mapping.mem, 0, 3), PAGEDCL_INVALID_ARGUMENT,
                   "k and v must not be NULL");
    expect_refused(WRITE(0, &k, &v, (pagedcl_dtype)9, mapping.mem, 0, 3), PAGEDCL_INVALID_ARGUMENT, "dtype");
    expect_refused(WRITE(0, &k, &v, PAGEDCL_FLOAT16, NULL, 0, 3), PAGEDCL_INVALID_ARGUMENT, "slot_mapping");
    expect_refused(WRITE(0, &k, &v, PAGEDCL_FLOAT16, mapping.mem, 1, 3), PAGEDCL_BUFFER_TOO_SMALL, "slot_mapping");
    expect_refused(WRITE(0, &k, &v, PAGEDCL_FLOAT16, mapping.mem, -1, 3), PAGEDCL_INVALID_ARGUMENT, "slot_mapping");
    expect_refused(WRITE(0, &k, &v, PAGEDCL_FLOAT16, mapping.mem, INT64_MAX, 3), PAGEDCL_SIZE_OVERFLOW, "slot_mapping");
    expect_refused(WRITE(0, &k, &v, PAGEDCL_FLOAT16, mapping.mem, 0, 4), PAGEDCL_BUFFER_TOO_SMALL, "k needs");
    expect_refused(WRITE(0, &k, &v, PAGEDCL_FLOAT16, mapping.mem, 0, -1), PAGEDCL_INVALID_ARGUMENT, "num_slots");
#undef WRITE
    expect_refused(pagedcl_cache_read_faults(r.cache, NULL, NULL, 0, NULL, NULL), PAGEDCL_INVALID_ARGUMENT, "faults");
    expect_refused(pagedcl_cache_read_faults(NULL, NULL, &(pagedcl_faults){0}, 0, NULL, NULL), PAGEDCL_INVALID_ARGUMENT,
                   "cache");
    pool_model_expect(&r.model, r.cache, r.name);
    cache_rig_expect_faults(&r, 0);
    guarded_destroy(&mapping);
    cache_rows_destroy(&x);
    cache_rig_close(&r);
}
