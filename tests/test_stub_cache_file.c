/* SPDX-License-Identifier: Apache-2.0 */
/* Every OpenCL call fails once while a sequence goes into a file, and out of one. */
#include "stub/exhaust.h"
#include "support/block_image.h"
#include "support/expect.h"
#include "support/fixture.h"
#include "support/strided.h"
#include "support/temp_folder.h"

#include "device.h"

#include <pagedcl/cache_file.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCKS = 8, BLOCK_SIZE = 4, HEADS = 2, HEAD_DIM = 33, TOKENS = 10, MAX_FILE = 1 << 14 };

static const char old_file[] = "what had the name before";

typedef struct scene {
    pagedcl_device *device;
    pagedcl_cache *cache;
    pagedcl_blocks *blocks;
    pagedcl_kv_geometry geometry;
    pagedcl_cache_transfer transfer;
    pagedcl_seq seq, loaded;
    int64_t num_loaded;
    block_image poison;
    char *folder, path[512];
    unsigned char saved[MAX_FILE], got[MAX_FILE];
    size_t saved_size;
} scene;

static size_t read_file(const scene *s, unsigned char *bytes) {
    FILE *file = fopen(s->path, "rb");
    cr_assert_not_null(file);
    size_t size = fread(bytes, 1, MAX_FILE, file);
    fclose(file);
    return size;
}

static void write_file(const scene *s, const void *bytes, size_t size) {
    FILE *file = fopen(s->path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

static int files_in_folder(const scene *s) {
    int count = 0;
    DIR *dir = opendir(s->folder);
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

static pagedcl_status save(scene *s, pagedcl_seq seq) {
    return pagedcl_blocks_save(s->blocks, s->path, &s->geometry, &seq, 1, pagedcl_cache_save, &s->transfer);
}

static void write_rows(scene *s) {
    float values[TOKENS * HEADS * HEAD_DIM];
    int64_t slots[TOKENS];
    for (int i = 0; i < TOKENS * HEADS * HEAD_DIM; i++)
        values[i] = (float)(i % 101) - 50;
    strided rows = strided_create(s->device, PAGEDCL_FLOAT32, TOKENS, HEADS, HEAD_DIM, CONTIGUOUS, 0, values);
    expect_ok(pagedcl_blocks_slots(s->blocks, s->seq, 0, 0, TOKENS, slots));
    for (int32_t layer = 0; layer < s->geometry.num_layers; layer++)
        expect_ok(pagedcl_cache_write(s->cache, NULL, layer, &rows.view, &rows.view, PAGEDCL_FLOAT32, slots, TOKENS, 0,
                                      NULL, NULL));
    expect_cl(clFinish(pagedcl_device_queue(s->device)));
    strided_destroy(&rows);
}

static void scene_open(scene *s, const pagedcl_cache_desc *kind) {
    *s = (scene){.device = fixture_open(), .transfer = PAGEDCL_CACHE_TRANSFER_INIT, .folder = temp_folder_create()};
    snprintf(s->path, sizeof s->path, "%s/sequences", s->folder);
    pagedcl_cache_desc desc = *kind;
    desc.num_layers = 2;
    desc.num_blocks = BLOCKS;
    desc.block_size = BLOCK_SIZE;
    desc.num_kv_heads = HEADS;
    desc.head_dim = HEAD_DIM;
    expect_ok(pagedcl_cache_create(s->device, &desc, &s->cache));
    expect_ok(pagedcl_cache_geometry(s->cache, &s->geometry));
    s->transfer.caches = &s->cache;
    s->transfer.num_groups = 1;
    s->poison = block_image_create(s->cache, BLOCKS);
    block_image_upload(&s->poison, s->cache);
    pagedcl_blocks_desc blocks_desc = PAGEDCL_BLOCKS_DESC_INIT;
    blocks_desc.num_blocks = BLOCKS;
    blocks_desc.block_size = BLOCK_SIZE;
    expect_ok(pagedcl_blocks_create(&blocks_desc, &s->blocks));
    expect_ok(pagedcl_blocks_seq_create(s->blocks, &s->seq));
    expect_ok(pagedcl_blocks_append(s->blocks, s->seq, TOKENS, NULL, NULL));
    write_rows(s);
    expect_ok(save(s, s->seq));
    s->saved_size = read_file(s, s->saved);
}

static void scene_close(scene *s) {
    block_image_destroy(&s->poison);
    pagedcl_blocks_destroy(s->blocks);
    pagedcl_cache_destroy(s->cache);
    pagedcl_device_destroy(s->device);
    temp_folder_remove(s->folder);
}

static void expect_file(scene *s, const void *bytes, size_t size) {
    cr_assert_eq(files_in_folder(s), 1);
    cr_assert_eq(read_file(s, s->got), size);
    expect_same_bytes("the file", "bytes", s->got, (const unsigned char *)bytes, size);
}

static void exhaust_kinds(const operation *op) {
    const pagedcl_cache_desc kinds[] = {
        {.struct_size = sizeof kinds[0], .dtype = PAGEDCL_FLOAT32},
        {.struct_size = sizeof kinds[0], .dtype = PAGEDCL_INT8, .scale_per_row = 1, .layout = PAGEDCL_LAYOUT_HND},
        {.struct_size = sizeof kinds[0], .dtype = PAGEDCL_INT4},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        static scene s;
        scene_open(&s, &kinds[i]);
        exhaust(op, &s);
        scene_close(&s);
    }
}

/* ---- save ---- */

static void prepare_save(void *at) {
    write_file(at, old_file, sizeof old_file);
}

static pagedcl_status call_save(void *at) {
    scene *s = at;
    return save(s, s->seq);
}

static void verify_save(void *at) {
    scene *s = at;
    expect_file(s, s->saved, s->saved_size);
}

static void failed_save(void *at) {
    expect_file(at, old_file, sizeof old_file);
}

Test(stub_cache_file, save_survives_every_failure) {
    const operation op = {.name = "pagedcl_blocks_save",
                          .prepare = prepare_save,
                          .call = call_save,
                          .verify = verify_save,
                          .failed = failed_save,
                          .tolerated = {{STUB_clReleaseEvent, "there is no second try at a release"}}};
    exhaust_kinds(&op);
}

/* ---- load ---- */

static void prepare_load(void *at) {
    scene *s = at;
    write_file(s, s->saved, s->saved_size);
    block_image_upload(&s->poison, s->cache);
    s->loaded = 0;
    s->num_loaded = -1;
}

static pagedcl_status call_load(void *at) {
    scene *s = at;
    return pagedcl_blocks_load(s->blocks, s->path, &s->geometry, pagedcl_cache_load, &s->transfer, &s->loaded, 1,
                               &s->num_loaded);
}

/* What was loaded makes the same file again. */
static void verify_load(void *at) {
    scene *s = at;
    cr_assert_eq(s->num_loaded, 1);
    write_file(s, old_file, sizeof old_file);
    expect_ok(save(s, s->loaded));
    expect_file(s, s->saved, s->saved_size);
    expect_ok(pagedcl_blocks_seq_free(s->blocks, s->loaded));
}

static void untouched_load(void *at) {
    scene *s = at;
    block_image_expect(&s->poison, s->cache, "before any command");
}

static void failed_load(void *at) {
    scene *s = at;
    pagedcl_blocks_stats stats = PAGEDCL_BLOCKS_STATS_INIT;
    expect_ok(pagedcl_blocks_check(s->blocks));
    expect_ok(pagedcl_blocks_get_stats(s->blocks, &stats));
    cr_assert(s->loaded == 0 && s->num_loaded == -1);
    cr_assert(stats.num_seqs == 1 && stats.used == (TOKENS + BLOCK_SIZE - 1) / BLOCK_SIZE);
    expect_file(s, s->saved, s->saved_size);
}

Test(stub_cache_file, load_survives_every_failure) {
    const operation op = {.name = "pagedcl_blocks_load",
                          .prepare = prepare_load,
                          .call = call_load,
                          .verify = verify_load,
                          .untouched = untouched_load,
                          .failed = failed_load,
                          .tolerated = {{STUB_clReleaseEvent, "there is no second try at a release"}}};
    exhaust_kinds(&op);
}
