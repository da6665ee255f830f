/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PAGEDCL_DTYPE_H
#define PAGEDCL_DTYPE_H

#include <pagedcl/export.h>

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element types of tensors and pools. Little-endian in memory. */
typedef enum pagedcl_dtype {
    PAGEDCL_DTYPE_DEFAULT = 0, /* what the function that takes it names as default */
    PAGEDCL_FLOAT32 = 1,       /* IEEE binary32 */
    PAGEDCL_FLOAT16 = 2,       /* IEEE binary16 */
    PAGEDCL_BFLOAT16 = 3,      /* the upper half of a binary32 */
    /* For pools alone, with scales: the value is the element times a scale. */
    PAGEDCL_INT8 = 4,        /* -127 to 127 */
    PAGEDCL_FLOAT8_E4M3 = 5, /* OCP 8-bit float: 4 exponent bits, to 448, no infinity */
    PAGEDCL_FLOAT8_E5M2 = 6, /* OCP 8-bit float: 5 exponent bits, to 57344 */
    PAGEDCL_INT4 = 7,        /* -7 to 7; two in a byte, the first one in the lower half */
} pagedcl_dtype;

/* Elements along a row of int4 that share a scale; the last ones of a row may be fewer. */
enum { PAGEDCL_INT4_GROUP = 32 };

/* Bytes of one element; 0 for int4, half of a byte, and for a value that is no dtype. */
PAGEDCL_API size_t pagedcl_dtype_size(pagedcl_dtype dtype);

/* "float32", "float16", "bfloat16", "int8", "float8_e4m3", "float8_e5m2", "int4"; "invalid" otherwise. */
PAGEDCL_API const char *pagedcl_dtype_name(pagedcl_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
