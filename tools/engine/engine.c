/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L

#include "engine.h"

#include "forward.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char PREPARING[] = "preparing kernels (slow on the first run)";

typedef struct text_state {
    uint64_t generator;
    bool ended;
    double first_token_at;
    float *first_logits;
} text_state;

struct engine {
    model_config config;
    engine_options options;
    model model; /* empty until it is loaded */
    forward *forward;
    scheduler *scheduler;
    text_state *texts;
    int32_t num_texts;
    float *logits;             /* [max_batch, vocab_size] */
    sample_candidate *scratch; /* [vocab_size] */
    int32_t *next_tokens;      /* [max_batch] */
    bool *ends;                /* [max_batch] */
    engine_stats stats;
};

double engine_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

pagedcl_cache_desc engine_pool(const model_config *config, const engine_options *options) {
    pagedcl_cache_desc pool = PAGEDCL_CACHE_DESC_INIT;
    pool.num_layers = config->num_layers;
    pool.num_blocks = options->num_blocks;
    pool.block_size = options->block_size;
    pool.num_kv_heads = config->num_kv_heads;
    pool.head_dim = config->head_dim;
    pool.dtype = options->kv_dtype;
    /* 8 bits: a scale for each token and head, which needs no calibration. int4 always has its own. */
    pool.scale_per_row = pagedcl_dtype_size(pool.dtype) == 1;
    return pool;
}

static bool allocate(engine *e, tool_error *error) {
    const engine_options *o = &e->options;
    const model_config *c = &e->config;
    const scheduler_options limits = {.num_blocks = o->num_blocks,
                                      .block_size = o->block_size,
                                      .max_batch = o->max_batch,
                                      .chunk_tokens = o->chunk_tokens,
                                      .without_prefix_cache = o->without_prefix_cache,
                                      .max_tokens = c->max_positions};
    size_t batch = (size_t)o->max_batch;
    e->logits = malloc(batch * (size_t)c->vocab_size * sizeof *e->logits);
    e->scratch = malloc((size_t)c->vocab_size * sizeof *e->scratch);
    e->next_tokens = malloc(batch * sizeof *e->next_tokens);
    e->ends = malloc(batch * sizeof *e->ends);
    if (e->logits == NULL || e->scratch == NULL || e->next_tokens == NULL || e->ends == NULL)
        return tool_fail(error, "out of memory");
    e->scheduler = scheduler_create(&limits, error);
    return e->scheduler != NULL;
}

engine *engine_create(const model_config *config, const engine_options *options, tool_error *error) {
    engine *e = calloc(1, sizeof *e);
    if (e == NULL) {
        tool_fail(error, "out of memory");
        return NULL;
    }
    e->config = *config;
    e->options = *options;
    if (allocate(e, error))
        return e;
    engine_destroy(e);
    return NULL;
}

bool engine_load(engine *e, pagedcl_device *device, const char *folder, tool_error *error) {
    const engine_options *o = &e->options;
    double start = engine_now();
    if (!model_load(device, folder, &e->config, o->progress, &e->model, error))
        return false;
    double loaded = engine_now();
    engine_report(&o->progress, PREPARING, 0.0);
    pagedcl_cache_desc pool = engine_pool(&e->config, o);
    e->forward = forward_create(device, &e->model, &pool, o->max_batch + o->chunk_tokens, o->max_batch, error);
    engine_report(&o->progress, PREPARING, 1.0);
    e->stats.num_parameters = e->model.num_parameters;
    e->stats.load_seconds = loaded - start;
    e->stats.prepare_seconds = engine_now() - loaded;
    return e->forward != NULL;
}

void engine_destroy(engine *e) {
    if (e == NULL)
        return;
    for (int32_t i = 0; i < e->num_texts; i++)
        free(e->texts[i].first_logits);
    free(e->texts);
    free(e->logits);
    free(e->scratch);
    free(e->next_tokens);
    free(e->ends);
    scheduler_destroy(e->scheduler);
    forward_destroy(e->forward);
    model_destroy(&e->model);
    free(e);
}

bool engine_add(engine *e, const int32_t *prompt, int32_t num_prompt, int32_t max_new_tokens, tool_error *error) {
    for (int32_t i = 0; i < num_prompt; i++)
        if (prompt[i] < 0 || prompt[i] >= e->config.vocab_size)
            return tool_fail(error, "prompt %" PRId32 ": token %" PRId32 " is not in the vocabulary of %" PRId32,
                             e->num_texts + 1, prompt[i], e->config.vocab_size);
    text_state *texts = realloc(e->texts, ((size_t)e->num_texts + 1) * sizeof *texts);
    if (texts == NULL)
        return tool_fail(error, "out of memory");
    e->texts = texts;
    if (!scheduler_add(e->scheduler, prompt, num_prompt, max_new_tokens, error))
        return false;
    e->texts[e->num_texts] = (text_state){.generator = sample_seed(e->options.seed, (uint64_t)e->num_texts)};
    e->num_texts++;
    return true;
}

bool engine_finished(const engine *e) {
    return scheduler_num_unfinished(e->scheduler) == 0;
}

/* Remembers when the first token of a text came, and from which logits. */
static bool note_first(text_state *text, const float *logits, int32_t vocab_size, tool_error *error) {
    if (text->first_logits != NULL)
        return true;
    text->first_token_at = engine_now();
    text->first_logits = malloc((size_t)vocab_size * sizeof *logits);
    if (text->first_logits == NULL)
        return tool_fail(error, "out of memory");
    memcpy(text->first_logits, logits, (size_t)vocab_size * sizeof *logits);
    return true;
}

static bool sample(engine *e, const engine_step *step, tool_error *error) {
    int32_t vocab_size = e->config.vocab_size;
    for (int32_t i = 0; i < step->num_outputs; i++) {
        int32_t index = step->output_requests[i];
        text_state *text = &e->texts[index];
        const float *logits = e->logits + (size_t)i * (size_t)vocab_size;
        int32_t token = sample_token(&e->options.sampling, logits, vocab_size, &text->generator, e->scratch);
        if (token < 0)
            return tool_fail(error, "the model gives logits that are not finite for prompt %" PRId32, index + 1);
        if (!note_first(text, logits, vocab_size, error))
            return false;
        text->ended = model_config_ends(&e->config, token);
        e->next_tokens[i] = token;
        e->ends[i] = text->ended;
    }
    return true;
}

bool engine_run_step(engine *e, tool_error *error) {
    double start = engine_now();
    const engine_step *step;
    if (!scheduler_plan(e->scheduler, &step, error) || !forward_run(e->forward, step, e->logits, error) ||
        !sample(e, step, error) || !scheduler_commit(e->scheduler, e->next_tokens, e->ends, error))
        return false;
    double seconds = engine_now() - start;
    double decode_share = (double)step->num_decode / step->num_rows;
    e->stats.decode_seconds += seconds * decode_share;
    e->stats.prefill_seconds += seconds * (1 - decode_share);
    return true;
}

int32_t engine_num_texts(const engine *e) {
    return e->num_texts;
}

engine_text engine_get_text(const engine *e, int32_t index) {
    scheduler_request request = scheduler_get(e->scheduler, index);
    const text_state *text = &e->texts[index];
    return (engine_text){.tokens = request.tokens,
                         .num_prompt = request.num_prompt,
                         .num_tokens = request.num_tokens,
                         .finished = request.finished,
                         .ended = text->ended,
                         .first_token_at = text->first_token_at,
                         .first_logits = text->first_logits};
}

bool engine_get_stats(const engine *e, engine_stats *stats, tool_error *error) {
    *stats = e->stats;
    return scheduler_get_stats(e->scheduler, &stats->schedule, error);
}
