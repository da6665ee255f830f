/* SPDX-License-Identifier: Apache-2.0 */
/* pagedcl generate: texts from prompts, by a model, through paged attention. */
#define _POSIX_C_SOURCE 200809L

#include "command.h"
#include "option.h"
#include "generate_prompts.h"
#include "generate_report.h"
#include "generate_stream.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct arguments {
    const char *model;
    const char *device;
    generate_prompts prompts;
    int32_t new_tokens;
    engine_options engine; /* num_blocks 0: enough for the prompts */
    bool json;
    bool logits;
    bool verbose;
} arguments;

enum {
    KEY_PROMPT_IDS = 256,
    KEY_TEMPERATURE,
    KEY_TOP_P,
    KEY_SEED,
    KEY_BLOCK_SIZE,
    KEY_KV_DTYPE,
    KEY_POOL_BLOCKS,
    KEY_CHUNK,
    KEY_MAX_BATCH,
    KEY_NO_PREFIX_CACHE,
    KEY_JSON,
    KEY_LOGITS,
};

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "Prompts, decoded as one batch:", 1},
    {"model", 'm', "DIR", 0, "Folder of a Qwen3-architecture model: config.json, model.safetensors", 1},
    {"prompt", 'p', "TEXT", 0, "A prompt; may be given again", 1},
    {"prompt-file", 'f', "FILE", 0, "A prompt a line, empty ones left out; - is the standard input", 1},
    {"prompt-ids", KEY_PROMPT_IDS, "IDS", 0, "A prompt as token ids: 73,110,32", 1},
    {NULL, 0, NULL, 0, "Tokens:", 2},
    {"tokens", 'n', "N", 0, "New tokens of each prompt, at most (128)", 2},
    {"temperature", KEY_TEMPERATURE, "T", 0, "0: always the likeliest token (0)", 2},
    {"top-p", KEY_TOP_P, "P", 0, "Sample from the likeliest tokens that together have probability P (1)", 2},
    {"seed", KEY_SEED, "N", 0, "Seed of the sampling (0)", 2},
    {NULL, 0, NULL, 0, "Device, pool and batch:", 3},
    {"device", 'd', "NAME", 0, "gpu, cpu, nvidia, amd, intel, pocl, P:D, or a part of the name", 3},
    {"block-size", KEY_BLOCK_SIZE, "N", 0, "Tokens that a block holds (16)", 3},
    {"kv-dtype", KEY_KV_DTYPE, "TYPE", 0,
     "Keys and values as float32, float16, bfloat16, or with scales as int8, float8_e4m3, float8_e5m2 or int4 "
     "(float32)",
     3},
    {"pool-blocks", KEY_POOL_BLOCKS, "N", 0, "Blocks of the pool (enough, up to half of the device's memory)", 3},
    {"chunk", KEY_CHUNK, "N", 0, "Prompt tokens that a step computes, at most (256)", 3},
    {"max-batch", KEY_MAX_BATCH, "N", 0, "Prompts that run at once, at most (32)", 3},
    {"no-prefix-cache", KEY_NO_PREFIX_CACHE, NULL, 0, "Compute again what texts that ended had in common", 3},
    {NULL, 0, NULL, 0, "Output:", 4},
    {"json", KEY_JSON, NULL, 0, "Print one JSON document at the end, and no text before", 4},
    {"logits", KEY_LOGITS, NULL, 0, "With --json: the logits of each first new token too", 4},
    {"verbose", 'v', NULL, 0, "Tell what the library logs", 4},
    {0},
};

static error_t parse_seed(const char *value, uint64_t *seed) {
    char *end;
    errno = 0;
    unsigned long long parsed = strtoull(value, &end, 10);
    if (errno != 0 || end == value || *end != '\0' || strchr(value, '-') != NULL)
        return option_bad("seed", value, "an integer from 0 to 18446744073709551615");
    *seed = parsed;
    return 0;
}

static error_t parse_temperature(const char *value, float *temperature) {
    char *end;
    *temperature = strtof(value, &end);
    if (end == value || *end != '\0' || !(*temperature >= 0) || !isfinite(*temperature))
        return option_bad("temperature", value, "a number from 0 up");
    return 0;
}

static error_t parse_top_p(const char *value, float *top_p) {
    char *end;
    *top_p = strtof(value, &end);
    if (end == value || *end != '\0' || !(*top_p > 0 && *top_p <= 1))
        return option_bad("top-p", value, "a number above 0, up to 1");
    return 0;
}

static error_t add_source(arguments *a, generate_source_kind kind, const char *value) {
    if (generate_prompts_add(&a->prompts, kind, value))
        return 0;
    command_fail("out of memory");
    return ENOMEM;
}

static error_t parse_option(int key, char *value, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case 'm':
        a->model = value;
        return 0;
    case 'p':
        return add_source(a, GENERATE_TEXT, value);
    case 'f':
        return add_source(a, GENERATE_FILE, value);
    case KEY_PROMPT_IDS:
        return add_source(a, GENERATE_IDS, value);
    case 'n':
        return option_count("tokens", value, 1, 1 << 28, &a->new_tokens);
    case KEY_TEMPERATURE:
        return parse_temperature(value, &a->engine.sampling.temperature);
    case KEY_TOP_P:
        return parse_top_p(value, &a->engine.sampling.top_p);
    case KEY_SEED:
        return parse_seed(value, &a->engine.seed);
    case 'd':
        a->device = value;
        return 0;
    case KEY_BLOCK_SIZE:
        return option_count("block-size", value, 1, 1 << 16, &a->engine.block_size);
    case KEY_KV_DTYPE:
        return option_dtype("kv-dtype", value, &a->engine.kv_dtype);
    case KEY_POOL_BLOCKS:
        return option_count("pool-blocks", value, 1, INT32_MAX, &a->engine.num_blocks);
    case KEY_CHUNK:
        return option_count("chunk", value, 1, 1 << 16, &a->engine.chunk_tokens);
    case KEY_MAX_BATCH:
        return option_count("max-batch", value, 1, 1 << 12, &a->engine.max_batch);
    case KEY_NO_PREFIX_CACHE:
        a->engine.without_prefix_cache = true;
        return 0;
    case KEY_JSON:
        a->json = true;
        return 0;
    case KEY_LOGITS:
        a->logits = true;
        return 0;
    case 'v':
        a->verbose = true;
        return 0;
    case ARGP_KEY_ARG:
        command_fail("\"%s\" is no option; a prompt is given by --prompt", value);
        return EINVAL;
    case ARGP_KEY_END:
        if (a->model == NULL || a->prompts.num_sources == 0) {
            command_fail("generate needs --model and a --prompt; `pagedcl generate --help` explains them");
            return EINVAL;
        }
        return 0;
    default:
        return option_other(key, value, state);
    }
}

static const struct argp argp = {
    options, parse_option, NULL, "Generates text from prompts, all in one continuous batch over a paged KV pool.",
    NULL,    NULL,         NULL,
};

/*
 * Unless --pool-blocks says: blocks for the prompts that run at once at their full lengths, in at most half of the
 * device's memory.
 */
static bool choose_num_blocks(const arguments *a, const model_config *config, pagedcl_device *device,
                              int32_t *num_blocks, tool_error *error) {
    pagedcl_device_info info = PAGEDCL_DEVICE_INFO_INIT;
    pagedcl_cache_desc pool = engine_pool(config, &a->engine);
    pool.num_blocks = 1;
    uint64_t block_bytes;
    if (!tool_try(error, pagedcl_device_get_info(device, &info), "KV pool") ||
        !tool_try(error, pagedcl_cache_bytes(&pool, &block_bytes), "KV pool"))
        return false;
    uint64_t room = info.global_memory / block_bytes;
    *num_blocks = a->engine.num_blocks;
    if (*num_blocks > 0)
        return (uint64_t)*num_blocks <= room ||
               tool_fail(error, "--pool-blocks is %" PRId32 ", but the device's memory holds only %" PRIu64 " blocks",
                         *num_blocks, room);
    uint64_t all = 0;
    uint64_t largest = 0;
    for (int32_t i = 0; i < a->prompts.count; i++) {
        uint64_t tokens = (uint64_t)a->prompts.list[i].num_tokens + (uint64_t)a->new_tokens;
        uint64_t blocks = tokens / (uint64_t)a->engine.block_size + 1;
        all += blocks;
        largest = blocks > largest ? blocks : largest;
    }
    uint64_t running = largest * (uint64_t)a->engine.max_batch;
    uint64_t wanted = all < running ? all : running;
    uint64_t chosen = wanted < room / 2 ? wanted : room / 2;
    *num_blocks = chosen < INT32_MAX ? (int32_t)chosen : INT32_MAX;
    return chosen > 0 || tool_fail(error, "the device's memory holds no two blocks of the pool");
}

/* Progress on stderr: a line that changes on a terminal, otherwise a line for what took long. */
typedef struct progress_line {
    bool terminal;
    bool shown;
    bool running;
    double started_at;
    double shown_at;
} progress_line;

static void report_progress(void *user, const char *what, double done) {
    progress_line *line = user;
    double now = engine_now();
    bool begins = !line->running;
    if (begins)
        line->started_at = now;
    line->running = done < 1;
    if (!line->terminal) {
        if (!line->running && now - line->started_at > 2)
            fprintf(stderr, "%s took %.1f s\n", what, now - line->started_at);
    } else if (begins || now - line->shown_at > 0.1) {
        fprintf(stderr, "\r\033[K%s ... %.0f %%", what, 100 * done);
        line->shown = true;
        line->shown_at = now;
    }
}

static void clear_progress(progress_line *line) {
    if (line->shown)
        fputs("\r\033[K", stderr);
    line->shown = false;
}

/* Loads the model and runs all prompts to their ends. */
static bool run_engine(const arguments *a, engine *e, const generate_run *run, tool_error *error) {
    progress_line *line = run->options->progress.user;
    bool loaded = engine_load(e, run->device, a->model, error);
    clear_progress(line);
    if (!loaded)
        return false;
    generate_stream stream = generate_stream_open(e, run->tokenizer);
    while (!engine_finished(e)) {
        if (!engine_run_step(e, error))
            return false;
        if (!a->json)
            generate_stream_update(&stream);
    }
    return a->json ? generate_report_json(run, a->logits, error) : generate_report_table(run, error);
}

static bool generate_on(pagedcl_device *device, const arguments *a, const model_config *config, const tokenizer *t,
                        double started_at, tool_error *error) {
    progress_line line = {.terminal = isatty(STDERR_FILENO)};
    engine_options own = a->engine;
    own.progress = (engine_progress){.report = a->json ? NULL : report_progress, .user = &line};
    if (!choose_num_blocks(a, config, device, &own.num_blocks, error))
        return false;
    engine *e = engine_create(config, &own, error);
    bool ok = e != NULL;
    for (int32_t i = 0; ok && i < a->prompts.count; i++)
        ok = engine_add(e, a->prompts.list[i].tokens, a->prompts.list[i].num_tokens, a->new_tokens, error);
    generate_run run = {.model = a->model,
                        .config = config,
                        .tokenizer = t,
                        .options = &own,
                        .device = device,
                        .engine = e,
                        .started_at = started_at};
    ok = ok && run_engine(a, e, &run, error);
    engine_destroy(e);
    return ok;
}

static int generate(arguments *a, double started_at) {
    tool_error error;
    model_config config;
    tokenizer t;
    if (!model_config_read(a->model, &config, &error))
        return command_fail("%s", error.text);
    tokenizer_open(a->model, &config, &t);
    if (!generate_prompts_read(&a->prompts, &t, &error))
        return command_fail("%s", error.text);
    pagedcl_device *device = command_open_device(a->device, a->verbose);
    if (device == NULL)
        return EXIT_USAGE;
    bool ok = generate_on(device, a, &config, &t, started_at, &error);
    pagedcl_device_destroy(device);
    return ok ? EXIT_OK : command_fail("%s", error.text);
}

static int run(int argc, char **argv) {
    double started_at = engine_now();
    arguments a = {.new_tokens = 128,
                   .engine = {.block_size = 16,
                              .kv_dtype = PAGEDCL_FLOAT32,
                              .max_batch = 32,
                              .chunk_tokens = 256,
                              .sampling = {.temperature = 0, .top_p = 1}}};
    int status = argp_parse(&argp, argc, argv, 0, NULL, &a) == 0 ? generate(&a, started_at) : EXIT_USAGE;
    generate_prompts_free(&a.prompts);
    return status;
}

const command command_generate = {"generate", "generate text from prompts, as one batch", run};
