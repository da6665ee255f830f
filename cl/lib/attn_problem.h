/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one work-group of an attention kernel has to do: the part of the plan that it reads, which keys its rows see, and
 * its view of the keys.
 *
 * Shape macros: HEAD_DIM, HEAD_DIM_V, NUM_HEADS, NUM_KV_HEADS, Q_DTYPE, KV_DTYPE, OUT_DTYPE, ROTARY_DIM (0: none),
 * ROTARY_INTERLEAVED, and with WITH_PAGED those of pool.h. WITH_PAGED: keys come through a block table, not packed.
 * WITH_APPEND: keys from new_first on are read from k_new and v_new, and stored into the pool on the way. WITH_SPLITS: a
 * sequence's keys may be cut into parts. WITH_GUARD: block tables came from the device and have -1 where they name no
 * block: keys there are seen by no row, and new tokens are not stored. WITH_SOFTCAP, WITH_ALIBI, WITH_SINKS, WITH_TREE:
 * the feature is compiled in.
 *
 * The rows of a problem are the query rows of one sequence that read one KV head, query heads innermost: row r is token
 * r / GROUP, head kv_head * GROUP + r % GROUP. So K and V are read once for all of them.
 *
 * With WITH_SPLITS they may be the rows of several sequences, one behind the other, over a split that has the same blocks
 * in all of their tables and that every one of the rows sees in full. What the rows do is then what they do alone.
 */
#ifndef ATTN_PROBLEM_H
#define ATTN_PROBLEM_H

#if !defined(HEAD_DIM) || !defined(HEAD_DIM_V) || !defined(NUM_HEADS) || !defined(NUM_KV_HEADS) ||                     \
    !defined(WITH_PAGED) || !defined(WITH_APPEND) || !defined(WITH_SPLITS) || !defined(WITH_SOFTCAP) ||                \
    !defined(WITH_ALIBI) || !defined(WITH_SINKS) || !defined(WITH_TREE) || !defined(WITH_GUARD) ||                     \
    !defined(ROTARY_DIM) || !defined(ROTARY_INTERLEAVED) || !defined(TUNE_ROWS) || !defined(TUNE_KEYS) ||              \
    !defined(TUNE_WG)
#error a macro of attn_problem.h is missing
#endif

#include "lib/fast_math.h"
#include "lib/types.h"
#if WITH_PAGED
#include "lib/pool.h"
#endif

#define GROUP (NUM_HEADS / NUM_KV_HEADS)

/* Vectors of 8 elements that cover a row, and their elements. */
#define K_VECTORS ((HEAD_DIM + 7) / 8)
#define V_VECTORS ((HEAD_DIM_V + 7) / 8)
#define K_PADDED (K_VECTORS * 8)
#define V_PADDED (V_VECTORS * 8)

#define LOG2_E 1.44269504088896340736f
#define LN_2 0.69314718055994530942f

/* Layouts of tensors: x offset, y token stride, z head stride, in elements. */
static long layout_at(long4 layout, long token, int head) {
    return layout.x + token * layout.y + head * layout.z;
}

/* Where keys come from. */
#if WITH_PAGED
#define KEYS_PARAMS POOL_PARAMS
#define KEYS_SOURCE {POOL_KEYS, POOL_VALUES}
typedef struct keys_source {
    pool k, v;
} keys_source;
#else
#define KEYS_PARAMS                                                                                                    \
    const __global STORAGE(KV) *k_packed, long4 k_layout, const __global STORAGE(KV) *v_packed, long4 v_layout
#define KEYS_SOURCE {k_packed, v_packed, k_layout, v_layout}
typedef struct keys_source {
    const __global STORAGE(KV) *k, *v;
    long4 k_layout, v_layout;
} keys_source;
#endif

/* New keys, and the rotary tables [positions, ROTARY_DIM / 2] that rotate them and q. */
#define NEW_PARAMS                                                                                                     \
    const __global STORAGE(Q) *k_new, long4 k_new_layout, const __global STORAGE(Q) *v_new, long4 v_new_layout
#define ROTARY_PARAMS const __global float *rotary_cos, const __global float *rotary_sin, long2 rotary_offsets
#define ROTARY_SOURCE {rotary_cos + rotary_offsets.x, rotary_sin + rotary_offsets.y}
typedef struct rotary_source {
    const __global float *cos, *sin;
} rotary_source;
#if WITH_APPEND
#define NEW_SOURCE {k_new, v_new, k_new_layout, v_new_layout}
typedef struct new_source {
    const __global STORAGE(Q) *k, *v;
    long4 k_layout, v_layout;
} new_source;
#endif

/* What happens to a score between product and softmax. window: x left, y right, -1 unbounded; causal is right 0. scale:
   x what q is multiplied by, y softcap * log2(e). alibi: [.. , NUM_HEADS] with a stride between sequences. */
#define MASK_PARAMS                                                                                                    \
    float2 scale, int2 window, const __global float *alibi, long2 alibi_layout, const __global float *sinks,           \
        long sinks_offset
#define MASK_SOURCE {scale, window, alibi, alibi_layout, sinks + sinks_offset}
typedef struct mask_source {
    float2 scale;
    int2 window;
    const __global float *alibi;
    long2 alibi_layout; /* x offset, y stride */
    const __global float *sinks;
} mask_source;

typedef struct attn_problem {
    /* From the plan's work list and the sequence's record. */
    int seq;
    int kv_head;
    int first_row; /* of the tile */
    int num_rows;  /* of the problem, q_len * GROUP */
    int q_start;   /* the sequence's first query row */
    int q_len;
    int k_start;   /* its first key row; in the pool: where its block table begins in the plan */
    int k_len;
    int new_first; /* first position that the run appends; k_len without */
    int new_start; /* its row in k_new */
    int key_begin; /* keys of this part: key_begin .. key_end - 1 */
    int key_end;
    int first_position; /* the first that matters: that a row sees, or that the run stores to */
    int first_split; /* the first split that matters */
    int split;
    int num_splits; /* from first_split on */
    int partial_start;             /* row of the partial results where the sequence's begin */
    const __global int *members;   /* the sequences whose rows these are, q_len * GROUP each; 0: `seq` alone */
    const __global int *records;
    const __global int *table;     /* the sequence's block table */
    const __global uint *tree;     /* bit j of q_len: the row's token sees new token j; tree_words words a token */
    int tree_words;
    /* Tensors. */
    keys_source keys;
    rotary_source rotary;
#if WITH_APPEND
    new_source fresh;
#endif
    mask_source mask;
} attn_problem;

/* Ints of a work item and of a sequence's record in the plan; the host writes the same (runtime/plan.c). */
#define WORK_INTS 4
#define RECORD_INTS 12
#define RECORD_Q_START 0
#define RECORD_K_LEN 3
#define RECORD_PARTIAL_START 7
#define RECORD_FIRST_SPLIT 8

/* Takes the record of a sequence; `records` is where they begin in the plan. */
static void problem_take_record(attn_problem *p, const __global int *plan, int records, int seq, const int *record) {
    p->seq = seq;
    p->members = 0;
    p->records = plan + records;
    p->q_start = record[RECORD_Q_START];
    p->q_len = record[1];
    p->k_start = record[2];
    p->k_len = record[RECORD_K_LEN];
    p->new_first = record[4];
    p->new_start = record[5];
    p->num_splits = record[6];
    p->partial_start = record[RECORD_PARTIAL_START];
    p->first_split = record[RECORD_FIRST_SPLIT];
    p->tree = (const __global uint *)(plan + record[9]);
    p->tree_words = (p->q_len + 31) / 32;
    p->first_position = record[10];
    p->num_rows = p->q_len * GROUP;
    p->table = plan + p->k_start;
}

/* Reads it from the plan. */
static void problem_from_record(attn_problem *p, const __global int *plan, int records, int seq) {
    const __global int *from = plan + records + (long)seq * RECORD_INTS;
    int record[RECORD_INTS];
#pragma unroll
    for (int i = 0; i < RECORD_INTS; i++)
        record[i] = from[i];
    problem_take_record(p, plan, records, seq, record);
}

/*
 * From the ints of a work item and those of the record of its sequence. sections: x the plan's work list, y its records.
 * A work item is the sequence, the first row of the tile, the split, and the keys of a split, 0 for all. Or, for several
 * sequences: ~ the place of their list in the plan, their number, and the same; their rows fit one tile, and the record is
 * that of the first.
 */
static void problem_from_ints(attn_problem *p, const __global int *plan, int2 sections, const int *work,
                              const int *record) {
    const int split_size = work[3];
    problem_take_record(p, plan, sections.y, work[0], record);
    p->first_row = work[1];
#if WITH_SPLITS
    if (work[0] < 0) {
        p->members = plan + ~work[0];
        p->seq = p->members[0];
        p->first_row = 0;
        p->num_rows *= work[1];
    }
#endif
    p->split = work[2];
    p->key_begin = p->split * split_size;
    p->key_end = split_size == 0 ? p->k_len : p->key_begin + min(split_size, p->k_len - p->key_begin);
}

/* The sequence whose record a work item needs. */
static int work_seq(const __global int *plan, int first) {
    return WITH_SPLITS && first < 0 ? plan[~first] : first;
}

/* Reads work item `item`. */
static void problem_from_plan(attn_problem *p, const __global int *plan, int2 sections, int item) {
    int work[WORK_INTS], record[RECORD_INTS];
#pragma unroll
    for (int i = 0; i < WORK_INTS; i++)
        work[i] = plan[sections.x + (long)item * WORK_INTS + i];
    const __global int *from = plan + sections.y + (long)work_seq(plan, work[0]) * RECORD_INTS;
#pragma unroll
    for (int i = 0; i < RECORD_INTS; i++)
        record[i] = from[i];
    problem_from_ints(p, plan, sections, work, record);
}

/* The sequence of a row, and a number of its record, which for a sequence alone is known already. */
static int row_seq(const attn_problem *p, int row) {
    return p->members == 0 ? p->seq : p->members[row / GROUP / p->q_len];
}
static int row_record(const attn_problem *p, int row, int field, int alone) {
    return p->members == 0 ? alone : p->records[(long)row_seq(p, row) * RECORD_INTS + field];
}

/* The query token of its sequence. */
static int row_token(const attn_problem *p, int row) {
    return p->members == 0 ? row / GROUP : row / GROUP % p->q_len;
}

/* How many KV heads a work-group takes: one, but in tier cpu NUM_KV_HEADS / groups of the launch's second dimension. */
static int problem_heads(void) {
#if defined(TIER_CPU) && TIER_CPU
    return NUM_KV_HEADS / (int)get_num_groups(1);
#else
    return 1;
#endif
}

/*
 * The work item (x) and the first KV head (y) that a work-group takes of a launch of (work items, NUM_KV_HEADS /
 * problem_heads()): groups that start one after the other take all heads of an item, whose keys lie side by side.
 */
static int2 problem_place(void) {
    const int heads = problem_heads(), groups = NUM_KV_HEADS / heads;
    const ulong group = (ulong)get_group_id(1) * get_num_groups(0) + get_group_id(0);
    return (int2)((int)(group / groups), (int)(group % groups) * heads);
}

static int problem_head(const attn_problem *p, int row) {
    return p->kv_head * GROUP + row % GROUP;
}

/* The query row in q, out and lse. */
static long problem_token(const attn_problem *p, int row) {
    return (long)row_record(p, row, RECORD_Q_START, p->q_start) + row_token(p, row);
}

/* The position of a row among the keys. */
static int problem_position(const attn_problem *p, int row) {
    return row_token(p, row) + row_record(p, row, RECORD_K_LEN, p->k_len) - p->q_len;
}

/* Row r sees no key outside problem_low .. problem_high - 1; neither falls with r. */
static int problem_low(const attn_problem *p, int row) {
    /* A window may reach beyond 2^31 and a position be below 0: cut to what makes no difference, nothing overflows. */
    if (p->mask.window.x < 0 || p->members != 0)
        return 0;
    return max(problem_position(p, row) - min(p->mask.window.x, p->k_len), 0);
}
static int problem_high(const attn_problem *p, int row) {
    int right = min(p->mask.window.y, p->q_len);
    if (p->mask.window.y < 0 || p->members != 0)
        return p->k_len;
    return clamp(problem_position(p, row) + right + 1, 0, p->k_len);
}

/* Whether the table has a block for a position below k_len. */
static bool problem_has(const attn_problem *p, int position) {
#if WITH_GUARD
    return p->table[position / BLOCK_SIZE] >= 0;
#else
    (void)p;
    (void)position;
    return true;
#endif
}

/* Whether a row sees the key at a position that lies between its low and high. */
static bool problem_sees(const attn_problem *p, int row, int position) {
    if (!problem_has(p, position))
        return false;
#if WITH_TREE
    int new_token = position - (p->k_len - p->q_len);
    if (new_token >= 0)
        return (p->tree[(long)(row / GROUP) * p->tree_words + new_token / 32] >> new_token % 32 & 1) != 0;
#endif
    (void)p;
    (void)row;
    (void)position;
    return true;
}

/* The score in base 2 of a row and a key that it sees, from the product with the scaled q. */
static float seen_score(const attn_problem *p, int row, int position, float product) {
    float score = product;
#if WITH_SOFTCAP
    score = p->mask.scale.y * fast_tanh(product);
#endif
#if WITH_ALIBI
    long slopes = p->mask.alibi_layout.x + row_seq(p, row) * p->mask.alibi_layout.y;
    float slope = p->mask.alibi[slopes + problem_head(p, row)];
    score -= slope * LOG2_E * fabs((float)(problem_position(p, row) - position));
#endif
    (void)p;
    (void)row;
    (void)position;
    return score;
}

/* The same of any key that is there; -infinity when the row does not see it. */
static float problem_score(const attn_problem *p, int row, int position, float product) {
    bool seen = position >= problem_low(p, row) && position < min(problem_high(p, row), p->key_end) &&
                problem_sees(p, row, position);
    return seen ? seen_score(p, row, position, product) : -INFINITY;
}

/* Elements d .. d + 7 of a row of k_new or q, rotated for a position; the row begins at index `at`. */
static float8 rotated8(const rotary_source *rotary, const __global STORAGE(Q) * base, long at, int d, int position) {
#if ROTARY_DIM > 0
    if (d < ROTARY_DIM) {
        const __global float *cosines = rotary->cos + (long)position * (ROTARY_DIM / 2);
        const __global float *sines = rotary->sin + (long)position * (ROTARY_DIM / 2);
        float x[8];
        for (int j = 0; j < 8; j++) {
            int e = d + j;
            x[j] = e < HEAD_DIM ? LOAD1(Q)(base, at + e) : 0;
            if (e < ROTARY_DIM) {
                bool first = ROTARY_INTERLEAVED ? e % 2 == 0 : e < ROTARY_DIM / 2;
                int pair = ROTARY_INTERLEAVED ? e / 2 : first ? e : e - ROTARY_DIM / 2;
                int other = ROTARY_INTERLEAVED ? e ^ 1 : first ? e + ROTARY_DIM / 2 : pair;
                float y = LOAD1(Q)(base, at + other) * sines[pair];
                x[j] = x[j] * cosines[pair] + (first ? -y : y);
            }
        }
        return vload8(0, x);
    }
#endif
    (void)rotary;
    (void)position;
    return ROW_LOAD8(Q, base, at, d, HEAD_DIM);
}

/* Elements d .. d + 7 of a query row, ready for the products. */
static float8 query8(const attn_problem *p, const __global STORAGE(Q) * q, long4 q_layout, int row, int d) {
    long at = layout_at(q_layout, problem_token(p, row), problem_head(p, row));
    return rotated8(&p->rotary, q, at, d, problem_position(p, row)) * p->mask.scale.x;
}

#if WITH_APPEND
/* New keys and values as k_new and v_new have them, rotated. With V_IN_K the value is the beginning of the key. */
static float8 new_key8(const attn_problem *p, int position, int d) {
    long at = layout_at(p->fresh.k_layout, (long)p->new_start + (position - p->new_first), p->kv_head);
    return rotated8(&p->rotary, p->fresh.k, at, d, position);
}
static float8 new_value8(const attn_problem *p, int position, int d) {
    if (V_IN_K)
        return new_key8(p, position, d);
    long at = layout_at(p->fresh.v_layout, (long)p->new_start + (position - p->new_first), p->kv_head);
    return ROW_LOAD8(Q, p->fresh.v, at, d, HEAD_DIM_V);
}
#endif

/* The row of an old key or value. */
#if WITH_PAGED
typedef pool_row keys_row;
static float8 keys_load8(keys_row row, int d, int dim) {
    return pool_load8(row, d, dim);
}
static keys_row key_row(const attn_problem *p, int position) {
    return pool_row_at(&p->keys.k, p->table[position / BLOCK_SIZE], position % BLOCK_SIZE, p->kv_head);
}
static keys_row value_row(const attn_problem *p, int position) {
    return pool_row_at(&p->keys.v, p->table[position / BLOCK_SIZE], position % BLOCK_SIZE, p->kv_head);
}
#else
typedef const __global STORAGE(KV) *keys_row;
static float8 keys_load8(keys_row row, int d, int dim) {
    return ROW_LOAD8(KV, row, 0, d, dim);
}
static keys_row key_row(const attn_problem *p, int position) {
    return p->keys.k + layout_at(p->keys.k_layout, (long)p->k_start + position, p->kv_head);
}
static keys_row value_row(const attn_problem *p, int position) {
    return p->keys.v + layout_at(p->keys.v_layout, (long)p->k_start + position, p->kv_head);
}
#endif

#if WITH_APPEND
/* The scale with which element d of the key or value at a new position is stored. */
static float new_key_scale(const attn_problem *p, int position, int d) {
    float largest = 0;
#if KV_STORED_SCALES
    const int begin = d / SCALE_GROUP(KV) * SCALE_GROUP(KV);
    for (int e = begin; e < min(begin + SCALE_GROUP(KV), HEAD_DIM); e += 8)
        largest = fmax(largest, largest_of8(new_key8(p, position, e)));
#endif
    (void)position;
    (void)d;
    return pool_scale_for(p->keys.k.scale, largest);
}
static float new_value_scale(const attn_problem *p, int position, int d) {
    float largest = 0;
    if (V_IN_K)
        return new_key_scale(p, position, d);
#if KV_STORED_SCALES
    const int begin = d / SCALE_GROUP(KV) * SCALE_GROUP(KV);
    for (int e = begin; e < min(begin + SCALE_GROUP(KV), HEAD_DIM_V); e += 8)
        largest = fmax(largest, largest_of8(new_value8(p, position, e)));
#endif
    (void)position;
    (void)d;
    return pool_scale_for(p->keys.v.scale, largest);
}

/* What storing with that scale makes of it. */
static float8 rounded8(float8 x, float scale) {
#if KV_QUANTIZED
    return ROUND8(KV)(x / scale) * scale;
#else
    (void)scale;
    return ROUND8(KV)(x);
#endif
}
#endif

/* Elements d .. d + 7 of the key or value at a position. With an append, those at the new positions come from k_new,
   rounded as the pool will hold them, so that it does not matter which work-group stores them, and when. */
static float8 key8(const attn_problem *p, int position, int d) {
#if WITH_APPEND
    if (position >= p->new_first)
        return rounded8(new_key8(p, position, d), new_key_scale(p, position, d));
#endif
    return keys_load8(key_row(p, position), d, HEAD_DIM);
}
static float8 value8(const attn_problem *p, int position, int d) {
#if WITH_APPEND
    if (position >= p->new_first)
        return rounded8(new_value8(p, position, d), new_value_scale(p, position, d));
#endif
    return keys_load8(value_row(p, position), d, HEAD_DIM_V);
}

#if WITH_APPEND
/* Stores the new tokens among the keys of this part: a work-item takes a vector, or all that share a stored scale. */
static void store_new(const attn_problem *p, int lane, int lanes) {
    const int parts = (ROW_VECTORS * 8 + STORE_WIDTH - 1) / STORE_WIDTH;
    int begin = max(p->new_first, p->key_begin);
    for (int i = lane; i < (p->key_end - begin) * parts; i += lanes) {
        int position = begin + i / parts;
        int first = i % parts * STORE_WIDTH;
        if (!problem_has(p, position))
            continue;
        float scale = new_key_scale(p, position, first);
        for (int d = first; d < min(first + STORE_WIDTH, HEAD_DIM); d += 8)
            pool_store8(key_row(p, position), d, HEAD_DIM, new_key8(p, position, d), scale);
        if (V_IN_K)
            continue;
        scale = new_value_scale(p, position, first);
        for (int d = first; d < min(first + STORE_WIDTH, HEAD_DIM_V); d += 8)
            pool_store8(value_row(p, position), d, HEAD_DIM_V, new_value8(p, position, d), scale);
    }
}
#endif

#endif
