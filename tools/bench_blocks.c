/* SPDX-License-Identifier: Apache-2.0 */
/* pagedcl bench-blocks: what the block manager costs, by the size of the pool and the number of live sequences. */
#define _POSIX_C_SOURCE 200809L

#include "command.h"
#include "option.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Tokens of a block; tokens that a sequence begins with, at most, and that each round adds. */
enum { BLOCK_SIZE = 16, PROMPT = 512, TOKENS = 32, ROUNDS = 5 };

/* What an append may cost in any pool, in terms of the smallest one. */
enum { MOST_GROWTH = 3 };

/* Between two readings of the clock nothing but the manager's calls is wanted, so a failure ends the program here. */
static void must(pagedcl_status status) {
    if (status != PAGEDCL_SUCCESS)
        exit(command_fail("%s", pagedcl_last_error()));
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
    if (memory == NULL)
        exit(command_fail("out of memory"));
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
    double append; /* a token behind others that were appended */
    double first;  /* the first token behind a fork, which looks whether the last block is shared */
    double record, fork, release, miss;
} costs;

/* Appends a token to each of the sequences; none shares its last block. */
static void append_to_all(pagedcl_blocks *blocks, const pagedcl_seq *seqs, int32_t num_seqs) {
    for (int32_t i = 0; i < num_seqs; i++)
        must(pagedcl_blocks_append(blocks, seqs[i], 1, NULL, NULL));
}

static void keep_best(double *best, double ns, int64_t count) {
    if (*best == 0 || ns / (double)count < *best)
        *best = ns / (double)count;
}

/* A server with num_seqs live sequences of some 500 tokens in a pool of num_blocks blocks. */
static costs measure(int32_t num_blocks, int32_t num_seqs) {
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
        for (int32_t i = 0; i < num_seqs; i++)
            must(pagedcl_blocks_fork(blocks, seqs[i], &forks[i]));
        keep_best(&best.fork, now_ns() - start, num_seqs);
        start = now_ns();
        for (int32_t i = 0; i < num_seqs; i++)
            must(pagedcl_blocks_seq_free(blocks, forks[i]));
        keep_best(&best.release, now_ns() - start, num_seqs);

        start = now_ns();
        append_to_all(blocks, seqs, num_seqs);
        keep_best(&best.first, now_ns() - start, num_seqs);
        start = now_ns();
        for (int t = 1; t < TOKENS; t++)
            append_to_all(blocks, seqs, num_seqs);
        keep_best(&best.append, now_ns() - start, (int64_t)(TOKENS - 1) * num_seqs);

        start = now_ns();
        for (int t = 0; t < TOKENS; t++)
            for (int32_t i = 0; i < num_seqs; i++) {
                int32_t token = t + i;
                must(pagedcl_prefix_record(blocks, seqs[i], &token, 1));
            }
        keep_best(&best.record, now_ns() - start, (int64_t)TOKENS * num_seqs);

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

/* The time to admit a prompt of num_tokens tokens of which all are cached, in blocks all over the pool. */
static double measure_admission(int32_t num_blocks, int32_t num_tokens) {
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
            exit(command_fail("%" PRId64 " of %" PRId32 " cached tokens were found", num_cached, num_tokens));
        must(pagedcl_blocks_seq_free(blocks, seq));
    }
    free(tokens);
    pagedcl_blocks_destroy(blocks);
    return best;
}

typedef struct size {
    int32_t num_blocks, num_seqs;
} size;

typedef struct arguments {
    size own; /* num_blocks 0: the standard sizes */
    bool check, json;
} arguments;

enum { KEY_BLOCKS = 256, KEY_SEQUENCES, KEY_CHECK, KEY_JSON };

static const struct argp_option options[] = {
    {"blocks", KEY_BLOCKS, "N", 0, "One pool of N blocks instead of the standard sizes", 0},
    {"sequences", KEY_SEQUENCES, "N", 0, "With --blocks: live sequences (a hundredth of the blocks)", 0},
    {"check", KEY_CHECK, NULL, 0, "Fail when a promise is broken", 0},
    {"json", KEY_JSON, NULL, 0, "Print one JSON document", 0},
    {0},
};

/* Sequences grow to PROMPT tokens and a few more; all of them fit. */
static error_t check_sizes(arguments *a) {
    const int64_t blocks_each = (PROMPT + TOKENS * (int64_t)ROUNDS) / BLOCK_SIZE + 1;
    if (a->own.num_blocks == 0 && a->own.num_seqs > 0) {
        command_fail("--sequences goes with --blocks");
        return EINVAL;
    }
    if (a->own.num_blocks > 0 && a->check) {
        command_fail("--check compares the standard sizes, so it goes without --blocks");
        return EINVAL;
    }
    if (a->own.num_blocks > 0 && a->own.num_seqs == 0)
        a->own.num_seqs = a->own.num_blocks < 100 ? 1 : a->own.num_blocks / 100;
    if (a->own.num_blocks > 0 && a->own.num_seqs * blocks_each > a->own.num_blocks) {
        command_fail("%" PRId32 " sequences take up to %" PRId64 " blocks; the pool has %" PRId32, a->own.num_seqs,
                     a->own.num_seqs * blocks_each, a->own.num_blocks);
        return EINVAL;
    }
    return 0;
}

static error_t parse_option(int key, char *value, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case KEY_BLOCKS:
        return option_count("blocks", value, 1, 1 << 26, &a->own.num_blocks);
    case KEY_SEQUENCES:
        return option_count("sequences", value, 1, 1 << 26, &a->own.num_seqs);
    case KEY_CHECK:
        a->check = true;
        return 0;
    case KEY_JSON:
        a->json = true;
        return 0;
    case ARGP_KEY_END:
        return check_sizes(a);
    default:
        return option_other(key, value, state);
    }
}

static const struct argp argp = {
    options,
    parse_option,
    NULL,
    "Measures the block manager, without a device: nanoseconds of processor time per appended token, first token "
    "behind a fork, recorded token, fork, release, and lookup of a prompt that is not cached; and the admission of a "
    "prompt that is, of 100000 tokens or as many as fit half the pool.\v"
    "Blocks are in random order, as after hours of service; sequences have about 300 tokens. Each number is the best "
    "of five rounds.\n\n"
    "The exit status is 0; with --check 1 when an appended token costs 3 times as much in any pool as in the smallest "
    "one, or the admission takes a millisecond. --check goes without --blocks.",
    NULL,
    NULL,
    NULL,
};

static json_t *costs_to_json(const size *at, const costs *c) {
    return json_pack("{s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f}", "blocks", (int)at->num_blocks, "sequences",
                     (int)at->num_seqs, "append_ns", c->append, "first_ns", c->first, "record_ns", c->record, "fork_ns",
                     c->fork, "release_ns", c->release, "miss_ns", c->miss);
}

static void print_costs(const size *at, const costs *c) {
    printf("%10" PRId32 " %10" PRId32 " %10.1f %10.1f %10.1f %10.1f %10.1f %10.1f\n", at->num_blocks, at->num_seqs,
           c->append, c->first, c->record, c->fork, c->release, c->miss);
    fflush(stdout);
}

static int measure_all(const arguments *a) {
    static const size standard[] = {{1 << 14, 100}, {1 << 17, 1000}, {1 << 20, 1000}, {1 << 20, 10000}};
    enum { SIZES = sizeof standard / sizeof *standard };
    const size *sizes = a->own.num_blocks > 0 ? &a->own : standard;
    int num_sizes = a->own.num_blocks > 0 ? 1 : SIZES;
    double appends[SIZES];
    json_t *rows = json_array();
    if (!a->json)
        printf("nanoseconds per operation; sequences of about 300 tokens, blocks of %d in random order\n"
               "%10s %10s %10s %10s %10s %10s %10s %10s\n",
               BLOCK_SIZE, "blocks", "sequences", "append", "first", "record", "fork", "release", "miss");
    for (int i = 0; i < num_sizes; i++) {
        costs c = measure(sizes[i].num_blocks, sizes[i].num_seqs);
        appends[i] = c.append;
        json_array_append_new(rows, costs_to_json(&sizes[i], &c));
        if (!a->json)
            print_costs(&sizes[i], &c);
    }
    int32_t num_blocks = sizes[num_sizes - 1].num_blocks;
    int64_t half = (int64_t)(num_blocks / 2) * BLOCK_SIZE;
    int32_t num_tokens = half < 100000 ? (int32_t)half : 100000;
    double admission = measure_admission(num_blocks, num_tokens);
    bool flat = true;
    for (int i = 1; i < num_sizes; i++)
        flat &= appends[i] < MOST_GROWTH * appends[0];
    bool fast = admission < 1e6;
    if (!a->json)
        printf("admission of %" PRId32 " cached tokens in a pool of %" PRId32 " blocks: %.3f ms\n", num_tokens,
               num_blocks, admission / 1e6);
    if (!a->json && a->check)
        printf("an append costs %s; the admission takes %s a millisecond\n",
               flat ? "much the same in every size" : "MORE IN A LARGE POOL", fast ? "less than" : "MORE THAN");
    json_t *document = json_pack("{s:s, s:i, s:o, s:i, s:f}", "version", pagedcl_version(), "block_size", BLOCK_SIZE,
                                 "sizes", rows, "admitted_tokens", (int)num_tokens, "admission_ns", admission);
    bool printed =
        !a->json || (document != NULL && json_dumpf(document, stdout, JSON_INDENT(2)) == 0 && putchar('\n') != EOF);
    json_decref(document);
    if (!printed)
        return command_fail("the JSON document could not be made");
    return a->check && !(flat && fast) ? EXIT_FAILED : EXIT_OK;
}

static int run(int argc, char **argv) {
    arguments a = {0};
    return argp_parse(&argp, argc, argv, 0, NULL, &a) == 0 ? measure_all(&a) : EXIT_USAGE;
}

const command command_bench_blocks = {"bench-blocks", "measure the block manager", run};
