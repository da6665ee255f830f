/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merges the partial results of sequences whose keys were cut into parts, in ascending order: with m the largest of the
 * parts' maxima, each part's sum and values count 2^(its maximum - m) times. A work-group takes one query row and head
 * of one such sequence. Launch: sequences to merge * query rows of each * NUM_HEADS work-groups of TUNE_WG.
 */
#define WITH_PAGED 0
#define WITH_APPEND 0
#define WITH_SPLITS 1
#define WITH_SOFTCAP 0
#define WITH_ALIBI 0
#define WITH_TREE 0
#define WITH_GUARD 0
#define TIER_NV_MMA 0
#define ROTARY_DIM 0
#define ROTARY_INTERLEAVED 0
#define TUNE_ROWS 1
#define TUNE_KEYS 1
#include "lib/attn_result.h"

#define COLUMNS ((HEAD_DIM_V + TUNE_WG - 1) / TUNE_WG)

/* Parts that are read at once, so that none waits for another to arrive. A single work-item, of a CPU, has whole rows on
   their way, and a loop over their columns, which becomes vectors. */
#if TUNE_WG == 1
#define PARTS 1
#define UNROLL_COLUMNS
#else
#define PARTS 8
#define UNROLL_COLUMNS _Pragma("unroll")
#endif

/* sections: x the list of sequences to merge, y records. seqlen_q: query rows of each. */
__kernel __attribute__((reqd_work_group_size(TUNE_WG, 1, 1))) void
attn_merge(const __global int *plan, int2 sections, int seqlen_q, const __global float *sinks, long sinks_offset,
           RESULT_PARAMS, PARTIAL_PARAMS) {
    const long step = (long)seqlen_q * NUM_HEADS; /* partial rows from one part to the next */
    const __global int *record =
        plan + sections.y + (long)plan[sections.x + get_group_id(0) / step] * RECORD_INTS;
    const int num_splits = record[6];
    const int inside = (int)(get_group_id(0) % step);
    const int token = inside / NUM_HEADS;
    const int head = inside % NUM_HEADS;
    const long first = (long)record[7] + inside;

    float row_max = -INFINITY;
    for (int s = 0; s < num_splits; s += PARTS)
#pragma unroll
        for (int j = 0; j < PARTS; j++)
            row_max = fmax(row_max, partial_sums[(first + min(s + j, num_splits - 1) * step) * 2]);
    float base = row_max == -INFINITY ? 0 : row_max;
    float row_sum = 0;
    float acc[COLUMNS];
    UNROLL_COLUMNS
    for (int i = 0; i < COLUMNS; i++)
        acc[i] = 0;
    for (int s = 0; s < num_splits; s += PARTS) {
        float maxima[PARTS], sums[PARTS], weights[PARTS];
#pragma unroll
        for (int j = 0; j < PARTS; j++) {
            const long row = first + min(s + j, num_splits - 1) * step;
            maxima[j] = partial_sums[row * 2];
            sums[j] = partial_sums[row * 2 + 1];
        }
#pragma unroll
        for (int j = 0; j < PARTS; j++) {
            weights[j] = s + j < num_splits ? exp2(maxima[j] - base) : 0;
            row_sum += s + j < num_splits ? sums[j] * weights[j] : 0;
        }
        UNROLL_COLUMNS
        for (int i = 0; i < COLUMNS; i++) {
            const int d = get_local_id(0) + i * TUNE_WG;
#pragma unroll
            for (int j = 0; j < PARTS; j++) {
                const __global float *part = partial_acc + (first + (s + j) * step) * HEAD_DIM_V;
                acc[i] += (d < HEAD_DIM_V && s + j < num_splits ? part[d] : 0) * weights[j];
            }
        }
    }
    const attn_row_end end = row_end(row_max, row_sum, sinks + sinks_offset, head);
    const long row = (long)record[0] + token;
    UNROLL_COLUMNS
    for (int i = 0; i < COLUMNS; i++) {
        const int d = get_local_id(0) + i * TUNE_WG;
        if (d < HEAD_DIM_V)
            STORE1(OUT)(acc[i] / end.divisor, out, layout_at(out_layout, row, head) + d);
    }
    if (get_local_id(0) == 0)
        store_lse(lse, lse_offset, row, head, end.lse);
}
