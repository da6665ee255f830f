/* SPDX-License-Identifier: Apache-2.0 */
#include "sample.h"

#include <math.h>
#include <stdlib.h>

/* splitmix64 (Steele, Lea and Flood, 2014). */
static uint64_t next_number(uint64_t *generator) {
    uint64_t z = *generator += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint64_t sample_seed(uint64_t seed, uint64_t stream) {
    uint64_t mixed = next_number(&seed) ^ stream;
    return next_number(&mixed);
}

/* By falling weight, then by token: one order on every machine. */
static int compare(const void *left, const void *right) {
    const sample_candidate *a = left;
    const sample_candidate *b = right;
    if (a->weight != b->weight)
        return a->weight < b->weight ? 1 : -1;
    return a->token < b->token ? -1 : a->token > b->token;
}

int32_t sample_token(const sampling *how, const float *logits, int32_t vocab_size, uint64_t *generator,
                     sample_candidate *scratch) {
    int32_t best = 0;
    for (int32_t i = 0; i < vocab_size; i++) {
        if (!isfinite(logits[i]))
            return -1;
        if (logits[i] > logits[best])
            best = i;
    }
    if (how->temperature <= 0)
        return best;

    double total = 0;
    for (int32_t i = 0; i < vocab_size; i++) {
        double weight = exp(((double)logits[i] - logits[best]) / how->temperature);
        scratch[i] = (sample_candidate){.weight = weight, .token = i};
        total += weight;
    }
    int32_t count = vocab_size;
    if (how->top_p < 1) {
        qsort(scratch, (size_t)vocab_size, sizeof *scratch, compare);
        double wanted = how->top_p * total;
        total = 0;
        for (count = 0; count < vocab_size && total < wanted; count++)
            total += scratch[count].weight;
    }
    double left = (double)(next_number(generator) >> 11) * 0x1p-53 * total;
    int32_t chosen = 0;
    while (chosen < count - 1 && left >= scratch[chosen].weight)
        left -= scratch[chosen++].weight;
    return scratch[chosen].token;
}
