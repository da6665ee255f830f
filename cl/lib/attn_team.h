/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by a work-group, portable tier, a few rows: TUNE_ROWS rows of a problem against tiles of TUNE_KEYS keys.
 * A twin of attn_tile.h for decode, which is a matter of reading. A team of TUNE_TEAM work-items takes TEAM_KEYS keys of
 * a tile, one behind the other, 8 elements of each a work-item, which go straight into registers: those of the next
 * tile's keys are on their way as soon as the tile's have become floats, those of its values as soon as they have been
 * added up. Each team has an online softmax (base 2) of its own keys, and what teams have is merged in the end, so that
 * only products and weights go through local memory, and none from team to team. What is not in the pool yet, or not
 * aligned there, comes last, and is fetched when it is wanted.
 *
 * All TUNE_ values are powers of two. A row's additions are the same whatever rows share its tile.
 *
 * Where a loop writes local memory, what it reads back there has an index that depends on the work-item: Intel's runtime
 * for CPUs 2026.22, which runs the work-items between two barriers as a loop, takes a load from a place that is the same
 * for all of them out of the loop around it, too, before the stores that it should see.
 */
#ifndef ATTN_TEAM_H
#define ATTN_TEAM_H

#include "lib/attn_problem.h"
#include "lib/attn_result.h"

#if !defined(TUNE_SUB_GROUP) || !defined(TUNE_FEW_ROWS) || !defined(TUNE_TEAM)
#error TUNE_SUB_GROUP, TUNE_FEW_ROWS or TUNE_TEAM is missing
#endif
#if TUNE_SUB_GROUP > 0
#define SUB_GROUP __attribute__((intel_reqd_sub_group_size(TUNE_SUB_GROUP)))
#else
#define SUB_GROUP
#endif

#define TEAMS (TUNE_WG / TUNE_TEAM)
#define TEAM_KEYS (TUNE_KEYS / TEAMS)
#if HEAD_DIM % 8 != 0 || HEAD_DIM_V % 8 != 0 || HEAD_DIM > TUNE_TEAM * 8 || HEAD_DIM_V > TUNE_TEAM * 8 || TEAMS < 2 || \
    TEAM_KEYS < 1 || TUNE_ROWS > TUNE_TEAM
#error these TUNE_ values are not for teams
#endif

/* Keys of a team that one look into the block table finds. */
#define RUN_KEYS (BLOCK_SIZE % TEAM_KEYS == 0 ? TEAM_KEYS : 1)
#define RUNS (TEAM_KEYS / RUN_KEYS)

/* Keys whose elements are floats in registers at once. */
#define CHUNK_KEYS (TEAM_KEYS < 4 ? TEAM_KEYS : 4)

/* Scores of a team: the work-item at `lane` of it has those of row lane % TUNE_ROWS and keys lane / TUNE_ROWS,
   + TUNE_TEAM / TUNE_ROWS, ... */
#define TEAM_SCORES (TEAM_KEYS * TUNE_ROWS)
#define LANE_SCORES ((TEAM_SCORES + TUNE_TEAM - 1) / TUNE_TEAM)

/* From one product's parts, one of each of the team, to the next, and from team to team: in different banks. */
#define PART_PITCH (TUNE_TEAM + 4)
#define PARTS_PITCH ((TEAM_SCORES * PART_PITCH + 31) / 32 * 32 + TUNE_TEAM % 32)

/* In the end the same memory has two rows of each team. */
#define PARTS_FLOATS (TEAMS * PARTS_PITCH)
#define ENDS_FLOATS (TUNE_WG * 8 * 2)

typedef struct tile_memory {
    __local float *q;       /* [TUNE_ROWS][TUNE_TEAM * 8], scaled */
    __local float *parts;   /* [TEAMS][PARTS_PITCH]: [TEAM_KEYS][TUNE_ROWS][PART_PITCH] */
    __local float *scores;  /* [TEAMS][TUNE_ROWS][TEAM_KEYS] */
    __local float *weights; /* [TEAMS][TEAM_KEYS][TUNE_ROWS] */
    __local float *rows;    /* [TEAMS][TUNE_TEAM]: what a team's accumulators are multiplied by, of row i % TUNE_ROWS */
} tile_memory;

/* Of float4, which says how they are aligned. */
#define TILE_MEMORY(name)                                                                                              \
    __local float4 name##_q[TUNE_ROWS * TUNE_TEAM * 2];                                                                \
    __local float4 name##_parts[(PARTS_FLOATS > ENDS_FLOATS ? PARTS_FLOATS : ENDS_FLOATS) / 4];                        \
    __local float4 name##_scores[(TEAMS * TEAM_SCORES + 3) / 4];                                                       \
    __local float4 name##_weights[(TEAMS * TEAM_SCORES + 3) / 4];                                                      \
    __local float4 name##_rows[TUNE_WG / 4];                                                                           \
    tile_memory name = {(__local float *)name##_q, (__local float *)name##_parts, (__local float *)name##_scores,      \
                        (__local float *)name##_weights, (__local float *)name##_rows}

/* Keys of a part: some of its tiles. */
typedef struct team_range {
    int start; /* where the first tile begins */
    int begin, end; /* keys before and behind them count nothing */
} team_range;

/* 8 elements of each of the team's keys in a tile, or of its values, as they are stored. */
typedef struct team_rows {
    RAW8(KV) raw[TEAM_KEYS];
#if KV_STORED_SCALES
    float scale[TEAM_KEYS];
#endif
} team_rows;

static int team_lane(void) {
    return (int)get_local_id(0) % TUNE_TEAM;
}
static int team_index(void) {
    return (int)get_local_id(0) / TUNE_TEAM;
}

/* The position of the team's first key in the tile that begins at `first`. */
static int team_position(int first) {
    return first + team_index() * TEAM_KEYS;
}

/* count, a constant, floats from what lies at a multiple of count. */
static void team_load(const __local float *from, float *to, const int count) {
    if (count % 4 == 0) {
#pragma unroll
        for (int i = 0; i < count; i += 4) {
            const float4 x = *(const __local float4 *)(from + i);
            to[i] = x.x;
            to[i + 1] = x.y;
            to[i + 2] = x.z;
            to[i + 3] = x.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < count; i++)
            to[i] = from[i];
    }
}

/* The blocks of the team's keys in a tile; behind the last key any. */
static void team_find(const attn_problem *p, int first, int *blocks) {
#pragma unroll
    for (int i = 0; i < RUNS; i++)
        blocks[i] = p->table[min(team_position(first) + i * RUN_KEYS, p->k_len - 1) / BLOCK_SIZE];
}

/* Reads the team's rows in a tile; zeros for keys out of the range. dim: a row's. */
static void team_read(const attn_problem *p, const pool *from, const int dim, int first, team_range range,
                      const int *blocks, team_rows *rows) {
    const int d = team_lane() * 8;
#pragma unroll
    for (int run = 0; run < RUNS; run++) {
        const int position = team_position(first) + run * RUN_KEYS;
        pool_row row = pool_row_at(from, WITH_GUARD ? max(blocks[run], 0) : blocks[run], position % BLOCK_SIZE,
                                   p->kv_head);
        row.base += UNIT(KV, row.at + d);
#pragma unroll
        for (int i = 0; i < RUN_KEYS; i++) {
            const bool inside = position + i >= range.begin && position + i < range.end && d < dim &&
                                (!WITH_GUARD || blocks[run] >= 0);
            RAW8(KV) raw = 0;
            if (inside)
                raw = *(const __global RAW8(KV) *)row.base;
            rows->raw[run * RUN_KEYS + i] = raw;
#if KV_STORED_SCALES
            rows->scale[run * RUN_KEYS + i] = inside ? pool_scale_at(row, d) : 0;
            row.scales += NUM_KV_HEADS * from->row_scales;
#endif
            row.base += UNIT(KV, from->token_stride);
        }
    }
}

/* Element i of what was read, as values. */
static float8 team_decode(const team_rows *rows, int i, float pool_scale) {
    float8 x = DECODE_RAW8(KV)(rows->raw[i]);
#if KV_STORED_SCALES
    x *= rows->scale[i];
#elif KV_QUANTIZED
    x *= pool_scale;
#endif
    (void)pool_scale;
    return x;
}

/* The product of a work-item's elements of a key. */
static float team_product(const float *q, float8 k) {
    float sum = q[0] * k.s0;
    sum = fma(q[1], k.s1, sum);
    sum = fma(q[2], k.s2, sum);
    sum = fma(q[3], k.s3, sum);
    sum = fma(q[4], k.s4, sum);
    sum = fma(q[5], k.s5, sum);
    sum = fma(q[6], k.s6, sum);
    return fma(q[7], k.s7, sum);
}

/* The products of `count` keys, a constant, of which the first is the team's key `key`. few: of the first TUNE_FEW_ROWS
   rows. */
static void team_products(const float8 *k, int key, const int count, tile_memory m, bool few) {
    __local float *parts = m.parts + team_index() * PARTS_PITCH + team_lane();
#pragma unroll
    for (int r = 0; r < TUNE_ROWS; r++)
        if (r < TUNE_FEW_ROWS || !few) {
            float q[8];
            team_load(m.q + (r * TUNE_TEAM + team_lane()) * 8, q, 8);
#pragma unroll
            for (int i = 0; i < count; i++)
                parts[((key + i) * TUNE_ROWS + r) * PART_PITCH] = team_product(q, k[i]);
        }
}

/* The team's scores in a tile. masked: not every row sees every key, or some are out of the range. */
static void team_scores(const attn_problem *p, int first, team_range range, bool masked, tile_memory m) {
    const int lane = team_lane(), row = p->first_row + lane % TUNE_ROWS;
#pragma unroll
    for (int s = 0; s < LANE_SCORES; s++) {
        const int i = lane + s * TUNE_TEAM, key = i / TUNE_ROWS;
        if (i < TEAM_SCORES) {
            const int position = team_position(first) + key;
            float score = -INFINITY;
            if (row < p->num_rows && (!masked || (position >= range.begin && position < range.end))) {
                const __local float4 *parts =
                    (const __local float4 *)(m.parts + team_index() * PARTS_PITCH + i * PART_PITCH);
                float4 sum = parts[0];
#pragma unroll
                for (int j = 1; j < TUNE_TEAM / 4; j++)
                    sum += parts[j];
                const float product = sum.x + sum.y + (sum.z + sum.w);
                score = masked ? problem_score(p, row, position, product) : seen_score(p, row, position, product);
            }
            m.scores[team_index() * TEAM_SCORES + lane % TUNE_ROWS * TEAM_KEYS + key] = score;
        }
    }
}

/* Their weights, and what the team's accumulators are to be multiplied by. */
static void team_softmax(tile_memory m, float *row_max, float *lane_sum) {
    const int lane = team_lane();
    __local float *row_scores = m.scores + team_index() * TEAM_SCORES + lane % TUNE_ROWS * TEAM_KEYS;
    float scores[TEAM_KEYS];
    team_load(row_scores, scores, TEAM_KEYS);
    float new_max = *row_max;
#pragma unroll
    for (int i = 0; i < TEAM_KEYS; i++)
        new_max = fmax(new_max, scores[i]);
    /* While a row has seen no key its maximum is -infinity, and infinity minus infinity would be NaN. */
    const float base = new_max == -INFINITY ? 0 : new_max;
    const float rescale = exp2(*row_max - base);
    *row_max = new_max;
    *lane_sum *= rescale;
    m.rows[get_local_id(0)] = rescale;
#pragma unroll
    for (int s = 0; s < LANE_SCORES; s++) {
        const int i = lane + s * TUNE_TEAM;
        if (i < TEAM_SCORES) {
            const float weight = exp2(row_scores[i / TUNE_ROWS] - base);
            m.weights[team_index() * TEAM_SCORES + i] = weight;
            *lane_sum += weight;
        }
    }
}

/* What the accumulators have, multiplied. */
static void team_rescale(tile_memory m, float8 *acc) {
    float rescale[TUNE_ROWS];
    team_load(m.rows + team_index() * TUNE_TEAM, rescale, TUNE_ROWS);
#pragma unroll
    for (int r = 0; r < TUNE_ROWS; r++)
        acc[r] *= rescale[r];
}

/* acc += the value of the team's key `key`, weighted. masked: as in attn_tile.h. */
static void team_accumulate(float8 v, int key, tile_memory m, bool masked, bool few, float8 *acc) {
    float weights[TUNE_ROWS];
    team_load(m.weights + team_index() * TEAM_SCORES + key * TUNE_ROWS, weights, TUNE_ROWS);
#pragma unroll
    for (int r = 0; r < TUNE_ROWS; r++)
        if (r < TUNE_FEW_ROWS || !few) {
            const float8 sum = fma(v, (float8)weights[r], acc[r]);
            acc[r] = masked && weights[r] == 0 ? acc[r] : sum;
        }
}

/* What a work-item has of a tile's rows. */
typedef struct team_state {
    float row_max, lane_sum; /* of the team's keys and row lane % TUNE_ROWS; the sum is that of its own scores */
    float8 acc[TUNE_ROWS];   /* its 8 elements of the team's keys */
} team_state;

/* Merges what the teams have, and stores the results. */
static void team_store(const attn_problem *p, const attn_result_target *target, int last_row, const team_state *state,
                       tile_memory m) {
    const int item = get_local_id(0), row = item % TUNE_ROWS;
    __local float *maxima = m.parts, *sums = m.parts + TUNE_WG, *divisors = m.parts + 2 * TUNE_WG;
    barrier(CLK_LOCAL_MEM_FENCE);
    maxima[item] = state->row_max;
    sums[item] = state->lane_sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    float most = maxima[row];
#pragma unroll
    for (int t = 1; t < TEAMS; t++)
        most = fmax(most, maxima[t * TUNE_TEAM + row]);
    const float base = most == -INFINITY ? 0 : most;
    m.rows[item] = exp2(state->row_max - base);
    if (item < TUNE_ROWS && p->first_row + row < p->num_rows) {
        float row_sum = 0;
        for (int i = row; i < TUNE_WG; i += TUNE_ROWS)
            row_sum += sums[i] * exp2(maxima[i] - base);
        divisors[row] = result_store_sums(p, target, p->first_row + row, most, row_sum);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float factors[TUNE_ROWS], divided[TUNE_ROWS];
    team_load(m.rows + team_index() * TUNE_TEAM, factors, TUNE_ROWS);
#pragma unroll
    for (int r = 0; r < TUNE_ROWS; r++)
        divided[r] = p->first_row + r <= last_row ? divisors[r] : 1;
#pragma unroll
    for (int r = 0; r < TUNE_ROWS; r += 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        vstore8(state->acc[r] * factors[r], item, m.parts);
        if (TUNE_ROWS > 1)
            vstore8(state->acc[min(r + 1, TUNE_ROWS - 1)] * factors[min(r + 1, TUNE_ROWS - 1)], TUNE_WG + item, m.parts);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = item; i < 2 * HEAD_DIM_V; i += TUNE_WG) {
            const int second = i / HEAD_DIM_V, d = i % HEAD_DIM_V;
            if (p->first_row + r + second <= last_row && r + second < TUNE_ROWS) {
                float x = 0;
#pragma unroll
                for (int t = 0; t < TEAMS; t++)
                    x += m.parts[second * TUNE_WG * 8 + t * TUNE_TEAM * 8 + d];
                result_store1(p, target, p->first_row + r + second, d, x,
                              second == 0 ? divided[r] : divided[min(r + 1, TUNE_ROWS - 1)]);
            }
        }
    }
}

/* Runs the tile's rows over keys that are read ahead. full: those that all rows see. */
static void team_run_ahead(const attn_problem *p, team_range range, team_range full, tile_memory m, bool few,
                           team_state *state) {
    int blocks[RUNS];
    team_rows keys, values, next_keys, next_values;
    if (range.start >= range.end)
        return;
    team_find(p, range.start, blocks);
    team_read(p, &p->keys.k, HEAD_DIM, range.start, range, blocks, &keys);
    team_read(p, &p->keys.v, HEAD_DIM_V, range.start, range, blocks, &values);
    team_find(p, range.start + TUNE_KEYS, blocks);
    for (int first = range.start; first < range.end; first += TUNE_KEYS) {
        const bool masked = WITH_GUARD || first < full.begin || first + TUNE_KEYS > full.end;
        team_read(p, &p->keys.k, HEAD_DIM, first + TUNE_KEYS, range, blocks, &next_keys);
        team_read(p, &p->keys.v, HEAD_DIM_V, first + TUNE_KEYS, range, blocks, &next_values);
        team_find(p, first + 2 * TUNE_KEYS, blocks);
#pragma unroll
        for (int c = 0; c < TEAM_KEYS; c += CHUNK_KEYS) {
            float8 k[CHUNK_KEYS];
#pragma unroll
            for (int i = 0; i < CHUNK_KEYS; i++)
                k[i] = team_decode(&keys, c + i, p->keys.k.scale);
            team_products(k, c, CHUNK_KEYS, m, few);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        team_scores(p, first, range, masked, m);
        barrier(CLK_LOCAL_MEM_FENCE);
        team_softmax(m, &state->row_max, &state->lane_sum);
        barrier(CLK_LOCAL_MEM_FENCE);
        team_rescale(m, state->acc);
        if (masked) {
#pragma unroll
            for (int i = 0; i < TEAM_KEYS; i++)
                team_accumulate(team_decode(&values, i, p->keys.v.scale), i, m, true, few, state->acc);
        } else {
#pragma unroll
            for (int i = 0; i < TEAM_KEYS; i++)
                team_accumulate(team_decode(&values, i, p->keys.v.scale), i, m, false, few, state->acc);
        }
        keys = next_keys;
        values = next_values;
    }
}

/* The same over keys that are fetched one by one, wherever they are. */
static void team_run(const attn_problem *p, team_range range, tile_memory m, bool few, team_state *state) {
    const int d = team_lane() * 8;
    for (int first = range.start; first < range.end; first += TUNE_KEYS) {
#pragma unroll 1
        for (int i = 0; i < TEAM_KEYS; i++) {
            const int position = team_position(first) + i;
            const bool inside = position >= range.begin && position < range.end && problem_has(p, position);
            const float8 k = inside && d < HEAD_DIM ? key8(p, position, d) : (float8)0;
            team_products(&k, i, 1, m, few);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        team_scores(p, first, range, true, m);
        barrier(CLK_LOCAL_MEM_FENCE);
        team_softmax(m, &state->row_max, &state->lane_sum);
        barrier(CLK_LOCAL_MEM_FENCE);
        team_rescale(m, state->acc);
#pragma unroll 1
        for (int i = 0; i < TEAM_KEYS; i++) {
            const int position = team_position(first) + i;
            const bool inside = position >= range.begin && position < range.end && problem_has(p, position);
            const float8 v = inside && d < HEAD_DIM_V ? value8(p, position, d) : (float8)0;
            team_accumulate(v, i, m, true, few, state->acc);
        }
    }
}

/* Where the tile with a key begins. */
static int team_tile(const attn_problem *p, int position) {
    return p->key_begin + (position - p->key_begin) / TUNE_KEYS * TUNE_KEYS;
}

/* Runs the tile's rows over the part's keys, and stores their results. */
static void attn_tile(const attn_problem *p, const __global STORAGE(Q) * q, long4 q_layout, tile_memory m,
                      attn_result_target target) {
    const int last_row = min(p->first_row + TUNE_ROWS, p->num_rows) - 1;
    const bool few = TUNE_FEW_ROWS < TUNE_ROWS && last_row - p->first_row < TUNE_FEW_ROWS;
    /* As in attn_tile.h: keys that some row sees, and keys that all see. */
    const int begin = max(p->key_begin, problem_low(p, p->first_row));
    const int end = min(p->key_end, problem_high(p, last_row));
    const int full_begin = problem_low(p, last_row);
    const int full_end = min(problem_high(p, p->first_row), WITH_TREE ? p->k_len - p->q_len : p->k_len);
    /* Keys from here on are fetched one by one. */
    const bool aligned = pool_is_aligned(&p->keys.k) && pool_is_aligned(&p->keys.v);
    const int last_begin = clamp(aligned ? p->new_first : 0, begin, max(begin, end));
    const team_range ahead = {team_tile(p, begin), begin, last_begin};
    const team_range last = {team_tile(p, last_begin), last_begin, end};
    const team_range full = {0, max(begin, full_begin), min(last_begin, full_end)};

    for (int i = get_local_id(0); i < TUNE_ROWS * TUNE_TEAM; i += TUNE_WG) {
        const int row = p->first_row + i / TUNE_TEAM, d = i % TUNE_TEAM * 8;
        float8 x = 0;
        if (row < p->num_rows && d < HEAD_DIM)
            x = query8(p, q, q_layout, row, d);
        vstore8(x, i, m.q);
    }
    team_state state;
    state.row_max = -INFINITY;
    state.lane_sum = 0;
#pragma unroll
    for (int r = 0; r < TUNE_ROWS; r++)
        state.acc[r] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    team_run_ahead(p, ahead, full, m, few, &state);
    team_run(p, last, m, few, &state);
    team_store(p, &target, last_row, &state, m);
}

#endif
