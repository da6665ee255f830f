/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merges the partial results of sequences whose keys were cut into parts, in the launch that makes them. MERGE_PARTS
 * neighbouring parts are merged by the work-group that ends last among them, into the place of the first; so many of
 * these results in the same way, and so on: a tree that depends on the number of parts alone, so that sums have one
 * order. Most of it is done while other work-groups still read keys, and no work-group reads many parts one by one.
 */
#ifndef NV_MERGE_H
#define NV_MERGE_H

#include "lib/attn_result.h"
#include "nv/workers.h"

enum { MERGE_PARTS = 16 };

/* Of a record, beside the fields that attn_problem.h names. */
#define RECORD_NUM_SPLITS 6

/* Vectors of 4 floats that cover a row. */
#define MERGE_VECTORS (HEAD_DIM_V / 4)

/* Some parts of a sequence, or nodes of the tree: the first, how many, and how many parts each stands for. */
typedef struct merge_node {
    int first, count, stride;
} merge_node;

/* Whether a work-item is the last of `count` that come to a counter, which then is 0 again; then it fences. */
static bool merge_arrive(__global int *counter, int count) {
    const bool is_last = increment_released(counter) == count - 1;
    if (is_last) {
        *counter = 0;
        fence_device();
    }
    return is_last;
}

/* The counter of a node. A node of several has that many parts from its first on, and a part has as many partial rows as
   there are tiles and KV heads, or more. */
static __global int *merge_counter(const attn_problem *p, const attn_result_target *target, merge_node node,
                                   int level) {
    const long part = (long)(node.first + level) * p->q_len * NUM_HEADS;
    return target->arrivals + p->partial_start + part + p->first_row / TUNE_ROWS * NUM_KV_HEADS + p->kv_head;
}

/*
 * A work-item merges the parts of pieces i, i + WORKERS, .. i + (at_once - 1) * WORKERS of 4 columns of some rows,
 * where there are so many: into the result where the node is the root, otherwise into its first part. ends: local
 * memory of 2 floats a row. most: at_once * most is MERGE_PARTS, all of which are loaded before the first is used.
 */
static void merge_pieces(const attn_problem *p, const attn_result_target *target, int num_rows, merge_node node,
                         bool is_root, __local float *ends, int i, const int at_once, const int most) {
    const long step = (long)node.stride * p->q_len * NUM_HEADS; /* partial rows from one part to the next */
    const long start = p->partial_start + (long)node.first * p->q_len * NUM_HEADS;
    float2 sums[MERGE_PARTS];
    float4 parts[MERGE_PARTS];
#pragma unroll
    for (int j = 0; j < at_once; j++) {
        const int piece = min(i + j * WORKERS, num_rows * MERGE_VECTORS - 1);
        const int row = p->first_row + piece / MERGE_VECTORS, d = piece % MERGE_VECTORS * 4;
        const long first = start + (long)row_token(p, row) * NUM_HEADS + problem_head(p, row);
        /* Behind the last part it is loaded again, and counts nothing. */
#pragma unroll
        for (int s = 0; s < most; s++) {
            const long at = first + min(s, node.count - 1) * step;
            sums[j * most + s] = *(const __global float2 *)(target->partial_sums + at * 2);
            parts[j * most + s] = *(const __global float4 *)(target->partial_acc + at * HEAD_DIM_V + d);
        }
    }
#pragma unroll
    for (int j = 0; j < at_once; j++) {
        const int piece = i + j * WORKERS;
        if (piece >= num_rows * MERGE_VECTORS)
            break;
        const int row = p->first_row + piece / MERGE_VECTORS, d = piece % MERGE_VECTORS * 4;
        float row_max = -INFINITY, row_sum = 0;
#pragma unroll
        for (int s = 0; s < most; s++)
            row_max = fmax(row_max, sums[j * most + s].x);
        const float base = row_max == -INFINITY ? 0 : row_max;
        float4 x = 0;
#pragma unroll
        for (int s = 0; s < most; s++) {
            const float weight = exp2_fast(sums[j * most + s].x - base);
            const float4 more = x + weight * parts[j * most + s];
            row_sum = s < node.count ? row_sum + weight * sums[j * most + s].y : row_sum;
            x = s < node.count ? more : x;
        }
        if (!is_root) {
            const long first = start + (long)row_token(p, row) * NUM_HEADS + problem_head(p, row);
            *(__global float4 *)(target->partial_acc + first * HEAD_DIM_V + d) = x;
            if (d == 0) {
                ends[(row - p->first_row) * 2] = row_max;
                ends[(row - p->first_row) * 2 + 1] = row_sum;
            }
            continue;
        }
        const attn_row_end end = row_end(row_max, row_sum, p->mask.sinks, problem_head(p, row));
        const long out = layout_at(target->out_layout, problem_token(p, row), problem_head(p, row)) + d;
        x /= end.divisor;
        STORE1(OUT)(x.x, target->out, out);
        STORE1(OUT)(x.y, target->out, out + 1);
        STORE1(OUT)(x.z, target->out, out + 2);
        STORE1(OUT)(x.w, target->out, out + 3);
        if (d == 0)
            store_lse(target->lse, target->lse_offset, problem_token(p, row), problem_head(p, row), end.lse);
    }
}

/* Merges a node's parts. */
static void merge_parts(const attn_problem *p, const attn_result_target *target, int num_rows, merge_node node,
                        bool is_root, __local float *ends) {
    enum { FEW = 4 };
    /* Where rows are many and long, loads that wait for one another take long. */
    if (TUNE_ROWS >= 64 && node.count <= FEW)
        for (int i = get_local_id(0); i < num_rows * MERGE_VECTORS; i += WORKERS * (MERGE_PARTS / FEW))
            merge_pieces(p, target, num_rows, node, is_root, ends, i, MERGE_PARTS / FEW, FEW);
    else
        for (int i = get_local_id(0); i < num_rows * MERGE_VECTORS; i += WORKERS)
            merge_pieces(p, target, num_rows, node, is_root, ends, i, 1, MERGE_PARTS);
    if (is_root)
        return;
    /* Not before all have read the first part's sums. */
    workers_barrier();
    const long start = p->partial_start + (long)node.first * p->q_len * NUM_HEADS;
    for (int i = get_local_id(0); i < num_rows; i += WORKERS) {
        const int row = p->first_row + i;
        const long first = start + (long)row_token(p, row) * NUM_HEADS + problem_head(p, row);
        *(__global float2 *)(target->partial_sums + first * 2) = (float2)(ends[i * 2], ends[i * 2 + 1]);
    }
}

/* The node of some level that has part `index` of `count`, of `stride` parts each. */
static merge_node merge_node_of(int index, int count, int stride) {
    const int first = index / MERGE_PARTS * MERGE_PARTS;
    return (merge_node){first * stride, min(count - first, MERGE_PARTS), stride};
}

/* Tells the other parts of a node that one is stored; whether it was the last. By a work-item that knows of all stores of the
   work-group by a barrier. */
static bool merge_tell(const attn_problem *p, const attn_result_target *target, merge_node node, int level) {
    return node.count == 1 || merge_arrive(merge_counter(p, target, node, level), node.count);
}

/* From the lowest node that has the part of a work-group, which ended last there, up to the root, as far as it does. */
static void merge_climb(const attn_problem *p, const attn_result_target *target, int num_rows, __local float *ends,
                        __local int *is_last) {
    int index = p->split - p->first_split, count = p->num_splits, stride = 1;
    for (int level = 1;; level++) {
        const bool is_root = count <= MERGE_PARTS;
        merge_node node = merge_node_of(index, count, stride);
        if (node.count > 1)
            merge_parts(p, target, num_rows, node, is_root, ends);
        if (is_root)
            return;
        index /= MERGE_PARTS;
        count = (count + MERGE_PARTS - 1) / MERGE_PARTS;
        stride *= MERGE_PARTS;
        node = merge_node_of(index, count, stride);
        workers_barrier();
        if (get_local_id(0) == 0)
            *is_last = merge_tell(p, target, node, level);
        workers_barrier();
        if (!*is_last)
            return;
    }
}

/* The problem of one of the sequences whose rows a work-group has, as far as merging needs it. */
static attn_problem merge_member(const attn_problem *p, int member) {
    attn_problem own = *p;
    if (p->members != 0) {
        const __global int *record = p->records + (long)p->members[member] * RECORD_INTS;
        own.members = 0;
        own.num_rows = p->q_len * GROUP;
        own.q_start = record[RECORD_Q_START];
        own.num_splits = record[RECORD_NUM_SPLITS];
        own.partial_start = record[RECORD_PARTIAL_START];
        own.first_split = record[RECORD_FIRST_SPLIT];
    }
    return own;
}

/* What work-items of a work-group tell one another of a merge. */
#define MERGE_FLOATS (2 * TUNE_ROWS + 2)
typedef struct merge_state {
    __local float *ends;     /* [TUNE_ROWS][2] */
    __local uint *completed; /* bit i: the part completed the node of the i-th sequence that has rows in it */
    __local int *is_last;
} merge_state;

static merge_state merge_state_in(__local float *memory) {
    return (merge_state){memory, (__local uint *)(memory + 2 * TUNE_ROWS), (__local int *)(memory + 2 * TUNE_ROWS + 1)};
}

/* By a warp, after a barrier behind which the work-group has stored its part of the results. After another, where it completed
   something, merge_complete by all. */
static void merge_arrive_stored(const attn_problem *p, const attn_result_target *target, merge_state state) {
    const int member = get_local_id(0) % 32;
    const int members = p->num_splits == 1 ? 0 : p->members == 0 ? 1 : p->num_rows / (p->q_len * GROUP);
    bool is_last = false;
    if (member < members) {
        const attn_problem own = merge_member(p, member);
        is_last = merge_tell(&own, target, merge_node_of(own.split - own.first_split, own.num_splits, 1), 0);
    }
    *state.completed = lanes_with(is_last);
}

/* Merges the nodes that the part has completed. */
static void merge_complete(const attn_problem *p, const attn_result_target *target, merge_state state) {
    const int num_rows = min(TUNE_ROWS, p->num_rows - p->first_row);
    for (uint left = *state.completed; left != 0; left &= left - 1) {
        const attn_problem own = merge_member(p, 31 - clz(left & -left));
        merge_climb(&own, target, p->members == 0 ? num_rows : own.num_rows, state.ends, state.is_last);
        workers_barrier();
    }
}

#endif
