/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences in files. Tests named by b and a number are faults that users have met. */
#define _POSIX_C_SOURCE 200809L

#include "blocks_file.h"
#include "support/allocations.h"
#include "support/expect.h"
#include "support/kv_pool.h"
#include "support/manager.h"
#include "support/saved_file.h"
#include "support/temp_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_TOKENS = 64, MAX_SEQS = 4, MAX_FILE = 1 << 16 };

static char *folder;
static char path[512];
static int32_t tokens[MAX_SEQS][MAX_TOKENS];

static void make_folder(void) {
    folder = temp_folder_create();
    snprintf(path, sizeof path, "%s/sequences", folder);
    for (int i = 0; i < MAX_SEQS; i++)
        for (int p = 0; p < MAX_TOKENS; p++)
            tokens[i][p] = 1000 * i + p;
}

static void remove_folder(void) {
    temp_folder_remove(folder);
}

TestSuite(blocks_file, .init = make_folder, .fini = remove_folder);

static pagedcl_seq computed(kv_pool *pool, int i, int64_t num_tokens) {
    pagedcl_prompt prompt = manager_prompt(tokens[i], num_tokens);
    pagedcl_seq seq = manager_admit(pool->blocks, &prompt, NULL);
    kv_pool_fill(pool, seq, tokens[i], 0, num_tokens);
    return seq;
}

static void save(kv_pool *pool, const pagedcl_seq *seqs, int64_t num_seqs) {
    OK(pagedcl_blocks_save(pool->blocks, path, kv_geometry, seqs, num_seqs, kv_pool_read, pool));
}

static pagedcl_status load(kv_pool *pool, pagedcl_seq *seqs, int64_t *num_seqs) {
    return pagedcl_blocks_load(pool->blocks, path, kv_geometry, kv_pool_write, pool, seqs, MAX_SEQS, num_seqs);
}

static size_t read_file(unsigned char *bytes) {
    FILE *file = fopen(path, "rb");
    cr_assert_not_null(file);
    size_t size = fread(bytes, 1, MAX_FILE, file);
    cr_assert_lt(size, MAX_FILE);
    fclose(file);
    return size;
}

static void write_file(const unsigned char *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

static int files_in_folder(void) {
    int count = 0;
    DIR *dir = opendir(folder);
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

/* A tree of sequences, saved from one pair of block sizes and loaded into every other one. */
Test(blocks_file, comes_back_in_any_block_size) {
    static const int32_t sizes[][2] = {{4, 4}, {1, 1}, {16, 16}, {4, 2}, {3, 6}, {5, 5}};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    for (int from = 0; from < SIZES; from++) {
        kv_pool pool = kv_pool_create(400, sizes[from][0], sizes[from][1], NULL, true);
        const int64_t lengths[MAX_SEQS] = {37, 21, 50, 0};
        pagedcl_seq seqs[MAX_SEQS] = {computed(&pool, 0, 37), 0, 0, manager_sequence(pool.blocks, 0)};
        OK(pagedcl_blocks_share(pool.blocks, seqs[0], 21, &seqs[1]));
        OK(pagedcl_blocks_share(pool.blocks, seqs[1], 18, &seqs[2]));
        memcpy(tokens[1], tokens[0], 37 * sizeof(int32_t));
        memcpy(tokens[2], tokens[0], 18 * sizeof(int32_t));
        manager_append(pool.blocks, seqs[2], 32);
        OK(pagedcl_prefix_record(pool.blocks, seqs[2], tokens[2] + 18, 20));
        kv_pool_fill(&pool, seqs[2], tokens[2], 0, 50);
        save(&pool, seqs, MAX_SEQS);
        kv_pool_destroy(&pool);
        for (int to = 0; to < SIZES; to++) {
            pagedcl_seq loaded[MAX_SEQS] = {0};
            int64_t num_seqs = -1;
            pool = kv_pool_create(400, sizes[to][0], sizes[to][1], NULL, true);
            OK(load(&pool, loaded, &num_seqs));
            cr_assert_eq(num_seqs, MAX_SEQS);
            for (int i = 0; i < MAX_SEQS; i++)
                cr_assert(kv_pool_holds(&pool, loaded[i], tokens[i], lengths[i]), "%d to %d, sequence %d", from, to, i);
            /* What was recorded is found, which does not go behind a fork inside a unit of several blocks. */
            int64_t recorded = sizes[from][0] == 4 && sizes[from][1] == 2 ? 18 : 38;
            int32_t unit = sizes[to][1] > sizes[to][0] ? sizes[to][1] : sizes[to][0];
            pagedcl_prompt prompt = manager_prompt(tokens[2], 50);
            prompt.min_partial = unit;
            cr_assert_eq(manager_peek(pool.blocks, &prompt), recorded / unit * unit, "%d to %d", from, to);
            /* What goes on behind a shared part is the sequence's own. */
            manager_append(pool.blocks, loaded[1], 10);
            cr_assert(kv_pool_holds(&pool, loaded[0], tokens[0], 37));
            for (int i = 0; i < MAX_SEQS; i++)
                OK(pagedcl_blocks_seq_free(pool.blocks, loaded[i]));
            cr_assert_eq(manager_peek(pool.blocks, &prompt), recorded / unit * unit, "a prefix without a sequence");
            cr_assert_eq(manager_stats(pool.blocks).used, 0);
            kv_pool_destroy(&pool);
        }
    }
}

Test(blocks_file, what_is_shared_is_saved_and_loaded_once) {
    kv_pool pool = kv_pool_create(64, 4, 4, NULL, true);
    pagedcl_seq seqs[MAX_SEQS] = {computed(&pool, 0, 48)};
    unsigned char bytes[MAX_FILE];
    save(&pool, seqs, 1);
    size_t alone = read_file(bytes);
    for (int i = 1; i < MAX_SEQS; i++)
        OK(pagedcl_blocks_fork(pool.blocks, seqs[0], &seqs[i]));
    save(&pool, seqs, MAX_SEQS);
    cr_assert_lt(read_file(bytes), 2 * alone);
    int64_t used = manager_stats(pool.blocks).used, num_seqs;
    kv_pool other = kv_pool_create(64, 4, 4, NULL, false);
    OK(load(&other, seqs, &num_seqs));
    cr_assert_eq(manager_stats(other.blocks).used, used);
    for (int i = 0; i < MAX_SEQS; i++)
        cr_assert(kv_pool_holds(&other, seqs[i], tokens[0], 48));
    kv_pool_destroy(&other);
    kv_pool_destroy(&pool);
}

Test(blocks_file, extra_keys_come_back) {
    kv_pool pool = kv_pool_create(64, 4, 4, NULL, true), other = kv_pool_create(64, 8, 8, NULL, true);
    const pagedcl_prefix_key keys[] = {{PAGEDCL_KEY_ADAPTER, 0, "lora", 4},
                                       {PAGEDCL_KEY_SALT, 0, "tenant", 6},
                                       {PAGEDCL_KEY_MEDIA, 9, "a cat", 5},
                                       {PAGEDCL_KEY_MEDIA, 30, "", 0}};
    pagedcl_prompt prompt = manager_prompt(tokens[0], 41);
    prompt.keys = keys;
    prompt.num_keys = 4;
    pagedcl_seq seq = manager_admit(pool.blocks, &prompt, NULL);
    kv_pool_fill(&pool, seq, tokens[0], 0, 41);
    save(&pool, &seq, 1);
    int64_t num_seqs;
    OK(load(&other, &seq, &num_seqs));
    cr_assert_eq(manager_peek(other.blocks, &prompt), 40);
    prompt.num_keys = 2;
    cr_assert_eq(manager_peek(other.blocks, &prompt), 8, "up to the picture");
    prompt.num_keys = 1;
    cr_assert_eq(manager_peek(other.blocks, &prompt), 0, "another tenant");
    kv_pool_destroy(&other);
    kv_pool_destroy(&pool);
}

Test(blocks_file, windows_come_back) {
    const int64_t windows[] = {0, 9}, others[] = {0, 10};
    kv_pool pool = kv_pool_create(64, 4, 4, windows, true), same = kv_pool_create(64, 4, 4, windows, true);
    pagedcl_seq seqs[MAX_SEQS] = {computed(&pool, 0, 20), 0};
    manager_append(pool.blocks, seqs[0], 13);
    kv_pool_fill(&pool, seqs[0], tokens[0], 20, 13);
    manager_append(pool.blocks, seqs[0], 1);
    kv_pool_fill(&pool, seqs[0], tokens[0], 33, 1);
    OK(pagedcl_prefix_record(pool.blocks, seqs[0], tokens[0] + 20, 14));
    OK(pagedcl_blocks_fork(pool.blocks, seqs[0], &seqs[1]));
    save(&pool, seqs, 2);
    int64_t num_seqs;
    OK(load(&same, seqs, &num_seqs));
    for (int i = 0; i < 2; i++) {
        cr_assert(kv_pool_holds(&same, seqs[i], tokens[0], 34));
        cr_assert(manager_block(same.blocks, seqs[i], 1, 5) < 0 && manager_block(same.blocks, seqs[i], 1, 6) >= 0);
    }
    manager_stats(same.blocks);
    kv_pool sizes = kv_pool_create(64, 4, 8, windows, true), wider = kv_pool_create(64, 4, 4, others, true);
    FAILS(load(&sizes, seqs, &num_seqs), UNSUPPORTED);
    FAILS(load(&wider, seqs, &num_seqs), UNSUPPORTED);
    kv_pool *pools[] = {&pool, &same, &sizes, &wider};
    for (int i = 0; i < 4; i++)
        kv_pool_destroy(pools[i]);
}

/* A pool with a sequence and a file of three; loading must not change it. */
typedef struct refusal {
    kv_pool pool;
    pagedcl_blocks_stats before;
    unsigned char bytes[MAX_FILE];
    size_t size;
} refusal;

static void prepare(refusal *r) {
    kv_pool pool = kv_pool_create(40, 4, 4, NULL, true);
    const pagedcl_prefix_key key = {PAGEDCL_KEY_SALT, 0, "abc", 3};
    pagedcl_prompt prompt = manager_prompt(tokens[1], 9);
    prompt.keys = &key;
    prompt.num_keys = 1;
    pagedcl_seq seqs[3] = {computed(&pool, 0, 10), 0, manager_admit(pool.blocks, &prompt, NULL)};
    OK(pagedcl_blocks_share(pool.blocks, seqs[0], 8, &seqs[1]));
    kv_pool_fill(&pool, seqs[2], tokens[1], 0, 9);
    save(&pool, seqs, 3);
    kv_pool_destroy(&pool);
    r->size = read_file(r->bytes);
    r->pool = kv_pool_create(20, 4, 4, NULL, true);
    computed(&r->pool, 2, 7);
    r->before = manager_stats(r->pool.blocks);
}

static void assert_refused(refusal *r, pagedcl_status want, const char *how, size_t where) {
    pagedcl_seq seqs[MAX_SEQS] = {77, 77, 77, 77};
    int64_t num_seqs = 77;
    pagedcl_status status = load(&r->pool, seqs, &num_seqs);
    pagedcl_blocks_stats after = manager_stats(r->pool.blocks);
    cr_assert_eq(status, want, "%s %zu: %s, %s", how, where, pagedcl_status_name(status), pagedcl_last_error());
    cr_assert(seqs[0] == 77 && num_seqs == 77);
    after.peak_used = r->before.peak_used;
    cr_assert_eq(memcmp(&after, &r->before, sizeof after), 0, "%s %zu changed something", how, where);
}

Test(blocks_file, damage_is_refused, .timeout = 60) {
    static refusal r;
    prepare(&r);
    int fd = open(path, O_WRONLY);
    cr_assert_geq(fd, 0);
    for (size_t at = 0; at < r.size; at++)
        for (int bit = 0; bit < 8; bit += 3) {
            unsigned char flipped = r.bytes[at] ^ (unsigned char)(1 << bit);
            cr_assert_eq(pwrite(fd, &flipped, 1, (off_t)at), 1);
            bool foreign = (at >= 8 && at < 16) || ((at == 6 || at == 7) && flipped >= '0' && flipped <= '9');
            assert_refused(&r, foreign ? PAGEDCL_UNSUPPORTED : PAGEDCL_BAD_FILE, "bit flip at", at);
            cr_assert_eq(pwrite(fd, &r.bytes[at], 1, (off_t)at), 1);
        }
    for (size_t size = r.size; size-- > 0;) {
        cr_assert_eq(ftruncate(fd, (off_t)size), 0);
        assert_refused(&r, PAGEDCL_BAD_FILE, "cut off at", size);
    }
    close(fd);
    memset(r.bytes + r.size, 0, 8);
    write_file(r.bytes, r.size + 8);
    assert_refused(&r, PAGEDCL_BAD_FILE, "longer by", 8);
    write_file(r.bytes, r.size);
    pagedcl_seq seqs[MAX_SEQS];
    int64_t num_seqs;
    OK(load(&r.pool, seqs, &num_seqs));
    kv_pool_destroy(&r.pool);
}

Test(blocks_file, b144_absurd_numbers_are_refused, .timeout = 60) {
    static refusal r;
    static unsigned char bytes[MAX_FILE];
    const uint64_t absurd[] = {UINT64_MAX,
                               (uint64_t)1 << 63,
                               ((uint64_t)1 << 42) + 1,
                               UINT32_MAX,
                               (uint64_t)1 << 61,
                               ((uint64_t)1 << 63) - 1,
                               1000000,
                               r.size};
    prepare(&r);
    pcl_file_tail tail;
    memcpy(&tail, r.bytes + r.size - sizeof tail, sizeof tail);
    int refused = 0;
    for (size_t at = tail.manifest_offset; at + 8 <= r.size - sizeof(uint64_t) - sizeof tail.magic; at += 8)
        for (size_t i = 0; i < sizeof absurd / sizeof *absurd; i++) {
            memcpy(bytes, r.bytes, r.size);
            memcpy(bytes + at, &absurd[i], 8);
            saved_file_seal(bytes, r.size, KV_GROUPS);
            write_file(bytes, r.size);
            pagedcl_seq seqs[MAX_SEQS];
            int64_t num_seqs = 0;
            pagedcl_status status = load(&r.pool, seqs, &num_seqs);
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

Test(blocks_file, foreign_files_are_refused) {
    static refusal r;
    prepare(&r);
    write_file((const unsigned char *)"", 0);
    assert_refused(&r, PAGEDCL_BAD_FILE, "empty file", 0);
    memset(r.bytes, 'x', 4096);
    write_file(r.bytes, 4096);
    assert_refused(&r, PAGEDCL_BAD_FILE, "text", 0);
    remove(path);
    assert_refused(&r, PAGEDCL_IO_ERROR, "no file", 0);
    snprintf(path, sizeof path, "%s", folder);
    assert_refused(&r, PAGEDCL_BAD_FILE, "folder", 0);
    kv_pool_destroy(&r.pool);
}

static pagedcl_status load_as(refusal *r, const pagedcl_kv_geometry *geometry) {
    pagedcl_seq seqs[MAX_SEQS];
    int64_t num_seqs;
    return pagedcl_blocks_load(r->pool.blocks, path, geometry, kv_pool_write, &r->pool, seqs, MAX_SEQS, &num_seqs);
}

/* Each field of the geometry is compared, and named. */
Test(blocks_file, another_geometry_is_refused) {
    static refusal r;
    prepare(&r);
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
    pagedcl_seq seqs[MAX_SEQS];
    int64_t num_seqs;
    FAILS(pagedcl_blocks_load(one, path, kv_geometry, kv_pool_write, &r.pool, seqs, MAX_SEQS, &num_seqs), UNSUPPORTED);
    manager_destroy(one);
    kv_pool_destroy(&r.pool);
}

/* A file has elements as they are: a pool with other scales of its own would take them for other values. */
Test(blocks_file, scales_of_the_pool_must_be_the_same) {
    pagedcl_kv_geometry geometry = {1, 1, 2, PAGEDCL_INT8, .k_scale = 0.1f, .v_scale = 3}, other = geometry;
    pagedcl_blocks *blocks = manager_create((pagedcl_blocks_desc){.num_blocks = 4, .block_size = 4});
    kv_pool pool = {.blocks = blocks};
    pagedcl_seq seqs[MAX_SEQS];
    int64_t num_seqs = 77;
    OK(pagedcl_blocks_save(blocks, path, &geometry, NULL, 0, kv_pool_read, &pool));
#define LOAD(status, words)                                                                                    \
    expect_refused(pagedcl_blocks_load(blocks, path, &other, kv_pool_write, &pool, seqs, MAX_SEQS, &num_seqs), \
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
    OK(pagedcl_blocks_load(blocks, path, &geometry, kv_pool_write, &pool, seqs, MAX_SEQS, &num_seqs));
    cr_assert_eq(num_seqs, 0);
    manager_destroy(blocks);
}

/* The head of a file, with the checksums that belong to it. */
Test(blocks_file, b144_absurd_geometry_is_refused) {
    static refusal r;
    static unsigned char bytes[MAX_FILE];
    const int64_t absurd[] = {-1, 0, 99, INT64_MAX, INT64_MIN, INT64_C(1) << 32, INT64_C(0x7fc00000)};
    const size_t fields = KV_GROUPS * sizeof(pcl_file_group) / sizeof(int64_t);
    prepare(&r);
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
            write_file(bytes, r.size);
            assert_refused(&r, PAGEDCL_UNSUPPORTED, "field", field);
        }
    kv_pool_destroy(&r.pool);
}

Test(blocks_file, another_version_is_refused) {
    static refusal r;
    prepare(&r);
    const char *const versions[] = {"01", "03", "99"};
    for (int i = 0; i < 3; i++) {
        memcpy(r.bytes + 6, versions[i], 2);
        write_file(r.bytes, r.size);
        assert_refused(&r, PAGEDCL_UNSUPPORTED, versions[i], 0);
        cr_assert_not_null(strstr(pagedcl_last_error(), versions[i]), "%s", pagedcl_last_error());
    }
    kv_pool_destroy(&r.pool);
}

static const float bad_scales[] = {NAN, -NAN, INFINITY, -INFINITY, -1, -0x1p-149f};
static const float good_scales[] = {0, -0.0f, 0x1p-149f, 1, FLT_MAX};
enum { BAD_SCALES = sizeof bad_scales / sizeof *bad_scales, GOOD_SCALES = sizeof good_scales / sizeof *good_scales };

Test(blocks_file, b144_scales_that_cannot_be_are_refused) {
    static refusal r;
    prepare(&r);
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
            write_file(r.bytes, r.size);
            memcpy(at[where], &before, sizeof before);
            if (i < BAD_SCALES) {
                assert_refused(&r, PAGEDCL_BAD_FILE, "scale", (size_t)i);
                cr_assert_not_null(strstr(pagedcl_last_error(), "scale"), "%s", pagedcl_last_error());
                continue;
            }
            pagedcl_seq seqs[MAX_SEQS];
            OK(load(&r.pool, seqs, &num_seqs));
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
Test(blocks_file, scales_are_found_in_every_geometry) {
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

/* A token that was never written shows by its scale: such a file could not be loaded. */
Test(blocks_file, scales_that_cannot_be_are_not_saved) {
    static refusal r;
    static unsigned char after[MAX_FILE];
    prepare(&r);
    pagedcl_seq seq = computed(&r.pool, 3, 6);
    for (int i = 0; i < BAD_SCALES; i++) {
        memcpy(kv_pool_token(&r.pool, seq, 1, 5) + KV_SCALE_AT, &bad_scales[i], sizeof(float));
        expect_refused(pagedcl_blocks_save(r.pool.blocks, path, kv_geometry, &seq, 1, kv_pool_read, &r.pool),
                       PAGEDCL_INVALID_ARGUMENT, "in block 1 of group 1");
        cr_assert(read_file(after) == r.size && memcmp(after, r.bytes, r.size) == 0 && files_in_folder() == 1);
    }
    /* Behind the length there may be anything. */
    OK(pagedcl_blocks_truncate(r.pool.blocks, seq, 1));
    save(&r.pool, &seq, 1);
    kv_pool_destroy(&r.pool);
}

Test(blocks_file, too_little_room) {
    static refusal r;
    prepare(&r);
    pagedcl_seq seqs[MAX_SEQS], other;
    int64_t num_seqs;
    FAILS(pagedcl_blocks_load(r.pool.blocks, path, kv_geometry, kv_pool_write, &r.pool, seqs, 2, &num_seqs), CAPACITY);
    other = manager_sequence(r.pool.blocks, 16);
    r.before = manager_stats(r.pool.blocks);
    assert_refused(&r, PAGEDCL_OUT_OF_BLOCKS, "a full pool", 0);
    OK(pagedcl_blocks_begin(r.pool.blocks));
    assert_refused(&r, PAGEDCL_INVALID_ARGUMENT, "an open step", 0);
    OK(pagedcl_blocks_rollback(r.pool.blocks, 0));
    OK(pagedcl_blocks_seq_free(r.pool.blocks, other));
    OK(load(&r.pool, seqs, &num_seqs));
    kv_pool_destroy(&r.pool);
    r.pool = kv_pool_create(11, 4, 4, NULL, false);
    r.before = manager_stats(r.pool.blocks);
    assert_refused(&r, PAGEDCL_NEVER_FITS, "a small pool", 0);
    kv_pool_destroy(&r.pool);
}

/* Every transfer fails once: a file keeps what it had, a pool too. */
Test(blocks_file, transfers_that_fail) {
    static refusal r;
    static unsigned char after[MAX_FILE];
    prepare(&r);
    kv_pool pool = kv_pool_create(40, 4, 4, NULL, true);
    pagedcl_seq seqs[MAX_SEQS] = {computed(&pool, 0, 20), computed(&pool, 1, 5)};
    for (pool.fail_at = 1;; pool.fail_at++) {
        pool.transfers = 0;
        pagedcl_status status = pagedcl_blocks_save(pool.blocks, path, kv_geometry, seqs, 2, kv_pool_read, &pool);
        if (status == PAGEDCL_SUCCESS)
            break;
        cr_assert_eq(status, PAGEDCL_DEVICE_LOST);
        cr_assert(read_file(after) == r.size && memcmp(after, r.bytes, r.size) == 0 && files_in_folder() == 1);
    }
    cr_assert_eq(pool.fail_at, 2 * (5 + 2) + 1);
    for (r.pool.fail_at = 1;; r.pool.fail_at++) {
        r.pool.transfers = 0;
        int64_t num_seqs = 77;
        pagedcl_status status = load(&r.pool, seqs, &num_seqs);
        if (status == PAGEDCL_SUCCESS)
            break;
        cr_assert_eq(status, PAGEDCL_DEVICE_LOST);
        pagedcl_blocks_stats stats = manager_stats(r.pool.blocks);
        cr_assert(num_seqs == 77 && stats.used == r.before.used && stats.num_seqs == r.before.num_seqs &&
                  stats.stored == r.before.stored);
    }
    cr_assert_eq(r.pool.fail_at, 2 * (5 + 2) + 1);
    kv_pool_destroy(&pool);
    kv_pool_destroy(&r.pool);
}

/* Every allocation fails once. */
Test(blocks_file, without_memory) {
    static refusal r;
    static unsigned char after[MAX_FILE];
    prepare(&r);
    pagedcl_seq seqs[MAX_SEQS] = {computed(&r.pool, 3, 20)};
    r.before = manager_stats(r.pool.blocks);
    pagedcl_status status = PAGEDCL_OUT_OF_MEMORY;
    int64_t allowed = 0, num_seqs = 0;
    for (; status != PAGEDCL_SUCCESS; allowed++) {
        cr_assert(read_file(after) == r.size && memcmp(after, r.bytes, r.size) == 0 && files_in_folder() == 1);
        allocations_allow(allowed);
        status = pagedcl_blocks_save(r.pool.blocks, path, kv_geometry, seqs, 1, kv_pool_read, &r.pool);
        allocations_allow(-1);
        cr_assert(status == PAGEDCL_SUCCESS || status == PAGEDCL_OUT_OF_MEMORY);
    }
    cr_assert_gt(allowed, 3);
    OK(pagedcl_blocks_seq_free(r.pool.blocks, seqs[0]));
    r.before = manager_stats(r.pool.blocks);
    write_file(r.bytes, r.size);
    status = PAGEDCL_OUT_OF_MEMORY;
    for (allowed = 0; status != PAGEDCL_SUCCESS; allowed++) {
        pagedcl_blocks_stats stats = manager_stats(r.pool.blocks);
        cr_assert(stats.used == r.before.used && stats.num_seqs == r.before.num_seqs &&
                  stats.stored == r.before.stored);
        allocations_allow(allowed);
        status = load(&r.pool, seqs, &num_seqs);
        allocations_allow(-1);
        cr_assert(status == PAGEDCL_SUCCESS || status == PAGEDCL_OUT_OF_MEMORY);
    }
    cr_assert_gt(allowed, 5);
    cr_assert_eq(num_seqs, 3);
    kv_pool_destroy(&r.pool);
}

Test(blocks_file, refused_saves) {
    static refusal r;
    prepare(&r);
    pagedcl_blocks *blocks = r.pool.blocks;
    pagedcl_seq seq = manager_sequence(blocks, 5), gone = manager_sequence(blocks, 5);
    kv_pool_fill(&r.pool, seq, tokens[0], 0, 5);
    OK(pagedcl_blocks_seq_free(blocks, gone));
    const pagedcl_seq both[] = {seq, gone};
    FAILS(pagedcl_blocks_save(blocks, path, kv_geometry, both, 2, kv_pool_read, &r.pool), INVALID_HANDLE);
    FAILS(pagedcl_blocks_save(blocks, path, kv_geometry, both, -1, kv_pool_read, &r.pool), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_save(blocks, NULL, kv_geometry, both, 1, kv_pool_read, &r.pool), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_save(blocks, path, NULL, both, 1, kv_pool_read, &r.pool), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_save(blocks, path, kv_geometry, NULL, 1, kv_pool_read, &r.pool), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_save(blocks, path, kv_geometry, both, 1, NULL, &r.pool), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_save(NULL, path, kv_geometry, both, 1, kv_pool_read, &r.pool), INVALID_ARGUMENT);
    OK(pagedcl_blocks_begin(blocks));
    manager_append(blocks, seq, 1);
    FAILS(pagedcl_blocks_save(blocks, path, kv_geometry, both, 1, kv_pool_read, &r.pool), NOT_READY);
    OK(pagedcl_blocks_rollback(blocks, 0));
    char nowhere[600];
    snprintf(nowhere, sizeof nowhere, "%s/no/folder/here", folder);
    FAILS(pagedcl_blocks_save(blocks, nowhere, kv_geometry, both, 1, kv_pool_read, &r.pool), IO_ERROR);
    /* The name of a folder cannot be taken: what was written under another name is removed. */
    FAILS(pagedcl_blocks_save(blocks, folder, kv_geometry, both, 1, kv_pool_read, &r.pool), IO_ERROR);
    cr_assert_eq(files_in_folder(), 1);
    OK(pagedcl_blocks_save(blocks, path, kv_geometry, NULL, 0, kv_pool_read, &r.pool));
    pagedcl_seq seqs[MAX_SEQS];
    int64_t num_seqs = -1;
    OK(load(&r.pool, seqs, &num_seqs));
    cr_assert_eq(num_seqs, 0);
    kv_pool_destroy(&r.pool);
}
