/* SPDX-License-Identifier: Apache-2.0 */
/* The prefix cache. Tests whose names begin with b and a number are faults that users of such caches have met. */
#include "blocks.h"
#include "support/manager.h"

#include <limits.h>
#include <string.h>

enum { BLOCK = MANAGER_PREFIX_BLOCK };

static pagedcl_prompt with_keys(const int32_t *tokens, int64_t num_tokens, const pagedcl_prefix_key *keys,
                                int64_t num_keys) {
    pagedcl_prompt prompt = manager_prompt(tokens, num_tokens);
    prompt.keys = keys;
    prompt.num_keys = num_keys;
    return prompt;
}

static pagedcl_prefix_key text_key(int32_t type, const char *text) {
    return (pagedcl_prefix_key){.type = type, .data = text, .size = strlen(text)};
}

Test(prefix, b83_a_collision_of_hashes_is_no_hit) {
    pagedcl_blocks *blocks = manager_with_prefixes(32);
    blocks->prefix.hash_mask = 0;
    /* Different tokens; the same tokens behind different parents; the same in the last token but one. */
    int32_t prompts[6][2 * BLOCK + 1] = {{0}};
    for (int i = 0; i < 6; i++)
        for (int32_t p = 0; p < 2 * BLOCK + 1; p++)
            prompts[i][p] = i < 2 ? 100 * i + p : i < 4 ? (p < BLOCK ? 100 * i : 0) + p : p;
    prompts[4][BLOCK - 1] = -1;
    prompts[5][2 * BLOCK - 1] = -1;
    const int64_t want[] = {0, 0, 0, 0, BLOCK - 1, 2 * BLOCK - 1};
    for (int i = 0; i < 6; i++) {
        pagedcl_prompt prompt = manager_prompt(prompts[i], 2 * BLOCK + 1);
        cr_assert_eq(manager_serve(blocks, &prompt), want[i], "prompt %d: %d", i, (int)want[i]);
    }
    /* Each is there, and leaves one by one. */
    for (int i = 0; i < 6; i++) {
        pagedcl_prompt prompt = manager_prompt(prompts[i], 2 * BLOCK + 1);
        cr_assert_eq(manager_peek(blocks, &prompt), 2 * BLOCK, "prompt %d", i);
    }
    while (manager_stats(blocks).cached > 0)
        OK(pagedcl_prefix_evict(blocks, 1, NULL));
    manager_destroy(blocks);
}

Test(prefix, b86_keys_carry_their_type_and_length) {
    pagedcl_blocks *blocks = manager_with_prefixes(64);
    const int32_t *tokens = manager_tokens(0);
    const pagedcl_prefix_key lists[][2] = {
        {text_key(PAGEDCL_KEY_ADAPTER, "k1")},
        {text_key(PAGEDCL_KEY_SALT, "k1")},
        {text_key(PAGEDCL_KEY_USER, "k1")},
        {text_key(PAGEDCL_KEY_USER + 1, "k1")},
        {text_key(PAGEDCL_KEY_ADAPTER, "a"), text_key(PAGEDCL_KEY_ADAPTER, "bc")},
        {text_key(PAGEDCL_KEY_ADAPTER, "ab"), text_key(PAGEDCL_KEY_ADAPTER, "c")},
        {text_key(PAGEDCL_KEY_ADAPTER, "abc")},
        {text_key(PAGEDCL_KEY_ADAPTER, "abc"), text_key(PAGEDCL_KEY_ADAPTER, "")},
        {text_key(PAGEDCL_KEY_ADAPTER, ""), text_key(PAGEDCL_KEY_ADAPTER, "abc")},
        {text_key(PAGEDCL_KEY_ADAPTER, "")},
        {text_key(PAGEDCL_KEY_ADAPTER, "a"), text_key(PAGEDCL_KEY_SALT, "b")},
        {text_key(PAGEDCL_KEY_ADAPTER, "b"), text_key(PAGEDCL_KEY_SALT, "a")},
        {{0}},
    };
    const int64_t num_keys[] = {1, 1, 1, 1, 2, 2, 1, 2, 2, 1, 2, 2, 0};
    for (int turn = 0; turn < 2; turn++)
        for (size_t i = 0; i < sizeof num_keys / sizeof *num_keys; i++) {
            pagedcl_prompt prompt = with_keys(tokens, 2 * BLOCK + 1, lists[i], num_keys[i]);
            cr_assert_eq(manager_serve(blocks, &prompt), turn * 2 * BLOCK, "keys %zu", i);
        }
    manager_destroy(blocks);
}

Test(prefix, b140_no_hit_across_salts) {
    pagedcl_blocks *blocks = manager_with_prefixes(32);
    const int32_t *tokens = manager_tokens(0);
    pagedcl_prefix_key s1 = text_key(PAGEDCL_KEY_SALT, "s1"), s2 = text_key(PAGEDCL_KEY_SALT, "s2");
    pagedcl_prompt mine = with_keys(tokens, 33, &s1, 1), other = with_keys(tokens, 33, &s2, 1);
    pagedcl_prompt none = manager_prompt(tokens, 33);
    manager_serve(blocks, &mine);
    cr_assert_eq(manager_peek(blocks, &other), 0);
    cr_assert_eq(manager_peek(blocks, &none), 0);
    cr_assert_eq(manager_peek(blocks, &mine), 32);
    /* Nor a part of a block. */
    mine.num_tokens = other.num_tokens = none.num_tokens = 9;
    cr_assert_eq(manager_peek(blocks, &other), 0);
    cr_assert_eq(manager_peek(blocks, &none), 0);
    cr_assert_eq(manager_peek(blocks, &mine), 8);
    /* A fork belongs to whom its parent belongs to. */
    pagedcl_seq seq = manager_admit(blocks, &mine, NULL), fork = 0;
    OK(pagedcl_blocks_share(blocks, seq, 0, &fork));
    const int32_t *more = manager_tokens(500);
    manager_append(blocks, fork, 17);
    OK(pagedcl_prefix_record(blocks, fork, more, 17));
    mine.tokens = other.tokens = none.tokens = more;
    mine.num_tokens = other.num_tokens = none.num_tokens = 17;
    cr_assert_eq(manager_peek(blocks, &other), 0);
    cr_assert_eq(manager_peek(blocks, &none), 0);
    cr_assert_eq(manager_peek(blocks, &mine), 16);
    manager_destroy(blocks);
}

Test(prefix, b88_a_full_hit_leaves_the_last_token) {
    const int64_t lengths[] = {1, 2, 15, 16, 17, 31, 32, 33, 48};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int32_t min_partial = 0; min_partial <= BLOCK; min_partial += BLOCK) {
            pagedcl_blocks *blocks = manager_with_prefixes(16);
            pagedcl_prompt prompt = manager_prompt(manager_tokens(0), lengths[i]);
            prompt.min_partial = min_partial;
            int64_t whole = lengths[i] / BLOCK * BLOCK;
            int64_t most = whole < lengths[i] ? whole : min_partial == 0 ? whole - 1 : whole - BLOCK;
            cr_assert_eq(manager_serve(blocks, &prompt), 0);
            for (int turn = 0; turn < 3; turn++) {
                cr_assert_eq(manager_serve(blocks, &prompt), most, "%d of %d", (int)most, (int)lengths[i]);
                pagedcl_blocks_stats stats = manager_stats(blocks);
                cr_assert_eq(stats.cached, whole / BLOCK, "a block is cached twice");
                cr_assert_eq(stats.stored, whole / BLOCK);
                cr_assert_eq(stats.used, 0);
            }
            manager_destroy(blocks);
        }
}

Test(prefix, b90_what_is_found_is_held) {
    pagedcl_blocks *blocks = manager_with_prefixes(6);
    pagedcl_prompt prompt = manager_prompt(manager_tokens(0), 33);
    manager_serve(blocks, &prompt);
    pagedcl_seq seq = 0;
    int64_t num_cached;
    OK(pagedcl_prefix_seq_create(blocks, &prompt, &seq, &num_cached));
    cr_assert_eq(num_cached, 32);
    /* All that can be had: the two that were found are not among it. */
    int32_t found[2] = {manager_block(blocks, seq, 0, 0), manager_block(blocks, seq, 0, 1)};
    pagedcl_seq other = manager_sequence(blocks, 4 * BLOCK);
    for (int i = 0; i < 4; i++)
        cr_assert(manager_block(blocks, other, 0, i) != found[0] && manager_block(blocks, other, 0, i) != found[1]);
    cr_assert_eq(manager_stats(blocks).available, 0);
    cr_assert_eq(manager_peek(blocks, &prompt), 32);
    OK(pagedcl_blocks_seq_free(blocks, seq));
    /* Only now. */
    manager_append(blocks, other, 2 * BLOCK);
    cr_assert_eq(manager_peek(blocks, &prompt), 0);
    manager_destroy(blocks);
}

Test(prefix, b75_every_block_is_counted_once) {
    pagedcl_blocks *blocks = manager_with_prefixes(8);
    int32_t a[49], b[49];
    memcpy(a, manager_tokens(0), sizeof a);
    memcpy(b, a, sizeof b);
    for (int i = 32; i < 49; i++)
        b[i] = 900 + i;
    pagedcl_prompt one = manager_prompt(a, 49), two = manager_prompt(b, 49);
    pagedcl_seq seq_one = manager_admit(blocks, &one, NULL);
    cr_assert_eq(manager_stats(blocks).used, 4);
    pagedcl_seq seq_two = manager_admit(blocks, &two, NULL);
    cr_assert_eq(manager_stats(blocks).used, 6);
    cr_assert_eq(manager_stats(blocks).shared, 2);
    OK(pagedcl_blocks_seq_free(blocks, seq_one));
    pagedcl_blocks_stats stats = manager_stats(blocks);
    cr_assert(stats.used == 4 && stats.cached == 1 && stats.free == 3 && stats.available == 4);
    OK(pagedcl_blocks_seq_free(blocks, seq_two));
    stats = manager_stats(blocks);
    cr_assert(stats.used == 0 && stats.cached == 4 && stats.free == 4 && stats.available == 8);
    for (int64_t taken = 1; taken <= 8; taken++) {
        manager_sequence(blocks, 1);
        stats = manager_stats(blocks);
        cr_assert(stats.used == taken && stats.available == 8 - taken);
    }
    cr_assert_eq(stats.evicted, 4);
    manager_destroy(blocks);
}

Test(prefix, part_of_a_block_is_copied) {
    pagedcl_blocks *blocks = manager_with_prefixes(16);
    int32_t tokens[3 * BLOCK];
    memcpy(tokens, manager_tokens(0), sizeof tokens);
    pagedcl_prompt prompt = manager_prompt(tokens, 3 * BLOCK);
    manager_serve(blocks, &prompt);
    tokens[BLOCK + 5] = -1;
    pagedcl_seq seq = 0;
    int64_t num_cached;
    OK(pagedcl_prefix_seq_create(blocks, &prompt, &seq, &num_cached));
    cr_assert_eq(num_cached, BLOCK + 5);
    int32_t source = manager_block(blocks, seq, 0, 1);
    pagedcl_block_copy copy;
    size_t num_copies = 0;
    OK(pagedcl_blocks_append(blocks, seq, 1, &copy, &num_copies));
    cr_assert(num_copies == 1 && copy.src == source && copy.dst == manager_block(blocks, seq, 0, 1));
    cr_assert_eq(manager_stats(blocks).cached, 2, "the source can be found again");
    /* What is worth a copy is the caller's to say. */
    prompt.min_partial = 5;
    cr_assert_eq(manager_peek(blocks, &prompt), BLOCK + 5);
    prompt.min_partial = 6;
    cr_assert_eq(manager_peek(blocks, &prompt), BLOCK);
    /* The longest of several. */
    for (int32_t same = 2; same < 12; same += 3) {
        int32_t other[2 * BLOCK];
        memcpy(other, tokens, sizeof other);
        other[BLOCK + 5] = BLOCK + 5;
        other[BLOCK + same] = -same;
        pagedcl_prompt more = manager_prompt(other, 2 * BLOCK);
        manager_serve(blocks, &more);
    }
    tokens[BLOCK + 5] = BLOCK + 5;
    tokens[BLOCK + 11] = -11;
    tokens[BLOCK + 12] = -12;
    prompt.min_partial = 0;
    cr_assert_eq(manager_peek(blocks, &prompt), BLOCK + 12);
    manager_destroy(blocks);
}

Test(prefix, a_shortened_sequence_does_not_spoil_what_it_stored) {
    pagedcl_blocks *blocks = manager_with_prefixes(8);
    const int32_t *tokens = manager_tokens(0), *other = manager_tokens(300);
    pagedcl_prompt prompt = manager_prompt(tokens, 40);
    pagedcl_seq seq = manager_admit(blocks, &prompt, NULL);
    for (int64_t length = 39; length >= 0; length -= 13) {
        OK(pagedcl_blocks_truncate(blocks, seq, length));
        FAILS(pagedcl_prefix_record(blocks, seq, other, 1), INVALID_LENGTH);
        cr_assert_eq(manager_peek(blocks, &prompt), 32);
        cr_assert_eq(manager_append(blocks, seq, 40 - length), length % BLOCK != 0 && length < 32);
        OK(pagedcl_prefix_record(blocks, seq, other + length, 40 - length));
        /* What it stores now begins as the prompt does. */
        int32_t mixed[40];
        memcpy(mixed, tokens, sizeof mixed);
        memcpy(mixed + length, other + length, (size_t)(40 - length) * sizeof *mixed);
        pagedcl_prompt now = manager_prompt(mixed, 40);
        cr_assert_eq(manager_peek(blocks, &now), 32);
        OK(pagedcl_blocks_truncate(blocks, seq, length));
    }
    manager_destroy(blocks);
}

/* Two compute the same at the same time: one's blocks are known, the other's go on behind them. */
Test(prefix, what_is_computed_twice_is_cached_once) {
    pagedcl_blocks *blocks = manager_with_prefixes(12);
    manager_evictions log = {0};
    OK(pagedcl_blocks_set_listener(blocks, manager_log_eviction, &log));
    const int32_t *tokens = manager_tokens(0);
    pagedcl_prompt prompt = manager_prompt(tokens, 2 * BLOCK);
    pagedcl_seq a = 0, b = 0;
    int64_t num_cached;
    OK(pagedcl_prefix_seq_create(blocks, &prompt, &a, &num_cached));
    OK(pagedcl_prefix_seq_create(blocks, &prompt, &b, &num_cached));
    manager_append(blocks, a, 2 * BLOCK);
    manager_append(blocks, b, 2 * BLOCK);
    OK(pagedcl_prefix_record(blocks, a, tokens, 2 * BLOCK));
    OK(pagedcl_prefix_record(blocks, b, tokens, 2 * BLOCK));
    cr_assert_eq(manager_stats(blocks).stored, 2);
    manager_append(blocks, b, 2 * BLOCK);
    OK(pagedcl_prefix_record(blocks, b, tokens + 2 * BLOCK, BLOCK));
    prompt.num_tokens = 4 * BLOCK;
    cr_assert_eq(manager_peek(blocks, &prompt), 3 * BLOCK);
    /* The known ones go: what b has behind them cannot be reached, and b goes on unknown. */
    OK(pagedcl_blocks_seq_free(blocks, a));
    OK(pagedcl_prefix_evict(blocks, INT64_MAX, NULL));
    cr_assert(log.count == 2 && log.removed == 1);
    OK(pagedcl_prefix_record(blocks, b, tokens + 3 * BLOCK, BLOCK));
    cr_assert_eq(manager_peek(blocks, &prompt), 0);
    cr_assert_eq(manager_stats(blocks).used, 4);
    /* From nothing it is known again. */
    OK(pagedcl_blocks_truncate(blocks, b, 0));
    manager_append(blocks, b, 2 * BLOCK);
    OK(pagedcl_prefix_record(blocks, b, tokens, 2 * BLOCK));
    cr_assert_eq(manager_peek(blocks, &prompt), 2 * BLOCK);
    manager_destroy(blocks);
}

Test(prefix, a_key_counts_from_its_position_on) {
    pagedcl_blocks *blocks = manager_with_prefixes(32);
    const int32_t *tokens = manager_tokens(0);
    const int64_t positions[] = {0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 3, 4 * BLOCK};
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        pagedcl_prefix_key cat = text_key(PAGEDCL_KEY_MEDIA, "cat"), dog = text_key(PAGEDCL_KEY_MEDIA, "dog");
        cat.position = dog.position = positions[i];
        pagedcl_prompt with_cat = with_keys(tokens, 3 * BLOCK + 1, &cat, 1);
        pagedcl_prompt with_dog = with_keys(tokens, 3 * BLOCK + 1, &dog, 1);
        int64_t common = positions[i] / BLOCK * BLOCK;
        if (common > 3 * BLOCK)
            common = 3 * BLOCK;
        manager_serve(blocks, &with_cat);
        cr_assert_eq(manager_peek(blocks, &with_cat), 3 * BLOCK);
        cr_assert_eq(manager_peek(blocks, &with_dog), common, "position %d", (int)positions[i]);
        /* The same bytes one token on are not the same picture. */
        cat.position++;
        cr_assert_leq(manager_peek(blocks, &with_cat), (positions[i] + 1) / BLOCK * BLOCK);
        OK(pagedcl_prefix_evict(blocks, INT64_MAX, NULL));
    }
    manager_destroy(blocks);
}

Test(prefix, windows_give_back_what_no_query_sees) {
    const int64_t windows[] = {0, 2 * BLOCK};
    pagedcl_blocks *blocks = manager_create((pagedcl_blocks_desc){
        .num_blocks = 40, .block_size = BLOCK, .num_groups = 2, .group_windows = windows, .prefix_cache = 1});
    const int32_t *tokens = manager_tokens(0);
    pagedcl_prompt prompt = manager_prompt(tokens, 8 * BLOCK);
    pagedcl_seq seq = 0;
    int64_t num_cached, slot;
    OK(pagedcl_prefix_seq_create(blocks, &prompt, &seq, &num_cached));
    for (int64_t length = 0; length < 8 * BLOCK; length += BLOCK / 2) {
        manager_append(blocks, seq, BLOCK / 2);
        OK(pagedcl_prefix_record(blocks, seq, tokens + length, BLOCK / 2));
        for (int64_t i = 0; i * BLOCK < length; i++) {
            cr_assert_geq(manager_block(blocks, seq, 0, i), 0);
            /* The query at `length` sees 2 * BLOCK - 1 keys before it. */
            cr_assert_eq(manager_block(blocks, seq, 1, i) < 0, (i + 1) * BLOCK <= length - 2 * BLOCK + 1,
                         "block %d at %d", (int)i, (int)length);
        }
    }
    OK(pagedcl_blocks_slots(blocks, seq, 1, 0, 1, &slot));
    cr_assert_eq(slot, -1);
    FAILS(pagedcl_blocks_truncate(blocks, seq, 5 * BLOCK), INVALID_LENGTH);
    OK(pagedcl_blocks_truncate(blocks, seq, 8 * BLOCK - 4));
    pagedcl_seq fork = 0;
    FAILS(pagedcl_blocks_share(blocks, seq, 3 * BLOCK, &fork), INVALID_LENGTH);
    OK(pagedcl_blocks_share(blocks, seq, 8 * BLOCK - 8, &fork));
    OK(pagedcl_blocks_share(blocks, seq, 0, &fork));
    OK(pagedcl_blocks_seq_free(blocks, seq));

    /* The blocks left of the window go first: nothing needs them to reach the rest. */
    cr_assert_eq(manager_peek(blocks, &prompt), 8 * BLOCK - 1);
    OK(pagedcl_prefix_evict(blocks, 5, NULL));
    cr_assert_eq(manager_peek(blocks, &prompt), 8 * BLOCK - 1);
    prompt.num_tokens = 4 * BLOCK + 1;
    cr_assert_eq(manager_peek(blocks, &prompt), 0, "the window there is gone");
    prompt.num_tokens = 8 * BLOCK;
    OK(pagedcl_prefix_seq_create(blocks, &prompt, &seq, &num_cached));
    cr_assert(num_cached == 8 * BLOCK - 1 && manager_block(blocks, seq, 1, 4) < 0 &&
              manager_block(blocks, seq, 1, 6) >= 0 && manager_block(blocks, seq, 0, 0) >= 0);
    cr_assert_eq(manager_append(blocks, seq, 1), 2, "a copy for each group");
    manager_destroy(blocks);
}

Test(prefix, groups_of_different_block_sizes) {
    const int32_t sizes[] = {4, 0, 8};
    pagedcl_blocks *blocks = manager_create((pagedcl_blocks_desc){
        .num_blocks = 64, .block_size = 16, .num_groups = 3, .group_block_sizes = sizes, .prefix_cache = 1});
    pagedcl_prompt prompt = manager_prompt(manager_tokens(0), 37);
    int64_t needed, slot;
    pagedcl_seq seq = manager_admit(blocks, &prompt, NULL);
    cr_assert_eq(manager_stats(blocks).used, 10 + 3 + 5);
    cr_assert_eq(manager_stats(blocks).stored, 2 * (4 + 1 + 2));
    OK(pagedcl_blocks_needed(blocks, seq, 3, &needed));
    cr_assert_eq(needed, 0);
    OK(pagedcl_blocks_needed(blocks, seq, 4, &needed));
    cr_assert_eq(needed, 2);
    OK(pagedcl_blocks_slots(blocks, seq, 0, 22, 1, &slot));
    cr_assert_eq(slot, manager_block(blocks, seq, 0, 5) * 4 + 2);
    OK(pagedcl_blocks_slots(blocks, seq, 2, 22, 1, &slot));
    cr_assert_eq(slot, manager_block(blocks, seq, 2, 2) * 8 + 6);
    OK(pagedcl_blocks_seq_free(blocks, seq));
    /* Found whole or not at all. */
    cr_assert_eq(manager_peek(blocks, &prompt), 32);
    prompt.num_tokens = 31;
    cr_assert_eq(manager_peek(blocks, &prompt), 16);
    prompt.num_tokens = 37;
    /* A fork inside a unit keeps blocks that are known: what it writes there is not. */
    pagedcl_seq fork = 0;
    seq = manager_admit(blocks, &prompt, NULL);
    OK(pagedcl_blocks_share(blocks, seq, 22, &fork));
    cr_assert_eq(manager_append(blocks, fork, 20), 3);
    OK(pagedcl_prefix_record(blocks, fork, manager_tokens(700), 20));
    cr_assert_eq(manager_stats(blocks).stored, 2 * (4 + 1 + 2));
    cr_assert_eq(manager_peek(blocks, &prompt), 32);
    manager_destroy(blocks);

    const int32_t bad[][2] = {{4, 6}, {1, 257}, {16, 24}, {-1, 4}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        pagedcl_blocks_desc desc = PAGEDCL_BLOCKS_DESC_INIT;
        desc.num_blocks = desc.block_size = 4;
        desc.num_groups = 2;
        desc.group_block_sizes = bad[i];
        FAILS(pagedcl_blocks_create(&desc, &blocks), INVALID_ARGUMENT);
    }
}

Test(prefix, statistics) {
    pagedcl_blocks *blocks = manager_with_prefixes(16);
    pagedcl_prompt prompt = manager_prompt(manager_tokens(0), 40);
    manager_serve(blocks, &prompt);
    manager_serve(blocks, &prompt);
    manager_peek(blocks, &prompt);
    pagedcl_blocks_stats stats = manager_stats(blocks);
    cr_assert(stats.lookups == 2 && stats.hits == 1 && stats.lookup_tokens == 80 && stats.hit_tokens == 32);
    manager_destroy(blocks);
}

Test(prefix, without_a_cache_nothing_is_found) {
    pagedcl_blocks *blocks = manager_create((pagedcl_blocks_desc){.num_blocks = 8, .block_size = BLOCK});
    pagedcl_prompt prompt = manager_prompt(manager_tokens(0), 40);
    for (int turn = 0; turn < 2; turn++)
        cr_assert_eq(manager_serve(blocks, &prompt), 0);
    cr_assert_eq(manager_stats(blocks).free, 8);
    int64_t number = -1;
    OK(pagedcl_prefix_set_priority(blocks, &prompt, PAGEDCL_PRIORITY_HIGH, &number));
    cr_assert_eq(number, 0);
    OK(pagedcl_prefix_evict(blocks, 1, &number));
    cr_assert_eq(number, 0);
    manager_destroy(blocks);
}

Test(prefix, refused_arguments) {
    pagedcl_blocks *blocks = manager_with_prefixes(8);
    const int32_t *tokens = manager_tokens(0);
    pagedcl_seq seq = 77;
    int64_t number = 77;
    pagedcl_prefix_key backward[] = {text_key(PAGEDCL_KEY_MEDIA, "a"), text_key(PAGEDCL_KEY_MEDIA, "b"),
                                     text_key(PAGEDCL_KEY_ADAPTER, "c")};
    backward[0].position = 5;
    pagedcl_prefix_key unknown = text_key(4, "x"), zero = text_key(0, "x"), negative = text_key(1, "x"),
                       empty = {.type = PAGEDCL_KEY_SALT, .size = 1};
    negative.position = -1;
    const pagedcl_prompt bad[] = {
        manager_prompt(NULL, 1),
        manager_prompt(tokens, -1),
        with_keys(tokens, 9, NULL, 1),
        with_keys(tokens, 9, backward, 2),
        with_keys(tokens, 9, backward + 1, 2),
        with_keys(tokens, 9, &unknown, 1),
        with_keys(tokens, 9, &zero, 1),
        with_keys(tokens, 9, &negative, 1),
        with_keys(tokens, 9, &empty, 1),
        with_keys(tokens, 9, &unknown, -1),
        {.struct_size = sizeof(pagedcl_prompt), .min_partial = -1},
        {.struct_size = sizeof(size_t)},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert_eq(pagedcl_prefix_seq_create(blocks, &bad[i], &seq, &number), PAGEDCL_INVALID_ARGUMENT, "%zu", i);
        cr_assert_eq(pagedcl_prefix_peek(blocks, &bad[i], &number), PAGEDCL_INVALID_ARGUMENT, "%zu", i);
        cr_assert_eq(pagedcl_prefix_set_priority(blocks, &bad[i], PAGEDCL_PRIORITY_LOW, &number),
                     PAGEDCL_INVALID_ARGUMENT, "%zu", i);
    }
    pagedcl_prompt good = manager_prompt(tokens, 9);
    pagedcl_prefix_key large = {.type = PAGEDCL_KEY_SALT, .data = tokens, .size = SIZE_MAX - 8};
    pagedcl_prompt huge = with_keys(tokens, 9, &large, 1);
    FAILS(pagedcl_prefix_seq_create(blocks, &huge, &seq, &number), SIZE_OVERFLOW);
    FAILS(pagedcl_prefix_seq_create(blocks, &good, NULL, &number), INVALID_ARGUMENT);
    FAILS(pagedcl_prefix_seq_create(blocks, &good, &seq, NULL), INVALID_ARGUMENT);
    FAILS(pagedcl_prefix_seq_create(NULL, &good, &seq, &number), INVALID_ARGUMENT);
    FAILS(pagedcl_prefix_seq_create(blocks, NULL, &seq, &number), INVALID_ARGUMENT);
    FAILS(pagedcl_prefix_peek(blocks, &good, NULL), INVALID_ARGUMENT);
    FAILS(pagedcl_prefix_evict(blocks, -1, &number), INVALID_ARGUMENT);
    FAILS(pagedcl_prefix_evict(NULL, 1, &number), INVALID_ARGUMENT);
    cr_assert(seq == 77 && number == 77);
    seq = manager_sequence(blocks, 20);
    FAILS(pagedcl_prefix_record(blocks, seq, tokens, 21), INVALID_LENGTH);
    FAILS(pagedcl_prefix_record(blocks, seq, tokens, INT64_MAX), INVALID_LENGTH);
    FAILS(pagedcl_prefix_record(blocks, seq, tokens, -1), INVALID_ARGUMENT);
    FAILS(pagedcl_prefix_record(blocks, seq, NULL, 1), INVALID_ARGUMENT);
    FAILS(pagedcl_prefix_record(blocks, seq + 1, tokens, 1), INVALID_HANDLE);
    OK(pagedcl_prefix_record(blocks, seq, NULL, 0));
    cr_assert_eq(manager_stats(blocks).stored, 0);
    manager_destroy(blocks);
}

/* The check finds every kind of damage to the tree. */
Test(prefix, check_finds_damage) {
    pagedcl_blocks *blocks = manager_with_prefixes(8);
    pagedcl_prompt prompt = manager_prompt(manager_tokens(0), 3 * BLOCK),
                   other = manager_prompt(manager_tokens(100), 20);
    manager_serve(blocks, &prompt);
    manager_serve(blocks, &other);
    pcl_node *nodes = blocks->prefix.nodes;
    int32_t node = blocks->block[0].node;
    int32_t *const words[] = {
        &nodes[node].parent,
        &nodes[node].first_child,
        &nodes[node].num_blocks,
        &nodes[node].priority,
        &pcl_node_row(blocks, node)[0],
        &blocks->prefix.tokens[node * BLOCK],
        &blocks->block[0].node,
        &nodes[node].next,
        &nodes[node].prev,
        &blocks->prefix.unused,
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        for (int32_t damage = -1; damage <= 3; damage++) {
            *words[i] += damage;
            cr_assert_eq(pagedcl_blocks_check(blocks), damage == 0 ? PAGEDCL_SUCCESS : PAGEDCL_INVALID_ARGUMENT,
                         "word %zu, %d", i, (int)damage);
            *words[i] -= damage;
        }
    uint64_t slot = 0;
    while (blocks->prefix.slots[slot] == 0)
        slot++;
    blocks->prefix.slots[slot] = 0;
    FAILS(pagedcl_blocks_check(blocks), INVALID_ARGUMENT);
    pagedcl_blocks_destroy(blocks);
}
