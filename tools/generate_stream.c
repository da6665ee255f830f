/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L

#include "generate_stream.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

generate_stream generate_stream_open(const engine *e, const tokenizer *t) {
    return (generate_stream){.engine = e, .tokenizer = t, .terminal = isatty(STDOUT_FILENO)};
}

/* A model may say anything, escape sequences too. */
static bool controls_terminal(char c) {
    return ((unsigned char)c < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
}

static void print_tokens(const generate_stream *stream, const int32_t *tokens, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        char text[TOKENIZER_MAX_TEXT];
        size_t length = tokenizer_decode(stream->tokenizer, tokens[i], text);
        for (size_t j = 0; j < length; j++)
            putchar(stream->terminal && controls_terminal(text[j]) ? '?' : text[j]);
    }
}

static void print_prompt(const generate_stream *stream, const engine_text *text) {
    int32_t count = engine_num_texts(stream->engine);
    if (count > 1)
        printf("%s[%" PRId32 "/%" PRId32 "] ", stream->current > 0 ? "\n" : "", stream->current + 1, count);
    if (stream->terminal)
        fputs("\033[1m", stdout);
    print_tokens(stream, text->tokens, text->num_prompt);
    if (stream->terminal)
        fputs("\033[0m", stdout);
}

void generate_stream_update(generate_stream *stream) {
    while (stream->current < engine_num_texts(stream->engine)) {
        engine_text text = engine_get_text(stream->engine, stream->current);
        if (text.num_tokens == text.num_prompt)
            break;
        if (stream->num_printed == 0) {
            print_prompt(stream, &text);
            stream->num_printed = text.num_prompt;
        }
        print_tokens(stream, text.tokens + stream->num_printed, text.num_tokens - stream->num_printed);
        stream->num_printed = text.num_tokens;
        if (!text.finished)
            break;
        putchar('\n');
        stream->current++;
        stream->num_printed = 0;
    }
    fflush(stdout);
}
