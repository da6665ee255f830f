/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by a work-group, tier nv_mma: TUNE_ROWS rows of a problem against tiles of TUNE_KEYS keys. Online softmax in
 * base 2, as lib/attn_tile.h.
 *
 * K and V lie in a ring of TUNE_STAGES tiles in local memory (nv/ring.h); while one is worked on by all warps
 * (nv/attn_warp.h), the next are on their way.
 */
#ifndef NV_ATTN_TILE_H
#define NV_ATTN_TILE_H

#include "nv/attn_warp.h"
#include "nv/ring.h"
#if WITH_SPLITS
#include "nv/merge.h"
#endif

typedef struct tile_memory {
    __local ushort *ring; /* results lie there in the end */
    __local ushort *q;    /* [Q_ELEMENTS] */
    __local ulong *rows;  /* of the ring's stages */
    __local ulong *scales_from;
    __local float *scales;
    results_memory results;
} tile_memory;

#define ALL_RESULTS_BYTES (KEY_WARPS * RESULT_BYTES)

#define TILE_MEMORY(name)                                                                                    \
    __local uint4 name##_ring[(RING_BYTES > ALL_RESULTS_BYTES ? RING_BYTES : ALL_RESULTS_BYTES) / 16];       \
    __local uint4 name##_q[Q_ELEMENTS / 8];                                                                  \
    __local ulong name##_rows[(1 + ROW_SCALED) * RING_ROWS];                                                 \
    __local float name##_scales[ROW_SCALED * RING_ROWS + 1];                                                 \
    __local float name##_sums[KEY_WARPS * 2 * TUNE_ROWS + 2] __attribute__((aligned(8))); /* or a merge's */ \
    tile_memory name = {(__local ushort *)name##_ring,                                                       \
                        (__local ushort *)name##_q,                                                          \
                        name##_rows,                                                                         \
                        name##_rows + ROW_SCALED * RING_ROWS,                                                \
                        name##_scales,                                                                       \
                        {(__local float *)name##_ring, RESULT_BYTES / 4, name##_sums}}

static ring_stage stage_of(tile_memory m, int stage) {
    ring_stage own = {m.ring + stage * STAGE_ELEMENTS, m.rows + stage * STAGE_ROWS};
#if ROW_SCALED
    own.scales_from = m.scales_from + stage * STAGE_ROWS;
    own.scales = m.scales + stage * STAGE_ROWS;
#endif
    return own;
}

/* Runs the tile's rows over the part's keys, and stores their results. */
static void attn_tile(const attn_problem *p, const __global STORAGE(Q) * q, long4 q_layout, tile_memory m,
                      attn_result_target target) {
    const int warp = get_local_id(0) / 32;
    const int warp_row = warp % ROW_WARPS * TUNE_WARP_ROWS;
    const int warp_key = warp / ROW_WARPS * WARP_KEYS;
    const int num_rows = min(TUNE_ROWS, p->num_rows - p->first_row);
    const tile_range range = tile_range_of(p);
    const bool aligned = keys_are_aligned(p);

    found_rows found;
#pragma unroll
    for (int s = 0; s < TUNE_STAGES; s++) {
        const ring_stage filled = stage_of(m, s);
        ring_find_rows(p, range.begin, range.start + s * TUNE_KEYS, &found);
        ring_keep_rows(&filled, &found);
    }
    ring_fill_up(m.ring);
    tile_load_q(p, q, q_layout, m.q, TUNE_ROWS, get_local_id(0), TUNE_WG);
    barrier(CLK_LOCAL_MEM_FENCE);
    q_fragments fragments;
    const score_scale scale = score_scale_of(p);
    float unit = first_unit(p);
    lane_rows own;
    rows_begin(&own);

    /* Tile `tile` is worked on while those up to TUNE_STAGES - 1 further are on their way; before the first there are only
       these. The stage behind the newest has the oldest. */
    int stage = 0;
    for (int tile = 1 - TUNE_STAGES; tile < range.num_tiles; tile++) {
        const int first = range.start + tile * TUNE_KEYS;
        const int newest = tile + TUNE_STAGES - 1;
        if (tile >= 0) {
            COPY_WAIT(TUNE_STAGES - 2);
            barrier(CLK_LOCAL_MEM_FENCE);
            /* All have the tile, and all are done with the one before it, whose stage is loaded anew. */
            ring_find_rows(p, range.begin, first + TUNE_STAGES * TUNE_KEYS, &found);
        }
        const ring_stage filled = stage_of(m, stage);
        if (newest < range.num_tiles)
            ring_fetch(p, range.begin, range.start + newest * TUNE_KEYS, aligned, &filled);
        copy_commit();
        stage = stage + 1 == TUNE_STAGES ? 0 : stage + 1;
        if (tile < 0)
            continue;

        if (tile == 0)
            load_q_fragments(m.q, warp_row, &fragments);
        const ring_stage at = stage_of(m, stage);
        const int seen_first = max(first, range.begin), seen_end = min(first + TUNE_KEYS, p->key_end);
        warp_keys keys;
        keys.keys = at.tile + warp_key * K_PITCH;
        keys.values = at.tile + V_IN_STAGE + warp_key * V_PITCH;
#if ROW_SCALED
        keys.key_scales = at.scales + warp_key;
        keys.value_scales = at.scales + (VALUES_IN_KEYS ? 0 : TUNE_KEYS) + warp_key;
#endif
        keys.first = first + warp_key;
        /* Any key may lie in no block where the table is guarded. */
        keys.partly_seen = WITH_GUARD || seen_first < range.full_begin || seen_end > range.full_end;
        keys.whole = seen_first == first && seen_end == first + TUNE_KEYS;
        ring_keep_rows(&at, &found);
        add_keys(p, m.q, warp_row, &fragments, keys, scale, &unit, &own);
    }

    COPY_WAIT(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    share_results(&own, unit, m.results, warp / ROW_WARPS, warp_row);
    barrier(CLK_LOCAL_MEM_FENCE);
    store_results(p, m.results, &target, num_rows, get_local_id(0), WORKERS);
#if WITH_SPLITS
    if (p->num_splits > 1) {
        const merge_state merge = merge_state_in(m.results.sums);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (get_local_id(0) < 32)
            merge_arrive_stored(p, &target, merge);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (*merge.completed != 0)
            merge_complete(p, &target, merge);
    }
#endif
}

#endif
