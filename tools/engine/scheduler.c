/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler.h"

#include <pagedcl/prefix.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    GROWTH_TOKENS = 16, /* blocks for so many more tokens of each running request stay free on admission */
    WAIT_TOKENS = 16,   /* a prefix under computation is waited for when it saves so many tokens */
};

typedef struct request {
    pagedcl_seq seq; /* 0: not running */
    int32_t *tokens; /* [max_tokens] */
    int32_t num_prompt;
    int32_t num_tokens;
    int32_t max_tokens;
    int32_t num_computed; /* tokens whose keys and values are in the pool */
    int32_t prefill_end;  /* the tokens there were on admission: up to here by prefill, then by decode */
    int32_t num_lost;     /* that were computed when it was preempted */
    bool finished;
} request;

struct scheduler {
    scheduler_options options;
    pagedcl_blocks *blocks;
    request *requests;
    int32_t num_requests;
    int32_t num_finished;
    int32_t *waiting; /* requests, the next one first */
    int32_t num_waiting;
    int32_t *running; /* requests, in the order of their admission */
    int32_t num_running;
    engine_step step;
    int64_t block_table_capacity;
    scheduler_stats stats;
};

static bool out_of_memory(tool_error *error) {
    return tool_fail(error, "out of memory");
}

/* Grows *array to `count` elements. */
static bool grow(int32_t **array, int64_t count) {
    if (count <= 0)
        return true;
    int32_t *grown = realloc(*array, (size_t)count * sizeof **array);
    if (grown == NULL)
        return false;
    *array = grown;
    return true;
}

scheduler *scheduler_create(const scheduler_options *options, tool_error *error) {
    scheduler *s = calloc(1, sizeof *s);
    if (s == NULL) {
        out_of_memory(error);
        return NULL;
    }
    s->options = *options;
    engine_step *step = &s->step;
    int64_t seqs = options->max_batch;
    int64_t rows = seqs + options->chunk_tokens;
    pagedcl_blocks_desc desc = PAGEDCL_BLOCKS_DESC_INIT;
    desc.num_blocks = options->num_blocks;
    desc.block_size = options->block_size;
    desc.prefix_cache = !options->without_prefix_cache;
    bool ok =
        (grow(&s->running, seqs) && grow(&step->tokens, rows) && grow(&step->positions, rows) &&
         grow(&step->requests, seqs) && grow(&step->cache_seqlens, seqs) && grow(&step->prefill_cu_seqlens, seqs + 1) &&
         grow(&step->copies, 2 * seqs) && grow(&step->output_rows, seqs) && grow(&step->output_requests, seqs)) ||
        out_of_memory(error);
    ok = ok && tool_try(error, pagedcl_blocks_create(&desc, &s->blocks), "block manager");
    if (ok)
        return s;
    scheduler_destroy(s);
    return NULL;
}

void scheduler_destroy(scheduler *s) {
    if (s == NULL)
        return;
    for (int32_t i = 0; i < s->num_requests; i++)
        free(s->requests[i].tokens);
    int32_t *arrays[] = {s->waiting,
                         s->running,
                         s->step.tokens,
                         s->step.positions,
                         s->step.requests,
                         s->step.cache_seqlens,
                         s->step.prefill_cu_seqlens,
                         s->step.block_table,
                         s->step.copies,
                         s->step.output_rows,
                         s->step.output_requests};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    free(s->requests);
    pagedcl_blocks_destroy(s->blocks);
    free(s);
}

static int64_t blocks_for(const scheduler *s, int64_t num_tokens) {
    return (num_tokens + s->options.block_size - 1) / s->options.block_size;
}

bool scheduler_add(scheduler *s, const int32_t *prompt, int32_t num_prompt, int32_t max_new_tokens, tool_error *error) {
    int64_t total = (int64_t)num_prompt + max_new_tokens;
    if (num_prompt < 1 || max_new_tokens < 1)
        return tool_fail(error, "prompt %" PRId32 " is empty or wants no token", s->num_requests + 1);
    if (total > s->options.max_tokens)
        return tool_fail(error,
                         "prompt %" PRId32 " and its new tokens are %" PRId64 "; the model takes at most %" PRId32,
                         s->num_requests + 1, total, s->options.max_tokens);
    /* The last token is generated and never computed. */
    if (blocks_for(s, total - 1) > s->options.num_blocks)
        return tool_fail(error,
                         "prompt %" PRId32 " and its new tokens need %" PRId64 " blocks of %" PRId32
                         " tokens; the pool has %" PRId32,
                         s->num_requests + 1, blocks_for(s, total - 1), s->options.block_size, s->options.num_blocks);
    request *requests = realloc(s->requests, ((size_t)s->num_requests + 1) * sizeof *requests);
    if (requests == NULL)
        return out_of_memory(error);
    s->requests = requests;
    int32_t *tokens = NULL;
    if (!grow(&s->waiting, (int64_t)s->num_requests + 1) || !grow(&tokens, total))
        return out_of_memory(error);
    memcpy(tokens, prompt, (size_t)num_prompt * sizeof *tokens);
    s->waiting[s->num_waiting++] = s->num_requests;
    s->requests[s->num_requests++] =
        (request){.tokens = tokens, .num_prompt = num_prompt, .num_tokens = num_prompt, .max_tokens = (int32_t)total};
    return true;
}

int32_t scheduler_num_unfinished(const scheduler *s) {
    return s->num_requests - s->num_finished;
}

scheduler_request scheduler_get(const scheduler *s, int32_t index) {
    const request *r = &s->requests[index];
    return (scheduler_request){
        .tokens = r->tokens, .num_prompt = r->num_prompt, .num_tokens = r->num_tokens, .finished = r->finished};
}

/* Takes blocks for num_tokens more tokens of the sequence. *enough is false when there are too few. */
static bool append(scheduler *s, pagedcl_seq seq, int64_t num_tokens, bool *enough, tool_error *error) {
    pagedcl_block_copy copy;
    size_t num_copies = 0;
    pagedcl_status status = pagedcl_blocks_append(s->blocks, seq, num_tokens, &copy, &num_copies);
    *enough = status == PAGEDCL_SUCCESS;
    if (status != PAGEDCL_OUT_OF_BLOCKS && !tool_try(error, status, "block manager"))
        return false;
    if (*enough && num_copies > 0) {
        int32_t *pair = s->step.copies + 2 * (int64_t)s->step.num_copies++;
        pair[0] = copy.src;
        pair[1] = copy.dst;
    }
    return true;
}

static bool release(scheduler *s, request *r, tool_error *error) {
    if (!tool_try(error, pagedcl_blocks_seq_free(s->blocks, r->seq), "block manager"))
        return false;
    r->seq = 0;
    return true;
}

/* The running request that was admitted last waits again, in front of the others. */
static bool preempt_last(scheduler *s, tool_error *error) {
    int32_t index = s->running[--s->num_running];
    request *r = &s->requests[index];
    memmove(s->waiting + 1, s->waiting, (size_t)s->num_waiting * sizeof *s->waiting);
    s->waiting[0] = index;
    s->num_waiting++;
    s->stats.preemptions++;
    r->num_lost = r->num_computed;
    r->num_computed = 0;
    return release(s, r, error);
}

/* A block for the next token of every request that decodes, the first admitted first. */
static bool grow_running(scheduler *s, tool_error *error) {
    for (int32_t i = 0; i < s->num_running; i++) {
        const request *r = &s->requests[s->running[i]];
        if (r->num_computed < r->prefill_end)
            continue; /* has its blocks since its admission */
        bool enough = false;
        while (i < s->num_running && !enough)
            if (!append(s, r->seq, 1, &enough, error) || (!enough && !preempt_last(s, error)))
                return false;
    }
    return true;
}

static int32_t common_prefix(const int32_t *a, const int32_t *b, int32_t limit) {
    int32_t length = 0;
    while (length < limit && a[length] == b[length])
        length++;
    return length;
}

static int32_t smaller(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/*
 * The running request with the longest computed prefix of r's tokens; r's last token does not count, its logits are
 * wanted. *coming is the longest such prefix that will have been computed when the present prefills are done.
 */
static const request *find_parent(const scheduler *s, const request *r, int32_t *length, int32_t *coming) {
    const request *parent = NULL;
    *length = *coming = 0;
    for (int32_t i = 0; i < s->num_running; i++) {
        const request *other = &s->requests[s->running[i]];
        int32_t known = other->num_computed > other->prefill_end ? other->num_computed : other->prefill_end;
        int32_t common = common_prefix(r->tokens, other->tokens, smaller(r->num_tokens - 1, known));
        int32_t computed = smaller(common, other->num_computed);
        if (common > *coming)
            *coming = common;
        if (computed > *length) {
            *length = computed;
            parent = other;
        }
    }
    return parent;
}

static pagedcl_prompt prompt_of(const request *r) {
    pagedcl_prompt prompt = PAGEDCL_PROMPT_INIT;
    prompt.tokens = r->tokens;
    prompt.num_tokens = r->num_tokens;
    return prompt;
}

/*
 * Makes the sequence of a request from the longest prefix there is: that of a running request, to the token, or that of
 * the prefix cache, which has the texts that ended too. *shared: its length.
 */
static bool make_sequence(scheduler *s, request *r, const request *parent, int64_t *shared, tool_error *error) {
    pagedcl_prompt prompt = prompt_of(r);
    int64_t num_cached = 0;
    pagedcl_status status = pagedcl_prefix_peek(s->blocks, &prompt, &num_cached);
    if (status == PAGEDCL_SUCCESS && parent != NULL && *shared > num_cached)
        status = pagedcl_blocks_share(s->blocks, parent->seq, *shared, &r->seq);
    else if (status == PAGEDCL_SUCCESS)
        status = pagedcl_prefix_seq_create(s->blocks, &prompt, &r->seq, shared);
    return tool_try(error, status, "block manager");
}

/* Takes blocks for the request's tokens behind the first `shared`. */
static bool take_blocks(scheduler *s, request *r, int64_t shared, bool *enough, tool_error *error) {
    pagedcl_blocks_stats stats = PAGEDCL_BLOCKS_STATS_INIT;
    int64_t needed;
    if (!tool_try(error, pagedcl_blocks_needed(s->blocks, r->seq, r->num_tokens - shared, &needed), "block manager") ||
        !tool_try(error, pagedcl_blocks_get_stats(s->blocks, &stats), "block manager"))
        return false;
    *enough = needed + s->num_running * blocks_for(s, GROWTH_TOKENS) <= stats.available;
    if (*enough && !append(s, r->seq, r->num_tokens - shared, enough, error))
        return false;
    return *enough || release(s, r, error);
}

/* The request was admitted; its first `shared` tokens need not be computed. */
static void count_admission(scheduler *s, request *r, int32_t shared) {
    int32_t kept = smaller(shared, r->num_lost); /* of what it had itself */
    r->num_computed = shared;
    r->prefill_end = r->num_tokens;
    s->stats.admitted_tokens += r->num_tokens - r->num_lost;
    s->stats.shared_tokens += shared - kept;
    s->stats.shared_blocks += (shared - kept) / s->options.block_size;
    s->stats.recomputed_tokens += r->num_lost - kept;
    r->num_lost = 0;
}

/* Starts waiting requests while there are blocks for them. */
static bool admit(scheduler *s, tool_error *error) {
    int32_t i = 0;
    while (i < s->num_waiting && s->num_running < s->options.max_batch) {
        int32_t index = s->waiting[i];
        request *r = &s->requests[index];
        int32_t computed, coming;
        const request *parent = find_parent(s, r, &computed, &coming);
        int64_t shared = computed;
        if (coming - computed >= WAIT_TOKENS) {
            i++;
            continue;
        }
        bool enough = false;
        if (!make_sequence(s, r, parent, &shared, error) || !take_blocks(s, r, shared, &enough, error))
            return false;
        if (!enough)
            break;
        count_admission(s, r, (int32_t)shared);
        s->num_waiting--;
        memmove(s->waiting + i, s->waiting + i + 1, (size_t)(s->num_waiting - i) * sizeof *s->waiting);
        s->running[s->num_running++] = index;
    }
    if (s->num_running > s->stats.peak_running)
        s->stats.peak_running = s->num_running;
    return true;
}

/* Adds the next num_rows tokens of the request to the step. */
static void add_rows(scheduler *s, int32_t index, int32_t num_rows) {
    engine_step *step = &s->step;
    const request *r = &s->requests[index];
    int32_t end = r->num_computed + num_rows;
    step->requests[step->num_decode + step->num_prefill] = index;
    for (int32_t position = r->num_computed; position < end; position++) {
        step->tokens[step->num_rows] = r->tokens[position];
        step->positions[step->num_rows] = position;
        step->num_rows++;
    }
    if (end == r->num_tokens) {
        step->output_rows[step->num_outputs] = step->num_rows - 1;
        step->output_requests[step->num_outputs] = index;
        step->num_outputs++;
    }
}

static void add_decode_rows(scheduler *s) {
    engine_step *step = &s->step;
    for (int32_t i = 0; i < s->num_running; i++) {
        const request *r = &s->requests[s->running[i]];
        if (r->num_computed < r->prefill_end)
            continue;
        step->cache_seqlens[step->num_decode] = r->num_computed;
        add_rows(s, s->running[i], 1);
        step->num_decode++;
    }
}

static void add_prefill_rows(scheduler *s) {
    engine_step *step = &s->step;
    int32_t left = s->options.chunk_tokens;
    step->prefill_cu_seqlens[0] = 0;
    for (int32_t i = 0; i < s->num_running && left > 0; i++) {
        const request *r = &s->requests[s->running[i]];
        int32_t num_rows = smaller(r->prefill_end - r->num_computed, left);
        if (num_rows <= 0)
            continue;
        step->cache_seqlens[step->num_decode + step->num_prefill] = r->num_computed + num_rows;
        add_rows(s, s->running[i], num_rows);
        step->num_prefill++;
        step->prefill_cu_seqlens[step->num_prefill] = step->num_rows - step->num_decode;
        left -= num_rows;
    }
}

static bool fill_block_table(scheduler *s, tool_error *error) {
    engine_step *step = &s->step;
    int32_t num_seqs = step->num_decode + step->num_prefill;
    step->block_table_stride = 0;
    for (int32_t i = 0; i < num_seqs; i++) {
        int64_t length;
        if (!tool_try(error, pagedcl_blocks_seq_length(s->blocks, s->requests[step->requests[i]].seq, &length),
                      "block manager"))
            return false;
        if (blocks_for(s, length) > step->block_table_stride)
            step->block_table_stride = blocks_for(s, length);
    }
    int64_t entries = num_seqs * step->block_table_stride;
    if (entries > s->block_table_capacity) {
        if (!grow(&step->block_table, entries))
            return out_of_memory(error);
        s->block_table_capacity = entries;
    }
    for (int32_t i = 0; i < num_seqs; i++)
        if (!tool_try(error,
                      pagedcl_blocks_table(s->blocks, s->requests[step->requests[i]].seq, 0,
                                           step->block_table + i * step->block_table_stride, step->block_table_stride,
                                           NULL),
                      "block manager"))
            return false;
    return true;
}

bool scheduler_plan(scheduler *s, const engine_step **planned, tool_error *error) {
    engine_step *step = &s->step;
    step->num_rows = step->num_decode = step->num_prefill = step->num_copies = step->num_outputs = 0;
    int64_t preemptions = s->stats.preemptions;
    if (!grow_running(s, error))
        return false;
    /* Who was just preempted would take the blocks back that the others need. */
    if (s->stats.preemptions == preemptions && !admit(s, error))
        return false;
    add_decode_rows(s);
    add_prefill_rows(s);
    *planned = step;
    return fill_block_table(s, error);
}

static bool finish(scheduler *s, int32_t index, tool_error *error) {
    s->requests[index].finished = true;
    s->num_finished++;
    int32_t kept = 0;
    for (int32_t i = 0; i < s->num_running; i++)
        if (s->running[i] != index)
            s->running[kept++] = s->running[i];
    s->num_running = kept;
    return release(s, &s->requests[index], error);
}

/* The first num_computed tokens of the request are computed: from now on they are found. */
static bool record(scheduler *s, request *r, int32_t num_computed, tool_error *error) {
    int32_t before = r->num_computed;
    r->num_computed = num_computed;
    return tool_try(error, pagedcl_prefix_record(s->blocks, r->seq, r->tokens + before, num_computed - before),
                    "block manager");
}

bool scheduler_commit(scheduler *s, const int32_t *next_tokens, const bool *ends, tool_error *error) {
    const engine_step *step = &s->step;
    for (int32_t i = 0; i < step->num_decode + step->num_prefill; i++) {
        /* A token that was decoded stands behind cache_seqlens; those that were prefilled are in it. */
        int32_t num_computed = step->cache_seqlens[i] + (i < step->num_decode ? 1 : 0);
        if (!record(s, &s->requests[step->requests[i]], num_computed, error))
            return false;
    }
    for (int32_t i = 0; i < step->num_outputs; i++) {
        int32_t index = step->output_requests[i];
        request *r = &s->requests[index];
        r->tokens[r->num_tokens++] = next_tokens[i];
        if ((ends[i] || r->num_tokens == r->max_tokens) && !finish(s, index, error))
            return false;
    }
    s->stats.steps++;
    s->stats.decode_tokens += step->num_decode;
    s->stats.prefill_tokens += step->num_rows - step->num_decode;
    return true;
}

bool scheduler_get_stats(const scheduler *s, scheduler_stats *stats, tool_error *error) {
    *stats = s->stats;
    stats->blocks = (pagedcl_blocks_stats)PAGEDCL_BLOCKS_STATS_INIT;
    return tool_try(error, pagedcl_blocks_get_stats(s->blocks, &stats->blocks), "block manager");
}
