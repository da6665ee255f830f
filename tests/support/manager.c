/* SPDX-License-Identifier: Apache-2.0 */
#include "manager.h"

enum { MAX_ROW = 4096, MAX_GROUPS = 8 };

pagedcl_blocks *manager_create(pagedcl_blocks_desc desc) {
    pagedcl_blocks *blocks = NULL;
    desc.struct_size = sizeof desc;
    OK(pagedcl_blocks_create(&desc, &blocks));
    return blocks;
}

pagedcl_blocks *manager_with_prefixes(int32_t num_blocks) {
    return manager_create((pagedcl_blocks_desc){
        .num_blocks = num_blocks, .block_size = MANAGER_PREFIX_BLOCK, .prefix_cache = 1, .prefix_hash_seed = 7});
}

const int32_t *manager_tokens(int32_t first) {
    static int32_t tokens[8][1024];
    static int next;
    int32_t *made = tokens[next++ % 8];
    for (int32_t i = 0; i < 1024; i++)
        made[i] = first + i;
    return made;
}

void manager_log_eviction(void *user, const pagedcl_block_event *event) {
    manager_evictions *log = user;
    if (event->type == PAGEDCL_BLOCK_EVICTED)
        log->blocks[log->count++] = event->block;
    log->removed += event->type == PAGEDCL_BLOCK_REMOVED;
}

pagedcl_blocks_stats manager_stats(const pagedcl_blocks *blocks) {
    pagedcl_blocks_stats stats = PAGEDCL_BLOCKS_STATS_INIT;
    OK(pagedcl_blocks_check(blocks));
    OK(pagedcl_blocks_get_stats(blocks, &stats));
    cr_assert_eq(stats.free + stats.cached + stats.used, stats.total);
    cr_assert_eq(stats.host_free + stats.host_used, stats.host_total);
    return stats;
}

void manager_destroy(pagedcl_blocks *blocks) {
    manager_stats(blocks);
    pagedcl_blocks_destroy(blocks);
}

pagedcl_seq manager_sequence(pagedcl_blocks *blocks, int64_t num_tokens) {
    pagedcl_seq seq = 0;
    OK(pagedcl_blocks_seq_create(blocks, &seq));
    OK(pagedcl_blocks_append(blocks, seq, num_tokens, NULL, NULL));
    return seq;
}

size_t manager_append(pagedcl_blocks *blocks, pagedcl_seq seq, int64_t num_tokens) {
    pagedcl_block_copy copies[MAX_GROUPS];
    size_t num_copies = 0;
    OK(pagedcl_blocks_append(blocks, seq, num_tokens, copies, &num_copies));
    return num_copies;
}

pagedcl_prompt manager_prompt(const int32_t *tokens, int64_t num_tokens) {
    pagedcl_prompt prompt = PAGEDCL_PROMPT_INIT;
    prompt.tokens = tokens;
    prompt.num_tokens = num_tokens;
    return prompt;
}

pagedcl_seq manager_admit(pagedcl_blocks *blocks, const pagedcl_prompt *prompt, int64_t *num_cached) {
    pagedcl_seq seq = 0;
    int64_t cached = -1;
    OK(pagedcl_prefix_seq_create(blocks, prompt, &seq, &cached));
    cr_assert_eq(manager_length(blocks, seq), cached);
    manager_append(blocks, seq, prompt->num_tokens - cached);
    OK(pagedcl_prefix_record(blocks, seq, prompt->tokens + cached, prompt->num_tokens - cached));
    if (num_cached != NULL)
        *num_cached = cached;
    return seq;
}

int64_t manager_serve(pagedcl_blocks *blocks, const pagedcl_prompt *prompt) {
    int64_t num_cached;
    OK(pagedcl_blocks_seq_free(blocks, manager_admit(blocks, prompt, &num_cached)));
    return num_cached;
}

int64_t manager_peek(pagedcl_blocks *blocks, const pagedcl_prompt *prompt) {
    int64_t num_cached = -1;
    OK(pagedcl_prefix_peek(blocks, prompt, &num_cached));
    return num_cached;
}

int64_t manager_length(const pagedcl_blocks *blocks, pagedcl_seq seq) {
    int64_t length = -1;
    OK(pagedcl_blocks_seq_length(blocks, seq, &length));
    return length;
}

int32_t manager_block(const pagedcl_blocks *blocks, pagedcl_seq seq, int32_t group, int64_t i) {
    int32_t row[MAX_ROW];
    int64_t num_blocks = 0;
    OK(pagedcl_blocks_table(blocks, seq, group, row, MAX_ROW, &num_blocks));
    cr_assert_lt(i, num_blocks);
    return row[i];
}
