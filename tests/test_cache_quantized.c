/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of 8-bit and 4-bit elements without attention: what they refuse, and the ends of their scales. */
#include "support/block_layout.h"
#include "support/expect.h"
#include "support/fixture.h"

#include <pagedcl/pagedcl.h>

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* What is too large for the largest scale becomes the largest value; what is too small for the smallest one is still
   held to half a step. */
Test(cache_quantized, int4_at_the_ends_of_its_scales) {
    enum { HEAD_DIM = 64 };
    pagedcl_device *device = fixture_open();
    pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT;
    desc.num_blocks = desc.block_size = desc.num_kv_heads = 1;
    desc.head_dim = HEAD_DIM;
    desc.dtype = PAGEDCL_INT4;
    pagedcl_cache *cache = NULL;
    expect_ok(pagedcl_cache_create(device, &desc, &cache));
    float row[HEAD_DIM] = {INFINITY, 1e6f, -1e9f, 65504, -65504, 20000, 0};
    row[32] = 1.5e-7f; /* its seventh part lies below the smallest float16 */
    row[33] = -5e-8f;
    row[34] = 2e-8f;
    const float want[HEAD_DIM] = {458528, 458528, -458528, 65504, -65504, 0, [32] = 0x1.8p-23f, [33] = -0x1p-24f};
    guarded in = guarded_create(device, sizeof row, row), out[2];
    pagedcl_tensor tensors[2];
    for (int i = 0; i < 2; i++) {
        out[i] = guarded_create(device, sizeof row, NULL);
        tensors[i] = (pagedcl_tensor){.mem = out[i].mem};
    }
    const pagedcl_tensor from = {.mem = in.mem};
    const int64_t slot = 0;
    const int32_t table = 0, length = 1;
    expect_ok(pagedcl_cache_write(cache, NULL, 0, &from, &from, PAGEDCL_FLOAT32, &slot, 1, 0, NULL, NULL));
    expect_ok(pagedcl_cache_gather(cache, NULL, 0, &table, 1, &length, 1, &tensors[0], &tensors[1], 0, NULL, NULL));
    for (int i = 0; i < 2; i++) {
        float *got = guarded_read(device, &out[i], "ends");
        for (int d = 0; d < HEAD_DIM; d++)
            cr_assert_eq(got[d], want[d], "element %d: %a, not %a", d, (double)got[d], (double)want[d]);
        free(got);
        guarded_destroy(&out[i]);
    }
    guarded_destroy(&in);
    pagedcl_cache_destroy(cache);
    pagedcl_device_destroy(device);
}

/* Rows without a scale that a float could hold: an infinity or a row of next to nothing makes no NaN of what is beside it. */
Test(cache_quantized, scales_of_rows_are_normal_numbers) {
    static const pagedcl_dtype dtypes[] = {PAGEDCL_INT8, PAGEDCL_FLOAT8_E4M3, PAGEDCL_FLOAT8_E5M2, PAGEDCL_INT4};
    enum { HEAD_DIM = 7, ROWS = 4 };
    const float rows[ROWS][HEAD_DIM] = {{INFINITY, 1, -FLT_MAX, 0, -1, 3, 2},
                                        {FLT_MAX, -FLT_MAX, 0x1p127f, 0, 1, -1, 5},
                                        {0x1p-140f, 0, -0x1p-149f, 0x1p-130f, 0, 0, 0x1p-128f},
                                        {0, 0, 0, 0, 0, 0, 0}};
    pagedcl_device *device = fixture_open();
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        const char *name = pagedcl_dtype_name(dtypes[i]);
        pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT;
        desc.num_blocks = desc.num_kv_heads = 1;
        desc.block_size = ROWS;
        desc.head_dim = HEAD_DIM;
        desc.dtype = dtypes[i];
        desc.scale_per_row = dtypes[i] != PAGEDCL_INT4;
        const block_layout layout = block_layout_of(&desc, HEAD_DIM, 0);
        pagedcl_cache *cache = NULL;
        expect_ok(pagedcl_cache_create(device, &desc, &cache));
        guarded in = guarded_create(device, sizeof rows, rows);
        const pagedcl_tensor from = {.mem = in.mem};
        const int64_t slots[ROWS] = {0, 1, 2, 3};
        unsigned char k[256], v[256];
        expect_ok(pagedcl_cache_write(cache, NULL, 0, &from, &from, PAGEDCL_FLOAT32, slots, ROWS, 0, NULL, NULL));
        expect_ok(pagedcl_cache_download_blocks(cache, NULL, 0, NULL, 1, k, v, 0, NULL, NULL));
        expect_cl(clFinish(pagedcl_device_queue(device)));
        const double most = dtypes[i] == PAGEDCL_INT4 ? 7 * 65504 : 0.999999 * (double)FLT_MAX;
        for (int row = 0; row < ROWS; row++) {
            double scale = block_scale(&layout, k, row, 0, 0);
            cr_assert(scale >= (dtypes[i] == PAGEDCL_INT4 ? 0x1p-24 : 0x1p-126) && scale <= (double)FLT_MAX,
                      "%s: row %d has scale %g", name, row, scale);
            for (int d = 0; d < HEAD_DIM; d++) {
                double given = (double)rows[row][d], got = block_value(&layout, k, row, 0, d);
                double want = fmax(-most, fmin(most, given)), step = code_step(dtypes[i], want / scale) * scale;
                /* A device may take subnormal numbers for 0. */
                bool flushed = fabs(given) < (double)FLT_MIN && got == 0;
                cr_assert(flushed || (fabs(got) <= (double)FLT_MAX && fabs(got - want) <= 0.501 * step),
                          "%s: row %d, element %d: %g is stored as %g", name, row, d, given, got);
                cr_assert_eq(got, block_value(&layout, v, row, 0, d));
            }
        }
        guarded_destroy(&in);
        pagedcl_cache_destroy(cache);
    }
    pagedcl_device_destroy(device);
}

/* A slot that nobody wrote may have NaN for its scale: an element that is NaN has the same bits with any scale. */
Test(cache_quantized, nan_elements_do_not_depend_on_their_scale) {
    static const pagedcl_dtype dtypes[] = {PAGEDCL_FLOAT8_E4M3, PAGEDCL_FLOAT8_E5M2};
    enum { CODES = 256, ROWS = 3 };
    static const uint32_t scales[ROWS] = {0x40000000, 0x7fc00000, 0xffffffff};
    unsigned char block[ROWS * CODES + sizeof scales];
    for (int i = 0; i < ROWS * CODES; i++)
        block[i] = (unsigned char)i;
    memcpy(block + ROWS * CODES, scales, sizeof scales);
    pagedcl_device *device = fixture_open();
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        const char *name = pagedcl_dtype_name(dtypes[i]);
        pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT;
        desc.num_blocks = desc.num_kv_heads = desc.scale_per_row = 1;
        desc.block_size = ROWS;
        desc.head_dim = CODES;
        desc.dtype = dtypes[i];
        pagedcl_cache *cache = NULL;
        expect_ok(pagedcl_cache_create(device, &desc, &cache));
        expect_ok(pagedcl_cache_upload_blocks(cache, NULL, 0, NULL, 1, block, block, 0, NULL, NULL));
        const int32_t table = 0, length = ROWS;
        guarded out[2];
        pagedcl_tensor tensors[2];
        for (int j = 0; j < 2; j++) {
            out[j] = guarded_create(device, ROWS * CODES * sizeof(float), NULL);
            tensors[j] = (pagedcl_tensor){.mem = out[j].mem};
        }
        expect_ok(pagedcl_cache_gather(cache, NULL, 0, &table, 1, &length, 1, &tensors[0], &tensors[1], 0, NULL, NULL));
        for (int j = 0; j < 2; j++) {
            float *got = guarded_read(device, &out[j], name);
            for (int at = 0; at < ROWS * CODES; at++) {
                const int code = at % CODES;
                const bool is_nan = isnan(code_value(dtypes[i], (unsigned char)code));
                cr_assert_eq(!isnan(got[at]), at < CODES && !is_nan, "%s: scale %d, code %#x", name, at / CODES, code);
                cr_assert(!is_nan || memcmp(&got[at], &got[code], sizeof(float)) == 0, "%s: scale %d, code %#x", name,
                          at / CODES, code);
            }
            free(got);
            guarded_destroy(&out[j]);
        }
        pagedcl_cache_destroy(cache);
    }
    pagedcl_device_destroy(device);
}

Test(cache_quantized, what_does_not_go_together_is_refused) {
    pagedcl_device *device = fixture_open();
    pagedcl_cache_desc good = PAGEDCL_CACHE_DESC_INIT, desc;
    good.num_blocks = 2;
    good.block_size = 4;
    good.num_kv_heads = 1;
    good.head_dim = 8;
    guarded buffer = guarded_create(device, 64, NULL);
    const pagedcl_pool_buffers buffers = {.k = buffer.mem, .v = buffer.mem};
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
    REFUSED((desc.dtype = PAGEDCL_INT8, desc.scale_per_row = 1, desc.buffers = &buffers), "scale_per_row");
    REFUSED((desc.dtype = PAGEDCL_INT4, desc.scale_per_row = 1), "scale_per_row");
    REFUSED((desc.dtype = PAGEDCL_INT4, desc.k_scale = 2), "k_scale");
#undef REFUSED
    desc = good;
    desc.dtype = PAGEDCL_INT4;
    desc.buffers = &buffers;
    expect_refused(pagedcl_cache_create(device, &desc, &cache), PAGEDCL_UNSUPPORTED, "int4");
    desc = good;
    desc.dtype = PAGEDCL_INT8;
    expect_ok(pagedcl_cache_create(device, &desc, &cache));
    pagedcl_tensor tensor = {.mem = buffer.mem};
    int64_t slot = 0;
    expect_refused(pagedcl_cache_write(cache, NULL, 0, &tensor, &tensor, PAGEDCL_INT8, &slot, 1, 0, NULL, NULL),
                   PAGEDCL_INVALID_ARGUMENT, "int8");
    expect_refused(pagedcl_cache_write(cache, NULL, 0, &tensor, &tensor, PAGEDCL_INT4, &slot, 1, 0, NULL, NULL),
                   PAGEDCL_INVALID_ARGUMENT, "int4");
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
