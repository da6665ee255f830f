/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing what the device gave with what is right. */
#ifndef COMPARE_H
#define COMPARE_H

#include <pagedcl/dtype.h>

#include <stddef.h>
#include <stdint.h>

/* A value passes when |got - want| <= absolute + relative * |want|. */
typedef struct tolerance {
    double absolute;
    double relative;
} tolerance;

/* What the rounding of inputs, sums and outputs to that dtype may cost. */
tolerance tolerance_of(pagedcl_dtype dtype);

/*
 * NULL when every value passes; otherwise text that names the first that does not and how many there are. NaN never
 * passes, and an infinity only as the same infinity: classified by bit pattern, so that no compiler option can turn
 * the check into one that cannot fail. The text holds until the next call.
 */
const char *compare_floats(const float *got, const double *want, int64_t count, tolerance allowed);

/* Likewise for bytes, which must be equal. */
const char *compare_bytes(const void *got, const void *want, size_t count);

#endif
