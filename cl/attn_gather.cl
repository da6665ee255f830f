/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the gather baseline does around its two matrix products, which are CLBlast's, on float32.
 * Layouts: x offset, y token stride, z head stride, in elements. TUNE_WG: work-items that share a row of scores, a
 * power of two.
 */
#if !defined(Q_DTYPE) || !defined(KV_DTYPE) || !defined(OUT_DTYPE) || !defined(TUNE_WG)
#error a macro of attn_gather.cl is missing
#endif

#include "lib/types.h"

/* The eight elements of this work-item, launched as (head_dim / 8, heads, tokens). */
static long element_at(long4 layout) {
    return layout.x + (long)get_global_id(2) * layout.y + (long)get_global_id(1) * layout.z + (long)get_global_id(0) * 8;
}

/* Elements to floats. Launch: (head_dim / 8, heads, tokens). */
__kernel void attn_gather_load_q(const __global STORAGE(Q) *from, long4 from_layout, __global float *to,
                                 long4 to_layout) {
    vstore8(LOAD8(Q)(from, element_at(from_layout)), 0, to + element_at(to_layout));
}
__kernel void attn_gather_load_kv(const __global STORAGE(KV) *from, long4 from_layout, __global float *to,
                                  long4 to_layout) {
    vstore8(LOAD8(KV)(from, element_at(from_layout)), 0, to + element_at(to_layout));
}

/* How many keys a query row sees: the first ones. */
static int visible_keys(int row, int seqlen_q, int seqlen_k, int causal) {
    return causal ? max(0, seqlen_k - (seqlen_q - 1 - row)) : seqlen_k;
}

/* The largest x of the work-group, and the sum of all. The tree is the same for any batch, and so the result. */
static float reduce_max(__local float *scratch, float x) {
    int lane = (int)get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    scratch[lane] = x;
    for (int width = TUNE_WG / 2; width > 0; width /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane < width)
            scratch[lane] = fmax(scratch[lane], scratch[lane + width]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return scratch[0];
}
static float reduce_sum(__local float *scratch, float x) {
    int lane = (int)get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    scratch[lane] = x;
    for (int width = TUNE_WG / 2; width > 0; width /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane < width)
            scratch[lane] += scratch[lane + width];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return scratch[0];
}

/*
 * One sequence: its scores [num_heads, seqlen_q, seqlen_k], rows row_stride apart, become probabilities, those of keys
 * that a row does not see 0, and lse [seqlen_q, num_heads] from lse_offset on is written (below 0: not wanted). A
 * work-group takes a row.
 * Launch: (seqlen_q * TUNE_WG, num_heads).
 */
__kernel __attribute__((reqd_work_group_size(TUNE_WG, 1, 1))) void
attn_gather_softmax(__global float *scores, long row_stride, int seqlen_q, int seqlen_k, int causal,
                    __global float *lse, long lse_offset) {
    __local float scratch[TUNE_WG];
    const int lane = (int)get_local_id(0);
    const long row = (long)get_group_id(0);
    const long head = (long)get_group_id(1);
    const int visible = visible_keys((int)row, seqlen_q, seqlen_k, causal);
    __global float *score = scores + (head * seqlen_q + row) * row_stride;

    float row_max = -INFINITY;
    for (int j = lane; j < visible; j += TUNE_WG)
        row_max = fmax(row_max, score[j]);
    row_max = reduce_max(scratch, row_max);
    const float base = row_max == -INFINITY ? 0 : row_max;

    float row_sum = 0;
    for (int j = lane; j < visible; j += TUNE_WG) {
        float p = exp(score[j] - base);
        score[j] = p;
        row_sum += p;
    }
    row_sum = reduce_sum(scratch, row_sum);
    const float scale = row_sum == 0 ? 0 : 1 / row_sum;

    for (int j = lane; j < seqlen_k; j += TUNE_WG)
        score[j] = j < visible ? score[j] * scale : 0;
    if (lane == 0 && lse_offset >= 0)
        lse[lse_offset + row * (long)get_num_groups(1) + head] = row_sum == 0 ? -INFINITY : row_max + log(row_sum);
}

/*
 * One sequence: floats to elements of out; 0 where a row sees no key, whatever result holds.
 * Launch: (head_dim / 8, num_heads, seqlen_q).
 */
__kernel void attn_gather_store(const __global float *result, long4 result_layout, int seqlen_q, int seqlen_k,
                                int causal, __global STORAGE(OUT) *out, long4 out_layout) {
    float8 x = 0;
    if (visible_keys((int)get_global_id(2), seqlen_q, seqlen_k, causal) > 0)
        x = vload8(0, result + element_at(result_layout));
    STORE8(OUT)(x, out, element_at(out_layout));
}
