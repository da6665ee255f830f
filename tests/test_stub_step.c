/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step of an engine, in which every OpenCL call fails once: room for a token behind a shared block, the copy that
 * this needs, the plan, and attention with the append. After a failure the step is rolled back: the block manager is
 * as before, no token that a sequence has is lost, and the step can be done again.
 */
#include "stub/exhaust.h"
#include "support/compare.h"
#include "support/expect.h"
#include "support/fixture.h"
#include "support/pool_model.h"

#include "device.h"

#include <pagedcl/pagedcl.h>
#include <pagedcl/step.h>

#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, BLOCKS = 8, BLOCK_SIZE = 4, HEAD_DIM = 8, OLD = 6, COLUMNS = 3, FENCE = 1 };

typedef struct scene {
    pagedcl_device *device;
    pagedcl_cache *cache;
    pagedcl_attn *attn;
    pagedcl_plan *plan;
    pool_model before;
    guarded q, k_new, v_new, out; /* of one token */
    pagedcl_blocks *blocks;
    pagedcl_seq parent, child;
    int32_t tables[2][COLUMNS];
    pagedcl_blocks_stats stats;
} scene;

static const float new_row[HEAD_DIM] = {1, 2, 3, 4, 5, 6, 7, 8}, zero_row[HEAD_DIM];

static void scene_open(scene *s) {
    *s = (scene){.device = fixture_open()};
    pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT;
    desc.num_layers = LAYERS;
    desc.num_blocks = BLOCKS;
    desc.block_size = BLOCK_SIZE;
    desc.num_kv_heads = 1;
    desc.head_dim = HEAD_DIM;
    desc.dtype = PAGEDCL_FLOAT32;
    expect_ok(pagedcl_cache_create(s->device, &desc, &s->cache));
    s->before = pool_model_create(&desc);
    pool_model_randomize(&s->before, 1);
    pagedcl_attn_desc attn = PAGEDCL_ATTN_DESC_INIT;
    attn.cache = s->cache;
    attn.num_heads = 1;
    expect_ok(pagedcl_attn_create(s->device, &attn, &s->attn));
    expect_ok(pagedcl_plan_create(s->attn, &s->plan));
    s->q = guarded_create(s->device, sizeof(zero_row), zero_row); /* q = 0: the mean of all V */
    s->k_new = guarded_create(s->device, sizeof(new_row), new_row);
    s->v_new = guarded_create(s->device, sizeof(new_row), new_row);
    s->out = guarded_create(s->device, sizeof(new_row), NULL);
}

static void scene_close(scene *s) {
    guarded *buffers[] = {&s->q, &s->k_new, &s->v_new, &s->out};
    for (int i = 0; i < 4; i++)
        guarded_destroy(buffers[i]);
    pagedcl_blocks_destroy(s->blocks);
    pagedcl_plan_destroy(s->plan);
    pagedcl_attn_destroy(s->attn);
    pagedcl_cache_destroy(s->cache);
    pool_model_destroy(&s->before);
    pagedcl_device_destroy(s->device);
    stub_objects none = {0}, live = stub_live();
    cr_assert(memcmp(&live, &none, sizeof(none)) == 0, "left %s", stub_objects_text(&live));
}

static void read_tables(const scene *s, int32_t tables[2][COLUMNS]) {
    expect_ok(pagedcl_blocks_table(s->blocks, s->parent, 0, tables[0], COLUMNS, NULL));
    expect_ok(pagedcl_blocks_table(s->blocks, s->child, 0, tables[1], COLUMNS, NULL));
}

static pagedcl_blocks_stats read_stats(const scene *s) {
    pagedcl_blocks_stats stats = PAGEDCL_BLOCKS_STATS_INIT;
    expect_ok(pagedcl_blocks_get_stats(s->blocks, &stats));
    return stats;
}

/* A parent of six tokens and a child that shares them all. */
static void prepare_step(void *at) {
    scene *s = at;
    expect_cl(clFinish(pagedcl_device_queue(s->device)));
    pool_model_upload(&s->before, s->cache);
    pagedcl_blocks_destroy(s->blocks);
    pagedcl_blocks_desc desc = PAGEDCL_BLOCKS_DESC_INIT;
    desc.num_blocks = BLOCKS;
    desc.block_size = BLOCK_SIZE;
    expect_ok(pagedcl_blocks_create(&desc, &s->blocks));
    size_t num_copies = 0;
    expect_ok(pagedcl_blocks_seq_create(s->blocks, &s->parent));
    expect_ok(pagedcl_blocks_append(s->blocks, s->parent, OLD, NULL, &num_copies));
    expect_ok(pagedcl_blocks_fork(s->blocks, s->parent, &s->child));
    s->stats = read_stats(s);
    read_tables(s, s->tables);
}

static pagedcl_status enqueue(scene *s, const pagedcl_block_copy *copies, size_t num_copies) {
    pagedcl_status status = PAGEDCL_SUCCESS;
    for (size_t i = 0; i < num_copies && status == PAGEDCL_SUCCESS; i++) {
        const int32_t pair[] = {copies[i].src, copies[i].dst};
        status = pagedcl_cache_copy_blocks(s->cache, NULL, pair, 1, 0, NULL, NULL);
    }
    int32_t tables[2][COLUMNS], length = OLD;
    read_tables(s, tables);
    pagedcl_decode_batch batch = PAGEDCL_DECODE_BATCH_INIT;
    batch.num_seqs = batch.seqlen_q = batch.seqlen_new = 1;
    batch.cache_seqlens = &length;
    batch.block_table = tables[1];
    batch.block_table_stride = COLUMNS;
    if (status == PAGEDCL_SUCCESS)
        status = pagedcl_plan_decode(s->plan, NULL, &batch);
    pagedcl_attn_args args = PAGEDCL_ATTN_ARGS_INIT;
    args.q.mem = s->q.mem;
    args.k_new.mem = s->k_new.mem;
    args.v_new.mem = s->v_new.mem;
    args.out.mem = s->out.mem;
    for (args.layer = 0; args.layer < LAYERS && status == PAGEDCL_SUCCESS; args.layer++)
        status = pagedcl_attn_run(s->attn, NULL, s->plan, &args, 0, NULL, NULL);
    return status;
}

static pagedcl_status call_step(void *at) {
    scene *s = at;
    pagedcl_block_copy copies[1];
    size_t num_copies = 0;
    expect_ok(pagedcl_blocks_begin(s->blocks));
    expect_ok(pagedcl_blocks_append(s->blocks, s->child, 1, copies, &num_copies));
    pagedcl_status status = enqueue(s, copies, num_copies);
    if (status == PAGEDCL_SUCCESS)
        expect_ok(pagedcl_blocks_commit(s->blocks, FENCE));
    else
        expect_ok(pagedcl_blocks_rollback(s->blocks, FENCE));
    return status;
}

static void finish_step(scene *s) {
    expect_cl(clFinish(pagedcl_device_queue(s->device)));
    expect_ok(pagedcl_blocks_reached(s->blocks, FENCE));
    cr_assert_eq(pagedcl_blocks_check(s->blocks), PAGEDCL_SUCCESS, "%s", pagedcl_last_error());
}

/* The old tokens of a sequence are in the pool, in all layers. */
static void expect_old_tokens(const scene *s, const int32_t *table, const char *name) {
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        unsigned char *k = fixture_alloc(s->before.layer_bytes), *v = fixture_alloc(s->before.layer_bytes);
        expect_ok(pagedcl_cache_download_blocks(s->cache, NULL, layer, NULL, BLOCKS, k, v, 0, NULL, NULL));
        expect_cl(clFinish(pagedcl_device_queue(s->device)));
        for (int32_t p = 0; p < OLD; p++) {
            /* Where the parent has had it from the beginning. */
            int64_t from = (int64_t)s->tables[0][p / BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE;
            size_t to = ((size_t)table[p / BLOCK_SIZE] * BLOCK_SIZE + (size_t)(p % BLOCK_SIZE)) * s->before.row_bytes;
            expect_same_bytes(name, "K", k + to, pool_model_k(&s->before, layer, from), s->before.row_bytes);
            expect_same_bytes(name, "V", v + to, pool_model_v(&s->before, layer, from), s->before.row_bytes);
        }
        free(k);
        free(v);
    }
}

static void verify_step(void *at) {
    scene *s = at;
    finish_step(s);
    int32_t tables[2][COLUMNS];
    read_tables(s, tables);
    cr_assert(memcmp(tables[0], s->tables[0], sizeof(tables[0])) == 0, "the parent's table changed");
    cr_assert_neq(tables[1][1], tables[0][1], "the child writes into the parent's block");
    expect_old_tokens(s, tables[0], "the parent");
    expect_old_tokens(s, tables[1], "the child");
    double mean[HEAD_DIM];
    for (int d = 0; d < HEAD_DIM; d++) {
        double sum = (double)new_row[d];
        for (int32_t p = 0; p < OLD; p++) {
            float value;
            int64_t slot = (int64_t)s->tables[0][p / BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE;
            memcpy(&value, pool_model_v(&s->before, LAYERS - 1, slot) + (size_t)d * sizeof(float), sizeof(float));
            sum += (double)value;
        }
        mean[d] = sum / (OLD + 1);
    }
    float *out = guarded_read(s->device, &s->out, "out");
    expect_close("the step", "out", out, mean, HEAD_DIM, tolerance_of(PAGEDCL_FLOAT32));
    free(out);
}

/* The manager is as before, all tokens are there, and the step can be done again. */
static void failed_step(void *at) {
    scene *s = at;
    finish_step(s);
    pagedcl_blocks_stats stats = read_stats(s);
    cr_assert(stats.free == s->stats.free && stats.available == s->stats.available && stats.used == s->stats.used &&
                  stats.shared == s->stats.shared && stats.references == s->stats.references &&
                  stats.num_seqs == s->stats.num_seqs && stats.num_tokens == s->stats.num_tokens,
              "the counters changed: free %lld, used %lld", (long long)stats.free, (long long)stats.used);
    int32_t tables[2][COLUMNS];
    read_tables(s, tables);
    cr_assert(memcmp(tables, s->tables, sizeof(tables)) == 0, "a table changed");
    expect_old_tokens(s, tables[0], "the parent after a failure");
    expect_ok(call_step(s));
    verify_step(s);
}

static void untouched_step(void *at) {
    scene *s = at;
    pool_model_expect(&s->before, s->cache, "a step of which nothing was enqueued");
}

Test(stub_step, step_survives_every_failure) {
    const operation step = {
        .name = "a step",
        .prepare = prepare_step,
        .call = call_step,
        .verify = verify_step,
        .untouched = untouched_step,
        .failed = failed_step,
        .tolerated = {{STUB_clReleaseEvent, "there is no second try at a release"},
                      {STUB_clReleaseCommandQueue, "likewise"},
                      {STUB_clRetainCommandQueue, "commands whose queue is unknown are ordered by their event"}},
    };
    scene s;
    scene_open(&s);
    exhaust(&step, &s);
    scene_close(&s);
}
