/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences through a file from one device's pool into another one's, of another layout and block size. */
#include "support/adopted_pool.h"
#include "support/expect.h"
#include "support/fixture.h"
#include "support/pool_model.h"
#include "support/temp_folder.h"

#include <pagedcl/cache_file.h>

#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 2, HEADS = 3, HEAD_DIM = 20, TOKENS = 37 };

typedef struct rig {
    pagedcl_device *device;
    pagedcl_cache *cache;
    pagedcl_blocks *blocks;
    pool_model model;
    adopted_pool adopted;
    bool is_adopted;
    pagedcl_kv_geometry geometry;
    pagedcl_cache_transfer transfer;
} rig;

typedef struct form {
    const char *name;
    int32_t block_size, num_blocks, segment_blocks;
    pagedcl_layout layout;
    pool_form adopted;
} form;

static const form forms[] = {
    {"blocks of 16", 16, 8, 0, PAGEDCL_LAYOUT_NHD, POOL_OF_LIBRARY},
    {"heads first, segments", 5, 20, 7, PAGEDCL_LAYOUT_HND, POOL_OF_LIBRARY},
    {"blocks of a token", 1, 90, 0, PAGEDCL_LAYOUT_NHD, POOL_OF_LIBRARY},
    {"the caller's, with gaps", 4, 24, 0, PAGEDCL_LAYOUT_NHD, POOL_WITH_GAPS},
    {"the caller's, K beside V", 8, 12, 0, PAGEDCL_LAYOUT_NHD, POOL_INTERLEAVED},
};
enum { NUM_FORMS = sizeof forms / sizeof forms[0] };

static void rig_open(rig *r, const form *f) {
    pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT;
    desc.num_layers = LAYERS;
    desc.num_blocks = f->num_blocks;
    desc.block_size = f->block_size;
    desc.num_kv_heads = HEADS;
    desc.head_dim = HEAD_DIM;
    desc.dtype = PAGEDCL_FLOAT16;
    *r = (rig){.device = fixture_open(), .transfer = PAGEDCL_CACHE_TRANSFER_INIT};
    r->model = pool_model_create(&desc);
    pool_model_randomize(&r->model, (uint64_t)f->block_size);
    r->is_adopted = f->adopted != POOL_OF_LIBRARY;
    if (r->is_adopted) {
        r->adopted = adopted_pool_create(r->device, f->adopted, &r->model);
        adopted_pool_describe(&r->adopted, &desc);
    } else {
        desc.layout = f->layout;
        desc.max_segment_bytes = (uint64_t)(f->segment_blocks * f->block_size) * r->model.row_bytes;
    }
    expect_ok(pagedcl_cache_create(r->device, &desc, &r->cache));
    pagedcl_blocks_desc blocks_desc = PAGEDCL_BLOCKS_DESC_INIT;
    blocks_desc.num_blocks = f->num_blocks;
    blocks_desc.block_size = f->block_size;
    expect_ok(pagedcl_blocks_create(&blocks_desc, &r->blocks));
    expect_ok(pagedcl_cache_geometry(r->cache, &r->geometry));
    r->transfer.caches = &r->cache;
    r->transfer.num_groups = 1;
}

static void rig_close(rig *r) {
    pagedcl_blocks_destroy(r->blocks);
    pagedcl_cache_destroy(r->cache);
    if (r->is_adopted)
        adopted_pool_destroy(&r->adopted);
    pool_model_destroy(&r->model);
    pagedcl_device_destroy(r->device);
}

/* The rows of a layer's tokens, K then V, through the table and by a gather on the device. */
static void read_rows(rig *r, pagedcl_seq seq, int32_t layer, unsigned char *rows) {
    int32_t row[TOKENS], length = TOKENS;
    size_t bytes = TOKENS * r->model.row_bytes;
    expect_ok(pagedcl_blocks_table(r->blocks, seq, 0, row, TOKENS, NULL));
    guarded k = guarded_create(r->device, bytes, NULL), v = guarded_create(r->device, bytes, NULL);
    pagedcl_tensor k_rows = {.mem = k.mem}, v_rows = {.mem = v.mem};
    expect_ok(pagedcl_cache_gather(r->cache, NULL, layer, row, TOKENS, &length, 1, &k_rows, &v_rows, 0, NULL, NULL));
    unsigned char *got_k = guarded_read(r->device, &k, "k"), *got_v = guarded_read(r->device, &v, "v");
    memcpy(rows, got_k, bytes);
    memcpy(rows + bytes, got_v, bytes);
    free(got_k);
    free(got_v);
    guarded_destroy(&k);
    guarded_destroy(&v);
}

/* What the sequence holds: random rows that are written through slots. */
static pagedcl_seq make_sequence(rig *r) {
    pagedcl_seq other = 0, seq = 0;
    /* Not from block 0 on. */
    expect_ok(pagedcl_blocks_seq_create(r->blocks, &other));
    expect_ok(pagedcl_blocks_append(r->blocks, other, r->model.desc.block_size, NULL, NULL));
    expect_ok(pagedcl_blocks_seq_create(r->blocks, &seq));
    expect_ok(pagedcl_blocks_append(r->blocks, seq, TOKENS, NULL, NULL));
    if (!r->is_adopted)
        pool_model_upload(&r->model, r->cache); /* in the pool's own order: any bits will do */
    return seq;
}

Test(cache_file, from_every_form_into_every_form) {
    char *folder = temp_folder_create();
    char path[512];
    snprintf(path, sizeof path, "%s/sequences", folder);
    for (int from = 0; from < NUM_FORMS; from++) {
        rig a;
        rig_open(&a, &forms[from]);
        pagedcl_seq seq = make_sequence(&a);
        expect_ok(pagedcl_blocks_save(a.blocks, path, &a.geometry, &seq, 1, pagedcl_cache_save, &a.transfer));
        for (int to = 0; to < NUM_FORMS; to++) {
            rig b;
            rig_open(&b, &forms[to]);
            char name[128];
            snprintf(name, sizeof name, "from %s to %s", forms[from].name, forms[to].name);
            pagedcl_seq loaded = 0;
            int64_t count = 0;
            expect_ok(
                pagedcl_blocks_load(b.blocks, path, &b.geometry, pagedcl_cache_load, &b.transfer, &loaded, 1, &count));
            cr_assert_eq(count, 1);
            size_t bytes = 2 * TOKENS * a.model.row_bytes;
            unsigned char *want = fixture_alloc(bytes), *got = fixture_alloc(bytes);
            for (int32_t layer = 0; layer < LAYERS; layer++) {
                read_rows(&a, seq, layer, want);
                read_rows(&b, loaded, layer, got);
                expect_same_bytes(name, "rows", got, want, bytes);
            }
            free(want);
            free(got);
            rig_close(&b);
        }
        rig_close(&a);
    }
    temp_folder_remove(folder);
}

Test(cache_file, bad_transfers_change_nothing) {
    rig r;
    rig_open(&r, &forms[0]);
    static unsigned char kv[16 * LAYERS * 2 * HEADS * HEAD_DIM * 2];
    memset(kv, 0x5a, sizeof kv);
    pool_model_upload(&r.model, r.cache);
    const struct {
        int32_t group, block, first, num;
        pagedcl_status status;
        const char *words;
    } rows[] = {
        {1, 0, 0, 1, PAGEDCL_INVALID_ARGUMENT, "group 1 of 1"},
        {-1, 0, 0, 1, PAGEDCL_INVALID_ARGUMENT, "group -1"},
        {0, 8, 0, 1, PAGEDCL_INVALID_BLOCK, "block 8"},
        {0, -1, 0, 1, PAGEDCL_INVALID_BLOCK, "block -1"},
        {0, 0, 1, 16, PAGEDCL_INVALID_SLOT, "16 slots from 1 on of a block of 16"},
        {0, 0, -1, 1, PAGEDCL_INVALID_SLOT, "1 slots from -1"},
        {0, 0, 0, -1, PAGEDCL_INVALID_SLOT, "-1 slots"},
        {0, 0, INT32_MAX, INT32_MAX, PAGEDCL_INVALID_SLOT, "slots from"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int load = 0; load < 2; load++)
            expect_refused((load ? pagedcl_cache_load : pagedcl_cache_save)(&r.transfer, rows[i].group, rows[i].block,
                                                                            rows[i].first, rows[i].num, kv),
                           rows[i].status, rows[i].words);
    expect_refused(pagedcl_cache_save(NULL, 0, 0, 0, 1, kv), PAGEDCL_INVALID_ARGUMENT, "NULL");
    expect_refused(pagedcl_cache_load(&r.transfer, 0, 0, 0, 1, NULL), PAGEDCL_INVALID_ARGUMENT, "kv");
    expect_ok(pagedcl_cache_load(&r.transfer, 0, 0, 16, 0, kv));
    pool_model_expect(&r.model, r.cache, "after refused transfers");
    for (size_t i = 0; i < sizeof kv; i++)
        cr_assert_eq(kv[i], 0x5a);
    expect_refused(pagedcl_cache_geometry(NULL, &r.geometry), PAGEDCL_INVALID_ARGUMENT, "cache");
    expect_refused(pagedcl_cache_geometry(r.cache, NULL), PAGEDCL_INVALID_ARGUMENT, "geometry");

    pagedcl_cache_desc descs[3];
    for (int i = 0; i < 3; i++) {
        descs[i] = r.model.desc;
        descs[i].num_blocks = 1;
        descs[i].max_segment_bytes = 0;
    }
    descs[0].dtype = PAGEDCL_INT8;
    descs[1].head_dim_v = 8;
    descs[2].v_in_k = 1;
    for (int i = 0; i < 3; i++) {
        pagedcl_cache *cache = NULL;
        expect_ok(pagedcl_cache_create(r.device, &descs[i], &cache));
        expect_refused(pagedcl_cache_geometry(cache, &r.geometry), PAGEDCL_UNSUPPORTED, "this pool has");
        pagedcl_cache_destroy(cache);
    }
    rig_close(&r);
}
