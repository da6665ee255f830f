/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of a dtype from floats and back. Rounding is to nearest, ties to even. 8-bit elements have no scale here. */
#ifndef ELEMENTS_H
#define ELEMENTS_H

#include <pagedcl/dtype.h>

#include <stdint.h>

uint16_t float16_from_float(float value);
uint16_t bfloat16_from_float(float value);

/* The codes of float8_e4m3 and float8_e5m2. What is too large becomes the largest number. */
uint8_t float8_from_float(pagedcl_dtype dtype, float value);
float float8_to_float(pagedcl_dtype dtype, uint8_t code);

void elements_from_floats(pagedcl_dtype dtype, const float *floats, int64_t count, void *elements);
void elements_to_floats(pagedcl_dtype dtype, const void *elements, int64_t count, float *floats);

/* The value that `value` has after being stored in dtype. */
float element_round(pagedcl_dtype dtype, float value);

#endif
