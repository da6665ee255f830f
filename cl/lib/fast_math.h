/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of scores and sums. Tiers for NVIDIA's GPUs have instructions for them, which are off by some 1e-7 of 1:
 * less than what products in 16 bits are off by, and a tenth of the work.
 */
#ifndef FAST_MATH_H
#define FAST_MATH_H

#if defined(TIER_NV_MMA) && TIER_NV_MMA
static float fast_log(float x) {
    float log2_x;
    asm("lg2.approx.f32 %0, %1;" : "=f"(log2_x) : "f"(x));
    return log2_x * 0.69314718055994530942f;
}

/* 1 - 2 / (e^(2 x) + 1). */
static float fast_tanh(float x) {
    float power, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 2.88539008177792681472f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(power + 1));
    return fma(-2, inverse, 1);
}
#else
static float fast_log(float x) {
    return log(x);
}
static float fast_tanh(float x) {
    return tanh(x);
}
#endif

#endif
