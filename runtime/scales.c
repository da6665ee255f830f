/* SPDX-License-Identifier: Apache-2.0 */
#include "scales.h"

#include "dtype.h"
#include "status.h"

#include <math.h>
#include <string.h>

pagedcl_status pcl_scales_read(pcl_scales *scales) {
    bool eight_bits = pcl_dtype_is_quantized(scales->dtype) && scales->dtype != PAGEDCL_INT4;
    if (scales->per_row != 0 && (scales->per_row != 1 || !eight_bits))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "scale_per_row is %d, with dtype %s: 1 is for an 8-bit dtype",
                        scales->per_row, pagedcl_dtype_name(scales->dtype));
    if (scales->k == 0)
        scales->k = 1;
    if (scales->v == 0)
        scales->v = 1;
    bool plain = scales->k == 1 && scales->v == 1;
    if ((!eight_bits || scales->per_row) && !plain)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "k_scale %g and v_scale %g are for an 8-bit pool without scale_per_row", (double)scales->k,
                        (double)scales->v);
    if (!isnormal(scales->k) || !isnormal(scales->v) || scales->k < 0 || scales->v < 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "k_scale %g and v_scale %g must be finite and above 0",
                        (double)scales->k, (double)scales->v);
    if (scales->v_in_k && scales->v != scales->k)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "V lies in K, so v_scale %g must be k_scale %g", (double)scales->v,
                        (double)scales->k);
    return PAGEDCL_SUCCESS;
}

int64_t pcl_scales_stored(pagedcl_dtype dtype, int32_t per_row, int64_t head_dim) {
    if (dtype == PAGEDCL_INT4)
        return (head_dim + PAGEDCL_INT4_GROUP - 1) / PAGEDCL_INT4_GROUP * (int64_t)sizeof(uint16_t);
    return per_row ? (int64_t)sizeof(float) : 0;
}

/* Of a binary float without its sign: below the bits of infinity, and without a sign unless it is 0. */
static bool is_valid(uint32_t magnitude, uint32_t sign, uint32_t infinity) {
    return magnitude < infinity && (sign == 0 || magnitude == 0);
}

bool pcl_scales_are_valid(pagedcl_dtype dtype, const void *stored, int64_t bytes) {
    const unsigned char *at = stored;
    bool valid = true;
    for (int64_t i = 0; dtype == PAGEDCL_INT4 && i < bytes; i += 2) {
        uint16_t bits;
        memcpy(&bits, at + i, sizeof bits);
        valid &= is_valid(bits & 0x7fff, bits & 0x8000, 0x7c00);
    }
    for (int64_t i = 0; dtype != PAGEDCL_INT4 && i < bytes; i += 4) {
        uint32_t bits;
        memcpy(&bits, at + i, sizeof bits);
        valid &= is_valid(bits & 0x7fffffff, bits & 0x80000000, 0x7f800000);
    }
    return valid;
}
