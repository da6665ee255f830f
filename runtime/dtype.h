/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PCL_DTYPE_H
#define PCL_DTYPE_H

#include <pagedcl/dtype.h>

#include <stdbool.h>
#include <stdint.h>

/* Whether values are elements times a scale: a pool's dtype, not a tensor's. */
bool pcl_dtype_is_quantized(pagedcl_dtype dtype);

/* Elements of a row with what fills its last byte. */
int64_t pcl_dtype_padded(pagedcl_dtype dtype, int64_t elements);

/* Bytes of that many padded elements, fewer than 2^60. */
int64_t pcl_dtype_bytes(pagedcl_dtype dtype, int64_t elements);

#endif
