/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libFuzzer target: files of sequences. The first byte chooses between the bytes as a file, and the bytes as edits of
 * a good file: two of position, one that says how much is overwritten, then that. Checksums are put right afterwards, so
 * that the numbers themselves are tried, and the scales of the first sequence. What is loaded must leave a manager without fault, and what is not, nothing.
 */
#define _GNU_SOURCE

#include "blocks_file.h"
#include "must.h"
#include "support/kv_pool.h"
#include "support/saved_file.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_FILE = 1 << 16, MAX_SEQS = 16 };

static int memory_file(char *path, size_t path_size) {
    int fd = memfd_create("sequences", 0);
    MUST(fd >= 0);
    snprintf(path, path_size, "/proc/self/fd/%d", fd);
    return fd;
}

/* A file of three sequences, two of which share, with keys. */
static size_t good_file(unsigned char *bytes) {
    kv_pool pool = kv_pool_create(40, 4, 4, NULL, true);
    int32_t tokens[20] = {0};
    const pagedcl_prefix_key key = {PAGEDCL_KEY_SALT, 0, "salt", 4};
    pagedcl_prompt prompt = PAGEDCL_PROMPT_INIT;
    prompt.keys = &key;
    prompt.num_keys = 1;
    pagedcl_seq seqs[3];
    int64_t num_cached;
    MUST(pagedcl_prefix_seq_create(pool.blocks, &prompt, &seqs[0], &num_cached) == PAGEDCL_SUCCESS);
    MUST(pagedcl_blocks_append(pool.blocks, seqs[0], 18, NULL, NULL) == PAGEDCL_SUCCESS);
    kv_pool_fill(&pool, seqs[0], tokens, 0, 18);
    MUST(pagedcl_prefix_record(pool.blocks, seqs[0], tokens, 17) == PAGEDCL_SUCCESS);
    MUST(pagedcl_blocks_share(pool.blocks, seqs[0], 10, &seqs[1]) == PAGEDCL_SUCCESS);
    MUST(pagedcl_blocks_seq_create(pool.blocks, &seqs[2]) == PAGEDCL_SUCCESS);
    char path[64] = "/tmp/fuzz_blocks_file.XXXXXX";
    int fd = mkstemp(path);
    MUST(fd >= 0);
    close(fd);
    MUST(pagedcl_blocks_save(pool.blocks, path, kv_geometry, seqs, 3, kv_pool_read, &pool) == PAGEDCL_SUCCESS);
    FILE *file = fopen(path, "rb");
    MUST(file != NULL);
    size_t size = fread(bytes, 1, MAX_FILE, file);
    fclose(file);
    remove(path);
    kv_pool_destroy(&pool);
    return size;
}

static void edit(unsigned char *bytes, size_t size, const uint8_t *data, size_t data_size) {
    while (data_size > 3) {
        size_t at = ((size_t)data[0] << 8 | data[1]) % size, count = data[2] % 9;
        data += 3;
        data_size -= 3;
        count = count < data_size ? count : data_size;
        count = count < size - at ? count : size - at;
        memcpy(bytes + at, data, count);
        data += count;
        data_size -= count;
    }
}

/* What was loaded: no scale of the sequence that a file must not have. */
static bool scales_are_valid(const kv_pool *pool, pagedcl_seq seq) {
    int64_t length = 0;
    MUST(pagedcl_blocks_seq_length(pool->blocks, seq, &length) == PAGEDCL_SUCCESS);
    bool valid = true;
    for (int64_t p = 0; p < length; p++) {
        float scale;
        memcpy(&scale, kv_pool_token(pool, seq, 1, p) + KV_SCALE_AT, sizeof scale);
        valid &= scale >= 0 && scale <= FLT_MAX;
    }
    return valid;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static unsigned char good[MAX_FILE], bytes[MAX_FILE];
    static size_t good_size;
    if (good_size == 0)
        good_size = good_file(good);
    if (size == 0 || size > MAX_FILE)
        return 0;
    size_t file_size = data[0] % 4 == 0 ? size - 1 : good_size;
    memcpy(bytes, data[0] % 4 == 0 ? data + 1 : good, file_size);
    if (data[0] % 4 != 0)
        edit(bytes, file_size, data + 1, size - 1);
    for (int g = 0; g < KV_GROUPS; g++)
        saved_file_seal_data(bytes, file_size, g, kv_token_bytes[g]);
    saved_file_seal(bytes, file_size, KV_GROUPS);

    char path[64];
    int fd = memory_file(path, sizeof path);
    MUST(write(fd, bytes, file_size) == (ssize_t)file_size);
    kv_pool pool = kv_pool_create(32, data[0] & 4 ? 2 : 4, 4, NULL, true);
    pagedcl_blocks_stats stats = PAGEDCL_BLOCKS_STATS_INIT;
    pagedcl_seq seqs[MAX_SEQS];
    int64_t num_seqs = 0;
    pagedcl_status status =
        pagedcl_blocks_load(pool.blocks, path, kv_geometry, kv_pool_write, &pool, seqs, MAX_SEQS, &num_seqs);
    MUST(pagedcl_blocks_check(pool.blocks) == PAGEDCL_SUCCESS);
    MUST(pagedcl_blocks_get_stats(pool.blocks, &stats) == PAGEDCL_SUCCESS);
    MUST(status == PAGEDCL_SUCCESS ? stats.num_seqs == num_seqs : stats.free == 32);
    for (int64_t i = 0; i < num_seqs; i++)
        MUST(scales_are_valid(&pool, seqs[i]));
    for (int64_t i = 0; i < num_seqs; i++)
        MUST(pagedcl_blocks_seq_free(pool.blocks, seqs[i]) == PAGEDCL_SUCCESS);
    MUST(pagedcl_blocks_check(pool.blocks) == PAGEDCL_SUCCESS);
    kv_pool_destroy(&pool);
    close(fd);
    return 0;
}
