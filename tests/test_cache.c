/* SPDX-License-Identifier: Apache-2.0 */
/* A pool as an object: its description, its life, and the events and queues of its commands. */
#include "support/cache_rig.h"
#include "support/expect.h"
#include "support/fixture.h"

#include <stdlib.h>
#include <string.h>

/* B125. Every zero-sized call is fine, gives an event when asked, and changes nothing. */
Test(cache, nothing_to_do_is_no_error) {
    cache_rig r = cache_rig_open(&small_pool);
    cache_rows x = cache_rows_create(&r, PAGEDCL_FLOAT16, 1, CONTIGUOUS);
    const pagedcl_tensor *k = &x.k_tensor.view, *v = &x.v_tensor.view;
    int64_t skipped = -1;
    int32_t table[2] = {-1, -1}, seqlens[2] = {0, 0};
    cl_event events[7];
    expect_ok(pagedcl_cache_write(r.cache, NULL, 0, k, v, PAGEDCL_FLOAT16, NULL, 0, 0, NULL, &events[0]));
    expect_ok(pagedcl_cache_write(r.cache, NULL, 0, k, v, PAGEDCL_FLOAT16, &skipped, 1, 0, NULL, &events[1]));
    expect_ok(pagedcl_cache_gather(r.cache, NULL, 0, NULL, 0, NULL, 0, k, v, 0, NULL, &events[2]));
    expect_ok(pagedcl_cache_gather(r.cache, NULL, 0, table, 1, seqlens, 2, k, v, 0, NULL, &events[3]));
    expect_ok(pagedcl_cache_copy_blocks(r.cache, NULL, NULL, 0, 0, NULL, &events[4]));
    expect_ok(pagedcl_cache_upload_blocks(r.cache, NULL, 0, NULL, 0, NULL, NULL, 0, NULL, &events[5]));
    expect_ok(pagedcl_cache_download_blocks(r.cache, NULL, 0, NULL, 0, NULL, NULL, 0, NULL, &events[6]));
    for (int i = 0; i < 7; i++) {
        expect_cl(clWaitForEvents(1, &events[i]));
        expect_cl(clReleaseEvent(events[i]));
    }
    expect_ok(pagedcl_cache_write(r.cache, NULL, 0, k, v, PAGEDCL_FLOAT16, NULL, 0, 0, NULL, NULL));
    expect_ok(pagedcl_cache_copy_blocks(r.cache, NULL, NULL, 0, 0, NULL, NULL));
    pool_model_expect(&r.model, r.cache, r.name);
    cache_rows_destroy(&x);
    cache_rig_close(&r);
}

/* ---- events and queues ---- */

/* A write that waits for the caller's event, a copy and a gather behind it, on a queue that promises no order. */
Test(cache, events_order_commands_on_an_unordered_queue, .timeout = 20) {
    cache_rig r = cache_rig_open(&small_pool);
    cl_int code;
    cl_command_queue queue = clCreateCommandQueue(pagedcl_device_context(r.device), pagedcl_device_id(r.device),
                                                  CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
    expect_cl(code);
    cl_event start = clCreateUserEvent(pagedcl_device_context(r.device), &code), written, copied, gathered;
    expect_cl(code);
    cache_rows x = cache_rows_create(&r, PAGEDCL_FLOAT16, 1, CONTIGUOUS);
    int64_t slot = 19; /* block 1 */
    int32_t pair[2] = {1, 3}, table[1] = {3}, seqlens[1] = {4};
    guarded k_buffer = guarded_create(r.device, 4 * r.model.row_bytes, NULL);
    guarded v_buffer = guarded_create(r.device, 4 * r.model.row_bytes, NULL);
    pagedcl_tensor k = {.mem = k_buffer.mem}, v = {.mem = v_buffer.mem};
    expect_ok(pagedcl_cache_write(r.cache, queue, 1, &x.k_tensor.view, &x.v_tensor.view, PAGEDCL_FLOAT16, &slot, 1, 1,
                                  &start, &written));
    expect_ok(pagedcl_cache_copy_blocks(r.cache, queue, pair, 1, 1, &written, &copied));
    expect_ok(pagedcl_cache_gather(r.cache, queue, 1, table, 1, seqlens, 1, &k, &v, 1, &copied, &gathered));
    expect_cl(clSetUserEventStatus(start, CL_COMPLETE));
    expect_cl(clWaitForEvents(1, &gathered));
    unsigned char *got = guarded_read(r.device, &k_buffer, r.name);
    pool_model_write(&r.model, 1, slot, x.k, x.v);
    expect_same_bytes(r.name, "gathered K", got, pool_model_k(&r.model, 1, 16), 4 * r.model.row_bytes);
    for (int32_t layer = 0; layer < 2; layer++) {
        memcpy(pool_model_k(&r.model, layer, 48), pool_model_k(&r.model, layer, 16), 16 * r.model.row_bytes);
        memcpy(pool_model_v(&r.model, layer, 48), pool_model_v(&r.model, layer, 16), 16 * r.model.row_bytes);
    }
    pool_model_expect(&r.model, r.cache, r.name);
    cl_event events[] = {start, written, copied, gathered};
    for (int i = 0; i < 4; i++)
        expect_cl(clReleaseEvent(events[i]));
    expect_cl(clReleaseCommandQueue(queue));
    free(got);
    guarded_destroy(&k_buffer);
    guarded_destroy(&v_buffer);
    cache_rows_destroy(&x);
    cache_rig_close(&r);
}

/* B116: events are OpenCL's own, so that of a list only its form can be checked: no list, an empty one, a NULL in it. */
Test(cache, bad_wait_lists_are_refused) {
    cache_rig r = cache_rig_open(&small_pool);
    cache_rows x = cache_rows_create(&r, PAGEDCL_FLOAT16, 1, CONTIGUOUS);
    int64_t slot = 3;
    cl_int code;
    cl_event done = clCreateUserEvent(pagedcl_device_context(r.device), &code), event = NULL;
    expect_cl(code);
    expect_cl(clSetUserEventStatus(done, CL_COMPLETE));
    cl_event events[3] = {done, NULL, done};
#define WRITE(count, list)                                                                                            \
    pagedcl_cache_write(r.cache, NULL, 0, &x.k_tensor.view, &x.v_tensor.view, PAGEDCL_FLOAT16, &slot, 1, count, list, \
                        &event)
    expect_refused(WRITE(1, NULL), PAGEDCL_INVALID_ARGUMENT, "events");
    expect_refused(WRITE(0, events), PAGEDCL_INVALID_ARGUMENT, "events");
    expect_refused(WRITE(3, events), PAGEDCL_INVALID_ARGUMENT, "events[1]");
#undef WRITE
    cr_assert_null(event);
    pool_model_expect(&r.model, r.cache, r.name);
    expect_cl(clReleaseEvent(done));
    cache_rows_destroy(&x);
    cache_rig_close(&r);
}

Test(cache, keeps_its_device_alive) {
    cache_rig r = cache_rig_open(&small_pool);
    pagedcl_device *second = fixture_open();
    pagedcl_device_destroy(r.device);
    pool_model_expect(&r.model, r.cache, r.name);
    r.device = second;
    cache_rig_close(&r);
    pagedcl_cache_destroy(NULL);
}

/* ---- descriptions ---- */

Test(cache, description_comes_back_with_its_defaults) {
    pagedcl_device *device = fixture_open();
    pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT, got = PAGEDCL_CACHE_DESC_INIT;
    desc.num_blocks = 3;
    desc.block_size = 5;
    desc.num_kv_heads = 2;
    desc.head_dim = 16;
    pagedcl_cache *cache;
    expect_ok(pagedcl_cache_create(device, &desc, &cache));
    expect_ok(pagedcl_cache_get_desc(cache, &got));
    cr_assert(got.num_layers == 1 && got.num_blocks == 3 && got.block_size == 5 && got.num_kv_heads == 2 &&
              got.head_dim == 16 && got.dtype == PAGEDCL_FLOAT16 && got.max_segment_bytes > 0);
    pagedcl_cache_destroy(cache);
    pagedcl_device_destroy(device);
}

/* The design's worked numbers: 7 blocks a layer for 100 tokens, 196 in all, 128 KiB a block, 24.5 MiB. */
Test(cache, bytes_of_the_worked_example) {
    pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT;
    desc.num_layers = 28;
    desc.num_blocks = (100 + 15) / 16;
    desc.block_size = 16;
    desc.num_kv_heads = 8;
    desc.head_dim = 128;
    desc.dtype = PAGEDCL_FLOAT32;
    uint64_t bytes = 0;
    expect_ok(pagedcl_cache_bytes(&desc, &bytes));
    cr_assert_eq(bytes, (uint64_t)196 * 128 * 1024);
    desc.dtype = PAGEDCL_DTYPE_DEFAULT;
    expect_ok(pagedcl_cache_bytes(&desc, &bytes));
    cr_assert_eq(bytes, (uint64_t)196 * 64 * 1024);
}

/* B29, B144, B145: no description may wrap round to a small pool. */
Test(cache, impossible_descriptions_are_refused) {
    const struct {
        const char *name;
        pagedcl_cache_desc desc;
        pagedcl_status status;
    } cases[] = {
        {"no blocks", {.num_blocks = 0, .block_size = 16, .num_kv_heads = 1, .head_dim = 64}, PAGEDCL_INVALID_ARGUMENT},
        {"blocks", {.num_blocks = -1, .block_size = 16, .num_kv_heads = 1, .head_dim = 64}, PAGEDCL_INVALID_ARGUMENT},
        {"layers",
         {.num_layers = -1, .num_blocks = 1, .block_size = 16, .num_kv_heads = 1, .head_dim = 64},
         PAGEDCL_INVALID_ARGUMENT},
        {"block size", {.num_blocks = 4, .block_size = 0, .num_kv_heads = 1, .head_dim = 64}, PAGEDCL_INVALID_ARGUMENT},
        {"heads", {.num_blocks = 4, .block_size = 16, .num_kv_heads = 0, .head_dim = 64}, PAGEDCL_INVALID_ARGUMENT},
        {"head_dim 0", {.num_blocks = 4, .block_size = 16, .num_kv_heads = 1, .head_dim = 0}, PAGEDCL_UNSUPPORTED},
        {"head_dim -8", {.num_blocks = 4, .block_size = 16, .num_kv_heads = 1, .head_dim = -8}, PAGEDCL_UNSUPPORTED},
        {"head_dim 577", {.num_blocks = 4, .block_size = 16, .num_kv_heads = 1, .head_dim = 577}, PAGEDCL_UNSUPPORTED},
        {"dtype",
         {.num_blocks = 4, .block_size = 16, .num_kv_heads = 1, .head_dim = 64, .dtype = (pagedcl_dtype)9},
         PAGEDCL_UNSUPPORTED},
        {"more than 2^64 bytes",
         {.num_layers = INT32_MAX, .num_blocks = 1 << 30, .block_size = 64, .num_kv_heads = 64, .head_dim = 256},
         PAGEDCL_SIZE_OVERFLOW},
        {"2^64 bytes exactly",
         {.num_layers = 1 << 30, .num_blocks = 1 << 24, .block_size = 1, .num_kv_heads = 1, .head_dim = 256},
         PAGEDCL_SIZE_OVERFLOW},
        {"bytes that wrap when they are padded for the scales",
         {.num_blocks = 1,
          .block_size = INT32_MAX,
          .num_kv_heads = INT32_MAX,
          .head_dim = 2,
          .dtype = PAGEDCL_INT8,
          .scale_per_row = 1},
         PAGEDCL_SIZE_OVERFLOW},
        {"2^62 bytes",
         {.num_layers = 1 << 28, .num_blocks = 1 << 24, .block_size = 1, .num_kv_heads = 1, .head_dim = 256},
         PAGEDCL_POOL_TOO_LARGE},
        {"more than eight segments",
         {.num_blocks = 9, .block_size = 16, .num_kv_heads = 1, .head_dim = 64, .max_segment_bytes = 2048},
         PAGEDCL_POOL_TOO_LARGE},
        {"a segment smaller than a block",
         {.num_blocks = 2, .block_size = 16, .num_kv_heads = 1, .head_dim = 64, .max_segment_bytes = 2047},
         PAGEDCL_POOL_TOO_LARGE},
    };
    pagedcl_device *device = fixture_open();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        pagedcl_cache_desc desc = cases[i].desc;
        desc.struct_size = sizeof(desc);
        pagedcl_cache *cache = NULL;
        pagedcl_status status = pagedcl_cache_create(device, &desc, &cache);
        cr_assert_eq(status, cases[i].status, "%s: got %s: %s", cases[i].name, pagedcl_status_name(status),
                     pagedcl_last_error());
        cr_assert_null(cache, "%s", cases[i].name);
        uint64_t bytes = 4711;
        if (cases[i].status != PAGEDCL_POOL_TOO_LARGE) {
            cr_assert_eq(pagedcl_cache_bytes(&desc, &bytes), cases[i].status, "%s", cases[i].name);
            cr_assert_eq(bytes, 4711u, "%s", cases[i].name);
        }
    }
    pagedcl_device_destroy(device);
}
