/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Varlen attention over what tier nv_wgmma fetches as boxes of tokens (cl/nv/fetch.h): pools of 16-bit elements with
 * blocks of a multiple of 8. Tiles of keys begin and end inside boxes and blocks here, and NaN lies around.
 */
#include "support/attn_rig.h"
#include "support/expect.h"

#define F16 PAGEDCL_FLOAT16
#define BF16 PAGEDCL_BFLOAT16
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define INTS(...) ((const int32_t[]){__VA_ARGS__})

#define PAGED(type) .path = VARLEN_PAGED, .q_dtype = (type), .kv_dtype = (type), .out_dtype = (type)
#define LONG .seqlens_q = INTS(70, 1, 33), .seqlens_k = INTS(200, 129, 64)

/* On the device's own tier: the others do nothing special here. */
static void check_cases(const attn_case *cases, size_t count) {
    pagedcl_device *device = fixture_open();
    attn_check_cases_on(device, PAGEDCL_TIER_AUTO, cases, count);
    pagedcl_device_destroy(device);
}

static const attn_case blocks[] = {
    {"8", PAGED(F16), .block_size = 8, .causal = 1, LONG},
    {"16", PAGED(BF16), .block_size = 16, LONG},
    {"16, one head of 16", PAGED(F16), .block_size = 16, .num_kv_heads = 1, .group = 1, .head_dim = 16, .causal = 1,
     LONG},
    {"24", PAGED(F16), .block_size = 24, .head_dim = 64, .causal = 1, LONG},
    {"32", PAGED(BF16), .block_size = 32, .head_dim = 128, .causal = 1, LONG},
    {"40, not causal", PAGED(F16), .block_size = 40, .head_dim = 96, LONG},
    {"48", PAGED(F16), .block_size = 48, .head_dim = 192, .head_dim_v = 128, .causal = 1, LONG},
    {"64", PAGED(F16), .block_size = 64, .head_dim = 128, LONG},
    {"96", PAGED(BF16), .block_size = 96, .head_dim = 72, .causal = 1, LONG},
    {"256", PAGED(F16), .block_size = 256, .head_dim = 256, .group = 2, .causal = 1, LONG},
    {"512, V wider than K", PAGED(F16), .block_size = 512, .head_dim = 64, .head_dim_v = 200, .group = 1, LONG},
    {"8, 150 queries of a token each, odd ones empty", PAGED(F16), .block_size = 8, .num_seqs = 5, .group = 1,
     .causal = 1, .seqlens_q = INTS(150, 0, 1, 0, 64), .seqlens_k = INTS(1000, 30, 0, 0, 65)},
};

Test(attn_boxes, block_sizes) {
    check_cases(blocks, COUNT(blocks));
}

static const attn_case pools[] = {
    {"a head's tokens together", PAGED(F16), .causal = 1, .pool = POOL_OF_LIBRARY_HND, LONG},
    {"a head's tokens together, the caller's", PAGED(BF16), .causal = 1, .pool = POOL_HND, LONG},
    {"K and V in one buffer", PAGED(F16), .head_dim = 128, .pool = POOL_INTERLEAVED, LONG},
    {"rows that are not aligned", PAGED(F16), .causal = 1, .pool = POOL_WITH_GAPS, LONG},
    {"head_dim 20, not a multiple of 8", PAGED(F16), .head_dim = 20, .causal = 1, LONG},
    {"segments of four blocks, last of three layers", PAGED(F16), .head_dim = 64, .segment_blocks = 4, .num_layers = 3,
     .causal = 1, LONG},
    {"segments of six blocks, appending", PAGED(BF16), .append = 1, .causal = 1, .segment_blocks = 6, .num_layers = 2,
     LONG},
};

Test(attn_boxes, pools) {
    check_cases(pools, COUNT(pools));
}

static const attn_case masks[] = {
    {"window", PAGED(F16), .window = INTS(37, 0), LONG},
    {"window, blocks before it released", PAGED(F16), .window = INTS(21, 5), .released = true, .block_size = 8,
     .seqlens_q = INTS(70, 1, 3), .seqlens_k = INTS(300, 129, 90)},
    {"window, released, blocks of 64", PAGED(BF16), .window = INTS(70, 0), .released = true, .block_size = 64,
     .head_dim = 128, .seqlens_q = INTS(9, 1, 100), .seqlens_k = INTS(500, 129, 330)},
    {"tree, whose second key is NaN", PAGED(F16), .tree = true, .append = 1, .head_dim = 64,
     .seqlens_q = INTS(20, 3, 70), .seqlens_k = INTS(150, 64, 129)},
    {"all but a rotary embedding", PAGED(F16), .window = INTS(70, 3), .softcap = 4, .alibi = 2, .sinks = true,
     .tree = true, .append = 1, .released = true, .seqlens_q = INTS(40, 1, 5), .seqlens_k = INTS(130, 1, 300),
     .layout = WITH_GAPS},
    /* Without its LSE, which shows that q is rounded again once it is rotated. */
    {"rotary embedding", PAGED(BF16), .rotary_dim = 16, .append = 1, .causal = 1, .without_lse = true, LONG},
};

Test(attn_boxes, masks) {
    check_cases(masks, COUNT(masks));
}

/* Entries of a table on the device that name no block hide its tokens, wherever in a tile they are. */
Test(attn_boxes, holes) {
    const attn_case cases[] = {
        {"blocks of 8", PAGED(F16), .block_size = 8, .device_table = true, LONG},
        {"blocks of 32, causal", PAGED(BF16), .block_size = 32, .head_dim = 128, .causal = 1, .device_table = true,
         LONG},
    };
    pagedcl_device *device = fixture_open();
    for (size_t i = 0; i < COUNT(cases); i++) {
        attn_problem p = attn_problem_create(&cases[i], i + 1);
        p.block_table[0] = -1;
        p.block_table[2] = p.num_blocks;
        p.block_table[3] = INT32_MAX;
        p.block_table[p.block_table_stride + 1] = INT32_MIN;
        attn_result result = attn_solve(device, PAGEDCL_TIER_AUTO, &p);
        attn_expect_reference(&p, &result, cases[i].name);
        attn_result_destroy(&result);
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/* An operator that was made for one memory reads the other that its pool has then. */
Test(attn_boxes, exchanged_buffers) {
    const attn_case c = {"exchanged", PAGED(F16), .causal = 1, .head_dim = 64, .pool = POOL_INTERLEAVED, LONG};
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&c, 1);
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, &p);
    expect_ok(attn_rig_plan(&rig, NULL));
    for (int round = 0; round < 2; round++) {
        attn_rig_run(&rig, NULL, 0, NULL, NULL);
        attn_result result = attn_rig_read(&rig);
        attn_expect_reference(&p, &result, rig.name);
        attn_result_destroy(&result);
        adopted_pool first = rig.adopted;
        rig.adopted = adopted_pool_create(device, c.pool, &rig.pool);
        expect_ok(pagedcl_cache_set_buffers(rig.cache, rig.adopted.buffers));
        adopted_pool_destroy(&first);
    }
    attn_rig_close(&rig);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}
