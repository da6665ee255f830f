/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text to tokens and back. A folder without a tokenizer of its own and with a vocabulary hardly above 256 has bytes as
 * tokens. Other tokenizers are not read: text is refused, and tokens are written as numbers.
 */
#ifndef ENGINE_TOKENIZER_H
#define ENGINE_TOKENIZER_H

#include "config.h"

#include <stddef.h>

enum { TOKENIZER_MAX_TEXT = 16 }; /* bytes that one token may become */

typedef struct tokenizer {
    bool bytes; /* token t < 256 is the byte t; those above have no text */
} tokenizer;

void tokenizer_open(const char *folder, const model_config *config, tokenizer *t);

/* The tokens of a text, for the caller to free. NULL with an error when there is no tokenizer, or no text. */
int32_t *tokenizer_encode(const tokenizer *t, const char *text, int32_t *num_tokens, tool_error *error);

/* Writes the text of one token, without a zero byte, and returns its length. */
size_t tokenizer_decode(const tokenizer *t, int32_t token, char text[TOKENIZER_MAX_TEXT]);

#endif
