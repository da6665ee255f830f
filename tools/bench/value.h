/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the benchmark's tensors hold: a hash of where an element is, so that the device fills them and the host knows
 * any element without reading it. Compiled by both.
 */
#ifndef BENCH_VALUE_H
#define BENCH_VALUE_H

#if defined(__OPENCL_C_VERSION__) || defined(__OPENCL_VERSION__)
typedef uint value_word;
typedef ulong value_row;
#else
#include <stdint.h>
typedef uint32_t value_word;
typedef uint64_t value_row;
#endif

/* Chris Wellons' lowbias32. */
static inline value_word value_mix(value_word x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/* What the elements of a row have in common. */
static inline value_word value_key(value_word seed, value_row row) {
    return value_mix(value_mix(seed ^ (value_word)(row >> 32)) ^ (value_word)row);
}

/*
 * An odd multiple of 2^-bits between -1 and 1, each equally likely: their mean is 0, and a float type with `bits` binary
 * digits holds them exactly. Of 3 digits every 32nd is at an end, so that a scale for each 32 elements is 1/8 exactly,
 * of which int4 then holds whole multiples.
 */
static inline float value_at(value_word key, value_word column, int bits) {
    int level = (int)(value_mix(key + column * 0x9e3779b9u) >> (32 - bits));
    if (bits == 3 && column % 32 == 0)
        level = level < 4 ? 0 : 7;
    return (float)(2 * level - ((1 << bits) - 1)) / (float)(1 << bits);
}

#endif
