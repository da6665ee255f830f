/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Varlen attention as attn_varlen, of latent attention on GPUs of compute capability 9.0: as attn_decode_stream
 * fetches and multiplies, by warpgroups, but with all keys of a sequence for a tile of rows.
 */
#define WITH_APPEND 0
#define WITH_SPLITS 0
#include "nv/attn_stream.h"

__kernel __attribute__((reqd_work_group_size(TUNE_WG, 1, 1))) void
attn_varlen_stream(const __global int *plan, int2 sections, const __global STORAGE(Q) * q, long4 q_layout, KEYS_PARAMS,
                   ROTARY_PARAMS, MASK_PARAMS, RESULT_PARAMS, __global int *counters, const __global uchar *all_maps,
                   int first_map) {
    __local uint4 stages[STREAM_MEMORY / 16] __attribute__((aligned(1024)));
    __local ulong barriers[STREAM_BARRIERS];
    __local int problems[STREAM_PROBLEMS * PROBLEM_INTS];
    __local float sums[STREAM_SUMS] __attribute__((aligned(8)));
    const keys_source keys = KEYS_SOURCE;
    const rotary_source rotary = ROTARY_SOURCE;
    const mask_source mask = MASK_SOURCE;
    const attn_result_target target = RESULT_TARGET;
    attn_problem p;
    p.keys = keys;
    p.rotary = rotary;
    p.mask = mask;
    const stream_source from = {plan, sections, q, q_layout, counters, all_maps + (long)first_map * MAPS_RECORD};
    const stream_memory memory = {
        {(__local uchar *)stages, (__local ushort *)((__local uchar *)stages + STREAM_BYTES), problems, barriers},
        sums};
    attn_stream(&p, from, memory, target);
}
