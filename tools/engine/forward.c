/* SPDX-License-Identifier: Apache-2.0 */
#include "forward.h"

#include "layers.h"

#include <clblast_c.h>
#include <math.h>
#include <stdlib.h>

struct forward {
    pagedcl_device *device;
    cl_command_queue queue;
    const model *model;
    layers layers;
    pagedcl_cache *cache;
    pagedcl_attn *attn;
    pagedcl_plan *decode;
    pagedcl_plan *prefill;
    cl_mem frequencies; /* [head_dim / 2], of the rotary embedding */
    cl_mem tokens;      /* int32 [max_rows] */
    cl_mem positions;   /* int32 [max_rows] */
    cl_mem output_rows; /* int32 [max_outputs] */
    cl_mem hidden;      /* [max_rows, hidden_size]: the residual stream */
    cl_mem normed;      /* [max_rows, hidden_size] */
    cl_mem qkv;         /* [max_rows, num_heads + 2 * num_kv_heads, head_dim] */
    cl_mem attended;    /* [max_rows, num_heads, head_dim] */
    cl_mem gate_up;     /* [max_rows, 2, intermediate_size] */
    cl_mem activated;   /* [max_rows, intermediate_size] */
    cl_mem logits;      /* [max_outputs, vocab_size] */
};

/* Full of zeros: CLBlast's Sgemv multiplies what it overwrites by 0, so that must be finite from the start. */
static bool make_buffer(const forward *f, int64_t rows, int64_t width, cl_mem *buffer, tool_error *error) {
    const cl_float zero = 0.0f; /* of the int32 buffers too */
    size_t bytes = (size_t)(rows * width) * sizeof zero;
    cl_int code;
    *buffer = clCreateBuffer(pagedcl_device_context(f->device), CL_MEM_READ_WRITE, bytes, NULL, &code);
    if (code == CL_SUCCESS)
        code = clEnqueueFillBuffer(f->queue, *buffer, &zero, sizeof zero, 0, bytes, 0, NULL, NULL);
    return code == CL_SUCCESS || tool_fail(error, "no device memory for a step's buffers (OpenCL error %d)", (int)code);
}

static bool make_buffers(forward *f, int64_t rows, int64_t outputs, tool_error *error) {
    const model_config *c = &f->model->config;
    return make_buffer(f, 1, c->head_dim / 2, &f->frequencies, error) && make_buffer(f, rows, 1, &f->tokens, error) &&
           make_buffer(f, rows, 1, &f->positions, error) && make_buffer(f, outputs, 1, &f->output_rows, error) &&
           make_buffer(f, rows, c->hidden_size, &f->hidden, error) &&
           make_buffer(f, rows, c->hidden_size, &f->normed, error) &&
           make_buffer(f, rows, (c->num_heads + 2 * (int64_t)c->num_kv_heads) * c->head_dim, &f->qkv, error) &&
           make_buffer(f, rows, (int64_t)c->num_heads * c->head_dim, &f->attended, error) &&
           make_buffer(f, rows, 2 * (int64_t)c->intermediate_size, &f->gate_up, error) &&
           make_buffer(f, rows, c->intermediate_size, &f->activated, error) &&
           make_buffer(f, outputs, c->vocab_size, &f->logits, error);
}

static bool write(const forward *f, cl_mem buffer, const void *values, int32_t count, tool_error *error) {
    cl_int code = clEnqueueWriteBuffer(f->queue, buffer, CL_FALSE, 0, (size_t)count * 4, values, 0, NULL, NULL);
    return tool_try_opencl(error, code, "clEnqueueWriteBuffer");
}

/* theta^(-2i / head_dim) */
static bool set_frequencies(const forward *f, tool_error *error) {
    float frequencies[128];
    const model_config *c = &f->model->config;
    for (int32_t i = 0; i < c->head_dim / 2; i++)
        frequencies[i] = (float)pow(c->rope_theta, -2.0 * i / c->head_dim);
    if (!write(f, f->frequencies, frequencies, c->head_dim / 2, error))
        return false;
    cl_int code = clFinish(f->queue);
    return tool_try_opencl(error, code, "clFinish");
}

static bool make_attention(forward *f, const pagedcl_cache_desc *pool, tool_error *error) {
    if (!tool_try(error, pagedcl_cache_create(f->device, pool, &f->cache), "KV pool"))
        return false;
    pagedcl_attn_desc attn = PAGEDCL_ATTN_DESC_INIT;
    attn.cache = f->cache;
    attn.num_heads = f->model->config.num_heads;
    attn.q_dtype = PAGEDCL_FLOAT32;
    attn.causal = 1;
    if (!tool_try(error, pagedcl_attn_create(f->device, &attn, &f->attn), "attention") ||
        !tool_try(error, pagedcl_plan_create(f->attn, &f->decode), "attention") ||
        !tool_try(error, pagedcl_plan_create(f->attn, &f->prefill), "attention"))
        return false;
    return true;
}

void forward_destroy(forward *f) {
    if (f == NULL)
        return;
    layers_destroy(&f->layers);
    pagedcl_plan_destroy(f->decode);
    pagedcl_plan_destroy(f->prefill);
    pagedcl_attn_destroy(f->attn);
    pagedcl_cache_destroy(f->cache);
    cl_mem buffers[] = {f->frequencies, f->tokens,   f->positions, f->output_rows, f->hidden, f->normed,
                        f->qkv,         f->attended, f->gate_up,   f->activated,   f->logits};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        if (buffers[i] != NULL)
            clReleaseMemObject(buffers[i]);
    free(f);
}

/* out [rows, outputs] = in [rows, inputs] * weight [outputs, inputs]^T + beta * out */
static bool multiply(forward *f, cl_mem in, cl_mem weight, cl_mem out, int32_t rows, int64_t outputs, int64_t inputs,
                     float beta, tool_error *error) {
    size_t m = (size_t)rows;
    size_t n = (size_t)outputs;
    size_t k = (size_t)inputs;
    CLBlastStatusCode code = rows == 1
                                 ? CLBlastSgemv(CLBlastLayoutRowMajor, CLBlastTransposeNo, n, k, 1.0f, weight, 0, k, in,
                                                0, 1, beta, out, 0, 1, &f->queue, NULL)
                                 : CLBlastSgemm(CLBlastLayoutRowMajor, CLBlastTransposeNo, CLBlastTransposeYes, m, n, k,
                                                1.0f, in, 0, k, weight, 0, k, beta, out, 0, n, &f->queue, NULL);
    return code == CLBlastSuccess || tool_fail(error, "CLBlast failed with status %d", (int)code);
}

/* Uploads the step, and copies the blocks that must be copied before it writes. */
static bool start(forward *f, const engine_step *step, tool_error *error) {
    pagedcl_decode_batch decode = PAGEDCL_DECODE_BATCH_INIT;
    decode.num_seqs = step->num_decode;
    decode.seqlen_q = 1;
    decode.seqlen_new = 1;
    decode.cache_seqlens = step->cache_seqlens;
    decode.block_table = step->block_table;
    decode.block_table_stride = step->block_table_stride;
    pagedcl_varlen_batch prefill = PAGEDCL_VARLEN_BATCH_INIT;
    prefill.num_seqs = step->num_prefill;
    prefill.cu_seqlens_q = step->prefill_cu_seqlens;
    prefill.block_table = step->block_table + step->num_decode * step->block_table_stride;
    prefill.block_table_stride = step->block_table_stride;
    prefill.cache_seqlens = step->cache_seqlens + step->num_decode;
    prefill.append = 1;
    if (step->num_copies > 0 &&
        !tool_try(error, pagedcl_cache_copy_blocks(f->cache, f->queue, step->copies, step->num_copies, 0, NULL, NULL),
                  "copy of blocks"))
        return false;
    if (step->num_decode > 0 && !tool_try(error, pagedcl_plan_decode(f->decode, f->queue, &decode), "decode plan"))
        return false;
    if (step->num_prefill > 0 && !tool_try(error, pagedcl_plan_varlen(f->prefill, f->queue, &prefill), "prefill plan"))
        return false;
    return write(f, f->tokens, step->tokens, step->num_rows, error) &&
           write(f, f->positions, step->positions, step->num_rows, error) &&
           (step->num_outputs == 0 || write(f, f->output_rows, step->output_rows, step->num_outputs, error));
}

/* Stores the keys and values of the rows from first_row on and attends; q, k and v lie side by side in qkv. */
static bool attend(forward *f, pagedcl_plan *plan, int32_t layer, int32_t first_row, tool_error *error) {
    const model_config *c = &f->model->config;
    int64_t q_width = (int64_t)c->num_heads * c->head_dim;
    int64_t kv_width = (int64_t)c->num_kv_heads * c->head_dim;
    int64_t row_width = q_width + 2 * kv_width;
    int64_t first = first_row * row_width;
    pagedcl_attn_args args = PAGEDCL_ATTN_ARGS_INIT;
    args.layer = layer;
    args.q = (pagedcl_tensor){.mem = f->qkv, .offset = first, .token_stride = row_width};
    args.k_new = (pagedcl_tensor){.mem = f->qkv, .offset = first + q_width, .token_stride = row_width};
    args.v_new = (pagedcl_tensor){.mem = f->qkv, .offset = first + q_width + kv_width, .token_stride = row_width};
    args.out = (pagedcl_tensor){.mem = f->attended, .offset = first_row * q_width};
    return tool_try(error, pagedcl_attn_run(f->attn, f->queue, plan, &args, 0, NULL, NULL), "attention");
}

static bool run_layer(forward *f, const engine_step *step, int32_t index, tool_error *error) {
    const model_config *c = &f->model->config;
    const model_layer *layer = &f->model->layers[index];
    int32_t rows = step->num_rows;
    int64_t q_width = (int64_t)c->num_heads * c->head_dim;
    int64_t qkv_width = q_width + 2 * (int64_t)c->num_kv_heads * c->head_dim;
    return layers_rms_norm(&f->layers, f->hidden, layer->attn_norm, f->normed, rows, c->hidden_size, c->rms_norm_eps,
                           error) &&
           multiply(f, f->normed, layer->qkv, f->qkv, rows, qkv_width, c->hidden_size, 0.0f, error) &&
           layers_norm_rotate(&f->layers, f->qkv, layer->q_norm, layer->k_norm, f->frequencies, f->positions, rows, c,
                              error) &&
           (step->num_decode == 0 || attend(f, f->decode, index, 0, error)) &&
           (step->num_prefill == 0 || attend(f, f->prefill, index, step->num_decode, error)) &&
           multiply(f, f->attended, layer->attn_out, f->hidden, rows, c->hidden_size, q_width, 1.0f, error) &&
           layers_rms_norm(&f->layers, f->hidden, layer->mlp_norm, f->normed, rows, c->hidden_size, c->rms_norm_eps,
                           error) &&
           multiply(f, f->normed, layer->gate_up, f->gate_up, rows, 2 * (int64_t)c->intermediate_size, c->hidden_size,
                    0.0f, error) &&
           layers_silu_multiply(&f->layers, f->gate_up, f->activated, rows, c->intermediate_size, error) &&
           multiply(f, f->activated, layer->mlp_out, f->hidden, rows, c->hidden_size, c->intermediate_size, 1.0f,
                    error);
}

/* The logits of the output rows, on the host. Blocks in every case: the next step's arrays may be written then. */
static bool finish(forward *f, const engine_step *step, float *logits, tool_error *error) {
    const model_config *c = &f->model->config;
    if (step->num_outputs == 0) {
        cl_int code = clFinish(f->queue);
        return tool_try_opencl(error, code, "clFinish");
    }
    if (!layers_take_rows(&f->layers, f->hidden, f->output_rows, f->normed, step->num_outputs, c->hidden_size, error) ||
        !layers_rms_norm(&f->layers, f->normed, f->model->norm, f->normed, step->num_outputs, c->hidden_size,
                         c->rms_norm_eps, error) ||
        !multiply(f, f->normed, f->model->head, f->logits, step->num_outputs, c->vocab_size, c->hidden_size, 0.0f,
                  error))
        return false;
    cl_int code =
        clEnqueueReadBuffer(f->queue, f->logits, CL_TRUE, 0,
                            (size_t)step->num_outputs * (size_t)c->vocab_size * sizeof *logits, logits, 0, NULL, NULL);
    return tool_try_opencl(error, code, "clEnqueueReadBuffer");
}

bool forward_run(forward *f, const engine_step *step, float *logits, tool_error *error) {
    const model_config *c = &f->model->config;
    bool ok = start(f, step, error) && layers_take_rows(&f->layers, f->model->embedding, f->tokens, f->hidden,
                                                        step->num_rows, c->hidden_size, error);
    for (int32_t i = 0; ok && i < c->num_layers; i++)
        ok = run_layer(f, step, i, error);
    return ok && finish(f, step, logits, error);
}

/*
 * Multiplies two rows of anything, then computes a one-token prompt and a one-token decode in block 0: implementations
 * that compile kernels when they are first enqueued (CLBlast, PoCL) do so here and not in the first step.
 */
static bool warm_up(forward *f, tool_error *error) {
    float *logits = malloc((size_t)f->model->config.vocab_size * sizeof *logits);
    if (logits == NULL)
        return tool_fail(error, "out of memory");
    int32_t zero = 0;
    int32_t prefill_seqlen = 1;
    int32_t cu_seqlens[2] = {0, 1};
    engine_step step = {.num_rows = 1,
                        .tokens = &zero,
                        .positions = &zero,
                        .num_prefill = 1,
                        .requests = &zero,
                        .cache_seqlens = &prefill_seqlen,
                        .prefill_cu_seqlens = cu_seqlens,
                        .block_table = &zero,
                        .block_table_stride = 1,
                        .num_outputs = 1,
                        .output_rows = &zero,
                        .output_requests = &zero};
    const model_config *c = &f->model->config;
    bool ok = multiply(f, f->activated, f->model->layers[0].mlp_out, f->hidden, 2, c->hidden_size, c->intermediate_size,
                       1.0f, error) &&
              forward_run(f, &step, logits, error);
    step.num_prefill = 0;
    step.num_decode = 1;
    step.cache_seqlens = &zero;
    ok = ok && forward_run(f, &step, logits, error);
    free(logits);
    return ok;
}

forward *forward_create(pagedcl_device *device, const model *m, const pagedcl_cache_desc *pool, int32_t max_rows,
                        int32_t max_outputs, tool_error *error) {
    forward *f = calloc(1, sizeof *f);
    if (f == NULL) {
        tool_fail(error, "out of memory");
        return NULL;
    }
    f->device = device;
    f->queue = pagedcl_device_queue(device);
    f->model = m;
    if (make_buffers(f, max_rows, max_outputs, error) && set_frequencies(f, error) && make_attention(f, pool, error) &&
        layers_create(device, &f->layers, error) && warm_up(f, error))
        return f;
    forward_destroy(f);
    return NULL;
}
