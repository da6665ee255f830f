/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Varlen attention: many query rows per sequence, keys packed or through a block table. A work-group takes one tile of
 * rows of one sequence and KV head over all its keys. Launch: (work items of the plan * TUNE_WG, NUM_KV_HEADS).
 */
#define WITH_APPEND 0
#define WITH_SPLITS 0
#if TIER_CPU
#include "cpu/attn_tile.h"
#elif TIER_NV_MMA
#include "nv/attn_tile.h"
#else
#include "lib/attn_tile.h"
#endif

__kernel __attribute__((reqd_work_group_size(TUNE_WG, 1, 1))) SUB_GROUP void
attn_varlen(const __global int *plan, int2 sections, const __global STORAGE(Q) * q, long4 q_layout, KEYS_PARAMS,
            ROTARY_PARAMS, MASK_PARAMS, RESULT_PARAMS) {
    const keys_source keys = KEYS_SOURCE;
    const rotary_source rotary = ROTARY_SOURCE;
    const mask_source mask = MASK_SOURCE;
    const attn_result_target target = RESULT_TARGET;
    const int2 place = problem_place();
    attn_problem p;
    problem_from_plan(&p, plan, sections, place.x);
    p.kv_head = place.y;
    p.keys = keys;
    p.rotary = rotary;
    p.mask = mask;
    TILE_MEMORY(memory);
    attn_tile(&p, q, q_layout, memory, target);
}
