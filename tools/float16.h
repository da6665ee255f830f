/* SPDX-License-Identifier: Apache-2.0 */
/* The 16-bit float types on the host. Both conversions are exact; NaN stays NaN. */
#ifndef FLOAT16_H
#define FLOAT16_H

#include <stdint.h>

float float16_to_float(uint16_t bits);
float bfloat16_to_float(uint16_t bits);

#endif
