/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decode attention as attn_decode, on GPUs of compute capability 9.0, whose warps fetch keys by boxes of tensor maps
 * (all_maps, from record first_map on: those of the layer). A work-group takes one part of the keys of one sequence, for
 * one tile of rows and one KV head, after the other: as many are launched as run at once, and each takes the next that is
 * left (counters). They merge the parts themselves.
 */
#define WITH_PAGED 1
#define WITH_APPEND 1
#define WITH_SPLITS 1
#include "nv/attn_stream.h"

__kernel __attribute__((reqd_work_group_size(TUNE_WG, 1, 1))) void
attn_decode_stream(const __global int *plan, int2 sections, const __global STORAGE(Q) * q, long4 q_layout, KEYS_PARAMS,
                   ROTARY_PARAMS, MASK_PARAMS, RESULT_PARAMS, PARTIAL_PARAMS, NEW_PARAMS, __global int *counters,
                   const __global uchar *all_maps, int first_map) {
    __local uint4 stages[STREAM_MEMORY / 16] __attribute__((aligned(1024)));
#if ROW_SCALED
    __local float scales[TUNE_STAGES * STAGE_SCALES];
#endif
    __local ulong barriers[STREAM_BARRIERS];
    __local int problems[STREAM_PROBLEMS * PROBLEM_INTS];
    __local float sums[STREAM_SUMS] __attribute__((aligned(8)));
    __local float merge[2 * MERGE_FLOATS];
    const keys_source keys = KEYS_SOURCE;
    const rotary_source rotary = ROTARY_SOURCE;
    const new_source fresh = NEW_SOURCE;
    const mask_source mask = MASK_SOURCE;
    const attn_result_target target = RESULT_TARGET;
    attn_problem p;
    p.keys = keys;
    p.rotary = rotary;
    p.fresh = fresh;
    p.mask = mask;
    const stream_source from = {plan, sections, q, q_layout, counters, all_maps + (long)first_map * MAPS_RECORD};
    const stream_memory memory = {{
                                      (__local uchar *)stages,
#if ROW_SCALED
                                      scales,
#endif
                                      (__local ushort *)((__local uchar *)stages + STREAM_BYTES),
                                      problems,
                                      barriers,
                                      merge,
                                  },
                                  sums};
    attn_stream(&p, from, memory, target);
}
