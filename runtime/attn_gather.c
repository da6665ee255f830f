/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gather baseline. Per batch: pool blocks to contiguous rows, elements to float32. Per sequence, over all heads:
 * scores = scale * Q K^T, softmax, result = P V, and the result to where the caller wants it. The products are
 * CLBlast's. Keys that a row does not see get the probability 0, so what they hold must be finite to stay without
 * effect on that row.
 *
 * This is a library of its own: apart from the headers of runtime/ that are marked as open to it, it uses the public
 * interface alone.
 */
#include <pagedcl/attn_gather.h>
#include <pagedcl/program.h>

#include "arguments.h"
#include "attn_args.h"
#include "status.h"
#include "struct_size.h"

#include <clblast_c.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

extern const char pcl_source_attn_gather[];

/* Device memory that grows with the batches. */
typedef struct scratch {
    cl_mem mem;
    size_t bytes;
} scratch;

enum { LOAD_Q, LOAD_KV, SOFTMAX, STORE, NUM_KERNELS };
static const char *const kernel_names[NUM_KERNELS] = {"attn_gather_load_q", "attn_gather_load_kv",
                                                      "attn_gather_softmax", "attn_gather_store"};

enum { MAX_WORK_GROUP = 128 };

/*
 * What the products read and have offsets into has rows this many elements apart. CLBlast 1.5.3 forgets the offset and
 * the stride of matrices whose rows are adjacent, when their sides are multiples of its tiles.
 */
enum { ROW_GAP = 8 };

struct pagedcl_attn_gather {
    pagedcl_device *device;
    pagedcl_plan *plan;     /* checks the batches; keeps the operator alive, and by it the pool and the device */
    pagedcl_attn_desc desc; /* kv_dtype: of packed keys, or what a gather from the pool gives */
    size_t work_group;      /* work-items for a row of scores */
    cl_kernel kernels[NUM_KERNELS];
    scratch pool_k, pool_v; /* what was gathered, in kv_dtype */
    scratch q, k, v;        /* loaded from the caller's or from these: float32, a gap behind each head */
    scratch scores;         /* [num_heads, seqlen_q, seqlen_k], a gap behind each row, of one sequence */
    scratch result;         /* [seqlen_q, num_heads, head_dim] of one sequence */
    cl_event last;          /* of the batch before, which uses the scratch memory until then */
};

/* One call. */
typedef struct gather_run {
    pagedcl_attn_gather *gather;
    cl_command_queue queue;
    bool out_of_order;
    pagedcl_varlen_batch batch;
    pagedcl_attn_args args; /* tensors with their strides filled in */
    bool paged;
    int64_t total_q, total_k;
    int64_t max_q, max_scores; /* of any sequence: query rows, elements of scores */
    pagedcl_tensor q, k, v;    /* float32: what the products read */
} gather_run;

void pagedcl_attn_gather_destroy(pagedcl_attn_gather *gather) {
    if (gather == NULL)
        return;
    scratch *all[] = {&gather->pool_k, &gather->pool_v, &gather->q,     &gather->k,
                      &gather->v,      &gather->scores, &gather->result};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->mem != NULL)
            clReleaseMemObject(all[i]->mem);
    for (int i = 0; i < NUM_KERNELS; i++)
        if (gather->kernels[i] != NULL)
            clReleaseKernel(gather->kernels[i]);
    if (gather->last != NULL)
        clReleaseEvent(gather->last);
    pagedcl_plan_destroy(gather->plan);
    free(gather);
}

static pagedcl_status create_kernels(pagedcl_attn_gather *gather) {
    pagedcl_device_info info = PAGEDCL_DEVICE_INFO_INIT;
    PCL_TRY(pagedcl_device_get_info(gather->device, &info));
    gather->work_group = MAX_WORK_GROUP;
    while (gather->work_group > info.max_work_group_size)
        gather->work_group /= 2;

    char options[160];
    snprintf(options, sizeof options, "-cl-std=CL1.2 -DQ_DTYPE=%s -DKV_DTYPE=%s -DOUT_DTYPE=%s -DTUNE_WG=%zu",
             pagedcl_dtype_name(gather->desc.q_dtype), pagedcl_dtype_name(gather->desc.kv_dtype),
             pagedcl_dtype_name(gather->desc.out_dtype), gather->work_group);
    cl_program program;
    PCL_TRY(pagedcl_programs_build(
        gather->device,
        &(pagedcl_program_desc){.name = "attn_gather", .source = pcl_source_attn_gather, .options = options}, 1,
        &program));
    cl_int code = CL_SUCCESS;
    for (int i = 0; i < NUM_KERNELS && code == CL_SUCCESS; i++)
        gather->kernels[i] = clCreateKernel(program, kernel_names[i], &code);
    clReleaseProgram(program);
    return code == CL_SUCCESS ? PAGEDCL_SUCCESS : pcl_fail_opencl(code, "clCreateKernel");
}

/* The baseline is plain attention. */
static pagedcl_status check_plain(const pagedcl_attn_desc *desc) {
    const char *feature = desc->has_window                     ? "a window"
                          : desc->softcap != 0                 ? "a softcap"
                          : desc->has_alibi                    ? "ALiBi"
                          : desc->has_sinks                    ? "sinks"
                          : desc->rotary_dim != 0              ? "rotary embedding"
                          : desc->has_tree                     ? "tree masks"
                          : desc->device_tables                ? "block tables on the device"
                          : desc->head_dim_v != desc->head_dim ? "another head_dim for V"
                          : desc->head_dim % 8 != 0            ? "a head_dim that is no multiple of 8"
                          : desc->paths == PAGEDCL_PATH_DECODE ? "the decode path alone"
                                                               : NULL;
    if (feature != NULL)
        return pcl_fail(PAGEDCL_UNSUPPORTED, "the gather baseline does not do %s: make an operator without it",
                        feature);
    return PAGEDCL_SUCCESS;
}

static pagedcl_status create(pagedcl_device *device, pagedcl_attn *attn, pagedcl_attn_gather *gather) {
    gather->device = device;
    gather->desc = (pagedcl_attn_desc)PAGEDCL_ATTN_DESC_INIT;
    PCL_TRY(pagedcl_attn_get_desc(attn, &gather->desc));
    PCL_TRY(check_plain(&gather->desc));
    PCL_TRY(pagedcl_plan_create(attn, &gather->plan));
    if (gather->desc.cache != NULL) {
        pagedcl_cache_desc cache = PAGEDCL_CACHE_DESC_INIT;
        PCL_TRY(pagedcl_cache_get_desc(gather->desc.cache, &cache));
        if (cache.v_in_k)
            return pcl_fail(PAGEDCL_UNSUPPORTED, "the gather baseline does not do V that lies in K");
        /* What pagedcl_cache_gather gives. */
        if (pagedcl_dtype_size(cache.dtype) < 2)
            gather->desc.kv_dtype = PAGEDCL_FLOAT32;
    }
    return create_kernels(gather);
}

pagedcl_status pagedcl_attn_gather_create(pagedcl_device *device, pagedcl_attn *attn, pagedcl_attn_gather **gather) {
    if (device == NULL || attn == NULL || gather == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s is NULL",
                        device == NULL ? "device"
                        : attn == NULL ? "attn"
                                       : "gather");
    pagedcl_attn_gather *made = calloc(1, sizeof *made);
    if (made == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no host memory for the gather baseline");
    pagedcl_status status = create(device, attn, made);
    if (status != PAGEDCL_SUCCESS) {
        pagedcl_attn_gather_destroy(made);
        return status;
    }
    *gather = made;
    return PAGEDCL_SUCCESS;
}

/* Makes the scratch memory hold at least that many elements. Commands that still use the old one keep it. */
static pagedcl_status reserve(const gather_run *run, scratch *memory, int64_t elements, pagedcl_dtype dtype) {
    size_t bytes = 0;
    if (__builtin_mul_overflow((uint64_t)elements, pagedcl_dtype_size(dtype), &bytes))
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "%" PRId64 " elements are too many bytes", elements);
    if (bytes <= memory->bytes)
        return PAGEDCL_SUCCESS;
    if (memory->mem != NULL)
        clReleaseMemObject(memory->mem);
    cl_int code = CL_SUCCESS;
    memory->bytes = 0;
    memory->mem = clCreateBuffer(pagedcl_device_context(run->gather->device), CL_MEM_READ_WRITE, bytes, NULL, &code);
    if (code != CL_SUCCESS) {
        memory->mem = NULL;
        if (code == CL_INVALID_BUFFER_SIZE || code == CL_MEM_OBJECT_ALLOCATION_FAILURE)
            return pcl_fail(PAGEDCL_OUT_OF_DEVICE_MEMORY,
                            "the gather baseline needs %zu more bytes for this batch: make it smaller", bytes);
        return pcl_fail_opencl(code, "clCreateBuffer");
    }
    memory->bytes = bytes;
    return PAGEDCL_SUCCESS;
}

/* a * b, and the largest value when that does not fit. */
static int64_t times(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

/* The products index by 32-bit integers. */
static pagedcl_status check_product_size(const char *name, int64_t elements) {
    if (elements <= INT32_MAX)
        return PAGEDCL_SUCCESS;
    return pcl_fail(PAGEDCL_UNSUPPORTED,
                    "%s would have %" PRId64 " elements, the matrix products of the gather baseline take 2^31 - 1",
                    name, elements);
}

/* The batch: checked by the plan, then counted. */
static pagedcl_status take_batch(gather_run *run, const pagedcl_varlen_batch *batch) {
    PCL_TRY(PCL_READ_STRUCT(&run->batch, batch, append));
    if (run->batch.append != 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "the gather baseline does not append: write the new tokens first");
    PCL_TRY(pagedcl_plan_varlen(run->gather->plan, run->queue, &run->batch));
    run->paged = run->batch.cu_seqlens_k == NULL;
    for (int32_t b = 0; b < run->batch.num_seqs; b++) {
        int64_t seqlen_q = run->batch.cu_seqlens_q[b + 1] - run->batch.cu_seqlens_q[b];
        int64_t seqlen_k =
            run->paged ? run->batch.cache_seqlens[b] : run->batch.cu_seqlens_k[b + 1] - run->batch.cu_seqlens_k[b];
        int64_t scores = times(seqlen_q * (seqlen_k + ROW_GAP), run->gather->desc.num_heads);
        run->total_q += seqlen_q;
        run->total_k += seqlen_k;
        if (seqlen_q > run->max_q)
            run->max_q = seqlen_q;
        if (scores > run->max_scores)
            run->max_scores = scores;
    }
    return check_product_size("the scores of a sequence", run->max_scores);
}

/* The caller's tensors: checked, with their strides filled in. */
static pagedcl_status take_tensors(gather_run *run, const pagedcl_attn_args *args) {
    const pcl_attn_counts counts = {
        .num_seqs = run->batch.num_seqs, .total_q = run->total_q, .total_k = run->paged ? 0 : run->total_k};
    return pcl_attn_args_read(&run->gather->desc, &counts, args, &run->args);
}

/* What the products read of a tensor: itself in place, or its elements loaded. */
static pagedcl_status take_operand(const gather_run *run, const char *name, const pagedcl_tensor *tensor, bool in_place,
                                   int64_t tokens, int64_t heads, scratch *loaded, pagedcl_tensor *operand) {
    const int64_t head_dim = run->gather->desc.head_dim;
    if (tokens == 0)
        return PAGEDCL_SUCCESS;
    if (in_place) {
        *operand = *tensor;
        return check_product_size(name, operand->offset + (tokens - 1) * operand->token_stride +
                                            (heads - 1) * operand->head_stride + head_dim);
    }
    const int64_t row = heads * (head_dim + ROW_GAP);
    PCL_TRY(check_product_size(name, times(tokens, row)));
    PCL_TRY(reserve(run, loaded, tokens * row, PAGEDCL_FLOAT32));
    *operand = (pagedcl_tensor){.mem = loaded->mem, .token_stride = row, .head_stride = head_dim + ROW_GAP};
    return PAGEDCL_SUCCESS;
}

/* Keys are read where they are when they can be. */
static pagedcl_status take_keys(const gather_run *run, const char *name, const pagedcl_tensor *tensor, scratch *loaded,
                                pagedcl_tensor *operand) {
    const pagedcl_attn_desc *desc = &run->gather->desc;
    const bool in_place = desc->kv_dtype == PAGEDCL_FLOAT32 && tensor->token_stride > desc->head_dim;
    return take_operand(run, name, tensor, in_place, run->total_k, desc->num_kv_heads, loaded, operand);
}

/* All memory that the run needs. */
static pagedcl_status reserve_all(gather_run *run) {
    pagedcl_attn_gather *g = run->gather;
    const pagedcl_attn_desc *desc = &g->desc;
    if (run->paged) {
        const int64_t row = (int64_t)desc->num_kv_heads * desc->head_dim;
        const int64_t elements = times(run->total_k, row);
        PCL_TRY(check_product_size("the keys", elements));
        PCL_TRY(reserve(run, &g->pool_k, elements, desc->kv_dtype));
        PCL_TRY(reserve(run, &g->pool_v, elements, desc->kv_dtype));
        run->args.k = (pagedcl_tensor){.mem = g->pool_k.mem, .token_stride = row, .head_stride = desc->head_dim};
        run->args.v = (pagedcl_tensor){.mem = g->pool_v.mem, .token_stride = row, .head_stride = desc->head_dim};
    }
    PCL_TRY(take_operand(run, "q", &run->args.q, false, run->total_q, desc->num_heads, &g->q, &run->q));
    PCL_TRY(take_keys(run, "k", &run->args.k, &g->k, &run->k));
    PCL_TRY(take_keys(run, "v", &run->args.v, &g->v, &run->v));
    const int64_t results = times(run->max_q, (int64_t)desc->num_heads * desc->head_dim);
    PCL_TRY(check_product_size("the result of a sequence", results));
    PCL_TRY(reserve(run, &g->result, results, PAGEDCL_FLOAT32));
    return reserve(run, &g->scores, run->max_scores, PAGEDCL_FLOAT32);
}

/* What follows waits for all before, also on an out-of-order queue: CLBlast takes no list of events. */
static pagedcl_status barrier(const gather_run *run) {
    if (!run->out_of_order)
        return PAGEDCL_SUCCESS;
    cl_int code = clEnqueueBarrierWithWaitList(run->queue, 0, NULL, NULL);
    return code == CL_SUCCESS ? PAGEDCL_SUCCESS : pcl_fail_opencl(code, "clEnqueueBarrierWithWaitList");
}

static pagedcl_status wait_for(const gather_run *run, cl_uint num_events, const cl_event *events) {
    if (num_events == 0)
        return PAGEDCL_SUCCESS;
    cl_int code = clEnqueueBarrierWithWaitList(run->queue, num_events, events, NULL);
    return code == CL_SUCCESS ? PAGEDCL_SUCCESS : pcl_fail_opencl(code, "clEnqueueBarrierWithWaitList");
}

static pagedcl_status launch(const gather_run *run, const pcl_arguments *arguments, cl_uint dimensions,
                             const size_t *global, const size_t *local) {
    if (arguments->code != CL_SUCCESS)
        return pcl_fail_opencl(arguments->code, "clSetKernelArg");
    cl_int code = clEnqueueNDRangeKernel(run->queue, arguments->kernel, dimensions, NULL, global, local, 0, NULL, NULL);
    return code == CL_SUCCESS ? PAGEDCL_SUCCESS : pcl_fail_opencl(code, "clEnqueueNDRangeKernel");
}

/* Elements of the caller's or the pool's to float32, unless the products read them where they are. */
static pagedcl_status load(const gather_run *run, int kernel, const pagedcl_tensor *from, const pagedcl_tensor *to,
                           int64_t tokens, int32_t heads) {
    if (tokens == 0 || from->mem == to->mem)
        return PAGEDCL_SUCCESS;
    pcl_arguments arguments = pcl_arguments_of(run->gather->kernels[kernel]);
    pcl_argument_tensor(&arguments, from);
    pcl_argument_tensor(&arguments, to);
    const size_t global[] = {(size_t)run->gather->desc.head_dim / 8, (size_t)heads, (size_t)tokens};
    return launch(run, &arguments, 3, global, NULL);
}

static pagedcl_status load_all(const gather_run *run) {
    const pagedcl_attn_desc *desc = &run->gather->desc;
    const pagedcl_attn_args *args = &run->args;
    if (run->paged && run->total_k > 0) {
        const pagedcl_tensor k = {.mem = args->k.mem};
        const pagedcl_tensor v = {.mem = args->v.mem};
        PCL_TRY(pagedcl_cache_gather(desc->cache, run->queue, args->layer, run->batch.block_table,
                                     run->batch.block_table_stride, run->batch.cache_seqlens, run->batch.num_seqs, &k,
                                     &v, 0, NULL, NULL));
        PCL_TRY(barrier(run));
    }
    PCL_TRY(load(run, LOAD_Q, &args->q, &run->q, run->total_q, desc->num_heads));
    PCL_TRY(load(run, LOAD_KV, &args->k, &run->k, run->total_k, desc->num_kv_heads));
    PCL_TRY(load(run, LOAD_KV, &args->v, &run->v, run->total_k, desc->num_kv_heads));
    return barrier(run);
}

/* A batch of row-major matrices in one buffer, in elements. */
typedef struct matrices {
    cl_mem mem;
    int64_t offset, stride; /* of the first matrix, from one to the next */
    int64_t row_stride;
} matrices;

/*
 * How the query heads of a tensor are multiplied: the rows of a head are a matrix, and the heads that read KV head i are
 * the batch. But with one row, the heads of a group are the rows of a matrix, and the groups are the batch: so K and V
 * are read once, by one call.
 */
static matrices query_matrices(const pagedcl_tensor *t, int32_t group, int32_t i, bool one_row) {
    if (one_row)
        return (matrices){t->mem, t->offset, group * t->head_stride, t->head_stride};
    return (matrices){t->mem, t->offset + (int64_t)i * group * t->head_stride, t->head_stride, t->token_stride};
}

/* The other factor: KV head i for all of the batch, or one KV head each. */
static matrices key_matrices(const pagedcl_tensor *t, int32_t i, bool one_row) {
    return (matrices){t->mem, t->offset + i * t->head_stride, one_row ? t->head_stride : 0, t->token_stride};
}

/*
 * c = alpha * a b for each query head, n columns, with b that of its KV head. The batches are strided, since CLBlast
 * uploads the offsets of any others by blocking writes.
 */
static pagedcl_status multiply(const gather_run *run, int32_t seqlen_q, int64_t n, int64_t k, float alpha,
                               const pagedcl_tensor *a_heads, CLBlastTranspose transpose_b,
                               const pagedcl_tensor *b_heads, const pagedcl_tensor *c_heads) {
    const int32_t kv_heads = run->gather->desc.num_kv_heads;
    const int32_t group = run->gather->desc.num_heads / kv_heads;
    const bool one_row = seqlen_q == 1;
    const size_t m = (size_t)(one_row ? group : seqlen_q);
    const size_t batch = (size_t)(one_row ? kv_heads : group);
    cl_command_queue queue = run->queue;
    for (int32_t i = 0; i < (one_row ? 1 : kv_heads); i++) {
        const matrices a = query_matrices(a_heads, group, i, one_row);
        const matrices b = key_matrices(b_heads, i, one_row);
        const matrices c = query_matrices(c_heads, group, i, one_row);
        CLBlastStatusCode code = CLBlastSgemmStridedBatched(
            CLBlastLayoutRowMajor, CLBlastTransposeNo, transpose_b, m, (size_t)n, (size_t)k, alpha, a.mem,
            (size_t)a.offset, (size_t)a.row_stride, (size_t)a.stride, b.mem, (size_t)b.offset, (size_t)b.row_stride,
            (size_t)b.stride, 0, c.mem, (size_t)c.offset, (size_t)c.row_stride, (size_t)c.stride, batch, &queue, NULL);
        if (code != CLBlastSuccess)
            return pcl_fail_opencl((cl_int)code, "CLBlastSgemmStridedBatched");
    }
    return barrier(run);
}

static pagedcl_status softmax(const gather_run *run, const pagedcl_tensor *scores, int32_t seqlen_q, int32_t seqlen_k,
                              int64_t first_q) {
    const pagedcl_attn_gather *g = run->gather;
    pcl_arguments arguments = pcl_arguments_of(g->kernels[SOFTMAX]);
    pcl_argument_mem(&arguments, scores->mem);
    pcl_argument_long(&arguments, scores->token_stride);
    pcl_argument_int(&arguments, seqlen_q);
    pcl_argument_int(&arguments, seqlen_k);
    pcl_argument_int(&arguments, g->desc.causal);
    pcl_argument_mem(&arguments, run->args.lse);
    pcl_argument_long(&arguments, run->args.lse == NULL ? -1 : run->args.lse_offset + first_q * g->desc.num_heads);
    const size_t global[] = {(size_t)seqlen_q * g->work_group, (size_t)g->desc.num_heads};
    const size_t local[] = {g->work_group, 1};
    PCL_TRY(launch(run, &arguments, 2, global, local));
    return barrier(run);
}

/* The rows of a tensor from `token` on. */
static pagedcl_tensor rows_from(const pagedcl_tensor *tensor, int64_t token) {
    pagedcl_tensor rows = *tensor;
    rows.offset += token * tensor->token_stride;
    return rows;
}

static pagedcl_status store(const gather_run *run, const pagedcl_tensor *result, int32_t seqlen_q, int32_t seqlen_k,
                            int64_t first_q) {
    const pagedcl_attn_gather *g = run->gather;
    const pagedcl_tensor out = rows_from(&run->args.out, first_q);
    pcl_arguments arguments = pcl_arguments_of(g->kernels[STORE]);
    pcl_argument_tensor(&arguments, result);
    pcl_argument_int(&arguments, seqlen_q);
    pcl_argument_int(&arguments, seqlen_k);
    pcl_argument_int(&arguments, g->desc.causal);
    pcl_argument_tensor(&arguments, &out);
    const size_t global[] = {(size_t)g->desc.head_dim / 8, (size_t)g->desc.num_heads, (size_t)seqlen_q};
    PCL_TRY(launch(run, &arguments, 3, global, NULL));
    return barrier(run);
}

static pagedcl_status attend_sequence(const gather_run *run, int64_t first_q, int32_t seqlen_q, int64_t first_k,
                                      int32_t seqlen_k) {
    const pagedcl_attn_gather *g = run->gather;
    const int64_t head_dim = g->desc.head_dim;
    const pagedcl_tensor q = rows_from(&run->q, first_q);
    const pagedcl_tensor k = rows_from(&run->k, first_k);
    const pagedcl_tensor v = rows_from(&run->v, first_k);
    const int64_t score_row = (int64_t)seqlen_k + ROW_GAP;
    const pagedcl_tensor scores = {
        .mem = g->scores.mem, .token_stride = score_row, .head_stride = seqlen_q * score_row};
    const pagedcl_tensor result = {
        .mem = g->result.mem, .token_stride = g->desc.num_heads * head_dim, .head_stride = head_dim};

    if (seqlen_k > 0)
        PCL_TRY(
            multiply(run, seqlen_q, seqlen_k, head_dim, g->desc.softmax_scale, &q, CLBlastTransposeYes, &k, &scores));
    PCL_TRY(softmax(run, &scores, seqlen_q, seqlen_k, first_q));
    if (seqlen_k > 0)
        PCL_TRY(multiply(run, seqlen_q, head_dim, seqlen_k, 1, &scores, CLBlastTransposeNo, &v, &result));
    return store(run, &result, seqlen_q, seqlen_k, first_q);
}

static pagedcl_status enqueue(gather_run *run, cl_uint num_events, const cl_event *events) {
    pagedcl_attn_gather *g = run->gather;
    PCL_TRY(wait_for(run, num_events, events));
    PCL_TRY(wait_for(run, g->last != NULL, &g->last));
    PCL_TRY(load_all(run));
    int64_t first_k = 0;
    for (int32_t b = 0; b < run->batch.num_seqs; b++) {
        const int32_t first_q = run->batch.cu_seqlens_q[b];
        const int32_t seqlen_q = run->batch.cu_seqlens_q[b + 1] - first_q;
        const int32_t seqlen_k =
            run->paged ? run->batch.cache_seqlens[b] : run->batch.cu_seqlens_k[b + 1] - run->batch.cu_seqlens_k[b];
        if (seqlen_q > 0)
            PCL_TRY(attend_sequence(run, first_q, seqlen_q, first_k, seqlen_k));
        first_k += seqlen_k;
    }

    cl_event end = NULL;
    cl_int code = clEnqueueMarkerWithWaitList(run->queue, 0, NULL, &end);
    if (code != CL_SUCCESS)
        return pcl_fail_opencl(code, "clEnqueueMarkerWithWaitList");
    if (g->last != NULL)
        clReleaseEvent(g->last);
    g->last = end;
    code = clFlush(run->queue);
    return code == CL_SUCCESS ? PAGEDCL_SUCCESS : pcl_fail_opencl(code, "clFlush");
}

pagedcl_status pagedcl_attn_gather_varlen(pagedcl_attn_gather *gather, cl_command_queue queue,
                                          const pagedcl_varlen_batch *batch, const pagedcl_attn_args *args,
                                          cl_uint num_events, const cl_event *events, cl_event *event) {
    if (gather == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "gather is NULL");
    if ((num_events > 0) != (events != NULL))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "num_events is %u but events is %s", (unsigned)num_events,
                        events != NULL ? "not NULL" : "NULL");
    gather_run run = {.gather = gather, .queue = queue != NULL ? queue : pagedcl_device_queue(gather->device)};
    cl_command_queue_properties properties = 0;
    cl_int code = clGetCommandQueueInfo(run.queue, CL_QUEUE_PROPERTIES, sizeof properties, &properties, NULL);
    if (code != CL_SUCCESS)
        return pcl_fail_opencl(code, "clGetCommandQueueInfo");
    run.out_of_order = (properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) != 0;

    PCL_TRY(take_batch(&run, batch));
    PCL_TRY(take_tensors(&run, args));
    PCL_TRY(reserve_all(&run));
    pagedcl_status status = enqueue(&run, num_events, events);
    if (status != PAGEDCL_SUCCESS) {
        /* Nothing of the half-done run may touch the scratch memory, or the caller's, afterwards. */
        clFinish(run.queue);
        return status;
    }
    if (event == NULL)
        return PAGEDCL_SUCCESS;
    code = clRetainEvent(gather->last);
    if (code != CL_SUCCESS)
        return pcl_fail_opencl(code, "clRetainEvent");
    *event = gather->last;
    return PAGEDCL_SUCCESS;
}
