/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes of 8 bits on their way from local memory to elements of matrices, in registers, without their scales.
 */
#ifndef NV_CODES_H
#define NV_CODES_H

#include "nv/rows.h"

#if CODES
/* Bytes of two words: nibble i of `which`, a constant, tells byte i of the result, 0 to 3 of a and 4 to 7 of b. */
static uint choose_bytes(uint a, uint b, const uint which) {
    uint chosen;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(chosen) : "r"(a), "r"(b), "r"(which));
    return chosen;
}

/* Bytes `low` and `high`, constants, of four codes as halves. All codes are halves exactly. */
static uint codes_halves(uint codes, const uint low, const uint high) {
    uint halves;
#if CODE_KIND == 1
    /* 1024 and x + 128 more have the bits of x + 128 in their lowest places. */
    uint large = choose_bytes(codes ^ 0x80808080, 0x64646464, 0x4040 | high << 8 | low);
    asm("sub.f16x2 %0, %1, %2;" : "=r"(halves) : "r"(large), "r"(0x64806480));
#elif CODE_KIND == 2
    uint both = choose_bytes(codes, 0, high << 4 | low);
    asm("{ .reg .b16 pair, none; mov.b32 {pair, none}, %1; cvt.rn.f16x2.e4m3x2 %0, pair; }" : "=r"(halves) : "r"(both));
#else
    halves = choose_bytes(codes, 0, 0x0404 | high << 12 | low << 4);
#endif
    return halves;
}

/* The same as elements of matrices, `low` in the lower half. */
static uint codes_pair(uint codes, const uint low, const uint high) {
    uint halves = codes_halves(codes, low, high);
#if IS_BFLOAT16(MATRIX)
    float2 x;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(x.x), "=f"(x.y)
        : "r"(halves));
    return pack(x.x, x.y);
#else
    return halves;
#endif
}
#endif

#endif
