/* SPDX-License-Identifier: Apache-2.0 */
/* A run only enqueues: what it calls of OpenCL, and that it takes no memory. */
#define _POSIX_C_SOURCE 200809L

#include "stub/stub.h"
#include "support/attn_rig.h"
#include "support/expect.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const int32_t long_seqlens[] = {70, 1, 150};

static const struct run_case {
    attn_case c;
    size_t launches;
} cases[] = {
    {{.name = "packed", .path = VARLEN_PACKED, .head_dim = 8, .causal = 1}, 1},
    {{.name = "paged", .path = VARLEN_PAGED, .head_dim = 8, .causal = 1}, 1},
    {{.name = "paged, appending", .path = VARLEN_PAGED, .head_dim = 8, .causal = 1, .append = 1}, 2},
    {{.name = "decode", .path = DECODE, .head_dim = 8, .causal = 1}, 1},
    {{.name = "decode, appending", .path = DECODE, .head_dim = 8, .causal = 1, .append = 1}, 1},
    {{.name = "decode, table on the device", .path = DECODE, .head_dim = 8, .append = 1, .device_table = true}, 1},
    {{.name = "paged, table on the device", .path = VARLEN_PAGED, .head_dim = 8, .append = 1, .device_table = true}, 2},
    {{.name = "decode, appending, in splits",
      .path = DECODE,
      .head_dim = 8,
      .causal = 1,
      .append = 1,
      .seqlens_k = long_seqlens,
      .num_splits = 3},
     2},
};
enum { NUM_CASES = sizeof(cases) / sizeof(cases[0]) };

/* Nothing that allocates, builds, moves data or waits. */
static bool only_enqueues(stub_call call) {
    switch (call) {
    case STUB_clGetMemObjectInfo:
    case STUB_clGetCommandQueueInfo:
    case STUB_clGetEventInfo:
    case STUB_clGetKernelWorkGroupInfo:
    case STUB_clSetKernelArg:
    case STUB_clEnqueueNDRangeKernel:
    case STUB_clRetainEvent:
    case STUB_clReleaseEvent:
    case STUB_clRetainCommandQueue:
    case STUB_clReleaseCommandQueue:
        return true;
    default:
        return false;
    }
}

static void expect_no_size_zero(const char *name) {
    size_t count = 0;
    const stub_record *records = stub_records(&count);
    for (size_t i = 0; i < count; i++)
        cr_assert_neq(records[i].size, 0, "%s: %s of size 0", name, stub_call_name(records[i].call));
}

static void check_run(attn_rig *rig, size_t launches, bool with_event) {
    pagedcl_attn_args args = attn_rig_args(rig);
    cl_event event = NULL;
    size_t before = stub_allocations();
    stub_watch();
    pagedcl_status status = pagedcl_attn_run(rig->attn, NULL, rig->plan, &args, 0, NULL, with_event ? &event : NULL);
    stub_unwatch();
    size_t after = stub_allocations(), count = 0;
    cr_assert_eq(status, PAGEDCL_SUCCESS, "%s: %s", rig->name, pagedcl_last_error());
    const stub_record *records = stub_records(&count);
    cr_assert_eq(after, before, "%s: %zu allocations", rig->name, after - before);
    for (size_t i = 0; i < count; i++)
        cr_assert(only_enqueues(records[i].call) || (with_event && records[i].call == STUB_clFlush), "%s: calls %s",
                  rig->name, stub_call_name(records[i].call));
    cr_assert_eq(stub_count(STUB_clEnqueueNDRangeKernel), launches, "%s: %zu launches", rig->name,
                 stub_count(STUB_clEnqueueNDRangeKernel));
    expect_no_size_zero(rig->name);
    if (with_event)
        expect_cl(clReleaseEvent(event));
}

/* The first run of a plan too. */
Test(stub_run, run_only_enqueues) {
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    int num_tiers = fixture_tiers(device, tiers);
    for (int i = 0; i < NUM_CASES * num_tiers; i++) {
        const struct run_case *c = &cases[i % NUM_CASES];
        attn_problem problem = attn_problem_create(&c->c, 1);
        attn_rig rig = attn_rig_open(device, tiers[i / NUM_CASES], &problem);
        expect_ok(attn_rig_plan(&rig, NULL));
        check_run(&rig, c->launches, false);
        check_run(&rig, c->launches, true);
        attn_result result = attn_rig_read(&rig);
        attn_expect_reference(&problem, &result, rig.name);
        attn_result_destroy(&result);
        attn_rig_close(&rig);
        attn_problem_destroy(&problem);
    }
    pagedcl_device_destroy(device);
}

/* Where an operator launches its kernels once beforehand, what they write has room: out is as wide as V is. */
Test(stub_run, launches_of_nothing_stay_inside_their_buffer) {
    pagedcl_device *device = fixture_open();
    const attn_case c = {.name = "wide V", .path = DECODE, .head_dim = 1, .head_dim_v = 96, .group = 2};
    attn_problem problem = attn_problem_create(&c, 1);
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, &problem);
    pagedcl_attn_desc desc = PAGEDCL_ATTN_DESC_INIT;
    expect_ok(pagedcl_attn_get_desc(rig.attn, &desc));
    pagedcl_attn *attn = NULL;
    stub_watch();
    pagedcl_status status = pagedcl_attn_create(device, &desc, &attn);
    stub_unwatch();
    cr_assert_eq(status, PAGEDCL_SUCCESS, "%s", pagedcl_last_error());
    long long largest = 0;
    size_t count = 0;
    const stub_record *records = stub_records(&count);
    for (size_t i = 0; i < count; i++)
        if (records[i].call == STUB_clCreateBuffer && records[i].size > largest)
            largest = records[i].size;
    long long row = (long long)sizeof(float) * problem.num_heads * 96;
    cr_assert(stub_count(STUB_clEnqueueNDRangeKernel) == 0 || largest >= row, "%lld bytes for a row of %lld", largest,
              row);
    pagedcl_attn_destroy(attn);
    attn_rig_close(&rig);
    attn_problem_destroy(&problem);
    pagedcl_device_destroy(device);
}

/* A batch that was there before costs one write, for which nobody waits, with a table on the device one launch, and no
   memory. */
Test(stub_run, plan_uploads_by_one_write) {
    pagedcl_device *device = fixture_open();
    for (int i = 0; i < NUM_CASES; i++) {
        attn_problem problem = attn_problem_create(&cases[i].c, 1);
        attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_PORTABLE, &problem);
        for (int turn = 0; turn < 4; turn++) {
            expect_cl(clFinish(pagedcl_device_queue(device)));
            stub_watch();
            expect_ok(attn_rig_plan(&rig, NULL));
            stub_unwatch();
            size_t count = 0;
            const stub_record *records = stub_records(&count);
            size_t launches = cases[i].c.device_table ? 1 : 0;
            cr_assert(stub_count(STUB_clEnqueueWriteBuffer) == 1 && stub_count_commands() == 1 + launches, "%s",
                      rig.name);
            cr_assert_eq(stub_count(STUB_clEnqueueNDRangeKernel), launches, "%s", rig.name);
            for (size_t r = 0; r < count; r++) {
                cr_assert(!records[r].blocking, "%s: a blocking write", rig.name);
                cr_assert(turn < 2 || records[r].call != STUB_clCreateBuffer, "%s: a new buffer", rig.name);
                cr_assert_neq(records[r].call, STUB_clFinish, "%s", rig.name);
            }
            expect_no_size_zero(rig.name);
        }
        attn_rig_close(&rig);
        attn_problem_destroy(&problem);
    }
    pagedcl_device_destroy(device);
}

/* Many steps of many layers leave no more objects behind than two. */
Test(stub_run, steps_leave_nothing_behind) {
    pagedcl_device *device = fixture_open();
    attn_problem problem = attn_problem_create(&cases[NUM_CASES - 1].c, 1);
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_PORTABLE, &problem);
    stub_objects steady = {0};
    for (int step = 0; step < 50; step++) {
        expect_ok(attn_rig_plan(&rig, NULL));
        for (int layer = 0; layer < 4; layer++)
            attn_rig_run(&rig, NULL, 0, NULL, NULL);
        expect_cl(clFinish(pagedcl_device_queue(device)));
        stub_objects live = stub_live();
        if (step == 2)
            steady = live;
        cr_assert(step < 3 || memcmp(&live, &steady, sizeof(live)) == 0, "step %d: %s; before: %s", step,
                  stub_objects_text(&live), stub_objects_text(&steady));
    }
    attn_rig_close(&rig);
    attn_problem_destroy(&problem);
    pagedcl_device_destroy(device);
    stub_objects none = {0}, live = stub_live();
    cr_assert(memcmp(&live, &none, sizeof(none)) == 0, "left %s", stub_objects_text(&live));
}

static bool is_complete(cl_event event) {
    cl_int status;
    expect_cl(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, NULL));
    return status == CL_COMPLETE;
}

/*
 * A run fails at its second launch while the first waits for the caller. Batches that come after, on another queue,
 * must not overwrite what the first launch is still to read.
 */
Test(stub_run, half_a_run_keeps_its_plan, .timeout = 30) {
    pagedcl_device *device = fixture_open();
    cl_context context = pagedcl_device_context(device);
    attn_problem problem = attn_problem_create(&cases[NUM_CASES - 1].c, 1);
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_PORTABLE, &problem);
    cl_int code;
    cl_command_queue other = clCreateCommandQueue(context, pagedcl_device_id(device), 0, &code);
    expect_cl(code);
    cl_event start = clCreateUserEvent(context, &code), planned;
    expect_cl(code);
    expect_ok(attn_rig_plan(&rig, NULL));
    expect_cl(clFinish(pagedcl_device_queue(device)));
    pagedcl_attn_args args = attn_rig_args(&rig);
    stub_fail(STUB_clEnqueueNDRangeKernel, 2, CL_INVALID_OPERATION);
    stub_watch();
    expect_refused(pagedcl_attn_run(rig.attn, NULL, rig.plan, &args, 1, &start, NULL), PAGEDCL_OPENCL_ERROR,
                   "clEnqueueNDRangeKernel");
    stub_unwatch();
    cr_assert_eq(stub_count_commands(), 1u);
    /* The first goes into the other buffer of the pair, the second into the one that the launch reads. */
    for (int i = 0; i < 2; i++)
        expect_ok(attn_rig_plan(&rig, other));
    expect_cl(clEnqueueBarrierWithWaitList(other, 0, NULL, &planned));
    expect_cl(clFlush(other));
    nanosleep(&(struct timespec){.tv_nsec = 200 * 1000 * 1000}, NULL);
    bool too_early = is_complete(planned);
    expect_cl(clSetUserEventStatus(start, CL_COMPLETE));
    expect_cl(clFinish(other));
    expect_cl(clFinish(pagedcl_device_queue(device)));
    cr_assert(!too_early, "the plan was overwritten while a launch waited to read it");

    attn_rig_run(&rig, NULL, 0, NULL, NULL);
    attn_result result = attn_rig_read(&rig);
    attn_expect_reference(&problem, &result, rig.name);
    attn_result_destroy(&result);
    expect_cl(clReleaseEvent(planned));
    expect_cl(clReleaseEvent(start));
    expect_cl(clReleaseCommandQueue(other));
    attn_rig_close(&rig);
    attn_problem_destroy(&problem);
    pagedcl_device_destroy(device);
}
