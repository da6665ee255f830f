/* SPDX-License-Identifier: Apache-2.0 */
/* Every OpenCL call of the functions on the pool fails once. */
#include "stub/exhaust.h"
#include "support/expect.h"
#include "support/fixture.h"
#include "support/pool_model.h"
#include "support/strided.h"

#include "cache.h"
#include "device.h"

#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, BLOCKS = 8, BLOCK_SIZE = 4, HEAD_DIM = 8, LAYER = 1, TOKENS = 3 };

static const int64_t slots[TOKENS] = {5, -1, 18};
static const int32_t pairs[] = {0, 1, 1, 2, 5, 6}; /* the second reads what the first wrote */
static const int32_t table[] = {4, 2, 7, -1}, seqlens[] = {6, 2};
static const int32_t chosen[] = {6, 7, 1};
enum { GATHERED = 8, NUM_CHOSEN = 3, PAIRS = 3 };

typedef struct scene {
    pagedcl_device *device;
    pagedcl_cache_desc desc;
    pagedcl_cache *cache;
    pool_model before, after; /* the pool as each operation finds it, and as it should leave it */
    strided rows;
    guarded k, v;    /* what gather fills */
    guarded mapping; /* slots */
    pagedcl_faults faults;
    unsigned char *host[2];
    cl_command_queue queues[2]; /* in order, out of order */
    cl_event event;
} scene;

static scene scene_open(void) {
    scene s = {.device = fixture_open(), .desc = PAGEDCL_CACHE_DESC_INIT};
    s.device->quirks.builds_one_at_a_time = true; /* the n-th call is the same each time */
    s.desc.num_layers = LAYERS;
    s.desc.num_blocks = BLOCKS;
    s.desc.block_size = BLOCK_SIZE;
    s.desc.num_kv_heads = 1;
    s.desc.head_dim = HEAD_DIM;
    s.desc.dtype = PAGEDCL_FLOAT32;
    s.desc.max_segment_bytes = BLOCKS / 2 * BLOCK_SIZE * HEAD_DIM * sizeof(float);
    return s;
}

static void scene_fill(scene *s) {
    expect_ok(pagedcl_cache_create(s->device, &s->desc, &s->cache));
    s->before = pool_model_create(&s->desc);
    s->after = pool_model_create(&s->desc);
    pool_model_randomize(&s->before, 1);
    float values[TOKENS * HEAD_DIM];
    for (int i = 0; i < TOKENS * HEAD_DIM; i++)
        values[i] = (float)i;
    s->rows = strided_create(s->device, PAGEDCL_FLOAT32, TOKENS, 1, HEAD_DIM, CONTIGUOUS, 0, values);
    s->mapping = guarded_create(s->device, sizeof(slots), slots);
    s->k = guarded_create(s->device, GATHERED * s->before.row_bytes, NULL);
    s->v = guarded_create(s->device, GATHERED * s->before.row_bytes, NULL);
    for (int i = 0; i < 2; i++) {
        cl_int code;
        cl_command_queue_properties properties = i == 1 ? CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE : 0;
        s->host[i] = fixture_poisoned(BLOCKS * BLOCK_SIZE * s->before.row_bytes);
        s->queues[i] =
            clCreateCommandQueue(pagedcl_device_context(s->device), pagedcl_device_id(s->device), properties, &code);
        expect_cl(code);
    }
}

static void scene_close(scene *s) {
    for (int i = 0; i < 2; i++) {
        free(s->host[i]);
        if (s->queues[i] != NULL)
            expect_cl(clReleaseCommandQueue(s->queues[i]));
    }
    guarded_destroy(&s->mapping);
    guarded_destroy(&s->k);
    guarded_destroy(&s->v);
    strided_destroy(&s->rows);
    pool_model_destroy(&s->before);
    pool_model_destroy(&s->after);
    pagedcl_cache_destroy(s->cache);
    pagedcl_device_destroy(s->device);
    stub_objects none = {0}, live = stub_live();
    cr_assert(memcmp(&live, &none, sizeof(none)) == 0, "left %s", stub_objects_text(&live));
}

static void copy_model(pool_model *to, const pool_model *from) {
    memcpy(to->k, from->k, LAYERS * from->layer_bytes);
    memcpy(to->v, from->v, LAYERS * from->layer_bytes);
}

/* ---- create and destroy ---- */

static void prepare_none(void *at) {
    scene *s = at;
    s->cache = NULL;
}

static pagedcl_status call_create(void *at) {
    scene *s = at;
    return pagedcl_cache_create(s->device, &s->desc, &s->cache);
}

static void verify_create(void *at) {
    scene *s = at;
    pool_model model = pool_model_create(&s->desc);
    pool_model_randomize(&model, 2);
    pool_model_upload(&model, s->cache);
    pool_model_expect(&model, s->cache, "a new pool");
    pool_model_destroy(&model);
    pagedcl_cache_destroy(s->cache);
}

static void untouched_none(void *at) {
    scene *s = at;
    cr_assert_null(s->cache);
}

Test(stub_cache, create_survives_every_failure) {
    const operation create = {
        .name = "pagedcl_cache_create",
        .prepare = prepare_none,
        .call = call_create,
        .verify = verify_create,
        .untouched = untouched_none,
        .tolerated = {{STUB_clReleaseCommandQueue, "there is no second try at a release"},
                      {STUB_clReleaseEvent, "likewise"}},
    };
    scene s = scene_open();
    exhaust(&create, &s);
    s.cache = NULL;
    scene_close(&s);
}

static void prepare_destroy(void *at) {
    scene *s = at;
    expect_ok(pagedcl_cache_create(s->device, &s->desc, &s->cache));
    for (int i = 0; i < 2; i++)
        expect_ok(pagedcl_cache_copy_blocks(s->cache, NULL, pairs, PAIRS, 0, NULL, NULL));
}

static pagedcl_status call_destroy(void *at) {
    scene *s = at;
    pagedcl_cache_destroy(s->cache);
    s->cache = NULL;
    return PAGEDCL_SUCCESS;
}

Test(stub_cache, destroy_survives_every_failure) {
    const operation destroy = {
        .name = "pagedcl_cache_destroy",
        .prepare = prepare_destroy,
        .call = call_destroy,
        .tolerated = {{STUB_clWaitForEvents, "destroy has no way to tell, and nothing to try instead"},
                      {STUB_clReleaseCommandQueue, "there is no second try at a release"},
                      {STUB_clReleaseEvent, "likewise"},
                      {STUB_clReleaseKernel, "likewise"},
                      {STUB_clReleaseMemObject, "likewise"},
                      {STUB_clReleaseProgram, "likewise"}},
    };
    scene s = scene_open();
    exhaust(&destroy, &s);
    scene_close(&s);
}

/* ---- commands ---- */

static void finish(scene *s) {
    expect_cl(clFinish(pagedcl_device_queue(s->device)));
    expect_cl(clFinish(s->queues[0]));
    expect_cl(clFinish(s->queues[1]));
}

static void poison_outputs(scene *s) {
    unsigned char *poison = fixture_poisoned(s->k.bytes);
    cl_command_queue queue = pagedcl_device_queue(s->device);
    expect_cl(clEnqueueWriteBuffer(queue, s->k.mem, CL_TRUE, 0, s->k.bytes, poison, 0, NULL, NULL));
    expect_cl(clEnqueueWriteBuffer(queue, s->v.mem, CL_TRUE, 0, s->v.bytes, poison, 0, NULL, NULL));
    free(poison);
    for (int i = 0; i < 2; i++)
        memset(s->host[i], POISON, BLOCKS * BLOCK_SIZE * s->before.row_bytes);
}

static void prepare_pool(void *at) {
    scene *s = at;
    finish(s);
    s->event = NULL;
    copy_model(&s->after, &s->before);
    pool_model_upload(&s->before, s->cache);
    poison_outputs(s);
}

static void expect_poison(const void *bytes, size_t count) {
    void *poison = fixture_poisoned(count);
    expect_same_bytes("after a refused call", "memory", bytes, poison, count);
    free(poison);
}

static void untouched_pool(void *at) {
    scene *s = at;
    cr_assert_null(s->event, "an event of a failed call");
    finish(s);
    pool_model_expect(&s->before, s->cache, "after a refused call");
    void *k = guarded_read(s->device, &s->k, "k"), *v = guarded_read(s->device, &s->v, "v");
    expect_poison(k, s->k.bytes);
    expect_poison(v, s->v.bytes);
    free(k);
    free(v);
    for (int i = 0; i < 2; i++)
        expect_poison(s->host[i], BLOCKS * BLOCK_SIZE * s->before.row_bytes);
}

static void take_event(scene *s) {
    if (s->event == NULL)
        return;
    expect_cl(clWaitForEvents(1, &s->event));
    expect_cl(clReleaseEvent(s->event));
    s->event = NULL;
}

static void verify_pool(void *at) {
    scene *s = at;
    take_event(s);
    finish(s);
    pool_model_expect(&s->after, s->cache, "after the call");
}

static void model_write(scene *s) {
    for (int t = 0; t < TOKENS; t++) {
        float row[HEAD_DIM];
        for (int d = 0; d < HEAD_DIM; d++)
            row[d] = (float)(t * HEAD_DIM + d);
        if (slots[t] >= 0)
            pool_model_write(&s->after, LAYER, slots[t], row, row);
    }
}

/* The write comes from the host's arrays alone, so that the model can be written beside it. */
static pagedcl_status write_on(scene *s, cl_command_queue queue, cl_event *event) {
    model_write(s);
    int64_t passed[TOKENS];
    memcpy(passed, slots, sizeof(slots));
    pagedcl_status status = pagedcl_cache_write(s->cache, queue, LAYER, &s->rows.view, &s->rows.view, PAGEDCL_FLOAT32,
                                                passed, TOKENS, 0, NULL, event);
    memset(passed, 0x7f, sizeof(passed));
    return status;
}

static pagedcl_status call_write(void *at) {
    scene *s = at;
    return write_on(s, NULL, &s->event);
}

static void prepare_new_cache(void *at) {
    scene *s = at;
    pagedcl_cache_destroy(s->cache);
    expect_ok(pagedcl_cache_create(s->device, &s->desc, &s->cache));
    prepare_pool(s);
}

/* The write before was on another queue, so that this one must be put behind it. */
static void prepare_other_queue(void *at) {
    scene *s = at;
    prepare_pool(s);
    for (int i = 0; i < 2; i++)
        expect_ok(write_on(s, s->queues[0], NULL));
    finish(s);
    copy_model(&s->after, &s->before);
    pool_model_upload(&s->before, s->cache);
}

static pagedcl_status call_write_unordered(void *at) {
    scene *s = at;
    return write_on(s, s->queues[1], NULL);
}

/* An operation on a filled pool, with what it leaves out. */
static void exhaust_command(operation op) {
    op.prepare = op.prepare != NULL ? op.prepare : prepare_pool;
    op.verify = op.verify != NULL ? op.verify : verify_pool;
    op.untouched = untouched_pool;
    op.tolerated[0] = (stub_tolerance){STUB_clReleaseEvent, "there is no second try at a release"};
    scene s = scene_open();
    scene_fill(&s);
    exhaust(&op, &s);
    scene_close(&s);
}

/* Likewise one that uploads slots or pairs first. */
static void exhaust_upload(operation op) {
    op.tolerated[1] = (stub_tolerance){STUB_clReleaseCommandQueue, "there is no second try at a release"};
    op.tolerated[2] =
        (stub_tolerance){STUB_clRetainCommandQueue, "commands whose queue is unknown are ordered by their event"};
    exhaust_command(op);
}

Test(stub_cache, write_survives_every_failure) {
    exhaust_upload((operation){.name = "pagedcl_cache_write", .call = call_write});
}

Test(stub_cache, first_write_survives_every_failure) {
    exhaust_upload(
        (operation){.name = "pagedcl_cache_write into a new pool", .prepare = prepare_new_cache, .call = call_write});
}

Test(stub_cache, write_on_an_unordered_queue_survives_every_failure) {
    exhaust_upload((operation){.name = "pagedcl_cache_write on another, unordered queue",
                               .prepare = prepare_other_queue,
                               .call = call_write_unordered});
}

static pagedcl_status call_write_mapped(void *at) {
    scene *s = at;
    model_write(s);
    return pagedcl_cache_write_mapped(s->cache, NULL, LAYER, &s->rows.view, &s->rows.view, PAGEDCL_FLOAT32,
                                      s->mapping.mem, 0, TOKENS, 0, NULL, &s->event);
}

Test(stub_cache, write_mapped_survives_every_failure) {
    exhaust_upload((operation){.name = "pagedcl_cache_write_mapped", .call = call_write_mapped});
}

static void prepare_faults(void *at) {
    scene *s = at;
    prepare_pool(s);
    s->faults = (pagedcl_faults){7, 7};
}

static pagedcl_status call_read_faults(void *at) {
    scene *s = at;
    return pagedcl_cache_read_faults(s->cache, s->queues[1], &s->faults, 0, NULL, &s->event);
}

static void verify_faults(void *at) {
    scene *s = at;
    take_event(s);
    cr_assert(s->faults.reads == 0 && s->faults.writes == 0);
}

static void untouched_faults(void *at) {
    scene *s = at;
    cr_assert_null(s->event, "an event of a failed call");
    cr_assert(s->faults.reads == 7 && s->faults.writes == 7, "counters of a refused call");
}

Test(stub_cache, read_faults_survives_every_failure) {
    const operation read_faults = {
        .name = "pagedcl_cache_read_faults",
        .prepare = prepare_faults,
        .call = call_read_faults,
        .verify = verify_faults,
        .untouched = untouched_faults,
        .tolerated = {{STUB_clReleaseEvent, "there is no second try at a release"},
                      {STUB_clReleaseCommandQueue, "likewise"},
                      {STUB_clRetainCommandQueue, "commands whose queue is unknown are ordered by their event"}},
    };
    scene s = scene_open();
    scene_fill(&s);
    exhaust(&read_faults, &s);
    scene_close(&s);
}

static pagedcl_status call_gather(void *at) {
    scene *s = at;
    pagedcl_tensor k = {.mem = s->k.mem}, v = {.mem = s->v.mem};
    return pagedcl_cache_gather(s->cache, NULL, LAYER, table, 2, seqlens, 2, &k, &v, 0, NULL, &s->event);
}

static void verify_gather(void *at) {
    scene *s = at;
    verify_pool(s);
    unsigned char *k = guarded_read(s->device, &s->k, "k"), *v = guarded_read(s->device, &s->v, "v");
    size_t row = 0, bytes = s->before.row_bytes;
    for (int seq = 0; seq < 2; seq++) {
        for (int32_t p = 0; p < seqlens[seq]; p++, row++) {
            int64_t slot = (int64_t)table[2 * seq + p / BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE;
            expect_same_bytes("gather", "K", k + row * bytes, pool_model_k(&s->before, LAYER, slot), bytes);
            expect_same_bytes("gather", "V", v + row * bytes, pool_model_v(&s->before, LAYER, slot), bytes);
        }
    }
    free(k);
    free(v);
}

Test(stub_cache, gather_survives_every_failure) {
    exhaust_upload((operation){.name = "pagedcl_cache_gather", .call = call_gather, .verify = verify_gather});
}

/* What a copy of a block does to a model. */
static void copy_block(pool_model *model, int32_t src, int32_t dst) {
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        memcpy(pool_model_k(model, layer, dst * BLOCK_SIZE), pool_model_k(model, layer, src * BLOCK_SIZE),
               BLOCK_SIZE * model->row_bytes);
        memcpy(pool_model_v(model, layer, dst * BLOCK_SIZE), pool_model_v(model, layer, src * BLOCK_SIZE),
               BLOCK_SIZE * model->row_bytes);
    }
}

static pagedcl_status call_copy(void *at) {
    scene *s = at;
    for (int i = 0; i < PAIRS; i++)
        copy_block(&s->after, pairs[2 * i], pairs[2 * i + 1]);
    return pagedcl_cache_copy_blocks(s->cache, NULL, pairs, PAIRS, 0, NULL, &s->event);
}

Test(stub_cache, copy_survives_every_failure) {
    exhaust_upload((operation){.name = "pagedcl_cache_copy_blocks", .call = call_copy});
}

static pagedcl_status call_wipe(void *at) {
    scene *s = at;
    size_t block = BLOCK_SIZE * s->before.row_bytes;
    for (int32_t layer = 0; layer < LAYERS; layer++)
        for (int i = 0; i < NUM_CHOSEN; i++) {
            memset(pool_model_k(&s->after, layer, chosen[i] * BLOCK_SIZE), 0, block);
            memset(pool_model_v(&s->after, layer, chosen[i] * BLOCK_SIZE), 0, block);
        }
    return pagedcl_cache_wipe_blocks(s->cache, NULL, chosen, NUM_CHOSEN, 0, NULL, &s->event);
}

Test(stub_cache, wipe_survives_every_failure) {
    exhaust_upload((operation){.name = "pagedcl_cache_wipe_blocks", .call = call_wipe});
}

static pagedcl_status call_upload(void *at) {
    scene *s = at;
    static unsigned char k[NUM_CHOSEN * BLOCK_SIZE * HEAD_DIM * sizeof(float)], v[sizeof(k)];
    size_t block = BLOCK_SIZE * s->before.row_bytes;
    for (size_t i = 0; i < sizeof(k); i++) {
        k[i] = (unsigned char)(i * 7);
        v[i] = (unsigned char)(i * 5 + 1);
    }
    for (size_t i = 0; i < NUM_CHOSEN; i++) {
        memcpy(pool_model_k(&s->after, LAYER, chosen[i] * BLOCK_SIZE), k + i * block, block);
        memcpy(pool_model_v(&s->after, LAYER, chosen[i] * BLOCK_SIZE), v + i * block, block);
    }
    return pagedcl_cache_upload_blocks(s->cache, NULL, LAYER, chosen, NUM_CHOSEN, k, v, 0, NULL, &s->event);
}

Test(stub_cache, upload_survives_every_failure) {
    exhaust_command((operation){.name = "pagedcl_cache_upload_blocks", .call = call_upload});
}

static pagedcl_status call_download(void *at) {
    scene *s = at;
    return pagedcl_cache_download_blocks(s->cache, NULL, LAYER, chosen, NUM_CHOSEN, s->host[0], s->host[1], 0, NULL,
                                         &s->event);
}

static void verify_download(void *at) {
    scene *s = at;
    verify_pool(s);
    size_t block = BLOCK_SIZE * s->before.row_bytes;
    for (size_t i = 0; i < NUM_CHOSEN; i++) {
        int64_t slot = chosen[i] * BLOCK_SIZE;
        expect_same_bytes("download", "K", s->host[0] + i * block, pool_model_k(&s->before, LAYER, slot), block);
        expect_same_bytes("download", "V", s->host[1] + i * block, pool_model_v(&s->before, LAYER, slot), block);
    }
}

Test(stub_cache, download_survives_every_failure) {
    exhaust_command(
        (operation){.name = "pagedcl_cache_download_blocks", .call = call_download, .verify = verify_download});
}

/* ---- exchange of buffers ---- */

typedef struct exchange_scene {
    pagedcl_device *device;
    pagedcl_cache *cache;
    cl_mem first, second;
    pagedcl_pool_buffers before[LAYERS], after[LAYERS];
} exchange_scene;

static void prepare_exchange(void *at) {
    exchange_scene *s = at;
    expect_ok(pagedcl_cache_set_buffers(s->cache, s->before));
}

static pagedcl_status call_exchange(void *at) {
    exchange_scene *s = at;
    return pagedcl_cache_set_buffers(s->cache, s->after);
}

static void expect_buffers(const exchange_scene *s, cl_mem mem) {
    for (int layer = 0; layer < LAYERS; layer++)
        cr_assert(s->cache->k.buffers[layer] == mem && s->cache->v.buffers[layer] == mem);
}

static void verify_exchange(void *at) {
    exchange_scene *s = at;
    expect_buffers(s, s->second);
    expect_ok(pagedcl_cache_set_buffers(s->cache, s->before));
}

static void untouched_exchange(void *at) {
    exchange_scene *s = at;
    expect_buffers(s, s->first);
}

Test(stub_cache, exchange_of_buffers_survives_every_failure) {
    exchange_scene s = {.device = fixture_open()};
    const size_t side = BLOCKS * BLOCK_SIZE * HEAD_DIM;
    cl_int code;
    s.first = clCreateBuffer(pagedcl_device_context(s.device), 0, 2 * side * sizeof(float), NULL, &code);
    expect_cl(code);
    s.second = clCreateBuffer(pagedcl_device_context(s.device), 0, 2 * side * sizeof(float), NULL, &code);
    expect_cl(code);
    for (int layer = 0; layer < LAYERS; layer++) {
        s.before[layer] = (pagedcl_pool_buffers){.k = s.first, .v = s.first, .v_offset = (int64_t)side};
        s.after[layer] = (pagedcl_pool_buffers){.k = s.second, .v = s.second, .v_offset = (int64_t)side};
    }
    pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT;
    desc.num_layers = LAYERS;
    desc.num_blocks = BLOCKS;
    desc.block_size = BLOCK_SIZE;
    desc.num_kv_heads = 1;
    desc.head_dim = HEAD_DIM;
    desc.dtype = PAGEDCL_FLOAT32;
    desc.buffers = s.before;
    expect_ok(pagedcl_cache_create(s.device, &desc, &s.cache));
    const operation exchange = {
        .name = "pagedcl_cache_set_buffers",
        .prepare = prepare_exchange,
        .call = call_exchange,
        .verify = verify_exchange,
        .untouched = untouched_exchange,
        .tolerated = {{STUB_clReleaseMemObject, "there is no second try at a release"}},
    };
    exhaust(&exchange, &s);
    pagedcl_cache_destroy(s.cache);
    expect_cl(clReleaseMemObject(s.first));
    expect_cl(clReleaseMemObject(s.second));
    pagedcl_device_destroy(s.device);
    stub_objects none = {0}, live = stub_live();
    cr_assert(memcmp(&live, &none, sizeof(none)) == 0, "left %s", stub_objects_text(&live));
}
