/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PCL_DTYPE_H
#define PCL_DTYPE_H

#include <pagedcl/dtype.h>

#include <stdbool.h>

/* Whether values are elements times a scale: a pool's dtype, not a tensor's. */
bool pcl_dtype_is_quantized(pagedcl_dtype dtype);

#endif
