/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vectors of TUNE_LANES floats, 8 or 16, which fill a register.
 */
#ifndef CPU_VECTORS_H
#define CPU_VECTORS_H

#include "lib/types.h"

#ifndef TUNE_LANES
#error TUNE_LANES is missing
#endif

/* Swaps neighbouring lanes, pairs of them, and so on; there is no half of 8 lanes with 8 more. */
#if TUNE_LANES == 16
#define SWAP1(x) (x).s1032547698badcfe
#define SWAP2(x) (x).s23016745ab89efcd
#define SWAP4(x) (x).s45670123cdef89ab
#define SWAP8(x) (x).s89abcdef01234567
#else
#define SWAP1(x) (x).s10325476
#define SWAP2(x) (x).s23016745
#define SWAP4(x) (x).s45670123
#define SWAP8(x) (x)
#endif
typedef PASTE(float, TUNE_LANES) floats;
typedef PASTE(int, TUNE_LANES) ints;
#define AS_FLOATS PASTE(as_float, TUNE_LANES)
#define AS_INTS PASTE(as_int, TUNE_LANES)
#define LOAD_FLOATS PASTE(vload, TUNE_LANES)
#define STORE_FLOATS PASTE(vstore, TUNE_LANES)
#define LOAD_INTS LOAD_FLOATS
#define STORE_INTS STORE_FLOATS
#define LOAD_LANES(role) PASTE(PASTE(load, TUNE_LANES), PASTE(_, role##_DTYPE))

/* What is small, or has arguments that are constants where it is called. */
#define INLINE static inline __attribute__((always_inline))

/*
 * Sums of neighbours, or of lanes 2, 4, 8 apart: those of a where the mask is 0, those of b where it is -1, which is
 * each second lane, pair of lanes, and so on.
 */
#define JOIN(a, b, SWAP, mask) (select(a, b, mask) + SWAP(select(b, a, mask)))
#if TUNE_LANES == 16
#define MASK1 (ints)(0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1)
#define MASK2 (ints)(0, 0, -1, -1, 0, 0, -1, -1, 0, 0, -1, -1, 0, 0, -1, -1)
#define MASK4 (ints)(0, 0, 0, 0, -1, -1, -1, -1, 0, 0, 0, 0, -1, -1, -1, -1)
#define MASK8 (ints)(0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1)
#else
#define MASK1 (ints)(0, -1, 0, -1, 0, -1, 0, -1)
#define MASK2 (ints)(0, 0, -1, -1, 0, 0, -1, -1)
#define MASK4 (ints)(0, 0, 0, 0, -1, -1, -1, -1)
#define MASK8 (ints)0
#endif

/* Lane i is the sum of all lanes of x[i]. */
INLINE floats sums_of(const floats *x) {
    floats a[8], b[4];
#pragma unroll
    for (int i = 0; i < 8; i++)
        a[i] = TUNE_LANES == 16 ? JOIN(x[i], x[i + TUNE_LANES - 8], SWAP8, MASK8) : x[i];
#pragma unroll
    for (int i = 0; i < 4; i++)
        b[i] = JOIN(a[i], a[i + 4], SWAP4, MASK4);
    const floats c = JOIN(b[0], b[2], SWAP2, MASK2), d = JOIN(b[1], b[3], SWAP2, MASK2);
    return JOIN(c, d, SWAP1, MASK1);
}

/* Exchanges the lanes of a where the mask is -1 with those of b, 1, 2, 4 or 8 lanes before, where it is 0. */
#define EXCHANGE(a, b, SWAP, mask)                     \
    do {                                               \
        const floats first = select(a, SWAP(b), mask); \
        b = select(SWAP(a), b, mask);                  \
        a = first;                                     \
    } while (0)

/* Turns TUNE_LANES vectors: lane i of x[j] becomes lane j of x[i]. */
INLINE void turn(floats *x) {
#pragma unroll
    for (int i = 0; i < TUNE_LANES / 2; i++)
        EXCHANGE(x[i * 2], x[i * 2 + 1], SWAP1, MASK1);
#pragma unroll
    for (int i = 0; i < TUNE_LANES / 2; i++) {
        const int j = i / 2 * 4 + i % 2;
        EXCHANGE(x[j], x[j + 2], SWAP2, MASK2);
    }
#pragma unroll
    for (int i = 0; i < TUNE_LANES / 2; i++) {
        const int j = i / 4 * 8 + i % 4;
        EXCHANGE(x[j], x[j + 4], SWAP4, MASK4);
    }
#pragma unroll
    for (int i = 0; i < TUNE_LANES - 8; i++)
        EXCHANGE(x[i], x[i + TUNE_LANES - 8], SWAP8, MASK8);
}

/* The same of four vectors, as if each were four elements: of all four the first quarters become the first vector. */
INLINE void turn_quarters(floats *x) {
#if TUNE_LANES == 16
    EXCHANGE(x[0], x[1], SWAP4, MASK4);
    EXCHANGE(x[2], x[3], SWAP4, MASK4);
    EXCHANGE(x[0], x[2], SWAP8, MASK8);
    EXCHANGE(x[1], x[3], SWAP8, MASK8);
#else
    EXCHANGE(x[0], x[1], SWAP2, MASK2);
    EXCHANGE(x[2], x[3], SWAP2, MASK2);
    EXCHANGE(x[0], x[2], SWAP4, MASK4);
    EXCHANGE(x[1], x[3], SWAP4, MASK4);
#endif
}

/*
 * 2^x for x up to 0, 1 for 0 exactly, to 1e-7 of the value; 0 below -126. Adding and taking away 1.5 * 2^23 rounds to an
 * integer, and leaves that in the lowest bits.
 */
INLINE floats power_of_two(floats x) {
    const floats shifted = x + 12582912.0f;
    const floats f = x - (shifted - 12582912.0f);
    floats y = 0.000154531634f;
    y = y * f + 0.00133908633f;
    y = y * f + 0.00961808302f;
    y = y * f + 0.0555035695f;
    y = y * f + 0.240226507f;
    y = y * f + 0.693147182f;
    y = y * f + 1;
    return select(y * AS_FLOATS((AS_INTS(shifted) << 23) + 0x3f800000), (floats)0, x < -126);
}

#endif
