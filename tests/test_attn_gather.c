/* SPDX-License-Identifier: Apache-2.0 */
#include "support/attn_rig.h"
#include "support/compare.h"
#include "support/elements.h"
#include "support/expect.h"

#include "case.h"

#include <pagedcl/attn_gather.h>

#include <clblast_c.h>
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>

static pagedcl_varlen_batch batch_of(const attn_problem *p) {
    pagedcl_varlen_batch batch = PAGEDCL_VARLEN_BATCH_INIT;
    batch.num_seqs = p->c.num_seqs;
    batch.cu_seqlens_q = p->cu_seqlens_q;
    if (p->c.path == VARLEN_PACKED) {
        batch.cu_seqlens_k = p->cu_seqlens_k;
    } else {
        batch.block_table = p->block_table;
        batch.block_table_stride = p->block_table_stride;
        batch.cache_seqlens = p->cache_seqlens;
    }
    return batch;
}

static pagedcl_attn_gather *gather_of(const attn_rig *rig) {
    pagedcl_attn_gather *gather = NULL;
    expect_ok(pagedcl_attn_gather_create(rig->device, rig->attn, &gather));
    return gather;
}

static pagedcl_status run(pagedcl_attn_gather *gather, const attn_rig *rig) {
    const pagedcl_varlen_batch batch = batch_of(rig->problem);
    const pagedcl_attn_args args = attn_rig_args(rig);
    return pagedcl_attn_gather_varlen(gather, NULL, &batch, &args, 0, NULL, NULL);
}

static void expect_reference(attn_rig *rig) {
    attn_result result = attn_rig_read(rig);
    attn_expect_reference(rig->problem, &result, rig->name);
    attn_result_destroy(&result);
}

static void check_cases(const attn_case *cases, size_t count) {
    pagedcl_device *device = fixture_open();
    for (size_t i = 0; i < count; i++) {
        attn_problem problem = attn_problem_create(&cases[i], i + 1);
        attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_PORTABLE, &problem);
        pagedcl_attn_gather *gather = gather_of(&rig);
        pagedcl_status status = run(gather, &rig);
        cr_assert_eq(status, PAGEDCL_SUCCESS, "%s: %s", rig.name, pagedcl_last_error());
        expect_reference(&rig);
        pagedcl_attn_gather_destroy(gather);
        attn_rig_close(&rig);
        attn_problem_destroy(&problem);
    }
    pagedcl_device_destroy(device);
}

static const int32_t some_empty_q[] = {0, 3, 0, 1};
static const int32_t some_empty_k[] = {5, 0, 0, 17};
static const int32_t more_q_than_k_q[] = {10, 3, 1};
static const int32_t more_q_than_k_k[] = {0, 1, 7};
static const int32_t one_row[] = {1};
static const int32_t many_keys[] = {300};
static const int32_t many_rows[] = {130};

#define F16 .q_dtype = PAGEDCL_FLOAT16, .kv_dtype = PAGEDCL_FLOAT16, .out_dtype = PAGEDCL_FLOAT16
#define BF16 .q_dtype = PAGEDCL_BFLOAT16, .kv_dtype = PAGEDCL_BFLOAT16, .out_dtype = PAGEDCL_BFLOAT16

Test(attn_gather, packed) {
    const attn_case cases[] = {
        {.name = "default"},
        {.name = "causal", .causal = 1},
        {.name = "gaps", .causal = 1, .layout = WITH_GAPS},
        {.name = "float16", .causal = 1, F16},
        {.name = "float16 with gaps", .causal = 1, .layout = WITH_GAPS, F16},
        {.name = "bfloat16 with gaps", .causal = 1, .layout = WITH_GAPS, BF16},
        {.name = "float32 q, float16 keys, bfloat16 out", .kv_dtype = PAGEDCL_FLOAT16, .out_dtype = PAGEDCL_BFLOAT16},
        {.name = "one head", .num_kv_heads = 1, .group = 1, .head_dim = 8, .causal = 1},
        {.name = "no group", .num_kv_heads = 3, .group = 1, .head_dim = 256},
        {.name = "scale", .scale = 0.7f, .causal = 1},
        {.name = "no lse", .without_lse = true},
        {.name = "empty sequences", .num_seqs = 4, .seqlens_q = some_empty_q, .seqlens_k = some_empty_k},
        {.name = "empty sequences, causal",
         .num_seqs = 4,
         .seqlens_q = some_empty_q,
         .seqlens_k = some_empty_k,
         .causal = 1},
        {.name = "more rows than keys", .seqlens_q = more_q_than_k_q, .seqlens_k = more_q_than_k_k, .causal = 1},
        {.name = "more keys than work-items", .num_seqs = 1, .seqlens_q = one_row, .seqlens_k = many_keys},
        {.name = "long", .num_seqs = 1, .seqlens_q = many_rows, .seqlens_k = many_keys, .causal = 1},
    };
    check_cases(cases, sizeof cases / sizeof *cases);
}

Test(attn_gather, paged) {
    const attn_case cases[] = {
        {.name = "paged", .path = VARLEN_PAGED},
        {.name = "paged causal", .path = VARLEN_PAGED, .causal = 1},
        {.name = "paged block 1", .path = VARLEN_PAGED, .causal = 1, .block_size = 1},
        {.name = "paged block 5, gaps", .path = VARLEN_PAGED, .causal = 1, .block_size = 5, .layout = WITH_GAPS},
        {.name = "paged float16", .path = VARLEN_PAGED, .causal = 1, F16},
        {.name = "paged bfloat16, gaps", .path = VARLEN_PAGED, .causal = 1, .layout = WITH_GAPS, BF16},
        {.name = "paged float16 pool", .path = VARLEN_PAGED, .kv_dtype = PAGEDCL_FLOAT16},
        {.name = "paged int8", .path = VARLEN_PAGED, .kv_dtype = PAGEDCL_INT8, .k_scale = 0.03125f, .v_scale = 0.0625f},
        {.name = "paged e4m3", .path = VARLEN_PAGED, .causal = 1, .kv_dtype = PAGEDCL_FLOAT8_E4M3},
        {.name = "paged int4", .path = VARLEN_PAGED, .causal = 1, .kv_dtype = PAGEDCL_INT4},
        {.name = "paged int4, one head",
         .path = VARLEN_PAGED,
         .kv_dtype = PAGEDCL_INT4,
         .num_kv_heads = 1,
         .group = 1,
         .head_dim = 72},
        {.name = "paged last layer, segments", .path = VARLEN_PAGED, .num_layers = 3, .segment_blocks = 3},
        {.name = "paged empty sequences",
         .path = VARLEN_PAGED,
         .num_seqs = 4,
         .seqlens_q = some_empty_q,
         .seqlens_k = some_empty_k,
         .causal = 1},
    };
    check_cases(cases, sizeof cases / sizeof *cases);
}

/* Matrices as CLBlast's fast kernel likes them, of which 1.5.3 forgets the offset when it need not copy them. */
Test(attn_gather, sides_that_are_multiples_of_tiles) {
    static const int32_t lengths[] = {128, 128}, one[] = {1, 1};
    const attn_case shapes[] = {
        {.name = "two KV heads", .num_kv_heads = 2, .group = 2},
        {.name = "one KV head", .num_kv_heads = 1, .group = 2},
        {.name = "one head", .num_kv_heads = 1, .group = 1},
        {.name = "one row", .num_kv_heads = 2, .group = 64, .seqlens_q = one},
        {.name = "one row, one KV head", .num_kv_heads = 1, .group = 64, .seqlens_q = one},
        {.name = "one row, one head", .num_kv_heads = 1, .group = 1, .seqlens_q = one},
    };
    pagedcl_device *device = fixture_open();
    const char *names[] = {"XGEMM_MIN_INDIRECT_SIZE"};
    const size_t values[] = {1};
    cr_assert_eq(
        CLBlastOverrideParameters(pagedcl_device_id(device), "GemmRoutine", CLBlastPrecisionSingle, 1, names, values),
        CLBlastSuccess);
    pagedcl_device_destroy(device);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int variant = 0; variant < 4; variant++) {
            attn_case c = shapes[i];
            c.num_seqs = 2;
            c.head_dim = 128;
            c.seqlens_k = lengths;
            c.seqlens_q = c.seqlens_q ? c.seqlens_q : lengths;
            c.path = variant / 2 ? VARLEN_PAGED : VARLEN_PACKED;
            c.layout = variant % 2 ? WITH_GAPS : CONTIGUOUS;
            check_cases(&c, 1);
        }
}

static float *floats_of(const safetensors_tensor *tensor) {
    float *floats = fixture_alloc((size_t)tensor->num_elements * sizeof(float));
    void *aligned = memcpy(fixture_alloc(tensor->num_bytes), tensor->data, tensor->num_bytes);
    elements_to_floats(case_dtype(tensor), aligned, tensor->num_elements, floats);
    free(aligned);
    return floats;
}

static int32_t *ints_of(const safetensors_tensor *tensor) {
    return tensor == NULL ? NULL : memcpy(fixture_alloc(tensor->num_bytes), tensor->data, tensor->num_bytes);
}

static strided upload(pagedcl_device *device, const safetensors_tensor *tensor) {
    if (tensor == NULL)
        return (strided){0};
    float *floats = floats_of(tensor);
    strided made = strided_create(device, case_dtype(tensor), tensor->shape[0], (int32_t)tensor->shape[1],
                                  (int32_t)tensor->shape[2], CONTIGUOUS, 0, floats);
    free(floats);
    return made;
}

static void expect_tensor(const case_file *c, const char *path, const char *what, const float *got,
                          const safetensors_tensor *tensor) {
    float *floats = floats_of(tensor);
    double *want = fixture_alloc((size_t)tensor->num_elements * sizeof(double));
    for (int64_t i = 0; i < tensor->num_elements; i++)
        want[i] = (double)floats[i];
    expect_close(path, what, got, want, tensor->num_elements, ((tolerance){c->atol, c->rtol}));
    free(floats);
    free(want);
}

static void check_golden(pagedcl_device *device, const case_file *c, const char *path) {
    pagedcl_attn_desc desc = PAGEDCL_ATTN_DESC_INIT;
    desc.num_heads = c->num_heads;
    desc.num_kv_heads = c->num_kv_heads;
    desc.head_dim = c->head_dim;
    desc.kv_dtype = case_dtype(c->k_cache ? c->k_cache : c->k);
    desc.q_dtype = case_dtype(c->q);
    desc.out_dtype = PAGEDCL_FLOAT32;
    desc.softmax_scale = c->softmax_scale;
    desc.causal = c->causal;
    if (c->k_cache != NULL) {
        pagedcl_cache_desc pool = PAGEDCL_CACHE_DESC_INIT;
        pool.num_blocks = c->num_blocks;
        pool.block_size = c->block_size;
        pool.num_kv_heads = c->num_kv_heads;
        pool.head_dim = c->head_dim;
        pool.dtype = desc.kv_dtype;
        expect_ok(pagedcl_cache_create(device, &pool, &desc.cache));
        expect_ok(pagedcl_cache_upload_blocks(desc.cache, NULL, 0, NULL, c->num_blocks, c->k_cache->data,
                                              c->v_cache->data, 0, NULL, NULL));
        expect_cl(clFinish(pagedcl_device_queue(device)));
    }
    pagedcl_attn *attn;
    pagedcl_attn_gather *gather;
    expect_ok(pagedcl_attn_create(device, &desc, &attn));
    expect_ok(pagedcl_attn_gather_create(device, attn, &gather));
    /* The baseline keeps both alive. */
    pagedcl_attn_destroy(attn);
    pagedcl_cache_destroy(desc.cache);

    int32_t *ints[] = {ints_of(c->cu_seqlens_q), ints_of(c->cu_seqlens_k), ints_of(c->block_table),
                       ints_of(c->cache_seqlens)};
    pagedcl_varlen_batch batch = PAGEDCL_VARLEN_BATCH_INIT;
    batch.num_seqs = c->num_seqs;
    batch.cu_seqlens_q = ints[0];
    batch.cu_seqlens_k = ints[1];
    batch.block_table = ints[2];
    batch.block_table_stride = c->block_table ? c->block_table->shape[1] : 0;
    batch.cache_seqlens = ints[3];

    strided q = upload(device, c->q), k = upload(device, c->k), v = upload(device, c->v);
    strided out =
        strided_create(device, PAGEDCL_FLOAT32, c->q->shape[0], c->num_heads, c->head_dim, WITH_GAPS, 0, NULL);
    guarded lse = guarded_create(device, c->expect_lse->num_bytes, NULL);
    pagedcl_attn_args args = PAGEDCL_ATTN_ARGS_INIT;
    args.q = q.view;
    args.k = k.view;
    args.v = v.view;
    args.out = out.view;
    args.lse = lse.mem;
    expect_ok(pagedcl_attn_gather_varlen(gather, NULL, &batch, &args, 0, NULL, NULL));

    float *got_out = strided_read(device, &out, path), *got_lse = guarded_read(device, &lse, path);
    expect_tensor(c, path, "out", got_out, c->expect_out);
    expect_tensor(c, path, "lse", got_lse, c->expect_lse);
    free(got_out);
    free(got_lse);
    strided *tensors[] = {&q, &k, &v, &out};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        strided_destroy(tensors[i]);
    guarded_destroy(&lse);
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
        free(ints[i]);
    pagedcl_attn_gather_destroy(gather);
}

Test(attn_gather, golden) {
    pagedcl_device *device = fixture_open();
    glob_t files;
    cr_assert_eq(glob(TEST_CASES_DIR "/*varlen*.safetensors", 0, NULL, &files), 0);
    int checked = 0;
    for (size_t i = 0; i < files.gl_pathc; i++) {
        char error[512];
        case_file *c = case_open(files.gl_pathv[i], error, sizeof error);
        cr_assert(c, "%s", error);
        bool plain =
            c->window_left < 0 && c->window_right < 0 && c->softcap == 0 && c->alibi_slopes == NULL && c->sinks == NULL;
        if (c->op == CASE_VARLEN && c->expect_error == NULL && plain) {
            check_golden(device, c, files.gl_pathv[i]);
            checked++;
        }
        case_close(c);
    }
    cr_assert_geq(checked, 11);
    globfree(&files);
    pagedcl_device_destroy(device);
}

/* A row that sees no key is 0, whatever the values hold that it does not see. */
Test(attn_gather, rows_without_keys) {
    pagedcl_device *device = fixture_open();
    const attn_case c = {
        .name = "NaN behind", .num_seqs = 1, .seqlens_q = (int32_t[]){3}, .seqlens_k = one_row, .causal = 1};
    attn_problem problem = attn_problem_create(&c, 1);
    const int64_t row = (int64_t)problem.num_heads * problem.c.head_dim;
    for (int64_t i = 0; i < (int64_t)problem.c.num_kv_heads * problem.c.head_dim; i++)
        problem.k[i] = problem.v[i] = NAN;
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_PORTABLE, &problem);
    pagedcl_attn_gather *gather = gather_of(&rig);
    expect_ok(run(gather, &rig));
    attn_result result = attn_rig_read(&rig);
    for (int64_t i = 0; i < 2 * row; i++)
        cr_assert(result.out[i] == 0, "element %d is %g", (int)i, (double)result.out[i]);
    for (int32_t i = 0; i < 2 * problem.num_heads; i++)
        cr_assert(result.lse[i] == -INFINITY, "LSE %d is %g", (int)i, (double)result.lse[i]);
    attn_result_destroy(&result);
    pagedcl_attn_gather_destroy(gather);
    attn_rig_close(&rig);
    attn_problem_destroy(&problem);
    pagedcl_device_destroy(device);
}

/* One baseline, batches that grow and shrink, on queues of either kind. */
Test(attn_gather, queues_and_events) {
    pagedcl_device *device = fixture_open();
    cl_context context = pagedcl_device_context(device);
    cl_int code;
    cl_command_queue queues[3] = {pagedcl_device_queue(device)};
    queues[1] = clCreateCommandQueue(context, pagedcl_device_id(device), 0, &code);
    expect_cl(code);
    queues[2] = clCreateCommandQueue(context, pagedcl_device_id(device), CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
    if (code == CL_INVALID_QUEUE_PROPERTIES)
        queues[2] = clCreateCommandQueue(context, pagedcl_device_id(device), 0, &code);
    expect_cl(code);

    const attn_case c = {.name = "several batches", .path = VARLEN_PAGED, .causal = 1, F16};
    attn_problem problem = attn_problem_create(&c, 1);
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_PORTABLE, &problem);
    pagedcl_attn_gather *gather = gather_of(&rig);
    const pagedcl_attn_args args = attn_rig_args(&rig);
    const pagedcl_varlen_batch whole = batch_of(&problem);
    pagedcl_varlen_batch part = whole;
    part.num_seqs = 1;

    for (int i = 0; i < 3; i++) {
        cl_event start = clCreateUserEvent(context, &code), first, done;
        expect_cl(code);
        /* The second call is told nothing, but the first has the scratch memory. */
        expect_ok(pagedcl_attn_gather_varlen(gather, queues[i], &part, &args, 1, &start, &first));
        expect_ok(pagedcl_attn_gather_varlen(gather, queues[(i + 1) % 3], &whole, &args, 0, NULL, &done));
        thrd_sleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        const cl_event waiting[] = {first, done};
        for (int w = 0; w < 2; w++) {
            cl_int state;
            expect_cl(clGetEventInfo(waiting[w], CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL));
            cr_assert_gt(state, CL_COMPLETE, "call %d on queue %d did not wait", w, i);
        }
        expect_cl(clSetUserEventStatus(start, CL_COMPLETE));
        expect_cl(clWaitForEvents(1, &done));
        expect_reference(&rig);
        clReleaseEvent(start);
        clReleaseEvent(first);
        clReleaseEvent(done);
    }
    pagedcl_attn_gather_destroy(gather);
    clReleaseCommandQueue(queues[1]);
    clReleaseCommandQueue(queues[2]);
    attn_rig_close(&rig);
    attn_problem_destroy(&problem);
    pagedcl_device_destroy(device);
}

Test(attn_gather, refused) {
    pagedcl_device *device = fixture_open();
    const attn_case c = {.name = "refused", .path = VARLEN_PAGED};
    attn_problem problem = attn_problem_create(&c, 1);
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_PORTABLE, &problem);
    pagedcl_attn_gather *gather = NULL;
    expect_refused(pagedcl_attn_gather_create(NULL, rig.attn, &gather), PAGEDCL_INVALID_ARGUMENT, "device");
    expect_refused(pagedcl_attn_gather_create(device, NULL, &gather), PAGEDCL_INVALID_ARGUMENT, "attn");
    expect_refused(pagedcl_attn_gather_create(device, rig.attn, NULL), PAGEDCL_INVALID_ARGUMENT, "gather");
    cr_assert_null(gather);
    gather = gather_of(&rig);

    const pagedcl_varlen_batch good = batch_of(&problem);
    const pagedcl_attn_args good_args = attn_rig_args(&rig);
    pagedcl_varlen_batch batch = good;
    pagedcl_attn_args args = good_args;
    cl_event event = NULL;
#define REFUSED(status, words)                                                                                   \
    do {                                                                                                         \
        expect_refused(pagedcl_attn_gather_varlen(gather, NULL, &batch, &args, 0, NULL, &event), status, words); \
        cr_assert_null(event);                                                                                   \
        batch = good;                                                                                            \
        args = good_args;                                                                                        \
    } while (0)
    batch.append = 1;
    REFUSED(PAGEDCL_INVALID_ARGUMENT, "does not append");
    batch.struct_size = 8;
    REFUSED(PAGEDCL_INVALID_ARGUMENT, "batch->struct_size");
    args.struct_size = 8;
    REFUSED(PAGEDCL_INVALID_ARGUMENT, "args->struct_size");
    batch.block_table_stride = 1;
    REFUSED(PAGEDCL_CAPACITY, "tokens need");
    args.layer = 1;
    REFUSED(PAGEDCL_INVALID_ARGUMENT, "layer 1");
    args.layer = -1;
    REFUSED(PAGEDCL_INVALID_ARGUMENT, "layer -1");
    args.q.mem = NULL;
    REFUSED(PAGEDCL_INVALID_ARGUMENT, "q has no buffer");
    args.q.offset = 1;
    REFUSED(PAGEDCL_BUFFER_TOO_SMALL, "q needs");
    args.out.mem = NULL;
    REFUSED(PAGEDCL_INVALID_ARGUMENT, "out has no buffer");
    args.out.head_stride = INT64_MAX / 2;
    REFUSED(PAGEDCL_INVALID_ARGUMENT, "out has ");
    args.lse_offset = 6 * (int64_t)problem.num_heads;
    REFUSED(PAGEDCL_BUFFER_TOO_SMALL, "lse needs");
#undef REFUSED
    expect_refused(pagedcl_attn_gather_varlen(NULL, NULL, &batch, &args, 0, NULL, NULL), PAGEDCL_INVALID_ARGUMENT,
                   "gather");
    expect_refused(pagedcl_attn_gather_varlen(gather, NULL, NULL, &args, 0, NULL, NULL), PAGEDCL_INVALID_ARGUMENT,
                   "batch");
    expect_refused(pagedcl_attn_gather_varlen(gather, NULL, &batch, NULL, 0, NULL, NULL), PAGEDCL_INVALID_ARGUMENT,
                   "args");
    expect_refused(pagedcl_attn_gather_varlen(gather, NULL, &batch, &args, 1, NULL, NULL), PAGEDCL_INVALID_ARGUMENT,
                   "events");

    /* Nothing was written; a good call still goes through. */
    float *out = strided_read(device, &rig.out, rig.name);
    for (int64_t i = 0; i < (int64_t)attn_total_q(&problem) * problem.num_heads * problem.c.head_dim; i++)
        cr_assert(isnan(out[i]));
    free(out);
    batch.num_seqs = 0;
    expect_ok(pagedcl_attn_gather_varlen(gather, NULL, &batch, &args, 0, NULL, &event));
    expect_cl(clWaitForEvents(1, &event));
    clReleaseEvent(event);
    expect_ok(run(gather, &rig));
    expect_reference(&rig);
    pagedcl_attn_gather_destroy(gather);
    pagedcl_attn_gather_destroy(NULL);
    attn_rig_close(&rig);
    attn_problem_destroy(&problem);
    pagedcl_device_destroy(device);
}

/* Scores beyond what the products index, and beyond the device's memory. */
Test(attn_gather, too_large) {
    pagedcl_device *device = fixture_open();
    pagedcl_device_info info = PAGEDCL_DEVICE_INFO_INIT;
    expect_ok(pagedcl_device_get_info(device, &info));
    const int32_t lengths[] = {46341, 46336};
    for (int i = 0; i < 2; i++) {
        const attn_case c = {.name = "large scores",
                             .num_seqs = 1,
                             .seqlens_q = &lengths[i],
                             .seqlens_k = &lengths[i],
                             .num_kv_heads = 1,
                             .group = 1,
                             .head_dim = 8};
        const uint64_t bytes = (uint64_t)lengths[i] * (uint64_t)lengths[i] * sizeof(float); /* of scores, and more */
        if (i == 1 && bytes <= info.max_allocation)
            continue;
        attn_problem problem = attn_problem_create(&c, 1);
        attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_PORTABLE, &problem);
        pagedcl_attn_gather *gather = gather_of(&rig);
        if (i == 0)
            expect_refused(run(gather, &rig), PAGEDCL_UNSUPPORTED, "2147859009 elements");
        else
            expect_refused(run(gather, &rig), PAGEDCL_OUT_OF_DEVICE_MEMORY, "8589582336 more bytes");
        pagedcl_attn_gather_destroy(gather);
        attn_rig_close(&rig);
        attn_problem_destroy(&problem);
    }
    pagedcl_device_destroy(device);
}
