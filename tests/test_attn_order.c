/* SPDX-License-Identifier: Apache-2.0 */
/* The order that events, queues and plans promise, and what objects keep alive. */
#include "support/attn_rig.h"
#include "support/expect.h"

#include <string.h>

#define INTS(...) ((const int32_t[]){__VA_ARGS__})
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static cl_command_queue open_queue(const pagedcl_device *device, cl_command_queue_properties properties) {
    cl_int code;
    cl_command_queue queue =
        clCreateCommandQueue(pagedcl_device_context(device), pagedcl_device_id(device), properties, &code);
    expect_cl(code);
    return queue;
}

/* B93: step 2 is planned, with the caller's arrays overwritten, while step 1 may not have begun. A user event holds
 * step 1 back in every tenth turn. */
Test(attn_order, a_step_keeps_the_batch_it_was_planned_with, .timeout = 120) {
    attn_case c = {"B93", DECODE, .num_seqs = 2, .seqlens_k = INTS(40, 23), .head_dim = 64, .group = 2};
    pagedcl_device *device = fixture_open();
    attn_problem both = attn_problem_create(&c, 1);
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, &both);
    attn_problem parts[2] = {attn_problem_part(&both, 0, 0, 1, 40), attn_problem_part(&both, 1, 0, 1, 23)};
    strided outs[2];
    for (int i = 0; i < 2; i++)
        outs[i] = strided_create(device, both.c.out_dtype, 1, both.num_heads, 64, CONTIGUOUS, 0, NULL);
    for (int turn = 0; turn < 200; turn++) {
        cl_int code;
        cl_event start = clCreateUserEvent(pagedcl_device_context(device), &code);
        expect_cl(code);
        for (int i = 0; i < 2; i++) {
            int32_t seqlen = i == 0 ? 40 : 23, table[8];
            memcpy(table, both.block_table + i * both.block_table_stride, 3 * sizeof(int32_t));
            pagedcl_decode_batch batch = PAGEDCL_DECODE_BATCH_INIT;
            batch.num_seqs = 1;
            batch.seqlen_q = 1;
            batch.cache_seqlens = &seqlen;
            batch.block_table = table;
            batch.block_table_stride = 3;
            expect_ok(pagedcl_plan_decode(rig.plan, NULL, &batch));
            memset(table, 0x7f, sizeof(table));
            seqlen = INT32_MAX;
            pagedcl_attn_args args = attn_rig_args(&rig);
            args.q.offset = i * both.num_heads * 64;
            args.out = outs[i].view;
            args.lse = NULL;
            args.lse_offset = 0;
            bool held = i == 0 && turn % 10 == 0;
            expect_ok(pagedcl_attn_run(rig.attn, NULL, rig.plan, &args, held, held ? &start : NULL, NULL));
        }
        expect_cl(clSetUserEventStatus(start, CL_COMPLETE));
        expect_cl(clReleaseEvent(start));
        for (int i = 0; i < 2; i++) {
            attn_result result = {.out = strided_read(device, &outs[i], rig.name)};
            attn_expect_reference(&parts[i], &result, i == 0 ? "B93, step 1" : "B93, step 2");
            attn_result_destroy(&result);
        }
    }
    for (int i = 0; i < 2; i++) {
        strided_destroy(&outs[i]);
        attn_problem_destroy(&parts[i]);
    }
    attn_rig_close(&rig);
    attn_problem_destroy(&both);
    pagedcl_device_destroy(device);
}

/* An append and its attention, with splits and a merge, on a queue that promises no order, behind the caller's event. */
Test(attn_order, an_unordered_queue_keeps_the_order, .timeout = 60) {
    const attn_case ordered[] = {
        {"decode", DECODE, .append = 1, .seqlens_k = INTS(17, 1, 1300), .head_dim = 64, .group = 2},
        {"paged", VARLEN_PAGED, .append = 1, .causal = 1, .head_dim = 64, .group = 2},
    };
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    int num_tiers = fixture_tiers(device, tiers);
    cl_command_queue queue = open_queue(device, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    for (size_t i = 0; i < COUNT(ordered); i++) {
        for (int t = 0; t < num_tiers; t++) {
            attn_problem p = attn_problem_create(&ordered[i], 1);
            attn_rig rig = attn_rig_open(device, tiers[t], &p);
            cl_int code;
            cl_event start = clCreateUserEvent(pagedcl_device_context(device), &code), done;
            expect_cl(code);
            expect_ok(attn_rig_plan(&rig, queue));
            attn_rig_run(&rig, queue, 1, &start, &done);
            expect_cl(clSetUserEventStatus(start, CL_COMPLETE));
            expect_cl(clWaitForEvents(1, &done));
            expect_cl(clReleaseEvent(start));
            expect_cl(clReleaseEvent(done));
            attn_result result = attn_rig_read(&rig);
            attn_expect_reference(&p, &result, rig.name);
            attn_result_destroy(&result);
            attn_rig_close(&rig);
            attn_problem_destroy(&p);
        }
    }
    expect_cl(clReleaseCommandQueue(queue));
    pagedcl_device_destroy(device);
}

/* B114: an append on one queue, attention on another behind its event; the first queue goes away in between. The host
 * waits for the last event alone. */
Test(attn_order, an_event_crosses_queues, .timeout = 60) {
    attn_case c = {"B114", DECODE, .append = 1, .seqlens_k = INTS(17, 1, 40), .head_dim = 64, .group = 2};
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&c, 1);
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, &p);
    cl_command_queue first = open_queue(device, 0), second = open_queue(device, 0);
    int64_t slots[3];
    for (int b = 0; b < 3; b++) {
        int32_t position = p.cache_seqlens[b];
        slots[b] = (int64_t)p.block_table[b * p.block_table_stride + position / 16] * 16 + position % 16;
    }
    cl_event written, done;
    expect_ok(pagedcl_cache_write(rig.cache, first, 0, &rig.k_new.view, &rig.v_new.view, p.c.q_dtype, slots, 3, 0, NULL,
                                  &written));
    expect_cl(clReleaseCommandQueue(first));
    int32_t seqlens[3];
    for (int b = 0; b < 3; b++)
        seqlens[b] = p.cache_seqlens[b] + 1;
    pagedcl_decode_batch batch = PAGEDCL_DECODE_BATCH_INIT;
    batch.num_seqs = 3;
    batch.seqlen_q = 1;
    batch.cache_seqlens = seqlens;
    batch.block_table = p.block_table;
    batch.block_table_stride = p.block_table_stride;
    expect_ok(pagedcl_plan_decode(rig.plan, second, &batch));
    pagedcl_attn_args args = attn_rig_args(&rig);
    args.k_new = args.v_new = (pagedcl_tensor){0};
    expect_ok(pagedcl_attn_run(rig.attn, second, rig.plan, &args, 1, &written, &done));
    expect_cl(clWaitForEvents(1, &done));
    attn_result result = attn_rig_read(&rig);
    attn_expect_reference(&p, &result, rig.name);
    attn_result_destroy(&result);
    expect_cl(clReleaseEvent(written));
    expect_cl(clReleaseEvent(done));
    expect_cl(clReleaseCommandQueue(second));
    attn_rig_close(&rig);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}

/* Two plans of one operator, planned and run in turns. */
Test(attn_order, plans_do_not_disturb_each_other) {
    attn_case c = {"two plans", DECODE, .num_seqs = 2, .seqlens_k = INTS(1300, 23), .head_dim = 64, .group = 2};
    pagedcl_device *device = fixture_open();
    attn_problem both = attn_problem_create(&c, 1);
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, &both);
    pagedcl_plan *plans[2] = {rig.plan, NULL};
    expect_ok(pagedcl_plan_create(rig.attn, &plans[1]));
    strided outs[2];
    for (int i = 0; i < 2; i++) {
        outs[i] = strided_create(device, both.c.out_dtype, 1, both.num_heads, 64, CONTIGUOUS, 0, NULL);
        pagedcl_decode_batch batch = PAGEDCL_DECODE_BATCH_INIT;
        batch.num_seqs = 1;
        batch.seqlen_q = 1;
        batch.cache_seqlens = both.cache_seqlens + i;
        batch.block_table = both.block_table + i * both.block_table_stride;
        batch.block_table_stride = both.block_table_stride;
        expect_ok(pagedcl_plan_decode(plans[i], NULL, &batch));
    }
    for (int i = 0; i < 2; i++) {
        pagedcl_attn_args args = attn_rig_args(&rig);
        args.q.offset = i * both.num_heads * 64;
        args.out = outs[i].view;
        args.lse = NULL;
        args.lse_offset = 0;
        expect_ok(pagedcl_attn_run(rig.attn, NULL, plans[i], &args, 0, NULL, NULL));
    }
    for (int i = 0; i < 2; i++) {
        attn_problem part = attn_problem_part(&both, i, 0, 1, both.cache_seqlens[i]);
        attn_result result = {.out = strided_read(device, &outs[i], rig.name)};
        attn_expect_reference(&part, &result, i == 0 ? "first plan" : "second plan");
        attn_result_destroy(&result);
        attn_problem_destroy(&part);
        strided_destroy(&outs[i]);
    }
    pagedcl_plan_destroy(plans[1]);
    attn_rig_close(&rig);
    attn_problem_destroy(&both);
    pagedcl_device_destroy(device);
}

/* The operator keeps the cache and the device, the plan keeps the operator: any order of destruction will do. */
Test(attn_order, objects_keep_what_they_need) {
    attn_case c = {"destroyed early", DECODE, .append = 1, .head_dim = 64, .group = 2};
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&c, 1);
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, &p);
    expect_ok(attn_rig_plan(&rig, NULL));
    attn_rig_run(&rig, NULL, 0, NULL, NULL);
    cl_command_queue queue = pagedcl_device_queue(device);
    expect_cl(clRetainCommandQueue(queue));
    pagedcl_device_destroy(device);
    pagedcl_cache_destroy(rig.cache);
    pagedcl_attn_destroy(rig.attn);
    pagedcl_plan_destroy(rig.plan); /* the run may still be under way */
    rig.cache = NULL;
    rig.attn = NULL;
    rig.plan = NULL;
    expect_cl(clFinish(queue));
    expect_cl(clReleaseCommandQueue(queue));
    attn_rig_close(&rig);
    attn_problem_destroy(&p);
}
