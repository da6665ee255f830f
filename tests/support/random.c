/* SPDX-License-Identifier: Apache-2.0 */
#include "random.h"

uint64_t random_bits(random_state *state) {
    uint64_t z = state->seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int32_t random_below(random_state *state, int32_t bound) {
    return (int32_t)(((random_bits(state) >> 32) * (uint64_t)bound) >> 32);
}

float random_normal(random_state *state) {
    /* The sum of four even 16-bit numbers: integers until the last step, so that no libm can change a bit. */
    uint64_t bits = random_bits(state);
    int32_t sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (int32_t)(bits >> (16 * i) & 0xffff) - 0x8000;
    return (float)sum * (1.7320508f / 65536.0f);
}

void random_permutation(random_state *state, int32_t *values, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        int32_t j = random_below(state, i + 1);
        values[i] = values[j];
        values[j] = i;
    }
}
