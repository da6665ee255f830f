/* SPDX-License-Identifier: Apache-2.0 */
/* Many threads on one device: a pool and a plan of each one's own, an operator that all share. */
#include "support/attn_rig.h"
#include "support/expect.h"

#include <pagedcl/actions.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>

enum { THREADS = 16, TURNS = 8, BLOCKS = 6, BLOCK_FLOATS = 4 * 2 * 8, POOL_FLOATS = BLOCKS * BLOCK_FLOATS };

typedef struct worker {
    const attn_rig *rig;
    const attn_result *want;
    atomic_int *ready; /* how many threads have begun */
    int number;
    const char *failure; /* the call that failed, or what was wrong; NULL: all is well */
} worker;

/* Assertions of the tests end a thread in the wrong place: failures are told instead. */
#define TRY(call)                        \
    do {                                 \
        if ((call) != PAGEDCL_SUCCESS) { \
            x->failure = #call;          \
            return;                      \
        }                                \
    } while (0)
#define CHECK(condition)             \
    do {                             \
        if (!(condition)) {          \
            x->failure = #condition; \
            return;                  \
        }                            \
    } while (0)

/* Blocks to a pool of the thread's own and back, on a queue of its own. */
static void swap_blocks(worker *x, pagedcl_cache *cache, cl_command_queue queue) {
    float k[POOL_FLOATS], v[POOL_FLOATS], k_got[POOL_FLOATS], v_got[POOL_FLOATS];
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = 0; i < POOL_FLOATS; i++) {
            k[i] = (float)(x->number * 1000000 + turn * 10000 + i);
            v[i] = -k[i];
        }
        TRY(pagedcl_cache_upload_blocks(cache, queue, 0, NULL, BLOCKS, k, v, 0, NULL, NULL));
        TRY(pagedcl_cache_download_blocks(cache, queue, 0, NULL, BLOCKS, k_got, v_got, 0, NULL, NULL));
        CHECK(clFinish(queue) == CL_SUCCESS);
        CHECK(memcmp(k, k_got, sizeof(k)) == 0);
        CHECK(memcmp(v, v_got, sizeof(v)) == 0);
    }
}

/* Blocks of the thread's own pool out to the host tier and back into others, in one list of actions. */
static void swap_out_and_in(worker *x, pagedcl_cache *cache, pagedcl_host_pool *host, cl_command_queue queue) {
    float k[POOL_FLOATS], v[POOL_FLOATS], k_got[POOL_FLOATS], v_got[POOL_FLOATS];
    pagedcl_action actions[2 * BLOCKS];
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = 0; i < POOL_FLOATS; i++) {
            k[i] = (float)(x->number * 1000000 + turn * 10000 + 5000 + i);
            v[i] = -k[i];
        }
        for (int32_t b = 0; b < BLOCKS; b++) {
            actions[b] = (pagedcl_action){PAGEDCL_ACTION_SWAP_OUT, 0, b, BLOCKS - 1 - b};
            actions[BLOCKS + b] = (pagedcl_action){PAGEDCL_ACTION_SWAP_IN, 0, b, b};
        }
        TRY(pagedcl_cache_upload_blocks(cache, queue, 0, NULL, BLOCKS, k, v, 0, NULL, NULL));
        TRY(pagedcl_actions_enqueue(cache, host, 0, queue, actions, 2 * BLOCKS, 0, NULL, NULL));
        TRY(pagedcl_cache_download_blocks(cache, queue, 0, NULL, BLOCKS, k_got, v_got, 0, NULL, NULL));
        CHECK(clFinish(queue) == CL_SUCCESS);
        for (size_t b = 0; b < BLOCKS; b++) {
            const size_t from = (BLOCKS - 1 - b) * BLOCK_FLOATS, to = b * BLOCK_FLOATS;
            CHECK(memcmp(k + from, k_got + to, BLOCK_FLOATS * sizeof(float)) == 0);
            CHECK(memcmp(v + from, v_got + to, BLOCK_FLOATS * sizeof(float)) == 0);
        }
    }
}

/* The shared operator, with a plan of the thread's own. */
static void attend(worker *x, pagedcl_plan *plan, cl_mem out, cl_command_queue queue) {
    const attn_problem *p = x->rig->problem;
    size_t floats = (size_t)attn_total_q(p) * (size_t)p->num_heads * (size_t)p->c.head_dim;
    pagedcl_attn_args args = attn_rig_args(x->rig);
    args.out = (pagedcl_tensor){.mem = out};
    args.lse = NULL;
    args.lse_offset = 0;
    pagedcl_decode_batch batch = PAGEDCL_DECODE_BATCH_INIT;
    batch.num_seqs = p->c.num_seqs;
    batch.seqlen_q = p->c.seqlen_q;
    batch.cache_seqlens = p->cache_seqlens;
    batch.block_table = p->block_table;
    batch.block_table_stride = p->block_table_stride;
    float *got = malloc(floats * sizeof(float));
    CHECK(got != NULL);
    for (int turn = 0; turn < TURNS && !x->failure; turn++) {
        cl_int code = CL_INVALID_VALUE;
        if (pagedcl_plan_decode(plan, queue, &batch) == PAGEDCL_SUCCESS &&
            pagedcl_attn_run(x->rig->attn, queue, plan, &args, 0, NULL, NULL) == PAGEDCL_SUCCESS)
            code = clEnqueueReadBuffer(queue, out, CL_TRUE, 0, floats * sizeof(float), got, 0, NULL, NULL);
        if (code != CL_SUCCESS || memcmp(got, x->want->out, floats * sizeof(float)) != 0)
            x->failure = "attention";
    }
    free(got);
}

static int work(void *argument) {
    worker *x = argument;
    pagedcl_device *device = x->rig->device;
    const attn_problem *p = x->rig->problem;
    atomic_fetch_add(x->ready, 1);
    while (atomic_load(x->ready) < THREADS)
        thrd_yield();

    pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT;
    desc.num_blocks = BLOCKS;
    desc.block_size = 4;
    desc.num_kv_heads = 2;
    desc.head_dim = 8;
    desc.dtype = PAGEDCL_FLOAT32;
    pagedcl_cache *cache = NULL;
    pagedcl_plan *plan = NULL;
    cl_int code;
    cl_command_queue queue = clCreateCommandQueue(pagedcl_device_context(device), pagedcl_device_id(device), 0, &code);
    size_t bytes = (size_t)attn_total_q(p) * (size_t)p->num_heads * (size_t)p->c.head_dim * sizeof(float);
    cl_mem out = clCreateBuffer(pagedcl_device_context(device), CL_MEM_READ_WRITE, bytes, NULL, NULL);
    if (code != CL_SUCCESS || out == NULL || pagedcl_cache_create(device, &desc, &cache) != PAGEDCL_SUCCESS ||
        pagedcl_plan_create(x->rig->attn, &plan) != PAGEDCL_SUCCESS)
        x->failure = "creation";
    pagedcl_host_pool_desc host_desc = PAGEDCL_HOST_POOL_DESC_INIT;
    host_desc.num_blocks = BLOCKS;
    pagedcl_host_pool *host = NULL;
    if (!x->failure && pagedcl_host_pool_create(cache, &host_desc, &host) != PAGEDCL_SUCCESS)
        x->failure = "creation of a host pool";
    if (!x->failure)
        swap_blocks(x, cache, queue);
    if (!x->failure)
        swap_out_and_in(x, cache, host, queue);
    /* Another queue while others still swap. */
    if (queue)
        clReleaseCommandQueue(queue);
    queue = clCreateCommandQueue(pagedcl_device_context(device), pagedcl_device_id(device), 0, &code);
    if (!x->failure && code != CL_SUCCESS)
        x->failure = "creation of a second queue";
    if (!x->failure)
        attend(x, plan, out, queue);
    pagedcl_host_pool_destroy(host);
    pagedcl_plan_destroy(plan);
    pagedcl_cache_destroy(cache);
    if (out)
        clReleaseMemObject(out);
    if (queue)
        clReleaseCommandQueue(queue);
    return 0;
}

/* B118: pools that are made, filled and read back, queues that are made, and one operator, all at once. */
Test(attn_threads, share_a_device_and_an_operator, .timeout = 300) {
    attn_case c = {"threads", DECODE, .seqlens_k = (int32_t[]){17, 1, 600}, .head_dim = 24};
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&c, 1);
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_AUTO, &p);
    expect_ok(attn_rig_plan(&rig, NULL));
    attn_rig_run(&rig, NULL, 0, NULL, NULL);
    attn_result want = attn_rig_read(&rig);
    attn_expect_reference(&p, &want, rig.name);
    atomic_int ready = 0;
    worker workers[THREADS];
    thrd_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){&rig, &want, &ready, i, NULL};
        cr_assert_eq(thrd_create(&threads[i], work, &workers[i]), thrd_success);
    }
    for (int i = 0; i < THREADS; i++)
        thrd_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        cr_assert(!workers[i].failure, "thread %d: %s", i, workers[i].failure);
    attn_result_destroy(&want);
    attn_rig_close(&rig);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}
