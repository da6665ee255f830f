/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences in files. Tests named by b and a number are faults that users have met. */
#define _POSIX_C_SOURCE 200809L

#include "blocks_file.h"
#include "support/allocations.h"
#include "support/kv_pool.h"
#include "support/manager.h"
#include "support/temp_folder.h"

#include <dirent.h>
#include <fcntl.h>
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
            assert_refused(&r, at >= 8 && at < 16 ? PAGEDCL_UNSUPPORTED : PAGEDCL_BAD_FILE, "bit flip at", at);
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

/* Gives damaged bytes the right checksums again, so that the numbers themselves must be refused. */
static void seal(unsigned char *bytes, size_t size) {
    pcl_file_tail tail;
    memcpy(&tail, bytes + size - sizeof tail, sizeof tail);
    if (tail.manifest_offset <= size && tail.manifest_size <= size - tail.manifest_offset)
        tail.manifest_checksum = pcl_file_checksum(0, bytes + tail.manifest_offset, tail.manifest_size);
    tail.checksum = pcl_file_checksum(0, &tail, offsetof(pcl_file_tail, checksum));
    memcpy(bytes + size - sizeof tail, &tail, sizeof tail);
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
            seal(bytes, r.size);
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

Test(blocks_file, another_geometry_is_refused) {
    static refusal r;
    prepare(&r);
    pagedcl_seq seqs[MAX_SEQS];
    int64_t num_seqs;
    for (int field = 0; field < 4; field++)
        for (int g = 0; g < KV_GROUPS; g++) {
            pagedcl_kv_geometry other[KV_GROUPS] = {kv_geometry[0], kv_geometry[1]};
            int32_t *const fields[] = {&other[g].num_layers, &other[g].num_kv_heads, &other[g].head_dim};
            if (field < 3)
                ++*fields[field];
            else
                other[g].dtype = PAGEDCL_BFLOAT16;
            FAILS(pagedcl_blocks_load(r.pool.blocks, path, other, kv_pool_write, &r.pool, seqs, MAX_SEQS, &num_seqs),
                  UNSUPPORTED);
            if (field < 3)
                *fields[field] = 0;
            else
                other[g].dtype = PAGEDCL_DTYPE_DEFAULT;
            FAILS(pagedcl_blocks_load(r.pool.blocks, path, other, kv_pool_write, &r.pool, seqs, MAX_SEQS, &num_seqs),
                  INVALID_ARGUMENT);
        }
    pagedcl_blocks *one = manager_create((pagedcl_blocks_desc){.num_blocks = 40, .block_size = 4});
    FAILS(pagedcl_blocks_load(one, path, kv_geometry, kv_pool_write, &r.pool, seqs, MAX_SEQS, &num_seqs), UNSUPPORTED);
    manager_destroy(one);
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
