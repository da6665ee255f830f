/* SPDX-License-Identifier: Apache-2.0 */
#include "difference.h"

#include "float16.h"

#include <math.h>
#include <string.h>

static double load(const unsigned char *element, pagedcl_dtype dtype) {
    if (dtype == PAGEDCL_FLOAT32) {
        float value;
        memcpy(&value, element, sizeof value);
        return (double)value;
    }
    uint16_t bits;
    memcpy(&bits, element, sizeof bits);
    return (double)(dtype == PAGEDCL_FLOAT16 ? float16_to_float(bits) : bfloat16_to_float(bits));
}

difference difference_of(const void *got, const void *want, pagedcl_dtype dtype, int64_t count,
                         const tolerance *allowed) {
    difference result = {0};
    size_t size = pagedcl_dtype_size(dtype);
    double worst_error = -1;
    for (int64_t i = 0; i < count; i++) {
        const unsigned char *got_element = (const unsigned char *)got + (size_t)i * size;
        const unsigned char *want_element = (const unsigned char *)want + (size_t)i * size;
        if (memcmp(got_element, want_element, size) == 0)
            continue;
        double g = load(got_element, dtype);
        double w = load(want_element, dtype);
        bool finite = isfinite(g) && isfinite(w);
        double error = finite ? fabs(g - w) : HUGE_VAL;
        if (error > result.max_error)
            result.max_error = error;
        if (finite && !allowed->exact && error <= allowed->atol + allowed->rtol * fabs(w))
            continue;
        result.count++;
        if (error > worst_error) {
            worst_error = error;
            result.worst = i;
            result.got = g;
            result.want = w;
        }
    }
    return result;
}
