/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Write, copy, wipe and gather give the same bits however their work is divided and wherever rows begin: a work-item
 * takes whole rows, as on CPUs, or one vector, as on GPUs; vectors are moved as one where they are aligned.
 */
#include "cache.h"
#include "device.h"

#include "support/cache_rig.h"
#include "support/expect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 19, HEADS = 3 };

static const pool_shape shapes[] = {
    {"float32", 1, 6, 5, HEADS, 24, PAGEDCL_FLOAT32, .head_dim_v = 40},
    {"float16", 1, 6, 5, HEADS, 128, PAGEDCL_FLOAT16, .segment_blocks = 2},
    {"float16, odd rows", 1, 6, 5, HEADS, 21, PAGEDCL_FLOAT16, .head_dim_v = 12},
    {"bfloat16, V in K", 1, 6, 5, HEADS, 80, PAGEDCL_BFLOAT16, .head_dim_v = 48, .v_in_k = 1},
    {"int8", 1, 6, 5, HEADS, 80, PAGEDCL_INT8, .segment_blocks = 0},
    {"int8, a scale for each row", 1, 6, 8, HEADS, 128, PAGEDCL_INT8, .scale_per_row = 1},
    {"float8_e4m3, a scale for each odd row", 1, 6, 5, HEADS, 27, PAGEDCL_FLOAT8_E4M3, .scale_per_row = 1},
    {"float8_e5m2", 1, 6, 5, HEADS, 24, PAGEDCL_FLOAT8_E5M2, .segment_blocks = 0},
    {"float8_e5m2, a scale for each row", 1, 6, 5, HEADS, 24, PAGEDCL_FLOAT8_E5M2, .scale_per_row = 1},
    {"int4", 1, 6, 8, HEADS, 80, PAGEDCL_INT4, .head_dim_v = 128},
    {"int4, odd rows", 1, 6, 5, HEADS, 37, PAGEDCL_INT4, .segment_blocks = 0},
};

/* How the work is divided, how the source is laid out, and where gathered rows begin. */
typedef struct way {
    pagedcl_device_kind kind;
    strided_layout layout;
    int64_t offset;
} way;

static const way ways[] = {
    {PAGEDCL_DEVICE_CPU, WITH_GAPS, 3},          {PAGEDCL_DEVICE_CPU, CONTIGUOUS, 0},
    {PAGEDCL_DEVICE_DISCRETE_GPU, WITH_GAPS, 3}, {PAGEDCL_DEVICE_DISCRETE_GPU, CONTIGUOUS, 0},
    {PAGEDCL_DEVICE_CPU, WITH_ALIGNED_GAPS, 8},  {PAGEDCL_DEVICE_DISCRETE_GPU, WITH_ALIGNED_GAPS, 8},
};

/* What comes out: the pool's K and V, and the gathered rows. */
typedef struct outcome {
    unsigned char *bytes[4];
    size_t sizes[4];
} outcome;

/* The rows from an offset on, of which what is before them is poison still. */
static unsigned char *read_from(const pagedcl_device *device, const guarded *buffer, size_t begin, const char *name) {
    unsigned char *got = guarded_read(device, buffer, name), *poison = fixture_poisoned(begin);
    expect_same_bytes(name, "what is before gathered rows", got, poison, begin);
    memmove(got, got + begin, buffer->bytes - begin);
    free(poison);
    return got;
}

static outcome move_rows(const pool_shape *shape, pagedcl_dtype dtype, const way *w) {
    static const int64_t slots[TOKENS] = {7, -1, 12, 0, 24, 3, 21, 1, 2, 19, 4, 5, 11, -1, 20, 9, 22, 14, 29};
    static const int32_t pairs[] = {0, 3, 2, 5}, wiped[] = {1}, table[] = {0, 5, 1, 3, 4, -1}, seqlens[] = {15, 7};
    pagedcl_device *device = fixture_open();
    device->info.kind = w->kind;
    pagedcl_cache_desc desc = pool_shape_desc(shape);
    pagedcl_cache *cache;
    expect_ok(pagedcl_cache_create(device, &desc, &cache));
    expect_ok(pagedcl_cache_get_desc(cache, &desc));
    outcome o = {
        .sizes = {(size_t)(desc.num_blocks * cache->k.block_bytes), (size_t)(desc.num_blocks * cache->v.block_bytes)}};
    for (int i = 0; i < 2; i++)
        o.bytes[i] = fixture_poisoned(o.sizes[i]);
    unsigned char *v_bytes = desc.v_in_k ? NULL : o.bytes[1];
    expect_ok(pagedcl_cache_upload_blocks(cache, NULL, 0, NULL, desc.num_blocks, o.bytes[0], v_bytes, 0, NULL, NULL));

    const int32_t dims[2] = {desc.head_dim, desc.head_dim_v};
    strided rows[2];
    for (int i = 0; i < 2; i++) {
        float *values = random_floats(dtype, (int64_t)TOKENS * HEADS * dims[i], 2 + (uint64_t)i);
        rows[i] = strided_create(device, dtype, TOKENS, HEADS, dims[i], w->layout, 0, values);
        free(values);
    }
    expect_ok(pagedcl_cache_write(cache, NULL, 0, &rows[0].view, desc.v_in_k ? NULL : &rows[1].view, dtype, slots,
                                  TOKENS, 0, NULL, NULL));
    expect_ok(pagedcl_cache_copy_blocks(cache, NULL, pairs, 2, 0, NULL, NULL));
    expect_ok(pagedcl_cache_wipe_blocks(cache, NULL, wiped, 1, 0, NULL, NULL));

    const size_t element = pagedcl_dtype_size(pcl_cache_gathered_dtype(cache)), begin = (size_t)w->offset * element;
    const size_t gathered = (size_t)(seqlens[0] + seqlens[1]) * HEADS * element;
    guarded buffers[2];
    pagedcl_tensor outs[2];
    for (int i = 0; i < 2; i++) {
        o.sizes[2 + i] = gathered * (size_t)dims[i];
        buffers[i] = guarded_create(device, begin + o.sizes[2 + i], NULL);
        outs[i] = (pagedcl_tensor){.mem = buffers[i].mem, .offset = w->offset};
    }
    expect_ok(pagedcl_cache_gather(cache, NULL, 0, table, 3, seqlens, 2, &outs[0], &outs[1], 0, NULL, NULL));
    expect_ok(pagedcl_cache_download_blocks(cache, NULL, 0, NULL, desc.num_blocks, o.bytes[0], v_bytes, 0, NULL, NULL));
    for (int i = 0; i < 2; i++) {
        o.bytes[2 + i] = read_from(device, &buffers[i], begin, shape->name);
        guarded_destroy(&buffers[i]);
        strided_destroy(&rows[i]);
    }
    pagedcl_cache_destroy(cache);
    pagedcl_device_destroy(device);
    return o;
}

static void outcome_destroy(outcome *o) {
    for (int i = 0; i < 4; i++)
        free(o->bytes[i]);
}

Test(cache_items, the_same_bits_however_work_is_divided) {
    static const char *const names[4] = {"K of the pool", "V of the pool", "gathered K", "gathered V"};
    static const pagedcl_dtype dtypes[] = {PAGEDCL_FLOAT32, PAGEDCL_FLOAT16, PAGEDCL_BFLOAT16};
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
        for (size_t t = 0; t < sizeof(dtypes) / sizeof(dtypes[0]); t++) {
            outcome first = move_rows(&shapes[s], dtypes[t], &ways[0]);
            for (size_t w = 1; w < sizeof(ways) / sizeof(ways[0]); w++) {
                outcome other = move_rows(&shapes[s], dtypes[t], &ways[w]);
                for (int i = 0; i < 4; i++) {
                    cr_assert_eq(first.sizes[i], other.sizes[i]);
                    char what[64];
                    snprintf(what, sizeof(what), "%s, from %s, way %zu", names[i], pagedcl_dtype_name(dtypes[t]), w);
                    expect_same_bytes(shapes[s].name, what, other.bytes[i], first.bytes[i], first.sizes[i]);
                }
                outcome_destroy(&other);
            }
            outcome_destroy(&first);
        }
}
