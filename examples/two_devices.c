/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One model on two devices in one process: each has half of the KV heads, with their query heads. Heads do not see each
 * other, so nothing goes from one device to the other; one block manager and one batch serve both. The results, joined
 * on the host, are compared with those of one device that has all heads.
 */
#include "setup.h"

#include <inttypes.h>
#include <math.h>

enum { NUM_KV_HEADS = 4, GROUP = 4, NUM_HEADS = GROUP * NUM_KV_HEADS, HEAD_DIM = 64, BLOCK_SIZE = 16, NUM_BLOCKS = 8 };
enum { NUM_SEQS = 3, NUM_STEPS = 4, MAX_ROWS = 64, ROW_BLOCKS = 4 };

/* A head of all rows of a step. Heads lie one behind the other, so those of a device are in one piece. */
typedef float head[MAX_ROWS][HEAD_DIM];
static head in[NUM_HEADS + 2 * NUM_KV_HEADS], joined[NUM_HEADS], alone[NUM_HEADS];
static head *const q = in, *const k = in + NUM_HEADS, *const v = in + NUM_HEADS + NUM_KV_HEADS;

/* KV heads first .. first + num - 1 on a device, each with GROUP query heads. */
typedef struct part {
    size_t first, num;
    cl_command_queue queue;
    pagedcl_attn *attn;
    pagedcl_plan *plan;
    pagedcl_attn_args args;
} part;

/* The first one's neighbour; without one, the first one again, with a context and a queue of its own. */
static pagedcl_device *open_second(const pagedcl_device *first) {
    pagedcl_device_info info = PAGEDCL_DEVICE_INFO_INIT;
    check(pagedcl_device_get_info(first, &info));
    char selector[32];
    snprintf(selector, sizeof selector, "%" PRId32 ":%" PRId32, info.platform_index, info.device_index ^ 1);
    pagedcl_device *second;
    int found = pagedcl_device_open(selector, NULL, &second) == PAGEDCL_SUCCESS;
    if (!found) {
        snprintf(selector, sizeof selector, "%" PRId32 ":%" PRId32, info.platform_index, info.device_index);
        check(pagedcl_device_open(selector, NULL, &second));
    }
    printf("%s %s\n", found ? "two devices, one of them" : "one device, used twice:", info.device_name);
    return second;
}

static part make_part(pagedcl_device *device, size_t first, size_t num) {
    part p = {.first = first, .num = num, .queue = pagedcl_device_queue(device), .args = PAGEDCL_ATTN_ARGS_INIT};
    pagedcl_cache *cache = make_cache(device, 1, NUM_BLOCKS, BLOCK_SIZE, (int32_t)num, HEAD_DIM);
    p.attn = make_attn(device, cache, GROUP * (int32_t)num);
    pagedcl_cache_destroy(cache); /* the operator keeps it */
    check(pagedcl_plan_create(p.attn, &p.plan));
    pagedcl_tensor *tensors[] = {&p.args.q, &p.args.out, &p.args.k_new, &p.args.v_new};
    for (int i = 0; i < 4; i++) {
        *tensors[i] = (pagedcl_tensor){.token_stride = HEAD_DIM, .head_stride = sizeof(head) / sizeof(float)};
        tensors[i]->mem = make_buffer(pagedcl_device_context(device), (i < 2 ? GROUP * num : num) * sizeof(head));
    }
    return p;
}

static void destroy_part(part *p) {
    const pagedcl_tensor tensors[] = {p->args.q, p->args.out, p->args.k_new, p->args.v_new};
    for (int i = 0; i < 4; i++)
        clReleaseMemObject(tensors[i].mem);
    pagedcl_plan_destroy(p->plan);
    pagedcl_attn_destroy(p->attn);
}

/* Enqueues the part's heads of a step. Nothing waits, so the other device can start at once. */
static void start(const part *p, const pagedcl_varlen_batch *batch, head *out) {
    size_t kv_bytes = p->num * sizeof(head), bytes = GROUP * kv_bytes;
    check_cl(clEnqueueWriteBuffer(p->queue, p->args.q.mem, CL_FALSE, 0, bytes, q + GROUP * p->first, 0, NULL, NULL));
    check_cl(clEnqueueWriteBuffer(p->queue, p->args.k_new.mem, CL_FALSE, 0, kv_bytes, k + p->first, 0, NULL, NULL));
    check_cl(clEnqueueWriteBuffer(p->queue, p->args.v_new.mem, CL_FALSE, 0, kv_bytes, v + p->first, 0, NULL, NULL));
    check(pagedcl_plan_varlen(p->plan, p->queue, batch));
    check(pagedcl_attn_run(p->attn, p->queue, p->plan, &p->args, 0, NULL, NULL));
    check_cl(clEnqueueReadBuffer(p->queue, p->args.out.mem, CL_FALSE, 0, bytes, out + GROUP * p->first, 0, NULL, NULL));
    check_cl(clFlush(p->queue));
}

int main(void) {
    pagedcl_device *first;
    check(pagedcl_device_open(NULL, NULL, &first));
    pagedcl_device *second = open_second(first);
    part whole = make_part(first, 0, NUM_KV_HEADS), left = make_part(first, 0, NUM_KV_HEADS / 2);
    part right = make_part(second, NUM_KV_HEADS / 2, NUM_KV_HEADS / 2);
    pagedcl_device_destroy(first); /* the parts keep it */
    pagedcl_device_destroy(second);

    pagedcl_blocks_desc desc = PAGEDCL_BLOCKS_DESC_INIT;
    desc.num_blocks = NUM_BLOCKS;
    desc.block_size = BLOCK_SIZE;
    pagedcl_blocks *blocks;
    check(pagedcl_blocks_create(&desc, &blocks));
    pagedcl_seq seqs[NUM_SEQS];
    for (int b = 0; b < NUM_SEQS; b++)
        check(pagedcl_blocks_seq_create(blocks, &seqs[b]));

    /* Two prompts; a third one beside the next tokens of the others; then a token each. */
    const int32_t num_new[NUM_STEPS][NUM_SEQS] = {{40, 17, 0}, {1, 1, 30}, {1, 1, 1}, {1, 1, 1}};
    int32_t cu_seqlens_q[NUM_SEQS + 1] = {0}, cache_seqlens[NUM_SEQS] = {0}, block_table[NUM_SEQS][ROW_BLOCKS];
    int wrong = 0;
    pagedcl_varlen_batch batch = PAGEDCL_VARLEN_BATCH_INIT;
    batch.num_seqs = NUM_SEQS;
    batch.cu_seqlens_q = cu_seqlens_q;
    batch.cache_seqlens = cache_seqlens;
    batch.block_table = block_table[0];
    batch.block_table_stride = ROW_BLOCKS;
    batch.append = 1;
    for (int step = 0; step < NUM_STEPS; step++) {
        float *x = in[0][0];
        for (size_t i = 0; i < sizeof in / sizeof *x; i++)
            x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
        for (int b = 0; b < NUM_SEQS; b++) {
            check(pagedcl_blocks_append(blocks, seqs[b], num_new[step][b], NULL, NULL));
            check(pagedcl_blocks_table(blocks, seqs[b], 0, block_table[b], ROW_BLOCKS, NULL));
            cu_seqlens_q[b + 1] = cu_seqlens_q[b] + num_new[step][b];
            cache_seqlens[b] += num_new[step][b];
        }
        start(&whole, &batch, alone);
        start(&left, &batch, joined);
        start(&right, &batch, joined);
        check_cl(clFinish(left.queue)); /* of `whole`, too */
        check_cl(clFinish(right.queue));
        for (int i = 0; i < NUM_HEADS * cu_seqlens_q[NUM_SEQS] * HEAD_DIM; i++) {
            int h = i / HEAD_DIM % NUM_HEADS, row = i / (NUM_HEADS * HEAD_DIM), d = i % HEAD_DIM;
            wrong += !(fabsf(joined[h][row][d] - alone[h][row][d]) <= 1e-6f);
        }
    }
    printf("%d steps: %d wrong elements\n", NUM_STEPS, wrong);
    pagedcl_blocks_destroy(blocks);
    destroy_part(&whole);
    destroy_part(&left);
    destroy_part(&right);
    return wrong != 0;
}
