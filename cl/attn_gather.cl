/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the gather baseline does around its two matrix products. It computes on float32; the products are CLBlast's.
 * Roles: Q, KV, OUT. TUNE_WG: work-items that share a row of scores, a power of two.
 */
#include "lib/types.h"

/*
 * Strided elements of a dtype to contiguous floats: to is [tokens, heads, head_dim]. A work-item moves 8 elements.
 * Launch: (head_dim / 8, heads, tokens).
 */
#define LOAD_KERNEL(role, name)                                                                                       \
    __kernel void name(const __global STORAGE(role) *from, long offset, long token_stride, long head_stride,         \
                       __global float *to) {                                                                         \
        long token = (long)get_global_id(2);                                                                         \
        long head = (long)get_global_id(1);                                                                          \
        long d = (long)get_global_id(0) * 8;                                                                         \
        long row = token * (long)get_global_size(1) + head;                                                          \
        float8 x = LOAD8(role)(from + offset + token * token_stride + head * head_stride + d);                       \
        vstore8(x, 0, to + row * (long)get_global_size(0) * 8 + d);                                                  \
    }
LOAD_KERNEL(Q, attn_gather_load_q)
LOAD_KERNEL(KV, attn_gather_load_kv)

/* How many keys a query row sees: the first ones. */
static int visible_keys(int row, int seqlen_q, int seqlen_k, int causal) {
    return causal ? max(0, row + 1 + seqlen_k - seqlen_q) : seqlen_k;
}

/* scratch[0 .. TUNE_WG) reduced to its largest element, or its sum. */
static float reduce_max(__local float *scratch, float x) {
    int i = (int)get_local_id(0);
    scratch[i] = x;
    for (int half_way = TUNE_WG / 2; half_way > 0; half_way /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (i < half_way)
            scratch[i] = fmax(scratch[i], scratch[i + half_way]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    x = scratch[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    return x;
}
static float reduce_sum(__local float *scratch, float x) {
    int i = (int)get_local_id(0);
    scratch[i] = x;
    for (int half_way = TUNE_WG / 2; half_way > 0; half_way /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (i < half_way)
            scratch[i] += scratch[i + half_way];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    x = scratch[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    return x;
}

/*
 * One sequence: its scores [num_heads, seqlen_q, seqlen_k] become probabilities, those of keys that a row does not see
 * 0, and lse [seqlen_q, num_heads] from lse_offset on is written (below 0: not wanted). A work-group takes a row.
 * Launch: (seqlen_q * TUNE_WG, num_heads).
 */
__kernel __attribute__((reqd_work_group_size(TUNE_WG, 1, 1))) void
attn_gather_softmax(__global float *scores, int seqlen_q, int seqlen_k, int causal, __global float *lse,
                    long lse_offset) {
    __local float scratch[TUNE_WG];
    const int lane = (int)get_local_id(0);
    const long row = (long)get_group_id(0);
    const long head = (long)get_group_id(1);
    const int visible = visible_keys((int)row, seqlen_q, seqlen_k, causal);
    __global float *score = scores + (head * seqlen_q + row) * seqlen_k;

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

    for (int j = lane; j < visible; j += TUNE_WG)
        score[j] *= scale;
    for (int j = visible + lane; j < seqlen_k; j += TUNE_WG)
        score[j] = 0;
    if (lane == 0 && lse_offset >= 0)
        lse[lse_offset + row * (long)get_num_groups(1) + head] = row_sum == 0 ? -INFINITY : row_max + log(row_sum);
}

/*
 * One sequence: result [seqlen_q, num_heads, head_dim] to strided elements of out; 0 where a row sees no key, whatever
 * result holds. Launch: (head_dim / 8, num_heads, seqlen_q).
 */
__kernel void attn_gather_store(const __global float *result, int seqlen_q, int seqlen_k, int causal,
                                __global STORAGE(OUT) *out, long offset, long token_stride, long head_stride) {
    long row = (long)get_global_id(2);
    long head = (long)get_global_id(1);
    long d = (long)get_global_id(0) * 8;
    float8 x = 0;
    if (visible_keys((int)row, seqlen_q, seqlen_k, causal) > 0)
        x = vload8(0, result + (row * (long)get_global_size(1) + head) * (long)get_global_size(0) * 8 + d);
    STORE8(OUT)(x, out + offset + row * token_stride + head * head_stride + d);
}
