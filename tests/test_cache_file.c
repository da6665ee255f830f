/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences through a file from one pool into another one, of another layout and block size, in every kind of pool. */
#include "support/adopted_pool.h"
#include "support/block_image.h"
#include "support/expect.h"
#include "support/fixture.h"
#include "support/pool_model.h"
#include "support/random.h"
#include "support/strided.h"
#include "support/temp_folder.h"

#include <pagedcl/cache_file.h>

#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 2, HEADS = 3, TOKENS = 37 };

/* What a pool holds for a token. */
typedef struct kind {
    const char *name;
    pagedcl_dtype dtype;
    int32_t head_dim, head_dim_v, v_in_k, scale_per_row;
    float k_scale, v_scale;
} kind;

static const kind kinds[] = {
    {"float32", PAGEDCL_FLOAT32, 20, 20, 0, 0, 0, 0},
    {"float16, K wider than V", PAGEDCL_FLOAT16, 20, 9, 0, 0, 0, 0},
    {"float16, V in K", PAGEDCL_FLOAT16, 24, 16, 1, 0, 0, 0},
    {"bfloat16", PAGEDCL_BFLOAT16, 7, 7, 0, 0, 0, 0},
    {"int8, scales of the pool", PAGEDCL_INT8, 20, 20, 0, 0, 0.03f, 0.05f},
    {"int8, scales of rows", PAGEDCL_INT8, 25, 7, 0, 1, 0, 0},
    {"e4m3, no scale", PAGEDCL_FLOAT8_E4M3, 9, 20, 0, 0, 0, 0},
    {"e4m3, scales of rows", PAGEDCL_FLOAT8_E4M3, 20, 20, 0, 1, 0, 0},
    {"e5m2, V in K, scale of the pool", PAGEDCL_FLOAT8_E5M2, 24, 16, 1, 0, 0.5f, 0.5f},
    {"e5m2, V in K, scales of rows", PAGEDCL_FLOAT8_E5M2, 24, 5, 1, 1, 0, 0},
    {"int4", PAGEDCL_INT4, 80, 80, 0, 0, 0, 0},
    {"int4, odd rows", PAGEDCL_INT4, 33, 7, 0, 0, 0, 0},
    {"int4, V in K", PAGEDCL_INT4, 72, 37, 1, 0, 0, 0},
};
enum { NUM_KINDS = sizeof kinds / sizeof kinds[0] };

/* How it lies there. */
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

/* Whether a pool of the kind may have that form: stored scales are behind the blocks of the library's own. */
static bool goes_together(const kind *k, const form *f) {
    if (f->adopted == POOL_OF_LIBRARY)
        return true;
    bool stored = k->scale_per_row || k->dtype == PAGEDCL_INT4;
    return !stored && (f->adopted != POOL_INTERLEAVED || (k->head_dim == k->head_dim_v && !k->v_in_k));
}

/* A pool with a manager. */
typedef struct rig {
    const form *form;
    int32_t group; /* of the manager */
    pagedcl_device *device;
    pagedcl_cache_desc desc;
    pagedcl_cache *cache;
    pagedcl_blocks *blocks;
    adopted_pool adopted;
    block_layout layouts[2]; /* K, V */
    pagedcl_kv_geometry geometry;
    pagedcl_cache_transfer transfer;
} rig;

static void rig_open(rig *r, pagedcl_device *device, const kind *k, const form *f) {
    *r = (rig){.form = f, .device = device, .transfer = PAGEDCL_CACHE_TRANSFER_INIT};
    pagedcl_cache_desc *desc = &r->desc;
    *desc = (pagedcl_cache_desc)PAGEDCL_CACHE_DESC_INIT;
    desc->num_layers = LAYERS;
    desc->num_blocks = f->num_blocks;
    desc->block_size = f->block_size;
    desc->num_kv_heads = HEADS;
    desc->head_dim = k->head_dim;
    desc->head_dim_v = k->head_dim_v;
    desc->v_in_k = k->v_in_k;
    desc->dtype = k->dtype;
    desc->scale_per_row = k->scale_per_row;
    desc->k_scale = k->k_scale;
    desc->v_scale = k->v_scale;
    desc->layout = f->layout;
    r->layouts[0] = block_layout_of(desc, k->head_dim, k->k_scale);
    r->layouts[1] = block_layout_of(desc, k->head_dim_v, k->v_scale);
    if (f->adopted != POOL_OF_LIBRARY) {
        pool_model model = pool_model_create(desc);
        r->adopted = adopted_pool_create(device, f->adopted, &model);
        adopted_pool_describe(&r->adopted, desc);
        pool_model_destroy(&model);
    }
    const int wider = r->layouts[1].bytes > r->layouts[0].bytes;
    desc->max_segment_bytes = (uint64_t)f->segment_blocks * r->layouts[wider].bytes;
    expect_ok(pagedcl_cache_create(device, desc, &r->cache));
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
    if (r->form->adopted != POOL_OF_LIBRARY)
        adopted_pool_destroy(&r->adopted);
}

/* Poison in every block, scales too, where the library's own memory allows that. */
static void rig_poison(rig *r) {
    if (r->form->adopted != POOL_OF_LIBRARY)
        return;
    block_image poison = block_image_create(r->cache, r->desc.num_blocks);
    block_image_upload(&poison, r->cache);
    block_image_destroy(&poison);
}

static int64_t elements_of(const rig *r, int side) {
    return (int64_t)TOKENS * HEADS * (side == 0 ? r->desc.head_dim : r->desc.head_dim_v);
}

/* A sequence of TOKENS tokens, not from the first free block on. */
static pagedcl_seq make_sequence(pagedcl_blocks *blocks) {
    pagedcl_seq other = 0, seq = 0;
    expect_ok(pagedcl_blocks_seq_create(blocks, &other));
    expect_ok(pagedcl_blocks_append(blocks, other, 1, NULL, NULL));
    expect_ok(pagedcl_blocks_seq_create(blocks, &seq));
    expect_ok(pagedcl_blocks_append(blocks, seq, TOKENS, NULL, NULL));
    expect_ok(pagedcl_blocks_seq_free(blocks, other));
    return seq;
}

/* Random rows for all its tokens, which the device writes, and quantises. */
static void write_values(rig *r, pagedcl_seq seq, uint64_t seed) {
    int64_t slots[TOKENS];
    expect_ok(pagedcl_blocks_slots(r->blocks, seq, r->group, 0, TOKENS, slots));
    random_state random = {seed};
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        strided rows[2];
        for (int side = 0; side < 2; side++) {
            float *values = fixture_alloc((size_t)elements_of(r, side) * sizeof *values);
            for (int64_t i = 0; i < elements_of(r, side); i++)
                values[i] = random_normal(&random);
            rows[side] = strided_create(r->device, PAGEDCL_FLOAT32, TOKENS, HEADS,
                                        side == 0 ? r->desc.head_dim : r->desc.head_dim_v, CONTIGUOUS, 0, values);
            free(values);
        }
        expect_ok(pagedcl_cache_write(r->cache, NULL, layer, &rows[0].view, r->desc.v_in_k ? NULL : &rows[1].view,
                                      PAGEDCL_FLOAT32, slots, TOKENS, 0, NULL, NULL));
        expect_cl(clFinish(pagedcl_device_queue(r->device)));
        strided_destroy(&rows[0]);
        strided_destroy(&rows[1]);
    }
}

/* The values of a sequence in all layers, by gathers on the device. */
static unsigned char *read_values(rig *r, pagedcl_seq seq, size_t *size) {
    int32_t row[TOKENS], length = TOKENS;
    size_t element = is_quantized(r->desc.dtype) ? sizeof(float) : pagedcl_dtype_size(r->desc.dtype);
    size_t bytes[2] = {(size_t)elements_of(r, 0) * element, (size_t)elements_of(r, 1) * element};
    *size = LAYERS * (bytes[0] + bytes[1]);
    unsigned char *values = fixture_alloc(*size), *at = values;
    expect_ok(pagedcl_blocks_table(r->blocks, seq, r->group, row, TOKENS, NULL));
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        guarded k = guarded_create(r->device, bytes[0], NULL), v = guarded_create(r->device, bytes[1], NULL);
        pagedcl_tensor k_rows = {.mem = k.mem}, v_rows = {.mem = v.mem};
        expect_ok(
            pagedcl_cache_gather(r->cache, NULL, layer, row, TOKENS, &length, 1, &k_rows, &v_rows, 0, NULL, NULL));
        unsigned char *got[2] = {guarded_read(r->device, &k, "k"), guarded_read(r->device, &v, "v")};
        for (int side = 0; side < 2; side++) {
            memcpy(at, got[side], bytes[side]);
            at += bytes[side];
            free(got[side]);
        }
        guarded_destroy(&k);
        guarded_destroy(&v);
    }
    return values;
}

/* Moves the rows and scales of a sequence in one image of a pool to those of a sequence in another one. */
static void copy_tokens(const rig *from, const block_image *a, pagedcl_seq seq, const rig *to, block_image *b,
                        pagedcl_seq loaded) {
    int64_t from_slots[TOKENS], to_slots[TOKENS];
    expect_ok(pagedcl_blocks_slots(from->blocks, seq, 0, 0, TOKENS, from_slots));
    expect_ok(pagedcl_blocks_slots(to->blocks, loaded, 0, 0, TOKENS, to_slots));
    for (int64_t i = 0; i < (int64_t)TOKENS * LAYERS * (from->desc.v_in_k ? 1 : 2) * HEADS; i++) {
        const int32_t head = (int32_t)(i % HEADS), side = (int32_t)(i / HEADS / TOKENS / LAYERS);
        const size_t layer = (size_t)(i / HEADS / TOKENS % LAYERS);
        const int64_t x = from_slots[i / HEADS % TOKENS], y = to_slots[i / HEADS % TOKENS];
        const block_layout *one = &from->layouts[side], *other = &to->layouts[side];
        const unsigned char *source = block_image_at(a, (int32_t)(x / one->block_size)) +
                                      layer * (a->k_bytes + a->v_bytes) + (side == 1 ? a->k_bytes : 0);
        unsigned char *target = block_image_at(b, (int32_t)(y / other->block_size)) +
                                layer * (b->k_bytes + b->v_bytes) + (side == 1 ? b->k_bytes : 0);
        const int32_t token = (int32_t)(x % one->block_size), place = (int32_t)(y % other->block_size);
        memcpy(target + block_row(other, place, head), source + block_row(one, token, head), one->row_bytes);
        size_t bytes = 0, scales = block_scales(one, token, head, &bytes);
        memcpy(target + block_scales(other, place, head, &bytes), source + scales, bytes);
    }
}

/* Saves a sequence of one pool and loads it into another one, which may be the same. */
static void pass_on(rig *a, rig *b, const char *path, const char *name, uint64_t seed) {
    const bool own = a->form->adopted == POOL_OF_LIBRARY && b->form->adopted == POOL_OF_LIBRARY;
    rig_poison(a);
    pagedcl_seq seq = make_sequence(a->blocks), loaded = 0;
    write_values(a, seq, seed);
    expect_ok(pagedcl_blocks_save(a->blocks, path, &a->geometry, &seq, 1, pagedcl_cache_save, &a->transfer));
    size_t size = 0, got_size = 0;
    unsigned char *want = read_values(a, seq, &size);
    block_image before = own ? block_image_download(a->cache) : (block_image){0};
    rig_poison(b);
    int64_t count = 0;
    expect_ok(pagedcl_blocks_load(b->blocks, path, &b->geometry, pagedcl_cache_load, &b->transfer, &loaded, 1, &count));
    cr_assert_eq(count, 1);
    unsigned char *got = read_values(b, loaded, &got_size);
    cr_assert_eq(got_size, size);
    expect_same_bytes(name, "values", got, want, size);
    if (own) {
        /* Bit for bit, and nothing else was touched. */
        block_image after = block_image_create(b->cache, b->desc.num_blocks);
        copy_tokens(a, &before, seq, b, &after, loaded);
        block_image_expect(&after, b->cache, name);
        block_image_destroy(&before);
        block_image_destroy(&after);
    }
    free(want);
    free(got);
    expect_ok(pagedcl_blocks_seq_free(a->blocks, seq));
    expect_ok(pagedcl_blocks_seq_free(b->blocks, loaded));
}

typedef struct files {
    char *folder, path[512];
    pagedcl_device *device;
} files;

static files files_open(void) {
    files f = {.folder = temp_folder_create(), .device = fixture_open()};
    snprintf(f.path, sizeof f.path, "%s/sequences", f.folder);
    return f;
}

static void files_close(files *f) {
    pagedcl_device_destroy(f->device);
    temp_folder_remove(f->folder);
}

Test(cache_file, from_every_form_into_every_form, .timeout = 120) {
    files f = files_open();
    rig rigs[NUM_FORMS];
    for (int i = 0; i < NUM_FORMS; i++)
        rig_open(&rigs[i], f.device, &kinds[0], &forms[i]);
    for (int i = 0; i < NUM_FORMS * NUM_FORMS; i++) {
        char name[128];
        snprintf(name, sizeof name, "from %s to %s", forms[i / NUM_FORMS].name, forms[i % NUM_FORMS].name);
        pass_on(&rigs[i / NUM_FORMS], &rigs[i % NUM_FORMS], f.path, name, (uint64_t)i);
    }
    for (int i = 0; i < NUM_FORMS; i++)
        rig_close(&rigs[i]);
    files_close(&f);
}

/* Each form that the kind can have gives and takes once. */
Test(cache_file, scales_and_rows_of_every_kind_come_back, .timeout = 240) {
    files f = files_open();
    for (int k = 0; k < NUM_KINDS; k++) {
        rig rigs[NUM_FORMS];
        int count = 0;
        for (int i = 0; i < NUM_FORMS; i++)
            if (goes_together(&kinds[k], &forms[i]))
                rig_open(&rigs[count++], f.device, &kinds[k], &forms[i]);
        for (int i = 0; i < count; i++) {
            rig *a = &rigs[i], *b = &rigs[(i + 1) % count];
            char name[192];
            snprintf(name, sizeof name, "%s: from %s to %s", kinds[k].name, a->form->name, b->form->name);
            pass_on(a, b, f.path, name, (uint64_t)i);
        }
        while (count-- > 0)
            rig_close(&rigs[count]);
    }
    files_close(&f);
}

Test(cache_file, pools_of_other_scales_are_refused) {
    files f = files_open();
    const kind same = {"int8", PAGEDCL_INT8, 8, 8, 0, 0, 0.25f, 0.5f};
    kind others[] = {same, same, same, same};
    others[0].k_scale = 0.5f;
    others[1].v_scale = 0; /* 1 */
    others[2] = (kind){"scales of rows", PAGEDCL_INT8, 8, 8, 0, 1, 0, 0};
    others[3] = (kind){"int4", PAGEDCL_INT4, 8, 8, 0, 0, 0, 0};
    const char *const words[] = {"k_scale 0.25 in group 0, and is to be loaded with 0.5",
                                 "v_scale 0.5 in group 0, and is to be loaded with 1", "scale_per_row 0", "dtype int8"};
    rig r;
    rig_open(&r, f.device, &same, &forms[0]);
    pagedcl_seq seq = make_sequence(r.blocks);
    write_values(&r, seq, 1);
    expect_ok(pagedcl_blocks_save(r.blocks, f.path, &r.geometry, &seq, 1, pagedcl_cache_save, &r.transfer));
    rig_close(&r);
    for (int i = 0; i < 4; i++) {
        int64_t count = 77;
        rig_open(&r, f.device, &others[i], &forms[0]);
        rig_poison(&r);
        expect_refused(
            pagedcl_blocks_load(r.blocks, f.path, &r.geometry, pagedcl_cache_load, &r.transfer, &seq, 1, &count),
            PAGEDCL_UNSUPPORTED, words[i]);
        cr_assert_eq(count, 77);
        block_image poison = block_image_create(r.cache, r.desc.num_blocks);
        block_image_expect(&poison, r.cache, others[i].name);
        block_image_destroy(&poison);
        rig_close(&r);
    }
    files_close(&f);
}

/* A pool for each of two groups, one with a scale for each row and one without any, and one manager. */
typedef struct pair {
    rig rigs[2];
    pagedcl_cache *caches[2];
    pagedcl_kv_geometry geometry[2];
    pagedcl_blocks *blocks;
    pagedcl_cache_transfer transfer;
} pair;

static void pair_open(pair *p, pagedcl_device *device, const form *f) {
    static const kind two[2] = {{"float16", PAGEDCL_FLOAT16, 6, 6, 0, 0, 0, 0},
                                {"int8", PAGEDCL_INT8, 5, 3, 0, 1, 0, 0}};
    pagedcl_blocks_desc desc = PAGEDCL_BLOCKS_DESC_INIT;
    desc.num_blocks = f->num_blocks;
    desc.block_size = f->block_size;
    desc.num_groups = 2;
    expect_ok(pagedcl_blocks_create(&desc, &p->blocks));
    p->transfer = (pagedcl_cache_transfer)PAGEDCL_CACHE_TRANSFER_INIT;
    p->transfer.caches = p->caches;
    p->transfer.num_groups = 2;
    for (int32_t g = 0; g < 2; g++) {
        rig_open(&p->rigs[g], device, &two[g], f);
        rig_poison(&p->rigs[g]);
        pagedcl_blocks_destroy(p->rigs[g].blocks);
        p->rigs[g].blocks = p->blocks;
        p->rigs[g].group = g;
        p->caches[g] = p->rigs[g].cache;
        p->geometry[g] = p->rigs[g].geometry;
    }
}

static void pair_close(pair *p) {
    pagedcl_blocks_destroy(p->blocks);
    for (int g = 0; g < 2; g++) {
        p->rigs[g].blocks = NULL;
        rig_close(&p->rigs[g]);
    }
}

Test(cache_file, groups_of_different_kinds) {
    files f = files_open();
    const form few = {"blocks of 16", 16, 9, 0, PAGEDCL_LAYOUT_HND, POOL_OF_LIBRARY};
    const form many = {"blocks of 3", 3, 40, 0, PAGEDCL_LAYOUT_NHD, POOL_OF_LIBRARY};
    pair a, b;
    pair_open(&a, f.device, &few);
    pair_open(&b, f.device, &many);
    pagedcl_seq seq = make_sequence(a.blocks), loaded = 0;
    int64_t count = 0;
    for (int g = 0; g < 2; g++)
        write_values(&a.rigs[g], seq, (uint64_t)g);
    expect_ok(pagedcl_blocks_save(a.blocks, f.path, a.geometry, &seq, 1, pagedcl_cache_save, &a.transfer));
    expect_ok(pagedcl_blocks_load(b.blocks, f.path, b.geometry, pagedcl_cache_load, &b.transfer, &loaded, 1, &count));
    for (int g = 0; g < 2; g++) {
        size_t size = 0, got_size = 0;
        unsigned char *want = read_values(&a.rigs[g], seq, &size), *got = read_values(&b.rigs[g], loaded, &got_size);
        cr_assert_eq(got_size, size);
        expect_same_bytes(a.rigs[g].form->name, g == 0 ? "group 0" : "group 1", got, want, size);
        free(want);
        free(got);
    }
    pair_close(&a);
    pair_close(&b);
    files_close(&f);
}

/* A transfer of some slots of a block moves the same bytes as one of the whole block. */
Test(cache_file, pieces_of_a_block_are_its_parts, .timeout = 120) {
    files f = files_open();
    enum { SLOTS = 16, FIRST = 5, COUNT = 4 };
    for (int i = 0; i < 2 * NUM_KINDS; i++) {
        form heads_or_tokens_first = forms[0];
        heads_or_tokens_first.layout = i % 2 == 0 ? PAGEDCL_LAYOUT_NHD : PAGEDCL_LAYOUT_HND;
        rig r;
        rig_open(&r, f.device, &kinds[i / 2], &heads_or_tokens_first);
        block_image image = block_image_create(r.cache, r.desc.num_blocks);
        block_image_randomize(&image, r.cache, (uint64_t)i);
        block_image_upload(&image, r.cache);
        const size_t block_bytes = image.block_bytes; /* no less than the rows have */
        unsigned char *whole = fixture_poisoned(block_bytes), *piece = fixture_poisoned(block_bytes);
        expect_ok(pagedcl_cache_save(&r.transfer, 0, 2, 0, SLOTS, whole));
        expect_ok(pagedcl_cache_save(&r.transfer, 0, 2, FIRST, COUNT, piece));
        size_t used = block_bytes;
        while (used > 0 && piece[used - 1] == POISON)
            used--;
        const size_t token = (used + COUNT - 1) / COUNT;
        expect_same_bytes(kinds[i / 2].name, "a piece", piece, whole + FIRST * token, COUNT * token);
        /* Into another block: the piece changes no other slot, and what is around it makes the block whole. */
        expect_ok(pagedcl_cache_load(&r.transfer, 0, 5, FIRST, COUNT, piece));
        expect_ok(pagedcl_cache_save(&r.transfer, 0, 5, FIRST, COUNT, piece));
        expect_same_bytes(kinds[i / 2].name, "a piece that was loaded", piece, whole + FIRST * token, COUNT * token);
        expect_ok(pagedcl_cache_load(&r.transfer, 0, 5, 0, FIRST, whole));
        expect_ok(pagedcl_cache_load(&r.transfer, 0, 5, FIRST + COUNT, SLOTS - FIRST - COUNT,
                                     whole + (FIRST + COUNT) * token));
        memcpy(block_image_at(&image, 5), block_image_at(&image, 2), block_bytes);
        block_image_expect(&image, r.cache, kinds[i / 2].name);
        free(whole);
        free(piece);
        block_image_destroy(&image);
        rig_close(&r);
    }
    files_close(&f);
}

/* A token that nobody wrote: its scales are poison, which no file may have. */
Test(cache_file, tokens_without_rows_are_not_saved) {
    files f = files_open();
    for (int k = 0; k < NUM_KINDS; k++) {
        rig r;
        rig_open(&r, f.device, &kinds[k], &forms[1]);
        rig_poison(&r);
        pagedcl_seq seq = make_sequence(r.blocks);
        write_values(&r, seq, 1);
        expect_ok(pagedcl_blocks_append(r.blocks, seq, 1, NULL, NULL));
        pagedcl_status status =
            pagedcl_blocks_save(r.blocks, f.path, &r.geometry, &seq, 1, pagedcl_cache_save, &r.transfer);
        bool stored = kinds[k].scale_per_row || kinds[k].dtype == PAGEDCL_INT4;
        cr_assert_eq(status, stored ? PAGEDCL_INVALID_ARGUMENT : PAGEDCL_SUCCESS, "%s", kinds[k].name);
        rig_close(&r);
    }
    files_close(&f);
}

Test(cache_file, bad_transfers_change_nothing) {
    files f = files_open();
    rig r;
    rig_open(&r, f.device, &kinds[5], &forms[0]);
    block_image image = block_image_create(r.cache, r.desc.num_blocks);
    block_image_randomize(&image, r.cache, 1);
    block_image_upload(&image, r.cache);
    static unsigned char kv[16 * LAYERS * HEADS * 40];
    memset(kv, 0x5a, sizeof kv);
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
    pagedcl_cache *const none = NULL;
    pagedcl_cache_transfer empty = r.transfer;
    empty.caches = &none;
    expect_refused(pagedcl_cache_load(&empty, 0, 0, 0, 1, kv), PAGEDCL_INVALID_ARGUMENT, "caches");
    empty.caches = NULL;
    expect_refused(pagedcl_cache_save(&empty, 0, 0, 0, 1, kv), PAGEDCL_INVALID_ARGUMENT, "caches");
    expect_ok(pagedcl_cache_load(&r.transfer, 0, 0, 16, 0, kv));
    block_image_expect(&image, r.cache, "after refused transfers");
    for (size_t i = 0; i < sizeof kv; i++)
        cr_assert_eq(kv[i], 0x5a);
    expect_refused(pagedcl_cache_geometry(NULL, &r.geometry), PAGEDCL_INVALID_ARGUMENT, "cache");
    expect_refused(pagedcl_cache_geometry(r.cache, NULL), PAGEDCL_INVALID_ARGUMENT, "geometry");
    block_image_destroy(&image);
    rig_close(&r);
    files_close(&f);
}
