/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server's day in miniature, without a device: four requests with one system prompt go through the block manager. It
 * prints what each one found in the prefix cache, and a picture of the pool.
 */
#include <pagedcl/pagedcl.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { NUM_BLOCKS = 24, BLOCK_SIZE = 4, SYSTEM_TOKENS = 10, QUESTION_TOKENS = 7, ANSWER_TOKENS = 9, REQUESTS = 4 };

static void check(pagedcl_status status) {
    if (status == PAGEDCL_SUCCESS)
        return;
    fprintf(stderr, "%s: %s\n", pagedcl_status_name(status), pagedcl_last_error());
    exit(1);
}

/* Makes room for the tokens and lets them be found. Between the two a server computes their keys and values. */
static void compute(pagedcl_blocks *blocks, pagedcl_seq seq, const int32_t *tokens, int64_t num_tokens) {
    pagedcl_block_copy copy;
    size_t num_copies = 0;
    check(pagedcl_blocks_append(blocks, seq, num_tokens, &copy, &num_copies));
    if (num_copies > 0)
        printf("  copy block %" PRId32 " to block %" PRId32 "\n", copy.src, copy.dst);
    check(pagedcl_prefix_record(blocks, seq, tokens, num_tokens));
}

static void print_map(const pagedcl_blocks *blocks) {
    char text[NUM_BLOCKS + 2];
    size_t length;
    check(pagedcl_blocks_map(blocks, NUM_BLOCKS, text, sizeof text, &length));
    printf("  pool %s", text);
}

int main(void) {
    pagedcl_blocks_desc desc = PAGEDCL_BLOCKS_DESC_INIT;
    desc.num_blocks = NUM_BLOCKS;
    desc.block_size = BLOCK_SIZE;
    desc.prefix_cache = 1;
    pagedcl_blocks *blocks;
    check(pagedcl_blocks_create(&desc, &blocks));

    for (int32_t request = 0; request < REQUESTS; request++) {
        int32_t tokens[SYSTEM_TOKENS + QUESTION_TOKENS];
        for (int32_t i = 0; i < SYSTEM_TOKENS + QUESTION_TOKENS; i++)
            tokens[i] = i < SYSTEM_TOKENS ? i : 1000 * request + i;
        pagedcl_prompt prompt = PAGEDCL_PROMPT_INIT;
        prompt.tokens = tokens;
        prompt.num_tokens = SYSTEM_TOKENS + QUESTION_TOKENS;
        pagedcl_seq seq;
        int64_t num_cached;
        check(pagedcl_prefix_seq_create(blocks, &prompt, &seq, &num_cached));
        printf("request %" PRId32 ": %" PRId64 " of %" PRId64 " tokens are cached\n", request, num_cached,
               prompt.num_tokens);
        compute(blocks, seq, tokens + num_cached, prompt.num_tokens - num_cached);
        for (int32_t i = 0; i < ANSWER_TOKENS; i++)
            compute(blocks, seq, &i, 1);
        print_map(blocks);
        check(pagedcl_blocks_seq_free(blocks, seq));
    }
    printf("all are done\n");
    print_map(blocks);
    pagedcl_blocks_destroy(blocks);
    return 0;
}
