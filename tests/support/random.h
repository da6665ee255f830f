/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that are the same for a seed on every machine: splitmix64 (Steele, Lea and Flood, 2014). */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdint.h>

typedef struct random_state {
    uint64_t seed;
} random_state;

uint64_t random_bits(random_state *state);

/* Evenly from 0 .. bound - 1; bound is at least 1. */
int32_t random_below(random_state *state, int32_t bound);

/* Mean 0 and variance 1, bell-shaped, within +-4. */
float random_normal(random_state *state);

/* 0 .. n - 1 in random order. */
void random_permutation(random_state *state, int32_t *values, int32_t n);

#endif
