/* SPDX-License-Identifier: Apache-2.0 */
/* Block tables that live on the device: equal bits to those of the host, and what is wrong in them is guarded. */
#include "support/attn_rig.h"
#include "support/expect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define F16 PAGEDCL_FLOAT16
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define INTS(...) ((const int32_t[]){__VA_ARGS__})

static void expect_faults(const attn_rig *rig, uint32_t reads, uint32_t writes, const char *when) {
    pagedcl_faults faults = {UINT32_MAX, UINT32_MAX};
    cl_event event;
    expect_ok(pagedcl_plan_read_faults(rig->plan, NULL, &faults, 0, NULL, &event));
    expect_cl(clWaitForEvents(1, &event));
    expect_cl(clReleaseEvent(event));
    cr_assert(faults.reads == reads && faults.writes == writes, "%s: %u reads and %u writes %s, want %u and %u",
              rig->name, faults.reads, faults.writes, when, reads, writes);
}

/* ---- good tables ---- */

/* B32: the same bits as with a table of the host, on every path. */
Test(attn_tables, good_tables_give_the_same_bits) {
    const attn_case cases[] = {
        {"paged", VARLEN_PAGED, .causal = 1},
        {"paged, append, gaps", VARLEN_PAGED, .causal = 1, .append = 1, .layout = WITH_GAPS, .pool = POOL_WITH_GAPS},
        {"decode, append", DECODE, .append = 1},
        {"decode, append, splits", DECODE, .append = 1, .seqlens_k = INTS(17, 1, 1300), .num_layers = 2},
        {"decode, a table of nothing", DECODE, .num_seqs = 2, .seqlens_k = INTS(0, 0)},
        {"decode, window, released blocks, float16", DECODE, .window = INTS(40, 0), .released = true,
         .seqlens_k = INTS(100, 5, 700), .q_dtype = F16, .kv_dtype = F16},
        {"decode, features", DECODE, .seqlen_q = 4, .append = 4, .softcap = 5, .alibi = 1, .sinks = true,
         .rotary_dim = 16, .tree = true, .block_size = 5},
    };
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    int num_tiers = fixture_tiers(device, tiers);
    for (size_t i = 0; i < COUNT(cases) * (size_t)num_tiers; i++) {
        attn_problem p = attn_problem_create(&cases[i % COUNT(cases)], i + 1);
        attn_result want = attn_solve(device, tiers[i / COUNT(cases)], &p);
        p.c.device_table = true;
        attn_rig rig = attn_rig_open(device, tiers[i / COUNT(cases)], &p);
        expect_ok(attn_rig_plan(&rig, NULL));
        attn_rig_run(&rig, NULL, 0, NULL, NULL);
        attn_result got = attn_rig_read(&rig);
        size_t rows = (size_t)attn_total_q(&p) * (size_t)p.num_heads;
        expect_same_bytes(rig.name, "out", got.out, want.out, rows * (size_t)p.c.head_dim_v * sizeof(float));
        expect_same_bytes(rig.name, "lse", got.lse, want.lse, rows * sizeof(float));
        expect_faults(&rig, 0, 0, "of a good table");
        attn_result_destroy(&got);
        attn_result_destroy(&want);
        attn_rig_close(&rig);
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/* ---- bad entries ---- */

enum { ONE_PAST = -77 }; /* stands for num_blocks */

/* From entry `first` of a sequence's row to `last`. */
typedef struct bad_entries {
    int32_t seq, first, last, value;
} bad_entries;

enum { MAX_BAD = 4 };

/* B21, B23, B28: keys without a block are hidden, tokens for it are not stored, each entry counts once a batch. */
Test(attn_tables, bad_entries_are_guarded) {
    const struct {
        attn_case c;
        uint32_t reads, writes;
        bad_entries bad[MAX_BAD]; /* up to one that begins behind its end */
    } cases[] = {
        {{.name = "decode", .path = DECODE}, 2, 0, {{0, 0, 0, -1}, {2, 1, 1, ONE_PAST}, {0, 1, 0, 0}}},
        /* Block 2 of the last sequence holds two old tokens and the new one, the others new ones alone. */
        {{"decode, append", DECODE, .append = 1},
         1,
         3,
         {{0, 1, 1, -5}, {1, 0, 0, -1}, {2, 2, 2, INT32_MAX}, {0, 1, 0, 0}}},
        {{"paged", VARLEN_PAGED, .causal = 1},
         3,
         0,
         {{2, 0, 0, ONE_PAST}, {2, 2, 2, INT32_MIN}, {1, 0, 0, -1}, {0, 1, 0, 0}}},
        {{"paged, append", VARLEN_PAGED, .causal = 1, .append = 1, .pool = POOL_WITH_GAPS},
         2,
         2,
         {{0, 0, 0, -1}, {2, 2, 2, -1}, {2, 3, 3, ONE_PAST}, {0, 1, 0, 0}}},
        /* No larger than it must be: it runs under oclgrind, too. */
        {{"the whole of a split, and of a sequence", DECODE, .seqlens_k = INTS(1030, 40, 520), .append = 1,
          .head_dim = 64, .group = 2},
         35,
         1,
         {{0, 32, 63, -1}, {1, 0, 2, ONE_PAST}, {0, 1, 0, 0}}},
        /* Position 79 is the first that a row sees: -1 before its block does not count, another number does. */
        {{"window", DECODE, .window = INTS(20, 0), .released = true, .seqlens_k = INTS(100, 5, 64)},
         2,
         0,
         {{0, 0, 0, ONE_PAST}, {0, 1, 3, -1}, {0, 4, 4, -1}, {0, 1, 0, 0}}},
        {{"features, 4 queries", DECODE, .seqlen_q = 4, .append = 4, .softcap = 5, .alibi = 2, .sinks = true,
          .rotary_dim = 16, .tree = true, .block_size = 5, .seqlens_k = INTS(20, 4, 33)},
         3,
         2,
         {{0, 3, 3, INT32_MAX}, {2, 1, 2, -2}, {2, 6, 6, ONE_PAST}, {0, 1, 0, 0}}},
        {{"float16, segments of one block", DECODE, .num_seqs = 2, .append = 1, .q_dtype = F16, .kv_dtype = F16,
          .seqlens_k = INTS(40, 17), .segment_blocks = 1},
         1,
         1,
         {{0, 0, 0, 8}, {1, 1, 1, 8}, {0, 1, 0, 0}}},
        {{"block size 1, V in K", DECODE, .append = 1, .block_size = 1, .head_dim = 40, .head_dim_v = 24,
          .v_in_k = true},
         2,
         1,
         {{0, 0, 0, -1}, {2, 3, 6, ONE_PAST}, {0, 1, 0, 0}}},
        {{"paged, block size 33, not causal", VARLEN_PAGED, .append = 1, .block_size = 33, .layout = WITH_GAPS,
          .pool = POOL_HND},
         1,
         1,
         {{2, 2, 2, -1}, {0, 1, 0, 0}}},
    };
    pagedcl_device *device = fixture_open();
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    int num_tiers = fixture_tiers(device, tiers);
    for (size_t i = 0; i < COUNT(cases); i++) {
        attn_problem p = attn_problem_create(&cases[i].c, i + 1);
        p.c.device_table = true;
        for (const bad_entries *bad = cases[i].bad; bad->first <= bad->last; bad++)
            for (int32_t entry = bad->first; entry <= bad->last; entry++)
                p.block_table[bad->seq * p.block_table_stride + entry] =
                    bad->value == ONE_PAST ? p.num_blocks : bad->value;
        for (int t = 0; t < num_tiers; t++) {
            attn_rig rig = attn_rig_open(device, tiers[t], &p);
            expect_ok(attn_rig_plan(&rig, NULL));
            attn_rig_run(&rig, NULL, 0, NULL, NULL);
            attn_result result = attn_rig_read(&rig);
            attn_expect_reference(&p, &result, rig.name);
            expect_faults(&rig, cases[i].reads, cases[i].writes, "of the first batch");
            attn_rig_run(&rig, NULL, 0, NULL, NULL);
            expect_faults(&rig, cases[i].reads, cases[i].writes, "after another run");
            expect_ok(attn_rig_plan(&rig, NULL));
            expect_faults(&rig, 2 * cases[i].reads, 2 * cases[i].writes, "of two batches");
            attn_result_destroy(&result);
            attn_rig_close(&rig);
        }
        attn_problem_destroy(&p);
    }
    pagedcl_device_destroy(device);
}

/* Nothing reads the table of a sequence without query tokens, nor an entry behind the length. */
Test(attn_tables, entries_that_nothing_reads_do_not_count) {
    const attn_case c = {"no queries", VARLEN_PAGED, .seqlens_q = INTS(0, 3, 0), .seqlens_k = INTS(40, 40, 0),
                         .device_table = true};
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&c, 1);
    p.block_table[0] = INT32_MAX;
    p.block_table[p.block_table_stride + 3] = INT32_MAX;
    p.block_table[2 * p.block_table_stride] = INT32_MAX;
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, &p);
    expect_ok(attn_rig_plan(&rig, NULL));
    attn_rig_run(&rig, NULL, 0, NULL, NULL);
    attn_result result = attn_rig_read(&rig);
    attn_expect_reference(&p, &result, rig.name);
    expect_faults(&rig, 0, 0, "that do not matter");
    attn_result_destroy(&result);
    attn_rig_close(&rig);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}

/* ---- when the table is read ---- */

static cl_mem table_of(const attn_rig *rig) {
    return rig->block_table.mem;
}

/* B93: every run has the table as it was at the plan's place in the queue. */
Test(attn_tables, a_batch_keeps_the_table_it_was_planned_with) {
    const attn_case c = {"overwritten", DECODE, .append = 1, .device_table = true};
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&c, 1);
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, &p);
    void *garbage = fixture_poisoned(rig.block_table.bytes);
    expect_ok(attn_rig_plan(&rig, NULL));
    expect_cl(clEnqueueWriteBuffer(pagedcl_device_queue(device), table_of(&rig), CL_FALSE, 0, rig.block_table.bytes,
                                   garbage, 0, NULL, NULL));
    for (int run = 0; run < 2; run++)
        attn_rig_run(&rig, NULL, 0, NULL, NULL);
    attn_result result = attn_rig_read(&rig);
    attn_expect_reference(&p, &result, rig.name);
    attn_result_destroy(&result);
    free(garbage);
    attn_rig_close(&rig);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}

/* On a queue without order the table is read behind the batch's events, and a run on another queue behind that. */
Test(attn_tables, the_table_is_read_behind_its_events, .timeout = 60) {
    const attn_case c = {"late", DECODE, .append = 1, .seqlens_k = INTS(17, 1, 700), .device_table = true};
    pagedcl_device *device = fixture_open();
    cl_context context = pagedcl_device_context(device);
    cl_int code;
    cl_command_queue unordered =
        clCreateCommandQueue(context, pagedcl_device_id(device), CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
    expect_cl(code);
    attn_problem p = attn_problem_create(&c, 1);
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, &p);
    size_t row = (size_t)p.block_table_stride;
    int32_t *bad = fixture_poisoned((size_t)p.c.num_seqs * row * sizeof(int32_t));
    const size_t offset = 2 * sizeof(int32_t), size = (size_t)p.c.num_seqs * row * sizeof(int32_t);
    expect_cl(
        clEnqueueWriteBuffer(pagedcl_device_queue(device), table_of(&rig), CL_TRUE, offset, size, bad, 0, NULL, NULL));
    /* On Intel's CPU runtime a write that blocks may still land after the call, and after a write on another queue. */
    expect_cl(clFinish(pagedcl_device_queue(device)));
    cl_event start = clCreateUserEvent(context, &code), written;
    expect_cl(code);
    expect_cl(
        clEnqueueWriteBuffer(unordered, table_of(&rig), CL_FALSE, offset, size, p.block_table, 1, &start, &written));
    const int32_t cache_seqlens[] = {16, 0, 699};
    pagedcl_decode_batch batch = PAGEDCL_DECODE_BATCH_INIT;
    batch.num_seqs = 3;
    batch.seqlen_q = batch.seqlen_new = 1;
    batch.cache_seqlens = cache_seqlens;
    batch.block_table_mem = table_of(&rig);
    batch.block_table_offset = 2;
    batch.block_table_stride = p.block_table_stride;
    batch.num_events = 1;
    batch.events = &written;
    expect_ok(pagedcl_plan_decode(rig.plan, unordered, &batch));
    attn_rig_run(&rig, NULL, 0, NULL, NULL);
    expect_cl(clFlush(unordered));
    expect_cl(clSetUserEventStatus(start, CL_COMPLETE));
    attn_result result = attn_rig_read(&rig);
    attn_expect_reference(&p, &result, rig.name);
    expect_faults(&rig, 0, 0, "of the table that was written in time");
    attn_result_destroy(&result);
    expect_cl(clFinish(unordered));
    expect_cl(clReleaseEvent(written));
    expect_cl(clReleaseEvent(start));
    expect_cl(clReleaseCommandQueue(unordered));
    free(bad);
    attn_rig_close(&rig);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}

/* ---- refusals ---- */

Test(attn_tables, wrong_tables_are_refused_and_change_nothing) {
    const attn_case c = {
        "refusals",          DECODE, .num_seqs = 2, .seqlens_k = INTS(17, 1), .append = 1, .both_paths = true,
        .device_table = true};
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&c, 1);
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, &p);
    expect_ok(attn_rig_plan(&rig, NULL));

    /* Before the append of decode, and with it, as varlen has them. */
    const int32_t lengths[2][2] = {{16, 0}, {17, 1}}, longer[2][2] = {{16, 64}, {17, 65}},
                  negative[2][2] = {{16, -2}, {17, -1}}, cu_seqlens_q[] = {0, 1, 2};
    const pagedcl_decode_batch good = {.struct_size = sizeof(good),
                                       .num_seqs = 2,
                                       .seqlen_q = 1,
                                       .seqlen_new = 1,
                                       .cache_seqlens = lengths[0],
                                       .block_table_mem = table_of(&rig),
                                       .block_table_offset = 2,
                                       .block_table_stride = p.block_table_stride};
    const struct {
        const int32_t (*lengths)[2], *host;
        bool without;
        int64_t offset, stride;
        pagedcl_status status;
        const char *words;
    } cases[] = {
        {lengths, p.block_table, false, 2, 4, PAGEDCL_INVALID_ARGUMENT, "block_table is given"},
        {lengths, p.block_table, true, 2, 4, PAGEDCL_INVALID_ARGUMENT, "block_table is given"},
        {lengths, NULL, true, 2, 4, PAGEDCL_INVALID_ARGUMENT, "block_table_mem"},
        {lengths, NULL, false, 3, 4, PAGEDCL_BUFFER_TOO_SMALL, "block_table_mem"},
        {lengths, NULL, false, 2, 5, PAGEDCL_BUFFER_TOO_SMALL, "block_table_mem"},
        {lengths, NULL, false, -1, 4, PAGEDCL_INVALID_ARGUMENT, "offset"},
        {lengths, NULL, false, INT64_MAX, 4, PAGEDCL_SIZE_OVERFLOW, "block_table_mem"},
        {lengths, NULL, false, 2, INT64_MAX, PAGEDCL_SIZE_OVERFLOW, "stride"},
        {lengths, NULL, false, 2, -1, PAGEDCL_INVALID_ARGUMENT, "stride"},
        {lengths, NULL, false, 2, 1, PAGEDCL_CAPACITY, "sequence 0"},
        {longer, NULL, false, 2, 4, PAGEDCL_CAPACITY, "sequence 1"},
        {negative, NULL, false, 2, 4, PAGEDCL_INVALID_LENGTH, "sequence 1"},
    };
    cr_assert_eq(p.block_table_stride, 4);
    for (size_t i = 0; i < COUNT(cases); i++) {
        pagedcl_decode_batch batch = good;
        batch.cache_seqlens = cases[i].lengths[0];
        batch.block_table = cases[i].host;
        batch.block_table_mem = cases[i].without ? NULL : good.block_table_mem;
        batch.block_table_offset = cases[i].offset;
        batch.block_table_stride = cases[i].stride;
        expect_refused(pagedcl_plan_decode(rig.plan, NULL, &batch), cases[i].status, cases[i].words);
        pagedcl_varlen_batch varlen = PAGEDCL_VARLEN_BATCH_INIT;
        varlen.num_seqs = 2;
        varlen.cu_seqlens_q = cu_seqlens_q;
        varlen.cache_seqlens = cases[i].lengths[1];
        varlen.block_table = batch.block_table;
        varlen.block_table_mem = batch.block_table_mem;
        varlen.block_table_offset = batch.block_table_offset;
        varlen.block_table_stride = batch.block_table_stride;
        expect_refused(pagedcl_plan_varlen(rig.plan, NULL, &varlen), cases[i].status, cases[i].words);
    }
    pagedcl_decode_batch batch = good;
    batch.num_events = 1;
    expect_refused(pagedcl_plan_decode(rig.plan, NULL, &batch), PAGEDCL_INVALID_ARGUMENT, "events");
    expect_refused(pagedcl_plan_read_faults(rig.plan, NULL, NULL, 0, NULL, NULL), PAGEDCL_INVALID_ARGUMENT, "faults");
    expect_refused(pagedcl_plan_read_faults(NULL, NULL, &(pagedcl_faults){0}, 0, NULL, NULL), PAGEDCL_INVALID_ARGUMENT,
                   "plan");

    attn_rig_run(&rig, NULL, 0, NULL, NULL);
    attn_result result = attn_rig_read(&rig);
    attn_expect_reference(&p, &result, "the batch from before");
    attn_result_destroy(&result);
    attn_rig_close(&rig);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}

/* What an operator without device_tables, or without a pool, is not given. */
Test(attn_tables, tables_of_the_other_kind_are_refused) {
    pagedcl_device *device = fixture_open();
    const attn_case cases[] = {{"host", DECODE, .both_paths = true}, {.name = "packed", .path = VARLEN_PACKED}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        attn_problem p = attn_problem_create(&cases[i], 1);
        attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, &p);
        pagedcl_varlen_batch varlen = PAGEDCL_VARLEN_BATCH_INIT;
        varlen.num_seqs = 1;
        varlen.cu_seqlens_q = INTS(0, 1);
        varlen.block_table_mem = rig.q.view.mem;
        if (cases[i].path == VARLEN_PACKED)
            varlen.cu_seqlens_k = INTS(0, 1);
        else
            varlen.cache_seqlens = INTS(1);
        expect_refused(pagedcl_plan_varlen(rig.plan, NULL, &varlen), PAGEDCL_INVALID_ARGUMENT, "block");
        varlen.block_table_mem = NULL;
        varlen.block_table_offset = 1;
        expect_refused(pagedcl_plan_varlen(rig.plan, NULL, &varlen), PAGEDCL_INVALID_ARGUMENT, "block");
        expect_refused(pagedcl_plan_read_faults(rig.plan, NULL, &(pagedcl_faults){0}, 0, NULL, NULL),
                       PAGEDCL_INVALID_ARGUMENT, "device_tables");
        attn_rig_close(&rig);
        attn_problem_destroy(&p);
    }
    pagedcl_attn_desc desc = PAGEDCL_ATTN_DESC_INIT;
    desc.num_heads = desc.num_kv_heads = 1;
    desc.head_dim = 8;
    pagedcl_attn *attn = NULL;
    desc.device_tables = 1;
    expect_refused(pagedcl_attn_create(device, &desc, &attn), PAGEDCL_INVALID_ARGUMENT, "device_tables");
    desc.device_tables = 2;
    expect_refused(pagedcl_attn_create(device, &desc, &attn), PAGEDCL_INVALID_ARGUMENT, "device_tables");
    cr_assert_null(attn);
    pagedcl_device_destroy(device);
}
