/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the block manager costs: nanoseconds of processor time per operation, by the size of the pool and the number of
 * live sequences. `bench_blocks --check` fails when a promise is broken: the cost of an appended token stays flat, and a
 * prompt of 100,000 tokens that is cached is admitted in under a millisecond.
 */
#define _POSIX_C_SOURCE 200809L

#include <pagedcl/pagedcl.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCK_SIZE = 16, ROUNDS = 5 };

static void must(pagedcl_status status) {
    if (status != PAGEDCL_SUCCESS) {
        fprintf(stderr, "bench_blocks: %s\n", pagedcl_last_error());
        exit(2);
    }
}

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static uint64_t random_bits(void) {
    static uint64_t seed = 1;
    uint64_t value = seed += UINT64_C(0x9e3779b97f4a7c15);
    value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
    return value ^ value >> 31;
}

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count, size);
    if (memory == NULL) {
        fprintf(stderr, "bench_blocks: out of memory\n");
        exit(2);
    }
    return memory;
}

static pagedcl_blocks *create(int32_t num_blocks) {
    pagedcl_blocks_desc desc = PAGEDCL_BLOCKS_DESC_INIT;
    pagedcl_blocks *blocks = NULL;
    desc.num_blocks = num_blocks;
    desc.block_size = BLOCK_SIZE;
    desc.prefix_cache = 1;
    must(pagedcl_blocks_create(&desc, &blocks));
    return blocks;
}

/* Puts the pool's blocks, and the entries of num_seqs sequences, into random order, as after hours of service. */
static void age(pagedcl_blocks *blocks, int32_t num_blocks, int32_t num_seqs) {
    pagedcl_seq *seqs = allocate((size_t)num_seqs, sizeof *seqs);
    for (int32_t i = 0; i < num_seqs; i++)
        must(pagedcl_blocks_seq_create(blocks, &seqs[i]));
    for (int32_t i = 0; i < num_blocks; i++)
        must(pagedcl_blocks_append(blocks, seqs[random_bits() % (uint64_t)num_seqs], BLOCK_SIZE, NULL, NULL));
    for (int32_t i = num_seqs; i > 0; i--) {
        int32_t chosen = (int32_t)(random_bits() % (uint64_t)i);
        must(pagedcl_blocks_seq_free(blocks, seqs[chosen]));
        seqs[chosen] = seqs[i - 1];
    }
    free(seqs);
}

typedef struct costs {
    double append, record, fork, release, miss;
} costs;

static void keep_best(double *best, double ns, int64_t count) {
    if (*best == 0 || ns / (double)count < *best)
        *best = ns / (double)count;
}

/* A server with num_seqs live sequences of some 500 tokens in a pool of num_blocks blocks. */
static costs measure(int32_t num_blocks, int32_t num_seqs) {
    enum { PROMPT = 512, TOKENS = 32 };
    costs best = {0};
    pagedcl_blocks *blocks = create(num_blocks);
    pagedcl_seq *seqs = allocate((size_t)num_seqs, sizeof *seqs), *forks = allocate((size_t)num_seqs, sizeof *forks);
    int32_t tokens[PROMPT + TOKENS * ROUNDS];
    age(blocks, num_blocks, num_seqs);
    for (int32_t i = 0; i < num_seqs; i++) {
        int64_t length = (int64_t)(random_bits() % PROMPT);
        must(pagedcl_blocks_seq_create(blocks, &seqs[i]));
        must(pagedcl_blocks_append(blocks, seqs[i], length, NULL, NULL));
        for (int64_t t = 0; t < length; t++)
            tokens[t] = (int32_t)random_bits();
        must(pagedcl_prefix_record(blocks, seqs[i], tokens, length));
    }
    for (int round = 0; round < ROUNDS; round++) {
        double start = now_ns();
        for (int t = 0; t < TOKENS; t++)
            for (int32_t i = 0; i < num_seqs; i++)
                must(pagedcl_blocks_append(blocks, seqs[i], 1, NULL, NULL));
        keep_best(&best.append, now_ns() - start, (int64_t)TOKENS * num_seqs);

        start = now_ns();
        for (int t = 0; t < TOKENS; t++)
            for (int32_t i = 0; i < num_seqs; i++) {
                int32_t token = t + i;
                must(pagedcl_prefix_record(blocks, seqs[i], &token, 1));
            }
        keep_best(&best.record, now_ns() - start, (int64_t)TOKENS * num_seqs);

        start = now_ns();
        for (int32_t i = 0; i < num_seqs; i++)
            must(pagedcl_blocks_fork(blocks, seqs[i], &forks[i]));
        keep_best(&best.fork, now_ns() - start, num_seqs);
        start = now_ns();
        for (int32_t i = 0; i < num_seqs; i++)
            must(pagedcl_blocks_seq_free(blocks, forks[i]));
        keep_best(&best.release, now_ns() - start, num_seqs);

        pagedcl_prompt prompt = PAGEDCL_PROMPT_INIT;
        prompt.tokens = tokens;
        prompt.num_tokens = PROMPT;
        int64_t num_cached;
        start = now_ns();
        for (int32_t i = 0; i < num_seqs; i++) {
            tokens[0] = -1 - i;
            must(pagedcl_prefix_peek(blocks, &prompt, &num_cached));
        }
        keep_best(&best.miss, now_ns() - start, num_seqs);
    }
    free(seqs);
    free(forks);
    pagedcl_blocks_destroy(blocks);
    return best;
}

/* The time to admit a prompt of num_tokens tokens of which all are cached, in blocks all over a pool of 2^20. */
static double measure_admission(int32_t num_tokens) {
    const int32_t num_blocks = 1 << 20;
    pagedcl_blocks *blocks = create(num_blocks);
    int32_t *tokens = allocate((size_t)num_tokens, sizeof *tokens);
    double best = 0;
    age(blocks, num_blocks, 1000);
    /* Others that the hash table holds, too. */
    for (int turn = 0; turn < 8; turn++) {
        pagedcl_seq seq;
        int64_t num_cached;
        pagedcl_prompt prompt = PAGEDCL_PROMPT_INIT;
        prompt.tokens = tokens;
        prompt.num_tokens = num_tokens;
        for (int32_t i = 0; i < num_tokens; i++)
            tokens[i] = (int32_t)random_bits();
        must(pagedcl_prefix_seq_create(blocks, &prompt, &seq, &num_cached));
        must(pagedcl_blocks_append(blocks, seq, num_tokens, NULL, NULL));
        must(pagedcl_prefix_record(blocks, seq, tokens, num_tokens));
        must(pagedcl_blocks_seq_free(blocks, seq));
    }
    for (int round = 0; round < 10 * ROUNDS; round++) {
        pagedcl_seq seq;
        int64_t num_cached;
        pagedcl_prompt prompt = PAGEDCL_PROMPT_INIT;
        pagedcl_block_copy copy;
        size_t num_copies;
        prompt.tokens = tokens;
        prompt.num_tokens = num_tokens;
        double start = now_ns();
        must(pagedcl_prefix_seq_create(blocks, &prompt, &seq, &num_cached));
        must(pagedcl_blocks_append(blocks, seq, num_tokens - num_cached, &copy, &num_copies));
        keep_best(&best, now_ns() - start, 1);
        if (num_cached != num_tokens - 1)
            must(PAGEDCL_INVALID_LENGTH);
        must(pagedcl_blocks_seq_free(blocks, seq));
    }
    free(tokens);
    pagedcl_blocks_destroy(blocks);
    return best;
}

int main(int argc, char **argv) {
    static const struct {
        int32_t num_blocks, num_seqs;
    } sizes[] = {{1 << 14, 100}, {1 << 17, 1000}, {1 << 20, 1000}, {1 << 20, 10000}};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    double appends[SIZES];
    printf("nanoseconds per operation; sequences of about 300 tokens, blocks of %d in random order\n", BLOCK_SIZE);
    printf("%10s %10s %10s %10s %10s %10s %10s\n", "blocks", "sequences", "append", "record", "fork", "release",
           "miss");
    for (int i = 0; i < SIZES; i++) {
        costs c = measure(sizes[i].num_blocks, sizes[i].num_seqs);
        printf("%10" PRId32 " %10" PRId32 " %10.1f %10.1f %10.1f %10.1f %10.1f\n", sizes[i].num_blocks,
               sizes[i].num_seqs, c.append, c.record, c.fork, c.release, c.miss);
        appends[i] = c.append;
    }
    double admission = measure_admission(100000);
    printf("admission of 100000 cached tokens in a pool of 1048576 blocks: %.3f ms\n", admission / 1e6);
    if (argc < 2 || strcmp(argv[1], "--check") != 0)
        return 0;
    /* Caches that no longer hold everything cost something; more than that would be a loop. */
    bool flat = appends[SIZES - 1] < 5 * appends[0];
    printf("%s, %s\n", flat ? "flat" : "NOT FLAT", admission < 1e6 ? "under a millisecond" : "OVER A MILLISECOND");
    return flat && admission < 1e6 ? 0 : 1;
}
