/* SPDX-License-Identifier: Apache-2.0 */
/* Every OpenCL call of the functions on operators and plans fails once. */
#include "stub/exhaust.h"
#include "support/attn_rig.h"
#include "support/expect.h"

#include "device.h"

#include <stdlib.h>
#include <string.h>

typedef struct scene {
    pagedcl_device *device;
    attn_problem problem;
    attn_rig rig;
    pool_model before;          /* the pool as it is before a run */
    cl_command_queue queues[2]; /* in order, out of order */
    cl_command_queue queue;     /* of the run that is counted */
    cl_event event;
    pagedcl_attn *attn; /* of the operations that create */
    pagedcl_plan *plan;
    pagedcl_faults faults;
} scene;

static const attn_case packed = {.name = "packed", .path = VARLEN_PACKED, .head_dim = 8, .causal = 1};
static const attn_case paged = {
    .name = "paged, appending", .path = VARLEN_PAGED, .head_dim = 8, .block_size = 4, .causal = 1, .append = 1};
static const attn_case decode = {.name = "decode", .path = DECODE, .head_dim = 8, .block_size = 4, .causal = 1};
static const attn_case appending = {
    .name = "decode, appending", .path = DECODE, .head_dim = 8, .block_size = 4, .causal = 1, .append = 1};
/* Longer than a tile of keys, or there is nothing to split. */
static const int32_t long_seqlens[] = {70, 1, 150};
static const attn_case splitting = {.name = "decode in splits",
                                    .path = DECODE,
                                    .head_dim = 8,
                                    .block_size = 16,
                                    .causal = 1,
                                    .append = 1,
                                    .seqlens_k = long_seqlens,
                                    .num_splits = 3};

/* The table is a buffer with a bad entry. */
static const attn_case guarded_tables = {.name = "decode, table on the device",
                                         .path = DECODE,
                                         .head_dim = 8,
                                         .block_size = 4,
                                         .causal = 1,
                                         .append = 1,
                                         .device_table = true};

/* Two of three sequences share a split. */
static const int32_t shared_seqlens[] = {520, 3, 515};
static const attn_case sharing = {.name = "decode, shared",
                                  .path = DECODE,
                                  .head_dim = 8,
                                  .group = 2,
                                  .block_size = 64,
                                  .append = 1,
                                  .seqlens_k = shared_seqlens,
                                  .shared = 512,
                                  .share_prefix = PAGEDCL_SHARE_ALL};

static void scene_open(scene *s, const attn_case *c) {
    *s = (scene){.device = fixture_open(), .problem = attn_problem_create(c, 1)};
    if (c->device_table)
        s->problem.block_table[0] = -1;
    s->device->quirks.builds_one_at_a_time = true; /* the n-th call is the same each time */
    s->rig = attn_rig_open(s->device, PAGEDCL_TIER_PORTABLE, &s->problem);
    if (s->rig.cache != NULL) {
        s->before = pool_model_create(&s->rig.pool.desc);
        for (int32_t layer = 0; layer < s->before.desc.num_layers; layer++)
            expect_ok(pagedcl_cache_download_blocks(s->rig.cache, NULL, layer, NULL, s->before.desc.num_blocks,
                                                    pool_model_k(&s->before, layer, 0),
                                                    pool_model_v(&s->before, layer, 0), 0, NULL, NULL));
        expect_cl(clFinish(pagedcl_device_queue(s->device)));
    }
    for (int i = 0; i < 2; i++) {
        cl_int code;
        s->queues[i] = clCreateCommandQueue(pagedcl_device_context(s->device), pagedcl_device_id(s->device),
                                            i == 1 ? CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE : 0, &code);
        expect_cl(code);
    }
    s->queue = s->queues[0];
}

static void scene_close(scene *s) {
    for (int i = 0; i < 2; i++)
        expect_cl(clReleaseCommandQueue(s->queues[i]));
    pool_model_destroy(&s->before);
    attn_rig_close(&s->rig);
    attn_problem_destroy(&s->problem);
    pagedcl_device_destroy(s->device);
    stub_objects none = {0}, live = stub_live();
    cr_assert(memcmp(&live, &none, sizeof(none)) == 0, "left %s", stub_objects_text(&live));
}

static void exhaust_case(const operation *op, const attn_case *c) {
    scene s;
    scene_open(&s, c);
    exhaust(op, &s);
    scene_close(&s);
}

/* ---- the pool and the outputs before and after ---- */

static void finish(const scene *s) {
    expect_cl(clFinish(pagedcl_device_queue(s->device)));
    expect_cl(clFinish(s->queues[0]));
    expect_cl(clFinish(s->queues[1]));
}

static void poison(const scene *s, const guarded *buffer) {
    void *bytes = fixture_poisoned(buffer->bytes);
    expect_cl(clEnqueueWriteBuffer(pagedcl_device_queue(s->device), buffer->mem, CL_TRUE, 0, buffer->bytes, bytes, 0,
                                   NULL, NULL));
    free(bytes);
}

static void restore(scene *s) {
    finish(s);
    s->event = NULL;
    if (s->rig.cache != NULL)
        pool_model_upload(&s->before, s->rig.cache);
    poison(s, &s->rig.out.buffer);
    poison(s, &s->rig.lse);
}

static void expect_poison(const scene *s, const guarded *buffer) {
    void *bytes = guarded_read(s->device, buffer, "an output"), *want = fixture_poisoned(buffer->bytes);
    expect_same_bytes("after a refused call", "an output", bytes, want, buffer->bytes);
    free(bytes);
    free(want);
}

static void untouched(void *at) {
    scene *s = at;
    cr_assert_null(s->event, "an event of a failed call");
    finish(s);
    if (s->rig.cache != NULL)
        pool_model_expect(&s->before, s->rig.cache, "after a refused call");
    expect_poison(s, &s->rig.out.buffer);
    expect_poison(s, &s->rig.lse);
}

static void expect_result(scene *s) {
    finish(s);
    attn_result result = attn_rig_read(&s->rig);
    attn_expect_reference(&s->problem, &result, s->rig.name);
    attn_result_destroy(&result);
}

/* ---- operators ---- */

static void prepare_none(void *at) {
    scene *s = at;
    s->attn = NULL;
    s->plan = NULL;
}

static pagedcl_status call_create(void *at) {
    scene *s = at;
    pagedcl_attn_desc desc = PAGEDCL_ATTN_DESC_INIT;
    expect_ok(pagedcl_attn_get_desc(s->rig.attn, &desc));
    return pagedcl_attn_create(s->device, &desc, &s->attn);
}

/* The operator takes the place of the rig's. */
static void verify_create(void *at) {
    scene *s = at;
    pagedcl_attn *attn = s->rig.attn;
    pagedcl_plan *plan = s->rig.plan;
    s->rig.attn = s->attn;
    expect_ok(pagedcl_plan_create(s->attn, &s->rig.plan));
    restore(s);
    expect_ok(attn_rig_plan(&s->rig, NULL));
    attn_rig_run(&s->rig, NULL, 0, NULL, NULL);
    expect_result(s);
    pagedcl_plan_destroy(s->rig.plan);
    pagedcl_attn_destroy(s->attn);
    s->rig.attn = attn;
    s->rig.plan = plan;
}

static void untouched_none(void *at) {
    scene *s = at;
    cr_assert(s->attn == NULL && s->plan == NULL);
}

static const operation create = {
    .name = "pagedcl_attn_create",
    .prepare = prepare_none,
    .call = call_create,
    .verify = verify_create,
    .untouched = untouched_none,
    .tolerated = {{STUB_clReleaseKernel, "there is no second try at a release"},
                  {STUB_clReleaseMemObject, "likewise"},
                  {STUB_clReleaseEvent, "likewise"},
                  {STUB_clReleaseCommandQueue, "likewise"},
                  {STUB_clRetainCommandQueue, "commands whose queue is unknown are ordered by their event"},
                  {STUB_clWaitForEvents, "destroy has no way to tell, and nothing to try instead"}},
};

Test(stub_attn, create_survives_every_failure) {
    exhaust_case(&create, &packed);
}

Test(stub_attn, create_over_a_pool_survives_every_failure) {
    exhaust_case(&create, &decode);
}

Test(stub_attn, create_with_device_tables_survives_every_failure) {
    exhaust_case(&create, &guarded_tables);
}

static void prepare_destroy(void *at) {
    scene *s = at;
    s->attn = NULL;
    expect_ok(call_create(s));
    pagedcl_attn *attn = s->rig.attn;
    pagedcl_plan *plan = s->rig.plan;
    s->rig.attn = s->attn;
    expect_ok(pagedcl_plan_create(s->attn, &s->rig.plan));
    for (int i = 0; i < 2; i++) {
        expect_ok(attn_rig_plan(&s->rig, NULL));
        attn_rig_run(&s->rig, NULL, 0, NULL, NULL);
    }
    s->plan = s->rig.plan;
    s->rig.attn = attn;
    s->rig.plan = plan;
}

static pagedcl_status call_destroy(void *at) {
    scene *s = at;
    pagedcl_attn_destroy(s->attn);
    pagedcl_plan_destroy(s->plan);
    return PAGEDCL_SUCCESS;
}

Test(stub_attn, destroy_survives_every_failure) {
    const operation destroy = {
        .name = "pagedcl_attn_destroy and pagedcl_plan_destroy",
        .prepare = prepare_destroy,
        .call = call_destroy,
        .tolerated = {{STUB_clWaitForEvents, "destroy has no way to tell, and nothing to try instead"},
                      {STUB_clReleaseCommandQueue, "there is no second try at a release"},
                      {STUB_clReleaseEvent, "likewise"},
                      {STUB_clReleaseKernel, "likewise"},
                      {STUB_clReleaseMemObject, "likewise"},
                      {STUB_clReleaseProgram, "likewise"}},
    };
    exhaust_case(&destroy, &splitting);
}

/* ---- plans ---- */

static pagedcl_status call_plan_create(void *at) {
    scene *s = at;
    return pagedcl_plan_create(s->rig.attn, &s->plan);
}

static void verify_plan_create(void *at) {
    scene *s = at;
    pagedcl_plan *plan = s->rig.plan;
    s->rig.plan = s->plan;
    restore(s);
    expect_ok(attn_rig_plan(&s->rig, NULL));
    attn_rig_run(&s->rig, NULL, 0, NULL, NULL);
    expect_result(s);
    pagedcl_plan_destroy(s->plan);
    s->rig.plan = plan;
}

static const operation plan_create = {
    .name = "pagedcl_plan_create",
    .prepare = prepare_none,
    .call = call_plan_create,
    .verify = verify_plan_create,
    .untouched = untouched_none,
};

Test(stub_attn, plan_create_survives_every_failure) {
    exhaust_case(&plan_create, &decode);
}

Test(stub_attn, plan_create_with_device_tables_survives_every_failure) {
    exhaust_case(&plan_create, &guarded_tables);
}

static pagedcl_status call_plan(void *at) {
    scene *s = at;
    return attn_rig_plan(&s->rig, NULL);
}

static void verify_plan(void *at) {
    scene *s = at;
    attn_rig_run(&s->rig, NULL, 0, NULL, NULL);
    expect_result(s);
}

static void prepare_new_plan(void *at) {
    scene *s = at;
    pagedcl_plan_destroy(s->rig.plan);
    expect_ok(pagedcl_plan_create(s->rig.attn, &s->rig.plan));
    restore(s);
}

/* A plan that has not got its batch has none. */
static void untouched_new_plan(void *at) {
    scene *s = at;
    pagedcl_attn_args args = attn_rig_args(&s->rig);
    expect_refused(pagedcl_attn_run(s->rig.attn, NULL, s->rig.plan, &args, 0, NULL, NULL), PAGEDCL_INVALID_ARGUMENT,
                   "batch");
    untouched(s);
}

static const operation first_plan = {
    .name = "the first batch of a plan",
    .prepare = prepare_new_plan,
    .call = call_plan,
    .verify = verify_plan,
    .untouched = untouched_new_plan,
    .tolerated = {{STUB_clReleaseEvent, "there is no second try at a release"},
                  {STUB_clRetainCommandQueue, "commands whose queue is unknown are ordered by their event"}},
};

Test(stub_attn, first_packed_plan_survives_every_failure) {
    exhaust_case(&first_plan, &packed);
}

Test(stub_attn, first_paged_plan_survives_every_failure) {
    exhaust_case(&first_plan, &paged);
}

Test(stub_attn, first_decode_plan_survives_every_failure) {
    exhaust_case(&first_plan, &splitting);
}

Test(stub_attn, first_sharing_plan_survives_every_failure) {
    exhaust_case(&first_plan, &sharing);
}

Test(stub_attn, first_plan_of_a_device_table_survives_every_failure) {
    operation two_commands = first_plan;
    two_commands.tolerated[2] = (stub_tolerance){STUB_clReleaseCommandQueue, "there is no second try at a release"};
    exhaust_case(&two_commands, &guarded_tables);
}

static void prepare_other_batch(void *at) {
    scene *s = at;
    int32_t num_splits = s->problem.c.num_splits;
    s->problem.c.num_splits = 1;
    /* An upload that is still on its way would make the next take a third buffer. */
    finish(s);
    for (int i = 0; i < 2; i++) {
        expect_ok(attn_rig_plan(&s->rig, NULL));
        finish(s);
    }
    s->problem.c.num_splits = num_splits;
    restore(s);
}

/* The batch before stands. */
static void untouched_batch(void *at) {
    scene *s = at;
    untouched(s);
    attn_rig_run(&s->rig, NULL, 0, NULL, NULL);
    expect_result(s);
}

static const operation next_plan = {
    .name = "a further batch of a plan",
    .prepare = prepare_other_batch,
    .call = call_plan,
    .verify = verify_plan,
    .untouched = untouched_batch,
    .tolerated = {{STUB_clReleaseEvent, "there is no second try at a release"},
                  {STUB_clReleaseCommandQueue, "likewise"},
                  {STUB_clRetainCommandQueue, "commands whose queue is unknown are ordered by their event"}},
};

Test(stub_attn, next_packed_plan_survives_every_failure) {
    exhaust_case(&next_plan, &packed);
}

Test(stub_attn, next_paged_plan_survives_every_failure) {
    exhaust_case(&next_plan, &paged);
}

Test(stub_attn, next_decode_plan_survives_every_failure) {
    exhaust_case(&next_plan, &splitting);
}

/* The batch before shares nothing. */
static void prepare_alone(void *at) {
    scene *s = at;
    finish(s);
    s->problem.c.share_prefix = PAGEDCL_SHARE_OFF;
    for (int i = 0; i < 2; i++) {
        expect_ok(attn_rig_plan(&s->rig, NULL));
        finish(s);
    }
    s->problem.c.share_prefix = PAGEDCL_SHARE_ALL;
    restore(s);
}

Test(stub_attn, next_sharing_plan_survives_every_failure) {
    operation shares = next_plan;
    shares.prepare = prepare_alone;
    exhaust_case(&shares, &sharing);
}

Test(stub_attn, next_plan_of_a_device_table_survives_every_failure) {
    exhaust_case(&next_plan, &guarded_tables);
}

static void prepare_faults(void *at) {
    scene *s = at;
    pagedcl_plan_destroy(s->rig.plan);
    expect_ok(pagedcl_plan_create(s->rig.attn, &s->rig.plan));
    expect_ok(attn_rig_plan(&s->rig, s->queues[0]));
    s->faults = (pagedcl_faults){7, 7};
}

static pagedcl_status call_read_faults(void *at) {
    scene *s = at;
    return pagedcl_plan_read_faults(s->rig.plan, s->queues[1], &s->faults, 0, NULL, &s->event);
}

static void verify_faults(void *at) {
    scene *s = at;
    expect_cl(clWaitForEvents(1, &s->event));
    expect_cl(clReleaseEvent(s->event));
    s->event = NULL;
    cr_assert(s->faults.reads == 1 && s->faults.writes == 0, "%u %u", s->faults.reads, s->faults.writes);
}

static void untouched_faults(void *at) {
    scene *s = at;
    cr_assert_null(s->event, "an event of a failed call");
    cr_assert(s->faults.reads == 7 && s->faults.writes == 7, "counters of a refused call");
}

Test(stub_attn, read_faults_survives_every_failure) {
    const operation read_faults = {
        .name = "pagedcl_plan_read_faults",
        .prepare = prepare_faults,
        .call = call_read_faults,
        .verify = verify_faults,
        .untouched = untouched_faults,
        .tolerated = {{STUB_clReleaseEvent, "there is no second try at a release"},
                      {STUB_clReleaseCommandQueue, "likewise"},
                      {STUB_clRetainCommandQueue, "commands whose queue is unknown are ordered by their event"}},
    };
    exhaust_case(&read_faults, &guarded_tables);
}

/* ---- runs ---- */

static void prepare_run(void *at) {
    scene *s = at;
    restore(s);
    expect_ok(attn_rig_plan(&s->rig, s->queue));
}

static pagedcl_status call_run(void *at) {
    scene *s = at;
    pagedcl_attn_args args = attn_rig_args(&s->rig);
    return pagedcl_attn_run(s->rig.attn, s->queue, s->rig.plan, &args, 0, NULL, &s->event);
}

static void verify_run(void *at) {
    scene *s = at;
    if (s->event != NULL) {
        expect_cl(clWaitForEvents(1, &s->event));
        expect_cl(clReleaseEvent(s->event));
        s->event = NULL;
    }
    expect_result(s);
}

static const operation run = {
    .name = "pagedcl_attn_run",
    .prepare = prepare_run,
    .call = call_run,
    .verify = verify_run,
    .untouched = untouched,
    .tolerated = {{STUB_clReleaseEvent, "there is no second try at a release"},
                  {STUB_clReleaseCommandQueue, "likewise"},
                  {STUB_clRetainCommandQueue, "commands whose queue is unknown are ordered by their event"}},
};

Test(stub_attn, packed_run_survives_every_failure) {
    exhaust_case(&run, &packed);
}

Test(stub_attn, paged_run_survives_every_failure) {
    exhaust_case(&run, &paged);
}

Test(stub_attn, decode_run_survives_every_failure) {
    exhaust_case(&run, &decode);
}

Test(stub_attn, appending_run_survives_every_failure) {
    exhaust_case(&run, &appending);
}

Test(stub_attn, splitting_run_survives_every_failure) {
    exhaust_case(&run, &splitting);
}

Test(stub_attn, run_with_a_device_table_survives_every_failure) {
    exhaust_case(&run, &guarded_tables);
}

/* The plan and the run before were on another queue, and this one gives no order. */
static void prepare_elsewhere(void *at) {
    scene *s = at;
    expect_ok(attn_rig_plan(&s->rig, s->queues[0]));
    attn_rig_run(&s->rig, s->queues[0], 0, NULL, NULL);
    restore(s);
    s->queue = s->queues[1];
}

Test(stub_attn, run_on_another_queue_survives_every_failure) {
    operation elsewhere = run;
    elsewhere.name = "pagedcl_attn_run on another, unordered queue";
    elsewhere.prepare = prepare_elsewhere;
    exhaust_case(&elsewhere, &splitting);
}
