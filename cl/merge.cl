/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merges two partial results; include/pagedcl/merge.h has the formula. One work-item takes one token and head, so that
 * out and lse may be a or b. Launch: one dimension of num_tokens * NUM_HEADS work-items or more.
 */
#include "lib/types.h"

/* layouts: x offset, y token stride, z head stride, in elements. lse_offset below 0: no LSE is wanted. */
__kernel void merge(const __global STORAGE(OUT) *a, long4 a_layout, const __global float *lse_a, long lse_a_offset,
                    const __global STORAGE(OUT) *b, long4 b_layout, const __global float *lse_b, long lse_b_offset,
                    __global STORAGE(OUT) *out, long4 out_layout, __global float *lse, long lse_offset,
                    long num_tokens) {
    long i = (long)get_global_id(0);
    if (i >= num_tokens * NUM_HEADS)
        return;
    long token = i / NUM_HEADS;
    int head = (int)(i % NUM_HEADS);
    float x = lse_a[lse_a_offset + i];
    float y = lse_b[lse_b_offset + i];
    float base = fmax(x, y);
    float weight_a = x == -INFINITY ? 0 : exp(x - base);
    float weight_b = y == -INFINITY ? 0 : exp(y - base);
    float sum = weight_a + weight_b;
    const long at_a = a_layout.x + token * a_layout.y + head * a_layout.z;
    const long at_b = b_layout.x + token * b_layout.y + head * b_layout.z;
    const long at_out = out_layout.x + token * out_layout.y + head * out_layout.z;
    for (int d = 0; d < HEAD_DIM; d += 8) {
        float8 value_a = ROW_LOAD8(OUT, a, at_a, d, HEAD_DIM);
        float8 value_b = ROW_LOAD8(OUT, b, at_b, d, HEAD_DIM);
        float8 value = 0;
        if (weight_a != 0)
            value += weight_a / sum * value_a;
        if (weight_b != 0)
            value += weight_b / sum * value_b;
        ROW_STORE8(OUT, value, out, at_out, d, HEAD_DIM);
    }
    if (lse_offset >= 0)
        lse[lse_offset + i] = sum == 0 ? -INFINITY : base + log(sum);
}
