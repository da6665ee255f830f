/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merges two partial results; include/pagedcl/merge.h has the formula. TUNE_ITEMS work-items of a work-group of TUNE_WG
 * share a row, one token and head, and take 8 of its elements each: the next 8 are its neighbour's, and the last one's
 * are followed by the first one's. out and lse may be a or b. Launch: one dimension of
 * ceil(num_tokens * NUM_HEADS / GROUP_ROWS) work-groups or more.
 */
#include "lib/types.h"

#if !defined(NUM_HEADS) || !defined(HEAD_DIM) || !defined(TUNE_ITEMS) || !defined(TUNE_WG)
#error a macro of merge.cl is missing
#endif
#define GROUP_ROWS (TUNE_WG / TUNE_ITEMS)

/* layouts: x offset, y token stride, z head stride, in elements. lse_offset below 0: no LSE is wanted. */
__kernel __attribute__((reqd_work_group_size(TUNE_WG, 1, 1))) void
merge(const __global STORAGE(OUT) *a, long4 a_layout, const __global float *lse_a, long lse_a_offset,
      const __global STORAGE(OUT) *b, long4 b_layout, const __global float *lse_b, long lse_b_offset,
      __global STORAGE(OUT) *out, long4 out_layout, __global float *lse, long lse_offset, long num_tokens) {
    const int item = (int)get_local_id(0) % TUNE_ITEMS;
    const int group_row = (int)get_local_id(0) / TUNE_ITEMS;
    const long i = (long)get_group_id(0) * GROUP_ROWS + group_row;
    const bool inside = group_row < GROUP_ROWS && i < num_tokens * NUM_HEADS;
    float merged = 0;
    if (inside) {
        const long token = i / NUM_HEADS;
        const int head = (int)(i % NUM_HEADS);
        const float x = lse_a[lse_a_offset + i];
        const float y = lse_b[lse_b_offset + i];
        const float base = fmax(x, y);
        const float weight_a = x == -INFINITY ? 0 : exp(x - base);
        const float weight_b = y == -INFINITY ? 0 : exp(y - base);
        const float sum = weight_a + weight_b;
        const long at_a = a_layout.x + token * a_layout.y + head * a_layout.z;
        const long at_b = b_layout.x + token * b_layout.y + head * b_layout.z;
        const long at_out = out_layout.x + token * out_layout.y + head * out_layout.z;
        const bool aligned = IS_RAW8_ALIGNED(OUT, a, a_layout.x | a_layout.y | a_layout.z) &&
                             IS_RAW8_ALIGNED(OUT, b, b_layout.x | b_layout.y | b_layout.z) &&
                             IS_RAW8_ALIGNED(OUT, out, out_layout.x | out_layout.y | out_layout.z);
        for (int d = item * 8; d < HEAD_DIM; d += TUNE_ITEMS * 8) {
            const float8 value_a = ROW_LOAD_ALIGNED8(OUT, a, at_a, d, HEAD_DIM, aligned);
            const float8 value_b = ROW_LOAD_ALIGNED8(OUT, b, at_b, d, HEAD_DIM, aligned);
            float8 value = 0;
            if (weight_a != 0)
                value += weight_a / sum * value_a;
            if (weight_b != 0)
                value += weight_b / sum * value_b;
            ROW_STORE_ALIGNED8(OUT, value, out, at_out, d, HEAD_DIM, aligned);
        }
        merged = sum == 0 ? -INFINITY : base + log(sum);
    }
#if TUNE_ITEMS > 1
    /* lse may be what the row's other work-items are still to read. */
    barrier(CLK_GLOBAL_MEM_FENCE);
#endif
    if (inside && item == 0 && lse_offset >= 0)
        lse[lse_offset + i] = merged;
}
