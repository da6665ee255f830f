/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by a work-group, portable tier: TUNE_ROWS rows of a problem against tiles of TUNE_KEYS keys, which the
 * work-group shares through local memory. Online softmax in base 2: scores are q.k * scale * log2(e).
 *
 * All TUNE_ values are powers of two; TUNE_ROWS and TUNE_KEYS are at most TUNE_WG, the size of the work-group.
 */
#ifndef ATTN_TILE_H
#define ATTN_TILE_H

#include "lib/attn_problem.h"
#include "lib/attn_result.h"

/* Odd, so that a column of the tile lies in as many banks as it has rows. */
#define TILE_STRIDE (HEAD_DIM + 1)

/* Scores: work-item l has key l % TUNE_KEYS of rows l / TUNE_KEYS, + SCORE_STEP, ... */
#define SCORE_STEP (TUNE_WG / TUNE_KEYS)
#define SCORES ((TUNE_ROWS + SCORE_STEP - 1) / SCORE_STEP)

/* Softmax: SOFTMAX_LANES work-items share a row. */
#define SOFTMAX_LANES (TUNE_WG / TUNE_ROWS < TUNE_KEYS ? TUNE_WG / TUNE_ROWS : TUNE_KEYS)
#define SOFTMAX_KEYS (TUNE_KEYS / SOFTMAX_LANES)

/* Output: work-item l has elements l % OUT_LANES, + OUT_LANES, ... of rows l / OUT_LANES, + OUT_STEP, ... */
#define OUT_LANES (TUNE_WG < HEAD_DIM ? TUNE_WG : HEAD_DIM)
#define OUT_STEP (TUNE_WG / OUT_LANES)
#define OUT_COLUMNS ((HEAD_DIM + OUT_LANES - 1) / OUT_LANES)
#define OUT_ROWS ((TUNE_ROWS + OUT_STEP - 1) / OUT_STEP)

typedef struct tile_memory {
    __local float *q;      /* [TUNE_ROWS][HEAD_DIM], scaled */
    __local float *kv;     /* [TUNE_KEYS][TILE_STRIDE], a tile of K, then of V */
    __local float *scores; /* [TUNE_ROWS][TUNE_KEYS + 1], then their exponentials */
    __local float *lanes;  /* [TUNE_ROWS][SOFTMAX_LANES] */
    __local float *rows;   /* [TUNE_ROWS] */
} tile_memory;

/* Declares the local memory of a kernel. */
#define TILE_MEMORY(name)                                                                                              \
    __local float name##_q[TUNE_ROWS * HEAD_DIM];                                                                      \
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
static void tile_load_q(const attn_problem *p, const __global STORAGE(Q) * q, long4 q_layout, float scale_log2,
                        tile_memory m) {
    for (int i = get_local_id(0); i < TUNE_ROWS * VECTORS; i += TUNE_WG) {
        int row = i / VECTORS;
        int d = i % VECTORS * 8;
        float8 x = 0;
        if (p->first_row + row < p->num_rows) {
            long at = layout_at(q_layout, problem_token(p, p->first_row + row), problem_head(p, p->first_row + row));
            x = LOAD8(Q)(q + at + d) * scale_log2;
        }
        tile_store8(m.q + row * HEAD_DIM + d, x);
    }
}

/* Keys behind the last of the part are zeros: nothing there is read. */
static void tile_load_keys(const attn_problem *p, int first, tile_memory m) {
    for (int i = get_local_id(0); i < TUNE_KEYS * VECTORS; i += TUNE_WG) {
        int d = i % VECTORS * 8;
        int position = first + i / VECTORS;
        tile_store8(m.kv + i / VECTORS * TILE_STRIDE + d, position < p->key_end ? key8(p, position, d) : (float8)0);
    }
}
static void tile_load_values(const attn_problem *p, int first, tile_memory m) {
    for (int i = get_local_id(0); i < TUNE_KEYS * VECTORS; i += TUNE_WG) {
        int d = i % VECTORS * 8;
        int position = first + i / VECTORS;
        tile_store8(m.kv + i / VECTORS * TILE_STRIDE + d, position < p->key_end ? value8(p, position, d) : (float8)0);
    }
}

static void tile_scores(const attn_problem *p, int first, tile_memory m) {
    int key = get_local_id(0) % TUNE_KEYS;
    int start = get_local_id(0) / TUNE_KEYS;
    float sums[SCORES];
    for (int s = 0; s < SCORES; s++)
        sums[s] = 0;
    for (int d = 0; d < HEAD_DIM; d++) {
        float k = m.kv[key * TILE_STRIDE + d];
        for (int s = 0; s < SCORES; s++)
            sums[s] += m.q[min(start + s * SCORE_STEP, TUNE_ROWS - 1) * HEAD_DIM + d] * k;
    }
    for (int s = 0; s < SCORES; s++) {
        int row = start + s * SCORE_STEP;
        int position = first + key;
        bool seen = position < p->key_end && position < problem_limit(p, p->first_row + row);
        if (row < TUNE_ROWS)
            m.scores[row * (TUNE_KEYS + 1) + key] = seen ? sums[s] : -INFINITY;
    }
}

/*
 * Runs the tile's rows over keys p->key_begin .. p->key_end - 1. Row r of the tile gets, in the result, its running
 * maximum (base 2), sum, and the sum of weighted values.
 */
static void attn_tile(const attn_problem *p, const __global STORAGE(Q) * q, long4 q_layout, float scale_log2,
                      tile_memory m, attn_result_target target) {
    const int lane = get_local_id(0);
    const int soft_row = lane / SOFTMAX_LANES;
    const int soft_lane = lane % SOFTMAX_LANES;
    const int out_row = lane / OUT_LANES;
    const int out_lane = lane % OUT_LANES;
    const int last_row = min(p->first_row + TUNE_ROWS, p->num_rows) - 1;
    /* Rows see ever more keys: the first row's limit is where masking begins, the last row's is where keys end. */
    const int first_limit = problem_limit(p, p->first_row);
    const int end = min(p->key_end, problem_limit(p, last_row));

    float row_max = -INFINITY;
    float lane_sum = 0;
    float acc[OUT_ROWS][OUT_COLUMNS];
    for (int r = 0; r < OUT_ROWS; r++)
        for (int c = 0; c < OUT_COLUMNS; c++)
            acc[r][c] = 0;

    tile_load_q(p, q, q_layout, scale_log2, m);
    for (int first = p->key_begin; first < end; first += TUNE_KEYS) {
        tile_load_keys(p, first, m);
        barrier(CLK_LOCAL_MEM_FENCE);
        tile_scores(p, first, m);
        barrier(CLK_LOCAL_MEM_FENCE);

        tile_load_values(p, first, m);
        if (soft_row < TUNE_ROWS) {
            float lane_max = -INFINITY;
            for (int j = 0; j < SOFTMAX_KEYS; j++)
                lane_max = fmax(lane_max, m.scores[soft_row * (TUNE_KEYS + 1) + soft_lane + j * SOFTMAX_LANES]);
            m.lanes[soft_row * SOFTMAX_LANES + soft_lane] = lane_max;
        }
        barrier(CLK_LOCAL_MEM_FENCE);

        if (soft_row < TUNE_ROWS) {
            float new_max = row_max;
            for (int j = 0; j < SOFTMAX_LANES; j++)
                new_max = fmax(new_max, m.lanes[soft_row * SOFTMAX_LANES + j]);
            /* While a row has seen no key its maximum is -infinity, and infinity minus infinity would be NaN. */
            float base = new_max == -INFINITY ? 0 : new_max;
            float rescale = exp2(row_max - base);
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
        }
        barrier(CLK_LOCAL_MEM_FENCE);

        const bool masked = first + TUNE_KEYS > first_limit;
        for (int r = 0; r < OUT_ROWS; r++) {
            int row = min(out_row + r * OUT_STEP, TUNE_ROWS - 1);
            float rescale = m.rows[row];
            for (int c = 0; c < OUT_COLUMNS; c++)
                acc[r][c] *= rescale;
        }
        for (int j = 0; j < TUNE_KEYS; j++)
            for (int c = 0; c < OUT_COLUMNS; c++) {
                float value = m.kv[j * TILE_STRIDE + min(out_lane + c * OUT_LANES, HEAD_DIM - 1)];
                for (int r = 0; r < OUT_ROWS; r++) {
                    int row = min(out_row + r * OUT_STEP, TUNE_ROWS - 1);
                    float weight = m.scores[row * (TUNE_KEYS + 1) + j];
                    float sum = acc[r][c] + weight * value;
                    /* A value that the row does not see may be NaN: its zero weight must not meet it. */
                    acc[r][c] = masked && first + j >= problem_limit(p, p->first_row + row) ? acc[r][c] : sum;
                }
            }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    /* The sums of the lanes, then maximum and sum of every row through local memory to those who have its output. */
    if (soft_row < TUNE_ROWS)
        m.lanes[soft_row * SOFTMAX_LANES + soft_lane] = lane_sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (soft_row < TUNE_ROWS && soft_lane == 0) {
        float row_sum = 0;
        for (int j = 0; j < SOFTMAX_LANES; j++)
            row_sum += m.lanes[soft_row * SOFTMAX_LANES + j];
        m.rows[soft_row] = row_sum;
        if (p->first_row + soft_row < p->num_rows)
            result_store_sums(p, &target, p->first_row + soft_row, row_max, row_sum);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int r = 0; r < OUT_ROWS; r++) {
        int row = out_row + r * OUT_STEP;
        if (row < TUNE_ROWS && out_row < OUT_STEP && p->first_row + row < p->num_rows)
            for (int c = 0; c < OUT_COLUMNS; c++)
                if (out_lane + c * OUT_LANES < HEAD_DIM)
                    result_store1(p, &target, p->first_row + row, out_lane + c * OUT_LANES, acc[r][c], m.rows[row]);
    }
}

#endif
