/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes the block tables of a batch from the caller's buffer into the plan, once for all runs: the used part of each
 * row, -1 in place of what names no block of the pool. Bad entries are counted: faults[0] those of blocks that hold
 * tokens from before the append, faults[1] those of blocks that the run appends to. An entry of -1 whose block lies
 * before the first position that matters is none. A work-group takes a sequence. Launch: sequences * TUNE_WG.
 */
#define WITH_PAGED 1
#define WITH_APPEND 0
#define WITH_SPLITS 0
#define WITH_SOFTCAP 0
#define WITH_ALIBI 0
#define WITH_SINKS 0
#define WITH_TREE 0
#define WITH_GUARD 0
#define TUNE_ROWS 1
#define TUNE_KEYS 1
#define ROTARY_DIM 0
#define ROTARY_INTERLEAVED 0
#include "lib/attn_problem.h"

/* records: where they begin in the plan. table: rows `stride` apart, from element `offset` on. */
__kernel __attribute__((reqd_work_group_size(TUNE_WG, 1, 1))) void
attn_tables(__global int *plan, int records, const __global int *table, long offset, long stride, int num_blocks,
            __global uint *faults) {
    const int seq = get_group_id(0);
    attn_problem p;
    problem_from_record(&p, plan, records, seq);
    /* Without query tokens the sequence has no work item: nothing would read its table. */
    const int blocks = p.q_len == 0 ? 0 : (int)(((long)p.k_len + BLOCK_SIZE - 1) / BLOCK_SIZE);
    uint reads = 0, writes = 0;
    for (int i = get_local_id(0); i < blocks; i += TUNE_WG) {
        const int block = table[offset + seq * stride + i];
        const long begin = (long)i * BLOCK_SIZE;
        const long end = min(begin + BLOCK_SIZE, (long)p.k_len);
        const bool good = block >= 0 && block < num_blocks;
        const bool unseen = block == -1 && begin + BLOCK_SIZE <= p.first_position;
        plan[(long)p.k_start + i] = good ? block : -1;
        reads += !good && !unseen && begin < p.new_first;
        writes += !good && !unseen && end > p.new_first;
    }
    if (reads > 0)
        atomic_add(&faults[0], reads);
    if (writes > 0)
        atomic_add(&faults[1], writes);
}
