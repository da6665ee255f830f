/* SPDX-License-Identifier: Apache-2.0 */
/* The shortest complete program: one sequence, decoded token by token through a paged pool. */
#include <pagedcl/pagedcl.h>

#include <stdio.h>
#include <stdlib.h>

enum { NUM_HEADS = 8, NUM_KV_HEADS = 2, HEAD_DIM = 64, BLOCK_SIZE = 16, NUM_BLOCKS = 4, NUM_TOKENS = 20 };

static void check(pagedcl_status status) {
    if (status != PAGEDCL_SUCCESS) {
        fprintf(stderr, "%s: %s\n", pagedcl_status_name(status), pagedcl_last_error());
        exit(1);
    }
}

static void check_cl(cl_int code) {
    if (code != CL_SUCCESS) {
        fprintf(stderr, "OpenCL error %d\n", code);
        exit(1);
    }
}

static cl_mem make_buffer(pagedcl_device *device, size_t bytes) {
    cl_int code;
    cl_mem mem = clCreateBuffer(pagedcl_device_context(device), CL_MEM_READ_WRITE, bytes, NULL, &code);
    check_cl(code);
    return mem;
}

static void fill(cl_command_queue queue, cl_mem mem, float value, size_t bytes) {
    check_cl(clEnqueueFillBuffer(queue, mem, &value, sizeof value, 0, bytes, 0, NULL, NULL));
}

int main(void) {
    /* Once: a device, a pool on it, a manager of the pool's blocks, and an operator with a plan. */
    pagedcl_device *device;
    check(pagedcl_device_open(NULL, NULL, &device));
    cl_command_queue queue = pagedcl_device_queue(device);

    pagedcl_cache_desc cache_desc = PAGEDCL_CACHE_DESC_INIT;
    cache_desc.num_blocks = NUM_BLOCKS;
    cache_desc.block_size = BLOCK_SIZE;
    cache_desc.num_kv_heads = NUM_KV_HEADS;
    cache_desc.head_dim = HEAD_DIM;
    cache_desc.dtype = PAGEDCL_FLOAT32;
    pagedcl_cache *cache;
    check(pagedcl_cache_create(device, &cache_desc, &cache));

    pagedcl_blocks_desc blocks_desc = PAGEDCL_BLOCKS_DESC_INIT;
    blocks_desc.num_blocks = NUM_BLOCKS;
    blocks_desc.block_size = BLOCK_SIZE;
    pagedcl_blocks *blocks;
    check(pagedcl_blocks_create(&blocks_desc, &blocks));
    pagedcl_seq seq;
    check(pagedcl_blocks_seq_create(blocks, &seq));

    pagedcl_attn_desc attn_desc = PAGEDCL_ATTN_DESC_INIT;
    attn_desc.cache = cache;
    attn_desc.num_heads = NUM_HEADS;
    attn_desc.causal = 1;
    pagedcl_attn *attn;
    check(pagedcl_attn_create(device, &attn_desc, &attn));
    pagedcl_plan *plan;
    check(pagedcl_plan_create(attn, &plan));

    /* What a model would compute: here q is 0, so all keys weigh the same, and token t has t in all of k and v. */
    float out[NUM_HEADS * HEAD_DIM];
    const size_t q_bytes = sizeof out, kv_bytes = sizeof(float) * NUM_KV_HEADS * HEAD_DIM;
    pagedcl_attn_args args = PAGEDCL_ATTN_ARGS_INIT;
    args.q.mem = make_buffer(device, q_bytes);
    args.out.mem = make_buffer(device, q_bytes);
    args.k_new.mem = make_buffer(device, kv_bytes);
    args.v_new.mem = args.k_new.mem;
    fill(queue, args.q.mem, 0.0f, q_bytes);

    for (int32_t token = 0; token < NUM_TOKENS; token++) {
        fill(queue, args.k_new.mem, (float)token, kv_bytes);

        /* One step: room for the token, a plan of the batch, then (in each layer) store the token and attend. */
        int32_t block_table[NUM_BLOCKS];
        check(pagedcl_blocks_append(blocks, seq, 1, NULL, NULL));
        check(pagedcl_blocks_table(blocks, seq, 0, block_table, NUM_BLOCKS, NULL));

        pagedcl_decode_batch batch = PAGEDCL_DECODE_BATCH_INIT;
        batch.num_seqs = 1;
        batch.seqlen_q = 1;
        batch.seqlen_new = 1;
        batch.cache_seqlens = &token; /* the length before the append */
        batch.block_table = block_table;
        batch.block_table_stride = NUM_BLOCKS;
        check(pagedcl_plan_decode(plan, queue, &batch));
        check(pagedcl_attn_run(attn, queue, plan, &args, 0, NULL, NULL));
    }

    check_cl(clEnqueueReadBuffer(queue, args.out.mem, CL_TRUE, 0, q_bytes, out, 0, NULL, NULL));
    printf("after %d tokens: %g\n", NUM_TOKENS, (double)out[0]); /* the mean of the values: 9.5 */

    clReleaseMemObject(args.q.mem);
    clReleaseMemObject(args.k_new.mem);
    clReleaseMemObject(args.out.mem);
    pagedcl_plan_destroy(plan);
    pagedcl_attn_destroy(attn);
    pagedcl_blocks_destroy(blocks);
    pagedcl_cache_destroy(cache);
    pagedcl_device_destroy(device);
    return 0;
}
