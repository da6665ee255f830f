/* SPDX-License-Identifier: Apache-2.0 */
#include "float16.h"

#include <string.h>

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float float16_to_float(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    uint32_t exponent = bits >> 10 & 0x1fu;
    uint32_t mantissa = bits & 0x3ffu;
    if (exponent == 0) { /* zero or subnormal: a multiple of 2^-24 */
        float magnitude = (float)mantissa * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    if (exponent == 0x1f) /* infinity or NaN */
        return from_bits(sign | 0x7f800000u | mantissa << 13);
    return from_bits(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
}

float bfloat16_to_float(uint16_t bits) {
    return from_bits((uint32_t)bits << 16);
}
