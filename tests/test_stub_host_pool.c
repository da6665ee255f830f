/* SPDX-License-Identifier: Apache-2.0 */
/* Every OpenCL call of host pools and of actions fails once, and commands fail after they were enqueued. */
#include "stub/exhaust.h"
#include "support/block_image.h"
#include "support/expect.h"
#include "support/fixture.h"

#include "device.h"

#include <pagedcl/actions.h>

#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, BLOCKS = 6, HOST_BLOCKS = 5, BLOCK_SIZE = 4, HEAD_DIM = 8 };

/* All types; the second copy reads what the first one wrote, and host blocks 0 and 1 are side by side. */
static const pagedcl_action actions[] = {
    {PAGEDCL_ACTION_SWAP_OUT, 0, 0, 0}, {PAGEDCL_ACTION_SWAP_OUT, 0, 1, 1}, {PAGEDCL_ACTION_SWAP_OUT, 0, 2, 4},
    {PAGEDCL_ACTION_WIPE, -1, -1, 1},   {PAGEDCL_ACTION_COPY, 0, 3, 2},     {PAGEDCL_ACTION_COPY, 0, 2, 4},
    {PAGEDCL_ACTION_SWAP_IN, 0, 0, 5},  {PAGEDCL_ACTION_SWAP_IN, 0, 3, 0},
};
enum { NUM_ACTIONS = sizeof actions / sizeof actions[0] };

typedef struct scene {
    pagedcl_device *device;
    pagedcl_cache *cache;
    pagedcl_host_pool_desc desc;
    pagedcl_host_pool *host;
    block_image before, after, host_before, host_after;
    cl_command_queue queue; /* out of order */
    cl_event event;
} scene;

static void scene_open(scene *s) {
    *s = (scene){.device = fixture_open(), .desc = PAGEDCL_HOST_POOL_DESC_INIT};
    s->device->quirks.builds_one_at_a_time = true; /* the n-th call is the same each time */
    pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT;
    desc.num_layers = LAYERS;
    desc.num_blocks = BLOCKS;
    desc.block_size = BLOCK_SIZE;
    desc.num_kv_heads = 1;
    desc.head_dim = HEAD_DIM;
    desc.dtype = PAGEDCL_FLOAT32;
    expect_ok(pagedcl_cache_create(s->device, &desc, &s->cache));
    block_image *images[] = {&s->before, &s->after, &s->host_before, &s->host_after};
    for (int i = 0; i < 4; i++) {
        *images[i] = block_image_create(s->cache, i < 2 ? BLOCKS : HOST_BLOCKS);
        block_image_randomize(images[i], s->cache, i < 2 ? 1 : 2);
    }
    s->desc.num_blocks = HOST_BLOCKS;
    s->desc.staging_bytes = 2 * s->before.block_bytes;
    for (int i = 0; i < NUM_ACTIONS; i++) {
        const pagedcl_action *a = &actions[i];
        const block_image *to = a->type == PAGEDCL_ACTION_SWAP_OUT ? &s->host_after : &s->after;
        const block_image *from = a->type == PAGEDCL_ACTION_SWAP_IN ? &s->host_after : &s->after;
        if (a->type == PAGEDCL_ACTION_WIPE)
            memset(block_image_at(to, a->dst), 0, to->block_bytes);
        else
            memcpy(block_image_at(to, a->dst), block_image_at(from, a->src), to->block_bytes);
    }
    cl_int code;
    s->queue = clCreateCommandQueue(pagedcl_device_context(s->device), pagedcl_device_id(s->device),
                                    CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
    expect_cl(code);
}

static void scene_close(scene *s) {
    block_image *images[] = {&s->before, &s->after, &s->host_before, &s->host_after};
    for (int i = 0; i < 4; i++)
        block_image_destroy(images[i]);
    expect_cl(clReleaseCommandQueue(s->queue));
    pagedcl_host_pool_destroy(s->host);
    pagedcl_cache_destroy(s->cache);
    pagedcl_device_destroy(s->device);
    stub_objects none = {0}, live = stub_live();
    cr_assert(memcmp(&live, &none, sizeof(none)) == 0, "left %s", stub_objects_text(&live));
}

static void *host_block(const scene *s, int32_t block) {
    void *memory = NULL;
    expect_ok(pagedcl_host_pool_block(s->host, block, &memory));
    return memory;
}

static void finish(scene *s) {
    expect_cl(clFinish(pagedcl_device_queue(s->device)));
    expect_cl(clFinish(s->queue));
}

static void expect_images(scene *s, const block_image *pool, const block_image *host, const char *name) {
    finish(s);
    block_image_expect(pool, s->cache, name);
    for (int32_t block = 0; block < HOST_BLOCKS; block++)
        expect_same_bytes(name, "host block", host_block(s, block), block_image_at(host, block), host->block_bytes);
}

static void fill(scene *s) {
    finish(s);
    block_image_upload(&s->before, s->cache);
    for (int32_t block = 0; block < HOST_BLOCKS; block++)
        memcpy(host_block(s, block), block_image_at(&s->host_before, block), s->before.block_bytes);
}

/* ---- create and destroy ---- */

static void prepare_none(void *at) {
    scene *s = at;
    s->host = NULL;
}

static pagedcl_status call_create(void *at) {
    scene *s = at;
    return pagedcl_host_pool_create(s->cache, &s->desc, &s->host);
}

static void verify_create(void *at) {
    scene *s = at;
    fill(s);
    expect_ok(pagedcl_actions_enqueue(s->cache, s->host, 0, NULL, actions, NUM_ACTIONS, 0, NULL, NULL));
    expect_images(s, &s->after, &s->host_after, "a new host pool");
    pagedcl_host_pool_destroy(s->host);
    s->host = NULL;
}

static void untouched_none(void *at) {
    scene *s = at;
    cr_assert_null(s->host);
}

Test(stub_host_pool, create_survives_every_failure) {
    const operation create = {
        .name = "pagedcl_host_pool_create",
        .prepare = prepare_none,
        .call = call_create,
        .verify = verify_create,
        .untouched = untouched_none,
    };
    scene s;
    scene_open(&s);
    exhaust(&create, &s);
    scene_close(&s);
}

static void prepare_destroy(void *at) {
    scene *s = at;
    expect_ok(pagedcl_host_pool_create(s->cache, &s->desc, &s->host));
    expect_ok(pagedcl_actions_enqueue(s->cache, s->host, 0, NULL, actions, NUM_ACTIONS, 0, NULL, NULL));
}

static pagedcl_status call_destroy(void *at) {
    scene *s = at;
    pagedcl_host_pool_destroy(s->host);
    s->host = NULL;
    return PAGEDCL_SUCCESS;
}

Test(stub_host_pool, destroy_survives_every_failure) {
    const operation destroy = {
        .name = "pagedcl_host_pool_destroy",
        .prepare = prepare_destroy,
        .call = call_destroy,
        .tolerated = {{STUB_clWaitForEvents, "destroy has no way to tell, and nothing to try instead"},
                      {STUB_clEnqueueUnmapMemObject, "likewise"},
                      {STUB_clFinish, "likewise"},
                      {STUB_clReleaseCommandQueue, "there is no second try at a release"},
                      {STUB_clReleaseEvent, "likewise"},
                      {STUB_clReleaseKernel, "likewise"},
                      {STUB_clReleaseMemObject, "likewise"},
                      {STUB_clReleaseProgram, "likewise"}},
    };
    scene s;
    scene_open(&s);
    exhaust(&destroy, &s);
    scene_close(&s);
}

/* ---- actions ---- */

static void prepare_actions(void *at) {
    scene *s = at;
    s->event = NULL;
    fill(s);
}

static pagedcl_status call_actions(void *at) {
    scene *s = at;
    return pagedcl_actions_enqueue(s->cache, s->host, 0, NULL, actions, NUM_ACTIONS, 0, NULL, &s->event);
}

static pagedcl_status call_actions_unordered(void *at) {
    scene *s = at;
    return pagedcl_actions_enqueue(s->cache, s->host, 0, s->queue, actions, NUM_ACTIONS, 0, NULL, &s->event);
}

static void verify_actions(void *at) {
    scene *s = at;
    expect_cl(clWaitForEvents(1, &s->event));
    expect_cl(clReleaseEvent(s->event));
    expect_images(s, &s->after, &s->host_after, "after the call");
}

static void untouched_actions(void *at) {
    scene *s = at;
    cr_assert_null(s->event, "an event of a failed call");
    expect_images(s, &s->before, &s->host_before, "after a refused call");
}

static void exhaust_actions(const char *name, pagedcl_status (*call)(void *)) {
    operation op = {
        .name = name,
        .prepare = prepare_actions,
        .call = call,
        .verify = verify_actions,
        .untouched = untouched_actions,
        .tolerated = {{STUB_clReleaseEvent, "there is no second try at a release"},
                      {STUB_clReleaseCommandQueue, "likewise"},
                      {STUB_clRetainCommandQueue, "commands whose queue is unknown are ordered by their event"}},
    };
    scene s;
    scene_open(&s);
    expect_ok(pagedcl_host_pool_create(s.cache, &s.desc, &s.host));
    exhaust(&op, &s);
    scene_close(&s);
}

Test(stub_host_pool, actions_survive_every_failure) {
    exhaust_actions("pagedcl_actions_enqueue", call_actions);
}

Test(stub_host_pool, actions_on_an_unordered_queue_survive_every_failure) {
    exhaust_actions("pagedcl_actions_enqueue on an unordered queue", call_actions_unordered);
}

/* ---- how many commands, and none that waits ---- */

Test(stub_host_pool, a_whole_step_takes_few_commands) {
    scene s;
    scene_open(&s);
    s.desc.staging_bytes = 0;
    expect_ok(pagedcl_host_pool_create(s.cache, &s.desc, &s.host));
    /* By type: a launch a layer, and for swaps a transfer for each run of host blocks. */
    const pagedcl_action list[] = {
        {PAGEDCL_ACTION_SWAP_OUT, 0, 5, 1}, {PAGEDCL_ACTION_SWAP_OUT, 0, 0, 2}, {PAGEDCL_ACTION_SWAP_OUT, 0, 4, 3},
        {PAGEDCL_ACTION_WIPE, -1, -1, 5},   {PAGEDCL_ACTION_WIPE, -1, -1, 0},   {PAGEDCL_ACTION_WIPE, -1, -1, 4},
        {PAGEDCL_ACTION_COPY, 0, 1, 5},     {PAGEDCL_ACTION_COPY, 0, 2, 0},     {PAGEDCL_ACTION_COPY, 0, 1, 4},
        {PAGEDCL_ACTION_SWAP_IN, 0, 3, 1},  {PAGEDCL_ACTION_SWAP_IN, 0, 0, 2},
    };
    cl_event event = NULL;
    for (int turn = 0; turn < 3; turn++) {
        size_t allocations = stub_allocations();
        stub_watch();
        expect_ok(
            pagedcl_actions_enqueue(s.cache, s.host, 0, NULL, list, sizeof list / sizeof list[0], 0, NULL, &event));
        stub_unwatch();
        expect_cl(clWaitForEvents(1, &event));
        expect_cl(clReleaseEvent(event));
        cr_assert_eq(stub_count_commands(), 1u + 4 * LAYERS + 1 + 2, "%zu commands", stub_count_commands());
        cr_assert_eq(stub_count(STUB_clFinish) + stub_count(STUB_clWaitForEvents), 0u);
        cr_assert_eq(stub_count(STUB_clFlush), 1u);
        cr_assert(turn < 2 || (stub_count(STUB_clCreateBuffer) == 0 && stub_allocations() == allocations),
                  "a call allocates when it is warm");
        size_t count = 0;
        const stub_record *records = stub_records(&count);
        for (size_t i = 0; i < count; i++)
            cr_assert(!records[i].blocking && records[i].size != 0, "%s", stub_call_name(records[i].call));
    }
    scene_close(&s);
}

/* ---- transfers that fail ---- */

/* B95: a sequence that is cancelled while it comes in, by a transfer that fails. Its blocks are not taken before that is
   known, and then they are, all of them; what goes through the host pool later is right. */
Test(stub_host_pool, b95_cancelled_on_a_way_that_fails, .timeout = 30) {
    scene s;
    scene_open(&s);
    expect_ok(pagedcl_host_pool_create(s.cache, &s.desc, &s.host));
    for (int i = 0; i < 2; i++) { /* the list whose upload fails finds a right one in its buffer */
        prepare_actions(&s);
        expect_ok(call_actions(&s));
        verify_actions(&s);
    }
    for (size_t n = 1; n <= 4; n++) { /* the upload of the list, the transfer, a launch a layer */
        pagedcl_blocks_desc desc = PAGEDCL_BLOCKS_DESC_INIT;
        desc.num_blocks = BLOCKS;
        desc.block_size = BLOCK_SIZE;
        desc.num_host_blocks = HOST_BLOCKS;
        pagedcl_blocks *blocks = NULL;
        pagedcl_block_swap swaps[HOST_BLOCKS];
        pagedcl_action list[HOST_BLOCKS];
        pagedcl_seq seq = 0, next = 0;
        int64_t num = 0;
        expect_ok(pagedcl_blocks_create(&desc, &blocks));
        expect_ok(pagedcl_blocks_seq_create(blocks, &seq));
        expect_ok(pagedcl_blocks_append(blocks, seq, BLOCK_SIZE, NULL, NULL));
        fill(&s);
        for (int in = 0; in < 2; in++) {
            cl_event event = NULL;
            pagedcl_action_type type = in ? PAGEDCL_ACTION_SWAP_IN : PAGEDCL_ACTION_SWAP_OUT;
            expect_ok((in ? pagedcl_blocks_swap_in : pagedcl_blocks_swap_out)(blocks, seq, (uint64_t)in + 1, swaps,
                                                                              HOST_BLOCKS, &num));
            pagedcl_actions_of_swaps(type, swaps, num, list);
            if (in)
                expect_ok(pagedcl_blocks_seq_free(blocks, seq));
            stub_fail_later(in ? n : SIZE_MAX, -1234);
            stub_watch();
            expect_ok(pagedcl_actions_enqueue(s.cache, s.host, 0, NULL, list, num, 0, NULL, &event));
            stub_unwatch();
            pagedcl_blocks_stats stats = PAGEDCL_BLOCKS_STATS_INIT;
            expect_ok(pagedcl_blocks_get_stats(blocks, &stats));
            cr_assert_eq(stats.waiting, 1);
            cl_int code = clWaitForEvents(1, &event);
            cr_assert_eq(code == CL_SUCCESS, !in || n < 4, "command %zu failed: %d", n, code);
            expect_cl(clReleaseEvent(event));
            expect_ok(pagedcl_blocks_reached(blocks, (uint64_t)in + 1));
        }
        expect_ok(pagedcl_blocks_seq_create(blocks, &next));
        expect_ok(pagedcl_blocks_append(blocks, next, BLOCKS * BLOCK_SIZE, NULL, NULL));
        pagedcl_blocks_destroy(blocks);
        prepare_actions(&s);
        expect_ok(call_actions(&s));
        verify_actions(&s);
    }
    scene_close(&s);
}
