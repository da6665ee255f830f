/* SPDX-License-Identifier: Apache-2.0 */
/* Events that the library gives away, commands that fail after they were enqueued, and calls with nothing to do. */
#define _POSIX_C_SOURCE 200809L

#include "stub/stub.h"
#include "support/attn_rig.h"
#include "support/expect.h"

#include "device.h"

#include <stdlib.h>
#include <string.h>

static const attn_case appending = {.name = "decode, appending",
                                    .path = DECODE,
                                    .head_dim = 8,
                                    .block_size = 4,
                                    .causal = 1,
                                    .both_paths = true,
                                    .append = 1};

typedef struct scene {
    pagedcl_device *device;
    attn_problem problem;
    attn_rig rig;
    cl_command_queue queues[2];
} scene;

static cl_command_queue make_queue(const pagedcl_device *device, cl_command_queue_properties properties) {
    cl_int code;
    cl_command_queue queue =
        clCreateCommandQueue(pagedcl_device_context(device), pagedcl_device_id(device), properties, &code);
    expect_cl(code);
    return queue;
}

static void scene_open(scene *s) {
    *s = (scene){.device = fixture_open(), .problem = attn_problem_create(&appending, 1)};
    s->rig = attn_rig_open(s->device, PAGEDCL_TIER_PORTABLE, &s->problem);
    for (int i = 0; i < 2; i++)
        s->queues[i] = make_queue(s->device, 0);
}

static void scene_close(scene *s) {
    for (int i = 0; i < 2; i++)
        if (s->queues[i] != NULL)
            expect_cl(clReleaseCommandQueue(s->queues[i]));
    attn_rig_close(&s->rig);
    attn_problem_destroy(&s->problem);
    pagedcl_device_destroy(s->device);
    stub_objects none = {0}, live = stub_live();
    cr_assert(memcmp(&live, &none, sizeof(none)) == 0, "left %s", stub_objects_text(&live));
}

static void expect_result(scene *s) {
    attn_result result = attn_rig_read(&s->rig);
    attn_expect_reference(&s->problem, &result, s->rig.name);
    attn_result_destroy(&result);
}

/* ---- calls with an event ---- */

/* One call of each function that gives an event; `nothing`: with nothing to do. */
enum { WRITE, GATHER, COPY, WIPE, UPLOAD, DOWNLOAD, RUN, NUM_CALLS };
static const char *const call_names[NUM_CALLS] = {"write", "gather", "copy", "wipe", "upload", "download", "run"};

static pagedcl_status call(scene *s, int which, bool nothing, cl_command_queue queue, cl_event *event) {
    static unsigned char host[2][1 << 16];
    const int64_t slots[] = {0, 1, 2};
    const int32_t pair[] = {0, 1}, blocks[] = {0}, table[] = {0}, seqlens[] = {nothing ? 0 : 3};
    const pagedcl_tensor rows = s->rig.k_new.view, out = {.mem = s->rig.out.buffer.mem};
    pagedcl_cache *cache = s->rig.cache;
    pagedcl_attn_args args = attn_rig_args(&s->rig);
    switch (which) {
    case WRITE:
        return pagedcl_cache_write(cache, queue, 0, &rows, &rows, PAGEDCL_FLOAT32, slots, nothing ? 0 : 3, 0, NULL,
                                   event);
    case GATHER:
        return pagedcl_cache_gather(cache, queue, 0, table, 1, seqlens, 1, &out, &out, 0, NULL, event);
    case COPY:
        return pagedcl_cache_copy_blocks(cache, queue, pair, nothing ? 0 : 1, 0, NULL, event);
    case WIPE:
        return pagedcl_cache_wipe_blocks(cache, queue, blocks, nothing ? 0 : 1, 0, NULL, event);
    case UPLOAD:
        return pagedcl_cache_upload_blocks(cache, queue, 0, blocks, nothing ? 0 : 1, host[0], host[1], 0, NULL, event);
    case DOWNLOAD:
        return pagedcl_cache_download_blocks(cache, queue, 0, blocks, nothing ? 0 : 1, host[0], host[1], 0, NULL,
                                             event);
    default:
        return pagedcl_attn_run(s->rig.attn, queue, s->rig.plan, &args, 0, NULL, event);
    }
}

/* B114: on other implementations than this one a wait for an event whose queue was never flushed does not end. */
Test(stub_events, queue_is_flushed_before_its_event_is_given_away) {
    scene s;
    scene_open(&s);
    expect_ok(attn_rig_plan(&s.rig, NULL));
    for (int i = 0; i < 2 * NUM_CALLS; i++) {
        cl_event event = NULL;
        stub_watch();
        pagedcl_status status = call(&s, i / 2, i % 2 == 1, s.queues[0], &event);
        stub_unwatch();
        cr_assert_eq(status, PAGEDCL_SUCCESS, "%s: %s", call_names[i / 2], pagedcl_last_error());
        size_t count = 0, last_command = 0, flush = 0;
        const stub_record *records = stub_records(&count);
        for (size_t r = 0; r < count; r++) {
            stub_call c = records[r].call;
            if (c == STUB_clFlush)
                flush = r + 1;
            if (c == STUB_clEnqueueNDRangeKernel || c == STUB_clEnqueueReadBuffer || c == STUB_clEnqueueWriteBuffer ||
                c == STUB_clEnqueueBarrierWithWaitList)
                last_command = r + 1;
            cr_assert(!records[r].blocking && c != STUB_clFinish, "%s blocks", call_names[i / 2]);
        }
        cr_assert(last_command > 0 && flush > last_command, "%s", call_names[i / 2]);
        expect_cl(clWaitForEvents(1, &event));
        expect_cl(clReleaseEvent(event));
    }
    scene_close(&s);
}

/* Also B114: the queue of the first command is released while the second still waits for it. */
Test(stub_events, event_outlives_its_queue, .timeout = 10) {
    scene s;
    scene_open(&s);
    pagedcl_tensor k = s.rig.k_new.view, v = s.rig.v_new.view;
    cl_event written, attended;
    /* What the run appends anyway, stored by hand on another queue first. */
    int64_t slots[3];
    for (int b = 0; b < 3; b++) {
        int32_t at = s.problem.cache_seqlens[b], stride = s.problem.block_table_stride;
        slots[b] = (int64_t)s.problem.block_table[b * stride + at / 4] * 4 + at % 4;
    }
    expect_ok(pagedcl_cache_write(s.rig.cache, s.queues[0], 0, &k, &v, PAGEDCL_FLOAT32, slots, 3, 0, NULL, &written));
    expect_cl(clReleaseCommandQueue(s.queues[0]));
    s.queues[0] = NULL;
    expect_ok(attn_rig_plan(&s.rig, s.queues[1]));
    attn_rig_run(&s.rig, s.queues[1], 1, &written, &attended);
    expect_cl(clReleaseEvent(written));
    expect_cl(clWaitForEvents(1, &attended));
    expect_cl(clReleaseEvent(attended));
    expect_result(&s);
    scene_close(&s);
}

/* B112 */
Test(stub_events, a_hundred_queues_leave_nothing_behind) {
    scene s;
    scene_open(&s);
    stub_objects steady = {0};
    for (int i = 0; i < 100; i++) {
        cl_command_queue queue = make_queue(s.device, i % 2 == 0 ? 0 : CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
        expect_ok(attn_rig_plan(&s.rig, queue));
        /* An upload that is still on its way would make the next take a further buffer. */
        for (int c = 0; c < NUM_CALLS; c++) {
            expect_cl(clFinish(queue));
            expect_ok(call(&s, c, false, queue, NULL));
        }
        expect_cl(clFinish(queue));
        expect_cl(clReleaseCommandQueue(queue));
        stub_objects live = stub_live();
        if (i == 3)
            steady = live;
        cr_assert(i < 4 || memcmp(&live, &steady, sizeof(live)) == 0, "queue %d: %s; before: %s", i,
                  stub_objects_text(&live), stub_objects_text(&steady));
    }
    scene_close(&s);
}

/* Also B112: all of it, made and destroyed. */
Test(stub_events, many_lives_leave_nothing_behind) {
    for (int i = 0; i < 10; i++) {
        scene s;
        scene_open(&s);
        expect_ok(attn_rig_plan(&s.rig, NULL));
        attn_rig_run(&s.rig, NULL, 0, NULL, NULL);
        expect_result(&s);
        scene_close(&s); /* asserts that nothing is left */
    }
}

/* ---- nothing to do ---- */

static void expect_no_size_zero(const char *name) {
    size_t count = 0;
    const stub_record *records = stub_records(&count);
    for (size_t i = 0; i < count; i++)
        cr_assert_neq(records[i].size, 0, "%s: %s of size 0", name, stub_call_name(records[i].call));
}

/* B125: OpenCL 1.2 refuses buffers, copies and launches of size 0. */
Test(stub_events, no_call_has_size_zero) {
    scene s;
    scene_open(&s);
    for (int c = 0; c < RUN; c++) {
        for (int with_event = 0; with_event < 2; with_event++) {
            cl_event event = NULL;
            stub_watch();
            expect_ok(call(&s, c, true, NULL, with_event ? &event : NULL));
            stub_unwatch();
            cr_assert_eq(stub_count_commands(), 0u, "%s", call_names[c]);
            expect_no_size_zero(call_names[c]);
            if (with_event) {
                expect_cl(clWaitForEvents(1, &event));
                expect_cl(clReleaseEvent(event));
            }
        }
    }
    /* No sequence; sequences without a query; a query without a key. */
    const int32_t none[3] = {0, 0, 0}, one[2] = {0, 1}, table[2] = {-1, -1};
    pagedcl_decode_batch no_sequence = PAGEDCL_DECODE_BATCH_INIT, no_key = PAGEDCL_DECODE_BATCH_INIT;
    no_sequence.seqlen_q = no_key.seqlen_q = 1;
    no_key.num_seqs = 1;
    no_key.cache_seqlens = none;
    no_key.block_table = table;
    no_key.block_table_stride = 1;
    pagedcl_varlen_batch no_query = PAGEDCL_VARLEN_BATCH_INIT, no_old_key = PAGEDCL_VARLEN_BATCH_INIT;
    no_query.num_seqs = 2;
    no_query.cu_seqlens_q = no_query.cache_seqlens = none;
    no_query.block_table = table;
    no_query.block_table_stride = 1;
    no_old_key = no_query;
    no_old_key.num_seqs = 1;
    no_old_key.cu_seqlens_q = one;
    pagedcl_attn_args args = attn_rig_args(&s.rig);
    args.k_new = args.v_new = (pagedcl_tensor){0};
    for (int i = 0; i < 4; i++) {
        cl_event event = NULL;
        stub_watch();
        expect_ok(i == 0   ? pagedcl_plan_decode(s.rig.plan, NULL, &no_sequence)
                  : i == 1 ? pagedcl_plan_decode(s.rig.plan, NULL, &no_key)
                  : i == 2 ? pagedcl_plan_varlen(s.rig.plan, NULL, &no_query)
                           : pagedcl_plan_varlen(s.rig.plan, NULL, &no_old_key));
        expect_ok(pagedcl_attn_run(s.rig.attn, NULL, s.rig.plan, &args, 0, NULL, NULL));
        expect_ok(pagedcl_attn_run(s.rig.attn, NULL, s.rig.plan, &args, 0, NULL, &event));
        stub_unwatch();
        expect_no_size_zero("an empty batch");
        expect_cl(clWaitForEvents(1, &event));
        expect_cl(clReleaseEvent(event));
    }
    scene_close(&s);
}

/* ---- failures after the call ---- */

/* Every command of every call in turn is enqueued, and then ends with an error: it shows in the event. */
Test(stub_events, late_failure_shows_in_the_event, .timeout = 30) {
    scene s;
    scene_open(&s);
    expect_ok(attn_rig_plan(&s.rig, NULL));
    for (int c = 0; c < NUM_CALLS; c++) {
        stub_watch();
        for (int i = 0; i < 2; i++) /* both buffers of a pair hold what is right */
            expect_ok(call(&s, c, false, NULL, NULL));
        stub_unwatch();
        size_t commands = stub_count_commands() / 2;
        cl_event event = NULL;
        stub_fail_later(commands, CL_OUT_OF_RESOURCES);
        stub_watch();
        expect_ok(call(&s, c, false, NULL, &event));
        stub_unwatch();
        cr_assert_neq(clWaitForEvents(1, &event), CL_SUCCESS, "%s", call_names[c]);
        cl_int end = CL_SUCCESS;
        expect_cl(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(end), &end, NULL));
        cr_assert_eq(end, CL_OUT_OF_RESOURCES, "%s", call_names[c]);
        expect_cl(clReleaseEvent(event));
    }
    scene_close(&s);
}

/* The n-th command of the next call of `call` fails after it. */
#define FAIL_LATER(n, call)                        \
    do {                                           \
        stub_fail_later((n), CL_OUT_OF_RESOURCES); \
        stub_watch();                              \
        expect_ok(call);                           \
        stub_unwatch();                            \
    } while (0)

static void expect_sound(scene *s, cl_command_queue queue) {
    expect_ok(attn_rig_plan(&s->rig, queue));
    attn_rig_run(&s->rig, queue, 0, NULL, NULL);
    expect_cl(clFinish(queue));
    expect_result(s);
}

/* A plan whose upload failed is refused, on any queue, until it has a new batch. */
Test(stub_events, late_failure_of_a_plan_is_told_by_the_run, .timeout = 30) {
    scene s;
    scene_open(&s);
    for (int i = 0; i < 3; i++) {
        FAIL_LATER(1, attn_rig_plan(&s.rig, s.queues[0]));
        for (int q = 0; q < 2; q++)
            expect_refused(call(&s, RUN, false, s.queues[q], NULL), PAGEDCL_DEVICE_LOST, "upload");
    }
    expect_sound(&s, s.queues[1]);
    scene_close(&s);
}

/*
 * A write whose upload of slots ends with an error. Its kernel runs all the same and finds what the buffer held: slots
 * that are right, as no buffer is busy, and so none is new.
 */
static void fail_upload_of_write(scene *s, int queue) {
    for (int i = 0; i < 2; i++)
        expect_cl(clFinish(s->queues[i]));
    FAIL_LATER(1, call(s, WRITE, false, s->queues[queue], NULL));
}

/* Whatever failed, the next call on another queue does not wait for it, nor does destroy. */
Test(stub_events, late_failure_hangs_nothing, .timeout = 30) {
    scene s;
    scene_open(&s);
    cl_command_queue unordered = make_queue(s.device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    expect_sound(&s, s.queues[0]);
    for (int i = 0; i < 2; i++) /* both buffers of the pool's pair hold slots that are right */
        expect_ok(call(&s, WRITE, false, s.queues[0], NULL));
    FAIL_LATER(1, call(&s, RUN, false, s.queues[0], NULL));
    expect_ok(call(&s, RUN, false, s.queues[1], NULL));
    FAIL_LATER(1, call(&s, RUN, false, unordered, NULL));
    FAIL_LATER(2, call(&s, WRITE, false, s.queues[0], NULL));
    fail_upload_of_write(&s, 0);
    for (int i = 0; i < 2; i++)
        expect_ok(call(&s, WRITE, false, s.queues[1], NULL));
    expect_cl(clFinish(s.queues[0]));
    expect_cl(clFinish(unordered));
    expect_cl(clFinish(s.queues[1]));
    pool_model_upload(&s.rig.pool, s.rig.cache);
    expect_sound(&s, s.queues[1]);
    fail_upload_of_write(&s, 1);
    FAIL_LATER(1, attn_rig_plan(&s.rig, s.queues[1]));
    expect_cl(clReleaseCommandQueue(unordered));
    scene_close(&s);
}
