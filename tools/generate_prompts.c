/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L

#include "generate_prompts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

bool generate_prompts_add(generate_prompts *p, generate_source_kind kind, const char *value) {
    generate_source *sources = realloc(p->sources, (p->num_sources + 1) * sizeof *sources);
    if (sources == NULL)
        return false;
    p->sources = sources;
    p->sources[p->num_sources++] = (generate_source){.kind = kind, .value = value};
    return true;
}

/* Takes the tokens. */
static bool add_prompt(generate_prompts *p, int32_t *tokens, int32_t num_tokens, tool_error *error) {
    generate_prompt *list = p->count < INT32_MAX ? realloc(p->list, ((size_t)p->count + 1) * sizeof *list) : NULL;
    if (list == NULL) {
        free(tokens);
        return tool_fail(error, "out of memory");
    }
    p->list = list;
    p->list[p->count++] = (generate_prompt){.tokens = tokens, .num_tokens = num_tokens};
    return true;
}

static bool add_text(generate_prompts *p, const tokenizer *t, const char *text, tool_error *error) {
    int32_t num_tokens;
    int32_t *tokens = tokenizer_encode(t, text, &num_tokens, error);
    return tokens != NULL && add_prompt(p, tokens, num_tokens, error);
}

static bool add_ids(generate_prompts *p, const char *value, tool_error *error) {
    size_t capacity = strlen(value) / 2 + 1; /* a digit and what parts it from the next */
    int32_t *tokens = calloc(capacity, sizeof *tokens);
    if (tokens == NULL)
        return tool_fail(error, "out of memory");
    int32_t count = 0;
    for (const char *rest = value;; rest++) {
        char *end;
        errno = 0;
        long id = strtol(rest, &end, 10);
        if (errno != 0 || end == rest || id < 0 || id > INT32_MAX || (*end != ',' && *end != '\0')) {
            free(tokens);
            return tool_fail(error, "--prompt-ids is \"%s\"; it must be token ids with commas between", value);
        }
        tokens[count++] = (int32_t)id;
        rest = end;
        if (*end == '\0')
            break;
    }
    return add_prompt(p, tokens, count, error);
}

/* A pipe will do, but not a device: some never end. */
static FILE *open_text(const char *path, tool_error *error) {
    struct stat status;
    if (strcmp(path, "-") == 0)
        return stdin;
    FILE *file = fopen(path, "r");
    if (file == NULL || fstat(fileno(file), &status) != 0)
        tool_fail(error, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(status.st_mode) && !S_ISFIFO(status.st_mode))
        tool_fail(error, "%s: is not a file of text", path);
    else
        return file;
    if (file != NULL)
        fclose(file);
    return NULL;
}

static bool add_lines(generate_prompts *p, const tokenizer *t, const char *path, tool_error *error) {
    FILE *file = open_text(path, error);
    if (file == NULL)
        return false;
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    bool ok = true;
    while (ok && (length = getline(&line, &capacity, file)) >= 0) {
        if (strlen(line) != (size_t)length)
            ok = tool_fail(error, "%s: is not a file of text: it holds a zero byte", path);
        line[strcspn(line, "\r\n")] = '\0';
        if (ok && line[0] != '\0')
            ok = add_text(p, t, line, error);
    }
    if (ok && !feof(file))
        ok = tool_fail(error, "%s: cannot be read: %s", path, strerror(errno));
    free(line);
    if (file != stdin)
        fclose(file);
    return ok;
}

static bool read_source(generate_prompts *p, const generate_source *source, const tokenizer *t, tool_error *error) {
    switch (source->kind) {
    case GENERATE_TEXT:
        return add_text(p, t, source->value, error);
    case GENERATE_FILE:
        return add_lines(p, t, source->value, error);
    case GENERATE_IDS:
        return add_ids(p, source->value, error);
    }
    return false;
}

bool generate_prompts_read(generate_prompts *p, const tokenizer *t, tool_error *error) {
    for (size_t i = 0; i < p->num_sources; i++)
        if (!read_source(p, &p->sources[i], t, error))
            return false;
    return p->count > 0 || tool_fail(error, "the prompt file holds no prompt");
}

void generate_prompts_free(generate_prompts *p) {
    for (int32_t i = 0; i < p->count; i++)
        free(p->list[i].tokens);
    free(p->list);
    free(p->sources);
    *p = (generate_prompts){0};
}
