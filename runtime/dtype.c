/* SPDX-License-Identifier: Apache-2.0 */
#include <pagedcl/dtype.h>

size_t pagedcl_dtype_size(pagedcl_dtype dtype) {
    switch (dtype) {
    case PAGEDCL_FLOAT32:
        return 4;
    case PAGEDCL_FLOAT16:
    case PAGEDCL_BFLOAT16:
        return 2;
    case PAGEDCL_DTYPE_DEFAULT:
        break;
    }
    return 0;
}

const char *pagedcl_dtype_name(pagedcl_dtype dtype) {
    switch (dtype) {
    case PAGEDCL_FLOAT32:
        return "float32";
    case PAGEDCL_FLOAT16:
        return "float16";
    case PAGEDCL_BFLOAT16:
        return "bfloat16";
    case PAGEDCL_DTYPE_DEFAULT:
        break;
    }
    return "invalid";
}
