/* SPDX-License-Identifier: Apache-2.0 */
#include "dtype.h"

bool pcl_dtype_is_quantized(pagedcl_dtype dtype) {
    return dtype == PAGEDCL_INT8 || dtype == PAGEDCL_FLOAT8_E4M3 || dtype == PAGEDCL_FLOAT8_E5M2 ||
           dtype == PAGEDCL_INT4;
}

int64_t pcl_dtype_padded(pagedcl_dtype dtype, int64_t elements) {
    return dtype == PAGEDCL_INT4 ? (elements + 1) / 2 * 2 : elements;
}

int64_t pcl_dtype_bytes(pagedcl_dtype dtype, int64_t elements) {
    return dtype == PAGEDCL_INT4 ? elements / 2 : elements * (int64_t)pagedcl_dtype_size(dtype);
}

size_t pagedcl_dtype_size(pagedcl_dtype dtype) {
    switch (dtype) {
    case PAGEDCL_FLOAT32:
        return 4;
    case PAGEDCL_FLOAT16:
    case PAGEDCL_BFLOAT16:
        return 2;
    case PAGEDCL_INT8:
    case PAGEDCL_FLOAT8_E4M3:
    case PAGEDCL_FLOAT8_E5M2:
        return 1;
    case PAGEDCL_INT4:
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
    case PAGEDCL_INT8:
        return "int8";
    case PAGEDCL_FLOAT8_E4M3:
        return "float8_e4m3";
    case PAGEDCL_FLOAT8_E5M2:
        return "float8_e5m2";
    case PAGEDCL_INT4:
        return "int4";
    case PAGEDCL_DTYPE_DEFAULT:
        break;
    }
    return "invalid";
}
