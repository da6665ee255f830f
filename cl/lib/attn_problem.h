/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one work-group of an attention kernel has to do: the part of the plan that it reads, and its view of the tensors.
 * Shape macros: HEAD_DIM, NUM_HEADS, NUM_KV_HEADS, BLOCK_SIZE and NUM_SEGMENTS (with WITH_PAGED), Q_DTYPE, KV_DTYPE,
 * OUT_DTYPE. WITH_PAGED: keys come through a block table, not packed. WITH_APPEND: keys from new_first on are read from
 * k_new and v_new, and stored into the pool on the way. WITH_SPLITS: a sequence's keys may be cut into parts.
 *
 * The rows of a problem are the query rows of one sequence that read one KV head, query heads innermost: row r is token
 * r / GROUP, head kv_head * GROUP + r % GROUP. So K and V are read once for all of them.
 */
#ifndef ATTN_PROBLEM_H
#define ATTN_PROBLEM_H

#if !defined(HEAD_DIM) || !defined(NUM_HEADS) || !defined(NUM_KV_HEADS) || !defined(WITH_PAGED) ||                     \
    !defined(WITH_APPEND) || !defined(WITH_SPLITS) || !defined(TUNE_ROWS) || !defined(TUNE_KEYS) || !defined(TUNE_WG)
#error a macro of attn_problem.h is missing
#endif

#include "lib/types.h"
#if WITH_PAGED
#include "lib/pool.h"
#endif

#define GROUP (NUM_HEADS / NUM_KV_HEADS)
#define VECTORS (HEAD_DIM / 8)

/* Layouts: x offset, y token stride, z head stride, in elements. */
#if WITH_PAGED
#define KEYS_PARAMS POOL_PARAMS(k_pool), POOL_PARAMS(v_pool), int segment_shift
#define KEYS_SOURCE POOL(k_pool), POOL(v_pool), segment_shift
typedef struct keys_source {
    pool k, v;
    int segment_shift;
} keys_source;
#else
#define KEYS_PARAMS                                                                                                    \
    const __global STORAGE(KV) *k_packed, long4 k_layout, const __global STORAGE(KV) *v_packed, long4 v_layout
#define KEYS_SOURCE k_packed, v_packed, k_layout, v_layout
typedef struct keys_source {
    const __global STORAGE(KV) *k, *v;
    long4 k_layout, v_layout;
} keys_source;
#endif

#if WITH_APPEND
#define NEW_PARAMS                                                                                                     \
    const __global STORAGE(Q) *k_new, long4 k_new_layout, const __global STORAGE(Q) *v_new, long4 v_new_layout,
#define NEW_SOURCE {k_new, v_new, k_new_layout, v_new_layout}
typedef struct new_source {
    const __global STORAGE(Q) *k, *v;
    long4 k_layout, v_layout;
} new_source;
#endif

typedef struct attn_problem {
    /* From the plan's work list and the sequence's record. */
    int kv_head;
    int first_row;   /* of the tile */
    int num_rows;    /* of the problem, q_len * GROUP */
    int q_start;     /* the sequence's first query row */
    int q_len;
    int k_start;     /* its first key row; in the pool: where its block table begins in the plan */
    int k_len;
    int new_first;   /* first position that the run appends; k_len without */
    int new_start;   /* its row in k_new */
    int key_begin;   /* keys of this part: key_begin .. key_end - 1 */
    int key_end;
    int split;
    int num_splits;
    int partial_start; /* row of the partial results where the sequence's begin */
    const __global int *table; /* the sequence's block table */
    /* Tensors. */
    keys_source keys;
#if WITH_APPEND
    new_source fresh;
#endif
    int causal;
} attn_problem;

/* Ints of a work item and of a sequence's record in the plan; the host writes the same (runtime/plan.c). */
#define WORK_INTS 4
#define RECORD_INTS 8

/*
 * Reads work item `item`. sections: x the plan's work list, y its records. A work item is the sequence, the first row of
 * the tile, the split, and the keys of a split.
 */
static void problem_from_plan(attn_problem *p, const __global int *plan, int2 sections, int item) {
    const __global int *work = plan + sections.x + (long)item * WORK_INTS;
    const __global int *record = plan + sections.y + (long)work[0] * RECORD_INTS;
    const int split_size = work[3];
    p->first_row = work[1];
    p->split = work[2];
    p->q_start = record[0];
    p->q_len = record[1];
    p->k_start = record[2];
    p->k_len = record[3];
    p->new_first = record[4];
    p->new_start = record[5];
    p->num_splits = record[6];
    p->partial_start = record[7];
    p->num_rows = p->q_len * GROUP;
    p->table = plan + p->k_start;
    p->key_begin = p->split * split_size;
    p->key_end = p->num_splits > 1 ? min(p->key_begin + split_size, p->k_len) : p->k_len;
}

/* Row r sees keys 0 .. problem_limit - 1. */
static int problem_limit(const attn_problem *p, int row) {
    return p->causal ? clamp(row / GROUP + p->k_len - p->q_len + 1, 0, p->k_len) : p->k_len;
}

static int problem_head(const attn_problem *p, int row) {
    return p->kv_head * GROUP + row % GROUP;
}

/* The query row in q, out and lse. */
static long problem_token(const attn_problem *p, int row) {
    return (long)p->q_start + row / GROUP;
}

static long layout_at(long4 layout, long token, int head) {
    return layout.x + token * layout.y + head * layout.z;
}

#if WITH_PAGED
static const __global STORAGE(KV) * key_row(const attn_problem *p, int position) {
    return pool_row(&p->keys.k, p->keys.segment_shift, p->table[position / BLOCK_SIZE], position % BLOCK_SIZE,
                    p->kv_head);
}
static const __global STORAGE(KV) * value_row(const attn_problem *p, int position) {
    return pool_row(&p->keys.v, p->keys.segment_shift, p->table[position / BLOCK_SIZE], position % BLOCK_SIZE,
                    p->kv_head);
}
#else
static const __global STORAGE(KV) * key_row(const attn_problem *p, int position) {
    return p->keys.k + layout_at(p->keys.k_layout, (long)p->k_start + position, p->kv_head);
}
static const __global STORAGE(KV) * value_row(const attn_problem *p, int position) {
    return p->keys.v + layout_at(p->keys.v_layout, (long)p->k_start + position, p->kv_head);
}
#endif

/* Elements d .. d + 7 of the key or value at a position. With an append, those at the new positions come from k_new,
   rounded as the pool will hold them, so that it does not matter which work-group stores them, and when. */
static float8 key8(const attn_problem *p, int position, int d) {
#if WITH_APPEND
    if (position >= p->new_first)
        return ROUND8(KV)(LOAD8(Q)(p->fresh.k + layout_at(p->fresh.k_layout,
                                                          (long)p->new_start + (position - p->new_first), p->kv_head) +
                                   d));
#endif
    return LOAD8(KV)(key_row(p, position) + d);
}
static float8 value8(const attn_problem *p, int position, int d) {
#if WITH_APPEND
    if (position >= p->new_first)
        return ROUND8(KV)(LOAD8(Q)(p->fresh.v + layout_at(p->fresh.v_layout,
                                                          (long)p->new_start + (position - p->new_first), p->kv_head) +
                                   d));
#endif
    return LOAD8(KV)(value_row(p, position) + d);
}

#if WITH_APPEND
/* Stores the new tokens among the keys of this part. One work-group does it for each part and KV head: that of the
   first rows. */
static void store_new(const attn_problem *p, int lane, int lanes) {
    int begin = max(p->new_first, p->key_begin);
    if (p->first_row != 0)
        return;
    for (int i = lane; i < (p->key_end - begin) * VECTORS; i += lanes) {
        int position = begin + i / VECTORS;
        int d = i % VECTORS * 8;
        long row = (long)p->new_start + (position - p->new_first);
        int block = p->table[position / BLOCK_SIZE];
        int token = position % BLOCK_SIZE;
        STORE8(KV)
        (LOAD8(Q)(p->fresh.k + layout_at(p->fresh.k_layout, row, p->kv_head) + d),
         pool_row(&p->keys.k, p->keys.segment_shift, block, token, p->kv_head) + d);
        STORE8(KV)
        (LOAD8(Q)(p->fresh.v + layout_at(p->fresh.v_layout, row, p->kv_head) + d),
         pool_row(&p->keys.v, p->keys.segment_shift, block, token, p->kv_head) + d);
    }
}
#endif

#endif
