/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The workers of a stream as two warpgroups, where values are the first columns of keys and rows are many: latent
 * attention, whose keys are read once for 64 rows. The first warpgroup multiplies q with keys, makes weights of the
 * scores, and adds the values of the lower columns; the second takes the weights from local memory and adds those of
 * the upper ones, beside the next scores. Meanwhile the second loads the rows of q of the next problem.
 */
#ifndef NV_STREAM_WARPGROUPS_H
#define NV_STREAM_WARPGROUPS_H

/* Of the results, those of a warpgroup: a number, for names are made of it. */
#if HEAD_DIM_V > 384
#define RESULT_COLUMNS 256
#else
#define RESULT_COLUMNS 192
#endif
#define RESULT_STEPS (RESULT_COLUMNS / 16)
#define ROW_TILES 1
#define KEY_TILES (TUNE_KEYS / 8)

#include "lib/attn_result.h"
#include "nv/result_lines.h"
#include "nv/stream_patch.h"

#if !VALUES_IN_KEYS || CODES || HEAD_DIM_V > 512 || TUNE_KEYS != 64 || WORK_WARPS != 8
#error the warpgroups of a stream are for other shapes
#endif

/* Factors of rows. */
#define STREAM_SUMS TUNE_ROWS

typedef struct stream_memory {
    stream_shared shared;
    __local float *sums; /* [TUNE_ROWS]: what the results before count, or in the end what results are multiplied by */
} stream_memory;

/* The weights of a tile; in the end lines of results. */
static __local uchar *weights_of(stream_memory m) {
    return (__local uchar *)m.shared.q + Q_BYTES;
}

/* Barriers of both warpgroups, one of which waits for the other: the weights of a tile are there, they are read; of
   each. */
enum { WEIGHTS_THERE = 2, WEIGHTS_READ = 3, OWN_BARRIER = 4 };

static int own_warpgroup(void) {
    return get_local_id(0) / WARPGROUP;
}
/* The first of the 16 rows that a warp has. */
static int warp_row(void) {
    return get_local_id(0) / 32 % 4 * 16;
}
/* The first of the lane's two, which are 8 apart. */
static int lane_row(void) {
    return warp_row() + get_local_id(0) % 32 / 4;
}

/* ---- q ---- */

/* The second warpgroup begins to load the rows of a problem's q. */
static void begin_q(const attn_problem *p, const stream_source *from, stream_memory m) {
    load_q_panels(p, from->q, from->q_layout, p->first_row + warp_row(), warp_row(), (__local uchar *)m.shared.q);
}

/* They are there. */
static void end_q(stream_memory m) {
    copy_commit();
    COPY_WAIT(0);
    fence_async();
    warp_barrier();
    if (get_local_id(0) % 32 == 0)
        mbarrier_arrive(stream_barrier(m.shared, Q_THERE));
}

/* ---- tiles ---- */

/* A tile of a problem. */
typedef struct stream_tile {
    __local uchar *keys;
    int first;
    bool partly_seen; /* some row does not see some of its keys */
} stream_tile;

/* Takes the tile at a place of the stream when it is there. By all workers. */
static stream_tile take_tile(const attn_problem *p, const tile_range *range, int tile, stream_memory m,
                             stream_place at) {
    const int first = range->start + tile * TUNE_KEYS;
    const int seen_first = max(first, range->begin), seen_end = min(first + TUNE_KEYS, p->key_end);
    stream_tile t = {m.shared.stages + at.stage * STREAM_STAGE, first,
                     WITH_GUARD || seen_end - seen_first < TUNE_KEYS || seen_first < range->full_begin ||
                         seen_end > range->full_end};
    mbarrier_wait(stream_barrier(m.shared, FILLED + at.stage), at.parity);
    /* Any key may lie in no block where the table is guarded. */
    if (WITH_GUARD || seen_end - seen_first < TUNE_KEYS || seen_end > stream_new_first(p)) {
        stream_patch(p, range->begin, first, t.keys, t.keys, 0, get_local_id(0), WORKERS);
        workers_barrier();
    }
    return t;
}

/* A warp is done with the tile at a place. */
static void release_tile(stream_memory m, stream_place at) {
    if (get_local_id(0) % 32 == 0)
        mbarrier_arrive(stream_barrier(m.shared, FREED + at.stage));
}

/* The values of the columns that a warpgroup has. */
static __local uchar *own_values(stream_tile t) {
    return t.keys + own_warpgroup() * (RESULT_COLUMNS / PANEL_COLUMNS) * PANEL_BYTES;
}

/* Pieces of 8 in a row of them: behind the last column of V may be what is not the tile's. */
static int own_pieces(void) {
    return min(RESULT_COLUMNS / 8, V_VECTORS - own_warpgroup() * (RESULT_COLUMNS / 8));
}

/* Weights to local memory: 16 rows of a warp, of which a lane has fragments. */
static void store_weights(const uint (*weights)[4], __local uchar *to) {
    const int lane = get_local_id(0) % 32, row = warp_row() + lane % 16;
#pragma unroll
    for (int step = 0; step < TUNE_KEYS / 16; step++)
        store_matrices(local_address(to + panel_at(0, row, 2 * step + lane / 16)), weights[step]);
}

/* results += weights * values, where a value that a row does not see may be infinite or NaN: its zero weight must not
   meet it. Then these values are zeros. Rare: short rather than fast. */
static void add_seen(lane_rows *own, const __local uchar *weights, __local uchar *values) {
    const int lane = get_local_id(0) % 32;
#pragma unroll 1
    for (int key = 0; key < TUNE_KEYS; key++) {
        float weight[2];
#pragma unroll
        for (int r = 0; r < 2; r++)
            weight[r] =
                unpack(*(const __local ushort *)(weights + panel_at(0, lane_row() + r * 8, key / 8) + key % 8 * 2)).x;
#pragma unroll
        for (int d = 0; d < RESULT_STEPS * 2; d++) {
            const float2 value = unpack(*(const __local uint *)(values + panel_at(PANEL_BYTES, key, d) + lane % 4 * 4));
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float sum = own->acc[0][d][e] + weight[e / 2] * (e % 2 ? value.y : value.x);
                own->acc[0][d][e] = weight[e / 2] == 0 ? own->acc[0][d][e] : sum;
            }
        }
    }
    const int id = OWN_BARRIER + own_warpgroup(), pieces = own_pieces();
    warpgroup_barrier(id);
    for (int i = get_local_id(0) % WARPGROUP; i < TUNE_KEYS * pieces; i += WARPGROUP)
        *(__local uint4 *)(values + panel_at(PANEL_BYTES, i / pieces, i % pieces)) = 0;
    fence_async();
    warpgroup_barrier(id);
}

/* Whether a value of a tile, of the columns that a warpgroup has, is infinite or NaN. */
static bool has_special(const __local uchar *values) {
    const int pieces = own_pieces();
    bool special = false;
#pragma unroll 4
    for (int i = get_local_id(0) % WARPGROUP; i < TUNE_KEYS * pieces; i += WARPGROUP) {
        const __local uchar *piece = values + panel_at(PANEL_BYTES, i / pieces, i % pieces);
        special = special || piece_is_special((const __local ushort *)piece);
    }
    return warpgroup_any(OWN_BARRIER + own_warpgroup(), special);
}

/* Before the products of weights, which are in local memory, with a tile's values. */
static void keep_unseen_out(stream_tile t, stream_memory m, lane_rows *own) {
    if (!t.partly_seen || !has_special(own_values(t)))
        return;
    add_seen(own, weights_of(m), own_values(t));
}

/* ---- the end of a problem ---- */

#if WITH_SPLITS
/* The sums of a warp's rows as partial results, un-normalised. */
static void store_partials(const attn_problem *p, const attn_result_target *target, const lane_rows *own) {
    const int column = own_warpgroup() * RESULT_COLUMNS + get_local_id(0) % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = p->first_row + lane_row() + r * 8;
        if (row >= p->num_rows)
            continue;
        __global float *to = target->partial_acc + partial_row(p, row) * HEAD_DIM_V + column;
#pragma unroll
        for (int d = 0; d < RESULT_STEPS * 2; d++)
            if (HEAD_DIM_V == 2 * RESULT_COLUMNS || column + d * 8 < HEAD_DIM_V)
                *(__global float2 *)(to + d * 8) = (float2)(own->acc[0][d][2 * r], own->acc[0][d][2 * r + 1]);
    }
}
#endif

/* A warp stores its results. factor: of the lane's rows. */
static void store_columns(const attn_problem *p, const attn_result_target *target, stream_memory m,
                          const lane_rows *own, const float *factor) {
#if WITH_SPLITS
    if (p->num_splits > 1) {
        store_partials(p, target, own);
        return;
    }
#endif
    const int column = own_warpgroup() * RESULT_COLUMNS;
    lane_results results;
    finish_results(own, factor, &results);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = p->first_row + lane_row() + r * 8;
        results.to[r] = row < p->num_rows
                            ? (__global ushort *)target->out + column +
                                  layout_at(target->out_layout, problem_token(p, row), problem_head(p, row))
                            : 0;
    }
    /* Where the warp of the first warpgroup that has these rows will put weights, and no other. */
    __local uchar *lines = weights_of(m) + warp_row() * PANEL_ROW + own_warpgroup() * LINES;
    const bool aligned = ((target->out_layout.x | target->out_layout.y | target->out_layout.z) & 7) == 0;
    store_lines(&results, lines, V_VECTORS - column / 8, aligned);
}

/* ---- the first warpgroup ---- */

/* Weights of a tile's scores, as fragments. What they are to the results before: rescale. */
static void weigh(const attn_problem *p, const score_scale *scale, stream_tile t, lane_rows *own,
                  float (*scores)[KEY_TILES][4], float (*rescale)[2], uint (*weights)[4]) {
    if (!scale->is_late || t.partly_seen)
        tile_scores(p, warp_row(), t.first, scale->first, scores);
    if (tile_softmax(own, scale->late, scores, rescale))
        rows_rescale(own, rescale);
    pack_weights((const float(*)[4])scores[0], weights);
}

/* Factors of the lane's rows to local memory, for the second warpgroup. */
static void tell_factors(stream_memory m, const float *factor) {
    if (get_local_id(0) % 4 == 0)
        for (int r = 0; r < 2; r++)
            m.sums[lane_row() + r * 8] = factor[r];
}

/* Weights and factors of rows to local memory, for the second warpgroup. */
static void hand_over(const uint (*weights)[4], float (*rescale)[2], stream_memory m) {
    turn_wait(WEIGHTS_READ);
    store_weights(weights, weights_of(m));
    tell_factors(m, rescale[0]);
    fence_async();
    turn_pass(WEIGHTS_THERE);
    warp_barrier();
}

/* Begins results += weights * values. */
static void begin_results(lane_rows *own, const uint (*weights)[4], stream_tile t) {
    const ulong values = matrix_at(local_address(own_values(t)), PANEL_BYTES, 1024);
    products_begin();
#pragma unroll
    for (int step = 0; step < TUNE_KEYS / 16; step++)
        PRODUCT_OF_REGISTERS(RESULT_COLUMNS, &own->acc[0][0][0], weights[step],
                             matrix_further(values, step * 16 * PANEL_ROW));
    products_commit();
}

/* Ends a problem whose results are summed up. */
static void end_problem(const attn_problem *p, stream_memory m, const attn_result_target *target, lane_rows *own) {
    const int lane = get_local_id(0) % 32;
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = own->lane_sum[0][r] + from_lane_xor(own->lane_sum[0][r], 1);
        sum += from_lane_xor(sum, 2);
        const int row = p->first_row + lane_row() + r * 8;
        factor[r] = 0;
        if (row < p->num_rows)
            factor[r] = 1 / result_end(p, target, row, own->row_max[0][r], sum, lane % 4 == 0);
    }
    turn_wait(WEIGHTS_READ);
    tell_factors(m, factor);
    turn_pass(WEIGHTS_THERE);
    store_columns(p, target, m, own, factor);
}

static void run_first(const attn_problem *p, int round, stream_place *at, stream_memory m,
                      const attn_result_target *target) {
    const tile_range range = tile_range_of(p);
    const int num_tiles = max(range.num_tiles, 1);
    const score_scale scale = score_scale_of(p);
    const uint q = local_address(m.shared.q);
    lane_rows own;
    rows_begin(&own);
    float scores[ROW_TILES][KEY_TILES][4], rescale[ROW_TILES][2];
    uint weights[TUNE_KEYS / 16][4];
    mbarrier_wait(stream_barrier(m.shared, Q_THERE), turn_parity(round, STREAM_Q));
    stream_tile t = take_tile(p, &range, 0, m, *at);
    begin_scores(&scores[0][0][0], q, local_address(t.keys), PANEL_BYTES);
    PRODUCTS_WAIT(TUNE_KEYS, &scores[0][0][0], 0);
    weigh(p, &scale, t, &own, scores, rescale, weights);
#pragma unroll 1
    for (int tile = 1; tile < num_tiles; tile++) {
        hand_over((const uint(*)[4])weights, rescale, m);
        keep_unseen_out(t, m, &own);
        begin_results(&own, (const uint(*)[4])weights, t);
        const stream_place before = *at;
        stream_advance(at);
        t = take_tile(p, &range, tile, m, *at);
        begin_scores(&scores[0][0][0], q, local_address(t.keys), PANEL_BYTES);
        products_wait_all_but_last();
        release_tile(m, before);
        PRODUCTS_WAIT(TUNE_KEYS, &scores[0][0][0], 0);
        PRODUCTS_WAIT(RESULT_COLUMNS, &own.acc[0][0][0], 0);
        weigh(p, &scale, t, &own, scores, rescale, weights);
    }
    hand_over((const uint(*)[4])weights, rescale, m);
    keep_unseen_out(t, m, &own);
    begin_results(&own, (const uint(*)[4])weights, t);
    PRODUCTS_WAIT(RESULT_COLUMNS, &own.acc[0][0][0], 0);
    release_tile(m, *at);
    stream_advance(at);
    end_problem(p, m, target, &own);
}

/* ---- the second ---- */

/* What the results before count, or in the end what the results are multiplied by, for the lane's rows. */
static void take_factors(stream_memory m, float *factor) {
    turn_wait(WEIGHTS_THERE);
#pragma unroll
    for (int r = 0; r < 2; r++)
        factor[r] = m.sums[lane_row() + r * 8];
}

static void run_second(const attn_problem *p, const stream_source *from, int round, stream_place *at, stream_memory m,
                       const attn_result_target *target) {
    const tile_range range = tile_range_of(p);
    const int num_tiles = max(range.num_tiles, 1);
    bool any_more = false;
    float factor[1][2];
    lane_rows own;
    rows_begin(&own);
#pragma unroll 1
    for (int tile = 0; tile < num_tiles; tile++) {
        const stream_tile t = take_tile(p, &range, tile, m, *at);
        take_factors(m, factor[0]);
        if (any_lane(factor[0][0] != 1 || factor[0][1] != 1))
            rows_rescale(&own, factor);
        keep_unseen_out(t, m, &own);
        const ulong values = matrix_at(local_address(own_values(t)), PANEL_BYTES, 1024);
        const ulong weights = matrix_at(local_address(weights_of(m)), 0, 1024);
        products_begin();
#pragma unroll
        for (int step = 0; step < TUNE_KEYS / 16; step++)
            PRODUCT_OF_ROWS(RESULT_COLUMNS, &own.acc[0][0][0], matrix_further(weights, step * 32),
                            matrix_further(values, step * 16 * PANEL_ROW));
        products_commit();
        /* The last scores are there: q is not needed any more. */
        if (tile == num_tiles - 1 && stream_wait_problem(m.shared, round + 1)) {
            attn_problem next = *p;
            stream_take(&next, from, m.shared, round + 1);
            begin_q(&next, from, m);
            any_more = true;
        }
        PRODUCTS_WAIT(RESULT_COLUMNS, &own.acc[0][0][0], 0);
        turn_pass(WEIGHTS_READ);
        release_tile(m, *at);
        stream_advance(at);
    }
    take_factors(m, factor[0]);
    store_columns(p, target, m, &own, factor[0]);
    turn_pass(WEIGHTS_READ);
    if (any_more)
        end_q(m);
}

/* ---- both ---- */

/* Before the first problem. p: of it the tensors. */
static void work_begin(attn_problem *p, const stream_source *from, stream_memory m) {
    if (own_warpgroup() == 0)
        return;
    turn_pass(WEIGHTS_READ);
    if (!stream_wait_problem(m.shared, 0))
        return;
    stream_take(p, from, m.shared, 0);
    begin_q(p, from, m);
    end_q(m);
}

/* Runs a problem, the round-th, whose tiles are in the stream from *at on. */
static void run_problem(const attn_problem *p, const stream_source *from, int round, stream_place *at, stream_memory m,
                        const attn_result_target *target) {
    if (own_warpgroup() == 0)
        run_first(p, round, at, m, target);
    else
        run_second(p, from, round, at, m, target);
    warp_barrier();
    if (get_local_id(0) % 32 == 0)
        mbarrier_arrive(stream_barrier(m.shared, DONE + round % 2));
}

/* By the storer, when a problem's results are stored. */
static void store_done(const attn_problem *p, stream_memory m, int round, int stage, const attn_result_target *target) {
    (void)p;
    (void)m;
    (void)round;
    (void)stage;
    (void)target;
}

#endif
