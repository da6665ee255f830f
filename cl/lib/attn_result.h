/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the result of a row goes: to out and lse when one part holds all keys of its sequence, else to the partial
 * results, un-normalised, for attn_merge. A partial row is HEAD_DIM floats in partial_acc and its maximum (base 2) and
 * sum in partial_sums; row index: sequence's start + (split * q_len + token) * NUM_HEADS + head.
 */
#ifndef ATTN_RESULT_H
#define ATTN_RESULT_H

#include "lib/attn_problem.h"

#define LOG2_E 1.44269504088896340736f
#define LN_2 0.69314718055994530942f

#if WITH_SPLITS
#define RESULT_PARAMS                                                                                                  \
    __global STORAGE(OUT) *out, long4 out_layout, __global float *lse, long lse_offset, __global float *partial_acc,   \
        __global float *partial_sums
#define RESULT_TARGET {out, out_layout, lse, lse_offset, partial_acc, partial_sums}
#else
#define RESULT_PARAMS __global STORAGE(OUT) *out, long4 out_layout, __global float *lse, long lse_offset
#define RESULT_TARGET {out, out_layout, lse, lse_offset}
#endif

typedef struct attn_result_target {
    __global STORAGE(OUT) *out;
    long4 out_layout;
    __global float *lse;
    long lse_offset; /* below 0: no LSE is wanted */
#if WITH_SPLITS
    __global float *partial_acc;
    __global float *partial_sums;
#endif
} attn_result_target;

#if WITH_SPLITS
static long partial_row(const attn_problem *p, int row) {
    long token = (long)p->split * p->q_len + row / GROUP;
    return p->partial_start + token * NUM_HEADS + problem_head(p, row);
}
#endif

/* Stores a row's maximum and sum. */
static void result_store_sums(const attn_problem *p, const attn_result_target *t, int row, float row_max,
                              float row_sum) {
#if WITH_SPLITS
    if (p->num_splits > 1) {
        long at = partial_row(p, row) * 2;
        t->partial_sums[at] = row_max;
        t->partial_sums[at + 1] = row_sum;
        return;
    }
#endif
    if (t->lse_offset >= 0)
        t->lse[t->lse_offset + problem_token(p, row) * NUM_HEADS + problem_head(p, row)] =
            row_sum == 0 ? -INFINITY : row_max * LN_2 + log(row_sum);
}

/* Where element d of a row of out lies. */
static long result_out_at(const attn_problem *p, const attn_result_target *t, int row) {
    return layout_at(t->out_layout, problem_token(p, row), problem_head(p, row));
}

/* Stores element d of a row. */
static void result_store1(const attn_problem *p, const attn_result_target *t, int row, int d, float acc,
                          float row_sum) {
#if WITH_SPLITS
    if (p->num_splits > 1) {
        t->partial_acc[partial_row(p, row) * HEAD_DIM + d] = acc;
        return;
    }
#endif
    STORE1(OUT)(row_sum == 0 ? 0 : acc / row_sum, t->out + result_out_at(p, t, row) + d);
}

/* Stores elements d .. d + 7 of a row. */
static void result_store8(const attn_problem *p, const attn_result_target *t, int row, int d, float8 acc,
                          float row_sum) {
#if WITH_SPLITS
    if (p->num_splits > 1) {
        vstore8(acc, 0, t->partial_acc + partial_row(p, row) * HEAD_DIM + d);
        return;
    }
#endif
    STORE8(OUT)(row_sum == 0 ? (float8)0 : acc / row_sum, t->out + result_out_at(p, t, row) + d);
}

#endif
