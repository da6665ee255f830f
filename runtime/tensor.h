/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the caller's tensors. */
#ifndef PCL_TENSOR_H
#define PCL_TENSOR_H

#include <pagedcl/cache.h>

/*
 * Checks the caller's tensor of `tokens` rows of heads * head_dim elements: a buffer, no negative stride,
 * every element inside the buffer. *own is the tensor with its default strides filled in. Without rows the buffer
 * may be NULL.
 * Errors: INVALID_ARGUMENT, SIZE_OVERFLOW, BUFFER_TOO_SMALL, each naming `name`.
 */
pagedcl_status pcl_tensor_check(const char *name, const pagedcl_tensor *tensor, int64_t tokens, int64_t heads,
                                int64_t head_dim, pagedcl_dtype dtype, pagedcl_tensor *own);

/* Whether a buffer has `elements` elements from `offset` on. Errors: as pcl_tensor_check. */
pagedcl_status pcl_buffer_check(const char *name, cl_mem mem, int64_t offset, int64_t elements, size_t element_size);

#endif
