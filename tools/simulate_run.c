/* SPDX-License-Identifier: Apache-2.0 */
#include "simulate_run.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS_PER_PROGRESS = 256 };

#define TRY(call)                           \
    do {                                    \
        pagedcl_status try_status = (call); \
        if (try_status != PAGEDCL_SUCCESS)  \
            return try_status;              \
    } while (0)

/* A request that was admitted. */
typedef struct job {
    const trace_request *request;
    pagedcl_seq seq;
    int32_t num_tokens;   /* prompt and generated ones */
    int32_t num_computed; /* tokens whose keys and values are in the pool */
    int32_t prefill_end;  /* the tokens there were on admission: up to here by prefill, then by decode */
    int32_t num_rows;     /* tokens that this step computes */
    int32_t length;       /* of its sequence: tokens that have blocks */
    bool swapped;
} job;

typedef struct simulation {
    const trace *t;
    const simulate_options *options;
    pagedcl_blocks *blocks;
    job *running; /* [max_batch], in the order of admission */
    int32_t num_running;
    job *preempted; /* [max_batch], the next one last; they come before all that were never admitted */
    int32_t num_preempted;
    pagedcl_seq *candidates;   /* [max_batch] */
    pagedcl_block_swap *swaps; /* [num_swaps], as many as the longest request has blocks */
    int64_t num_swaps;
    int64_t swapped_before; /* of result->swapped_blocks, those whose time has passed */
    int32_t *tokens;        /* [of the longest request] */
    int64_t next;           /* the first request that was never admitted */
    int64_t num_finished;
    bool refused; /* the next request finds no room until another one ends */
    double now;
    double used_time;   /* blocks in use, times seconds */
    double unused_time; /* slots of these without a token, times seconds */
    double first_token_sum;
    int64_t prompt_tokens;
    int64_t hit_tokens;
    simulate_result *result;
} simulation;

static int32_t smaller(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* The last token is generated and never computed. A request without output ends like one with a single token. */
static int32_t tokens_computed(const trace_request *r) {
    return r->num_prompt + (r->num_output > 1 ? r->num_output - 1 : 0);
}

int64_t simulate_blocks_needed(const trace_request *request, int32_t block_size) {
    return ((int64_t)tokens_computed(request) + block_size - 1) / block_size;
}

const trace_request *simulate_largest(const trace *t) {
    const trace_request *largest = t->requests;
    for (int64_t i = 1; i < t->num_requests; i++)
        if (tokens_computed(&t->requests[i]) > tokens_computed(largest))
            largest = &t->requests[i];
    return largest;
}

static void remove_running(simulation *s, int32_t index) {
    s->num_running--;
    memmove(s->running + index, s->running + index + 1, (size_t)(s->num_running - index) * sizeof *s->running);
}

/* Takes the blocks from the job that the manager proposes; *index is whose place in `running` it had. */
static pagedcl_status preempt(simulation *s, int32_t *index) {
    for (int32_t i = 0; i < s->num_running; i++)
        s->candidates[i] = s->running[i].seq;
    pagedcl_victim victim = PAGEDCL_VICTIM_INIT;
    TRY(pagedcl_blocks_victim(s->blocks, PAGEDCL_VICTIM_LAST_IN, s->candidates, s->num_running, &victim));
    *index = 0;
    while (s->candidates[*index] != victim.seq)
        ++*index;
    job *j = &s->running[*index];
    int64_t moved = 0;
    j->swapped = s->options->swap && victim.can_swap;
    if (j->swapped)
        TRY(pagedcl_blocks_swap_out(s->blocks, victim.seq, 0, s->swaps, s->num_swaps, &moved));
    else
        TRY(pagedcl_blocks_seq_free(s->blocks, victim.seq));
    s->result->swapped_blocks += moved;
    s->preempted[s->num_preempted++] = *j;
    remove_running(s, *index);
    s->result->preemptions++;
    s->refused = true; /* it would take the blocks back that the others need */
    return PAGEDCL_SUCCESS;
}

static pagedcl_status append(simulation *s, pagedcl_seq seq, int32_t num_tokens) {
    pagedcl_block_copy copy; /* never one: only whole blocks are shared */
    size_t num_copies = 0;
    return pagedcl_blocks_append(s->blocks, seq, num_tokens, &copy, &num_copies);
}

/* A slot for the next token of every job that decodes, the first admitted first. */
static pagedcl_status grow_running(simulation *s) {
    for (int32_t i = 0; i < s->num_running; i++) {
        if (s->running[i].length >= s->running[i].num_tokens)
            continue; /* has its blocks since it was admitted or swapped in */
        for (;;) {
            pagedcl_status status = append(s, s->running[i].seq, 1);
            if (status == PAGEDCL_SUCCESS) {
                s->running[i].length++;
                break;
            }
            int32_t victim;
            if (status != PAGEDCL_OUT_OF_BLOCKS)
                return status;
            TRY(preempt(s, &victim));
            bool itself = victim == i;
            i -= victim <= i;
            if (itself)
                break;
        }
    }
    return PAGEDCL_SUCCESS;
}

/* Admits the job, or finds no room for it. */
static pagedcl_status admit_job(simulation *s, job *j, bool *admitted) {
    trace_tokens(s->t, j->request, 0, j->num_tokens, s->tokens);
    pagedcl_prompt prompt = PAGEDCL_PROMPT_INIT;
    prompt.tokens = s->tokens;
    prompt.num_tokens = j->num_tokens;
    prompt.min_partial = s->options->block_size;
    int64_t num_cached;
    TRY(pagedcl_prefix_seq_create(s->blocks, &prompt, &j->seq, &num_cached));
    int32_t num_missing = j->num_tokens - (int32_t)num_cached;
    pagedcl_status status = pagedcl_blocks_fits(s->blocks, j->seq, num_missing);
    *admitted = status == PAGEDCL_SUCCESS;
    if (status == PAGEDCL_OUT_OF_BLOCKS && s->num_running > 0)
        return pagedcl_blocks_seq_free(s->blocks, j->seq);
    TRY(status);
    TRY(append(s, j->seq, num_missing));

    if (j->num_computed > num_cached)
        s->result->recomputed_tokens += j->num_computed - num_cached;
    j->num_computed = (int32_t)num_cached;
    j->length = j->prefill_end = j->num_tokens;
    s->running[s->num_running++] = *j;
    return PAGEDCL_SUCCESS;
}

/* Swaps the job in when there are blocks for it and its next token, or finds no room for it. */
static pagedcl_status swap_in_job(simulation *s, job *j, bool *admitted) {
    pagedcl_blocks_stats stats = PAGEDCL_BLOCKS_STATS_INIT;
    TRY(pagedcl_blocks_get_stats(s->blocks, &stats));
    int64_t needed = ((int64_t)j->num_tokens + s->options->block_size - 1) / s->options->block_size;
    *admitted = needed + s->options->watermark <= stats.available;
    if (!*admitted)
        return PAGEDCL_SUCCESS;
    int64_t moved = 0;
    TRY(pagedcl_blocks_swap_in(s->blocks, j->seq, 0, s->swaps, s->num_swaps, &moved));
    s->result->swapped_blocks += moved;
    j->swapped = false;
    TRY(append(s, j->seq, j->num_tokens - j->length));
    j->length = j->num_tokens;
    s->running[s->num_running++] = *j;
    return PAGEDCL_SUCCESS;
}

static pagedcl_status admit(simulation *s) {
    while (s->num_running < s->options->max_batch && !(s->refused && s->num_running > 0)) {
        bool admitted;
        if (s->num_preempted > 0) {
            job *j = &s->preempted[s->num_preempted - 1];
            TRY((j->swapped ? swap_in_job : admit_job)(s, j, &admitted));
            s->num_preempted -= admitted;
        } else if (s->next < s->t->num_requests && s->t->requests[s->next].arrival <= s->now) {
            const trace_request *request = &s->t->requests[s->next];
            job j = {.request = request, .num_tokens = request->num_prompt};
            TRY(admit_job(s, &j, &admitted));
            s->next += admitted;
            s->hit_tokens += admitted ? j.num_computed : 0;
            s->prompt_tokens += admitted ? request->num_prompt : 0;
        } else {
            break;
        }
        s->refused = !admitted;
    }
    return PAGEDCL_SUCCESS;
}

/* Decides the rows of the step, and lets its time pass. */
static pagedcl_status pass_time(simulation *s) {
    int32_t chunk_left = s->options->chunk;
    int32_t num_decode = 0;
    int64_t num_unused = 0;
    for (int32_t i = 0; i < s->num_running; i++) {
        job *j = &s->running[i];
        bool decodes = j->num_computed >= j->prefill_end;
        j->num_rows = decodes ? 1 : smaller(j->prefill_end - j->num_computed, chunk_left);
        num_decode += decodes;
        chunk_left -= decodes ? 0 : j->num_rows;
        int32_t behind = j->num_tokens % s->options->block_size;
        num_unused += behind > 0 ? s->options->block_size - behind : 0;
    }
    pagedcl_blocks_stats stats = PAGEDCL_BLOCKS_STATS_INIT;
    TRY(pagedcl_blocks_get_stats(s->blocks, &stats));
    double seconds = s->options->step_seconds + num_decode * s->options->decode_seconds +
                     (s->options->chunk - chunk_left) * s->options->prefill_seconds +
                     (double)(s->result->swapped_blocks - s->swapped_before) * s->options->swap_seconds;
    s->swapped_before = s->result->swapped_blocks;
    s->now += seconds;
    s->used_time += (double)stats.used * seconds;
    s->unused_time += (double)num_unused * seconds;
    s->result->steps++;
    return PAGEDCL_SUCCESS;
}

/* The rows were computed: they can be found, and give tokens. */
static pagedcl_status finish_step(simulation *s) {
    for (int32_t i = 0; i < s->num_running; i++) {
        job *j = &s->running[i];
        const trace_request *request = j->request;
        trace_tokens(s->t, request, j->num_computed, j->num_rows, s->tokens);
        TRY(pagedcl_prefix_record(s->blocks, j->seq, s->tokens, j->num_rows));
        j->num_computed += j->num_rows;
        if (j->num_computed < j->num_tokens)
            continue;
        if (j->num_tokens == request->num_prompt)
            s->first_token_sum += s->now - request->arrival;
        j->num_tokens++;
        if (j->num_computed < tokens_computed(request))
            continue;
        TRY(pagedcl_blocks_seq_free(s->blocks, j->seq));
        remove_running(s, i--);
        s->num_finished++;
        s->refused = false;
    }
    return PAGEDCL_SUCCESS;
}

static pagedcl_status run_all(simulation *s, simulate_progress progress, void *user) {
    while (s->num_finished < s->t->num_requests) {
        TRY(grow_running(s));
        TRY(admit(s));
        if (s->num_running == 0) { /* nobody waits: whoever has the pool alone finds room */
            s->now = s->t->requests[s->next].arrival;
            continue;
        }
        TRY(pass_time(s));
        TRY(finish_step(s));
        if (progress && s->result->steps % STEPS_PER_PROGRESS == 0)
            progress(user, s->result->num_blocks, s->num_finished, s->t->num_requests);
    }
    return PAGEDCL_SUCCESS;
}

static double ratio(double part, double whole) {
    return whole > 0 ? part / whole : 0;
}

static pagedcl_status fill_result(simulation *s) {
    simulate_result *result = s->result;
    pagedcl_blocks_stats stats = PAGEDCL_BLOCKS_STATS_INIT;
    TRY(pagedcl_blocks_get_stats(s->blocks, &stats));
    double total = (double)stats.total;
    result->seconds = s->now;
    result->hit_rate = ratio((double)s->hit_tokens, (double)s->prompt_tokens);
    result->peak_occupancy = (double)stats.peak_used / total;
    result->mean_occupancy = ratio(s->used_time, s->now * total);
    result->fragmentation = ratio(s->unused_time, s->used_time * s->options->block_size);
    result->mean_first_token = s->first_token_sum / (double)s->t->num_requests;
    return PAGEDCL_SUCCESS;
}

pagedcl_status simulate_run(const trace *t, const simulate_options *options, int32_t num_blocks,
                            simulate_progress progress, void *user, simulate_result *result) {
    *result = (simulate_result){.num_blocks = num_blocks};
    pagedcl_blocks_desc desc = PAGEDCL_BLOCKS_DESC_INIT;
    desc.num_blocks = num_blocks;
    desc.block_size = options->block_size;
    desc.prefix_cache = 1;
    desc.watermark = options->watermark;
    if (options->swap)
        desc.num_host_blocks = options->host_blocks > 0 ? options->host_blocks : num_blocks;
    simulation s = {.t = t, .options = options, .result = result};
    TRY(pagedcl_blocks_create(&desc, &s.blocks));

    int32_t longest = tokens_computed(simulate_largest(t));
    pagedcl_status status = pagedcl_blocks_fits(s.blocks, 0, longest);
    if (status == PAGEDCL_SUCCESS) {
        size_t batch = (size_t)options->max_batch;
        s.running = calloc(batch, sizeof *s.running);
        s.preempted = calloc(batch, sizeof *s.preempted);
        s.candidates = calloc(batch, sizeof *s.candidates);
        s.tokens = calloc((size_t)longest, sizeof *s.tokens);
        s.num_swaps = simulate_blocks_needed(simulate_largest(t), options->block_size);
        s.swaps = calloc((size_t)s.num_swaps, sizeof *s.swaps);
        bool made = s.running && s.preempted && s.candidates && s.tokens && s.swaps;
        status = made ? run_all(&s, progress, user) : PAGEDCL_OUT_OF_MEMORY;
        if (status == PAGEDCL_SUCCESS)
            status = fill_result(&s);
    } else if (status == PAGEDCL_NEVER_FITS) {
        result->status = status;
        status = PAGEDCL_SUCCESS;
    }
    free(s.running);
    free(s.preempted);
    free(s.candidates);
    free(s.tokens);
    free(s.swaps);
    pagedcl_blocks_destroy(s.blocks);
    return status;
}
