/* SPDX-License-Identifier: Apache-2.0 */
/* The prompts of `pagedcl generate`, from texts, from the lines of files, from token ids. */
#ifndef GENERATE_PROMPTS_H
#define GENERATE_PROMPTS_H

#include "tokenizer.h"

typedef enum generate_source_kind { GENERATE_TEXT, GENERATE_FILE, GENERATE_IDS } generate_source_kind;

/* An option that gives prompts. */
typedef struct generate_source {
    generate_source_kind kind;
    const char *value;
} generate_source;

typedef struct generate_prompt {
    int32_t *tokens;
    int32_t num_tokens;
} generate_prompt;

/* Begins as all zeros. */
typedef struct generate_prompts {
    generate_source *sources;
    size_t num_sources;
    generate_prompt *list; /* what the sources gave, in their order */
    int32_t count;
} generate_prompts;

/* Adds a source, not read yet; false when out of memory. The value is not copied. */
bool generate_prompts_add(generate_prompts *p, generate_source_kind kind, const char *value);

/* Reads all sources into the list. */
bool generate_prompts_read(generate_prompts *p, const tokenizer *t, tool_error *error);

void generate_prompts_free(generate_prompts *p);

#endif
