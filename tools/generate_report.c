/* SPDX-License-Identifier: Apache-2.0 */
#include "generate_report.h"

#include "json_text.h"

#include <pagedcl/pagedcl.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Everything that the table and the document tell. */
typedef struct summary {
    engine_stats engine;
    pagedcl_build_stats build;
    pagedcl_device_info device;
    uint64_t pool_bytes;
    int64_t prompt_tokens;
    int64_t new_tokens;
    double first_token_seconds;
} summary;

static bool summarise(const generate_run *run, summary *s, tool_error *error) {
    *s = (summary){.build = PAGEDCL_BUILD_STATS_INIT, .device = PAGEDCL_DEVICE_INFO_INIT};
    pagedcl_cache_desc pool = engine_pool(run->config, run->options);
    if (!tool_try(error, pagedcl_cache_bytes(&pool, &s->pool_bytes), "statistics") ||
        !tool_try(error, pagedcl_device_get_build_stats(run->device, &s->build), "statistics") ||
        !tool_try(error, pagedcl_device_get_info(run->device, &s->device), "statistics"))
        return false;
    for (int32_t i = 0; i < engine_num_texts(run->engine); i++) {
        engine_text text = engine_get_text(run->engine, i);
        double seconds = text.first_token_at - run->started_at;
        s->prompt_tokens += text.num_prompt;
        s->new_tokens += text.num_tokens - text.num_prompt;
        if (i == 0 || seconds < s->first_token_seconds)
            s->first_token_seconds = seconds;
    }
    return engine_get_stats(run->engine, &s->engine, error);
}

static double rate(int64_t tokens, double seconds) {
    return seconds > 0 ? (double)tokens / seconds : 0;
}

/* Of the tokens that were to be computed, those that were there already. */
static double hit_rate(const scheduler_stats *schedule) {
    return schedule->admitted_tokens > 0 ? (double)schedule->shared_tokens / (double)schedule->admitted_tokens : 0;
}

bool generate_report_table(const generate_run *run, tool_error *error) {
    summary s;
    if (!summarise(run, &s, error))
        return false;
    const scheduler_stats *schedule = &s.engine.schedule;
    fprintf(stderr, "\n");
    fprintf(stderr, "device       %s, tier %s\n", s.device.device_name, pagedcl_tier_name(s.device.tier));
    fprintf(stderr, "model        %s, %.2f M parameters, loaded in %.2f s\n", run->model,
            (double)s.engine.num_parameters * 1e-6, s.engine.load_seconds);
    fprintf(stderr,
            "kernels      ready in %.2f s: %" PRId64 " programs compiled in %.2f s, %" PRId64
            " from the cache in %.2f s, the rest by CLBlast and the driver\n",
            s.engine.prepare_seconds, s.build.compiled, s.build.compile_seconds, s.build.loaded, s.build.load_seconds);
    fprintf(stderr,
            "prompts      %" PRId32 ", at most %" PRId32 " at once; %" PRId64 " prompt tokens, %" PRId64
            " new tokens\n",
            engine_num_texts(run->engine), schedule->peak_running, s.prompt_tokens, s.new_tokens);
    fprintf(stderr, "first token  %.2f s after the start of the program\n", s.first_token_seconds);
    fprintf(stderr, "prefill      %" PRId64 " tokens in %.3f s: %.1f tokens/s\n", schedule->prefill_tokens,
            s.engine.prefill_seconds, rate(schedule->prefill_tokens, s.engine.prefill_seconds));
    fprintf(stderr, "decode       %" PRId64 " tokens in %.3f s: %.1f tokens/s\n", schedule->decode_tokens,
            s.engine.decode_seconds, rate(schedule->decode_tokens, s.engine.decode_seconds));
    fprintf(stderr,
            "blocks       %" PRId64 " of %" PRId64 " used at the peak, %" PRId64 " at the end; %" PRId32
            " tokens each, pool %.1f MiB %s\n",
            schedule->blocks.peak_used, schedule->blocks.total, schedule->blocks.used, run->options->block_size,
            (double)s.pool_bytes / (1 << 20), pagedcl_dtype_name(run->options->kv_dtype));
    fprintf(stderr,
            "sharing      saved %" PRId64 " blocks and the computation of %" PRId64
            " tokens, %.1f %% of the prompts'; %" PRId64 " blocks copied on write\n",
            schedule->shared_blocks, schedule->shared_tokens, 100 * hit_rate(schedule), schedule->blocks.copies);
    fprintf(stderr, "preemptions  %" PRId64 ", %" PRId64 " tokens computed again\n", schedule->preemptions,
            schedule->recomputed_tokens);
    return true;
}

/* Sets a member, unless one before it could not be set. */
static void set(json_t *object, const char *key, json_t *value, bool *ok) {
    *ok = json_object_set_new(object, key, value) == 0 && *ok;
}

static void set_integer(json_t *object, const char *key, int64_t value, bool *ok) {
    set(object, key, json_integer(value), ok);
}

static void set_real(json_t *object, const char *key, double value, bool *ok) {
    set(object, key, json_real(value), ok);
}

static void set_tokens(json_t *object, const char *key, const int32_t *tokens, int32_t count, bool *ok) {
    json_t *array = json_array();
    for (int32_t i = 0; i < count; i++)
        *ok = json_array_append_new(array, json_integer(tokens[i])) == 0 && *ok;
    set(object, key, array, ok);
}

/* The text of the tokens; a zero byte, which would end it, becomes '?'. */
static void set_text(json_t *object, const char *key, const tokenizer *t, const int32_t *tokens, int32_t count,
                     bool *ok) {
    char *text = malloc((size_t)count * TOKENIZER_MAX_TEXT + 1);
    if (text == NULL) {
        *ok = false;
        return;
    }
    size_t length = 0;
    for (int32_t i = 0; i < count; i++)
        length += tokenizer_decode(t, tokens[i], text + length);
    for (size_t i = 0; i < length; i++)
        if (text[i] == '\0')
            text[i] = '?';
    text[length] = '\0';
    set(object, key, json_text(text), ok);
    free(text);
}

static json_t *text_to_json(const generate_run *run, const engine_text *text, bool with_logits, bool *ok) {
    json_t *json = json_object();
    const int32_t *new_tokens = text->tokens + text->num_prompt;
    int32_t num_new = text->num_tokens - text->num_prompt;
    set_text(json, "prompt", run->tokenizer, text->tokens, text->num_prompt, ok);
    set_tokens(json, "prompt_tokens", text->tokens, text->num_prompt, ok);
    set_text(json, "text", run->tokenizer, new_tokens, num_new, ok);
    set_tokens(json, "new_tokens", new_tokens, num_new, ok);
    set(json, "finish", json_string(text->ended ? "end" : "length"), ok);
    set_real(json, "first_token_seconds", text->first_token_at - run->started_at, ok);
    if (with_logits) {
        json_t *logits = json_array();
        for (int32_t i = 0; i < run->config->vocab_size; i++)
            *ok = json_array_append_new(logits, json_real((double)text->first_logits[i])) == 0 && *ok;
        set(json, "first_logits", logits, ok);
    }
    return json;
}

static json_t *options_to_json(const engine_options *options, bool *ok) {
    json_t *json = json_object();
    set(json, "kv_dtype", json_string(pagedcl_dtype_name(options->kv_dtype)), ok);
    set_integer(json, "block_size", options->block_size, ok);
    set_integer(json, "pool_blocks", options->num_blocks, ok);
    set_integer(json, "chunk", options->chunk_tokens, ok);
    set_integer(json, "max_batch", options->max_batch, ok);
    set(json, "prefix_cache", json_boolean(!options->without_prefix_cache), ok);
    set_real(json, "temperature", (double)options->sampling.temperature, ok);
    set_real(json, "top_p", (double)options->sampling.top_p, ok);
    set_integer(json, "seed", (int64_t)options->seed, ok);
    return json;
}

static json_t *summary_to_json(const generate_run *run, const summary *s, bool *ok) {
    const scheduler_stats *schedule = &s->engine.schedule;
    const pagedcl_blocks_stats *blocks = &schedule->blocks;
    json_t *json = json_object();
    set_integer(json, "parameters", s->engine.num_parameters, ok);
    set_real(json, "load_seconds", s->engine.load_seconds, ok);
    set_real(json, "prepare_seconds", s->engine.prepare_seconds, ok);
    set_integer(json, "programs_compiled", s->build.compiled, ok);
    set_real(json, "compile_seconds", s->build.compile_seconds, ok);
    set_integer(json, "programs_from_cache", s->build.loaded, ok);
    set_real(json, "cache_seconds", s->build.load_seconds, ok);
    set_integer(json, "prompts", engine_num_texts(run->engine), ok);
    set_integer(json, "peak_running", schedule->peak_running, ok);
    set_integer(json, "prompt_tokens", s->prompt_tokens, ok);
    set_integer(json, "new_tokens", s->new_tokens, ok);
    set_real(json, "first_token_seconds", s->first_token_seconds, ok);
    set_integer(json, "steps", schedule->steps, ok);
    set_integer(json, "prefill_tokens", schedule->prefill_tokens, ok);
    set_real(json, "prefill_seconds", s->engine.prefill_seconds, ok);
    set_real(json, "prefill_tokens_per_second", rate(schedule->prefill_tokens, s->engine.prefill_seconds), ok);
    set_integer(json, "decode_tokens", schedule->decode_tokens, ok);
    set_real(json, "decode_seconds", s->engine.decode_seconds, ok);
    set_real(json, "decode_tokens_per_second", rate(schedule->decode_tokens, s->engine.decode_seconds), ok);
    set_integer(json, "pool_bytes", (int64_t)s->pool_bytes, ok);
    set_integer(json, "blocks_used", blocks->used, ok);
    set_integer(json, "blocks_peak", blocks->peak_used, ok);
    set_integer(json, "blocks_copied", blocks->copies, ok);
    set_integer(json, "blocks_saved_by_sharing", schedule->shared_blocks, ok);
    set_integer(json, "tokens_saved_by_sharing", schedule->shared_tokens, ok);
    set_real(json, "prefix_hit_rate", hit_rate(schedule), ok);
    set_integer(json, "prefix_blocks_stored", blocks->stored, ok);
    set_integer(json, "prefix_blocks_evicted", blocks->evicted, ok);
    set_integer(json, "blocks_cached", blocks->cached, ok);
    set_integer(json, "preemptions", schedule->preemptions, ok);
    set_integer(json, "recomputed_tokens", schedule->recomputed_tokens, ok);
    return json;
}

bool generate_report_json(const generate_run *run, bool with_logits, tool_error *error) {
    summary s;
    if (!summarise(run, &s, error))
        return false;
    bool ok = true;
    json_t *document = json_object();
    json_t *texts = json_array();
    for (int32_t i = 0; i < engine_num_texts(run->engine); i++) {
        engine_text text = engine_get_text(run->engine, i);
        ok = json_array_append_new(texts, text_to_json(run, &text, with_logits, &ok)) == 0 && ok;
    }
    set(document, "version", json_string(pagedcl_version()), &ok);
    set(document, "model", json_text(run->model), &ok);
    set(document, "device", json_text(s.device.device_name), &ok);
    set(document, "tier", json_string(pagedcl_tier_name(s.device.tier)), &ok);
    set(document, "options", options_to_json(run->options, &ok), &ok);
    set(document, "texts", texts, &ok);
    set(document, "stats", summary_to_json(run, &s, &ok), &ok);
    ok = ok && json_dumpf(document, stdout, JSON_INDENT(2)) == 0 && putchar('\n') != EOF;
    json_decref(document);
    return ok || tool_fail(error, "the JSON document could not be made");
}
