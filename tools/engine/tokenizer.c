/* SPDX-License-Identifier: Apache-2.0 */
#include "tokenizer.h"

#include "folder.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUM_BYTES = 256, MAX_BYTE_VOCABULARY = 512 };

void tokenizer_open(const char *folder, const model_config *config, tokenizer *t) {
    static const char *const files[] = {"tokenizer.json", "tokenizer.model", "vocab.json"};
    t->bytes = config->vocab_size >= NUM_BYTES && config->vocab_size <= MAX_BYTE_VOCABULARY;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (folder_has(folder, files[i]))
            t->bytes = false;
}

int32_t *tokenizer_encode(const tokenizer *t, const char *text, int32_t *num_tokens, tool_error *error) {
    size_t length = strlen(text);
    int32_t *tokens = NULL;
    if (!t->bytes)
        tool_fail(error, "the tokenizer of this model is not read yet: give token ids with --prompt-ids");
    else if (length == 0)
        tool_fail(error, "a prompt is empty");
    else if (length > INT32_MAX)
        tool_fail(error, "a prompt is too long");
    else if ((tokens = malloc(length * sizeof *tokens)) == NULL)
        tool_fail(error, "out of memory");
    if (tokens == NULL)
        return NULL;
    for (size_t i = 0; i < length; i++)
        tokens[i] = (unsigned char)text[i];
    *num_tokens = (int32_t)length;
    return tokens;
}

size_t tokenizer_decode(const tokenizer *t, int32_t token, char text[TOKENIZER_MAX_TEXT]) {
    if (!t->bytes)
        return (size_t)snprintf(text, TOKENIZER_MAX_TEXT, "%" PRId32 " ", token);
    if (token >= NUM_BYTES)
        return 0;
    text[0] = (char)token;
    return 1;
}
