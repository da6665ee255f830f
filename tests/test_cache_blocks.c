/* SPDX-License-Identifier: Apache-2.0 */
/* Whole blocks of a pool against plain arrays on the host: upload, download, copy. */
#include "support/cache_rig.h"
#include "support/expect.h"
#include "support/fixture.h"

#include <stdlib.h>
#include <string.h>

Test(cache_blocks, upload_and_download_in_every_shape) {
    for (int s = 0; s < NUM_CACHE_SHAPES; s++) {
        cache_rig r = cache_rig_open(&cache_shapes[s]);
        pool_model_expect(&r.model, r.cache, r.name);
        cache_rig_close(&r);
    }
}

/* Every second block, in reversed order, of the last layer. */
Test(cache_blocks, upload_and_download_chosen_blocks) {
    for (int s = 0; s < NUM_CACHE_SHAPES; s++) {
        cache_rig r = cache_rig_open(&cache_shapes[s]);
        int32_t layer = r.model.desc.num_layers - 1, blocks[64], count = 0;
        for (int32_t b = r.model.desc.num_blocks - 1; b >= 0; b -= 2)
            blocks[count++] = b;
        size_t block_bytes = (size_t)r.model.desc.block_size * r.model.row_bytes;
        unsigned char *k = fixture_alloc((size_t)count * block_bytes), *v = fixture_alloc((size_t)count * block_bytes);
        for (size_t i = 0; i < (size_t)count * block_bytes; i++) {
            k[i] = (unsigned char)(i * 7);
            v[i] = (unsigned char)(i * 11 + 1);
        }
        int32_t passed[64];
        memcpy(passed, blocks, sizeof(blocks));
        cl_event event;
        expect_ok(pagedcl_cache_upload_blocks(r.cache, NULL, layer, passed, count, k, v, 0, NULL, &event));
        memset(passed, 0x7f, sizeof(passed)); /* the ids were copied */
        expect_cl(clWaitForEvents(1, &event));
        expect_cl(clReleaseEvent(event));
        for (int32_t i = 0; i < count; i++) {
            int64_t slot = (int64_t)blocks[i] * r.model.desc.block_size;
            memcpy(pool_model_k(&r.model, layer, slot), k + (size_t)i * block_bytes, block_bytes);
            memcpy(pool_model_v(&r.model, layer, slot), v + (size_t)i * block_bytes, block_bytes);
        }
        pool_model_expect(&r.model, r.cache, r.name);

        unsigned char *k_got = fixture_poisoned((size_t)count * block_bytes);
        unsigned char *v_got = fixture_poisoned((size_t)count * block_bytes);
        expect_ok(pagedcl_cache_download_blocks(r.cache, NULL, layer, blocks, count, k_got, v_got, 0, NULL, &event));
        expect_cl(clWaitForEvents(1, &event));
        expect_cl(clReleaseEvent(event));
        expect_same_bytes(r.name, "K", k_got, k, (size_t)count * block_bytes);
        expect_same_bytes(r.name, "V", v_got, v, (size_t)count * block_bytes);
        free(k);
        free(v);
        free(k_got);
        free(v_got);
        cache_rig_close(&r);
    }
}

/* A chain, a swap through a spare block, and a fan; the pairs take effect in their order. */
Test(cache_blocks, copies_take_effect_in_order) {
    const int32_t pairs[] = {0, 1, 1, 2, 3, 7, 4, 3, 7, 4, 5, 6, 5, 7, 6, 0, 2, 5};
    enum { NUM_PAIRS = sizeof(pairs) / sizeof(pairs[0]) / 2 };
    for (int s = 0; s < NUM_CACHE_SHAPES; s++) {
        cache_rig r = cache_rig_open(&cache_shapes[s]);
        int32_t passed[2 * NUM_PAIRS];
        for (int i = 0; i < 2 * NUM_PAIRS; i++)
            passed[i] = pairs[i] % r.model.desc.num_blocks;
        size_t block_bytes = (size_t)r.model.desc.block_size * r.model.row_bytes;
        for (int i = 0; i < NUM_PAIRS; i++) {
            for (int32_t layer = 0; layer < r.model.desc.num_layers; layer++) {
                int64_t src = (int64_t)passed[2 * i] * r.model.desc.block_size;
                int64_t dst = (int64_t)passed[2 * i + 1] * r.model.desc.block_size;
                memmove(pool_model_k(&r.model, layer, dst), pool_model_k(&r.model, layer, src), block_bytes);
                memmove(pool_model_v(&r.model, layer, dst), pool_model_v(&r.model, layer, src), block_bytes);
            }
        }
        expect_ok(pagedcl_cache_copy_blocks(r.cache, NULL, passed, NUM_PAIRS, 0, NULL, NULL));
        memset(passed, 0x7f, sizeof(passed));
        pool_model_expect(&r.model, r.cache, r.name);
        cache_rig_close(&r);
    }
}

Test(cache_blocks, bad_blocks_change_nothing) {
    cache_rig r = cache_rig_open(&small_pool);
    static const struct {
        int32_t pairs[4];
        const char *words;
    } bad_pairs[] = {
        {{0, 1, 2, 4}, "pair 1 names block 4; the pool has blocks 0 to 3"},
        {{0, 1, -1, 2}, "pair 1 names block -1;"},
        {{0, 1, 4, 0}, "pair 1 names block 4;"},
        {{0, 1, 2, INT32_MIN}, "pair 1 names block -2147483648;"},
        {{0, 1, 3, 3}, "pair 1 copies block 3 to itself"},
    };
    for (size_t i = 0; i < sizeof(bad_pairs) / sizeof(bad_pairs[0]); i++)
        expect_refused(pagedcl_cache_copy_blocks(r.cache, NULL, bad_pairs[i].pairs, 2, 0, NULL, NULL),
                       PAGEDCL_INVALID_BLOCK, bad_pairs[i].words);
    expect_refused(pagedcl_cache_copy_blocks(r.cache, NULL, NULL, 1, 0, NULL, NULL), PAGEDCL_INVALID_ARGUMENT, "pairs");
    expect_refused(pagedcl_cache_copy_blocks(r.cache, NULL, bad_pairs[0].pairs, -1, 0, NULL, NULL),
                   PAGEDCL_INVALID_ARGUMENT, "num_pairs");
    unsigned char *content = fixture_poisoned(5 * 16 * r.model.row_bytes);
    static const struct {
        int32_t blocks[2];
        const char *words;
    } bad_blocks[] = {
        {{0, 4}, "entry 1 names block 4; the pool has blocks 0 to 3"},
        {{-1, 0}, "entry 0 names block -1;"},
        {{1, INT32_MAX}, "entry 1 names block 2147483647;"},
        {{2, 2}, "entry 1 names block 2, which an earlier one names too"},
    };
    for (size_t i = 0; i < 4; i++) {
        const int32_t *blocks = bad_blocks[i].blocks;
        expect_refused(pagedcl_cache_upload_blocks(r.cache, NULL, 0, blocks, 2, content, content, 0, NULL, NULL),
                       PAGEDCL_INVALID_BLOCK, bad_blocks[i].words);
        if (i == 3)
            continue; /* to read a block twice is fine */
        expect_refused(pagedcl_cache_download_blocks(r.cache, NULL, 0, blocks, 2, content, content, 0, NULL, NULL),
                       PAGEDCL_INVALID_BLOCK, bad_blocks[i].words);
        expect_refused(pagedcl_cache_wipe_blocks(r.cache, NULL, blocks, 2, 0, NULL, NULL), PAGEDCL_INVALID_BLOCK,
                       bad_blocks[i].words);
    }
    expect_refused(pagedcl_cache_wipe_blocks(r.cache, NULL, NULL, 1, 0, NULL, NULL), PAGEDCL_INVALID_ARGUMENT,
                   "blocks must not be NULL");
    expect_refused(pagedcl_cache_upload_blocks(r.cache, NULL, 0, NULL, 5, content, content, 0, NULL, NULL),
                   PAGEDCL_INVALID_BLOCK, "pool of 4");
    expect_refused(pagedcl_cache_upload_blocks(r.cache, NULL, 2, NULL, 4, content, content, 0, NULL, NULL),
                   PAGEDCL_INVALID_ARGUMENT, "layer");
    expect_refused(pagedcl_cache_upload_blocks(r.cache, NULL, 0, NULL, 4, NULL, content, 0, NULL, NULL),
                   PAGEDCL_INVALID_ARGUMENT, "k and v must not be NULL");
    pool_model_expect(&r.model, r.cache, r.name);
    for (size_t i = 0; i < 5 * 16 * r.model.row_bytes; i++)
        cr_assert_eq(content[i], POISON, "a refused download wrote byte %zu", i);
    free(content);
    cache_rig_close(&r);
}
