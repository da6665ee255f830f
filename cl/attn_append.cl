/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores the new tokens of a varlen batch into the pool, rotated. A work-group takes some tokens of one sequence and KV
 * head. Launch: (items of the plan's append list * TUNE_WG, NUM_KV_HEADS).
 */
#define WITH_PAGED 1
#define WITH_APPEND 1
#define WITH_SPLITS 0
#define WITH_SOFTCAP 0
#define WITH_ALIBI 0
#define WITH_SINKS 0
#define WITH_TREE 0
#define TUNE_ROWS 1
#define TUNE_KEYS 1
#include "lib/attn_problem.h"

/* sections: x the append list, y the records. An item is the sequence, the first position, and the tokens. */
__kernel __attribute__((reqd_work_group_size(TUNE_WG, 1, 1))) void
attn_append(const __global int *plan, int2 sections, KEYS_PARAMS, ROTARY_PARAMS, NEW_PARAMS) {
    const keys_source keys = KEYS_SOURCE;
    const rotary_source rotary = ROTARY_SOURCE;
    const new_source fresh = NEW_SOURCE;
    const __global int *item = plan + sections.x + (long)get_group_id(0) * WORK_INTS;
    attn_problem p;
    problem_from_record(&p, plan, sections.y, item[0]);
    p.kv_head = get_group_id(1);
    p.key_begin = item[1];
    p.key_end = item[1] + item[2];
    p.keys = keys;
    p.rotary = rotary;
    p.fresh = fresh;
    store_new(&p, get_local_id(0), TUNE_WG);
}
