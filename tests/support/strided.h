/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors on the device, contiguous or with gaps, in guarded memory. */
#ifndef STRIDED_H
#define STRIDED_H

#include "fixture.h"

#include <pagedcl/cache.h>

typedef struct strided {
    guarded buffer;
    pagedcl_tensor view; /* what the library is given */
    pagedcl_dtype dtype;
    int64_t tokens;
    int32_t heads;
    int32_t head_dim;
} strided;

typedef enum strided_layout {
    CONTIGUOUS = 0,
    WITH_GAPS = 1,         /* an odd offset, and gaps between heads and between tokens */
    WITH_ALIGNED_GAPS = 2, /* the same, but every row begins at a multiple of 8 elements */
} strided_layout;

/*
 * values: [tokens, heads, head_dim], each exactly representable in dtype; NULL: poison. The buffer ends with the last
 * token, or `spare_tokens` behind it. Everything that is not an element is poison.
 */
strided strided_create(const pagedcl_device *device, pagedcl_dtype dtype, int64_t tokens, int32_t heads,
                       int32_t head_dim, strided_layout layout, int64_t spare_tokens, const float *values);

/* The elements as floats, to free. Asserts that everything else is still poison. */
float *strided_read(const pagedcl_device *device, const strided *tensor, const char *name);

void strided_destroy(strided *tensor);

#endif
