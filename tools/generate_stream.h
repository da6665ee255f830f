/* SPDX-License-Identifier: Apache-2.0 */
/* The texts of `pagedcl generate` as they come. */
#ifndef GENERATE_STREAM_H
#define GENERATE_STREAM_H

#include "engine.h"
#include "tokenizer.h"

/*
 * Streams texts to stdout in the order of the prompts: one streams, those behind it wait until it is finished. So
 * nothing is mixed, whatever order the batch finishes in.
 */
typedef struct generate_stream {
    const engine *engine;
    const tokenizer *tokenizer;
    bool terminal; /* stdout is one: prompts stand out, control characters are kept off */
    int32_t current;
    int32_t num_printed; /* tokens of the current text, prompt included */
} generate_stream;

generate_stream generate_stream_open(const engine *e, const tokenizer *t);

/* Prints what is new. */
void generate_stream_update(generate_stream *stream);

#endif
