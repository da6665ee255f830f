/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by a work-group, portable tier, a few rows: TUNE_ROWS rows of a problem against tiles of TUNE_KEYS keys.
 * A twin of attn_tile.h for decode, which is a matter of reading: TEAM work-items read the row of a key together, 8
 * elements each, straight into registers, TEAM_KEYS keys and their values at once; the next tile's are on their way while
 * one is worked on. Only products, scores and weights go through local memory. Online softmax in base 2.
 *
 * All TUNE_ values are powers of two. A row's additions are the same whatever rows share its tile.
 */
#ifndef ATTN_TEAM_H
#define ATTN_TEAM_H

#include "lib/attn_problem.h"
#include "lib/attn_result.h"

#if !defined(TUNE_SUB_GROUP) || !defined(TUNE_FEW_ROWS)
#error TUNE_SUB_GROUP or TUNE_FEW_ROWS is missing
#endif
#define SUB_GROUP

#define TEAM ATTN_TEAM_OF(HEAD_DIM, HEAD_DIM_V)
#define TEAMS (TUNE_WG / TEAM)
#define TEAM_KEYS (TUNE_KEYS / TEAMS)

/* From one product's parts, one of each of the team, to the next; and of a row of scores: in different banks. */
#define PARTS_PITCH (TEAM + 4)
#define SCORES_PITCH (TUNE_KEYS + 4)

/* Sums that the teams have of a row in the end, and other uses of the same memory. */
#define PARTS_FLOATS (TUNE_KEYS * TUNE_ROWS * PARTS_PITCH)
#define ENDS_FLOATS (TUNE_WG * 8)

typedef struct tile_memory {
    __local float4 *q;      /* [TUNE_ROWS][TEAM * 2], scaled */
    __local float *parts;   /* [TUNE_KEYS][TUNE_ROWS][PARTS_PITCH]; in the end [TEAMS][TEAM * 8] */
    __local float *scores;  /* [TUNE_ROWS][SCORES_PITCH] */
    __local float *weights; /* [TUNE_KEYS][TUNE_ROWS] */
    __local float *rows;    /* [TUNE_ROWS] */
} tile_memory;

#define TILE_MEMORY(name)                                                                                        \
    __local float4 name##_q[TUNE_ROWS * TEAM * 2];                                                               \
    __local float4 name##_parts[(PARTS_FLOATS > ENDS_FLOATS ? PARTS_FLOATS : ENDS_FLOATS) / 4];                  \
    __local float4 name##_scores[TUNE_ROWS * SCORES_PITCH / 4];                                                  \
    __local float name##_weights[TUNE_KEYS * TUNE_ROWS];                                                         \
    __local float name##_rows[TUNE_ROWS];                                                                        \
    tile_memory name = {name##_q, (__local float *)name##_parts, (__local float *)name##_scores, name##_weights, \
                        name##_rows}

/* What a work-item reads of a tile: 8 elements of each of its team's keys and values, and their scales. */
typedef struct team_rows {
    RAW8(KV) k[TEAM_KEYS], v[TEAM_KEYS];
#if KV_QUANTIZED
    float k_scale[TEAM_KEYS], v_scale[TEAM_KEYS];
#endif
} team_rows;

static int team_position(int first, int i) {
    return first + i * TEAMS + (int)get_local_id(0) / TEAM;
}

/* Old keys at begin .. p->key_end - 1 of the tile that begins at `first`; zeros for others. aligned: whether each is one
   load; otherwise nothing is read here. */
static void team_read(const attn_problem *p, int first, int begin, bool aligned, team_rows *rows) {
    const int d = get_local_id(0) % TEAM * 8;
#pragma unroll
    for (int i = 0; i < TEAM_KEYS; i++) {
        const int position = team_position(first, i);
        const bool inside =
            aligned && position >= begin && position < min(p->key_end, p->new_first) && problem_has(p, position);
        rows->k[i] = 0;
        rows->v[i] = 0;
#if KV_QUANTIZED
        rows->k_scale[i] = rows->v_scale[i] = 0;
#endif
        if (inside && d < HEAD_DIM) {
            const pool_row row = key_row(p, position);
            rows->k[i] = *(const __global RAW8(KV) *)(row.base + UNIT(KV, row.at + d));
#if KV_QUANTIZED
            rows->k_scale[i] = pool_scale_at(row, d);
#endif
        }
        if (inside && d < HEAD_DIM_V) {
            const pool_row row = value_row(p, position);
            rows->v[i] = *(const __global RAW8(KV) *)(row.base + UNIT(KV, row.at + d));
#if KV_QUANTIZED
            rows->v_scale[i] = pool_scale_at(row, d);
#endif
        }
    }
}

/* Whether all rows lie at multiples of the size of 8 elements. */
static bool team_is_aligned(const attn_problem *p) {
    const long all = p->keys.k.offset | p->keys.k.block_stride | p->keys.k.token_stride | p->keys.k.head_stride |
                     p->keys.v.offset | p->keys.v.block_stride | p->keys.v.token_stride | p->keys.v.head_stride;
    return (all & 7) == 0;
}

/* The values of what was read; those of keys from slow_first on, new ones or all, from where they are. */
static void team_keys(const attn_problem *p, const team_rows *rows, int first, int begin, int slow_first, float8 *k) {
    const int d = get_local_id(0) % TEAM * 8;
#pragma unroll
    for (int i = 0; i < TEAM_KEYS; i++) {
        k[i] = DECODE_RAW8(KV)(rows->k[i]);
#if KV_QUANTIZED
        k[i] *= rows->k_scale[i];
#endif
    }
    if (first + TUNE_KEYS <= slow_first)
        return;
#pragma unroll
    for (int i = 0; i < TEAM_KEYS; i++) {
        const int position = team_position(first, i);
        if (position >= max(begin, slow_first) && position < p->key_end && d < HEAD_DIM && problem_has(p, position))
            k[i] = key8(p, position, d);
    }
}
static void team_values(const attn_problem *p, const team_rows *rows, int first, int begin, int slow_first, float8 *v) {
    const int d = get_local_id(0) % TEAM * 8;
#pragma unroll
    for (int i = 0; i < TEAM_KEYS; i++) {
        v[i] = DECODE_RAW8(KV)(rows->v[i]);
#if KV_QUANTIZED
        v[i] *= rows->v_scale[i];
#endif
    }
    if (first + TUNE_KEYS <= slow_first)
        return;
#pragma unroll
    for (int i = 0; i < TEAM_KEYS; i++) {
        const int position = team_position(first, i);
        if (position >= max(begin, slow_first) && position < p->key_end && d < HEAD_DIM_V && problem_has(p, position))
            v[i] = value8(p, position, d);
    }
}

/* The products of a work-item's elements; few: of the first TUNE_FEW_ROWS rows. */
static void team_products(const float8 *k, tile_memory m, bool few) {
    const int team = get_local_id(0) / TEAM, lane = get_local_id(0) % TEAM;
#pragma unroll
    for (int r = 0; r < TUNE_ROWS; r++)
        if (r < TUNE_FEW_ROWS || !few) {
            const float8 q = (float8)(m.q[(r * TEAM + lane) * 2], m.q[(r * TEAM + lane) * 2 + 1]);
#pragma unroll
            for (int i = 0; i < TEAM_KEYS; i++) {
                float sum = q.s0 * k[i].s0;
                sum = fma(q.s1, k[i].s1, sum);
                sum = fma(q.s2, k[i].s2, sum);
                sum = fma(q.s3, k[i].s3, sum);
                sum = fma(q.s4, k[i].s4, sum);
                sum = fma(q.s5, k[i].s5, sum);
                sum = fma(q.s6, k[i].s6, sum);
                sum = fma(q.s7, k[i].s7, sum);
                m.parts[((i * TEAMS + team) * TUNE_ROWS + r) * PARTS_PITCH + lane] = sum;
            }
        }
}

/* acc = acc * rescale + the values, weighted. masked: as in attn_tile.h. */
static void team_accumulate(const float8 *v, tile_memory m, bool masked, bool few, float8 *acc) {
    const int team = get_local_id(0) / TEAM;
#pragma unroll
    for (int r = 0; r < TUNE_ROWS; r++)
        if (r < TUNE_FEW_ROWS || !few) {
            acc[r] *= m.rows[r];
#pragma unroll
            for (int i = 0; i < TEAM_KEYS; i++) {
                const float weight = m.weights[(i * TEAMS + team) * TUNE_ROWS + r];
                const float8 sum = acc[r] + weight * v[i];
                acc[r] = masked && weight == 0 ? acc[r] : sum;
            }
        }
}

/* Runs the tile's rows over the part's keys, and stores their results. */
static void attn_tile(const attn_problem *p, const __global STORAGE(Q) * q, long4 q_layout, tile_memory m,
                      attn_result_target target) {
    const int item = get_local_id(0);
    const int soft_row = item % TUNE_ROWS; /* of which a work-item has scores */
    const int last_row = min(p->first_row + TUNE_ROWS, p->num_rows) - 1;
    const bool few = TUNE_FEW_ROWS < TUNE_ROWS && last_row - p->first_row < TUNE_FEW_ROWS;
    /* As in attn_tile.h: keys that some row sees, and keys that all see. */
    const int begin = max(p->key_begin, problem_low(p, p->first_row));
    const int end = min(p->key_end, problem_high(p, last_row));
    const int full_begin = problem_low(p, last_row);
    const int full_end = min(problem_high(p, p->first_row), WITH_TREE ? p->k_len - p->q_len : p->k_len);
    const int start = p->key_begin + (begin - p->key_begin) / TUNE_KEYS * TUNE_KEYS;
    const bool aligned = team_is_aligned(p);
    const int slow_first = aligned ? p->new_first : 0;

    float row_max = -INFINITY, item_sum = 0;
    float8 acc[TUNE_ROWS];
#pragma unroll
    for (int r = 0; r < TUNE_ROWS; r++)
        acc[r] = 0;

    team_rows read, next;
    team_read(p, start, begin, aligned, &next);
    for (int i = item; i < TUNE_ROWS * TEAM; i += TUNE_WG) {
        const int row = p->first_row + i / TEAM, d = i % TEAM * 8;
        float8 x = 0;
        if (row < p->num_rows && d < HEAD_DIM)
            x = query8(p, q, q_layout, row, d);
        m.q[i * 2] = x.lo;
        m.q[i * 2 + 1] = x.hi;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int first = start; first < end; first += TUNE_KEYS) {
        read = next;
        team_read(p, first + TUNE_KEYS, begin, aligned, &next);
        float8 k[TEAM_KEYS], v[TEAM_KEYS];
        team_keys(p, &read, first, begin, slow_first, k);
        team_products(k, m, few);
        barrier(CLK_LOCAL_MEM_FENCE);

        for (int i = item; i < TUNE_ROWS * TUNE_KEYS; i += TUNE_WG) {
            const int key = i / TUNE_ROWS, row = p->first_row + soft_row;
            float score = -INFINITY;
            if (row < p->num_rows) {
                const __local float4 *parts = (const __local float4 *)(m.parts + i * PARTS_PITCH);
                float4 sum = parts[0];
#pragma unroll
                for (int j = 1; j < TEAM / 4; j++)
                    sum += parts[j];
                score = problem_score(p, row, first + key, sum.x + sum.y + (sum.z + sum.w));
            }
            m.scores[soft_row * SCORES_PITCH + key] = score;
        }
        barrier(CLK_LOCAL_MEM_FENCE);

        const __local float4 *scores = (const __local float4 *)(m.scores + soft_row * SCORES_PITCH);
        float4 most = scores[0];
#pragma unroll
        for (int j = 1; j < TUNE_KEYS / 4; j++)
            most = fmax(most, scores[j]);
        const float new_max = fmax(row_max, fmax(fmax(most.x, most.y), fmax(most.z, most.w)));
        /* While a row has seen no key its maximum is -infinity, and infinity minus infinity would be NaN. */
        const float base = new_max == -INFINITY ? 0 : new_max;
        const float rescale = exp2(row_max - base);
        row_max = new_max;
        item_sum *= rescale;
        for (int i = item; i < TUNE_ROWS * TUNE_KEYS; i += TUNE_WG) {
            const float weight = exp2(m.scores[soft_row * SCORES_PITCH + i / TUNE_ROWS] - base);
            m.weights[i] = weight;
            item_sum += weight;
        }
        if (item < TUNE_ROWS)
            m.rows[item] = rescale;
        barrier(CLK_LOCAL_MEM_FENCE);

        const bool masked = first < full_begin || first + TUNE_KEYS > full_end;
        team_values(p, &read, first, begin, slow_first, v);
        team_accumulate(v, m, masked, few, acc);
    }

    /* Sums of the work-items, then what to divide by through local memory to those who have a row's output. */
    barrier(CLK_LOCAL_MEM_FENCE);
    m.parts[item] = item_sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item < TUNE_ROWS && p->first_row + item < p->num_rows) {
        float row_sum = 0;
        for (int j = item; j < TUNE_WG; j += TUNE_ROWS)
            row_sum += m.parts[j];
        m.rows[item] = result_store_sums(p, &target, p->first_row + item, row_max, row_sum);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
    for (int r = 0; r < TUNE_ROWS; r++) {
        vstore8(acc[r], item, m.parts);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = item; i < HEAD_DIM_V && p->first_row + r <= last_row; i += TUNE_WG) {
            float x = 0;
#pragma unroll
            for (int t = 0; t < TEAMS; t++)
                x += m.parts[t * TEAM * 8 + i];
            result_store1(p, &target, p->first_row + r, i, x, m.rows[r]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

#endif
