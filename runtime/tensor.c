/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor.h"

#include "status.h"

#include <inttypes.h>

pagedcl_status pcl_buffer_check(const char *name, cl_mem mem, int64_t offset, int64_t elements, size_t element_size) {
    if (mem == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s has no buffer", name);
    if (offset < 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s has offset %" PRId64, name, offset);
    int64_t end = 0, bytes = 0;
    if (__builtin_add_overflow(offset, elements, &end) || __builtin_mul_overflow(end, (int64_t)element_size, &bytes))
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "%s ends beyond 2^63 bytes", name);
    size_t size = 0;
    cl_int code = clGetMemObjectInfo(mem, CL_MEM_SIZE, sizeof size, &size, NULL);
    if (code != CL_SUCCESS)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s is no buffer: clGetMemObjectInfo returned %d (%s)", name,
                        (int)code, pcl_opencl_error_name(code));
    if ((uint64_t)bytes > size)
        return pcl_fail(PAGEDCL_BUFFER_TOO_SMALL, "%s needs %" PRId64 " bytes, its buffer has %zu", name, bytes, size);
    return PAGEDCL_SUCCESS;
}

pagedcl_status pcl_tensor_check(const char *name, const pagedcl_tensor *tensor, int64_t tokens, int64_t heads,
                                int64_t head_dim, pagedcl_dtype dtype, pagedcl_tensor *own) {
    *own = *tensor;
    if (own->head_stride == 0)
        own->head_stride = head_dim;
    int64_t row = 0;
    if (own->head_stride < 0 || __builtin_mul_overflow(heads, own->head_stride, &row))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s has head_stride %" PRId64, name, own->head_stride);
    if (own->token_stride == 0)
        own->token_stride = row;
    if (own->token_stride < 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s has token_stride %" PRId64, name, own->token_stride);
    if (tokens == 0)
        return PAGEDCL_SUCCESS;
    int64_t last_token = 0, elements = 0;
    if (__builtin_mul_overflow(tokens - 1, own->token_stride, &last_token) ||
        __builtin_add_overflow(last_token, row - own->head_stride + head_dim, &elements))
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "%s has strides that reach beyond 2^63 elements", name);
    return pcl_buffer_check(name, own->mem, own->offset, elements, pagedcl_dtype_size(dtype));
}
