/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Varlen attention of tier nv_wgmma, as attn_varlen, by matrix products of warpgroups. A work-group takes one problem
 * after the other: TUNE_ROWS rows, 64 for each of its warpgroups, over all their keys, in tiles of TUNE_KEYS. The
 * warps behind the warpgroups fetch keys and values (nv/panels.h), of the next problems too while the last of one is
 * worked on.
 *
 * While a warpgroup multiplies the weights of one tile with its values, and q with the keys of the next tile, it makes
 * weights from the scores that are there. Weights are rounded to the element of V.
 *
 * Launch: TUNE_WG * work-groups, as many as run at once, or as there are problems.
 */
#define WITH_APPEND 0
#define WITH_SPLITS 0
#if !defined(TUNE_STAGES) || !defined(TUNE_ROWS) || !defined(TUNE_KEYS)
#error a macro of attn_varlen_wgmma.cl is missing
#endif

/* Steps of 16 elements through a row. */
#define K_STEPS ((HEAD_DIM + 15) / 16)
#define V_STEPS ((HEAD_DIM_V + 15) / 16)
#define KEY_STEPS (TUNE_KEYS / 16)

/* Columns of the products with values: a number, for names are made of it. */
#if HEAD_DIM_V <= 16
#define V_COLUMNS 16
#elif HEAD_DIM_V <= 32
#define V_COLUMNS 32
#elif HEAD_DIM_V <= 48
#define V_COLUMNS 48
#elif HEAD_DIM_V <= 64
#define V_COLUMNS 64
#elif HEAD_DIM_V <= 80
#define V_COLUMNS 80
#elif HEAD_DIM_V <= 96
#define V_COLUMNS 96
#elif HEAD_DIM_V <= 112
#define V_COLUMNS 112
#elif HEAD_DIM_V <= 128
#define V_COLUMNS 128
#elif HEAD_DIM_V <= 144
#define V_COLUMNS 144
#elif HEAD_DIM_V <= 160
#define V_COLUMNS 160
#elif HEAD_DIM_V <= 176
#define V_COLUMNS 176
#elif HEAD_DIM_V <= 192
#define V_COLUMNS 192
#elif HEAD_DIM_V <= 208
#define V_COLUMNS 208
#elif HEAD_DIM_V <= 224
#define V_COLUMNS 224
#elif HEAD_DIM_V <= 240
#define V_COLUMNS 240
#elif HEAD_DIM_V <= 256
#define V_COLUMNS 256
#else
#error HEAD_DIM_V is above 256
#endif

/* Of a warp. */
#define ROW_TILES 1
#define KEY_TILES (TUNE_KEYS / 8)

#include "nv/panels.h"
#include "nv/softmax.h"
#include "lib/attn_result.h"

/* Registers of a work-item that fetches, and of one that works, which share the 65536 of a multiprocessor. */
#define FETCH_REGISTERS 56
#if TUNE_ROWS == 192
#define WORK_REGISTERS 152
#elif TUNE_ROWS == 128
#define WORK_REGISTERS 224
#else
#error TUNE_ROWS is neither 128 nor 192
#endif

/* q of a warpgroup. */
#define Q_PANEL (64 * PANEL_ROW)
#define Q_BYTES (K_PANELS * Q_PANEL)

#define MEMORY_BYTES                                                                                                   \
    (RING_BYTES + WARPGROUPS * Q_BYTES + ZEROS + FETCH_WARPS * TUNE_KEYS * 8 + TUNE_STAGES * (4 * 8 + 16))

/* Reads the problem that a work-group takes in a round, if there is one. They fall in length: every second round goes
   the other way, so that no group has the longer one each time. */
static bool read_problem(attn_problem *p, const __global int *plan, int2 sections, int round, long num_problems) {
    const int groups = get_num_groups(0), group = get_group_id(0);
    const long index = (long)round * groups + (round % 2 == 0 ? group : groups - 1 - group);
    if (index >= num_problems)
        return false;
    problem_from_plan(p, plan, sections, (int)(index / NUM_KV_HEADS));
    p->kv_head = (int)(index % NUM_KV_HEADS);
    return true;
}

/* ---- q ---- */

/* Begins to load a warp's 16 rows of q; rows behind the last are zeros, and so is what fills a row up. */
static void load_q(const attn_problem *p, const __global STORAGE(Q) * q, long4 q_layout, int warp_row,
                   __local uchar *to) {
    const int lane = get_local_id(0) % 32;
    const int first = warp_row % 64;
#if ROTARY_DIM == 0
    if (((q_layout.x | q_layout.y | q_layout.z) & 7) == 0) {
        for (int i = lane; i < 16 * 2 * K_STEPS; i += 32) {
            const int row = i / (2 * K_STEPS), piece = i % (2 * K_STEPS);
            const int known = min(p->first_row + warp_row + row, p->num_rows - 1);
            copy_begin16(local_address(to) + panel_at(Q_PANEL, first + row, piece),
                         q + layout_at(q_layout, problem_token(p, known), problem_head(p, known)) + piece * 8,
                         p->first_row + warp_row + row < p->num_rows && piece < K_VECTORS);
        }
        copy_commit();
        return;
    }
#endif
    for (int i = lane; i < 16 * 2 * K_STEPS; i += 32) {
        const int row = p->first_row + warp_row + i / (2 * K_STEPS), piece = i % (2 * K_STEPS);
        float8 x = 0;
        if (row < p->num_rows && piece < K_VECTORS)
            x = rotated8(&p->rotary, q, layout_at(q_layout, problem_token(p, row), problem_head(p, row)), piece * 8,
                         problem_position(p, row));
        tile_store8((__local ushort *)(to + panel_at(Q_PANEL, first + i / (2 * K_STEPS), piece)), x);
    }
}

/* ---- products ---- */

/* Begins scores = q * keys^T. */
static void begin_scores(float *scores, uint q_address, uint keys_address) {
    const ulong q = matrix_at(q_address, 0, 1024), keys = matrix_at(keys_address, 0, 1024);
    products_begin();
#pragma unroll
    for (int step = 0; step < K_STEPS; step++)
        PRODUCT(TUNE_KEYS, scores, matrix_further(q, step / 4 * Q_PANEL + step % 4 * 32),
                matrix_further(keys, step / 4 * TILE_PANEL + step % 4 * 32), step > 0);
    products_commit();
}

/* Begins acc += weights * values. `values`: where the tile's are, and 1; or where 1 KiB of zeros is, and 0, which is
   a tile of zeros. */
static void begin_results(float *acc, const uint (*weights)[4], uint address, uint stride) {
    const ulong values = matrix_at(address, TILE_PANEL * stride, 1024 * stride);
    products_begin();
#pragma unroll
    for (int step = 0; step < KEY_STEPS; step++)
        PRODUCT_OF_REGISTERS(V_COLUMNS, acc, weights[step], matrix_further(values, step * 16 * PANEL_ROW * stride));
    products_commit();
}

/* Weights as fragments. */
static void pack_weights(const float (*scores)[4], uint (*weights)[4]) {
#pragma unroll
    for (int step = 0; step < KEY_STEPS; step++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *pair = scores[2 * step + i / 2] + i % 2 * 2;
            weights[step][i] = pack(pair[0], pair[1]);
        }
}

/* acc += weights * values, where a value that a row does not see may be NaN: its zero weight must not meet it. */
static void add_seen(float (*acc)[4], const uint (*weights)[4], const __local uchar *values) {
    const int lane = get_local_id(0) % 32;
#pragma unroll
    for (int step = 0; step < KEY_STEPS; step++)
#pragma unroll
        for (int eight = 0; eight < 2; eight++)
#pragma unroll 1
            for (int j = 0; j < 8; j++) {
                const int source = (lane & ~3) | j / 2, key = step * 16 + eight * 8 + j;
                const float2 low = unpack(as_uint(from_lane(as_float(weights[step][eight * 2]), source)));
                const float2 high = unpack(as_uint(from_lane(as_float(weights[step][eight * 2 + 1]), source)));
                const float weight[2] = {j % 2 ? low.y : low.x, j % 2 ? high.y : high.x};
#pragma unroll
                for (int d = 0; d < V_STEPS * 2; d++) {
                    const float2 value =
                        unpack(*(const __local uint *)(values + panel_at(TILE_PANEL, key, d) + lane % 4 * 4));
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const float sum = acc[d][e] + weight[e / 2] * (e % 2 ? value.y : value.x);
                        acc[d][e] = weight[e / 2] == 0 ? acc[d][e] : sum;
                    }
                }
            }
}

/* ---- a problem ---- */

/* Two words of a lane and of the one whose number differs in bit `step`: the lower lane has both first ones, then. */
static void exchange(uint *first, uint *second, int step) {
    const bool upper = (get_local_id(0) & step) != 0;
    const uint got = as_uint(from_lane_xor(as_float(upper ? *first : *second), step));
    *first = upper ? got : *first;
    *second = upper ? *second : got;
}

/* Word i of lane t of 4 becomes word t of lane i. */
static void transpose_words(uint *words) {
    exchange(&words[0], &words[1], 1);
    exchange(&words[2], &words[3], 1);
    exchange(&words[0], &words[2], 2);
    exchange(&words[1], &words[3], 2);
}

/* A warp stores its rows' results. */
static void store_results(const attn_problem *p, const attn_result_target *target, const lane_rows *own, int warp_row) {
    const int lane = get_local_id(0) % 32;
    const bool aligned = ((target->out_layout.x | target->out_layout.y | target->out_layout.z) & 7) == 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = p->first_row + warp_row + lane / 4 + r * 8;
        float sum = own->lane_sum[0][r] + from_lane_xor(own->lane_sum[0][r], 1);
        sum += from_lane_xor(sum, 2);
        const attn_row_end end = row_end(own->row_max[0][r], sum, p->mask.sinks, problem_head(p, row));
        if (row < p->num_rows && lane % 4 == 0)
            store_lse(target->lse, target->lse_offset, problem_token(p, row), problem_head(p, row), end.lse);
        const float factor = 1 / end.divisor;
        __global ushort *to = (__global ushort *)target->out +
                              layout_at(target->out_layout, problem_token(p, row), problem_head(p, row));
#pragma unroll
        for (int d = 0; d < V_STEPS * 2; d += 4) {
            /* A lane of four has 2 elements of each of 4 pieces, and takes all 8 of one. */
            uint words[4] = {0, 0, 0, 0};
#pragma unroll
            for (int i = 0; i < 4 && d + i < V_STEPS * 2; i++)
                words[i] = pack(own->acc[0][d + i][2 * r] * factor, own->acc[0][d + i][2 * r + 1] * factor);
            transpose_words(words);
            const ushort8 x = as_ushort8((uint4)(words[0], words[1], words[2], words[3]));
            const int piece = d + lane % 4;
            const bool stored = row < p->num_rows && piece < V_VECTORS;
            if (stored && aligned)
                *(__global ushort8 *)(to + piece * 8) = x;
            else if (stored)
                vstore8(x, 0, to + piece * 8);
        }
    }
}

/* The same for the problem of a round, unless that is below 0. p: of another one, whose sources are those of all. */
static void store_round(const attn_problem *p, const __global int *plan, int2 sections, int round, long num_problems,
                        const attn_result_target *target, const lane_rows *own, int warp_row) {
    attn_problem stored = *p;
    if (round >= 0 && read_problem(&stored, plan, sections, round, num_problems))
        store_results(&stored, target, own, warp_row);
}

/* Which rows of a problem a warp has, and how it scores. */
typedef struct warp_rows {
    int first;        /* in the tile */
    uint q;           /* of the warpgroup, in local memory */
    float scale;      /* of products */
    float late_scale; /* of what the softmax takes */
} warp_rows;

/* Begins the scores of the tile at a place of the ring. */
static void scores_begin(key_ring ring, ring_place at, const warp_rows *rows, float (*scores)[KEY_TILES][4]) {
    mbarrier_wait(ring_barrier(ring, KEYS_THERE, at), at.parity);
    begin_scores(&scores[0][0][0], rows->q, local_address(ring_keys(ring, at)));
}

/* Begins to add up the values of the tile at a place of the ring. */
static void results_begin(key_ring ring, ring_place at, uint (*weights)[4], lane_rows *own) {
    mbarrier_wait(ring_barrier(ring, VALUES_THERE, at), at.parity);
    uint values = local_address(ring_values(ring, at)), stride = 1;
    if (ring.hides_special[at.stage]) {
        add_seen(own->acc[0], (const uint(*)[4])weights, ring_values(ring, at));
        for (int i = 0; i < KEY_STEPS * 4; i++)
            weights[i / 4][i % 4] = 0;
        values = local_address(ring.zeros);
        stride = 0;
    }
    begin_results(&own->acc[0][0][0], (const uint(*)[4])weights, values, stride);
}

/* Weights from the scores of the tile whose first key is at `first`; as tile_softmax. */
static bool weigh(const attn_problem *p, const key_range *range, int first, const warp_rows *rows, lane_rows *own,
                  float (*scores)[KEY_TILES][4], float (*rescale)[2]) {
    const bool whole = first >= range->begin && first + TUNE_KEYS <= p->key_end;
    /* Any key may lie in no block where the table is guarded. */
    if (rows->late_scale == 1 || WITH_GUARD || !whole || !all_see(p, range, first))
        tile_scores(p, rows->first, first, rows->scale, scores);
    return tile_softmax(own, rows->late_scale, scores, rescale);
}

/* Says that a warp is done with a part of a tile. */
static void release(key_ring ring, int which, ring_place at) {
    if (get_local_id(0) % 32 == 0)
        mbarrier_arrive(ring_barrier(ring, which, at));
}

/* A warp's rows against all their keys. The first tile is at a place of the ring; returns the place behind the last. */
static ring_place attend(const attn_problem *p, const key_range *range, key_ring ring, ring_place at,
                         const warp_rows *rows, lane_rows *own) {
    float scores[ROW_TILES][KEY_TILES][4], rescale[ROW_TILES][2];
    uint weights[KEY_STEPS][4];
    scores_begin(ring, at, rows, scores);
    PRODUCTS_WAIT(TUNE_KEYS, &scores[0][0][0], 0);
    release(ring, KEYS_DONE, at);
    rows_begin(own);
    int first = range->start;
    weigh(p, range, first, rows, own, scores, rescale);
    pack_weights((const float(*)[4])scores[0], weights);
    for (int t = 1; t < range->num_tiles; t++) {
        const ring_place next = ring_further(at, 1);
        first += TUNE_KEYS;
        scores_begin(ring, next, rows, scores);
        results_begin(ring, at, weights, own);
        PRODUCTS_WAIT(TUNE_KEYS, &scores[0][0][0], 1);
        release(ring, KEYS_DONE, next);
        const bool changed = weigh(p, range, first, rows, own, scores, rescale);
        PRODUCTS_WAIT(V_COLUMNS, &own->acc[0][0][0], 0);
        release(ring, VALUES_DONE, at);
        if (changed)
            rows_rescale(own, rescale);
        pack_weights((const float(*)[4])scores[0], weights);
        at = next;
    }
    results_begin(ring, at, weights, own);
    PRODUCTS_WAIT(V_COLUMNS, &own->acc[0][0][0], 0);
    release(ring, VALUES_DONE, at);
    return ring_further(at, 1);
}

__kernel __attribute__((reqd_work_group_size(TUNE_WG, 1, 1))) void
attn_varlen_wgmma(const __global int *plan, int2 sections, const __global STORAGE(Q) * q, long4 q_layout, KEYS_PARAMS,
                  ROTARY_PARAMS, MASK_PARAMS, RESULT_PARAMS) {
    __local uint4 memory[MEMORY_BYTES / 16] __attribute__((aligned(1024)));
    const keys_source keys = KEYS_SOURCE;
    const rotary_source rotary = ROTARY_SOURCE;
    const mask_source mask = MASK_SOURCE;
    const attn_result_target target = RESULT_TARGET;
    __local uchar *place = (__local uchar *)memory;
    key_ring ring;
    ring.keys = place;
    ring.values = ring.keys + TUNE_STAGES * K_STAGE;
    ring.zeros = place + RING_BYTES + WARPGROUPS * Q_BYTES;
    ring.rows = (__local ulong *)(ring.zeros + ZEROS);
    ring.barriers = ring.rows + FETCH_WARPS * TUNE_KEYS;
    ring.hides_special = (__local int *)(ring.barriers + 4 * TUNE_STAGES);
    const int warp = get_local_id(0) / 32, warpgroup = warp / 4;
    if (get_local_id(0) == 0)
        ring_init(ring);
    ring_fill_up(ring);
    barrier(CLK_LOCAL_MEM_FENCE);

    attn_problem p;
    p.keys = keys;
    p.rotary = rotary;
    p.mask = mask;
    const long num_problems = (long)(sections.y - sections.x) / WORK_INTS * NUM_KV_HEADS;
    ring_place at = {0, 0};
    if (warpgroup == WARPGROUPS) {
        REGISTERS_DOWN_TO(FETCH_REGISTERS);
        int turn = (warp - WORKERS / 32) / 2;
        for (int round = 0; read_problem(&p, plan, sections, round, num_problems); round++) {
            const key_range range = range_of(&p);
            turn = ring_fetch(&p, &range, ring, at, turn);
            at = ring_further(at, range.num_tiles % TUNE_STAGES);
            at.parity ^= range.num_tiles / TUNE_STAGES & 1;
        }
    } else {
        REGISTERS_UP_TO(WORK_REGISTERS);
        __local uchar *own_q = place + RING_BYTES + warpgroup * Q_BYTES;
        /* The scale is left to the softmax, unless something comes between, or it would turn the order round. */
        const bool scale_late = (WITH_SOFTCAP | WITH_ALIBI) == 0 && mask.scale.x > 0;
        const warp_rows rows = {warp * 16, local_address(own_q), scale_late ? 1 : mask.scale.x,
                                scale_late ? mask.scale.x : 1};
        lane_rows own;
        if (read_problem(&p, plan, sections, 0, num_problems))
            load_q(&p, q, q_layout, rows.first, own_q);
        int round = 0;
        for (; read_problem(&p, plan, sections, round, num_problems); round++) {
            const key_range range = range_of(&p);
            COPY_WAIT(0);
            fence_products();
            warpgroup_barrier(warpgroup + 1);
            /* Behind the fence, which would wait for them, results are stored. */
            store_round(&p, plan, sections, round - 1, num_problems, &target, &own, rows.first);
            at = attend(&p, &range, ring, at, &rows, &own);
            /* All are done with q. */
            warpgroup_barrier(warpgroup + 1);
            if (read_problem(&p, plan, sections, round + 1, num_problems))
                load_q(&p, q, q_layout, rows.first, own_q);
        }
        store_round(&p, plan, sections, round - 1, num_problems, &target, &own, rows.first);
    }
}
