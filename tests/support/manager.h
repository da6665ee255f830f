/* SPDX-License-Identifier: Apache-2.0 */
/* A block manager in a test, and engines in miniature that use it. Whatever fails, fails the test. */
#ifndef MANAGER_H
#define MANAGER_H

#include <pagedcl/pagedcl.h>

#include <criterion/criterion.h>

#define OK(call) cr_assert_eq((call), PAGEDCL_SUCCESS, "%s: %s", #call, pagedcl_last_error())
#define FAILS(call, status) cr_assert_eq((call), PAGEDCL_##status, "%s: %s", #call, pagedcl_last_error())

/* A manager of the description, whose struct_size is set here. */
pagedcl_blocks *manager_create(pagedcl_blocks_desc desc);

/* A manager with a prefix cache, of blocks of MANAGER_PREFIX_BLOCK tokens. */
enum { MANAGER_PREFIX_BLOCK = 16 };
pagedcl_blocks *manager_with_prefixes(int32_t num_blocks);

/* 1024 tokens: first, first + 1, ... They stay until eight more are made. */
const int32_t *manager_tokens(int32_t first);

/* What a listener (pagedcl_blocks_set_listener) was told: the blocks that were evicted, in that order, and how many others
   were removed. */
typedef struct manager_evictions {
    int32_t blocks[64];
    int count;
    int removed;
} manager_evictions;
void manager_log_eviction(void *user, const pagedcl_block_event *event);

/* The counters, after the check of all invariants and of free + cached + used = total. */
pagedcl_blocks_stats manager_stats(const pagedcl_blocks *blocks);

/* Checks and ends the manager. */
void manager_destroy(pagedcl_blocks *blocks);

/* A sequence of num_tokens tokens that nobody knows. */
pagedcl_seq manager_sequence(pagedcl_blocks *blocks, int64_t num_tokens);

/* num_tokens more tokens; the number of copies. */
size_t manager_append(pagedcl_blocks *blocks, pagedcl_seq seq, int64_t num_tokens);

pagedcl_prompt manager_prompt(const int32_t *tokens, int64_t num_tokens);

/* Admits a prompt, computes what is not cached and records it; *num_cached (NULL allowed): what was cached. */
pagedcl_seq manager_admit(pagedcl_blocks *blocks, const pagedcl_prompt *prompt, int64_t *num_cached);

/* The same for a prompt that ends at once: its blocks are cached afterwards. What was cached before. */
int64_t manager_serve(pagedcl_blocks *blocks, const pagedcl_prompt *prompt);

/* How much of the prompt is cached. */
int64_t manager_peek(pagedcl_blocks *blocks, const pagedcl_prompt *prompt);

int64_t manager_length(const pagedcl_blocks *blocks, pagedcl_seq seq);

/* The physical block of logical block i in the group; -1 left of a window. */
int32_t manager_block(const pagedcl_blocks *blocks, pagedcl_seq seq, int32_t group, int64_t i);

#endif
