/* SPDX-License-Identifier: Apache-2.0 */
/* A small runner of Qwen3-architecture models: many prompts, decoded as one continuous batch. */
#ifndef ENGINE_H
#define ENGINE_H

#include "config.h"
#include "progress.h"
#include "sample.h"
#include "scheduler.h"

#include <pagedcl/cache.h>

typedef struct engine engine;

typedef struct engine_options {
    int32_t num_blocks;
    int32_t block_size;
    pagedcl_dtype kv_dtype;
    int32_t max_batch;         /* prompts that run at once, at most */
    int32_t chunk_tokens;      /* prompt tokens that one step computes, at most */
    bool without_prefix_cache; /* share with texts under way alone, not with those that ended */
    sampling sampling;
    uint64_t seed; /* the tokens of a prompt depend on it and on the prompt's number alone */
    engine_progress progress;
} engine_options;

/* A prompt and what it has become so far. The pointers hold until the next call. */
typedef struct engine_text {
    const int32_t *tokens; /* the prompt, then the new tokens */
    int32_t num_prompt;
    int32_t num_tokens;
    bool finished;
    bool ended;                /* by an end token, which is the last of `tokens` */
    double first_token_at;     /* engine_now() when the first new token was there */
    const float *first_logits; /* [vocab_size], those of the first new token; NULL before */
} engine_text;

typedef struct engine_stats {
    int64_t num_parameters;
    double load_seconds;    /* weights from the files to the device */
    double prepare_seconds; /* pool, operators and kernels, up to a first token */
    double prefill_seconds; /* a step that does both is divided by its rows */
    double decode_seconds;
    scheduler_stats schedule;
} engine_stats;

/* Monotonic seconds. */
double engine_now(void);

/* The pool that an engine of these options makes. */
pagedcl_cache_desc engine_pool(const model_config *config, const engine_options *options);

/* Makes an engine without a model, which takes prompts. */
engine *engine_create(const model_config *config, const engine_options *options, tool_error *error);
void engine_destroy(engine *e); /* NULL is allowed */

/* Loads the model of the folder that the config was read from, once. The device must outlive the engine. */
bool engine_load(engine *e, pagedcl_device *device, const char *folder, tool_error *error);

/* Adds a prompt; they count from 0. Refused: a token outside the vocabulary, a prompt that can never fit. */
bool engine_add(engine *e, const int32_t *prompt, int32_t num_prompt, int32_t max_new_tokens, tool_error *error);

bool engine_finished(const engine *e);

/* Computes one step; some texts have one token more then. Only with a model, and while not finished. */
bool engine_run_step(engine *e, tool_error *error);

int32_t engine_num_texts(const engine *e);
engine_text engine_get_text(const engine *e, int32_t index);
bool engine_get_stats(const engine *e, engine_stats *stats, tool_error *error);

#endif
