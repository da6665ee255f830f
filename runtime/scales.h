/* SPDX-License-Identifier: Apache-2.0 */
/* The scales of quantised pools: those of a pool's description, and those that a pool stores beside its rows. */
#ifndef PCL_SCALES_H
#define PCL_SCALES_H

#include <pagedcl/status.h>

#include <pagedcl/dtype.h>

#include <stdbool.h>
#include <stdint.h>

/* What a description says: fields of pagedcl_cache_desc and pagedcl_kv_geometry. */
typedef struct pcl_scales {
    pagedcl_dtype dtype;
    int32_t v_in_k, per_row;
    float k, v; /* 0: 1 */
} pcl_scales;

/* Checks them and fills in the defaults. Errors: INVALID_ARGUMENT. */
pagedcl_status pcl_scales_read(pcl_scales *scales);

/* Bytes of the scales that are stored for a row of head_dim elements; 0: none are stored. */
int64_t pcl_scales_stored(pagedcl_dtype dtype, int32_t per_row, int64_t head_dim);

/* Whether stored scales are what a write stores, or the zeros of a wipe: finite, and not below 0. */
bool pcl_scales_are_valid(pagedcl_dtype dtype, const void *stored, int64_t bytes);

#endif
