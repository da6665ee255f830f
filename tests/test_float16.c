/* SPDX-License-Identifier: Apache-2.0 */
#include "float16.h"

#include <criterion/criterion.h>
#include <math.h>

Test(float16, converts_exactly) {
    static const struct {
        uint16_t bits;
        float value;
    } halves[] = {{0x0000, 0.0f},     {0x3c00, 1.0f},     {0xc000, -2.0f},         {0x3555, 0x1.554p-2f},
                  {0x7bff, 65504.0f}, {0x0001, 0x1p-24f}, {0x83ff, -0x1.ff8p-15f}, {0x0400, 0x1p-14f},
                  {0x7c00, INFINITY}, {0xfc00, -INFINITY}};
    for (size_t i = 0; i < sizeof halves / sizeof halves[0]; i++)
        cr_expect_eq(float16_to_float(halves[i].bits), halves[i].value, "%04x", (unsigned)halves[i].bits);
    cr_expect(signbit(float16_to_float(0x8000)));
    cr_expect(isnan(float16_to_float(0x7e00)) && isnan(float16_to_float(0xfc01)));
    cr_expect_eq(bfloat16_to_float(0x3f80), 1.0f);
    cr_expect_eq(bfloat16_to_float(0xff80), -INFINITY);
    cr_expect(isnan(bfloat16_to_float(0x7fc0)));
}
