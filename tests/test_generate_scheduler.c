/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scheduler without a device. Where the keys and values would be, a model of the pool keeps per slot a number that
 * stands for the whole text up to there; the next token follows from it. So a slot that is shared, copied, overwritten
 * or given away wrongly changes the texts.
 */
#include "scheduler.h"

#include "support/random.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PROMPT = 120, MAX_NEW = 60, MAX_REQUESTS = 12, END_TOKEN = 0, VOCABULARY = 61 };

typedef struct prompt {
    int32_t tokens[MAX_PROMPT];
    int32_t length;
    int32_t max_new;
} prompt;

static const uint64_t EMPTY = 1;

/* The number of a text that is one token longer. */
static uint64_t extend(uint64_t text, int32_t token) {
    random_state state = {.seed = text ^ (uint64_t)(token + 1)};
    return random_bits(&state);
}

static int32_t next_token(uint64_t text) {
    random_state state = {.seed = text};
    return random_below(&state, VOCABULARY);
}

/* What the prompt becomes when it is alone; how many tokens in all. */
static int32_t expected_text(const prompt *p, int32_t tokens[MAX_PROMPT + MAX_NEW]) {
    uint64_t text = EMPTY;
    int32_t length = p->length;
    memcpy(tokens, p->tokens, (size_t)length * sizeof *tokens);
    for (int32_t i = 0; i < length; i++)
        text = extend(text, tokens[i]);
    while (length < p->length + p->max_new) {
        tokens[length] = next_token(text);
        text = extend(text, tokens[length]);
        if (tokens[length++] == END_TOKEN)
            break;
    }
    return length;
}

typedef struct bench {
    scheduler *scheduler;
    scheduler_options options;
    uint64_t *slots; /* [num_blocks * block_size] */
    char name[160];  /* for messages */
} bench;

static bench open_bench(const scheduler_options *options, const char *name) {
    bench b = {.options = *options};
    tool_error error;
    snprintf(b.name, sizeof b.name, "%s: %" PRId32 " blocks of %" PRId32 ", batch %" PRId32 ", chunk %" PRId32, name,
             options->num_blocks, options->block_size, options->max_batch, options->chunk_tokens);
    b.scheduler = scheduler_create(options, &error);
    cr_assert_not_null(b.scheduler, "%s: %s", b.name, error.text);
    b.slots = calloc((size_t)options->num_blocks * (size_t)options->block_size, sizeof *b.slots);
    cr_assert_not_null(b.slots);
    return b;
}

static void add_prompt(bench *b, const prompt *p) {
    tool_error error;
    cr_assert(scheduler_add(b->scheduler, p->tokens, p->length, p->max_new, &error), "%s: %s", b->name, error.text);
}

static scheduler_stats get_stats(const bench *b) {
    scheduler_stats stats;
    tool_error error;
    cr_assert(scheduler_get_stats(b->scheduler, &stats, &error), "%s: %s", b->name, error.text);
    return stats;
}

static void close_bench(bench *b) {
    scheduler_stats stats = get_stats(b);
    cr_assert_eq(stats.blocks.used, 0, "%s: blocks are left in use", b->name);
    cr_assert_eq(stats.blocks.num_seqs, 0, "%s: sequences are left", b->name);
    scheduler_destroy(b->scheduler);
    free(b->slots);
}

/* The slot of a position of the step's sequence `seq`. */
static uint64_t *slot_of(const bench *b, const engine_step *step, int32_t seq, int32_t position) {
    int32_t size = b->options.block_size;
    cr_assert_lt(position / size, step->block_table_stride, "%s: the table is too short", b->name);
    int32_t block = step->block_table[seq * step->block_table_stride + position / size];
    cr_assert(block >= 0 && block < b->options.num_blocks, "%s: block %" PRId32, b->name, block);
    return &b->slots[(int64_t)block * size + position % size];
}

static void copy_blocks(bench *b, const engine_step *step) {
    size_t size = (size_t)b->options.block_size;
    for (int32_t i = 0; i < step->num_copies; i++)
        memcpy(b->slots + (size_t)step->copies[2 * i + 1] * size, b->slots + (size_t)step->copies[2 * i] * size,
               size * sizeof *b->slots);
}

/* Stores the rows [first, end) of the sequence, each from the slot before it. */
static void write_rows(bench *b, const engine_step *step, int32_t seq, int32_t first, int32_t end) {
    for (int32_t row = first; row < end; row++) {
        int32_t position = step->positions[row];
        uint64_t before = position == 0 ? EMPTY : *slot_of(b, step, seq, position - 1);
        *slot_of(b, step, seq, position) = extend(before, step->tokens[row]);
    }
}

/* The slots of the sequence hold the text of its request, all of them after all rows are stored. */
static void check_sequence(const bench *b, const engine_step *step, int32_t seq, int32_t length) {
    scheduler_request request = scheduler_get(b->scheduler, step->requests[seq]);
    cr_assert_leq(length, request.num_tokens, "%s", b->name);
    uint64_t text = EMPTY;
    for (int32_t position = 0; position < length; position++) {
        text = extend(text, request.tokens[position]);
        cr_assert_eq(*slot_of(b, step, seq, position), text, "%s: request %" PRId32 ", position %" PRId32, b->name,
                     step->requests[seq], position);
    }
}

static void check_limits(const bench *b, const engine_step *step) {
    cr_assert_gt(step->num_rows, 0, "%s: an empty step", b->name);
    cr_assert_leq(step->num_decode + step->num_prefill, b->options.max_batch, "%s", b->name);
    cr_assert_leq(step->num_rows - step->num_decode, b->options.chunk_tokens, "%s", b->name);
    cr_assert_eq(step->prefill_cu_seqlens[step->num_prefill], step->num_rows - step->num_decode, "%s", b->name);
    for (int32_t i = 0; i < step->num_decode + step->num_prefill; i++)
        for (int32_t j = 0; j < i; j++)
            cr_assert_neq(step->requests[i], step->requests[j], "%s: a request twice in a step", b->name);
}

/* Computes one step as a device would. */
static const engine_step *run_step(bench *b) {
    const engine_step *step;
    tool_error error;
    cr_assert(scheduler_plan(b->scheduler, &step, &error), "%s: %s", b->name, error.text);
    check_limits(b, step);
    copy_blocks(b, step);
    const int32_t *cu_seqlens = step->prefill_cu_seqlens;
    for (int32_t i = 0; i < step->num_decode; i++)
        write_rows(b, step, i, i, i + 1);
    for (int32_t i = 0; i < step->num_prefill; i++)
        write_rows(b, step, step->num_decode + i, step->num_decode + cu_seqlens[i],
                   step->num_decode + cu_seqlens[i + 1]);
    for (int32_t i = 0; i < step->num_decode; i++)
        check_sequence(b, step, i, step->cache_seqlens[i] + 1);
    for (int32_t i = 0; i < step->num_prefill; i++)
        check_sequence(b, step, step->num_decode + i, step->cache_seqlens[step->num_decode + i]);

    int32_t next[MAX_REQUESTS];
    bool ends[MAX_REQUESTS];
    for (int32_t i = 0; i < step->num_outputs; i++) {
        int32_t seq = 0;
        while (step->requests[seq] != step->output_requests[i])
            seq++;
        next[i] = next_token(*slot_of(b, step, seq, step->positions[step->output_rows[i]]));
        ends[i] = next[i] == END_TOKEN;
    }
    cr_assert(scheduler_commit(b->scheduler, next, ends, &error), "%s: %s", b->name, error.text);
    return step;
}

static void check_texts(const bench *b, const prompt *prompts, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        int32_t want[MAX_PROMPT + MAX_NEW];
        int32_t length = expected_text(&prompts[i], want);
        scheduler_request got = scheduler_get(b->scheduler, i);
        cr_assert(got.finished, "%s: request %" PRId32 " is not finished", b->name, i);
        cr_assert_eq(got.num_tokens, length, "%s: request %" PRId32, b->name, i);
        cr_assert_eq(got.num_prompt, prompts[i].length, "%s: request %" PRId32, b->name, i);
        cr_assert_arr_eq(got.tokens, want, (size_t)length * sizeof *want, "%s: request %" PRId32, b->name, i);
    }
}

/* Runs the prompts to their ends and returns what it took. */
static scheduler_stats run_all(const scheduler_options *options, const char *name, const prompt *prompts,
                               int32_t count) {
    bench b = open_bench(options, name);
    for (int32_t i = 0; i < count; i++)
        add_prompt(&b, &prompts[i]);
    for (int32_t steps = 0; scheduler_num_unfinished(b.scheduler) > 0; steps++) {
        cr_assert_lt(steps, 100000, "%s: no end", b.name);
        run_step(&b);
    }
    check_texts(&b, prompts, count);
    scheduler_stats stats = get_stats(&b);
    close_bench(&b);
    return stats;
}

/* A prompt of `length` tokens whose first `common` depend on nothing but their place. None is the end token. */
static prompt make_prompt(random_state *random, int32_t common, int32_t length, int32_t max_new) {
    prompt p = {.length = length, .max_new = max_new};
    for (int32_t i = 0; i < length; i++)
        p.tokens[i] = 1 + (i < common ? i * 7 % (VOCABULARY - 1) : random_below(random, VOCABULARY - 1));
    return p;
}

static int32_t largest_need(const prompt *prompts, int32_t count, int32_t block_size) {
    int32_t largest = 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t need = (prompts[i].length + prompts[i].max_new - 1 + block_size - 1) / block_size;
        largest = need > largest ? need : largest;
    }
    return largest;
}

Test(generate_scheduler, random_batches) {
    static const int32_t block_sizes[] = {1, 2, 16, 32};
    int64_t preemptions = 0;
    int64_t shared = 0;
    int64_t copies = 0;
    for (uint64_t seed = 0; seed < 400; seed++) {
        random_state random = {.seed = seed};
        prompt prompts[MAX_REQUESTS];
        int32_t count = 1 + random_below(&random, MAX_REQUESTS);
        for (int32_t i = 0; i < count; i++) {
            int32_t length = 1 + random_below(&random, MAX_PROMPT);
            prompts[i] =
                make_prompt(&random, random_below(&random, length + 1), length, 1 + random_below(&random, MAX_NEW));
        }
        int32_t block_size = block_sizes[random_below(&random, 4)];
        int32_t need = largest_need(prompts, count, block_size);
        scheduler_options options = {.num_blocks = need + random_below(&random, 3 * need),
                                     .block_size = block_size,
                                     .max_batch = 1 + random_below(&random, MAX_REQUESTS),
                                     .chunk_tokens = 1 + random_below(&random, 100),
                                     .max_tokens = MAX_PROMPT + MAX_NEW};
        char name[32];
        snprintf(name, sizeof name, "seed %" PRIu64, seed);
        scheduler_stats stats = run_all(&options, name, prompts, count);
        preemptions += stats.preemptions;
        shared += stats.shared_tokens;
        copies += stats.blocks.copies;
    }
    cr_assert_gt(preemptions, 0);
    cr_assert_gt(shared, 0);
    cr_assert_gt(copies, 0);
}

Test(generate_scheduler, prefills_in_chunks) {
    random_state random = {.seed = 1};
    prompt p = make_prompt(&random, 0, 100, 1);
    scheduler_options options = {
        .num_blocks = 7, .block_size = 16, .max_batch = 4, .chunk_tokens = 30, .max_tokens = 1000};
    bench b = open_bench(&options, "chunks");
    add_prompt(&b, &p);
    static const int32_t rows[] = {30, 30, 30, 10};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const engine_step *step = run_step(&b);
        cr_assert_eq(step->num_rows, rows[i]);
        cr_assert_eq(step->num_prefill, 1);
        cr_assert_eq(step->num_decode, 0);
        cr_assert_eq(step->num_outputs, i == 3, "logits are wanted of the prompt's last token alone");
    }
    cr_assert_eq(scheduler_num_unfinished(b.scheduler), 0);
    close_bench(&b);
}

/* Four prompts with 100 tokens in common: the first computes them, the others wait for it and share 6 of 7 blocks. */
Test(generate_scheduler, shares_a_prefix) {
    random_state random = {.seed = 2};
    prompt prompts[4];
    for (int32_t i = 0; i < 4; i++)
        prompts[i] = make_prompt(&random, 100, 110, 20);
    scheduler_options options = {
        .num_blocks = 100, .block_size = 16, .max_batch = 4, .chunk_tokens = 64, .max_tokens = 1000};
    scheduler_stats stats = run_all(&options, "prefix", prompts, 4);
    cr_assert_geq(stats.shared_tokens, 3 * 100);
    cr_assert_geq(stats.shared_blocks, 3 * 6);
    cr_assert_eq(stats.prefill_tokens, 4 * 110 - stats.shared_tokens);
    cr_assert_eq(stats.blocks.copies, 3, "the seventh block is shared in part and copied");
    cr_assert_eq(stats.preemptions, 0);
    cr_assert_eq(stats.peak_running, 4);
}

/* Equal prompts: all but the last token are shared. */
Test(generate_scheduler, shares_equal_prompts) {
    random_state random = {.seed = 3};
    prompt prompts[2] = {make_prompt(&random, 48, 48, 30), make_prompt(&random, 48, 48, 30)};
    scheduler_options options = {
        .num_blocks = 100, .block_size = 16, .max_batch = 4, .chunk_tokens = 64, .max_tokens = 1000};
    scheduler_stats stats = run_all(&options, "equal", prompts, 2);
    cr_assert_eq(stats.shared_tokens, 47);
    cr_assert_eq(stats.shared_blocks, 2);
    cr_assert_eq(stats.prefill_tokens, 48 + 1);
}

/* One at a time, so that each starts when the one before has ended: the prefix cache has its blocks, whole and in part. */
Test(generate_scheduler, shares_with_what_has_ended) {
    random_state random = {.seed = 6};
    prompt prompts[3];
    for (int32_t i = 0; i < 3; i++)
        prompts[i] = make_prompt(&random, 100, 120, 5);
    scheduler_options options = {
        .num_blocks = 40, .block_size = 16, .max_batch = 1, .chunk_tokens = 64, .max_tokens = 1000};
    scheduler_stats stats = run_all(&options, "ended", prompts, 3);
    cr_assert_geq(stats.shared_tokens, 2 * 100);
    cr_assert_eq(stats.admitted_tokens, 3 * 120);
    cr_assert_eq(stats.prefill_tokens, 3 * 120 - stats.shared_tokens);
    cr_assert_eq(stats.peak_running, 1);
    cr_assert_eq(stats.blocks.copies, 2, "the seventh block matches in part");
    cr_assert_gt(stats.blocks.cached, 0);
}

/* A pool that is full of what has ended takes it back block by block. */
Test(generate_scheduler, takes_cached_blocks) {
    random_state random = {.seed = 7};
    prompt prompts[6];
    for (int32_t i = 0; i < 6; i++)
        prompts[i] = make_prompt(&random, 20, 100, 10);
    scheduler_options options = {
        .num_blocks = 8, .block_size = 16, .max_batch = 3, .chunk_tokens = 64, .max_tokens = 1000};
    scheduler_stats stats = run_all(&options, "full of cached blocks", prompts, 6);
    cr_assert_gt(stats.blocks.evicted, 0);
    cr_assert_gt(stats.shared_tokens, 0);
}

/* Two prompts of 4 blocks that grow to 8 each in a pool of 10: the second gives way, the first never does. */
Test(generate_scheduler, preempts_the_last) {
    random_state random = {.seed = 4};
    prompt prompts[2];
    int32_t text[MAX_PROMPT + MAX_NEW];
    for (int32_t i = 0; i < 2; i++)
        do
            prompts[i] = make_prompt(&random, 0, 64, 60);
        while (expected_text(&prompts[i], text) < 64 + 60);
    scheduler_options options = {
        .num_blocks = 10, .block_size = 16, .max_batch = 4, .chunk_tokens = 256, .max_tokens = 1000};
    bench b = open_bench(&options, "preemption");
    add_prompt(&b, &prompts[0]);
    add_prompt(&b, &prompts[1]);
    for (int32_t i = 0; i < 60; i++) {
        const engine_step *step = run_step(&b);
        cr_assert_eq(step->requests[0], 0, "the first request waits in step %" PRId32, i);
    }
    cr_assert(scheduler_get(b.scheduler, 0).finished);
    while (scheduler_num_unfinished(b.scheduler) > 0)
        run_step(&b);
    check_texts(&b, prompts, 2);
    scheduler_stats stats = get_stats(&b);
    cr_assert_gt(stats.preemptions, 0);
    cr_assert_eq(stats.prefill_tokens, 2 * 64 + stats.recomputed_tokens + stats.preemptions);
    close_bench(&b);
}

/* Blocks are taken up to the last: 3 tokens and 14 new ones keep 16 in the pool, since the last is never computed. */
Test(generate_scheduler, fills_the_pool) {
    random_state random = {.seed = 5};
    prompt p = make_prompt(&random, 0, 3, 14);
    scheduler_options options = {
        .num_blocks = 1, .block_size = 16, .max_batch = 1, .chunk_tokens = 16, .max_tokens = 1000};
    run_all(&options, "full", &p, 1);
}

Test(generate_scheduler, refuses_what_can_never_run) {
    scheduler_options options = {
        .num_blocks = 2, .block_size = 16, .max_batch = 1, .chunk_tokens = 16, .max_tokens = 40};
    bench b = open_bench(&options, "refusal");
    int32_t tokens[64] = {0};
    tool_error error;
    cr_assert_not(scheduler_add(b.scheduler, tokens, 20, 14, &error));
    cr_assert_str_eq(error.text, "prompt 1 and its new tokens need 3 blocks of 16 tokens; the pool has 2");
    cr_assert_not(scheduler_add(b.scheduler, tokens, 30, 11, &error));
    cr_assert_str_eq(error.text, "prompt 1 and its new tokens are 41; the model takes at most 40");
    cr_assert_not(scheduler_add(b.scheduler, tokens, INT32_MAX, INT32_MAX, &error));
    cr_assert_not(scheduler_add(b.scheduler, tokens, 0, 5, &error));
    cr_assert_not(scheduler_add(b.scheduler, tokens, 5, 0, &error));
    cr_assert_eq(scheduler_num_unfinished(b.scheduler), 0);
    close_bench(&b);
}
