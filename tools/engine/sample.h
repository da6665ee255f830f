/* SPDX-License-Identifier: Apache-2.0 */
/* The next token from logits. */
#ifndef ENGINE_SAMPLE_H
#define ENGINE_SAMPLE_H

#include <stdint.h>

typedef struct sampling {
    float temperature; /* 0: the token with the largest logit, the lowest such token */
    float top_p;       /* above 0, up to 1: the likeliest tokens that together have this probability */
} sampling;

typedef struct sample_candidate {
    double weight;
    int32_t token;
} sample_candidate;

/* The generator of one request: seeds and streams that differ give unrelated numbers. */
uint64_t sample_seed(uint64_t seed, uint64_t stream);

/*
 * The next token, by the generator's next number. scratch: [vocab_size]. -1 when a logit is not finite: such a model
 * is broken.
 */
int32_t sample_token(const sampling *how, const float *logits, int32_t vocab_size, uint64_t *generator,
                     sample_candidate *scratch);

#endif
