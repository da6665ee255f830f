/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by a work-group, portable tier: TUNE_ROWS rows of a problem against tiles of TUNE_KEYS keys, which the
 * work-group shares through local memory. Online softmax in base 2.
 *
 * All TUNE_ values are powers of two; TUNE_ROWS and TUNE_KEYS are at most TUNE_WG, the size of the work-group, and that
 * is at most TUNE_ROWS * TUNE_KEYS: no work-item is without scores. A tile with no more than TUNE_FEW_ROWS rows computes
 * no others; a row's additions are the same in either.
 */
#ifndef ATTN_TILE_H
#define ATTN_TILE_H

#include "lib/attn_problem.h"
#include "lib/attn_result.h"

/* Odd, so that a column of the tile lies in as many banks as it has rows. */
#define TILE_STRIDE ((K_PADDED > V_PADDED ? K_PADDED : V_PADDED) + 1)

/* Scores: work-item l has key l % TUNE_KEYS of rows l / TUNE_KEYS, + SCORE_STEP, ... */
#define SCORE_STEP (TUNE_WG / TUNE_KEYS)
#define SCORES (TUNE_ROWS / SCORE_STEP)

/* Softmax: SOFTMAX_LANES work-items share a row. */
#define SOFTMAX_LANES (TUNE_WG / TUNE_ROWS)
#define SOFTMAX_KEYS (TUNE_KEYS / SOFTMAX_LANES)

/* Output: work-item l has elements l % OUT_LANES, + OUT_LANES, ... of rows l / OUT_LANES, + OUT_STEP, ... */
#define OUT_LANES (TUNE_WG < HEAD_DIM_V ? TUNE_WG : HEAD_DIM_V)
#define OUT_STEP (TUNE_WG / OUT_LANES)
#define OUT_COLUMNS ((HEAD_DIM_V + OUT_LANES - 1) / OUT_LANES)
#define OUT_ROWS ((TUNE_ROWS + OUT_STEP - 1) / OUT_STEP)

/* Work-items that a thread of Intel's GPUs takes: by the compiler's own choice they may be too many for its registers. */
#if !defined(TUNE_SUB_GROUP) || !defined(TUNE_FEW_ROWS)
#error TUNE_SUB_GROUP or TUNE_FEW_ROWS is missing
#endif
#if TUNE_SUB_GROUP > 0
#define SUB_GROUP __attribute__((intel_reqd_sub_group_size(TUNE_SUB_GROUP)))
#else
#define SUB_GROUP
#endif

typedef struct tile_memory {
    __local float *q;      /* [TUNE_ROWS][K_PADDED], scaled */
    __local float *kv;     /* [TUNE_KEYS][TILE_STRIDE], a tile of K, then of V */
    __local float *scores; /* [TUNE_ROWS][TUNE_KEYS + 1], then their exponentials */
    __local float *lanes;  /* [TUNE_ROWS][SOFTMAX_LANES] */
    __local float *rows;   /* [TUNE_ROWS] */
} tile_memory;

/* Declares the local memory of a kernel. */
#define TILE_MEMORY(name)                                                                                              \
    __local float name##_q[TUNE_ROWS * K_PADDED];                                                                      \
    __local float name##_kv[TUNE_KEYS * TILE_STRIDE];                                                                  \
    __local float name##_scores[TUNE_ROWS * (TUNE_KEYS + 1)];                                                          \
    __local float name##_lanes[TUNE_ROWS * SOFTMAX_LANES];                                                             \
    __local float name##_rows[TUNE_ROWS];                                                                              \
    tile_memory name = {name##_q, name##_kv, name##_scores, name##_lanes, name##_rows}

static void tile_store8(__local float *to, float8 x) {
    to[0] = x.s0;
    to[1] = x.s1;
    to[2] = x.s2;
    to[3] = x.s3;
    to[4] = x.s4;
    to[5] = x.s5;
    to[6] = x.s6;
    to[7] = x.s7;
}

/* Query rows behind the last are zeros. */
static void tile_load_q(const attn_problem *p, const __global STORAGE(Q) * q, long4 q_layout, tile_memory m) {
    for (int i = get_local_id(0); i < TUNE_ROWS * K_VECTORS; i += TUNE_WG) {
        int row = p->first_row + i / K_VECTORS;
        int d = i % K_VECTORS * 8;
        tile_store8(m.q + i / K_VECTORS * K_PADDED + d, row < p->num_rows ? query8(p, q, q_layout, row, d) : (float8)0);
    }
}

/* Keys outside begin .. p->key_end - 1, and those without a block, are zeros: nothing there is read. */
static void tile_load_keys(const attn_problem *p, int first, int begin, tile_memory m) {
    for (int i = get_local_id(0); i < TUNE_KEYS * K_VECTORS; i += TUNE_WG) {
        int d = i % K_VECTORS * 8;
        int position = first + i / K_VECTORS;
        bool inside = position >= begin && position < p->key_end && problem_has(p, position);
        tile_store8(m.kv + i / K_VECTORS * TILE_STRIDE + d, inside ? key8(p, position, d) : (float8)0);
    }
}
static void tile_load_values(const attn_problem *p, int first, int begin, tile_memory m) {
    for (int i = get_local_id(0); i < TUNE_KEYS * V_VECTORS; i += TUNE_WG) {
        int d = i % V_VECTORS * 8;
        int position = first + i / V_VECTORS;
        bool inside = position >= begin && position < p->key_end && problem_has(p, position);
        tile_store8(m.kv + i / V_VECTORS * TILE_STRIDE + d, inside ? value8(p, position, d) : (float8)0);
    }
}

/* Scores of the first `rows` rows of the tile, a constant, -infinity for the rest. */
static void tile_scores(const attn_problem *p, int first, tile_memory m, const int rows) {
    int key = get_local_id(0) % TUNE_KEYS;
    int start = get_local_id(0) / TUNE_KEYS;
    /* Indexed by constants alone, once the loops are unrolled: so it lies in registers. The same below. */
    float sums[SCORES];
#pragma unroll
    for (int s = 0; s < SCORES; s++)
        sums[s] = 0;
    for (int d = 0; d < HEAD_DIM; d++) {
        float k = m.kv[key * TILE_STRIDE + d];
#pragma unroll
        for (int s = 0; s < SCORES; s++)
            if (s * SCORE_STEP < rows)
                sums[s] += m.q[(start + s * SCORE_STEP) * K_PADDED + d] * k;
    }
#pragma unroll
    for (int s = 0; s < SCORES; s++) {
        int row = start + s * SCORE_STEP;
        m.scores[row * (TUNE_KEYS + 1) + key] =
            s * SCORE_STEP < rows && p->first_row + row < p->num_rows
                ? problem_score(p, p->first_row + row, first + key, sums[s])
                : -INFINITY;
    }
}

/* acc = acc * rescale + the values, weighted, for the first `rows` rows of the tile, a constant. masked: some weights
   are 0 because the row does not see the value, which may be NaN and must not be met. */
static void tile_accumulate(float acc[OUT_ROWS][OUT_COLUMNS], tile_memory m, bool masked, const int rows) {
    const int out_row = get_local_id(0) / OUT_LANES;
    const int out_lane = get_local_id(0) % OUT_LANES;
#pragma unroll
    for (int r = 0; r < OUT_ROWS; r++) {
        float out_rescale = m.rows[min(out_row + r * OUT_STEP, TUNE_ROWS - 1)];
#pragma unroll
        for (int c = 0; c < OUT_COLUMNS; c++)
            if (r * OUT_STEP < rows)
                acc[r][c] *= out_rescale;
    }
    for (int j = 0; j < TUNE_KEYS; j++)
#pragma unroll
        for (int c = 0; c < OUT_COLUMNS; c++) {
            float value = m.kv[j * TILE_STRIDE + min(out_lane + c * OUT_LANES, HEAD_DIM_V - 1)];
#pragma unroll
            for (int r = 0; r < OUT_ROWS; r++)
                if (r * OUT_STEP < rows) {
                    int row = min(out_row + r * OUT_STEP, TUNE_ROWS - 1);
                    float weight = m.scores[row * (TUNE_KEYS + 1) + j];
                    float sum = acc[r][c] + weight * value;
                    acc[r][c] = masked && weight == 0 ? acc[r][c] : sum;
                }
        }
}

/* Runs the tile's rows over the part's keys, and stores their results. */
static void attn_tile(const attn_problem *p, const __global STORAGE(Q) * q, long4 q_layout, tile_memory m,
                      attn_result_target target) {
    const int lane = get_local_id(0);
    const int soft_row = lane / SOFTMAX_LANES;
    const int soft_lane = lane % SOFTMAX_LANES;
    const int out_row = lane / OUT_LANES;
    const int out_lane = lane % OUT_LANES;
    const int last_row = min(p->first_row + TUNE_ROWS, p->num_rows) - 1;
    const bool few = TUNE_FEW_ROWS < TUNE_ROWS && last_row - p->first_row < TUNE_FEW_ROWS;
    /* Keys that some row sees: tiles without any are left out. Whole tiles are counted from the part's beginning, so
       that a row's additions have the same order whatever rows share its tile. */
    const int begin = max(p->key_begin, problem_low(p, p->first_row));
    const int end = min(p->key_end, problem_high(p, last_row));
    /* Keys that all rows see. */
    const int full_begin = problem_low(p, last_row);
    const int full_end = min(problem_high(p, p->first_row), WITH_TREE ? p->k_len - p->q_len : p->k_len);

    float row_max = -INFINITY;
    float lane_sum = 0;
    float acc[OUT_ROWS][OUT_COLUMNS];
#pragma unroll
    for (int r = 0; r < OUT_ROWS; r++)
#pragma unroll
        for (int c = 0; c < OUT_COLUMNS; c++)
            acc[r][c] = 0;

    tile_load_q(p, q, q_layout, m);
    for (int first = p->key_begin + (begin - p->key_begin) / TUNE_KEYS * TUNE_KEYS; first < end; first += TUNE_KEYS) {
        tile_load_keys(p, first, begin, m);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (few)
            tile_scores(p, first, m, TUNE_FEW_ROWS);
        else
            tile_scores(p, first, m, TUNE_ROWS);
        barrier(CLK_LOCAL_MEM_FENCE);

        float lane_max = -INFINITY;
        for (int j = 0; j < SOFTMAX_KEYS; j++)
            lane_max = fmax(lane_max, m.scores[soft_row * (TUNE_KEYS + 1) + soft_lane + j * SOFTMAX_LANES]);
        m.lanes[soft_row * SOFTMAX_LANES + soft_lane] = lane_max;
        /* No other branch on the lane may stand between these barriers: PoCL 3.1 drops the first of two. */
        tile_load_values(p, first, begin, m);
        barrier(CLK_LOCAL_MEM_FENCE);

        float new_max = row_max;
        for (int j = 0; j < SOFTMAX_LANES; j++)
            new_max = fmax(new_max, m.lanes[soft_row * SOFTMAX_LANES + j]);
        /* While a row has seen no key its maximum is -infinity, and infinity minus infinity would be NaN. */
        const float base = new_max == -INFINITY ? 0 : new_max;
        const float rescale = exp2(row_max - base);
        lane_sum *= rescale;
        for (int j = 0; j < SOFTMAX_KEYS; j++) {
            __local float *score = &m.scores[soft_row * (TUNE_KEYS + 1) + soft_lane + j * SOFTMAX_LANES];
            float weight = exp2(*score - base);
            *score = weight;
            lane_sum += weight;
        }
        row_max = new_max;
        if (soft_lane == 0)
            m.rows[soft_row] = rescale;
        barrier(CLK_LOCAL_MEM_FENCE);

        const bool masked = first < full_begin || first + TUNE_KEYS > full_end;
        if (few)
            tile_accumulate(acc, m, masked, TUNE_FEW_ROWS);
        else
            tile_accumulate(acc, m, masked, TUNE_ROWS);
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    /* The sums of the lanes, then what to divide by through local memory to those who have a row's output. */
    m.lanes[soft_row * SOFTMAX_LANES + soft_lane] = lane_sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (soft_lane == 0 && p->first_row + soft_row < p->num_rows) {
        float row_sum = 0;
        for (int j = 0; j < SOFTMAX_LANES; j++)
            row_sum += m.lanes[soft_row * SOFTMAX_LANES + j];
        m.rows[soft_row] = result_store_sums(p, &target, p->first_row + soft_row, row_max, row_sum);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int r = 0; r < OUT_ROWS; r++) {
        int row = out_row + r * OUT_STEP;
        if (row < TUNE_ROWS && out_row < OUT_STEP && p->first_row + row < p->num_rows)
#pragma unroll
            for (int c = 0; c < OUT_COLUMNS; c++)
                if (out_lane + c * OUT_LANES < HEAD_DIM_V)
                    result_store1(p, &target, p->first_row + row, out_lane + c * OUT_LANES, acc[r][c], m.rows[row]);
    }
}

#endif
