/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a Qwen3 layer computes between its matrix products and its attention, float32. GROUP is the size of the
 * work-groups that reduce a row: a power of two.
 */
#ifndef GROUP
#error "GROUP is not defined"
#endif

/* The sum of `value` over the work-group, for each of its work-items. Global memory that any of them read before, each
   may write after. */
float group_sum(float value, __local float *partial) {
    const int item = (int)get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE); /* the sum before may still be read */
    partial[item] = value;
    for (int half_size = GROUP / 2; half_size > 0; half_size /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < half_size)
            partial[item] += partial[item + half_size];
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    return partial[0];
}

/* Row r of `out` is row rows[r] of `table`. Global size: (width, number of rows). */
__kernel void take_rows(__global const float *table, __global const int *rows, __global float *out) {
    const size_t column = get_global_id(0), width = get_global_size(0), row = get_global_id(1);
    out[row * width + column] = table[(size_t)rows[row] * width + column];
}

/* RMSNorm of each row. One work-group a row. */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
rms_norm(__global const float *in, __global const float *weight, __global float *out, const int width, const float eps) {
    __local float partial[GROUP];
    const size_t row = get_group_id(0) * (size_t)width;
    float sum = 0.0f;
    for (int i = (int)get_local_id(0); i < width; i += GROUP)
        sum += in[row + i] * in[row + i];
    const float scale = rsqrt(group_sum(sum, partial) / (float)width + eps);
    for (int i = (int)get_local_id(0); i < width; i += GROUP)
        out[row + i] = in[row + i] * scale * weight[i];
}

/*
 * In place: RMSNorm of each query and key head, then rotary embedding of its two halves by the row's position.
 * qkv: [rows, num_heads + 2 * num_kv_heads, head_dim]. One work-group a head: (num_heads + num_kv_heads, rows).
 */
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
norm_rotate(__global float *qkv, __global const float *q_norm, __global const float *k_norm,
            __global const float *frequencies, __global const int *positions, const int num_heads,
            const int num_kv_heads, const int head_dim, const float eps) {
    __local float partial[GROUP];
    const int head = (int)get_group_id(0), row = (int)get_group_id(1), pairs = head_dim / 2;
    __global float *x = qkv + ((size_t)row * (num_heads + 2 * num_kv_heads) + head) * head_dim;
    __global const float *weight = head < num_heads ? q_norm : k_norm;
    float sum = 0.0f;
    for (int i = (int)get_local_id(0); i < head_dim; i += GROUP)
        sum += x[i] * x[i];
    const float scale = rsqrt(group_sum(sum, partial) / (float)head_dim + eps);
    for (int i = (int)get_local_id(0); i < pairs; i += GROUP) {
        const float angle = (float)positions[row] * frequencies[i];
        const float c = cos(angle), s = sin(angle);
        const float a = x[i] * scale * weight[i], b = x[pairs + i] * scale * weight[pairs + i];
        x[i] = a * c - b * s;
        x[pairs + i] = b * c + a * s;
    }
}

/* silu(gate) * up, each row of gate_up holding the gates and then the ups. Global size: (width, rows). */
__kernel void silu_multiply(__global const float *gate_up, __global float *out) {
    const size_t column = get_global_id(0), width = get_global_size(0), row = get_global_id(1);
    const float gate = gate_up[row * 2 * width + column];
    out[row * width + column] = gate / (1.0f + exp(-gate)) * gate_up[(row * 2 + 1) * width + column];
}
