/* SPDX-License-Identifier: Apache-2.0 */
#include "strided.h"

#include "elements.h"
#include "expect.h"

#include <stdlib.h>

/* Where the row of a head begins, in bytes. */
static size_t row_begin(const strided *tensor, int64_t token, int32_t head) {
    int64_t head_stride = tensor->view.head_stride ? tensor->view.head_stride : tensor->head_dim;
    int64_t token_stride = tensor->view.token_stride ? tensor->view.token_stride : tensor->heads * head_stride;
    return (size_t)(tensor->view.offset + token * token_stride + head * head_stride) *
           pagedcl_dtype_size(tensor->dtype);
}

static const float *row_values(const strided *tensor, const float *values, int64_t token, int32_t head) {
    return values + (token * tensor->heads + head) * tensor->head_dim;
}

strided strided_create(const pagedcl_device *device, pagedcl_dtype dtype, int64_t tokens, int32_t heads,
                       int32_t head_dim, strided_layout layout, int64_t spare_tokens, const float *values) {
    strided tensor = {.dtype = dtype, .tokens = tokens, .heads = heads, .head_dim = head_dim};
    if (layout == WITH_GAPS)
        tensor.view = (pagedcl_tensor){
            .offset = 7, .head_stride = head_dim + 3, .token_stride = heads * (int64_t)(head_dim + 3) + 5};
    const int64_t padded = (head_dim + 7) / 8 * 8 + 8;
    if (layout == WITH_ALIGNED_GAPS)
        tensor.view = (pagedcl_tensor){.offset = 8, .head_stride = padded, .token_stride = heads * padded + 16};
    size_t row_bytes = (size_t)head_dim * pagedcl_dtype_size(dtype);
    int64_t allocated = tokens + spare_tokens;
    size_t bytes = allocated ? row_begin(&tensor, allocated - 1, heads - 1) + row_bytes : 0;
    char *content = fixture_poisoned(bytes);
    for (int64_t t = 0; values && t < tokens; t++) {
        for (int32_t h = 0; h < heads; h++)
            elements_from_floats(dtype, row_values(&tensor, values, t, h), head_dim,
                                 content + row_begin(&tensor, t, h));
    }
    tensor.buffer = guarded_create(device, bytes, content);
    tensor.view.mem = tensor.buffer.mem;
    free(content);
    return tensor;
}

float *strided_read(const pagedcl_device *device, const strided *tensor, const char *name) {
    char *content = guarded_read(device, &tensor->buffer, name);
    char *poison = fixture_poisoned(tensor->buffer.bytes);
    float *values =
        fixture_alloc((size_t)tensor->tokens * (size_t)tensor->heads * (size_t)tensor->head_dim * sizeof(float));
    for (int64_t t = 0; t < tensor->tokens; t++) {
        for (int32_t h = 0; h < tensor->heads; h++) {
            char *row = content + row_begin(tensor, t, h);
            elements_to_floats(tensor->dtype, row, tensor->head_dim,
                               values + (t * tensor->heads + h) * tensor->head_dim);
            memset(row, POISON, (size_t)tensor->head_dim * pagedcl_dtype_size(tensor->dtype));
        }
    }
    expect_same_bytes(name, "bytes that no row owns", content, poison, tensor->buffer.bytes);
    free(content);
    free(poison);
    return values;
}

void strided_destroy(strided *tensor) {
    guarded_destroy(&tensor->buffer);
}
