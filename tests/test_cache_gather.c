/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that are gathered through block tables, against plain arrays on the host. */
#include "support/cache_rig.h"
#include "support/expect.h"
#include "support/fixture.h"
#include "support/random.h"

#include <stdlib.h>
#include <string.h>

/* Sequences of 0, block_size + 1, 1 and three tokens more than a block, through scattered blocks. */
Test(cache_gather, gather_in_every_shape) {
    for (int s = 0; s < NUM_CACHE_SHAPES; s++) {
        cache_rig r = cache_rig_open(&cache_shapes[s]);
        const pagedcl_cache_desc *desc = &r.model.desc;
        int32_t layer = desc->num_layers - 1, bs = desc->block_size;
        int32_t seqlens[] = {0, bs + 1, 1, bs + 3, 0};
        enum { NUM_SEQS = 5, STRIDE = 6 };
        int32_t table[NUM_SEQS * STRIDE], order[64], used = 0;
        random_state state = {5};
        random_permutation(&state, order, desc->num_blocks);
        int64_t tokens = 0;
        for (int32_t b = 0; b < NUM_SEQS; b++) {
            for (int32_t i = 0; i < STRIDE; i++) /* behind the used length anything may stand */
                table[b * STRIDE + i] = i * bs < seqlens[b] ? order[used++ % desc->num_blocks] : 1000000 - 7 * i;
            tokens += seqlens[b];
        }
        unsigned char *k_want = fixture_alloc((size_t)tokens * r.model.row_bytes);
        unsigned char *v_want = fixture_alloc((size_t)tokens * r.model.row_bytes);
        size_t row = 0;
        for (int32_t b = 0; b < NUM_SEQS; b++) {
            for (int32_t p = 0; p < seqlens[b]; p++, row++) {
                int64_t slot = (int64_t)table[b * STRIDE + p / bs] * bs + p % bs;
                memcpy(k_want + row * r.model.row_bytes, pool_model_k(&r.model, layer, slot), r.model.row_bytes);
                memcpy(v_want + row * r.model.row_bytes, pool_model_v(&r.model, layer, slot), r.model.row_bytes);
            }
        }
        /* The rows begin at an odd offset; what lies before and behind them stays. */
        size_t element = pagedcl_dtype_size(desc->dtype), lead = 3 * element;
        size_t bytes = lead + (size_t)tokens * r.model.row_bytes + 5 * element;
        guarded k_buffer = guarded_create(r.device, bytes, NULL), v_buffer = guarded_create(r.device, bytes, NULL);
        pagedcl_tensor k = {.mem = k_buffer.mem, .offset = 3}, v = {.mem = v_buffer.mem, .offset = 3};
        expect_ok(pagedcl_cache_gather(r.cache, NULL, layer, table, STRIDE, seqlens, NUM_SEQS, &k, &v, 0, NULL, NULL));
        memset(table, 0x7f, sizeof(table));
        memset(seqlens, 0x7f, sizeof(seqlens));
        unsigned char *k_got = guarded_read(r.device, &k_buffer, r.name);
        unsigned char *v_got = guarded_read(r.device, &v_buffer, r.name);
        unsigned char *poison = fixture_poisoned(bytes);
        memcpy(poison + lead, k_want, (size_t)tokens * r.model.row_bytes);
        expect_same_bytes(r.name, "K", k_got, poison, bytes);
        memcpy(poison + lead, v_want, (size_t)tokens * r.model.row_bytes);
        expect_same_bytes(r.name, "V", v_got, poison, bytes);
        void *owned[] = {k_want, v_want, k_got, v_got, poison};
        for (size_t i = 0; i < 5; i++)
            free(owned[i]);
        guarded_destroy(&k_buffer);
        guarded_destroy(&v_buffer);
        cache_rig_close(&r);
    }
}

/* B17: block ids beyond 65,535. A block's row says which block it is. */
Test(cache_gather, seventy_thousand_blocks) {
    cache_rig r =
        cache_rig_open(&(pool_shape){"70,000 blocks", 1, 70000, 1, 1, 8, PAGEDCL_FLOAT16, .segment_blocks = 0});
    for (int32_t b = 0; b < 70000; b++) {
        float row[8] = {(float)(b % 256), (float)(b / 256)};
        pool_model_write(&r.model, 0, b, row, row);
    }
    pool_model_upload(&r.model, r.cache);
    pool_model_expect(&r.model, r.cache, r.name);

    int32_t table[] = {65536, 65537, 0, 69999}, seqlens[] = {4};
    guarded buffer = guarded_create(r.device, 4 * 8 * 2, NULL);
    pagedcl_tensor tensor = {.mem = buffer.mem};
    expect_ok(pagedcl_cache_gather(r.cache, NULL, 0, table, 4, seqlens, 1, &tensor, &tensor, 0, NULL, NULL));
    uint16_t *got = guarded_read(r.device, &buffer, r.name);
    for (int i = 0; i < 4; i++)
        expect_same_bytes(r.name, "gathered row", got + 8 * i, pool_model_k(&r.model, 0, table[i]), 16);

    int64_t slot = 65538;
    float row[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    strided x = strided_create(r.device, PAGEDCL_FLOAT16, 1, 1, 8, CONTIGUOUS, 0, row);
    expect_ok(pagedcl_cache_write(r.cache, NULL, 0, &x.view, &x.view, PAGEDCL_FLOAT16, &slot, 1, 0, NULL, NULL));
    pool_model_write(&r.model, 0, slot, row, row);
    int32_t pair[] = {65538, 65540};
    expect_ok(pagedcl_cache_copy_blocks(r.cache, NULL, pair, 1, 0, NULL, NULL));
    pool_model_write(&r.model, 0, 65540, row, row);
    pool_model_expect(&r.model, r.cache, r.name);
    strided_destroy(&x);
    guarded_destroy(&buffer);
    free(got);
    cache_rig_close(&r);
}

Test(cache_gather, bad_gathers_change_nothing) {
    cache_rig r = cache_rig_open(&small_pool);
    size_t bytes = 18 * r.model.row_bytes;
    guarded k_buffer = guarded_create(r.device, bytes, NULL), v_buffer = guarded_create(r.device, bytes, NULL);
    pagedcl_tensor k = {.mem = k_buffer.mem}, v = {.mem = v_buffer.mem};
    const struct {
        int32_t table[4];
        int32_t seqlens[2];
        int32_t stride;
        pagedcl_status status;
        const char *words;
    } cases[] = {
        {{1, 2, 1, 4}, {1, 17}, 2, PAGEDCL_INVALID_BLOCK, "sequence 1: entry 1 of its block table is 4"},
        {{1, 2, 1, -5}, {1, 17}, 2, PAGEDCL_INVALID_BLOCK, "sequence 1: entry 1 of its block table is -5"},
        {{1, 2, 1, -1}, {1, 17}, 2, PAGEDCL_INVALID_BLOCK, "sequence 1: entry 1 of its block table is -1"},
        {{1, 2, INT32_MAX, 1},
         {1, 17},
         2,
         PAGEDCL_INVALID_BLOCK,
         "sequence 1: entry 0 of its block table is 2147483647"},
        {{1, 2, 1, 2}, {1, -3}, 2, PAGEDCL_INVALID_LENGTH, "sequence 1 has length -3"},
        {{1, 2, 1, 2}, {1, 33}, 2, PAGEDCL_CAPACITY, "sequence 1: 33 tokens need 3 blocks of 16"},
        {{1, 2, 1, 2}, {1, INT32_MAX}, 2, PAGEDCL_CAPACITY, "sequence 1: 2147483647 tokens need"},
        {{1, 2, 1, 2}, {2, 17}, 2, PAGEDCL_BUFFER_TOO_SMALL, "k needs"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect_refused(pagedcl_cache_gather(r.cache, NULL, 0, cases[i].table, cases[i].stride, cases[i].seqlens, 2, &k,
                                            &v, 0, NULL, NULL),
                       cases[i].status, cases[i].words);
    unsigned char *poison = fixture_poisoned(bytes);
    unsigned char *got = guarded_read(r.device, &k_buffer, r.name);
    expect_same_bytes(r.name, "k", got, poison, bytes);
    free(got);
    free(poison);
    guarded_destroy(&k_buffer);
    guarded_destroy(&v_buffer);
    cache_rig_close(&r);
}
