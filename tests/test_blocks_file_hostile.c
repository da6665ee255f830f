/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are damaged, foreign or made to harm: each is refused, and nothing changes. */
#define _POSIX_C_SOURCE 200809L

#include "blocks_file.h"
#include "support/expect.h"
#include "support/file_scene.h"
#include "support/saved_file.h"

#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(blocks_file_hostile, .init = scene_open, .fini = scene_close);

Test(blocks_file_hostile, damage_is_refused, .timeout = 60) {
    static refusal r;
    refusal_prepare(&r);
    int fd = open(scene_path, O_WRONLY);
    cr_assert_geq(fd, 0);
    for (size_t at = 0; at < r.size; at++)
        for (int bit = 0; bit < 8; bit += 3) {
            unsigned char flipped = r.bytes[at] ^ (unsigned char)(1 << bit);
            cr_assert_eq(pwrite(fd, &flipped, 1, (off_t)at), 1);
            bool foreign = (at >= 8 && at < 16) || ((at == 6 || at == 7) && flipped >= '0' && flipped <= '9');
            refusal_expect(&r, foreign ? PAGEDCL_UNSUPPORTED : PAGEDCL_BAD_FILE, "bit flip at", at);
            cr_assert_eq(pwrite(fd, &r.bytes[at], 1, (off_t)at), 1);
        }
    for (size_t size = r.size; size-- > 0;) {
        cr_assert_eq(ftruncate(fd, (off_t)size), 0);
        refusal_expect(&r, PAGEDCL_BAD_FILE, "cut off at", size);
    }
    close(fd);
    memset(r.bytes + r.size, 0, 8);
    scene_write_file(r.bytes, r.size + 8);
    refusal_expect(&r, PAGEDCL_BAD_FILE, "longer by", 8);
    scene_write_file(r.bytes, r.size);
    pagedcl_seq seqs[SCENE_SEQS];
    int64_t num_seqs;
    OK(scene_load(&r.pool, seqs, &num_seqs));
    kv_pool_destroy(&r.pool);
}

Test(blocks_file_hostile, b144_absurd_numbers_are_refused, .timeout = 60) {
    static refusal r;
    static unsigned char bytes[SCENE_FILE];
    const uint64_t absurd[] = {UINT64_MAX,
                               (uint64_t)1 << 63,
                               ((uint64_t)1 << 42) + 1,
                               UINT32_MAX,
                               (uint64_t)1 << 61,
                               ((uint64_t)1 << 63) - 1,
                               1000000,
                               r.size};
    refusal_prepare(&r);
    pcl_file_tail tail;
    memcpy(&tail, r.bytes + r.size - sizeof tail, sizeof tail);
    int refused = 0;
    for (size_t at = tail.manifest_offset; at + 8 <= r.size - sizeof(uint64_t) - sizeof tail.magic; at += 8)
        for (size_t i = 0; i < sizeof absurd / sizeof *absurd; i++) {
            memcpy(bytes, r.bytes, r.size);
            memcpy(bytes + at, &absurd[i], 8);
            saved_file_seal(bytes, r.size, KV_GROUPS);
            scene_write_file(bytes, r.size);
            pagedcl_seq seqs[SCENE_SEQS];
            int64_t num_seqs = 0;
            pagedcl_status status = scene_load(&r.pool, seqs, &num_seqs);
            /* Token ids and the bytes of keys may be anything. */
            cr_assert(status == PAGEDCL_BAD_FILE || status == PAGEDCL_SUCCESS || status == PAGEDCL_CAPACITY,
                      "%zu: %s, %s", at, pagedcl_status_name(status), pagedcl_last_error());
            refused += status != PAGEDCL_SUCCESS;
            for (int64_t s = 0; status == PAGEDCL_SUCCESS && s < num_seqs; s++)
                OK(pagedcl_blocks_seq_free(r.pool.blocks, seqs[s]));
            OK(pagedcl_prefix_evict(r.pool.blocks, INT64_MAX, NULL));
            cr_assert_eq(manager_stats(r.pool.blocks).used, r.before.used);
        }
    cr_assert_gt(refused, 200);
    kv_pool_destroy(&r.pool);
}

/* A sequence of a file that is made up: zeros for data, of which all checksums are right. */
typedef struct made_up {
    pcl_file_seq head;
    int64_t first[KV_GROUPS];
    int64_t num_tokens; /* of data, in each group that says no place of its own: */
    bool misplaced;     /* the data of group 0 is the begin of the file */
    int64_t key_type;
} made_up;

static size_t append(unsigned char *bytes, size_t size, const void *part, size_t part_size) {
    memset(bytes + size, 0, pcl_file_padded(part_size));
    if (part != NULL)
        memcpy(bytes + size, part, part_size);
    return size + pcl_file_padded(part_size);
}

/* Writes a file of these sequences for the manager; extra: bytes behind the manifest's last part. */
static void write_made_up(const pagedcl_blocks *blocks, const made_up *seqs, int64_t num_seqs, size_t extra) {
    static unsigned char bytes[SCENE_FILE], manifest[SCENE_FILE];
    size_t size = 0, manifest_size = 0;
    pcl_file_form *forms = NULL;
    const pcl_file_head head = {.num_groups = KV_GROUPS};
    OK(pcl_file_forms(blocks, kv_geometry, &forms));
    size = append(bytes, size, &head, sizeof head);
    memcpy(bytes, pcl_file_magic, sizeof pcl_file_magic);
    for (int g = 0; g < KV_GROUPS; g++)
        size = append(bytes, size, &forms[g].group, sizeof forms[g].group);
    free(forms);
    for (int64_t i = 0; i < num_seqs; i++) {
        manifest_size = append(manifest, manifest_size, &seqs[i].head, sizeof seqs[i].head);
        for (int g = 0; g < KV_GROUPS; g++) {
            const bool misplaced = g == 0 && seqs[i].misplaced;
            const size_t count = (size_t)seqs[i].num_tokens, at = misplaced ? 0 : size;
            if (!misplaced)
                size = append(bytes, size, NULL, count * kv_token_bytes[g]);
            const pcl_file_data data = {seqs[i].first[g], at,
                                        pcl_file_checksum_tokens(0, bytes + at, count, kv_token_bytes[g])};
            manifest_size = append(manifest, manifest_size, &data, sizeof data);
        }
        if (seqs[i].head.recorded > 0)
            manifest_size = append(manifest, manifest_size, NULL, (size_t)seqs[i].head.recorded * sizeof(int32_t));
        const pcl_file_key key = {.type = seqs[i].key_type, .size = 1};
        if (seqs[i].head.num_keys > 0) {
            manifest_size = append(manifest, manifest_size, &key, sizeof key);
            manifest_size = append(manifest, manifest_size, "k", 1);
        }
    }
    manifest_size = append(manifest, manifest_size, NULL, extra);
    pcl_file_tail tail = {.num_seqs = num_seqs, .manifest_offset = size, .manifest_size = manifest_size};
    size = append(bytes, size, manifest, manifest_size);
    size = append(bytes, size, &tail, sizeof tail);
    saved_file_seal(bytes, size, KV_GROUPS);
    scene_write_file(bytes, size);
}

/* One thing is wrong in each of these files, and no checksum tells. */
Test(blocks_file_hostile, b144_each_rule_of_the_manifest_is_kept) {
    const pcl_file_seq ten = {.length = 10, .parent = -1};
    const struct {
        const char *name;
        bool windowed;
        int64_t num_seqs;
        size_t extra;
        made_up seqs[2];
        pagedcl_status status;
    } cases[] = {
        {"a good one", false, 1, 0, {{.head = ten, .num_tokens = 10}}, PAGEDCL_SUCCESS},
        {"a good pair",
         false,
         2,
         0,
         {{.head = ten, .num_tokens = 10}, {.head = {9, 9, 0, 8, 1}, .num_tokens = 1, .key_type = PAGEDCL_KEY_SALT}},
         PAGEDCL_SUCCESS},
        {"a good window", true, 1, 0, {{.head = ten, .num_tokens = 10}}, PAGEDCL_SUCCESS},
        {"a length below 0", false, 1, 0, {{.head = {-1, 0, -1, 0, 0}}}, PAGEDCL_BAD_FILE},
        {"fewer than no recorded tokens",
         false,
         1,
         0,
         {{.head = {10, -1, -1, 0, 0}, .num_tokens = 10}},
         PAGEDCL_BAD_FILE},
        {"more recorded tokens than there are",
         false,
         1,
         0,
         {{.head = {10, 11, -1, 0, 0}, .num_tokens = 10}},
         PAGEDCL_BAD_FILE},
        {"a shared part below 0",
         false,
         2,
         0,
         {{.head = ten, .num_tokens = 10}, {.head = {0, 0, 0, -4, 0}}},
         PAGEDCL_BAD_FILE},
        {"a longer shared part than sequence",
         false,
         2,
         0,
         {{.head = ten, .num_tokens = 10}, {.head = {4, 0, 0, 8, 0}}},
         PAGEDCL_BAD_FILE},
        {"a longer shared part than parent",
         false,
         2,
         0,
         {{.head = ten, .num_tokens = 10}, {.head = {12, 0, 0, 12, 0}}},
         PAGEDCL_BAD_FILE},
        {"a shared part of nobody", false, 1, 0, {{.head = {4, 0, -1, 4, 0}}}, PAGEDCL_BAD_FILE},
        {"a parent below -1", false, 1, 0, {{.head = {10, 0, -2, 0, 0}, .num_tokens = 10}}, PAGEDCL_BAD_FILE},
        {"a parent of itself",
         false,
         2,
         0,
         {{.head = ten, .num_tokens = 10}, {.head = {8, 0, 1, 8, 0}}},
         PAGEDCL_BAD_FILE},
        {"fewer than no keys", false, 1, 0, {{.head = {10, 0, -1, 0, -1}, .num_tokens = 10}}, PAGEDCL_BAD_FILE},
        {"a key of a type that is another one in 32 bits",
         false,
         1,
         0,
         {{.head = {10, 0, -1, 0, 1}, .num_tokens = 10, .key_type = PAGEDCL_KEY_SALT + (INT64_C(1) << 32)}},
         PAGEDCL_BAD_FILE},
        {"a parent under a window",
         true,
         2,
         0,
         {{.head = ten, .num_tokens = 10}, {.head = {8, 0, 0, 8, 0}}},
         PAGEDCL_BAD_FILE},
        {"data from before the begin",
         false,
         1,
         0,
         {{.head = ten, .first = {-4, 0}, .num_tokens = 10}},
         PAGEDCL_BAD_FILE},
        {"data from behind the end", false, 1, 0, {{.head = {0, 0, -1, 0, 0}, .first = {4, 4}}}, PAGEDCL_BAD_FILE},
        {"data that begins too late", false, 1, 0, {{.head = ten, .first = {4, 4}, .num_tokens = 6}}, PAGEDCL_BAD_FILE},
        {"data in the head",
         false,
         1,
         0,
         {{.head = {10, 0, -1, 0, 0}, .num_tokens = 10, .misplaced = true}},
         PAGEDCL_BAD_FILE},
        {"a manifest that goes on", false, 1, 8, {{.head = ten, .num_tokens = 10}}, PAGEDCL_BAD_FILE},
    };
    const int64_t windows[] = {0, 9};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kv_pool pool = kv_pool_create(20, 4, 4, cases[i].windowed ? windows : NULL, true);
        pagedcl_blocks_stats before = manager_stats(pool.blocks);
        pagedcl_seq seqs[SCENE_SEQS] = {77};
        int64_t num_seqs = 77;
        write_made_up(pool.blocks, cases[i].seqs, cases[i].num_seqs, cases[i].extra);
        pagedcl_status status = scene_load(&pool, seqs, &num_seqs);
        cr_assert_eq(status, cases[i].status, "%s: %s, %s", cases[i].name, pagedcl_status_name(status),
                     pagedcl_last_error());
        pagedcl_blocks_stats after = manager_stats(pool.blocks);
        if (status == PAGEDCL_SUCCESS)
            cr_assert(num_seqs == cases[i].num_seqs && after.num_seqs == num_seqs, "%s", cases[i].name);
        else
            cr_assert(num_seqs == 77 && seqs[0] == 77 && memcmp(&before, &after, sizeof after) == 0,
                      "%s changed something", cases[i].name);
        kv_pool_destroy(&pool);
    }
}

Test(blocks_file_hostile, foreign_files_are_refused) {
    static refusal r;
    refusal_prepare(&r);
    scene_write_file((const unsigned char *)"", 0);
    refusal_expect(&r, PAGEDCL_BAD_FILE, "empty file", 0);
    memset(r.bytes, 'x', 4096);
    scene_write_file(r.bytes, 4096);
    refusal_expect(&r, PAGEDCL_BAD_FILE, "text", 0);
    remove(scene_path);
    refusal_expect(&r, PAGEDCL_IO_ERROR, "no file", 0);
    snprintf(scene_path, sizeof scene_path, "%s", scene_folder);
    refusal_expect(&r, PAGEDCL_BAD_FILE, "folder", 0);
    kv_pool_destroy(&r.pool);
}

static pagedcl_status load_as(refusal *r, const pagedcl_kv_geometry *geometry) {
    pagedcl_seq seqs[SCENE_SEQS];
    int64_t num_seqs;
    return pagedcl_blocks_load(r->pool.blocks, scene_path, geometry, kv_pool_write, &r->pool, seqs, SCENE_SEQS,
                               &num_seqs);
}

/* Each field of the geometry is compared, and named. */
Test(blocks_file_hostile, another_geometry_is_refused) {
    static refusal r;
    refusal_prepare(&r);
    pagedcl_kv_geometry other[KV_GROUPS];
#define OTHER(g, change, status, words)                                                            \
    do {                                                                                           \
        memcpy(other, kv_geometry, sizeof other);                                                  \
        pagedcl_kv_geometry *of = &other[g];                                                       \
        change;                                                                                    \
        expect_refused(load_as(&r, other), PAGEDCL_##status, words);                               \
        pagedcl_blocks_stats after = manager_stats(r.pool.blocks);                                 \
        cr_assert_eq(memcmp(&after, &r.before, sizeof after), 0, "%s changed something", #change); \
    } while (0)
    for (int g = 0; g < KV_GROUPS; g++) {
        OTHER(g, of->num_layers++, UNSUPPORTED, "num_layers");
        OTHER(g, of->num_kv_heads++, UNSUPPORTED, "num_kv_heads");
        OTHER(g, of->head_dim = 9, UNSUPPORTED, "head_dim");
        OTHER(g, of->head_dim_v = 9, UNSUPPORTED, "head_dim_v");
        OTHER(g, (of->head_dim_v = 1, of->v_in_k = 1), UNSUPPORTED, g == 0 ? "v_in_k 0" : "head_dim_v 2");
        OTHER(g, of->num_layers = 0, INVALID_ARGUMENT, "0 layers");
        OTHER(g, of->num_kv_heads = 0, INVALID_ARGUMENT, "0 KV heads");
        OTHER(g, of->head_dim = -1, INVALID_ARGUMENT, "head_dim -1");
        OTHER(g, of->head_dim_v = -1, INVALID_ARGUMENT, "head_dim_v -1");
        OTHER(g, of->v_in_k = 2, INVALID_ARGUMENT, "v_in_k 2");
        OTHER(g, (of->head_dim_v = 99, of->v_in_k = 1), INVALID_ARGUMENT, "V must fit");
        OTHER(g, of->dtype = PAGEDCL_DTYPE_DEFAULT, INVALID_ARGUMENT, "dtype invalid");
        OTHER(g, of->dtype = (pagedcl_dtype)99, INVALID_ARGUMENT, "dtype invalid");
        OTHER(g, of->scale_per_row = 2, INVALID_ARGUMENT, "scale_per_row is 2");
        OTHER(g, of->k_scale = 0.5f, INVALID_ARGUMENT, "k_scale 0.5");
    }
    OTHER(0, of->dtype = PAGEDCL_BFLOAT16, UNSUPPORTED, "dtype float16 in group 0, and is to be loaded with bfloat16");
    OTHER(1, of->dtype = PAGEDCL_FLOAT8_E4M3, UNSUPPORTED, "dtype int8 in group 1");
    OTHER(1, (of->dtype = PAGEDCL_INT4, of->scale_per_row = 0), UNSUPPORTED, "loaded with int4");
    OTHER(1, of->scale_per_row = 0, UNSUPPORTED, "scale_per_row 1 in group 1, and is to be loaded with 0");
    OTHER(0, of->scale_per_row = 1, INVALID_ARGUMENT, "scale_per_row is 1, with dtype float16");
#undef OTHER
    pagedcl_blocks *one = manager_create((pagedcl_blocks_desc){.num_blocks = 40, .block_size = 4});
    pagedcl_seq seqs[SCENE_SEQS];
    int64_t num_seqs;
    FAILS(pagedcl_blocks_load(one, scene_path, kv_geometry, kv_pool_write, &r.pool, seqs, SCENE_SEQS, &num_seqs),
          UNSUPPORTED);
    manager_destroy(one);
    kv_pool_destroy(&r.pool);
}

/* A file has elements as they are: a pool with other scales of its own would take them for other values. */
Test(blocks_file_hostile, scales_of_the_pool_must_be_the_same) {
    pagedcl_kv_geometry geometry = {1, 1, 2, PAGEDCL_INT8, .k_scale = 0.1f, .v_scale = 3}, other = geometry;
    pagedcl_blocks *blocks = manager_create((pagedcl_blocks_desc){.num_blocks = 4, .block_size = 4});
    kv_pool pool = {.blocks = blocks};
    pagedcl_seq seqs[SCENE_SEQS];
    int64_t num_seqs = 77;
    OK(pagedcl_blocks_save(blocks, scene_path, &geometry, NULL, 0, kv_pool_read, &pool));
#define LOAD(status, words)                                                                                            \
    expect_refused(pagedcl_blocks_load(blocks, scene_path, &other, kv_pool_write, &pool, seqs, SCENE_SEQS, &num_seqs), \
                   PAGEDCL_##status, words)
    other.k_scale = 0.2f;
    LOAD(UNSUPPORTED, "k_scale 0.100000001 in group 0, and is to be loaded with 0.200000003");
    other.k_scale = 0; /* 1 */
    LOAD(UNSUPPORTED, "loaded with 1");
    other.k_scale = geometry.k_scale;
    other.v_scale = 2.5f;
    LOAD(UNSUPPORTED, "v_scale 3 in group 0");
    other.v_scale = NAN;
    LOAD(INVALID_ARGUMENT, "v_scale");
    other.v_scale = -3;
    LOAD(INVALID_ARGUMENT, "v_scale");
    other.v_scale = INFINITY;
    LOAD(INVALID_ARGUMENT, "v_scale");
#undef LOAD
    cr_assert_eq(num_seqs, 77);
    OK(pagedcl_blocks_load(blocks, scene_path, &geometry, kv_pool_write, &pool, seqs, SCENE_SEQS, &num_seqs));
    cr_assert_eq(num_seqs, 0);
    manager_destroy(blocks);
}

/* The head of a file, with the checksums that belong to it. */
Test(blocks_file_hostile, b144_absurd_geometry_is_refused) {
    static refusal r;
    static unsigned char bytes[SCENE_FILE];
    const int64_t absurd[] = {-1, 0, 99, INT64_MAX, INT64_MIN, INT64_C(1) << 32, INT64_C(0x7fc00000)};
    const size_t fields = KV_GROUPS * sizeof(pcl_file_group) / sizeof(int64_t);
    refusal_prepare(&r);
    for (size_t field = 0; field < fields; field++)
        for (size_t i = 0; i < sizeof absurd / sizeof *absurd; i++) {
            size_t at = sizeof(pcl_file_head) + field * sizeof(int64_t);
            bool block_size = at % sizeof(pcl_file_group) ==
                              (sizeof(pcl_file_head) + offsetof(pcl_file_group, block_size)) % sizeof(pcl_file_group);
            if (memcmp(r.bytes + at, &absurd[i], sizeof absurd[i]) == 0 || block_size)
                continue;
            memcpy(bytes, r.bytes, r.size);
            memcpy(bytes + at, &absurd[i], sizeof absurd[i]);
            saved_file_seal(bytes, r.size, KV_GROUPS);
            scene_write_file(bytes, r.size);
            refusal_expect(&r, PAGEDCL_UNSUPPORTED, "field", field);
        }
    kv_pool_destroy(&r.pool);
}

Test(blocks_file_hostile, another_version_is_refused) {
    static refusal r;
    refusal_prepare(&r);
    const char *const versions[] = {"01", "03", "99"};
    for (int i = 0; i < 3; i++) {
        memcpy(r.bytes + 6, versions[i], 2);
        scene_write_file(r.bytes, r.size);
        refusal_expect(&r, PAGEDCL_UNSUPPORTED, versions[i], 0);
        cr_assert_not_null(strstr(pagedcl_last_error(), versions[i]), "%s", pagedcl_last_error());
    }
    kv_pool_destroy(&r.pool);
}

static const float bad_scales[] = {NAN, -NAN, INFINITY, -INFINITY, -1, -0x1p-149f};
static const float good_scales[] = {0, -0.0f, 0x1p-149f, 1, FLT_MAX};
enum { BAD_SCALES = sizeof bad_scales / sizeof *bad_scales, GOOD_SCALES = sizeof good_scales / sizeof *good_scales };

Test(blocks_file_hostile, b144_scales_that_cannot_be_are_refused) {
    static refusal r;
    refusal_prepare(&r);
    int64_t num_tokens = 0, num_seqs = 0;
    unsigned char *data = saved_file_data(r.bytes, r.size, 1, kv_token_bytes[1], &num_tokens);
    cr_assert(data != NULL && num_tokens == 10);
    /* The first and the last scale of the group's data. */
    unsigned char *const at[] = {data + KV_SCALE_AT, data + 10 * kv_token_bytes[1] - sizeof(float)};
    for (int where = 0; where < 2; where++)
        for (int i = 0; i < BAD_SCALES + GOOD_SCALES; i++) {
            float before, scale = i < BAD_SCALES ? bad_scales[i] : good_scales[i - BAD_SCALES];
            memcpy(&before, at[where], sizeof before);
            memcpy(at[where], &scale, sizeof scale);
            saved_file_seal_data(r.bytes, r.size, 1, kv_token_bytes[1]);
            saved_file_seal(r.bytes, r.size, KV_GROUPS);
            scene_write_file(r.bytes, r.size);
            memcpy(at[where], &before, sizeof before);
            if (i < BAD_SCALES) {
                refusal_expect(&r, PAGEDCL_BAD_FILE, "scale", (size_t)i);
                cr_assert_not_null(strstr(pagedcl_last_error(), "scale"), "%s", pagedcl_last_error());
                continue;
            }
            pagedcl_seq seqs[SCENE_SEQS];
            OK(scene_load(&r.pool, seqs, &num_seqs));
            if (where == 0)
                cr_assert_eq(memcmp(kv_pool_token(&r.pool, seqs[0], 1, 0) + KV_SCALE_AT, &scale, sizeof scale), 0);
            for (int64_t s = 0; s < num_seqs; s++)
                OK(pagedcl_blocks_seq_free(r.pool.blocks, seqs[s]));
            OK(pagedcl_prefix_evict(r.pool.blocks, INT64_MAX, NULL));
            r.before = manager_stats(r.pool.blocks);
        }
    kv_pool_destroy(&r.pool);
}

/* Where scales are, in tokens of every kind: elements may be anything. */
Test(blocks_file_hostile, scales_are_found_in_every_geometry) {
    static const struct {
        pagedcl_kv_geometry geometry;
        size_t token_bytes, rows[2], scales[2]; /* bytes of elements and scales of a row of K, of V */
    } cases[] = {
        {{2, 3, 5, PAGEDCL_INT8, .head_dim_v = 4, .scale_per_row = 1}, 2 * 3 * (5 + 4 + 4 + 4), {5, 4}, {4, 4}},
        {{1, 1, 7, PAGEDCL_FLOAT8_E4M3, .head_dim_v = 3, .v_in_k = 1, .scale_per_row = 1}, 7 + 4, {7}, {4}},
        {{3, 2, 1, PAGEDCL_FLOAT8_E5M2, .scale_per_row = 1}, 3 * 2 * 2 * (1 + 4), {1, 1}, {4, 4}},
        {{2, 3, 33, PAGEDCL_INT4, .head_dim_v = 7}, 2 * 3 * (17 + 4 + 4 + 2), {17, 4}, {4, 2}},
        {{2, 1, 72, PAGEDCL_INT4, .head_dim_v = 37, .v_in_k = 1}, 2 * (36 + 6), {36}, {6}},
    };
    enum { TOKENS = 3 };
    static unsigned char bytes[TOKENS * 256];
    pagedcl_blocks *blocks = manager_create((pagedcl_blocks_desc){.num_blocks = 4, .block_size = 4});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bool halves = cases[i].geometry.dtype == PAGEDCL_INT4;
        const unsigned char nan[4] = {0, halves ? 0x7e : 0, 0xc0, 0x7f}, below[4] = {0, halves ? 0xbc : 0, 0x80, 0xbf};
        const size_t size = halves ? 2 : 4;
        pcl_file_form *form = NULL;
        OK(pcl_file_forms(blocks, &cases[i].geometry, &form));
        cr_assert_eq(form->token_bytes, cases[i].token_bytes, "case %zu: %zu bytes", i, (size_t)form->token_bytes);
        /* 0xff in each element, and scales that are valid. */
        memset(bytes, 0xff, sizeof bytes);
        size_t at = 0, places[256], count = 0;
        while (at < TOKENS * cases[i].token_bytes)
            for (int side = 0; side < (cases[i].geometry.v_in_k ? 1 : 2); side++)
                for (int head = 0; head < cases[i].geometry.num_kv_heads; head++) {
                    at += cases[i].rows[side];
                    for (size_t end = at + cases[i].scales[side]; at < end; at += size) {
                        memset(bytes + at, 0, size);
                        places[count++] = at;
                    }
                }
        cr_assert_eq(at, TOKENS * cases[i].token_bytes);
        cr_assert(pcl_file_scales_are_valid(form, bytes, TOKENS), "case %zu", i);
        for (size_t place = 0; place < count; place++) {
            memcpy(bytes + places[place], nan, size);
            cr_assert(!pcl_file_scales_are_valid(form, bytes, TOKENS), "case %zu, NaN at scale %zu", i, place);
            memcpy(bytes + places[place], below, size);
            cr_assert(!pcl_file_scales_are_valid(form, bytes, TOKENS), "case %zu, below 0 at scale %zu", i, place);
            memset(bytes + places[place], 0, size);
        }
        free(form);
    }
    manager_destroy(blocks);
}
