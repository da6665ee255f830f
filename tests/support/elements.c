/* SPDX-License-Identifier: Apache-2.0 */
#include "elements.h"

#include "float16.h"

#include <math.h>
#include <string.h>

static uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* Drops the low `shift` bits of an integer, to nearest, ties to even. */
static uint32_t shift_to_even(uint32_t value, int shift) {
    uint32_t half = 1u << (shift - 1);
    uint32_t odd = value >> shift & 1;
    return (value + half - 1 + odd) >> shift;
}

uint16_t bfloat16_from_float(float value) {
    uint32_t bits = float_bits(value);
    if (isnan(value))
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)shift_to_even(bits, 16);
}

uint16_t float16_from_float(float value) {
    uint32_t bits = float_bits(value);
    uint32_t sign = bits >> 16 & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;
    if (isnan(value))
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) /* 65520: half way from the largest number to the next power of two */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude >= 0x38800000) /* 2^-14: normal; a carry out of the mantissa raises the exponent, as it should */
        return (uint16_t)(sign | (shift_to_even(magnitude, 13) - ((127 - 15) << 10)));
    if (magnitude < 0x33000000) /* 2^-25: rounds to zero */
        return (uint16_t)sign;
    uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
    return (uint16_t)(sign | shift_to_even(mantissa, 126 - (int)(magnitude >> 23)));
}

void elements_from_floats(pagedcl_dtype dtype, const float *floats, int64_t count, void *elements) {
    if (dtype == PAGEDCL_FLOAT32) {
        if (count > 0)
            memcpy(elements, floats, (size_t)count * sizeof(float));
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        uint16_t bits = dtype == PAGEDCL_FLOAT16 ? float16_from_float(floats[i]) : bfloat16_from_float(floats[i]);
        memcpy((char *)elements + 2 * i, &bits, sizeof(bits));
    }
}

void elements_to_floats(pagedcl_dtype dtype, const void *elements, int64_t count, float *floats) {
    if (dtype == PAGEDCL_FLOAT32) {
        if (count > 0)
            memcpy(floats, elements, (size_t)count * sizeof(float));
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, (const char *)elements + 2 * i, sizeof(bits));
        floats[i] = dtype == PAGEDCL_FLOAT16 ? float16_to_float(bits) : bfloat16_to_float(bits);
    }
}

float element_round(pagedcl_dtype dtype, float value) {
    float element; /* large enough for any dtype */
    elements_from_floats(dtype, &value, 1, &element);
    elements_to_floats(dtype, &element, 1, &value);
    return value;
}
