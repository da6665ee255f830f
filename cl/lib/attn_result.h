/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the result of a row goes: to out and lse when one part holds all keys of its sequence, else to the partial
 * results, un-normalised, to be merged. A partial row is HEAD_DIM_V floats in partial_acc and its maximum (base 2) and
 * sum in partial_sums; row index: sequence's start + ((split - first split) * q_len + token) * NUM_HEADS + head.
 */
#ifndef ATTN_RESULT_H
#define ATTN_RESULT_H

#include "lib/attn_problem.h"

#define RESULT_PARAMS __global STORAGE(OUT) *out, long4 out_layout, __global float *lse, long lse_offset
#if TIER_NV_MMA
/* arrivals: how many parts of a tile's rows are there, for nv/merge.h; 0 before and after. */
#define PARTIAL_PARAMS __global float *partial_acc, __global float *partial_sums, __global int *arrivals
#define PARTIAL_TARGET partial_acc, partial_sums, arrivals
#else
#define PARTIAL_PARAMS __global float *partial_acc, __global float *partial_sums
#define PARTIAL_TARGET partial_acc, partial_sums
#endif
#if WITH_SPLITS
#define RESULT_TARGET {out, out_layout, lse, lse_offset, PARTIAL_TARGET}
#else
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
#if TIER_NV_MMA
    __global int *arrivals;
#endif
#endif
} attn_result_target;

/* The end of a row: what its accumulated values are divided by, and its LSE. */
typedef struct attn_row_end {
    float divisor; /* infinity makes the output 0 */
    float lse;
} attn_row_end;

/* From a row's maximum (base 2) and sum over all its keys. A sink is one more logit, without a value. */
static attn_row_end row_end(float row_max, float row_sum, const __global float *sinks, int head) {
    attn_row_end end;
#if WITH_SINKS
    float sink = sinks[head] * LOG2_E;
    float top = fmax(row_max, sink);
    float base = top == -INFINITY ? 0 : top;
    float keys = exp2(row_max - base);
    float sum = row_sum * keys + exp2(sink - base);
    end.divisor = keys == 0 ? INFINITY : sum / keys;
    end.lse = base * LN_2 + fast_log(sum);
#else
    (void)sinks;
    (void)head;
    end.divisor = row_sum == 0 ? INFINITY : row_sum;
    end.lse = row_sum == 0 ? -INFINITY : row_max * LN_2 + fast_log(row_sum);
#endif
    return end;
}

static void store_lse(__global float *lse, long lse_offset, long token, int head, float value) {
    if (lse_offset >= 0)
        lse[lse_offset + token * NUM_HEADS + head] = value;
}

#if WITH_SPLITS
static long partial_row(const attn_problem *p, int row) {
    long split = p->split - row_record(p, row, RECORD_FIRST_SPLIT, p->first_split);
    long token = split * p->q_len + row_token(p, row);
    return row_record(p, row, RECORD_PARTIAL_START, p->partial_start) + token * NUM_HEADS + problem_head(p, row);
}
#endif

/* What a row's values are to be divided by, from its maximum and sum. One of those who ask stores these, or the LSE. */
static float result_end(const attn_problem *p, const attn_result_target *t, int row, float row_max, float row_sum,
                        bool stores) {
#if WITH_SPLITS
    if (p->num_splits > 1) {
        long at = partial_row(p, row) * 2;
        if (stores) {
            t->partial_sums[at] = row_max;
            t->partial_sums[at + 1] = row_sum;
        }
        return 1;
    }
#endif
    attn_row_end end = row_end(row_max, row_sum, p->mask.sinks, problem_head(p, row));
    if (stores)
        store_lse(t->lse, t->lse_offset, problem_token(p, row), problem_head(p, row), end.lse);
    return end.divisor;
}
static float result_store_sums(const attn_problem *p, const attn_result_target *t, int row, float row_max,
                               float row_sum) {
    return result_end(p, t, row, row_max, row_sum, true);
}

/* Stores element d of a row. */
static void result_store1(const attn_problem *p, const attn_result_target *t, int row, int d, float acc,
                          float divisor) {
#if WITH_SPLITS
    if (p->num_splits > 1) {
        t->partial_acc[partial_row(p, row) * HEAD_DIM_V + d] = acc;
        return;
    }
#endif
    STORE1(OUT)(acc / divisor, t->out, layout_at(t->out_layout, problem_token(p, row), problem_head(p, row)) + d);
}

/* Stores elements d .. d + 7 of a row, as far as it reaches. */
static void result_store8(const attn_problem *p, const attn_result_target *t, int row, int d, float8 acc,
                          float divisor) {
#if WITH_SPLITS
    if (p->num_splits > 1) {
        store_upto8_float32(acc, t->partial_acc, partial_row(p, row) * HEAD_DIM_V + d, HEAD_DIM_V - d);
        return;
    }
#endif
    ROW_STORE8(OUT, acc / divisor, t->out,
               layout_at(t->out_layout, problem_token(p, row), problem_head(p, row)), d, HEAD_DIM_V);
}

#endif
