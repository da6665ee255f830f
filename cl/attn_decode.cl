/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decode attention: one or a few query rows per sequence, keys through a block table, new keys and values stored on the
 * way. A work-group takes one part of the keys of one sequence, for one tile of rows and one KV head, in tier cpu
 * several. Launch: (work items of the plan * TUNE_WG, NUM_KV_HEADS / those); where any sequence has more than one part
 * attn_merge follows, but in tier nv_mma, whose work-groups merge.
 */
#define WITH_PAGED 1
#define WITH_APPEND 1
#define WITH_SPLITS 1
#if TIER_CPU
#include "cpu/attn_tile.h"
#elif TIER_NV_MMA
#include "nv/attn_tile.h"
#elif TUNE_TEAM
#include "lib/attn_team.h"
#else
#include "lib/attn_tile.h"
#endif

__kernel __attribute__((reqd_work_group_size(TUNE_WG, 1, 1))) SUB_GROUP void
attn_decode(const __global int *plan, int2 sections, const __global STORAGE(Q) * q, long4 q_layout, KEYS_PARAMS,
            ROTARY_PARAMS, MASK_PARAMS, RESULT_PARAMS, PARTIAL_PARAMS, NEW_PARAMS) {
    const keys_source keys = KEYS_SOURCE;
    const rotary_source rotary = ROTARY_SOURCE;
    const new_source fresh = NEW_SOURCE;
    const mask_source mask = MASK_SOURCE;
    const attn_result_target target = RESULT_TARGET;
    const int2 place = problem_place();
    attn_problem p;
    problem_from_plan(&p, plan, sections, place.x);
    p.kv_head = place.y;
    p.keys = keys;
    p.rotary = rotary;
    p.fresh = fresh;
    p.mask = mask;
    TILE_MEMORY(memory);
    attn_tile(&p, q, q_layout, memory, target);
    /* One work-group for each part and its KV heads: that of the first rows. */
    if (p.first_row == 0)
        for (int i = 0; i < problem_heads(); i++) {
            p.kv_head = place.y + i;
            store_new(&p, get_local_id(0), TUNE_WG);
        }
}
