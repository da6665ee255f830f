/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a warp's accumulated results count where values are codes: their scale is not in the matrices. That of a whole pool is
 * the unit throughout. Where each row has its own, weights are multiplied by it, and the unit, a power of two, follows the
 * largest: so that none of them is too large or too small for an element.
 */
#ifndef NV_UNITS_H
#define NV_UNITS_H

#include "lib/attn_problem.h"
#include "nv/warp.h"

/* In the beginning. */
static float first_unit(const attn_problem *p) {
#if CODES && !ROW_SCALED
    return p->keys.v.scale;
#else
    (void)p;
    return ROW_SCALED ? 0 : 1;
#endif
}

#if ROW_SCALED
/* The larger one of two scales, of which the second may be anything. */
static float larger_scale(float largest, float scale) {
    return isfinite(scale) ? fmax(largest, scale) : largest;
}

/* Makes the unit as large as the largest scale asks for. *inverse: 1 / it. Returns what results before count now. */
static float unit_raise(float *unit, float largest, float *inverse) {
    const float before = *unit;
    *unit = fmax(before, as_float(as_uint(largest) & 0x7f800000));
    *inverse = *unit == 0 ? 0 : 1 / *unit;
    return before * *inverse;
}

/* A weight times its value's scale. A value that a row does not see may have any. */
static float scaled_weight(float weight, float scale, float inverse) {
    return weight == 0 ? 0 : weight * (scale * inverse);
}
#endif

#endif
