/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request trace: JSON lines, one request each, in one of two layouts.
 *
 * Ours:   {"arrival": 0.5, "prompt": 100, "output": 20, "prefix_id": "chat", "prefix_length": 64}
 *         arrival in seconds; prompt is a number of tokens, or the list of them. Prompts of one prefix_id (text or a
 *         whole number) have their first prefix_length tokens in common; both keys may be left out.
 * Public: {"timestamp": 500, "input_length": 1000, "output_length": 20, "hash_ids": [1, 2]}
 *         a hash id stands for a block of tokens and all before them, so prompts share a prefix where their leading ids
 *         are equal. Other keys are passed over.
 *
 * Ids mean the same within one file only; tokens mean the same everywhere.
 */
#ifndef SIMULATE_TRACE_H
#define SIMULATE_TRACE_H

#include "file_error.h"

#include <jansson.h>
#include <stdint.h>

/* The same token up to position `end`: tokens of a list, or a negative number that stands for an id. */
typedef struct trace_run {
    int32_t token;
    int32_t end;
} trace_run;

typedef struct trace_request {
    double arrival; /* seconds */
    int64_t first_run;
    int32_t num_runs;
    int32_t own_token; /* behind the runs: a token that no other request has */
    int32_t num_prompt;
    int32_t num_output;
    int32_t file; /* where it was read, for messages */
    int32_t line;
} trace_request;

typedef struct trace {
    trace_request *requests;
    int64_t num_requests;
    int64_t request_capacity;
    trace_run *runs;
    int64_t num_runs;
    int64_t run_capacity;
    json_t *ids; /* the token of each id */
    int32_t num_own_tokens;
    int32_t num_files;
} trace;

typedef struct trace_format {
    int32_t hash_tokens;   /* tokens that a hash id of the public layout stands for */
    double timestamp_unit; /* seconds that its timestamps count */
} trace_format;

/* Adds the requests of a file; `t` starts as {0}. A file that holds no request is refused. */
bool trace_read(trace *t, const char *path, const trace_format *format, const file_error *error);

/* Brings the requests in the order of their arrival, which counts from the first one. */
void trace_sort(trace *t);

/* The tokens of positions first .. first + count - 1, also of the request's output. */
void trace_tokens(const trace *t, const trace_request *request, int32_t first, int32_t count, int32_t *tokens);

void trace_free(trace *t);

#endif
