/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences into files and back, and what cannot be saved or finds no room. */
#include "support/allocations.h"
#include "support/expect.h"
#include "support/file_scene.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(blocks_file, .init = scene_open, .fini = scene_close);

/* A tree of sequences, saved from one pair of block sizes and loaded into every other one. */
Test(blocks_file, comes_back_in_any_block_size) {
    static const int32_t sizes[][2] = {{4, 4}, {1, 1}, {16, 16}, {4, 2}, {3, 6}, {5, 5}};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    for (int from = 0; from < SIZES; from++) {
        kv_pool pool = kv_pool_create(400, sizes[from][0], sizes[from][1], NULL, true);
        const int64_t lengths[SCENE_SEQS] = {37, 21, 50, 0};
        pagedcl_seq seqs[SCENE_SEQS] = {scene_computed(&pool, 0, 37), 0, 0, manager_sequence(pool.blocks, 0)};
        OK(pagedcl_blocks_share(pool.blocks, seqs[0], 21, &seqs[1]));
        OK(pagedcl_blocks_share(pool.blocks, seqs[1], 18, &seqs[2]));
        memcpy(scene_tokens[1], scene_tokens[0], 37 * sizeof(int32_t));
        memcpy(scene_tokens[2], scene_tokens[0], 18 * sizeof(int32_t));
        manager_append(pool.blocks, seqs[2], 32);
        OK(pagedcl_prefix_record(pool.blocks, seqs[2], scene_tokens[2] + 18, 20));
        kv_pool_fill(&pool, seqs[2], scene_tokens[2], 0, 50);
        scene_save(&pool, seqs, SCENE_SEQS);
        kv_pool_destroy(&pool);
        for (int to = 0; to < SIZES; to++) {
            pagedcl_seq loaded[SCENE_SEQS] = {0};
            int64_t num_seqs = -1;
            pool = kv_pool_create(400, sizes[to][0], sizes[to][1], NULL, true);
            OK(scene_load(&pool, loaded, &num_seqs));
            cr_assert_eq(num_seqs, SCENE_SEQS);
            for (int i = 0; i < SCENE_SEQS; i++)
                cr_assert(kv_pool_holds(&pool, loaded[i], scene_tokens[i], lengths[i]), "%d to %d, sequence %d", from,
                          to, i);
            /* What was recorded is found, which does not go behind a fork inside a unit of several blocks. */
            int64_t recorded = sizes[from][0] == 4 && sizes[from][1] == 2 ? 18 : 38;
            int32_t unit = sizes[to][1] > sizes[to][0] ? sizes[to][1] : sizes[to][0];
            pagedcl_prompt prompt = manager_prompt(scene_tokens[2], 50);
            prompt.min_partial = unit;
            cr_assert_eq(manager_peek(pool.blocks, &prompt), recorded / unit * unit, "%d to %d", from, to);
            /* What goes on behind a shared part is the sequence's own. */
            manager_append(pool.blocks, loaded[1], 10);
            cr_assert(kv_pool_holds(&pool, loaded[0], scene_tokens[0], 37));
            for (int i = 0; i < SCENE_SEQS; i++)
                OK(pagedcl_blocks_seq_free(pool.blocks, loaded[i]));
            cr_assert_eq(manager_peek(pool.blocks, &prompt), recorded / unit * unit, "a prefix without a sequence");
            cr_assert_eq(manager_stats(pool.blocks).used, 0);
            kv_pool_destroy(&pool);
        }
    }
}

Test(blocks_file, what_is_shared_is_saved_and_loaded_once) {
    kv_pool pool = kv_pool_create(64, 4, 4, NULL, true);
    pagedcl_seq seqs[SCENE_SEQS] = {scene_computed(&pool, 0, 48)};
    unsigned char bytes[SCENE_FILE];
    scene_save(&pool, seqs, 1);
    size_t alone = scene_read_file(bytes);
    for (int i = 1; i < SCENE_SEQS; i++)
        OK(pagedcl_blocks_fork(pool.blocks, seqs[0], &seqs[i]));
    scene_save(&pool, seqs, SCENE_SEQS);
    cr_assert_lt(scene_read_file(bytes), 2 * alone);
    int64_t used = manager_stats(pool.blocks).used, num_seqs;
    kv_pool other = kv_pool_create(64, 4, 4, NULL, false);
    OK(scene_load(&other, seqs, &num_seqs));
    cr_assert_eq(manager_stats(other.blocks).used, used);
    for (int i = 0; i < SCENE_SEQS; i++)
        cr_assert(kv_pool_holds(&other, seqs[i], scene_tokens[0], 48));
    kv_pool_destroy(&other);
    kv_pool_destroy(&pool);
}

Test(blocks_file, extra_keys_come_back) {
    kv_pool pool = kv_pool_create(64, 4, 4, NULL, true), other = kv_pool_create(64, 8, 8, NULL, true);
    const pagedcl_prefix_key keys[] = {{PAGEDCL_KEY_ADAPTER, 0, "lora", 4},
                                       {PAGEDCL_KEY_SALT, 0, "tenant", 6},
                                       {PAGEDCL_KEY_MEDIA, 9, "a cat", 5},
                                       {PAGEDCL_KEY_MEDIA, 30, "", 0}};
    pagedcl_prompt prompt = manager_prompt(scene_tokens[0], 41);
    prompt.keys = keys;
    prompt.num_keys = 4;
    pagedcl_seq seq = manager_admit(pool.blocks, &prompt, NULL);
    kv_pool_fill(&pool, seq, scene_tokens[0], 0, 41);
    scene_save(&pool, &seq, 1);
    int64_t num_seqs;
    OK(scene_load(&other, &seq, &num_seqs));
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
    pagedcl_seq seqs[SCENE_SEQS] = {scene_computed(&pool, 0, 20), 0};
    manager_append(pool.blocks, seqs[0], 13);
    kv_pool_fill(&pool, seqs[0], scene_tokens[0], 20, 13);
    manager_append(pool.blocks, seqs[0], 1);
    kv_pool_fill(&pool, seqs[0], scene_tokens[0], 33, 1);
    OK(pagedcl_prefix_record(pool.blocks, seqs[0], scene_tokens[0] + 20, 14));
    OK(pagedcl_blocks_fork(pool.blocks, seqs[0], &seqs[1]));
    scene_save(&pool, seqs, 2);
    int64_t num_seqs;
    OK(scene_load(&same, seqs, &num_seqs));
    for (int i = 0; i < 2; i++) {
        cr_assert(kv_pool_holds(&same, seqs[i], scene_tokens[0], 34));
        cr_assert(manager_block(same.blocks, seqs[i], 1, 5) < 0 && manager_block(same.blocks, seqs[i], 1, 6) >= 0);
    }
    manager_stats(same.blocks);
    kv_pool sizes = kv_pool_create(64, 4, 8, windows, true), wider = kv_pool_create(64, 4, 4, others, true);
    expect_refused(scene_load(&sizes, seqs, &num_seqs), PAGEDCL_UNSUPPORTED, "block_size 4 in group 1");
    expect_refused(scene_load(&wider, seqs, &num_seqs), PAGEDCL_UNSUPPORTED, "window 9 in group 1");
    kv_pool *pools[] = {&pool, &same, &sizes, &wider};
    for (int i = 0; i < 4; i++)
        kv_pool_destroy(pools[i]);
}

/* A token that was never written shows by its scale: such a file could not be loaded. */
Test(blocks_file, scales_that_cannot_be_are_not_saved) {
    static refusal r;
    static unsigned char after[SCENE_FILE];
    refusal_prepare(&r);
    pagedcl_seq seq = scene_computed(&r.pool, 3, 6);
    const float bad_scales[] = {NAN, INFINITY, -1};
    for (size_t i = 0; i < sizeof bad_scales / sizeof *bad_scales; i++) {
        memcpy(kv_pool_token(&r.pool, seq, 1, 5) + KV_SCALE_AT, &bad_scales[i], sizeof(float));
        expect_refused(pagedcl_blocks_save(r.pool.blocks, scene_path, kv_geometry, &seq, 1, kv_pool_read, &r.pool),
                       PAGEDCL_INVALID_ARGUMENT, "in block 1 of group 1");
        cr_assert(scene_read_file(after) == r.size && memcmp(after, r.bytes, r.size) == 0 && scene_files() == 1);
    }
    /* Behind the length there may be anything. */
    OK(pagedcl_blocks_truncate(r.pool.blocks, seq, 1));
    scene_save(&r.pool, &seq, 1);
    kv_pool_destroy(&r.pool);
}

Test(blocks_file, too_little_room) {
    static refusal r;
    refusal_prepare(&r);
    pagedcl_seq seqs[SCENE_SEQS], other;
    int64_t num_seqs;
    FAILS(pagedcl_blocks_load(r.pool.blocks, scene_path, kv_geometry, kv_pool_write, &r.pool, seqs, 2, &num_seqs),
          CAPACITY);
    other = manager_sequence(r.pool.blocks, 16);
    r.before = manager_stats(r.pool.blocks);
    refusal_expect(&r, PAGEDCL_OUT_OF_BLOCKS, "a full pool", 0);
    OK(pagedcl_blocks_begin(r.pool.blocks));
    refusal_expect(&r, PAGEDCL_INVALID_ARGUMENT, "an open step", 0);
    OK(pagedcl_blocks_rollback(r.pool.blocks, 0));
    OK(pagedcl_blocks_seq_free(r.pool.blocks, other));
    OK(scene_load(&r.pool, seqs, &num_seqs));
    kv_pool_destroy(&r.pool);
    r.pool = kv_pool_create(11, 4, 4, NULL, false);
    r.before = manager_stats(r.pool.blocks);
    refusal_expect(&r, PAGEDCL_NEVER_FITS, "a small pool", 0);
    kv_pool_destroy(&r.pool);
}

/* Every transfer fails once: a file keeps what it had, a pool too. */
Test(blocks_file, transfers_that_fail) {
    static refusal r;
    static unsigned char after[SCENE_FILE];
    refusal_prepare(&r);
    kv_pool pool = kv_pool_create(40, 4, 4, NULL, true);
    pagedcl_seq seqs[SCENE_SEQS] = {scene_computed(&pool, 0, 20), scene_computed(&pool, 1, 5)};
    for (pool.fail_at = 1;; pool.fail_at++) {
        pool.transfers = 0;
        pagedcl_status status = pagedcl_blocks_save(pool.blocks, scene_path, kv_geometry, seqs, 2, kv_pool_read, &pool);
        if (status == PAGEDCL_SUCCESS)
            break;
        cr_assert_eq(status, PAGEDCL_DEVICE_LOST);
        cr_assert(scene_read_file(after) == r.size && memcmp(after, r.bytes, r.size) == 0 && scene_files() == 1);
    }
    cr_assert_eq(pool.fail_at, 2 * (5 + 2) + 1);
    for (r.pool.fail_at = 1;; r.pool.fail_at++) {
        r.pool.transfers = 0;
        int64_t num_seqs = 77;
        pagedcl_status status = scene_load(&r.pool, seqs, &num_seqs);
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
    static unsigned char after[SCENE_FILE];
    refusal_prepare(&r);
    pagedcl_seq seqs[SCENE_SEQS] = {scene_computed(&r.pool, 3, 20)};
    r.before = manager_stats(r.pool.blocks);
    pagedcl_status status = PAGEDCL_OUT_OF_MEMORY;
    int64_t allowed = 0, num_seqs = 0;
    for (; status != PAGEDCL_SUCCESS; allowed++) {
        cr_assert(scene_read_file(after) == r.size && memcmp(after, r.bytes, r.size) == 0 && scene_files() == 1);
        allocations_allow(allowed);
        status = pagedcl_blocks_save(r.pool.blocks, scene_path, kv_geometry, seqs, 1, kv_pool_read, &r.pool);
        allocations_allow(-1);
        cr_assert(status == PAGEDCL_SUCCESS || status == PAGEDCL_OUT_OF_MEMORY);
    }
    cr_assert_gt(allowed, 3);
    OK(pagedcl_blocks_seq_free(r.pool.blocks, seqs[0]));
    r.before = manager_stats(r.pool.blocks);
    scene_write_file(r.bytes, r.size);
    status = PAGEDCL_OUT_OF_MEMORY;
    for (allowed = 0; status != PAGEDCL_SUCCESS; allowed++) {
        pagedcl_blocks_stats stats = manager_stats(r.pool.blocks);
        cr_assert(stats.used == r.before.used && stats.num_seqs == r.before.num_seqs &&
                  stats.stored == r.before.stored);
        allocations_allow(allowed);
        status = scene_load(&r.pool, seqs, &num_seqs);
        allocations_allow(-1);
        cr_assert(status == PAGEDCL_SUCCESS || status == PAGEDCL_OUT_OF_MEMORY);
    }
    cr_assert_gt(allowed, 5);
    cr_assert_eq(num_seqs, 3);
    kv_pool_destroy(&r.pool);
}

Test(blocks_file, refused_saves) {
    static refusal r;
    refusal_prepare(&r);
    pagedcl_blocks *blocks = r.pool.blocks;
    pagedcl_seq seq = manager_sequence(blocks, 5), gone = manager_sequence(blocks, 5);
    kv_pool_fill(&r.pool, seq, scene_tokens[0], 0, 5);
    OK(pagedcl_blocks_seq_free(blocks, gone));
    const pagedcl_seq both[] = {seq, gone};
    FAILS(pagedcl_blocks_save(blocks, scene_path, kv_geometry, both, 2, kv_pool_read, &r.pool), INVALID_HANDLE);
    FAILS(pagedcl_blocks_save(blocks, scene_path, kv_geometry, both, -1, kv_pool_read, &r.pool), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_save(blocks, NULL, kv_geometry, both, 1, kv_pool_read, &r.pool), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_save(blocks, scene_path, NULL, both, 1, kv_pool_read, &r.pool), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_save(blocks, scene_path, kv_geometry, NULL, 1, kv_pool_read, &r.pool), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_save(blocks, scene_path, kv_geometry, both, 1, NULL, &r.pool), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_save(NULL, scene_path, kv_geometry, both, 1, kv_pool_read, &r.pool), INVALID_ARGUMENT);
    OK(pagedcl_blocks_begin(blocks));
    manager_append(blocks, seq, 1);
    FAILS(pagedcl_blocks_save(blocks, scene_path, kv_geometry, both, 1, kv_pool_read, &r.pool), NOT_READY);
    OK(pagedcl_blocks_rollback(blocks, 0));
    char nowhere[600];
    snprintf(nowhere, sizeof nowhere, "%s/no/scene_folder/here", scene_folder);
    FAILS(pagedcl_blocks_save(blocks, nowhere, kv_geometry, both, 1, kv_pool_read, &r.pool), IO_ERROR);
    /* The name of a folder cannot be taken: what was written under another name is removed. */
    FAILS(pagedcl_blocks_save(blocks, scene_folder, kv_geometry, both, 1, kv_pool_read, &r.pool), IO_ERROR);
    cr_assert_eq(scene_files(), 1);
    OK(pagedcl_blocks_save(blocks, scene_path, kv_geometry, NULL, 0, kv_pool_read, &r.pool));
    pagedcl_seq seqs[SCENE_SEQS];
    int64_t num_seqs = -1;
    OK(scene_load(&r.pool, seqs, &num_seqs));
    cr_assert_eq(num_seqs, 0);
    kv_pool_destroy(&r.pool);
}
