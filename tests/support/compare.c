/* SPDX-License-Identifier: Apache-2.0 */
#include "compare.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static char text[256];

tolerance tolerance_of(pagedcl_dtype dtype) {
    switch (dtype) {
    case PAGEDCL_FLOAT16:
        return (tolerance){2e-3, 2e-3};
    case PAGEDCL_BFLOAT16:
        return (tolerance){1.2e-2, 1.2e-2};
    case PAGEDCL_FLOAT32:
    case PAGEDCL_INT8:
    case PAGEDCL_FLOAT8_E4M3:
    case PAGEDCL_FLOAT8_E5M2:
    case PAGEDCL_INT4:
    case PAGEDCL_DTYPE_DEFAULT:
        break;
    }
    return (tolerance){2e-5, 2e-5};
}

static uint64_t double_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static bool is_finite(double value) {
    return (double_bits(value) >> 52 & 0x7ff) != 0x7ff;
}

static bool passes(double got, double want, tolerance allowed) {
    if (is_finite(got) && is_finite(want))
        return fabs(got - want) <= allowed.absolute + allowed.relative * fabs(want);
    bool want_infinity = (double_bits(want) << 1) == 0xffe0000000000000u;
    return want_infinity && double_bits(got) == double_bits(want);
}

const char *compare_floats(const float *got, const double *want, int64_t count, tolerance allowed) {
    int64_t first = 0, wrong = 0;
    for (int64_t i = count - 1; i >= 0; i--) {
        if (!passes((double)got[i], want[i], allowed)) {
            first = i;
            wrong++;
        }
    }
    if (wrong == 0)
        return NULL;
    snprintf(text, sizeof(text), "element %lld of %lld: got %.9g, want %.9g within %g + %g * |want|; %lld are wrong",
             (long long)first, (long long)count, (double)got[first], want[first], allowed.absolute, allowed.relative,
             (long long)wrong);
    return text;
}

const char *compare_bytes(const void *got, const void *want, size_t count) {
    const unsigned char *a = got, *b = want;
    size_t first = 0, wrong = 0;
    for (size_t i = count; i-- > 0;) {
        if (a[i] != b[i]) {
            first = i;
            wrong++;
        }
    }
    if (wrong == 0)
        return NULL;
    snprintf(text, sizeof(text), "byte %zu of %zu: got 0x%02x, want 0x%02x; %zu are wrong", first, count, a[first],
             b[first], wrong);
    return text;
}
