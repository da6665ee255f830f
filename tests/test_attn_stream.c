/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention as tier nv_wgmma streams keys (cl/attn_decode_stream.cl, cl/attn_varlen_stream.cl): pools of 16-bit
 * elements or 8-bit codes with blocks of a multiple of 8 tokens. Warps take 16 keys of a tile and go from problem to
 * problem; parts end inside tiles, boxes and blocks here, work-groups have many problems or none, and NaN lies
 * around. Other tiers, to which this is nothing new, run one of the tests.
 */
#include "support/attn_rig.h"
#include "support/expect.h"

#include <string.h>

#define F16 PAGEDCL_FLOAT16
#define BF16 PAGEDCL_BFLOAT16
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define INTS(...) ((const int32_t[]){__VA_ARGS__})

#define POOL(type) .path = DECODE, .q_dtype = (type), .kv_dtype = (type), .out_dtype = (type)
#define CODES(type, q) \
    .path = DECODE, .q_dtype = (q), .kv_dtype = (type), .out_dtype = (q), .k_scale = 0.03125f, .v_scale = 0.125f
#define LONG .seqlens_k = INTS(70, 1, 1033)

/* A device whose tier failed its probe is no reason to skip anything. */
static bool has_streams(const pagedcl_device *device) {
    pagedcl_device_info info = PAGEDCL_DEVICE_INFO_INIT;
    expect_ok(pagedcl_device_get_info(device, &info));
    cr_assert_null(strstr(info.tier_reason, "failed its probe"), "%s", info.tier_reason);
    return info.tier == PAGEDCL_TIER_NV_WGMMA;
}

static pagedcl_device *open_or_skip(void) {
    pagedcl_device *device = fixture_open();
    if (!has_streams(device)) {
        pagedcl_device_destroy(device);
        cr_skip_test("the device has no tier nv_wgmma");
    }
    return device;
}

/* By that tier where the device has it, and not by one that it falls back to. Closes the device. */
static void check_cases(pagedcl_device *device, const attn_case *cases, size_t count) {
    attn_check_cases_on(device, has_streams(device) ? PAGEDCL_TIER_NV_WGMMA : PAGEDCL_TIER_AUTO, cases, count);
    pagedcl_device_destroy(device);
}

static const attn_case blocks[] = {
    {"8", POOL(F16), .block_size = 8, .causal = 1, LONG},
    {"16, appending", POOL(BF16), .append = 1, LONG},
    {"16, one head of 16", POOL(F16), .num_kv_heads = 1, .group = 1, .head_dim = 16, .append = 1, LONG},
    {"24", POOL(F16), .block_size = 24, .head_dim = 64, .append = 1, LONG},
    {"32", POOL(BF16), .block_size = 32, .head_dim = 128, .append = 1, .group = 4, LONG},
    {"40", POOL(F16), .block_size = 40, .head_dim = 96, .group = 16, .append = 1, LONG},
    {"48, V narrower than K", POOL(F16), .block_size = 48, .head_dim = 192, .head_dim_v = 128, .append = 1, LONG},
    {"96, head_dim 72", POOL(BF16), .block_size = 96, .head_dim = 72, .append = 1, LONG},
    {"256, head_dim 256", POOL(F16), .block_size = 256, .head_dim = 256, .group = 2, .append = 1, LONG},
    {"512, V wider than K", POOL(F16), .block_size = 512, .head_dim = 64, .head_dim_v = 200, .group = 1, .append = 1,
     LONG},
    {"V is a part of K", POOL(F16), .head_dim = 192, .head_dim_v = 128, .v_in_k = true, .append = 1, LONG},
    {"latent attention", POOL(BF16), .num_kv_heads = 1, .group = 20, .head_dim = 576, .head_dim_v = 512, .v_in_k = true,
     .append = 1, LONG},
    {"results of float32", .path = DECODE, .q_dtype = F16, .kv_dtype = F16, .head_dim = 128, .append = 1, LONG},
    {"results of float32, both paths", .path = DECODE, .q_dtype = F16, .kv_dtype = F16, .both_paths = true, .append = 1,
     LONG},
    {"results of float32, rotated", .path = DECODE, .q_dtype = BF16, .kv_dtype = BF16, .head_dim = 64, .append = 1,
     .rotary_dim = 64, LONG},
};

Test(attn_stream, block_sizes) {
    check_cases(open_or_skip(), blocks, COUNT(blocks));
}

/* Codes of 8 bits: whole panels of columns and parts of one, an odd number of steps, each kind of code and of q. */
static const attn_case codes[] = {
    {"int8, blocks of 8", CODES(PAGEDCL_INT8, F16), .block_size = 8, .causal = 1, LONG},
    {"int8, appending", CODES(PAGEDCL_INT8, BF16), .append = 1, LONG},
    {"int8, whole panels", CODES(PAGEDCL_INT8, F16), .head_dim = 128, .group = 4, .append = 3,
     .seqlens_k = INTS(70, 3, 1033)},
    {"e4m3, whole panels", CODES(PAGEDCL_FLOAT8_E4M3, BF16), .head_dim = 128, .group = 16, .append = 1, LONG},
    {"e5m2, 16 columns", CODES(PAGEDCL_FLOAT8_E5M2, F16), .head_dim = 16, .group = 1, .append = 1, LONG},
    {"e4m3, blocks of 40, V narrower than K", CODES(PAGEDCL_FLOAT8_E4M3, F16), .block_size = 40, .head_dim = 112,
     .head_dim_v = 48, .append = 1, LONG},
    {"e5m2, blocks of 256, V wider than K", CODES(PAGEDCL_FLOAT8_E5M2, BF16), .block_size = 256, .head_dim = 48,
     .head_dim_v = 144, .group = 8, .append = 1, LONG},
    {"int8, head_dim 256", CODES(PAGEDCL_INT8, F16), .head_dim = 256, .group = 2, .append = 1, LONG},
    {"e4m3, latent attention", .path = DECODE, .q_dtype = BF16, .kv_dtype = PAGEDCL_FLOAT8_E4M3, .out_dtype = BF16,
     .k_scale = 0.125f, .v_scale = 0.125f, .num_kv_heads = 1, .group = 20, .head_dim = 576, .head_dim_v = 512,
     .v_in_k = true, .append = 1, LONG},
    {"int8, results of float32, rotated", .path = DECODE, .q_dtype = F16, .kv_dtype = PAGEDCL_INT8, .k_scale = 0.03125f,
     .v_scale = 0.125f, .head_dim = 64, .append = 1, .rotary_dim = 64, LONG},
    {"int8, a head's tokens together", CODES(PAGEDCL_INT8, F16), .append = 1, .pool = POOL_OF_LIBRARY_HND, LONG},
    {"e4m3, segments, last of three layers", CODES(PAGEDCL_FLOAT8_E4M3, F16), .head_dim = 64, .segment_blocks = 4,
     .num_layers = 3, .append = 1, .seqlens_k = INTS(70, 1, 300)},
    {"int8, softcap", CODES(PAGEDCL_INT8, BF16), .softcap = 4, .append = 1, LONG},
    {"e5m2, tree, whose second key is NaN", CODES(PAGEDCL_FLOAT8_E5M2, F16), .tree = true, .seqlen_q = 20, .append = 20,
     .head_dim = 64, .seqlens_k = INTS(150, 20, 600)},
    {"e4m3, tree, whose second key is NaN", CODES(PAGEDCL_FLOAT8_E4M3, BF16), .tree = true, .seqlen_q = 3, .append = 3,
     .seqlens_k = INTS(150, 3, 600)},
    {"int8, window, blocks before it released", CODES(PAGEDCL_INT8, F16), .window = INTS(600, 0), .released = true,
     .block_size = 64, .seqlen_q = 3, .append = 3, .seqlens_k = INTS(700, 3, 1300)},
    {"e4m3, both paths", CODES(PAGEDCL_FLOAT8_E4M3, F16), .both_paths = true, .append = 1, LONG},
    {"int8, a common prompt", CODES(PAGEDCL_INT8, F16), .num_seqs = 5, .shared = 1024, .append = 1, .group = 3,
     .share_prefix = PAGEDCL_SHARE_ALL, .seqlens_k = INTS(1030, 1600, 1025, 1100, 1041)},
};

Test(attn_stream, codes) {
    check_cases(open_or_skip(), codes, COUNT(codes));
}

/* Latent attention by warpgroups, of tiles of 64 rows and 64 keys: fewer rows and more, both numbers of columns. */
#define LATENT(type) POOL(type), .num_kv_heads = 1, .head_dim = 576, .head_dim_v = 512, .v_in_k = true
static const attn_case latent[] = {
    {"3 rows", LATENT(F16), .group = 3, .append = 1, LONG},
    {"128 heads", LATENT(BF16), .group = 128, .append = 1, LONG},
    {"2 KV heads, blocks of 64", POOL(F16), .num_kv_heads = 2, .head_dim = 576, .head_dim_v = 512, .v_in_k = true,
     .group = 20, .block_size = 64, .append = 1, LONG},
    {"nothing", LATENT(F16), .group = 16, .causal = 1, .seqlens_k = INTS(0, 0, 0)},
    {"around a tile and a part", LATENT(F16), .num_seqs = 7, .group = 16, .append = 1,
     .seqlens_k = INTS(1, 63, 64, 65, 2047, 2048, 2049)},
    {"more parts than one merge takes", LATENT(BF16), .num_seqs = 2, .group = 2, .append = 1,
     .seqlens_k = INTS(8193, 35000)},
    {"parts inside tiles", LATENT(F16), .group = 8, .append = 1, .num_splits = 3, LONG},
    {"3 queries, 2 new, tiles across heads", LATENT(F16), .group = 40, .seqlen_q = 3, .append = 2, .causal = 1,
     .seqlens_k = INTS(66, 3, 1030)},
    {"tree, whose second key is NaN", LATENT(F16), .group = 7, .tree = true, .seqlen_q = 20, .append = 1,
     .seqlens_k = INTS(150, 20, 600)},
    {"all but a rotary embedding", LATENT(BF16), .group = 12, .window = INTS(70, 3), .softcap = 4, .alibi = 2,
     .sinks = true, .tree = true, .seqlen_q = 5, .append = 5, .released = true, .seqlens_k = INTS(130, 5, 600),
     .layout = WITH_GAPS},
    {"rotary embedding", LATENT(F16), .group = 16, .rotary_dim = 64, .append = 1, .without_lse = true, LONG},
    {"a common prompt", LATENT(F16), .num_seqs = 5, .shared = 2048, .append = 1, .group = 16,
     .share_prefix = PAGEDCL_SHARE_ALL, .seqlens_k = INTS(2060, 2600, 2049, 2100, 4105)},
    {"384 of 400 columns", POOL(BF16), .num_kv_heads = 1, .group = 16, .head_dim = 400, .head_dim_v = 384,
     .v_in_k = true, .append = 1, LONG},
    {"264 of 264 columns", POOL(F16), .num_kv_heads = 1, .group = 16, .head_dim = 264, .head_dim_v = 264,
     .v_in_k = true, .append = 1, LONG},
    {"264 of 264 columns, tree, whose second key is NaN", POOL(BF16), .num_kv_heads = 1, .group = 7, .head_dim = 264,
     .head_dim_v = 264, .v_in_k = true, .tree = true, .seqlen_q = 20, .append = 1, .seqlens_k = INTS(150, 20, 600)},
    {"segments of four blocks", LATENT(F16), .group = 16, .segment_blocks = 4, .num_layers = 3, .append = 1,
     .seqlens_k = INTS(70, 1, 300)},
};

Test(attn_stream, latent) {
    check_cases(open_or_skip(), latent, COUNT(latent));
}

/* The same of varlen, where most tiles have rows that do not see all of their keys. */
#define VARLEN_LATENT(type, ...)                                                                         \
    .path = VARLEN_PAGED, .q_dtype = (type), .kv_dtype = (type), .out_dtype = (type), .num_kv_heads = 1, \
    .head_dim = 576, .head_dim_v = 512, .v_in_k = true, .seqlens_q = INTS(__VA_ARGS__)
static const attn_case latent_varlen[] = {
    {"causal", VARLEN_LATENT(F16, 70, 1, 33), .group = 16, .causal = 1, .seqlens_k = INTS(70, 300, 1033)},
    {"not causal", VARLEN_LATENT(BF16, 5, 0, 20), .group = 7, .seqlens_k = INTS(70, 0, 129)},
    {"128 heads, appending", VARLEN_LATENT(BF16, 3, 2, 9), .group = 128, .append = 1, .causal = 1,
     .seqlens_k = INTS(3, 70, 128)},
    {"more queries than keys", VARLEN_LATENT(F16, 40, 3, 70), .group = 3, .causal = 1, .seqlens_k = INTS(20, 3, 1)},
    {"window, blocks of 64", VARLEN_LATENT(F16, 70, 1, 33), .group = 4, .block_size = 64, .window = INTS(70, 3),
     .seqlens_k = INTS(70, 300, 600)},
    {"tree, whose second key is NaN", VARLEN_LATENT(F16, 20, 3, 33), .group = 5, .tree = true,
     .seqlens_k = INTS(150, 20, 600)},
    {"all but a rotary embedding", VARLEN_LATENT(BF16, 20, 3, 33), .group = 12, .softcap = 4, .alibi = 2, .sinks = true,
     .window = INTS(70, 3), .append = 1, .seqlens_k = INTS(130, 5, 600), .layout = WITH_GAPS},
    {"rotary embedding, both paths", VARLEN_LATENT(F16, 5, 1, 17), .group = 16, .rotary_dim = 64, .append = 1,
     .causal = 1, .both_paths = true, .without_lse = true, .seqlens_k = INTS(130, 5, 200)},
    {"a device's table, last of three layers", VARLEN_LATENT(F16, 5, 1, 17), .group = 16, .device_table = true,
     .num_layers = 3, .causal = 1, .seqlens_k = INTS(130, 5, 200)},
    {"many of few rows", VARLEN_LATENT(BF16, 1, 2, 1, 1, 3), .num_seqs = 5, .group = 2, .causal = 1,
     .seqlens_k = INTS(700, 2, 65, 64, 1200)},
};

Test(attn_stream, latent_varlen) {
    check_cases(open_or_skip(), latent_varlen, COUNT(latent_varlen));
}

static const attn_case pools[] = {
    {"a head's tokens together", POOL(F16), .append = 1, .pool = POOL_OF_LIBRARY_HND, LONG},
    {"a head's tokens together, the caller's", POOL(BF16), .append = 1, .pool = POOL_HND, LONG},
    {"K and V in one buffer", POOL(F16), .append = 1, .head_dim = 128, .pool = POOL_INTERLEAVED, LONG},
    {"segments of four blocks, last of three layers", POOL(F16), .head_dim = 64, .segment_blocks = 4, .num_layers = 3,
     .append = 1, .seqlens_k = INTS(70, 1, 300)},
};

Test(attn_stream, pools) {
    check_cases(fixture_open(), pools, COUNT(pools));
}

/* Fewer problems than work-groups, and many times as many; parts of all lengths. */
static const attn_case batches[] = {
    {"nothing", POOL(F16), .num_seqs = 3, .causal = 1, .seqlens_k = INTS(0, 0, 0)},
    {"a key", POOL(F16), .num_seqs = 1, .num_kv_heads = 1, .group = 1, .append = 1, .seqlens_k = INTS(1)},
    {"around a part", POOL(F16), .num_seqs = 6, .append = 1, .seqlens_k = INTS(511, 512, 513, 1024, 1025, 496)},
    {"more parts than one merge takes", POOL(BF16), .num_seqs = 2, .num_kv_heads = 1, .group = 4, .head_dim = 64,
     .append = 1, .seqlens_k = INTS(8193, 9000)},
    {"16 heads of 60 sequences", POOL(F16), .num_seqs = 60, .num_kv_heads = 16, .group = 1, .head_dim = 32, .append = 1,
     .seqlens_k = INTS(1, 600, 3, 17, 40, 700, 16, 15, 33, 64, 65, 1, 2, 128, 129, 530, 9, 77, 90, 31, 32, 33, 1, 48,
                       49, 600, 5, 5, 5, 5, 1100, 60, 61, 62, 63, 64, 1, 512, 513, 514, 80, 81, 82, 20, 19, 18, 7, 6, 8,
                       10, 11, 12, 13, 14, 1, 2, 3, 900, 44, 4)},
    {"many of a tile each", POOL(BF16), .num_seqs = 40, .num_kv_heads = 8, .group = 7, .head_dim = 16, .append = 1,
     .seqlens_k = INTS(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26,
                       27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40)},
    {"3 parts", POOL(F16), .append = 1, .num_splits = 3, LONG},
    {"parts for speed", POOL(F16), .append = 1, .num_splits = PAGEDCL_SPLITS_FAST, LONG},
};

Test(attn_stream, batches) {
    check_cases(open_or_skip(), batches, COUNT(batches));
}

static const attn_case masks[] = {
    {"4 queries, 4 new", POOL(F16), .seqlen_q = 4, .append = 4, .causal = 1, .head_dim = 128, .group = 4,
     .seqlens_k = INTS(515, 4, 1030)},
    {"9 queries, 2 new, not causal", POOL(BF16), .seqlen_q = 9, .append = 2, .seqlens_k = INTS(515, 9, 1030)},
    {"20 new across blocks", POOL(F16), .seqlen_q = 1, .append = 20, .seqlens_k = INTS(515, 20, 1030)},
    {"window", POOL(F16), .window = INTS(37, 0), .append = 1, LONG},
    {"window, blocks before it released", POOL(BF16), .window = INTS(600, 0), .released = true, .block_size = 64,
     .seqlen_q = 3, .append = 3, .seqlens_k = INTS(700, 3, 1300)},
    {"tree, whose second key is NaN", POOL(F16), .tree = true, .seqlen_q = 20, .append = 1, .head_dim = 64,
     .seqlens_k = INTS(150, 20, 600)},
    {"all but a rotary embedding", POOL(F16), .window = INTS(70, 3), .softcap = 4, .alibi = 2, .sinks = true,
     .tree = true, .seqlen_q = 5, .append = 5, .released = true, .seqlens_k = INTS(130, 5, 600), .layout = WITH_GAPS},
    {"rotary embedding", POOL(BF16), .rotary_dim = 16, .append = 1, .without_lse = true, LONG},
    {"a common prompt, alone and together", POOL(F16), .num_seqs = 5, .shared = 1024, .append = 1, .group = 3,
     .share_prefix = PAGEDCL_SHARE_ALL, .seqlens_k = INTS(1030, 1600, 1025, 1100, 1041)},
};

Test(attn_stream, masks) {
    check_cases(open_or_skip(), masks, COUNT(masks));
}

/* Entries of a table on the device that name no block hide its tokens, wherever in a tile they are. */
Test(attn_stream, holes) {
    const attn_case cases[] = {
        {"blocks of 8", POOL(F16), .block_size = 8, .append = 1, .device_table = true, LONG},
        {"blocks of 32", POOL(BF16), .block_size = 32, .head_dim = 128, .append = 1, .device_table = true, LONG},
        {"codes", CODES(PAGEDCL_INT8, F16), .append = 1, .device_table = true, LONG},
        {"latent attention", LATENT(BF16), .group = 16, .append = 1, .device_table = true, LONG},
    };
    pagedcl_device *device = open_or_skip();
    for (size_t i = 0; i < COUNT(cases); i++) {
        attn_problem p = attn_problem_create(&cases[i], i + 1);
        p.block_table[0] = -1;
        p.block_table[2] = p.num_blocks;
        p.block_table[p.block_table_stride] = INT32_MAX;
        p.block_table[2 * p.block_table_stride + 1] = INT32_MIN;
        attn_result result = attn_solve(device, PAGEDCL_TIER_NV_WGMMA, &p);
        attn_expect_reference(&p, &result, cases[i].name);
        attn_result_destroy(&result);
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/* An operator that was made for one memory reads the other that its pool has then: rows are copied. */
Test(attn_stream, exchanged_buffers) {
    const attn_case cases[] = {
        {"exchanged", POOL(F16), .append = 1, .head_dim = 64, .pool = POOL_INTERLEAVED, LONG},
        {"exchanged, head_dim 72", POOL(BF16), .block_size = 8, .append = 1, .head_dim = 72, .pool = POOL_HND, LONG},
        {"exchanged, codes", CODES(PAGEDCL_INT8, F16), .append = 1, .pool = POOL_HND, LONG},
        {"exchanged, latent attention", LATENT(F16), .group = 16, .append = 1, .pool = POOL_HND, LONG},
    };
    pagedcl_device *device = open_or_skip();
    for (size_t i = 0; i < COUNT(cases); i++) {
        attn_problem p = attn_problem_create(&cases[i], i + 1);
        attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_NV_WGMMA, &p);
        expect_ok(attn_rig_plan(&rig, NULL));
        for (int round = 0; round < 2; round++) {
            attn_rig_run(&rig, NULL, 0, NULL, NULL);
            attn_result result = attn_rig_read(&rig);
            attn_expect_reference(&p, &result, rig.name);
            attn_result_destroy(&result);
            adopted_pool first = rig.adopted;
            rig.adopted = adopted_pool_create(device, cases[i].pool, &rig.pool);
            expect_ok(pagedcl_cache_set_buffers(rig.cache, rig.adopted.buffers));
            adopted_pool_destroy(&first);
        }
        attn_rig_close(&rig);
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}
