/* SPDX-License-Identifier: Apache-2.0 */
/* pagedcl simulate: how many blocks a pool needs for the requests of a trace. */
#define _POSIX_C_SOURCE 200809L

#include "command.h"
#include "option.h"
#include "json_text.h"
#include "simulate_curve.h"
#include "simulate_svg.h"
#include "simulate_trace.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct arguments {
    simulate_options options;
    trace_format format;
    int32_t pools[CURVE_MAX_POOLS]; /* num_pools 0: search */
    int32_t num_pools;
    const char *svg;
    bool json;
    char **paths;
    int num_paths;
} arguments;

enum {
    KEY_POOL_BLOCKS = 256,
    KEY_BLOCK_SIZE,
    KEY_MAX_BATCH,
    KEY_CHUNK,
    KEY_WATERMARK,
    KEY_POLICY,
    KEY_HOST_BLOCKS,
    KEY_STEP_MS,
    KEY_PREFILL_MS,
    KEY_DECODE_MS,
    KEY_SWAP_MS,
    KEY_HASH_BLOCK,
    KEY_TIMESTAMP,
    KEY_SVG,
    KEY_JSON,
};

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "Pool and batch:", 1},
    {"pool-blocks", KEY_POOL_BLOCKS, "N[,N...]", 0, "Blocks of the pool; auto searches (auto)", 1},
    {"block-size", KEY_BLOCK_SIZE, "N", 0, "Tokens that a block holds (16)", 1},
    {"max-batch", KEY_MAX_BATCH, "N", 0, "Requests that run at once, at most (64)", 1},
    {"chunk", KEY_CHUNK, "N", 0, "Prompt tokens that a step computes, at most (2048)", 1},
    {"watermark", KEY_WATERMARK, "N", 0, "Blocks that admission leaves free (0)", 1},
    {"policy", KEY_POLICY, "POLICY", 0, "How requests are preempted: recompute or swap (recompute)", 1},
    {"host-blocks", KEY_HOST_BLOCKS, "N", 0, "With swap: blocks of host memory (as many as the pool)", 1},
    {NULL, 0, NULL, 0, "Time of a step, a model and no measurement; put in what your engine takes:", 2},
    {"step-ms", KEY_STEP_MS, "MS", 0, "Of every step (10)", 2},
    {"prefill-ms", KEY_PREFILL_MS, "MS", 0, "More for each prompt token in it (0.1)", 2},
    {"decode-ms", KEY_DECODE_MS, "MS", 0, "More for each request that decodes in it (0.1)", 2},
    {"swap-ms", KEY_SWAP_MS, "MS", 0, "More for each block swapped, out or in, before it (0.1)", 2},
    {NULL, 0, NULL, 0, "The public layout:", 3},
    {"hash-block", KEY_HASH_BLOCK, "N", 0, "Tokens that a hash id stands for (512)", 3},
    {"timestamp", KEY_TIMESTAMP, "UNIT", 0, "What timestamps count: ms or s (ms)", 3},
    {NULL, 0, NULL, 0, "Output:", 4},
    {"svg", KEY_SVG, "FILE", 0, "Write the curve over the pool sizes as a picture", 4},
    {"json", KEY_JSON, NULL, 0, "Print one JSON document", 4},
    {0},
};

static error_t parse_ms(const char *option, const char *value, double *seconds) {
    char *end;
    double ms = strtod(value, &end);
    if (end == value || *end != '\0' || !(ms >= 0 && ms <= 1e6))
        return option_bad(option, value, "milliseconds from 0 to 1000000");
    *seconds = ms * 1e-3;
    return 0;
}

static error_t parse_pools(const char *value, arguments *a) {
    static const char wanted[] = "auto, or at most 64 numbers from 1 to 2147483647 with commas between";
    a->num_pools = 0;
    if (strcmp(value, "auto") == 0)
        return 0;
    for (const char *rest = value;; rest++) {
        char *end;
        errno = 0;
        long parsed = strtol(rest, &end, 10);
        if (errno != 0 || end == rest || (*end != ',' && *end != '\0') || parsed < 1 || parsed > INT32_MAX ||
            a->num_pools == CURVE_MAX_POOLS)
            return option_bad("pool-blocks", value, wanted);
        a->pools[a->num_pools++] = (int32_t)parsed;
        rest = end;
        if (*end == '\0')
            return 0;
    }
}

static error_t parse_timestamp(const char *value, double *unit) {
    if (strcmp(value, "ms") != 0 && strcmp(value, "s") != 0)
        return option_bad("timestamp", value, "ms or s");
    *unit = strcmp(value, "ms") == 0 ? 1e-3 : 1;
    return 0;
}

static error_t parse_policy(const char *value, bool *swap) {
    if (strcmp(value, "recompute") != 0 && strcmp(value, "swap") != 0)
        return option_bad("policy", value, "recompute or swap");
    *swap = strcmp(value, "swap") == 0;
    return 0;
}

/* Options that go together, once all are known. */
static error_t check_options(const arguments *a) {
    if (a->options.host_blocks == 0 || a->options.swap)
        return 0;
    command_fail("--host-blocks is for --policy swap");
    return EINVAL;
}

static error_t parse_option(int key, char *value, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case KEY_POOL_BLOCKS:
        return parse_pools(value, a);
    case KEY_BLOCK_SIZE:
        return option_count("block-size", value, 1, 1 << 16, &a->options.block_size);
    case KEY_MAX_BATCH:
        return option_count("max-batch", value, 1, 1 << 16, &a->options.max_batch);
    case KEY_CHUNK:
        return option_count("chunk", value, 1, 1 << 24, &a->options.chunk);
    case KEY_WATERMARK:
        return option_count("watermark", value, 0, 1 << 24, &a->options.watermark);
    case KEY_POLICY:
        return parse_policy(value, &a->options.swap);
    case KEY_HOST_BLOCKS:
        return option_count("host-blocks", value, 1, INT32_MAX, &a->options.host_blocks);
    case KEY_STEP_MS:
        return parse_ms("step-ms", value, &a->options.step_seconds);
    case KEY_PREFILL_MS:
        return parse_ms("prefill-ms", value, &a->options.prefill_seconds);
    case KEY_DECODE_MS:
        return parse_ms("decode-ms", value, &a->options.decode_seconds);
    case KEY_SWAP_MS:
        return parse_ms("swap-ms", value, &a->options.swap_seconds);
    case KEY_HASH_BLOCK:
        return option_count("hash-block", value, 1, 1 << 24, &a->format.hash_tokens);
    case KEY_TIMESTAMP:
        return parse_timestamp(value, &a->format.timestamp_unit);
    case KEY_SVG:
        a->svg = value;
        return 0;
    case KEY_JSON:
        a->json = true;
        return 0;
    case ARGP_KEY_ARG:
        return ARGP_ERR_UNKNOWN; /* all of them come at once */
    case ARGP_KEY_ARGS:
        a->paths = state->argv + state->next;
        a->num_paths = state->argc - state->next;
        return 0;
    case ARGP_KEY_END:
        return check_options(a);
    case ARGP_KEY_NO_ARGS:
        command_fail("simulate needs a trace; `pagedcl simulate --help` explains it");
        return EINVAL;
    default:
        return option_other(key, value, state);
    }
}

static const struct argp argp = {
    options,
    parse_option,
    "TRACE...",
    "Runs request traces through the block manager, with a plain scheduler, a virtual clock and no device, to tell how "
    "many blocks a pool needs.\v"
    "A trace has a JSON object a line:\n"
    "  {\"arrival\": 0.5, \"prompt\": 100, \"output\": 20,\n"
    "   \"prefix_id\": \"chat\", \"prefix_length\": 64}\n"
    "with arrival in seconds, and prompt as a number of tokens, or as their list. Prompts of one prefix_id begin with "
    "the same prefix_length tokens; both keys may be left out. Or, as public traces are:\n"
    "  {\"timestamp\": 500, \"input_length\": 1000, \"output_length\": 20,\n"
    "   \"hash_ids\": [1, 2]}\n"
    "Prompts share a prefix where their leading hash_ids are equal.\n\n"
    "A request is admitted, in the order of arrival, when the pool has blocks for all its tokens; whole blocks are "
    "found in the prefix cache. When blocks run out, the request admitted last gives its blocks up and is computed "
    "again later; with --policy swap its blocks wait in host memory while there is room.\n\n"
    "The exit status is 0; 1 when a request never fits into one of the pools; 2 when a trace cannot be read.",
    NULL,
    NULL,
    NULL,
};

/* A line on a terminal's stderr, once the work takes long. */
typedef struct progress_line {
    bool wanted;
    bool shown;
    double next; /* when to write it, in seconds */
} progress_line;

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void show_progress(void *user, int32_t num_blocks, int64_t num_finished, int64_t num_requests) {
    progress_line *p = user;
    double now = p->wanted ? seconds_now() : 0;
    if (!p->wanted || now < p->next)
        return;
    p->next = now + 0.2;
    p->shown = true;
    fprintf(stderr, "\r%" PRId32 " blocks: %" PRId64 " of %" PRId64 " requests\033[K", num_blocks, num_finished,
            num_requests);
}

static bool read_traces(const arguments *a, trace *t) {
    for (int i = 0; i < a->num_paths; i++) {
        char text[512];
        file_error error = {.path = a->paths[i], .text = text, .size = sizeof text};
        if (!trace_read(t, a->paths[i], &a->format, &error)) {
            command_fail("%s", text);
            return false;
        }
    }
    trace_sort(t);
    return true;
}

static bool run_pools(const arguments *a, const trace *t, simulate_curve *curve) {
    progress_line progress = {.wanted = isatty(STDERR_FILENO) == 1, .next = seconds_now() + 2};
    pagedcl_status status = PAGEDCL_SUCCESS;
    if (a->num_pools == 0)
        status = curve_search(curve, t, &a->options, show_progress, &progress);
    for (int32_t i = 0; i < a->num_pools && status == PAGEDCL_SUCCESS; i++)
        status = curve_add(curve, t, &a->options, a->pools[i], show_progress, &progress);
    if (progress.shown)
        fputs("\r\033[K", stderr);
    if (status == PAGEDCL_OUT_OF_MEMORY)
        command_fail("out of memory");
    else if (status != PAGEDCL_SUCCESS)
        command_fail("%s", pagedcl_last_error());
    return status == PAGEDCL_SUCCESS;
}

typedef struct totals {
    int64_t prompt_tokens;
    int64_t output_tokens;
    int64_t largest_blocks;
    const trace_request *largest;
} totals;

static totals add_up(const trace *t, int32_t block_size) {
    totals sum = {.largest = simulate_largest(t)};
    sum.largest_blocks = simulate_blocks_needed(sum.largest, block_size);
    for (int64_t i = 0; i < t->num_requests; i++) {
        sum.prompt_tokens += t->requests[i].num_prompt;
        sum.output_tokens += t->requests[i].num_output;
    }
    return sum;
}

/* The question's answer in one sentence. */
static void write_answer(const arguments *a, const simulate_curve *curve, const totals *sum, char *text, size_t size) {
    if (curve->knee < 0) {
        snprintf(text, size, "You need %" PRId64 " blocks at least: so many the largest request takes.",
                 sum->largest_blocks + a->options.watermark);
        return;
    }
    int64_t least = sum->largest_blocks + a->options.watermark;
    int32_t enough = curve->enough < 0 ? 0 : curve->pools[curve->enough].num_blocks;
    char need[100], knee[160] = "";
    if (curve->enough < 0)
        snprintf(need, sizeof need, "more than %" PRId32 " blocks, since the largest pool tried preempts",
                 curve->pools[curve->num_pools - 1].num_blocks);
    else if (curve->enough == 0 && enough > least)
        snprintf(need, sizeof need, "at most %" PRId32 " blocks, since the smallest pool tried does not preempt",
                 enough);
    else
        snprintf(need, sizeof need, "%" PRId32 " blocks, from where on no pool tried preempts", enough);
    if (curve->num_pools > 1)
        snprintf(knee, sizeof knee,
                 "; the knee is at %" PRId32
                 " blocks, from where on the mean time to first token stays within %g %% of "
                 "the best",
                 curve->pools[curve->knee].num_blocks, 100 * CURVE_KNEE_SLACK);
    snprintf(text, size, "You need %s%s.", need, knee);
}

static void print_table(const arguments *a, const trace *t, const simulate_curve *curve, const totals *sum) {
    const simulate_options *o = &a->options;
    printf("requests  %" PRId64 " in %.2f s; %" PRId64 " prompt tokens, %" PRId64 " output tokens\n", t->num_requests,
           t->requests[t->num_requests - 1].arrival, sum->prompt_tokens, sum->output_tokens);
    printf("blocks    %" PRId32 " tokens each; the largest request takes %" PRId64 " (%s, line %" PRId32 ")\n",
           o->block_size, sum->largest_blocks, a->paths[sum->largest->file], sum->largest->line);
    printf("a step    %g ms, %g ms more a prompt token, %g ms more a decoding request", o->step_seconds * 1e3,
           o->prefill_seconds * 1e3, o->decode_seconds * 1e3);
    if (o->swap)
        printf(", %g ms more a swapped block", o->swap_seconds * 1e3);
    printf(": a model, not measured\n\n");
    printf("%10s  %8s  %8s  %8s  %8s  %11s  %10s  %11s%s\n", "blocks", "hit rate", "peak use", "mean use", "unfilled",
           "preemptions", "recomputed", "first token", o->swap ? "   swapped" : "");
    for (int32_t i = 0; i < curve->num_pools; i++) {
        const simulate_result *pool = &curve->pools[i];
        char swapped[32] = "";
        if (o->swap)
            snprintf(swapped, sizeof swapped, "  %8" PRId64, pool->swapped_blocks);
        if (pool->status == PAGEDCL_SUCCESS)
            printf("%10" PRId32 "  %6.1f %%  %6.1f %%  %6.1f %%  %6.1f %%  %11" PRId64 "  %10" PRId64 "  %9.3f s%s\n",
                   pool->num_blocks, 100 * pool->hit_rate, 100 * pool->peak_occupancy, 100 * pool->mean_occupancy,
                   100 * pool->fragmentation, pool->preemptions, pool->recomputed_tokens, pool->mean_first_token,
                   swapped);
        else
            printf("%10" PRId32 "  %s: the largest request takes more\n", pool->num_blocks,
                   pagedcl_status_name(pool->status));
    }
    char answer[512];
    write_answer(a, curve, sum, answer, sizeof answer);
    printf("\n%s\n", answer);
}

static json_t *pool_to_json(const simulate_result *pool) {
    if (pool->status != PAGEDCL_SUCCESS)
        return json_pack("{s:i, s:s}", "blocks", (int)pool->num_blocks, "status", pagedcl_status_name(pool->status));
    return json_pack("{s:i, s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:f}", "blocks", (int)pool->num_blocks,
                     "status", pagedcl_status_name(pool->status), "steps", (json_int_t)pool->steps, "seconds",
                     pool->seconds, "hit_rate", pool->hit_rate, "peak_occupancy", pool->peak_occupancy,
                     "mean_occupancy", pool->mean_occupancy, "fragmentation", pool->fragmentation, "preemptions",
                     (json_int_t)pool->preemptions, "recomputed_tokens", (json_int_t)pool->recomputed_tokens,
                     "swapped_blocks", (json_int_t)pool->swapped_blocks, "mean_first_token_seconds",
                     pool->mean_first_token);
}

static json_t *blocks_or_null(const simulate_curve *curve, int32_t index) {
    return index < 0 ? json_null() : json_integer(curve->pools[index].num_blocks);
}

static bool print_json(const arguments *a, const trace *t, const simulate_curve *curve, const totals *sum) {
    const simulate_options *o = &a->options;
    char answer[512];
    write_answer(a, curve, sum, answer, sizeof answer);
    json_t *pools = json_array();
    for (int32_t i = 0; i < curve->num_pools; i++)
        json_array_append_new(pools, pool_to_json(&curve->pools[i]));
    bool complete = json_array_size(pools) == (size_t)curve->num_pools;
    json_t *document = json_pack(
        "{s:s, s:I, s:I, s:I, s:i, s:i, s:i, s:i, s:s, s:i, s:f, s:f, s:f, s:f, s:I, s:o, s:o, s:o, s:o}", "version",
        pagedcl_version(), "requests", (json_int_t)t->num_requests, "prompt_tokens", (json_int_t)sum->prompt_tokens,
        "output_tokens", (json_int_t)sum->output_tokens, "block_size", (int)o->block_size, "max_batch",
        (int)o->max_batch, "chunk", (int)o->chunk, "watermark", (int)o->watermark, "policy",
        o->swap ? "swap" : "recompute", "host_blocks", (int)o->host_blocks, "step_seconds", o->step_seconds,
        "prefill_seconds", o->prefill_seconds, "decode_seconds", o->decode_seconds, "swap_seconds", o->swap_seconds,
        "largest_request_blocks", (json_int_t)sum->largest_blocks, "pools", pools, "no_preemption_from",
        blocks_or_null(curve, curve->enough), "knee", blocks_or_null(curve, curve->knee), "answer", json_text(answer));
    complete = complete && document && json_dumpf(document, stdout, JSON_INDENT(2)) == 0;
    json_decref(document);
    putchar('\n');
    return complete;
}

static bool write_svg(const arguments *a, const simulate_curve *curve) {
    if (curve->knee < 0) {
        command_fail("%s: is not written, since no pool fits", a->svg);
        return false;
    }
    errno = 0;
    FILE *file = fopen(a->svg, "w");
    if (file) {
        simulate_svg_write(curve, a->options.block_size, file);
        bool failed = ferror(file) != 0;
        if (fclose(file) == 0 && !failed)
            return true;
    }
    command_fail("%s: cannot be written: %s", a->svg, strerror(errno));
    return false;
}

static int report(const arguments *a, const trace *t, const simulate_curve *curve) {
    totals sum = add_up(t, a->options.block_size);
    if (a->json) {
        if (!print_json(a, t, curve, &sum))
            return command_fail("the JSON document could not be made");
    } else {
        print_table(a, t, curve, &sum);
    }
    if (a->svg && !write_svg(a, curve))
        return EXIT_USAGE;
    for (int32_t i = 0; i < curve->num_pools; i++)
        if (curve->pools[i].status != PAGEDCL_SUCCESS)
            return EXIT_FAILED;
    return EXIT_OK;
}

static int run(int argc, char **argv) {
    arguments args = {
        .options = {.block_size = 16,
                    .max_batch = 64,
                    .chunk = 2048,
                    .step_seconds = 0.01,
                    .prefill_seconds = 0.0001,
                    .decode_seconds = 0.0001,
                    .swap_seconds = 0.0001},
        .format = {.hash_tokens = 512, .timestamp_unit = 1e-3},
    };
    if (argp_parse(&argp, argc, argv, 0, NULL, &args) != 0)
        return EXIT_USAGE;
    trace t = {0};
    simulate_curve curve = {.enough = -1, .knee = -1};
    int status = EXIT_USAGE;
    if (read_traces(&args, &t) && run_pools(&args, &t, &curve))
        status = report(&args, &t, &curve);
    trace_free(&t);
    return status;
}

const command command_simulate = {"simulate", "tell how many blocks a trace of requests needs", run};
