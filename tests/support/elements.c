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

typedef struct float8_format {
    int mantissa_bits, bias;
    float largest;
    uint8_t nan;
} float8_format;

static float8_format format_of(pagedcl_dtype dtype) {
    return dtype == PAGEDCL_FLOAT8_E4M3 ? (float8_format){3, 7, 448, 0x7f} : (float8_format){2, 15, 57344, 0x7e};
}

uint8_t float8_from_float(pagedcl_dtype dtype, float value) {
    float8_format format = format_of(dtype);
    uint8_t sign = signbit(value) ? 0x80 : 0;
    if (isnan(value))
        return sign | format.nan;
    float magnitude = fabsf(value);
    if (magnitude >= format.largest)
        magnitude = format.largest;
    int least = 1 - format.bias, exponent = magnitude < ldexpf(1, least) ? least : ilogbf(magnitude);
    /* The mantissa with its leading one, which a subnormal number lacks; a carry out of it raises the exponent. */
    int mantissa = (int)nearbyintf(ldexpf(magnitude, format.mantissa_bits - exponent));
    return (uint8_t)(sign | (((exponent - least) << format.mantissa_bits) + mantissa));
}

float float8_to_float(pagedcl_dtype dtype, uint8_t code) {
    float8_format format = format_of(dtype);
    int magnitude = code & 0x7f, exponent = magnitude >> format.mantissa_bits, one = 1 << format.mantissa_bits;
    int mantissa = magnitude % one + (exponent > 0 ? one : 0);
    if (magnitude >= format.nan || (dtype == PAGEDCL_FLOAT8_E5M2 && magnitude == 0x7d))
        return NAN;
    if (dtype == PAGEDCL_FLOAT8_E5M2 && magnitude == 0x7c)
        return code & 0x80 ? -INFINITY : INFINITY;
    float value = ldexpf((float)mantissa, (exponent > 0 ? exponent : 1) - format.bias - format.mantissa_bits);
    return code & 0x80 ? -value : value;
}

static int8_t int8_from_float(float value) {
    return (int8_t)fminf(fmaxf(nearbyintf(value), -127), 127);
}

static void element_from_float(pagedcl_dtype dtype, float value, void *element) {
    uint16_t bits;
    switch (dtype) {
    case PAGEDCL_FLOAT16:
    case PAGEDCL_BFLOAT16:
        bits = dtype == PAGEDCL_FLOAT16 ? float16_from_float(value) : bfloat16_from_float(value);
        memcpy(element, &bits, sizeof(bits));
        break;
    case PAGEDCL_INT8:
        *(int8_t *)element = int8_from_float(value);
        break;
    case PAGEDCL_FLOAT8_E4M3:
    case PAGEDCL_FLOAT8_E5M2:
        *(uint8_t *)element = float8_from_float(dtype, value);
        break;
    case PAGEDCL_FLOAT32:
    case PAGEDCL_INT4: /* none of which is a whole byte */
    case PAGEDCL_DTYPE_DEFAULT:
        memcpy(element, &value, sizeof(value));
        break;
    }
}

static float element_to_float(pagedcl_dtype dtype, const void *element) {
    uint16_t bits;
    float value;
    switch (dtype) {
    case PAGEDCL_FLOAT16:
    case PAGEDCL_BFLOAT16:
        memcpy(&bits, element, sizeof(bits));
        return dtype == PAGEDCL_FLOAT16 ? float16_to_float(bits) : bfloat16_to_float(bits);
    case PAGEDCL_INT8:
        return *(const int8_t *)element;
    case PAGEDCL_FLOAT8_E4M3:
    case PAGEDCL_FLOAT8_E5M2:
        return float8_to_float(dtype, *(const uint8_t *)element);
    case PAGEDCL_FLOAT32:
    case PAGEDCL_INT4: /* none of which is a whole byte */
    case PAGEDCL_DTYPE_DEFAULT:
        break;
    }
    memcpy(&value, element, sizeof(value));
    return value;
}

void elements_from_floats(pagedcl_dtype dtype, const float *floats, int64_t count, void *elements) {
    for (int64_t i = 0; i < count; i++)
        element_from_float(dtype, floats[i], (char *)elements + (size_t)i * pagedcl_dtype_size(dtype));
}

void elements_to_floats(pagedcl_dtype dtype, const void *elements, int64_t count, float *floats) {
    for (int64_t i = 0; i < count; i++)
        floats[i] = element_to_float(dtype, (const char *)elements + (size_t)i * pagedcl_dtype_size(dtype));
}

float element_round(pagedcl_dtype dtype, float value) {
    float element; /* large enough for any dtype */
    elements_from_floats(dtype, &value, 1, &element);
    elements_to_floats(dtype, &element, 1, &value);
    return value;
}
