/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine that owns its OpenCL objects: the library adopts its context and compute queue, the pool lies in its memory,
 * and a second queue moves data. Events order the two queues, so the host waits once, at the end.
 *
 * The model is a lookup: token t has the key 8000 e_t and the query e_(t / 2). One scaled score is 1000, the others are 0,
 * so what comes out is the value of token t / 2, to the bit.
 */
#include "setup.h"

enum { NUM_LAYERS = 2, NUM_HEADS = 8, NUM_KV_HEADS = 2, HEAD_DIM = 64, BLOCK_SIZE = 16, NUM_BLOCKS = 4 };
enum { NUM_TOKENS = 60, Q_WIDTH = NUM_HEADS * HEAD_DIM, KV_WIDTH = NUM_KV_HEADS * HEAD_DIM };
enum { POOL_SIZE = NUM_BLOCKS * BLOCK_SIZE * KV_WIDTH }; /* elements of K, or of V, of a layer */

/* What a token brings along in a layer, and what it gets. */
static struct activations { float q[Q_WIDTH], k[KV_WIDTH], v[KV_WIDTH]; } inputs[NUM_TOKENS][NUM_LAYERS];
static float outputs[NUM_TOKENS][NUM_LAYERS][Q_WIDTH];

static void make_inputs(int32_t t, int32_t layer) {
    struct activations *in = &inputs[t][layer];
    for (int i = 0; i < Q_WIDTH; i++)
        in->q[i] = i % HEAD_DIM == t / 2 ? 1.0f : 0.0f;
    for (int i = 0; i < KV_WIDTH; i++) {
        in->k[i] = i % HEAD_DIM == t ? 8000.0f : 0.0f;
        in->v[i] = (float)(10000 * layer + KV_WIDTH * t + i);
    }
}

static int count_wrong(int32_t t, int32_t layer) {
    int wrong = 0;
    for (int i = 0; i < Q_WIDTH; i++) {
        int kv_head = i / HEAD_DIM / (NUM_HEADS / NUM_KV_HEADS);
        wrong += outputs[t][layer][i] != inputs[t / 2][layer].v[kv_head * HEAD_DIM + i % HEAD_DIM];
    }
    return wrong;
}

int main(void) {
    /* The engine's: a context, two queues, memory for a layer's activations, and an arena in which the pool lies. */
    pagedcl_device *device;
    check(pagedcl_device_open(NULL, NULL, &device)); /* only to choose; an engine has rules of its own for that */
    cl_device_id id = pagedcl_device_id(device);
    pagedcl_device_destroy(device);
    cl_int code;
    cl_context context = clCreateContext(NULL, 1, &id, NULL, NULL, &code);
    check_cl(code);
    cl_command_queue compute = clCreateCommandQueue(context, id, 0, &code);
    check_cl(code);
    cl_command_queue transfer = clCreateCommandQueue(context, id, 0, &code);
    check_cl(code);
    cl_mem in = make_buffer(context, sizeof inputs[0][0]), out = make_buffer(context, sizeof outputs[0][0]);
    cl_mem arena = make_buffer(context, sizeof(float) * 2 * NUM_LAYERS * POOL_SIZE);

    /* The library's, on top of them; it retains what it is given. */
    check(pagedcl_device_adopt(context, id, compute, NULL, &device));
    pagedcl_pool_buffers buffers[NUM_LAYERS];
    for (int64_t layer = 0; layer < NUM_LAYERS; layer++)
        buffers[layer] = (pagedcl_pool_buffers){arena, 2 * layer * POOL_SIZE, arena, (2 * layer + 1) * POOL_SIZE};
    pagedcl_cache_desc cache_desc = PAGEDCL_CACHE_DESC_INIT;
    cache_desc.num_layers = NUM_LAYERS;
    cache_desc.num_blocks = NUM_BLOCKS;
    cache_desc.block_size = BLOCK_SIZE;
    cache_desc.num_kv_heads = NUM_KV_HEADS;
    cache_desc.head_dim = HEAD_DIM;
    cache_desc.dtype = PAGEDCL_FLOAT32;
    cache_desc.buffers = buffers;
    pagedcl_cache *cache;
    check(pagedcl_cache_create(device, &cache_desc, &cache));
    pagedcl_attn_desc attn_desc = PAGEDCL_ATTN_DESC_INIT;
    attn_desc.cache = cache;
    attn_desc.num_heads = NUM_HEADS;
    attn_desc.causal = 1;
    pagedcl_attn *attn;
    check(pagedcl_attn_create(device, &attn_desc, &attn));
    pagedcl_plan *plan;
    check(pagedcl_plan_create(attn, &plan));

    const int32_t block_table[NUM_BLOCKS] = {2, 0, 3, 1}; /* of a block manager of the engine's own */
    pagedcl_attn_args args = PAGEDCL_ATTN_ARGS_INIT;
    args.q.mem = args.k_new.mem = args.v_new.mem = in;
    args.k_new.offset = Q_WIDTH;
    args.v_new.offset = Q_WIDTH + KV_WIDTH;
    args.out.mem = out;
    for (int32_t t = 0; t < NUM_TOKENS; t++) {
        pagedcl_decode_batch batch = PAGEDCL_DECODE_BATCH_INIT;
        batch.num_seqs = batch.seqlen_q = batch.seqlen_new = 1;
        batch.cache_seqlens = &t; /* copied: it may change at once */
        batch.block_table = block_table;
        batch.block_table_stride = NUM_BLOCKS;
        check(pagedcl_plan_decode(plan, compute, &batch));
        for (args.layer = 0; args.layer < NUM_LAYERS; args.layer++) {
            make_inputs(t, args.layer);
            /* The upload is behind the last download, and that behind the last run: `in` and `out` are free again.
               Before another queue waits for an event, its own is flushed; the run does that itself. */
            cl_event uploaded, attended;
            check_cl(clEnqueueWriteBuffer(transfer, in, CL_FALSE, 0, sizeof inputs[0][0], &inputs[t][args.layer], 0,
                                          NULL, &uploaded));
            check_cl(clFlush(transfer));
            check(pagedcl_attn_run(attn, compute, plan, &args, 1, &uploaded, &attended));
            check_cl(clEnqueueReadBuffer(transfer, out, CL_FALSE, 0, sizeof outputs[0][0], outputs[t][args.layer], 1,
                                         &attended, NULL));
            check_cl(clReleaseEvent(uploaded));
            check_cl(clReleaseEvent(attended));
        }
    }
    check_cl(clFinish(transfer));
    int wrong = 0;
    for (int32_t t = 0; t < NUM_TOKENS; t++)
        for (int32_t layer = 0; layer < NUM_LAYERS; layer++)
            wrong += count_wrong(t, layer);
    printf("%d tokens, %d layers: %d wrong elements\n", NUM_TOKENS, NUM_LAYERS, wrong);

    pagedcl_plan_destroy(plan);
    pagedcl_attn_destroy(attn);
    pagedcl_cache_destroy(cache);
    pagedcl_device_destroy(device);
    clReleaseMemObject(arena);
    clReleaseMemObject(out);
    clReleaseMemObject(in);
    clReleaseCommandQueue(transfer);
    clReleaseCommandQueue(compute);
    clReleaseContext(context);
    return wrong != 0;
}
