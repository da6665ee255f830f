/* SPDX-License-Identifier: Apache-2.0 */
/* Batches that an operator cannot take: each field that is wrong, or belongs to another operator, is refused by name. */
#include "plan.h"
#include "support/expect.h"
#include "support/fixture.h"

#include <pagedcl/pagedcl.h>

#include <string.h>

/* One operator of each kind that a batch must fit, with a plan. */
typedef enum kind { PACKED, PAGED, ONLY_VARLEN, ONLY_DECODE, ON_DEVICE, WINDOWED, KINDS } kind;

typedef struct operators {
    pagedcl_device *device;
    pagedcl_cache *cache;
    pagedcl_attn *attn[KINDS];
    pagedcl_plan *plans[KINDS];
    guarded table; /* on the device */
} operators;

static operators operators_open(void) {
    operators o = {.device = fixture_open()};
    const int32_t entries[4] = {0, 1, 2, 3};
    o.table = guarded_create(o.device, sizeof entries, entries);
    pagedcl_cache_desc pool = PAGEDCL_CACHE_DESC_INIT;
    pool.num_blocks = 4;
    pool.block_size = 16;
    pool.num_kv_heads = 1;
    pool.head_dim = 8;
    expect_ok(pagedcl_cache_create(o.device, &pool, &o.cache));
    for (int k = 0; k < KINDS; k++) {
        pagedcl_attn_desc desc = PAGEDCL_ATTN_DESC_INIT;
        desc.num_heads = 2;
        desc.cache = k == PACKED ? NULL : o.cache;
        desc.num_kv_heads = k == PACKED ? 1 : 0;
        desc.head_dim = k == PACKED ? 8 : 0;
        desc.paths = k == ONLY_VARLEN ? PAGEDCL_PATH_VARLEN : k == ONLY_DECODE ? PAGEDCL_PATH_DECODE : 0;
        desc.device_tables = k == ON_DEVICE;
        desc.has_window = k == WINDOWED;
        desc.window_left = k == WINDOWED ? 16 : 0;
        expect_ok(pagedcl_attn_create(o.device, &desc, &o.attn[k]));
        expect_ok(pagedcl_plan_create(o.attn[k], &o.plans[k]));
    }
    return o;
}

static void operators_close(operators *o) {
    for (int k = 0; k < KINDS; k++) {
        pagedcl_plan_destroy(o->plans[k]);
        pagedcl_attn_destroy(o->attn[k]);
    }
    pagedcl_cache_destroy(o->cache);
    guarded_destroy(&o->table);
    pagedcl_device_destroy(o->device);
}

static const int32_t cu_seqlens[] = {0, 2, 5}, cache_seqlens[] = {17, 5}, table[] = {0, 1, 2, 3};

static pagedcl_varlen_batch good_varlen(const operators *o, kind k) {
    pagedcl_varlen_batch batch = PAGEDCL_VARLEN_BATCH_INIT;
    batch.num_seqs = 2;
    batch.cu_seqlens_q = cu_seqlens;
    if (k == PACKED) {
        batch.cu_seqlens_k = cu_seqlens;
        return batch;
    }
    batch.cache_seqlens = cache_seqlens;
    batch.block_table_stride = 2;
    batch.block_table = k == ON_DEVICE ? NULL : table;
    batch.block_table_mem = k == ON_DEVICE ? o->table.mem : NULL;
    return batch;
}

static pagedcl_decode_batch good_decode(const operators *o, kind k) {
    pagedcl_decode_batch batch = PAGEDCL_DECODE_BATCH_INIT;
    batch.num_seqs = 2;
    batch.seqlen_q = 1;
    batch.cache_seqlens = cache_seqlens;
    batch.block_table_stride = 2;
    batch.block_table = k == ON_DEVICE ? NULL : table;
    batch.block_table_mem = k == ON_DEVICE ? o->table.mem : NULL;
    return batch;
}

/* The good batch, but for the change, is refused, and what the plan held stays. */
#define REFUSED(path, k, change, status, words)                                                            \
    do {                                                                                                   \
        pagedcl_##path##_batch batch = good_##path(&o, k);                                                 \
        change;                                                                                            \
        pcl_plan_batch before = o.plans[k]->batch;                                                         \
        expect_refused(pagedcl_plan_##path(o.plans[k], NULL, &batch), PAGEDCL_##status, words);            \
        cr_assert_eq(memcmp(&before, &o.plans[k]->batch, sizeof before), 0, "%s changed a plan", #change); \
    } while (0)

Test(plan_check, varlen_batches) {
    operators o = operators_open();
    const kind takes[] = {PACKED, PAGED, ONLY_VARLEN, ON_DEVICE};
    for (int i = 0; i < 4; i++) {
        pagedcl_varlen_batch good = good_varlen(&o, takes[i]);
        expect_ok(pagedcl_plan_varlen(o.plans[takes[i]], NULL, &good));
        REFUSED(varlen, takes[i], batch.struct_size = 8, INVALID_ARGUMENT, "batch->struct_size");
        REFUSED(varlen, takes[i], batch.num_seqs = -1, INVALID_ARGUMENT, "num_seqs is -1");
        REFUSED(varlen, takes[i], batch.append = 2, INVALID_ARGUMENT, "append is 2");
        REFUSED(varlen, takes[i], batch.append = -1, INVALID_ARGUMENT, "append is -1");
        REFUSED(varlen, takes[i], batch.cu_seqlens_q = NULL, INVALID_ARGUMENT, "cu_seqlens_q and");
        REFUSED(varlen, takes[i], batch.tree_mask = (const uint32_t[5]){0}, INVALID_ARGUMENT, "tree_mask is given");
    }
    REFUSED(varlen, ONLY_DECODE, (void)batch, INVALID_ARGUMENT, "made for decode alone");
    /* What belongs to a pool. */
    const char *const pool = "need an operator with a cache";
    REFUSED(varlen, PACKED, batch.block_table = table, INVALID_ARGUMENT, pool);
    REFUSED(varlen, PACKED, batch.block_table_mem = o.table.mem, INVALID_ARGUMENT, pool);
    REFUSED(varlen, PACKED, batch.block_table_offset = 1, INVALID_ARGUMENT, pool);
    REFUSED(varlen, PACKED, batch.block_table_stride = 1, INVALID_ARGUMENT, pool);
    REFUSED(varlen, PACKED, batch.cache_seqlens = cache_seqlens, INVALID_ARGUMENT, pool);
    REFUSED(varlen, PACKED, batch.append = 1, INVALID_ARGUMENT, pool);
    REFUSED(varlen, PACKED, batch.cu_seqlens_k = NULL, INVALID_ARGUMENT, "cu_seqlens_k must not be NULL");
    REFUSED(varlen, PACKED, batch.cu_seqlens_k = ((const int32_t[]){1, 2, 5}), INVALID_LENGTH,
            "cu_seqlens_k begins with 1");
    REFUSED(varlen, PACKED, batch.cu_seqlens_k = ((const int32_t[]){0, 6, 5}), INVALID_LENGTH,
            "cu_seqlens_k falls from 6 to 5 at sequence 1");
    REFUSED(varlen, PAGED, batch.cu_seqlens_k = cu_seqlens, INVALID_ARGUMENT, "cu_seqlens_k is for packed keys");
    REFUSED(varlen, PAGED, batch.cache_seqlens = NULL, INVALID_ARGUMENT, "cache_seqlens must not be NULL");
    REFUSED(varlen, PAGED, (batch.append = 1, batch.cache_seqlens = (const int32_t[]){17, 2}), INVALID_LENGTH,
            "sequence 1 appends 3 tokens, but its cache_seqlens, which counts them, is 2");
    operators_close(&o);
}

Test(plan_check, decode_batches) {
    operators o = operators_open();
    const kind takes[] = {PAGED, ONLY_DECODE, ON_DEVICE};
    for (int i = 0; i < 3; i++) {
        pagedcl_decode_batch good = good_decode(&o, takes[i]);
        expect_ok(pagedcl_plan_decode(o.plans[takes[i]], NULL, &good));
        REFUSED(decode, takes[i], batch.struct_size = 8, INVALID_ARGUMENT, "batch->struct_size");
        REFUSED(decode, takes[i], batch.num_seqs = -1, INVALID_ARGUMENT, "num_seqs -1");
        REFUSED(decode, takes[i], batch.seqlen_q = 0, INVALID_ARGUMENT, "seqlen_q 0");
        REFUSED(decode, takes[i], batch.seqlen_new = -1, INVALID_ARGUMENT, "seqlen_new -1");
        REFUSED(decode, takes[i], batch.num_splits = -2, INVALID_ARGUMENT, "num_splits -2");
        REFUSED(decode, takes[i], batch.share_prefix = (pagedcl_sharing)-1, INVALID_ARGUMENT, "share_prefix -1");
        REFUSED(decode, takes[i], batch.share_prefix = (pagedcl_sharing)9, INVALID_ARGUMENT, "share_prefix 9");
        REFUSED(decode, takes[i], (batch.share_prefix = PAGEDCL_SHARE_ALL, batch.num_splits = 2), INVALID_ARGUMENT,
                "num_splits is 2");
        REFUSED(decode, takes[i], batch.cache_seqlens = NULL, INVALID_ARGUMENT, "cache_seqlens must not be NULL");
        REFUSED(decode, takes[i], batch.seqlen_q = 1 << 30, INVALID_LENGTH, "2 sequences of 1073741824 tokens");
        REFUSED(decode, takes[i], batch.seqlen_new = 1 << 30, INVALID_LENGTH, "2 sequences of 1073741824 tokens");
        REFUSED(decode, takes[i], batch.cache_seqlens = ((const int32_t[]){17, -1}), INVALID_LENGTH, "sequence 1 has");
        REFUSED(decode, takes[i], (batch.cache_seqlens = (const int32_t[]){17, INT32_MAX}, batch.seqlen_new = 1),
                INVALID_LENGTH, "sequence 1 has cache_seqlens 2147483647 and appends 1");
        REFUSED(decode, takes[i], batch.tree_mask = (const uint32_t[2]){0}, INVALID_ARGUMENT, "tree_mask is given");
    }
    REFUSED(decode, ON_DEVICE, batch.share_prefix = PAGEDCL_SHARE_ALL, INVALID_ARGUMENT, "device_tables is 1");
    REFUSED(decode, ONLY_VARLEN, (void)batch, INVALID_ARGUMENT, "made for varlen alone");
    REFUSED(decode, PACKED, (void)batch, INVALID_ARGUMENT, "needs an operator with a cache");
    operators_close(&o);
}

/* Both paths read one kind of table. */
#define BOTH(k, change, status, words)             \
    do {                                           \
        REFUSED(varlen, k, change, status, words); \
        REFUSED(decode, k, change, status, words); \
    } while (0)

Test(plan_check, tables) {
    operators o = operators_open();
    BOTH(PAGED, batch.block_table_mem = o.table.mem, INVALID_ARGUMENT, "block_table_mem, or its offset, is given");
    BOTH(PAGED, batch.block_table_offset = 1, INVALID_ARGUMENT, "block_table_mem, or its offset, is given");
    BOTH(PAGED, batch.block_table = NULL, INVALID_ARGUMENT, "block_table must not be NULL");
    BOTH(PAGED, batch.block_table_stride = -1, INVALID_ARGUMENT, "block_table_stride is -1");
    BOTH(PAGED, batch.block_table_stride = 1, CAPACITY, "sequence 0: 17 tokens need 2 blocks");
    BOTH(ON_DEVICE, batch.block_table = table, INVALID_ARGUMENT, "block_table is given");
    BOTH(ON_DEVICE, batch.block_table_mem = NULL, INVALID_ARGUMENT, "block_table_mem has no buffer");
    BOTH(ON_DEVICE, batch.block_table_offset = 1, BUFFER_TOO_SMALL, "block_table_mem needs");
    BOTH(ON_DEVICE, batch.block_table_offset = -1, INVALID_ARGUMENT, "block_table_mem has offset -1");
    BOTH(ON_DEVICE, batch.block_table_stride = -1, INVALID_ARGUMENT, "block_table_stride is -1");
    BOTH(ON_DEVICE, batch.block_table_stride = 3, BUFFER_TOO_SMALL, "block_table_mem needs");
    BOTH(ON_DEVICE, batch.block_table_stride = INT64_MAX, SIZE_OVERFLOW, "block_table_stride");
    BOTH(ON_DEVICE, batch.block_table_stride = 1, CAPACITY, "sequence 0: 17 tokens need 2 blocks");
    const int32_t bad[] = {4, -1, -2, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const int32_t entries[] = {0, bad[i], 2, 3};
        BOTH(PAGED, batch.block_table = entries, INVALID_BLOCK, "sequence 0: entry 1 of its block table is");
    }
    operators_close(&o);
}

/* Left of what the last token but 16 sees there may be no block, and nothing but -1 says so. */
Test(plan_check, tables_under_a_window) {
    operators o = operators_open();
    pagedcl_decode_batch good = good_decode(&o, WINDOWED);
    const int32_t released[] = {-1, 1, 2}, wrong[] = {-2, 1, 2}, beyond[] = {4, 1, 2};
    const int32_t sees_not = 33, sees = 32;
    good.num_seqs = 1;
    good.block_table_stride = 3;
    good.block_table = released;
    good.cache_seqlens = &sees_not; /* position 32 sees 16 and those behind it */
    expect_ok(pagedcl_plan_decode(o.plans[WINDOWED], NULL, &good));
#define WINDOW(change, words) \
    REFUSED(decode, WINDOWED, (batch = good, change), INVALID_BLOCK, "entry 0 of its block table is " words)
    WINDOW(batch.cache_seqlens = &sees, "-1 (not allocated)");
    WINDOW(batch.block_table = wrong, "-2");
    WINDOW(batch.block_table = beyond, "4");
#undef WINDOW
    operators_close(&o);
}
