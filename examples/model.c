/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include "setup.h"

enum { NUM_LAYERS = 2, NUM_HEADS = 8, NUM_KV_HEADS = 2, HEAD_DIM = 64, MAX_ROWS = MODEL_MAX_SEQS + MODEL_MAX_CHUNK };
enum { Q = NUM_HEADS * HEAD_DIM, KV = NUM_KV_HEADS * HEAD_DIM, QKV = Q + 2 * KV };

struct model {
    cl_command_queue queue;
    pagedcl_cache *cache;
    pagedcl_attn *attn;
    pagedcl_plan *plans[MODEL_PATHS];
    cl_mem qkv, out; /* the same as the arrays; decode has the first MODEL_MAX_SEQS rows, prefill the others */
    float host_qkv[NUM_LAYERS][MAX_ROWS][QKV];
    uint32_t host_out[NUM_LAYERS][MAX_ROWS][Q]; /* the bits of floats */
};

model *model_create(pagedcl_device *device, int32_t num_blocks) {
    model *m = calloc(1, sizeof *m);
    check_cl(m == NULL ? CL_OUT_OF_HOST_MEMORY : CL_SUCCESS);
    m->queue = pagedcl_device_queue(device);
    m->cache = make_cache(device, NUM_LAYERS, num_blocks, MODEL_BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM);
    m->attn = make_attn(device, m->cache, NUM_HEADS);
    for (int path = 0; path < MODEL_PATHS; path++)
        check(pagedcl_plan_create(m->attn, &m->plans[path]));
    m->qkv = make_buffer(pagedcl_device_context(device), sizeof m->host_qkv);
    m->out = make_buffer(pagedcl_device_context(device), sizeof m->host_out);
    return m;
}

void model_destroy(model *m) {
    clReleaseMemObject(m->qkv);
    clReleaseMemObject(m->out);
    for (int path = 0; path < MODEL_PATHS; path++)
        pagedcl_plan_destroy(m->plans[path]);
    pagedcl_attn_destroy(m->attn);
    pagedcl_cache_destroy(m->cache);
    free(m);
}

/* Checks and uploads both batches, once for all layers. */
static void plan(model *m, const model_step *step) {
    pagedcl_decode_batch decode = PAGEDCL_DECODE_BATCH_INIT;
    decode.num_seqs = step->num_seqs[MODEL_DECODE];
    decode.seqlen_q = 1;
    decode.seqlen_new = 1;
    decode.cache_seqlens = step->cache_seqlens[MODEL_DECODE];
    decode.block_table = step->block_table[MODEL_DECODE][0];
    decode.block_table_stride = MODEL_ROW_BLOCKS;
    check(pagedcl_plan_decode(m->plans[MODEL_DECODE], m->queue, &decode));
    pagedcl_varlen_batch prefill = PAGEDCL_VARLEN_BATCH_INIT;
    prefill.num_seqs = step->num_seqs[MODEL_PREFILL];
    prefill.cu_seqlens_q = step->cu_seqlens_q[MODEL_PREFILL];
    prefill.cache_seqlens = step->cache_seqlens[MODEL_PREFILL];
    prefill.block_table = step->block_table[MODEL_PREFILL][0];
    prefill.block_table_stride = MODEL_ROW_BLOCKS;
    prefill.append = 1;
    check(pagedcl_plan_varlen(m->plans[MODEL_PREFILL], m->queue, &prefill));
}

static int32_t first_row(int path) {
    return path == MODEL_DECODE ? 0 : MODEL_MAX_SEQS;
}

/* Stores the keys and values of a batch, then attends. */
static void attend(model *m, int path, int32_t layer) {
    int64_t row = (int64_t)layer * MAX_ROWS + first_row(path);
    pagedcl_attn_args args = PAGEDCL_ATTN_ARGS_INIT;
    args.layer = layer;
    args.q = (pagedcl_tensor){.mem = m->qkv, .offset = row * QKV, .token_stride = QKV};
    args.k_new = (pagedcl_tensor){.mem = m->qkv, .offset = row * QKV + Q, .token_stride = QKV};
    args.v_new = (pagedcl_tensor){.mem = m->qkv, .offset = row * QKV + Q + KV, .token_stride = QKV};
    args.out = (pagedcl_tensor){.mem = m->out, .offset = row * Q};
    check(pagedcl_attn_run(m->attn, m->queue, m->plans[path], &args, 0, NULL, NULL));
}

/* Numbers between -2 and 2. */
static void project(int32_t token, int32_t layer, float *qkv) {
    uint32_t x = (uint32_t)token + (uint32_t)layer;
    for (int i = 0; i < QKV; i++) {
        x = x * 1664525u + 1013904223u;
        qkv[i] = (float)(int32_t)x * 0x1p-30f;
    }
}

static int32_t sample(const model *m, int32_t row) {
    uint32_t hash = 0;
    for (int layer = 0; layer < NUM_LAYERS; layer++)
        for (int i = 0; i < Q; i++)
            hash = (hash ^ m->host_out[layer][row][i]) * 16777619u;
    return (int32_t)(hash >> 1);
}

void model_forward(model *m, model_step *step) {
    for (int path = 0; path < MODEL_PATHS; path++)
        for (int32_t i = 0; i < step->cu_seqlens_q[path][step->num_seqs[path]]; i++)
            for (int32_t layer = 0; layer < NUM_LAYERS; layer++)
                project(step->tokens[path][i], layer, m->host_qkv[layer][first_row(path) + i]);
    check_cl(clEnqueueWriteBuffer(m->queue, m->qkv, CL_FALSE, 0, sizeof m->host_qkv, m->host_qkv, 0, NULL, NULL));
    check(pagedcl_actions_enqueue(m->cache, NULL, 0, m->queue, step->copies, step->num_copies, 0, NULL, NULL));
    plan(m, step);
    for (int32_t layer = 0; layer < NUM_LAYERS; layer++)
        for (int path = 0; path < MODEL_PATHS; path++)
            attend(m, path, layer);
    check_cl(clEnqueueReadBuffer(m->queue, m->out, CL_TRUE, 0, sizeof m->host_out, m->host_out, 0, NULL, NULL));
    for (int32_t b = 0; b < step->num_seqs[MODEL_DECODE]; b++)
        step->next_tokens[b] = sample(m, b);
}
