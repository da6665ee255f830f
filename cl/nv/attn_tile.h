/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by a work-group, tier nv_mma: TUNE_ROWS rows of a problem against tiles of TUNE_KEYS keys, by the matrix
 * instructions of NVIDIA's GPUs. Online softmax in base 2, as lib/attn_tile.h.
 *
 * A warp takes TUNE_WARP_ROWS rows, in tiles of 16. Where the rows are fewer than the warps, as in decode, these
 * divide the keys of a tile too; then each has results of its own, which are merged in the end. K and V lie in a ring
 * of TUNE_STAGES tiles in local memory (nv/ring.h); while one is worked on, the next are on their way.
 *
 * Weights are rounded to the element of V for the product. Where the result is float32 they are cut into two such
 * parts, and so is q where it was rotated: then nothing is lost.
 */
#ifndef NV_ATTN_TILE_H
#define NV_ATTN_TILE_H

#include "lib/attn_problem.h"
#include "lib/attn_result.h"
#if WITH_SPLITS
#include "nv/merge.h"
#endif
#include "nv/warp.h"

#if !defined(TUNE_STAGES) || !defined(TUNE_WARP_ROWS)
#error TUNE_STAGES or TUNE_WARP_ROWS is missing
#endif
#define SUB_GROUP

#define ROW_TILES (TUNE_WARP_ROWS / 16)
#define ROW_WARPS (TUNE_ROWS / TUNE_WARP_ROWS)
#define KEY_WARPS (TUNE_WG / 32 / ROW_WARPS)
#define WARP_KEYS (TUNE_KEYS / KEY_WARPS)
#define KEY_TILES (WARP_KEYS / 8)

/* Steps of 16 elements through a row, the last filled up with zeros. */
#define K_STEPS ((HEAD_DIM + 15) / 16)
#define V_STEPS ((HEAD_DIM_V + 15) / 16)

#include "nv/fragments.h"
#include "nv/softmax.h"

#if HEAD_DIM % PIECE || HEAD_DIM_V % PIECE
#error tier nv_mma needs rows of whole 16-byte pieces
#endif

#define WEIGHT_PARTS (IS_FLOAT32(OUT) ? 2 : 1)
#define Q_PARTS (IS_FLOAT32(OUT) && ROTARY_DIM > 0 ? 2 : 1)
/* Fragments of q stay in registers where these are enough. */
#define Q_IN_REGISTERS (ROW_TILES == 1 && K_STEPS * Q_PARTS <= 8)

#define Q_PITCH ((2 * K_STEPS + 1) * 8)

/* Results on their way out: a row of floats for each row of each warp. */
#define RESULT_PITCH (V_STEPS * 16 + 4)
#define RESULT_BYTES (KEY_WARPS * TUNE_ROWS * RESULT_PITCH * 4)

typedef struct tile_memory {
    __local ushort *ring;
    __local float *result; /* the same memory, in the end: [KEY_WARPS][TUNE_ROWS][RESULT_PITCH] */
    __local ushort *q;     /* [Q_PARTS][TUNE_ROWS][Q_PITCH] */
    __local ulong *rows;   /* of the ring's stages */
    __local ulong *scales_from;
    __local float *scales;
    __local float *sums; /* [KEY_WARPS][TUNE_ROWS][2], maximum and sum */
    __local float *ends; /* [TUNE_ROWS][2], maximum of all and what to divide by */
} tile_memory;

#define TILE_MEMORY(name)                                                                    \
    __local uint4 name##_ring[(RING_BYTES > RESULT_BYTES ? RING_BYTES : RESULT_BYTES) / 16]; \
    __local uint4 name##_q[Q_PARTS * TUNE_ROWS * Q_PITCH / 8];                               \
    __local ulong name##_rows[(1 + ROW_SCALED) * RING_ROWS];                                 \
    __local float name##_scales[ROW_SCALED * RING_ROWS + 1];                                 \
    __local float name##_sums[KEY_WARPS * TUNE_ROWS * 2];                                    \
    __local float name##_ends[TUNE_ROWS * 2];                                                \
    tile_memory name = {(__local ushort *)name##_ring,                                       \
                        (__local float *)name##_ring,                                        \
                        (__local ushort *)name##_q,                                          \
                        name##_rows,                                                         \
                        name##_rows + ROW_SCALED * RING_ROWS,                                \
                        name##_scales,                                                       \
                        name##_sums,                                                         \
                        name##_ends}

static ring_stage stage_of(tile_memory m, int stage) {
    ring_stage own = {m.ring + stage * STAGE_ELEMENTS, m.rows + stage * STAGE_ROWS};
#if ROW_SCALED
    own.scales_from = m.scales_from + stage * STAGE_ROWS;
    own.scales = m.scales + stage * STAGE_ROWS;
#endif
    return own;
}

/* Query rows behind the last are zeros, and so is what fills a row up. They are not scaled: that would round them. Rows
   that need no rotation are copied asynchronously. */
static void tile_load_q(const attn_problem *p, const __global STORAGE(Q) * q, long4 q_layout, tile_memory m) {
#if ROTARY_DIM == 0
    if (((q_layout.x | q_layout.y | q_layout.z) & 7) == 0) {
#pragma unroll 1
        for (int i = 0; i < (TUNE_ROWS * 2 * K_STEPS + TUNE_WG - 1) / TUNE_WG; i++) {
            int piece = get_local_id(0) + i * TUNE_WG;
            int row = piece / (2 * K_STEPS), d = piece % (2 * K_STEPS) * 8;
            int known = min(p->first_row + row, p->num_rows - 1);
            if (row < TUNE_ROWS)
                copy_begin16(local_address(m.q + row * Q_PITCH + d),
                             q + layout_at(q_layout, problem_token(p, known), problem_head(p, known)) + d,
                             p->first_row + row < p->num_rows && d < HEAD_DIM);
        }
        return;
    }
#endif
    for (int i = get_local_id(0); i < TUNE_ROWS * 2 * K_STEPS; i += TUNE_WG) {
        int row = p->first_row + i / (2 * K_STEPS);
        int d = i % (2 * K_STEPS) * 8;
        float8 x = 0;
        if (row < p->num_rows && d < HEAD_DIM)
            x = rotated8(&p->rotary, q, layout_at(q_layout, problem_token(p, row), problem_head(p, row)), d,
                         problem_position(p, row));
        __local ushort *to = m.q + i / (2 * K_STEPS) * Q_PITCH + d;
        tile_store8(to, x);
#if Q_PARTS == 2
        tile_store8(to + TUNE_ROWS * Q_PITCH, x - ROUND8(MATRIX)(x));
#endif
    }
}

/* The fragment of q of one step, for a tile of the warp's rows that begins at `row`. */
static void load_q_fragment(tile_memory m, int row, int part, int step, uint *to) {
    const __local ushort *from = m.q + (part * TUNE_ROWS + row) * Q_PITCH + step * 16;
    const int lane = get_local_id(0) % 32;
#if CODES
    const uint2 first = *(const __local uint2 *)(from + lane / 4 * Q_PITCH + lane % 4 * 4);
    const uint2 second = *(const __local uint2 *)(from + (lane / 4 + 8) * Q_PITCH + lane % 4 * 4);
    to[0] = first.x;
    to[1] = second.x;
    to[2] = first.y;
    to[3] = second.y;
#else
    load_matrices(to, local_address(from + lane_place_rows(lane, Q_PITCH)));
#endif
}

#if Q_IN_REGISTERS
typedef struct q_fragments {
    uint at[K_STEPS][Q_PARTS][ROW_TILES][4];
} q_fragments;
#else
typedef int q_fragments; /* none */
#endif

static void load_q_fragments(tile_memory m, int warp_row, q_fragments *q) {
#if Q_IN_REGISTERS
#pragma unroll
    for (int step = 0; step < K_STEPS; step++)
#pragma unroll
        for (int part = 0; part < Q_PARTS; part++)
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++)
                load_q_fragment(m, warp_row + t * 16, part, step, q->at[step][part][t]);
#else
    (void)m;
    (void)warp_row;
    (void)q;
#endif
}

/* The products of the warp's rows and keys. */
static void tile_products(tile_memory m, int warp_row, const q_fragments *q, const __local ushort *keys,
                          float (*scores)[KEY_TILES][4]) {
    const uint at = lane_keys(keys);
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
        for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                scores[t][n][e] = 0;
#pragma unroll
    for (int step = 0; step < K_STEPS; step++) {
        uint a[Q_PARTS][ROW_TILES][4];
#pragma unroll
        for (int part = 0; part < Q_PARTS; part++)
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++)
#if Q_IN_REGISTERS
#pragma unroll
                for (int e = 0; e < 4; e++)
                    a[part][t][e] = q->at[step][part][t][e];
#else
                load_q_fragment(m, warp_row + t * 16, part, step, a[part][t]);
#endif
#pragma unroll
        for (int n = 0; n < KEY_TILES / 2; n++) {
            uint b[4];
            load_keys(b, at, n, step);
#pragma unroll
            for (int part = 0; part < Q_PARTS; part++)
#pragma unroll
                for (int t = 0; t < ROW_TILES; t++) {
                    mma(scores[t][2 * n], a[part][t], b[0], b[1]);
                    mma(scores[t][2 * n + 1], a[part][t], b[2], b[3]);
                }
        }
    }
}

/* Whether a value of the warp's keys is infinite or NaN. */
static bool has_special_value(const __local ushort *values) {
    enum { PIECES = HEAD_DIM_V / PIECE };
    bool special = false;
    for (int i = get_local_id(0) % 32; i < WARP_KEYS * PIECES; i += 32)
        special = special || piece_is_special(values + i / PIECES * V_PITCH + i % PIECES * 8);
    return any_lane(special);
}

/* acc += weights * values, where a value that a row does not see may be NaN: its zero weight must not meet it. */
static void accumulate_seen(lane_rows *own, float (*weights)[KEY_TILES][4], const __local ushort *values) {
    const int lane = get_local_id(0) % 32;
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
        for (int n = 0; n < KEY_TILES; n++)
            for (int j = 0; j < 8; j++) {
                /* Both neighbours are asked: an index that varies would put the weights into memory. */
                int source = (lane & ~3) | j / 2;
                float even[2] = {from_lane(weights[t][n][0], source), from_lane(weights[t][n][2], source)};
                float odd[2] = {from_lane(weights[t][n][1], source), from_lane(weights[t][n][3], source)};
                float weight[2] = {j % 2 ? odd[0] : even[0], j % 2 ? odd[1] : even[1]};
                const __local ushort *row = values + (n * 8 + j) * V_PITCH;
#pragma unroll
                for (int d = 0; d < V_STEPS * 2; d++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        float sum = own->acc[t][d][e] + weight[e / 2] * value_at(row, result_column(d, e));
                        own->acc[t][d][e] = weight[e / 2] == 0 ? own->acc[t][d][e] : sum;
                    }
            }
}

/* acc += weights * values, 16 keys at a time. */
static void accumulate(lane_rows *own, float (*weights)[KEY_TILES][4], const __local ushort *values) {
    const uint at = lane_values(values);
#pragma unroll
    for (int k = 0; k < KEY_TILES / 2; k++) {
        uint a[WEIGHT_PARTS][ROW_TILES][4];
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float2 x = (float2)(weights[t][2 * k + i / 2][i % 2 * 2], weights[t][2 * k + i / 2][i % 2 * 2 + 1]);
                a[0][t][i] = pack(x.x, x.y);
#if WEIGHT_PARTS == 2
                float2 rest = x - unpack(a[0][t][i]);
                a[1][t][i] = pack(rest.x, rest.y);
#endif
            }
#pragma unroll
        for (int d = 0; d < V_STEPS; d++) {
            uint b[4];
            load_values(b, at, k, d);
#pragma unroll
            for (int part = 0; part < WEIGHT_PARTS; part++)
#pragma unroll
                for (int t = 0; t < ROW_TILES; t++) {
                    mma(own->acc[t][2 * d], a[part][t], b[0], b[1]);
                    mma(own->acc[t][2 * d + 1], a[part][t], b[2], b[3]);
                }
        }
    }
}

/* Each warp's part of the results, which count `unit` times, to local memory. `row`: where its rows begin there. */
static void share_results(const lane_rows *own, float unit, tile_memory m, int row) {
    const int lane = get_local_id(0) % 32;
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int at = row + t * 16 + lane / 4 + r * 8;
            float sum = own->lane_sum[t][r] + from_lane_xor(own->lane_sum[t][r], 1);
            sum += from_lane_xor(sum, 2);
            if (lane % 4 == 0) {
                m.sums[at * 2] = own->row_max[t][r];
                m.sums[at * 2 + 1] = sum;
            }
            __local float *result = m.result + at * RESULT_PITCH;
#pragma unroll
            for (int d = 0; d < V_STEPS * 2; d += 1 + CODES) {
                const float *x = &own->acc[t][d][2 * r];
#if CODES
                const float *y = &own->acc[t][d + 1][2 * r];
                *(__local float4 *)(result + result_column(d, 0)) = (float4)(x[0], y[0], x[1], y[1]) * unit;
#else
                *(__local float2 *)(result + result_column(d, 0)) = (float2)(x[0], x[1]) * unit;
#endif
            }
        }
}

/* Merges the warps' parts and stores them; a work-item stores 8 elements of a row. */
static void store_results(const attn_problem *p, tile_memory m, const attn_result_target *target, int num_rows) {
    for (int row = get_local_id(0); row < num_rows; row += TUNE_WG) {
        float max_all = -INFINITY, sum = 0;
        for (int w = 0; w < KEY_WARPS; w++)
            max_all = fmax(max_all, m.sums[(w * TUNE_ROWS + row) * 2]);
        const float base = max_all == -INFINITY ? 0 : max_all;
        for (int w = 0; w < KEY_WARPS; w++)
            sum += exp2_fast(m.sums[(w * TUNE_ROWS + row) * 2] - base) * m.sums[(w * TUNE_ROWS + row) * 2 + 1];
        m.ends[row * 2] = base;
        m.ends[row * 2 + 1] = result_store_sums(p, target, p->first_row + row, max_all, sum);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = get_local_id(0); i < num_rows * V_VECTORS; i += TUNE_WG) {
        const int row = i / V_VECTORS, d = i % V_VECTORS * 8;
        float8 x = 0;
        for (int w = 0; w < KEY_WARPS; w++) {
            const float weight = exp2_fast(m.sums[(w * TUNE_ROWS + row) * 2] - m.ends[row * 2]);
            const __local float4 *part = (const __local float4 *)(m.result + (w * TUNE_ROWS + row) * RESULT_PITCH + d);
            x += weight * (float8)(part[0], part[1]);
        }
        result_store8(p, target, p->first_row + row, d, x, m.ends[row * 2 + 1]);
    }
}

#if ROW_SCALED
/* Products times their keys' scales. */
static void scale_products(const __local float *scales, float (*products)[KEY_TILES][4]) {
    const int lane = get_local_id(0) % 32;
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++) {
        const float2 scale = *(const __local float2 *)(scales + n * 8 + lane % 4 * 2);
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                products[t][n][e] *= e % 2 ? scale.y : scale.x;
    }
}

/* Weights times their values' scales, of which the warp's largest up to now is about 1: so none is too large or too
   small for an element. Results count *unit times, a power of two; returns what those before count now. */
static float scale_weights(const __local float *scales, float *unit, float (*weights)[KEY_TILES][4]) {
    const int lane = get_local_id(0) % 32;
    float2 scale[KEY_TILES];
    float largest = 0;
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++) {
        scale[n] = *(const __local float2 *)(scales + n * 8 + lane % 4 * 2);
        largest = isfinite(scale[n].x) ? fmax(largest, scale[n].x) : largest;
        largest = isfinite(scale[n].y) ? fmax(largest, scale[n].y) : largest;
    }
    largest = fmax(largest, from_lane_xor(largest, 1));
    largest = fmax(largest, from_lane_xor(largest, 2));
    const float before = *unit;
    *unit = fmax(before, as_float(as_uint(largest) & 0x7f800000));
    const float inverse = *unit == 0 ? 0 : 1 / *unit;
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
        for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                /* A value that a row does not see may have any scale. */
                const float weight = weights[t][n][e] * ((e % 2 ? scale[n].y : scale[n].x) * inverse);
                weights[t][n][e] = weights[t][n][e] == 0 ? 0 : weight;
            }
    return before * inverse;
}
#endif

/* Runs the tile's rows over the part's keys, and stores their results. */
static void attn_tile(const attn_problem *p, const __global STORAGE(Q) * q, long4 q_layout, tile_memory m,
                      attn_result_target target) {
    const int warp = get_local_id(0) / 32;
    const int warp_row = warp % ROW_WARPS * TUNE_WARP_ROWS;
    const int warp_key = warp / ROW_WARPS * WARP_KEYS;
    const int last_row = min(p->first_row + TUNE_ROWS, p->num_rows) - 1;
    /* As in lib/attn_tile.h: keys that some row sees, and keys that all see. */
    const int begin = max(p->key_begin, problem_low(p, p->first_row));
    const int end = min(p->key_end, problem_high(p, last_row));
    const int full_begin = problem_low(p, last_row);
    const int full_end = min(problem_high(p, p->first_row), WITH_TREE ? p->k_len - p->q_len : p->k_len);
    const int start = p->key_begin + (begin - p->key_begin) / TUNE_KEYS * TUNE_KEYS;
    const int num_tiles = end > start ? (end - start + TUNE_KEYS - 1) / TUNE_KEYS : 0;
    const bool aligned = keys_are_aligned(p);

    found_rows found;
#pragma unroll
    for (int s = 0; s < TUNE_STAGES; s++) {
        const ring_stage filled = stage_of(m, s);
        ring_find_rows(p, begin, start + s * TUNE_KEYS, &found);
        ring_keep_rows(&filled, &found);
    }
    ring_fill_up(m.ring);
    tile_load_q(p, q, q_layout, m);
    barrier(CLK_LOCAL_MEM_FENCE);
    q_fragments fragments;
    /* The scale is left to the softmax, unless something comes between, or it would turn the order round. */
#if CODES && !ROW_SCALED
    const float all_scale = p->mask.scale.x * p->keys.k.scale;
    const float unit = p->keys.v.scale;
#else
    const float all_scale = p->mask.scale.x;
    float unit = ROW_SCALED ? 0 : 1;
#endif
    const bool scale_late = (WITH_SOFTCAP | WITH_ALIBI) == 0 && all_scale > 0;
    const float scale = scale_late ? 1 : all_scale, late_scale = scale_late ? all_scale : 1;

    lane_rows own;
    rows_begin(&own);

    /* Tile `tile` is worked on while those up to TUNE_STAGES - 1 further are on their way; before the first there are only
       these. The stage behind the newest has the oldest. */
    int stage = 0;
    for (int tile = 1 - TUNE_STAGES; tile < num_tiles; tile++) {
        const int first = start + tile * TUNE_KEYS;
        const int newest = tile + TUNE_STAGES - 1;
        if (tile >= 0) {
            COPY_WAIT(TUNE_STAGES - 2);
            barrier(CLK_LOCAL_MEM_FENCE);
            /* All have the tile, and all are done with the one before it, whose stage is loaded anew. */
            ring_find_rows(p, begin, first + TUNE_STAGES * TUNE_KEYS, &found);
        }
        const ring_stage filled = stage_of(m, stage);
        if (newest < num_tiles)
            ring_fetch(p, begin, start + newest * TUNE_KEYS, aligned, &filled);
        copy_commit();
        stage = stage + 1 == TUNE_STAGES ? 0 : stage + 1;
        if (tile < 0)
            continue;

        if (tile == 0)
            load_q_fragments(m, warp_row, &fragments);
        const ring_stage own_stage = stage_of(m, stage);
        const __local ushort *keys = own_stage.tile + warp_key * K_PITCH;
        const __local ushort *values = own_stage.tile + V_IN_STAGE + warp_key * V_PITCH;
        const int seen_first = max(first, begin), seen_end = min(first + TUNE_KEYS, p->key_end);
        /* Any key may lie in no block where the table is guarded. */
        const bool partly_seen = WITH_GUARD || seen_first < full_begin || seen_end > full_end;
        const bool whole = seen_first == first && seen_end == first + TUNE_KEYS;
        float scores[ROW_TILES][KEY_TILES][4];
        tile_products(m, warp_row, &fragments, keys, scores);
        ring_keep_rows(&own_stage, &found);
#if ROW_SCALED
        scale_products(own_stage.scales + warp_key, scores);
#endif
        if (!scale_late || partly_seen || !whole)
            tile_scores(p, warp_row, first + warp_key, scale, scores);
        float rescale[ROW_TILES][2];
        bool changed = tile_softmax(&own, late_scale, scores, rescale);
#if ROW_SCALED
        const float rescale_unit =
            scale_weights(own_stage.scales + (VALUES_IN_KEYS ? 0 : TUNE_KEYS) + warp_key, &unit, scores);
        changed = changed || rescale_unit != 1;
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                rescale[t][r] *= rescale_unit;
#endif
        if (changed)
            rows_rescale(&own, rescale);
        if (partly_seen && has_special_value(values))
            accumulate_seen(&own, scores, values);
        else
            accumulate(&own, scores, values);
    }

    COPY_WAIT(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    share_results(&own, unit, m, warp / ROW_WARPS * TUNE_ROWS + warp_row);
    barrier(CLK_LOCAL_MEM_FENCE);
    store_results(p, m, &target, last_row - p->first_row + 1);
#if WITH_SPLITS
    if (p->num_splits > 1)
        merge_stored(p, &target, last_row - p->first_row + 1, m.sums);
#endif
}

#endif
