/* SPDX-License-Identifier: Apache-2.0 */
#include "block_layout.h"

#include "elements.h"

#include <float.h>
#include <math.h>
#include <string.h>

bool is_quantized(pagedcl_dtype dtype) {
    return dtype == PAGEDCL_INT8 || dtype == PAGEDCL_INT4 || dtype == PAGEDCL_FLOAT8_E4M3 ||
           dtype == PAGEDCL_FLOAT8_E5M2;
}

/* ---- codes ---- */

double code_value(pagedcl_dtype dtype, unsigned char code) {
    if (dtype == PAGEDCL_INT4)
        return code < 8 ? code : code - 16;
    float value;
    elements_to_floats(dtype, &code, 1, &value);
    return (double)value;
}

double code_largest(pagedcl_dtype dtype) {
    return dtype == PAGEDCL_INT8 ? 127 : dtype == PAGEDCL_INT4 ? 7 : dtype == PAGEDCL_FLOAT8_E4M3 ? 448 : 57344;
}

double code_step(pagedcl_dtype dtype, double value) {
    if (dtype == PAGEDCL_INT8 || dtype == PAGEDCL_INT4)
        return 1;
    int mantissa_bits = dtype == PAGEDCL_FLOAT8_E4M3 ? 3 : 2, least = dtype == PAGEDCL_FLOAT8_E4M3 ? -6 : -14;
    int exponent = value == 0 ? least : ilogb(value);
    return ldexp(1, (exponent < least ? least : exponent) - mantissa_bits);
}

unsigned char code_of(pagedcl_dtype dtype, double value) {
    if (dtype == PAGEDCL_INT4)
        return (unsigned char)((int)nearbyint(fmax(-7, fmin(7, value))) & 15);
    unsigned char code;
    float element = (float)value;
    elements_from_floats(dtype, &element, 1, &code);
    return code;
}

/* ---- blocks ---- */

static size_t padded4(size_t bytes) {
    return (bytes + 3) / 4 * 4;
}

/* Bytes of a stored scale. */
static size_t scale_bytes(const block_layout *layout) {
    return layout->dtype == PAGEDCL_INT4 ? 2 : 4;
}

static size_t row_scales(const block_layout *layout) {
    return (size_t)((layout->head_dim + layout->scale_group - 1) / layout->scale_group);
}

block_layout block_layout_of(const pagedcl_cache_desc *desc, int32_t head_dim, float scale) {
    block_layout layout = {
        .dtype = desc->dtype,
        .order = desc->layout,
        .block_size = desc->block_size,
        .num_kv_heads = desc->num_kv_heads,
        .head_dim = head_dim,
        .scale = scale == 0 ? 1 : scale,
    };
    size_t rows = (size_t)desc->block_size * (size_t)desc->num_kv_heads;
    layout.scale_group = desc->dtype == PAGEDCL_INT4 ? 32 : desc->scale_per_row ? head_dim : 0;
    layout.row_bytes =
        desc->dtype == PAGEDCL_INT4 ? (size_t)(head_dim + 1) / 2 : (size_t)head_dim * pagedcl_dtype_size(desc->dtype);
    layout.elements_end = layout.scales_offset = layout.scales_end = layout.bytes = rows * layout.row_bytes;
    if (layout.scale_group > 0) {
        layout.scales_offset = padded4(layout.elements_end);
        layout.scales_end = layout.scales_offset + rows * row_scales(&layout) * scale_bytes(&layout);
        layout.bytes = padded4(layout.scales_end);
    }
    return layout;
}

size_t block_row(const block_layout *layout, int32_t token, int32_t head) {
    size_t row = layout->order == PAGEDCL_LAYOUT_NHD ? (size_t)token * (size_t)layout->num_kv_heads + (size_t)head
                                                     : (size_t)head * (size_t)layout->block_size + (size_t)token;
    return row * layout->row_bytes;
}

static size_t scale_at(const block_layout *layout, int32_t token, int32_t head, int32_t d) {
    size_t row = (size_t)token * (size_t)layout->num_kv_heads + (size_t)head;
    return layout->scales_offset + (row * row_scales(layout) + (size_t)(d / layout->scale_group)) * scale_bytes(layout);
}

size_t block_scales(const block_layout *layout, int32_t token, int32_t head, size_t *bytes) {
    *bytes = layout->scale_group > 0 ? row_scales(layout) * scale_bytes(layout) : 0;
    return *bytes > 0 ? scale_at(layout, token, head, 0) : 0;
}

double block_scale(const block_layout *layout, const unsigned char *block, int32_t token, int32_t head, int32_t d) {
    float scale = layout->scale;
    if (layout->scale_group > 0)
        elements_to_floats(layout->dtype == PAGEDCL_INT4 ? PAGEDCL_FLOAT16 : PAGEDCL_FLOAT32,
                           block + scale_at(layout, token, head, d), 1, &scale);
    return scale;
}

double block_value(const block_layout *layout, const unsigned char *block, int32_t token, int32_t head, int32_t d) {
    const unsigned char *row = block + block_row(layout, token, head);
    unsigned char code = layout->dtype != PAGEDCL_INT4 ? row[d] : d % 2 == 0 ? row[d / 2] & 15 : row[d / 2] >> 4;
    return code_value(layout->dtype, code) * block_scale(layout, block, token, head, d);
}

/* Finds the scale of `count` values, as the library says it does, and stores it; gives what the elements count times. */
static float store_scale(const block_layout *layout, unsigned char *at, const float *values, int32_t count) {
    float largest = 0, scale = 1;
    for (int32_t i = 0; i < count; i++)
        largest = fmaxf(largest, fabsf(values[i]));
    if (largest > 0)
        scale = largest * (1.0f / (float)code_largest(layout->dtype));
    scale = fminf(fmaxf(scale, FLT_MIN), 0.999999f * FLT_MAX / (float)code_largest(layout->dtype));
    if (layout->dtype != PAGEDCL_INT4) {
        memcpy(at, &scale, sizeof(scale));
        return scale;
    }
    scale = fminf(scale, 65504);
    uint16_t bits = float16_from_float(scale);
    float rounded = element_round(PAGEDCL_FLOAT16, scale);
    if (rounded < scale)
        bits++;
    memcpy(at, &bits, sizeof(bits));
    elements_to_floats(PAGEDCL_FLOAT16, &bits, 1, &rounded);
    return rounded;
}

void block_store(const block_layout *layout, unsigned char *block, int32_t token, int32_t head, const float *values) {
    unsigned char *row = block + block_row(layout, token, head);
    if (!is_quantized(layout->dtype)) {
        elements_from_floats(layout->dtype, values, layout->head_dim, row);
        return;
    }
    int32_t step = layout->scale_group > 0 ? layout->scale_group : layout->head_dim;
    for (int32_t first = 0; first < layout->head_dim; first += step) {
        int32_t count = layout->head_dim - first < step ? layout->head_dim - first : step;
        float scale = layout->scale;
        if (layout->scale_group > 0)
            scale = store_scale(layout, block + scale_at(layout, token, head, first), values + first, count);
        for (int32_t d = first; d < first + count; d++) {
            unsigned char code = code_of(layout->dtype, (double)values[d] / (double)scale);
            if (layout->dtype != PAGEDCL_INT4)
                row[d] = code;
            else
                row[d / 2] = (unsigned char)(d % 2 == 0 ? code : row[d / 2] | code << 4);
        }
    }
}
