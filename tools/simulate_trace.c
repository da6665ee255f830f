/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L

#include "simulate_trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What a hostile file can cost is bounded: some hundred bytes an id, eight a run, and the parsed line. */
enum {
    MAX_LINE = 8 << 20, /* bytes */
    MAX_LENGTH = 1 << 24,
    MAX_REQUESTS = 1 << 22,
    MAX_RUNS = 1 << 26,
    MAX_IDS = 1 << 22,
    MAX_ID_TEXT = 200,
};
static const double MAX_SECONDS = 1e12;

typedef struct reader {
    trace *t;
    const trace_format *format;
    const file_error *error;
    FILE *file;
    char *text; /* [MAX_LINE] */
    size_t length;
    int32_t line;
} reader;

__attribute__((format(printf, 2, 3))) static bool line_fail(const reader *r, const char *format, ...) {
    char message[400];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return file_fail(r->error, "line %" PRId32 ": %s", r->line, message);
}

/* Makes room for one more element; `limit` is the most there may be. */
static bool make_room(void **array, int64_t *capacity, int64_t count, size_t size, int64_t limit) {
    if (count < *capacity)
        return true;
    int64_t wanted = *capacity > 0 ? 2 * *capacity : 64;
    if (wanted > limit)
        wanted = limit;
    void *grown = count < limit ? realloc(*array, (size_t)wanted * size) : NULL;
    if (!grown)
        return false;
    *array = grown;
    *capacity = wanted;
    return true;
}

/* Adds a run to the request that is read. */
static bool add_run(reader *r, trace_request *request, int32_t token, int32_t end) {
    trace *t = r->t;
    void *runs = t->runs;
    if (!make_room(&runs, &t->run_capacity, t->num_runs, sizeof *t->runs, MAX_RUNS))
        return line_fail(r, "the trace holds too many tokens and ids for the memory, or more than %d", MAX_RUNS);
    t->runs = runs;
    t->runs[t->num_runs++] = (trace_run){.token = token, .end = end};
    request->num_runs++;
    return true;
}

static int32_t new_token(trace *t) {
    return -1 - t->num_own_tokens++;
}

/* The token that stands for an id, whose text is unique in the file. */
static bool id_token(reader *r, const char *id, int32_t *token) {
    trace *t = r->t;
    char key[MAX_ID_TEXT + 32];
    snprintf(key, sizeof key, "%" PRId32 " %s", t->num_files, id);
    const json_t *known = json_object_get(t->ids, key);
    if (known) {
        *token = (int32_t)json_integer_value(known);
        return true;
    }
    if (json_object_size(t->ids) >= MAX_IDS)
        return line_fail(r, "the trace holds more than %d different ids", MAX_IDS);
    *token = new_token(t);
    return json_object_set_new(t->ids, key, json_integer(*token)) == 0 || line_fail(r, "out of memory");
}

/* Whether a value is a whole number from min to max, which then goes to *number. */
static bool to_count(const json_t *value, int64_t min, int64_t max, int32_t *number) {
    if (!json_is_integer(value) || json_integer_value(value) < min || json_integer_value(value) > max)
        return false;
    *number = (int32_t)json_integer_value(value);
    return true;
}

static bool get_count(const reader *r, const json_t *object, const char *key, int64_t min, int64_t max,
                      int32_t *number) {
    const json_t *value = json_object_get(object, key);
    if (!value)
        return line_fail(r, "\"%s\" is missing", key);
    return to_count(value, min, max, number) ||
           line_fail(r, "\"%s\" must be a whole number from %" PRId64 " to %" PRId64, key, min, max);
}

static bool get_arrival(const reader *r, const json_t *object, const char *key, double unit, double *seconds) {
    const json_t *value = json_object_get(object, key);
    if (!value)
        return line_fail(r, "\"%s\" is missing", key);
    *seconds = json_number_value(value) * unit;
    return (json_is_number(value) && *seconds >= 0 && *seconds <= MAX_SECONDS) ||
           line_fail(r, "\"%s\" must be a time of at most %g seconds, 0 or more", key, MAX_SECONDS);
}

static bool get_token_list(reader *r, const json_t *list, trace_request *request) {
    size_t count = json_array_size(list);
    if (count < 1 || count > MAX_LENGTH)
        return line_fail(r, "\"prompt\" must hold from 1 to %d tokens", MAX_LENGTH);
    for (size_t i = 0; i < count; i++) {
        int32_t token;
        if (!to_count(json_array_get(list, i), 0, INT32_MAX, &token))
            return line_fail(r, "\"prompt\" holds something else than tokens from 0 to 2^31 - 1");
        if (!add_run(r, request, token, (int32_t)i + 1))
            return false;
    }
    request->num_prompt = (int32_t)count;
    return true;
}

/* A prompt that is given by its length, and the prefix that it shares. */
static bool get_prompt_length(reader *r, const json_t *object, trace_request *request) {
    if (!get_count(r, object, "prompt", 1, MAX_LENGTH, &request->num_prompt))
        return false;
    const json_t *id = json_object_get(object, "prefix_id");
    if (!id)
        return !json_object_get(object, "prefix_length") || line_fail(r, "\"prefix_length\" needs a \"prefix_id\"");
    int32_t length, token;
    if (!get_count(r, object, "prefix_length", 0, request->num_prompt, &length))
        return false;
    char text[MAX_ID_TEXT + 8];
    if (json_is_integer(id))
        snprintf(text, sizeof text, "number %" JSON_INTEGER_FORMAT, json_integer_value(id));
    else if (json_is_string(id) && json_string_length(id) <= MAX_ID_TEXT)
        snprintf(text, sizeof text, "text %s", json_string_value(id));
    else
        return line_fail(r, "\"prefix_id\" must be a whole number, or a text of at most %d bytes", MAX_ID_TEXT);
    return length == 0 || (id_token(r, text, &token) && add_run(r, request, token, length));
}

static bool read_own(reader *r, json_t *object, trace_request *request) {
    static const char *const keys[] = {"arrival", "prompt", "output", "prefix_id", "prefix_length"};
    const char *key;
    const json_t *value;
    json_object_foreach(object, key, value) {
        size_t i = 0;
        while (i < sizeof keys / sizeof keys[0] && strcmp(key, keys[i]) != 0)
            i++;
        if (i == sizeof keys / sizeof keys[0])
            return line_fail(r, "\"%.64s\" is not known, and there is no \"timestamp\"", key);
    }
    if (!get_arrival(r, object, "arrival", 1, &request->arrival) ||
        !get_count(r, object, "output", 0, MAX_LENGTH, &request->num_output))
        return false;
    const json_t *prompt = json_object_get(object, "prompt");
    if (!json_is_array(prompt))
        return get_prompt_length(r, object, request);
    if (json_object_get(object, "prefix_id") || json_object_get(object, "prefix_length"))
        return line_fail(r, "a \"prompt\" of tokens needs no \"prefix_id\" and no \"prefix_length\"");
    return get_token_list(r, prompt, request);
}

static bool read_public(reader *r, const json_t *object, trace_request *request) {
    if (!get_arrival(r, object, "timestamp", r->format->timestamp_unit, &request->arrival) ||
        !get_count(r, object, "input_length", 1, MAX_LENGTH, &request->num_prompt) ||
        !get_count(r, object, "output_length", 0, MAX_LENGTH, &request->num_output))
        return false;
    const json_t *ids = json_object_get(object, "hash_ids");
    if (!ids)
        return true;
    if (!json_is_array(ids))
        return line_fail(r, "\"hash_ids\" must be a list");
    int64_t unit = r->format->hash_tokens;
    int64_t count = (int64_t)json_array_size(ids);
    /* Some traces have no id for the rest behind the last whole block. */
    if (count < request->num_prompt / unit || count > (request->num_prompt + unit - 1) / unit)
        return line_fail(r,
                         "\"hash_ids\" holds %" PRId64 " ids; of %" PRId64 " tokens each (--hash-block) they do not "
                         "make %" PRId32 " tokens",
                         count, unit, request->num_prompt);
    for (int64_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(ids, (size_t)i);
        if (!json_is_integer(id))
            return line_fail(r, "\"hash_ids\" holds something else than whole numbers");
        char text[32];
        snprintf(text, sizeof text, "hash %" JSON_INTEGER_FORMAT, json_integer_value(id));
        int64_t end = (i + 1) * unit;
        int32_t token;
        if (!id_token(r, text, &token) ||
            !add_run(r, request, token, end < request->num_prompt ? (int32_t)end : request->num_prompt))
            return false;
    }
    return true;
}

static bool read_object(reader *r, json_t *object) {
    if (!json_is_object(object))
        return line_fail(r, "is no JSON object");
    trace *t = r->t;
    void *requests = t->requests;
    if (!make_room(&requests, &t->request_capacity, t->num_requests, sizeof *t->requests, MAX_REQUESTS))
        return line_fail(r, "the trace holds too many requests for the memory, or more than %d", MAX_REQUESTS);
    t->requests = requests;
    trace_request request = {
        .first_run = t->num_runs, .own_token = new_token(t), .file = t->num_files, .line = r->line};
    bool is_public = json_object_get(object, "timestamp") != NULL;
    if (!(is_public ? read_public(r, object, &request) : read_own(r, object, &request)))
        return false;
    t->requests[t->num_requests++] = request;
    return true;
}

static bool read_line(reader *r) {
    if (r->length == strspn(r->text, " \t\r"))
        return true;
    json_error_t error;
    json_t *object = json_loadb(r->text, r->length, JSON_REJECT_DUPLICATES, &error);
    if (!object)
        return line_fail(r, "is no JSON: %s", error.text);
    bool ok = read_object(r, object);
    json_decref(object);
    return ok;
}

static bool read_lines(reader *r) {
    for (int c = 0; c != EOF;) {
        r->length = 0;
        if (r->line == INT32_MAX)
            return line_fail(r, "is one too many");
        r->line++;
        while ((c = getc(r->file)) != EOF && c != '\n') {
            if (r->length == MAX_LINE)
                return line_fail(r, "is longer than %d bytes", MAX_LINE);
            r->text[r->length++] = (char)c;
        }
        r->text[r->length] = '\0';
        if (ferror(r->file))
            return file_fail(r->error, "cannot be read: %s", strerror(errno));
        if (!read_line(r))
            return false;
    }
    return true;
}

/* A pipe will do, but not a device: some never end. */
static FILE *open_file(const char *path, const file_error *error) {
    struct stat status;
    FILE *file = fopen(path, "r");
    if (!file || fstat(fileno(file), &status) != 0)
        file_fail(error, "%s", strerror(errno));
    else if (!S_ISREG(status.st_mode) && !S_ISFIFO(status.st_mode))
        file_fail(error, "is no file of text");
    else
        return file;
    if (file)
        fclose(file);
    return NULL;
}

bool trace_read(trace *t, const char *path, const trace_format *format, const file_error *error) {
    reader r = {.t = t, .format = format, .error = error, .file = open_file(path, error)};
    if (!r.file)
        return false;
    int64_t before = t->num_requests;
    r.text = malloc(MAX_LINE + 1);
    if (!t->ids)
        t->ids = json_object();
    bool ok = (r.text && t->ids) || file_fail(error, "out of memory");
    ok = ok && read_lines(&r);
    if (ok && t->num_requests == before)
        ok = file_fail(error, "holds no request");
    t->num_files++;
    free(r.text);
    fclose(r.file);
    return ok;
}

static int compare_arrivals(const void *a, const void *b) {
    const trace_request *left = a, *right = b;
    if (left->arrival != right->arrival)
        return left->arrival < right->arrival ? -1 : 1;
    if (left->file != right->file)
        return left->file < right->file ? -1 : 1;
    return (left->line > right->line) - (left->line < right->line);
}

void trace_sort(trace *t) {
    if (t->num_requests == 0)
        return;
    qsort(t->requests, (size_t)t->num_requests, sizeof *t->requests, compare_arrivals);
    double start = t->requests[0].arrival;
    for (int64_t i = 0; i < t->num_requests; i++)
        t->requests[i].arrival -= start;
}

void trace_tokens(const trace *t, const trace_request *request, int32_t first, int32_t count, int32_t *tokens) {
    int64_t end = request->first_run + request->num_runs;
    int64_t run = request->first_run; /* becomes the first one that ends behind `first` */
    for (int64_t high = end; run < high;) {
        int64_t middle = run + (high - run) / 2;
        if (t->runs[middle].end > first)
            high = middle;
        else
            run = middle + 1;
    }
    for (int32_t i = 0; i < count; i++) {
        while (run < end && t->runs[run].end <= first + i)
            run++;
        tokens[i] = run < end ? t->runs[run].token : request->own_token;
    }
}

void trace_free(trace *t) {
    free(t->requests);
    free(t->runs);
    json_decref(t->ids);
    *t = (trace){0};
}
