/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Continuous batching: requests join the batch as they arrive and leave it when they are done. Prompts that begin alike
 * share blocks; long ones are computed in chunks beside the sequences that decode; when the pool is full, who came last
 * goes, and is computed again later. A sequence has the same bits in any batch, so every request must end as it does
 * when it is served alone. The forward pass is in model.c.
 */
#include "model.h"
#include "setup.h"

#include <stdbool.h>
#include <string.h>

enum { MAX_TOKENS = MODEL_ROW_BLOCKS * MODEL_BLOCK_SIZE, NUM_REQUESTS = 8, NUM_BLOCKS = 12 };

typedef struct request {
    int32_t num_tokens, max_tokens, tokens[MAX_TOKENS];
    int32_t num_computed, num_new; /* tokens whose keys and values are in the pool; tokens of the step */
    pagedcl_seq seq;               /* 0: it waits, or is done */
} request;

typedef struct scheduler {
    pagedcl_blocks *blocks;
    request *running[MODEL_MAX_SEQS]; /* in the order of their admission */
    int num_running, num_done, num_mixed, num_cached, num_copied, num_preempted;
} scheduler;

static void stop(scheduler *s, request *r) {
    check(pagedcl_blocks_seq_free(s->blocks, r->seq));
    r->seq = 0;
}

/* Starts a request, unless there are too few blocks for what it has to compute. */
static bool admit(scheduler *s, request *r) {
    pagedcl_prompt prompt = PAGEDCL_PROMPT_INIT;
    prompt.tokens = r->tokens;
    prompt.num_tokens = r->num_tokens;
    int64_t num_cached;
    check(pagedcl_prefix_seq_create(s->blocks, &prompt, &r->seq, &num_cached));
    pagedcl_status status = pagedcl_blocks_fits(s->blocks, r->seq, r->num_tokens - num_cached);
    if (status == PAGEDCL_OUT_OF_BLOCKS) {
        stop(s, r);
        return false;
    }
    check(status);
    r->num_computed = (int32_t)num_cached;
    s->num_cached += r->num_computed;
    s->running[s->num_running++] = r;
    return true;
}

/* Blocks for the new tokens of request i of those that run. Who came last makes room, in the end itself: then false. */
static bool append(scheduler *s, int i, model_step *step) {
    const request *r = s->running[i];
    pagedcl_block_copy copy;
    size_t num_copies = 0;
    pagedcl_status status;
    while ((status = pagedcl_blocks_append(s->blocks, r->seq, r->num_new, &copy, &num_copies)) ==
           PAGEDCL_OUT_OF_BLOCKS) {
        s->num_preempted++;
        stop(s, s->running[--s->num_running]);
        if (i == s->num_running)
            return false;
    }
    check(status);
    step->num_copies += pagedcl_actions_of_copies(&copy, (int64_t)num_copies, step->copies + step->num_copies);
    return true;
}

/* A step. The last token of a request always decodes, whatever comes before it is prefill: its result gives the next
   token, whose bits must not depend on how the prompt was cut. */
static void run_step(scheduler *s, model *m) {
    model_step step = {0};
    for (int i = 0; i < s->num_running; i++) {
        request *r = s->running[i];
        int32_t left = r->num_tokens - 1 - r->num_computed;
        int path = left == 0 ? MODEL_DECODE : MODEL_PREFILL, b = step.num_seqs[path];
        int32_t *begin = &step.cu_seqlens_q[path][b], room = MODEL_MAX_CHUNK - *begin;
        r->num_new = left == 0 ? 1 : left < room ? left : room;
        if (!append(s, i, &step))
            break;
        check(pagedcl_blocks_table(s->blocks, r->seq, 0, step.block_table[path][b], MODEL_ROW_BLOCKS, NULL));
        memcpy(step.tokens[path] + *begin, r->tokens + r->num_computed, (size_t)r->num_new * sizeof *r->tokens);
        step.cache_seqlens[path][b] = path == MODEL_DECODE ? r->num_computed : r->num_computed + r->num_new;
        begin[1] = begin[0] + r->num_new;
        step.num_seqs[path]++;
    }
    model_forward(m, &step);
    s->num_mixed += step.num_seqs[MODEL_DECODE] > 0 && step.num_seqs[MODEL_PREFILL] > 0;
    s->num_copied += (int)step.num_copies;
    int num_left = 0, num_decoded = 0;
    for (int i = 0; i < s->num_running; i++) {
        request *r = s->running[i];
        check(pagedcl_prefix_record(s->blocks, r->seq, r->tokens + r->num_computed, r->num_new));
        if (r->num_computed == r->num_tokens - 1)
            r->tokens[r->num_tokens++] = step.next_tokens[num_decoded++];
        r->num_computed += r->num_new;
        if (r->num_tokens == r->max_tokens)
            stop(s, r);
        else
            s->running[num_left++] = r;
    }
    s->num_done += s->num_running - num_left;
    s->num_running = num_left;
}

/* Serves requests, of which one arrives every third step. */
static scheduler serve(model *m, request *requests, int num_requests) {
    scheduler s = {0};
    pagedcl_blocks_desc desc = PAGEDCL_BLOCKS_DESC_INIT;
    desc.num_blocks = NUM_BLOCKS;
    desc.block_size = MODEL_BLOCK_SIZE;
    desc.prefix_cache = 1;
    check(pagedcl_blocks_create(&desc, &s.blocks));
    for (int now = 0; s.num_done < num_requests; now++) {
        for (int i = 0; i < num_requests && i <= now / 3 && s.num_running < MODEL_MAX_SEQS; i++)
            if (requests[i].seq == 0 && requests[i].num_tokens < requests[i].max_tokens && !admit(&s, &requests[i]))
                break;
        run_step(&s, m);
    }
    pagedcl_blocks_destroy(s.blocks);
    return s;
}

int main(void) {
    pagedcl_device *device;
    check(pagedcl_device_open(NULL, NULL, &device));
    model *m = model_create(device, NUM_BLOCKS);
    request requests[NUM_REQUESTS], alone[NUM_REQUESTS];
    for (int i = 0; i < NUM_REQUESTS; i++) {
        requests[i] = (request){.num_tokens = 40 + 5 * (i % 3), .max_tokens = 70 + 4 * i};
        for (int32_t t = 0; t < requests[i].num_tokens; t++)
            requests[i].tokens[t] = t < 35 ? t : 100 * i + t; /* all begin with the same 35 tokens */
    }
    memcpy(alone, requests, sizeof alone);
    scheduler s = serve(m, requests, NUM_REQUESTS);
    printf("%d steps with prefill beside decode, %d tokens found in the cache, %d blocks copied, %d preemptions\n",
           s.num_mixed, s.num_cached, s.num_copied, s.num_preempted);
    bool right = s.num_mixed > 0 && s.num_cached > 0 && s.num_copied > 0 && s.num_preempted > 0;
    for (int i = 0; i < NUM_REQUESTS; i++) {
        serve(m, &alone[i], 1);
        right &= memcmp(requests[i].tokens, alone[i].tokens, sizeof alone[i].tokens) == 0;
    }
    printf("%s\n", right ? "each request ends as it does alone" : "WRONG");
    model_destroy(m);
    pagedcl_device_destroy(device);
    return !right;
}
