/* SPDX-License-Identifier: Apache-2.0 */
#include "difference.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static const tolerance exact = {.exact = true};
static const tolerance loose = {.atol = 0.5, .rtol = 0.25};

static difference of_floats(float got, float want, const tolerance *allowed) {
    return difference_of(&got, &want, PAGEDCL_FLOAT32, 1, allowed);
}

Test(difference, is_allowed_up_to_the_tolerance) {
    /* 0.5 + 0.25 * 2 = 1, all exact in binary */
    cr_expect_eq(of_floats(3.0f, 2.0f, &loose).count, 0);
    cr_expect_eq(of_floats(1.0f, 2.0f, &loose).count, 0);
    cr_expect_eq(of_floats(3.0f, 2.0f, &loose).max_error, 1.0);
    cr_expect_eq(of_floats(3.0000002f, 2.0f, &loose).count, 1);
    cr_expect_eq(of_floats(-3.0f, -2.0f, &loose).count, 0);
    cr_expect_eq(of_floats(1.0f, 1.0f, &exact).count, 0);
    cr_expect_eq(of_floats(1.0f, 1.0000001f, &exact).count, 1);
    cr_expect_eq(of_floats(0.0f, -0.0f, &exact).count, 1);
    cr_expect_eq(of_floats(0.0f, -0.0f, &loose).count, 0);
}

Test(difference, compares_what_is_not_finite_by_bits) {
    cr_expect_eq(of_floats(NAN, 1.0f, &loose).count, 1);
    cr_expect_eq(of_floats(NAN, 1.0f, &loose).max_error, HUGE_VAL);
    cr_expect_eq(of_floats(1.0f, NAN, &loose).count, 1);
    cr_expect_eq(of_floats(NAN, NAN, &exact).count, 0);
    cr_expect_eq(of_floats(NAN, -NAN, &loose).count, 1);
    cr_expect_eq(of_floats(-INFINITY, -INFINITY, &loose).count, 0);
    cr_expect_eq(of_floats(-INFINITY, -INFINITY, &loose).max_error, 0.0);
    cr_expect_eq(of_floats(INFINITY, -INFINITY, &loose).count, 1);
    cr_expect_eq(of_floats(3e38f, INFINITY, &loose).count, 1);
    cr_expect_eq(of_floats(INFINITY, 3e38f, &loose).count, 1);
}

Test(difference, names_the_worst) {
    const float got[] = {0, 9, 0, 100, 0};
    const float want[] = {0, 2, 0, 400, 0};
    difference d = difference_of(got, want, PAGEDCL_FLOAT32, 5, &loose);
    cr_expect_eq(d.count, 2);
    cr_expect_eq(d.worst, 3);
    cr_expect_eq(d.got, 100);
    cr_expect_eq(d.want, 400);
    cr_expect_eq(d.max_error, 300);
    cr_expect_eq(difference_of(got, want, PAGEDCL_FLOAT32, 0, &exact).count, 0);
}

Test(difference, reads_unaligned_halves) {
    unsigned char got[5] = {0};
    unsigned char want[5] = {0};
    const uint16_t one = 0x3c00; /* 1 in float16, 0.0078125 in bfloat16 */
    memcpy(got + 3, &one, 2);
    cr_expect_eq(difference_of(got + 1, want + 1, PAGEDCL_FLOAT16, 2, &loose).max_error, 1.0);
    cr_expect_eq(difference_of(got + 1, want + 1, PAGEDCL_FLOAT16, 2, &loose).worst, 1);
    cr_expect_eq(difference_of(got + 1, want + 1, PAGEDCL_BFLOAT16, 2, &loose).max_error, 0.0078125);
}
