/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine against golden.json: greedy texts that another implementation made of the same weights. Where the best
 * two logits of a step are close, another order of additions may choose otherwise, so texts are compared up to there.
 */
#include "engine.h"

#include "support/fixture.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_CASES = 16, MAX_PROMPT = 512, NUM_NEW = 96, VOCABULARY = 272 };

static const double CLOSE_MARGIN = 0.02;

typedef struct golden_case {
    int32_t prompt[MAX_PROMPT];
    int32_t num_prompt;
    int32_t new_tokens[NUM_NEW];
    double margins[NUM_NEW]; /* between the best two logits */
    double first_logits[VOCABULARY];
} golden_case;

static golden_case cases[MAX_CASES];
static int32_t num_cases;
static model_config config;

static size_t read_array(const json_t *object, const char *key, size_t capacity, double *values) {
    const json_t *array = json_object_get(object, key);
    size_t count = json_array_size(array);
    cr_assert(count > 0 && count <= capacity, "%s has %zu entries", key, count);
    for (size_t i = 0; i < count; i++)
        values[i] = json_number_value(json_array_get(array, i));
    return count;
}

static size_t read_tokens(const json_t *object, const char *key, size_t capacity, int32_t *tokens) {
    double values[MAX_PROMPT];
    size_t count = read_array(object, key, capacity, values);
    for (size_t i = 0; i < count; i++)
        tokens[i] = (int32_t)values[i];
    return count;
}

static void read_golden(void) {
    tool_error error;
    cr_assert(model_config_read(MODEL_DIR, &config, &error), "%s", error.text);
    cr_assert_eq(config.vocab_size, VOCABULARY);
    json_t *root = json_load_file(MODEL_DIR "/golden.json", 0, NULL);
    const json_t *list = json_object_get(root, "cases");
    num_cases = (int32_t)json_array_size(list);
    cr_assert(num_cases == 12, "%" PRId32 " cases", num_cases);
    for (int32_t i = 0; i < num_cases; i++) {
        const json_t *entry = json_array_get(list, (size_t)i);
        golden_case *c = &cases[i];
        c->num_prompt = (int32_t)read_tokens(entry, "prompt_tokens", MAX_PROMPT, c->prompt);
        cr_assert_eq(read_tokens(entry, "new_tokens", NUM_NEW, c->new_tokens), NUM_NEW);
        cr_assert_eq(read_array(entry, "top2_margin", NUM_NEW, c->margins), NUM_NEW);
        cr_assert_eq(read_array(entry, "first_logits", VOCABULARY, c->first_logits), VOCABULARY);
    }
    json_decref(root);
}

TestSuite(generate, .init = read_golden);

/* Blocks of the longest case. */
static int32_t largest_need(int32_t block_size) {
    int32_t largest = 0;
    for (int32_t i = 0; i < num_cases; i++) {
        int32_t need = (cases[i].num_prompt + NUM_NEW - 1 + block_size - 1) / block_size;
        largest = need > largest ? need : largest;
    }
    return largest;
}

static engine_options options_of(int32_t block_size) {
    return (engine_options){.num_blocks = num_cases * largest_need(block_size),
                            .block_size = block_size,
                            .kv_dtype = PAGEDCL_FLOAT32,
                            .max_batch = num_cases,
                            .chunk_tokens = 256,
                            .sampling = {.temperature = 0, .top_p = 1}};
}

static double largest_difference(const float *got, const double *want) {
    double largest = 0;
    for (int32_t i = 0; i < VOCABULARY; i++) {
        double difference = fabs((double)got[i] - want[i]);
        if (!(difference <= largest))
            largest = difference;
    }
    return largest;
}

/* The text is the golden one up to the first step whose margin is at most close_margin; how many tokens that is. */
static int32_t check_text(const char *name, int32_t index, const engine_text *text, double close_margin) {
    const golden_case *golden = &cases[index];
    cr_assert(text->finished, "%s: case %" PRId32 " is not finished", name, index);
    cr_assert_eq(text->num_prompt, golden->num_prompt, "%s: case %" PRId32, name, index);
    cr_assert_leq(text->num_tokens - text->num_prompt, NUM_NEW, "%s: case %" PRId32, name, index);
    int32_t i = 0;
    for (; i < NUM_NEW && golden->margins[i] > close_margin; i++) {
        cr_assert_lt(i, text->num_tokens - text->num_prompt, "%s: case %" PRId32 " ends early", name, index);
        cr_assert_eq(text->tokens[text->num_prompt + i], golden->new_tokens[i],
                     "%s: case %" PRId32 ": token %" PRId32 " is %" PRId32 ", not %" PRId32, name, index, i,
                     text->tokens[text->num_prompt + i], golden->new_tokens[i]);
    }
    return i;
}

/* Generates the texts of all cases, `rounds` times, and checks them. logit_tolerance: of the first logits. */
static engine_stats run_rounds(const char *name, const engine_options *options, double close_margin,
                               double logit_tolerance, int32_t rounds) {
    tool_error error;
    pagedcl_device *device = fixture_open();
    engine *e = engine_create(&config, options, &error);
    cr_assert(e != NULL && engine_load(e, device, MODEL_DIR, &error), "%s: %s", name, error.text);
    for (int32_t i = 0; i < rounds * num_cases; i++) {
        const golden_case *golden = &cases[i % num_cases];
        cr_assert(engine_add(e, golden->prompt, golden->num_prompt, NUM_NEW, &error), "%s: %s", name, error.text);
    }
    while (!engine_finished(e))
        cr_assert(engine_run_step(e, &error), "%s: %s", name, error.text);
    int32_t compared = 0;
    for (int32_t i = 0; i < rounds * num_cases; i++) {
        engine_text text = engine_get_text(e, i);
        double difference = largest_difference(text.first_logits, cases[i % num_cases].first_logits);
        cr_assert(difference <= logit_tolerance, "%s: case %" PRId32 ": first logits differ by %g", name, i % num_cases,
                  difference);
        compared += check_text(name, i % num_cases, &text, close_margin);
    }
    cr_assert_gt(compared, rounds * num_cases, "%s: hardly a token was compared", name);
    engine_stats stats;
    cr_assert(engine_get_stats(e, &stats, &error), "%s: %s", name, error.text);
    cr_assert_eq(stats.schedule.blocks.used, 0, "%s: blocks are left in use", name);
    engine_destroy(e);
    pagedcl_device_destroy(device);
    return stats;
}

static engine_stats run_cases(const char *name, const engine_options *options, double close_margin,
                              double logit_tolerance) {
    return run_rounds(name, options, close_margin, logit_tolerance, 1);
}

/* Other block sizes are those of batches. */
Test(generate, alone) {
    engine_options options = options_of(32);
    options.max_batch = 1;
    options.without_prefix_cache = true;
    engine_stats stats = run_cases("alone", &options, CLOSE_MARGIN, 2e-3);
    cr_assert_eq(stats.schedule.peak_running, 1);
    cr_assert_eq(stats.schedule.shared_tokens, 0);
}

/* Each case twice, the second time when all have ended: nothing of its prompt is computed but the last token. */
Test(generate, prefixes_of_texts_that_ended) {
    engine_options options = options_of(16);
    options.max_batch = 1;
    engine_stats stats = run_rounds("prefix cache", &options, CLOSE_MARGIN, 2e-3, 2);
    cr_assert_eq(stats.schedule.peak_running, 1);
    cr_assert_geq(stats.schedule.shared_tokens, stats.schedule.admitted_tokens / 2 - num_cases);
}

static void run_batch(int32_t block_size) {
    char name[64];
    snprintf(name, sizeof name, "batch, block size %" PRId32, block_size);
    engine_options options = options_of(block_size);
    engine_stats stats = run_cases(name, &options, CLOSE_MARGIN, 2e-3);
    cr_assert_eq(stats.schedule.peak_running, num_cases);
    cr_assert_eq(stats.schedule.preemptions, 0);
}

Test(generate, batch_block_size_1) {
    run_batch(1);
}

Test(generate, batch_block_size_16) {
    run_batch(16);
}

Test(generate, batch_block_size_32) {
    run_batch(32);
}

/* Room for little more than the longest case. */
static void run_preempted(int32_t block_size) {
    char name[64];
    snprintf(name, sizeof name, "preempted, block size %" PRId32, block_size);
    engine_options options = options_of(block_size);
    options.num_blocks = largest_need(block_size) + 1;
    engine_stats stats = run_cases(name, &options, CLOSE_MARGIN, 2e-3);
    cr_assert_gt(stats.schedule.preemptions, 0, "%s: nothing was preempted", name);
    cr_assert_gt(stats.schedule.peak_running, 1);
}

Test(generate, preempted_block_size_1) {
    run_preempted(1);
}

Test(generate, preempted_block_size_16) {
    run_preempted(16);
}

/* Chunks that end inside blocks, prompts that are prefilled over many steps while others decode. */
Test(generate, chunked) {
    engine_options options = options_of(16);
    options.chunk_tokens = 7;
    engine_stats stats = run_cases("chunks of 7", &options, CLOSE_MARGIN, 2e-3);
    cr_assert_geq(stats.schedule.steps, stats.schedule.prefill_tokens / 7);
}

/*
 * A 16-bit pool rounds keys and values, to 2^-11 and 2^-8 of their size: the logits, which are around 10, move by about
 * as much of theirs, and only steps whose margin is well above that are sure.
 */
static void run_rounded(pagedcl_dtype dtype, double rounding) {
    engine_options options = options_of(16);
    options.kv_dtype = dtype;
    run_cases(pagedcl_dtype_name(dtype), &options, 100 * rounding, 20 * rounding);
}

Test(generate, float16_pool) {
    run_rounded(PAGEDCL_FLOAT16, 0x1p-11);
}

Test(generate, bfloat16_pool) {
    run_rounded(PAGEDCL_BFLOAT16, 0x1p-8);
}

/* Half a step is 2^-8 of the row's largest element, and 2^-7 or more of a usual one. */
Test(generate, int8_pool) {
    run_rounded(PAGEDCL_INT8, 0x1p-7);
}

/* Half a step is 2^-4 of the group's largest element: the first logits move by 0.4 to 2.2, and the text leaves the golden
   one where margins are below 0.5. */
Test(generate, int4_pool) {
    engine_options options = options_of(16);
    options.kv_dtype = PAGEDCL_INT4;
    run_cases("int4", &options, 0.7, 3);
}

/* The same seed gives the same texts in any batch; another seed gives others. */
static void sample_texts(uint64_t seed, int32_t max_batch, int32_t tokens[][NUM_NEW]) {
    tool_error error;
    pagedcl_device *device = fixture_open();
    engine_options options = options_of(16);
    options.max_batch = max_batch;
    options.seed = seed;
    options.sampling = (sampling){.temperature = 1, .top_p = 0.9f};
    engine *e = engine_create(&config, &options, &error);
    cr_assert(e != NULL && engine_load(e, device, MODEL_DIR, &error), "%s", error.text);
    for (int32_t i = 0; i < 3; i++)
        cr_assert(engine_add(e, cases[i].prompt, cases[i].num_prompt, 16, &error), "%s", error.text);
    while (!engine_finished(e))
        cr_assert(engine_run_step(e, &error), "%s", error.text);
    for (int32_t i = 0; i < 3; i++) {
        engine_text text = engine_get_text(e, i);
        for (int32_t j = 0; j < 16; j++)
            tokens[i][j] = text.num_prompt + j < text.num_tokens ? text.tokens[text.num_prompt + j] : -1;
    }
    engine_destroy(e);
    pagedcl_device_destroy(device);
}

Test(generate, sampling_is_repeatable) {
    static int32_t alone[3][NUM_NEW];
    static int32_t together[3][NUM_NEW];
    static int32_t other[3][NUM_NEW];
    sample_texts(7, 1, alone);
    sample_texts(7, 3, together);
    sample_texts(8, 3, other);
    cr_assert_arr_eq(alone, together, sizeof alone);
    cr_assert_arr_neq(alone, other, sizeof alone);
}

Test(generate, refuses_tokens_outside_the_vocabulary) {
    tool_error error;
    engine_options options = options_of(16);
    engine *e = engine_create(&config, &options, &error);
    cr_assert_not_null(e, "%s", error.text);
    const int32_t prompt[] = {1, VOCABULARY};
    cr_assert_not(engine_add(e, prompt, 2, 1, &error));
    cr_assert_str_eq(error.text, "prompt 1: token 272 is not in the vocabulary of 272");
    const int32_t negative[] = {-1};
    cr_assert_not(engine_add(e, negative, 1, 1, &error));
    cr_assert(engine_finished(e));
    engine_destroy(e);
}
