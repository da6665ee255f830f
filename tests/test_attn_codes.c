/* SPDX-License-Identifier: Apache-2.0 */
/* Every code of the 8-bit dtypes, through attention in every tier. */
#include "support/attn_rig.h"
#include "support/elements.h"
#include "support/expect.h"
#include "support/fixture.h"

#include <pagedcl/pagedcl.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* One key whose rows of K, and of V, have all codes, half of them in each of two heads. Its value is the result; and rows
   of q that are 1 in one place have the key's element there as their LSE. */
static void expect_codes(pagedcl_device *device, pagedcl_tier tier, pagedcl_dtype dtype, pagedcl_dtype q_dtype) {
    enum { CODES = 256, HEADS = 2, DIM = CODES / HEADS, ROWS = DIM * HEADS };
    unsigned char k_codes[CODES], v_codes[CODES];
    float k[CODES], v[CODES], *q = fixture_alloc(sizeof(float) * ROWS * DIM);
    for (int i = 0; i < CODES; i++) {
        k_codes[i] = (unsigned char)i;
        v_codes[i] = (unsigned char)(CODES - 1 - i);
    }
    elements_to_floats(dtype, k_codes, CODES, k);
    elements_to_floats(dtype, v_codes, CODES, v);
    for (int i = 0; i < CODES; i++) {
        k_codes[i] = isfinite(k[i]) ? k_codes[i] : 0;
        v_codes[i] = isinf(v[i]) ? 0 : v_codes[i];
    }
    elements_to_floats(dtype, k_codes, CODES, k);
    elements_to_floats(dtype, v_codes, CODES, v);
    for (int i = 0; i < ROWS * DIM; i++)
        q[i] = i / DIM / HEADS == i % DIM ? 1 : 0;
    uint16_t *elements = fixture_alloc(sizeof(float) * ROWS * DIM);
    elements_from_floats(q_dtype, q, ROWS * DIM, elements);

    pagedcl_cache_desc pool = PAGEDCL_CACHE_DESC_INIT;
    pool.num_blocks = pool.block_size = 1;
    pool.num_kv_heads = HEADS;
    pool.head_dim = DIM;
    pool.dtype = dtype;
    pool.k_scale = pool.v_scale = 1;
    pagedcl_cache *cache;
    expect_ok(pagedcl_cache_create(device, &pool, &cache));
    expect_ok(pagedcl_cache_upload_blocks(cache, NULL, 0, NULL, 1, k_codes, v_codes, 0, NULL, NULL));
    pagedcl_attn_desc desc = PAGEDCL_ATTN_DESC_INIT;
    desc.cache = cache;
    desc.num_heads = HEADS;
    desc.q_dtype = q_dtype;
    desc.out_dtype = PAGEDCL_FLOAT32;
    desc.softmax_scale = 1;
    pagedcl_attn *attn;
    pagedcl_plan *plan;
    expect_ok(fixture_attn_create(device, &desc, tier, &attn));
    expect_ok(pagedcl_plan_create(attn, &plan));
    char name[64];
    snprintf(name, sizeof(name), "%s, q %s, %s", pagedcl_dtype_name(dtype), pagedcl_dtype_name(q_dtype),
             pagedcl_tier_name(desc.tier));
    for (int decode = 0; decode <= 1; decode++) {
        const int32_t length = 1, block = 0, cu_seqlens[2] = {0, DIM};
        pagedcl_varlen_batch varlen = PAGEDCL_VARLEN_BATCH_INIT;
        varlen.num_seqs = 1;
        varlen.cu_seqlens_q = cu_seqlens;
        varlen.cache_seqlens = &length;
        varlen.block_table = &block;
        varlen.block_table_stride = 1;
        pagedcl_decode_batch rows = PAGEDCL_DECODE_BATCH_INIT;
        rows.num_seqs = 1;
        rows.seqlen_q = DIM;
        rows.cache_seqlens = &length;
        rows.block_table = &block;
        rows.block_table_stride = 1;
        expect_ok(decode ? pagedcl_plan_decode(plan, NULL, &rows) : pagedcl_plan_varlen(plan, NULL, &varlen));
        guarded q_buffer = guarded_create(device, sizeof(float) * ROWS * DIM, elements);
        guarded out = guarded_create(device, sizeof(float) * ROWS * DIM, NULL);
        guarded lse = guarded_create(device, sizeof(float) * ROWS, NULL);
        pagedcl_attn_args args = PAGEDCL_ATTN_ARGS_INIT;
        args.q.mem = q_buffer.mem;
        args.out.mem = out.mem;
        args.lse = lse.mem;
        expect_ok(pagedcl_attn_run(attn, NULL, plan, &args, 0, NULL, NULL));
        float *got = guarded_read(device, &out, name), *got_lse = guarded_read(device, &lse, name);
        for (int row = 0; row < ROWS; row++) {
            const int first = row % HEADS * DIM; /* of the head's codes */
            double want = (double)k[first + row / HEADS];
            expect_close(name, "lse", &got_lse[row], &want, 1, tolerance_of(PAGEDCL_FLOAT32));
            for (int d = 0; d < DIM; d++) {
                want = (double)v[first + d];
                if (isnan(want))
                    cr_assert(isnan(got[row * DIM + d]), "%s: row %d, code %d", name, row, v_codes[first + d]);
                else
                    expect_close(name, "out", &got[row * DIM + d], &want, 1, tolerance_of(PAGEDCL_FLOAT32));
            }
        }
        free(got);
        free(got_lse);
        guarded_destroy(&q_buffer);
        guarded_destroy(&out);
        guarded_destroy(&lse);
    }
    free(q);
    free(elements);
    pagedcl_plan_destroy(plan);
    pagedcl_attn_destroy(attn);
    pagedcl_cache_destroy(cache);
}

Test(attn_codes, every_code_counts_for_its_value) {
    const pagedcl_dtype dtypes[] = {PAGEDCL_INT8, PAGEDCL_FLOAT8_E4M3, PAGEDCL_FLOAT8_E5M2};
    const pagedcl_dtype q_dtypes[] = {PAGEDCL_FLOAT16, PAGEDCL_BFLOAT16, PAGEDCL_FLOAT32};
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    for (int t = 0, n = fixture_tiers(device, tiers); t < n; t++)
        for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
            for (size_t j = 0; j < sizeof(q_dtypes) / sizeof(q_dtypes[0]); j++)
                expect_codes(device, tiers[t], dtypes[i], q_dtypes[j]);
    pagedcl_device_destroy(device);
}
