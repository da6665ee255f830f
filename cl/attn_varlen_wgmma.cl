/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Varlen attention of tier nv_wgmma, as attn_varlen, by matrix products of warpgroups. A work-group takes one problem
 * after the other: TUNE_ROWS rows, 64 for each of its warpgroups, over all their keys, in tiles of TUNE_KEYS. The
 * warps behind the warpgroups fetch keys and values (nv/fetch.h), of the next problems too while the last of one is
 * worked on (nv/problems.h).
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
#define RESULT_STEPS V_STEPS
#define RESULT_COLUMNS HEAD_DIM_V

#include "nv/fetch.h"
#include "nv/problems.h"
#include "nv/q_panels.h"
#include "nv/result_lines.h"
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

#define MEMORY_BYTES                                                                                        \
    (RING_BYTES + WARPGROUPS * Q_BYTES + ZEROS + WORKERS / 32 * LINES + FETCH_WARPS * (TUNE_KEYS + 1) * 8 + \
     PROBLEM_BYTES + TUNE_STAGES * (4 * 8 + 16))

/* Tensor maps of the pool's layers, and the record of the first segment of this one. */
#if WITH_MAPS
#define MAPS_PARAM , const __global uchar *all_maps, int first_map
#else
#define MAPS_PARAM
#endif

/* What a warp that works has of every problem: 16 rows. */
typedef struct worker {
    const problem_list *list;
    const __global STORAGE(Q) * q;
    long4 q_layout;
    attn_result_target target;
    int first;            /* row, of the tile */
    __local uchar *own_q; /* of its warpgroup */
    __local uchar *lines; /* [LINES] */
    float scale;          /* of products */
    float late_scale;     /* of what the softmax takes */
} worker;

/* ---- q ---- */

/* Takes the problem of a round, and begins to load its q when the warpgroup is done with the q before; false: there is
   no problem. */
static bool load_next(const worker *w, attn_problem *next, int round) {
    warpgroup_barrier(w->first / 64 + 1);
    const bool any = problem_take(next, w->list, round);
    if (any)
        load_q_panels(next, w->q, w->q_layout, next->first_row + w->first, w->first % 64, w->own_q);
    return any;
}

/* Waits for the q that load_q began to load. */
static void wait_for_q(const worker *w) {
    COPY_WAIT(0);
    fence_async();
    warpgroup_barrier(w->first / 64 + 1);
}

/* ---- products ---- */

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

/* acc += weights * values, where a value that a row does not see may be NaN: its zero weight must not meet it. Rare:
   short rather than fast. */
static void add_seen(float (*acc)[4], const uint (*weights)[4], const __local uchar *values) {
    const int lane = get_local_id(0) % 32;
    /* A copy, since a loop's index puts it into memory. */
    uint own[KEY_STEPS * 4];
#pragma unroll
    for (int i = 0; i < KEY_STEPS * 4; i++)
        own[i] = weights[i / 4][i % 4];
#pragma unroll 1
    for (int key = 0; key < TUNE_KEYS; key++) {
        const int source = (lane & ~3) | key % 8 / 2, at = key / 8 * 2;
        const float2 low = unpack(as_uint(from_lane(as_float(own[at]), source)));
        const float2 high = unpack(as_uint(from_lane(as_float(own[at + 1]), source)));
        const float weight[2] = {key % 2 ? low.y : low.x, key % 2 ? high.y : high.x};
#pragma unroll
        for (int d = 0; d < V_STEPS * 2; d++) {
            const float2 value = unpack(*(const __local uint *)(values + panel_at(TILE_PANEL, key, d) + lane % 4 * 4));
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float sum = acc[d][e] + weight[e / 2] * (e % 2 ? value.y : value.x);
                acc[d][e] = weight[e / 2] == 0 ? acc[d][e] : sum;
            }
        }
    }
}

/* ---- a problem ---- */

/* Ends rows whose last weights are summed up: stores their LSE; where results go, and the factors from sums to them. */
static void end_rows(const worker *w, const attn_problem *p, const lane_rows *own, lane_results *results,
                     float *factor) {
    const int lane = get_local_id(0) % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = own->lane_sum[0][r] + from_lane_xor(own->lane_sum[0][r], 1);
        sum += from_lane_xor(sum, 2);
        const int row = p->first_row + w->first + lane / 4 + r * 8;
        const long token = problem_token(p, row);
        const int head = problem_head(p, row);
        const attn_row_end end = row_end(own->row_max[0][r], sum, p->mask.sinks, head);
        factor[r] = 1 / end.divisor;
        results->to[r] = 0;
        if (row < p->num_rows) {
            results->to[r] = (__global ushort *)w->target.out + layout_at(w->target.out_layout, token, head);
            if (lane % 4 == 0)
                store_lse(w->target.lse, w->target.lse_offset, token, head, end.lse);
        }
    }
}

/* Stores a warp's results. */
static void store_results(const worker *w, const lane_results *results) {
    const bool aligned = ((w->target.out_layout.x | w->target.out_layout.y | w->target.out_layout.z) & 7) == 0;
    store_lines(results, w->lines, V_VECTORS, aligned);
}

/* Whether the warpgroups begin their products in turns, so that one has products while the others make weights: it pays
   where products are short. All have the same number of tiles, and so of turns. */
#define TAKES_TURNS (HEAD_DIM_V <= 64)

/* The barrier for the turn of a warpgroup, counted on from the last to the first; the barriers before are their own. */
static int turn_of(int warpgroup) {
    return WARPGROUPS + 1 + warpgroup % WARPGROUPS;
}

/* Begins the scores of the tile at a place of the ring. */
static void scores_begin(const worker *w, key_ring ring, ring_place at, float (*scores)[KEY_TILES][4]) {
    mbarrier_wait(ring_barrier(ring, KEYS_THERE, at), at.parity);
    begin_scores(&scores[0][0][0], local_address(w->own_q), local_address(ring_keys(ring, at)), TILE_PANEL);
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
static bool weigh(const worker *w, const attn_problem *p, const key_range *range, int first, lane_rows *own,
                  float (*scores)[KEY_TILES][4], float (*rescale)[2]) {
    const bool whole = first >= range->begin && first + TUNE_KEYS <= p->key_end;
    /* Any key may lie in no block where the table is guarded. */
    if (w->late_scale == 1 || WITH_GUARD || !whole || !all_see(p, range, first))
        tile_scores(p, w->first, first, w->scale, scores);
    return tile_softmax(own, w->late_scale, scores, rescale);
}

/* A wait that follows stays behind what x is made from: ptxas would move the weights' exponentials behind it, where no
   product runs any more. x is not below 0, so that nothing is stored; `place`: anywhere in local memory. */
static void finish_before_wait(float x, uint place) {
    asm volatile("{ .reg .pred below; setp.lt.f32 below, %0, 0f00000000; @below st.shared.f32 [%1], %0; }"
                 :
                 : "f"(x), "r"(place)
                 : "memory");
}

/* Says that a warp is done with a part of a tile. */
static void release(key_ring ring, int which, ring_place at) {
    if (get_local_id(0) % 32 == 0)
        mbarrier_arrive(ring_barrier(ring, which, at));
}

/* A warp's rows of the problem of a round against all their keys, when q is there. Meanwhile the results of the round
   before are stored, and the problem of the next is taken and its q loaded; it becomes *p, false: there is none. The first
   tile is at a place of the ring, which becomes that behind the last. */
static bool attend(const worker *w, attn_problem *p, int round, key_ring ring, ring_place *place,
                   lane_results *results) {
    const key_range range = range_of(p);
    ring_place at = *place;
    attn_problem next = *p; /* whose sources are those of all */
    bool more = false;
    lane_rows own;
    float scores[ROW_TILES][KEY_TILES][4], rescale[ROW_TILES][2];
    uint weights[KEY_STEPS][4];
    scores_begin(w, ring, at, scores);
    if (round > 0)
        store_results(w, results);
    PRODUCTS_WAIT(TUNE_KEYS, &scores[0][0][0], 0);
    release(ring, KEYS_DONE, at);
    if (range.num_tiles == 1)
        more = load_next(w, &next, round + 1);
    rows_begin(&own);
    int first = range.start;
    weigh(w, p, &range, first, &own, scores, rescale);
    pack_weights((const float(*)[4])scores[0], weights);
    for (int t = 1; t < range.num_tiles; t++) {
        const ring_place next = ring_further(at, 1);
        first += TUNE_KEYS;
        if (TAKES_TURNS)
            turn_wait(turn_of(w->first / 64));
        scores_begin(w, ring, next, scores);
        results_begin(ring, at, weights, &own);
        if (TAKES_TURNS)
            turn_pass(turn_of(w->first / 64 + 1));
        PRODUCTS_WAIT(TUNE_KEYS, &scores[0][0][0], 1);
        release(ring, KEYS_DONE, next);
        const bool changed = weigh(w, p, &range, first, &own, scores, rescale);
        finish_before_wait(own.lane_sum[0][0] + own.lane_sum[0][1], local_address(ring.zeros));
        PRODUCTS_WAIT(V_COLUMNS, &own.acc[0][0][0], 0);
        release(ring, VALUES_DONE, at);
        if (changed)
            rows_rescale(&own, rescale);
        pack_weights((const float(*)[4])scores[0], weights);
        at = next;
    }
    results_begin(ring, at, weights, &own);
    if (range.num_tiles > 1)
        more = load_next(w, &next, round + 1);
    float factor[2];
    end_rows(w, p, &own, results, factor);
    PRODUCTS_WAIT(V_COLUMNS, &own.acc[0][0][0], 0);
    release(ring, VALUES_DONE, at);
    finish_results(&own, factor, results);
    *place = ring_further(at, 1);
    *p = next;
    return more;
}

__kernel __attribute__((reqd_work_group_size(TUNE_WG, 1, 1))) void
attn_varlen_wgmma(const __global int *plan, int2 sections, const __global STORAGE(Q) * q, long4 q_layout, KEYS_PARAMS,
                  ROTARY_PARAMS, MASK_PARAMS, RESULT_PARAMS, __global int *counters MAPS_PARAM) {
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
    ring.rows = (__local ulong *)(ring.zeros + ZEROS + WORKERS / 32 * LINES);
    ring.barriers = ring.rows + FETCH_WARPS * TUNE_KEYS;
    ring.landed = ring.barriers + 4 * TUNE_STAGES;
    problem_list list;
    list.plan = plan;
    list.sections = sections;
    list.count = (long)(sections.y - sections.x) / WORK_INTS * NUM_KV_HEADS;
    list.counters = counters;
    list.barriers = ring.landed + FETCH_WARPS;
    list.places = (__local int *)(list.barriers + 2 * PROBLEM_PLACES);
    ring.hides_special = list.places + PROBLEM_PLACES * PROBLEM_INTS;
    const int warp = get_local_id(0) / 32, warpgroup = warp / 4;
    if (get_local_id(0) == 0) {
        ring_init(ring);
        problems_init(&list);
    }
    ring_fill_up(ring);
    barrier(CLK_LOCAL_MEM_FENCE);

    attn_problem p;
    p.keys = keys;
    p.rotary = rotary;
    p.mask = mask;
    ring_place at = {0, 0};
    if (warpgroup == WARPGROUPS) {
        REGISTERS_DOWN_TO(FETCH_REGISTERS);
        const int own = warp - WORKERS / 32;
        fetcher f = {get_local_id(0) % 32,
                     own % 2 == 0,
                     own / 2,
                     ring.rows + own * TUNE_KEYS,
                     0,
                     local_address(ring.landed + own),
                     0};
#if WITH_MAPS
        const __global uchar *maps = all_maps + (long)first_map * MAPS_RECORD;
        if (maps_hold(maps, &keys.k, &keys.v)) {
            f.maps = maps;
            for (int i = 0; i < NUM_SEGMENTS; i++)
                map_acquire(maps + i * MAPS_RECORD + own % 2 * MAP_BYTES);
        }
#endif
        for (int round = 0;; round++) {
            if (own == 0)
                problems_hand_out(&list, round);
            if (!problem_take(&p, &list, round))
                break;
            const key_range range = range_of(&p);
            ring_fetch(&p, &range, &f, ring, at);
            at = ring_further(at, range.num_tiles % TUNE_STAGES);
            at.parity ^= range.num_tiles / TUNE_STAGES & 1;
        }
    } else {
        REGISTERS_UP_TO(WORK_REGISTERS);
        /* The scale is left to the softmax, unless something comes between, or it would turn the order round. */
        const bool scale_late = (WITH_SOFTCAP | WITH_ALIBI) == 0 && mask.scale.x > 0;
        worker w;
        w.list = &list;
        w.q = q;
        w.q_layout = q_layout;
        w.target = target;
        w.first = warp * 16;
        w.own_q = place + RING_BYTES + warpgroup * Q_BYTES;
        w.lines = ring.zeros + ZEROS + warp * LINES;
        w.scale = scale_late ? 1 : mask.scale.x;
        w.late_scale = scale_late ? mask.scale.x : 1;
        if (TAKES_TURNS && warpgroup == WARPGROUPS - 1)
            turn_pass(turn_of(WARPGROUPS));
        lane_results results;
        bool more = load_next(&w, &p, 0);
        int round = 0;
        for (; more; round++) {
            wait_for_q(&w);
            more = attend(&w, &p, round, ring, &at, &results);
        }
        if (round > 0)
            store_results(&w, &results);
    }
}
