/* SPDX-License-Identifier: Apache-2.0 */
/* How far a tensor is from what it should be. */
#ifndef DIFFERENCE_H
#define DIFFERENCE_H

#include <pagedcl/dtype.h>

#include <stdbool.h>
#include <stdint.h>

/* What passes: |got - want| <= atol + rtol * |want| for finite values, the same bits for all others; `exact`: for all. */
typedef struct tolerance {
    bool exact;
    double atol;
    double rtol;
} tolerance;

typedef struct difference {
    double max_error; /* the largest |got - want|; infinite where the bits differ and one of both is not finite */
    int64_t count;    /* values that do not pass */
    int64_t worst;    /* of these, the index of the farthest; */
    double got;       /* and what it is and should be */
    double want;
} difference;

/* Neither pointer need be aligned. */
difference difference_of(const void *got, const void *want, pagedcl_dtype dtype, int64_t count,
                         const tolerance *allowed);

#endif
