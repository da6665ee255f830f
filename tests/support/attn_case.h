/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention calls for tests: a case in words, and the problem that it stands for, on the host. What a case leaves out is
 * the unfriendly default: three sequences of odd lengths in scattered blocks, head_dim 80, seven query heads per KV
 * head, and NaN wherever no live token lies.
 */
#ifndef ATTN_CASE_H
#define ATTN_CASE_H

#include "adopted_pool.h"
#include "pool_model.h"
#include "strided.h"

#include <pagedcl/attn.h>

typedef enum attn_path {
    VARLEN_PACKED = 0,
    VARLEN_PAGED = 1,
    DECODE = 2,
} attn_path;

/* 0 means what stands in brackets. */
typedef struct attn_case {
    const char *name;
    attn_path path;
    int32_t num_seqs;         /* [3] */
    const int32_t *seqlens_q; /* [5, 1, 17]; decode: all are seqlen_q */
    const int32_t *seqlens_k; /* keys that are attended to, new ones included [n + block_size, n, n + 2 * block_size + 2
                                 with n the new tokens, or 1] */
    int32_t seqlen_q;         /* decode [1] */
    int32_t append;           /* the run stores the last keys of each sequence; decode: so many, varlen: seqlen_q */
    int32_t num_kv_heads;     /* [2] */
    int32_t group;            /* query heads per KV head [7] */
    int32_t head_dim;         /* [80] */
    int32_t block_size;       /* [16] */
    pagedcl_dtype q_dtype, kv_dtype, out_dtype; /* [float32] */
    int32_t causal;
    float scale; /* [1 / sqrt(head_dim)] */
    int32_t num_splits;
    int32_t num_layers;     /* [1]; the last one is used */
    int32_t segment_blocks; /* the most blocks of K in a segment [as many as the device allows] */
    strided_layout layout;  /* of the tensors of the run */
    bool without_lse;
    int32_t head_dim_v; /* [head_dim] */
    bool v_in_k;
    pool_form pool;
    bool scale_per_row; /* of an 8-bit kv_dtype: only the run stores tokens, and nobody knows its bytes beforehand */
    float k_scale, v_scale; /* of an 8-bit kv_dtype [1]; powers of two, so that a test knows what is stored */
    const int32_t *window;  /* left and right; NULL: none */
    bool released;          /* blocks of which the window shows no token are -1 in the table */
    float softcap;
    int32_t alibi; /* 1: slopes per head, 2: per sequence and head */
    bool sinks;
    int32_t rotary_dim;
    bool rotary_interleaved;
    bool both_paths;   /* the operator may plan the other path of a pool too */
    bool device_table; /* of the pool's paths: the table is a buffer */
    int32_t shared; /* tokens: whole blocks of so many that all sequences have in common, before their queries' keys */
    pagedcl_sharing share_prefix;
    bool tree; /* random masks, which hide the second of the last keys from all, and its V is NaN */
} attn_case;

/* Values are what is stored, exactly; they may be changed before a rig is opened. */
typedef struct attn_problem {
    attn_case c; /* nothing left out */
    int32_t num_heads;
    int32_t *cu_seqlens_q; /* [num_seqs + 1] */
    int32_t *cu_seqlens_k;
    int32_t *seqlens_new; /* [num_seqs]: tokens that the run stores */
    int32_t total_new;
    float *q;     /* [total_q, num_heads, head_dim] */
    float *k, *v; /* [total_k, num_kv_heads, head_dim], and head_dim_v, of all sequences one behind the other */
    float *k_new; /* [total_new, ...] in q_dtype; k and v hold them rotated and as kv_dtype rounds them */
    float *v_new;
    /* Of features that the case has: */
    float *alibi_slopes; /* [num_seqs, num_heads], or the same for all sequences: [num_heads] */
    float *sinks;        /* [num_heads] */
    float *rotary_cos;   /* [attn_rotary_positions, rotary_dim / 2] */
    float *rotary_sin;
    uint32_t *tree_mask; /* as the batch wants it */
    int32_t num_blocks;
    int32_t *block_table; /* [num_seqs, block_table_stride]; with device_table entries may be changed to name no block:
                             tokens there are hidden, and not stored */
    int32_t block_table_stride;
    int32_t *cache_seqlens; /* [num_seqs]: as the path's batch wants it */
} attn_problem;

attn_problem attn_problem_create(const attn_case *c, uint64_t seed);
void attn_problem_destroy(attn_problem *problem);

/* Query tokens q_begin .. q_end - 1 of one sequence, over its first seqlen_k keys, in a problem of its own. Of tree masks
   only all query tokens of a sequence are a part. */
attn_problem attn_problem_part(const attn_problem *problem, int32_t seq, int32_t q_begin, int32_t q_end,
                               int32_t seqlen_k);

/* Other physical blocks for the same tokens. */
void attn_problem_scatter(attn_problem *problem, uint64_t seed);

/* Positions of the rotary tables: the longest sequence's. */
int32_t attn_rotary_positions(const attn_problem *problem);

/* 32-bit words of the tree mask. */
int32_t attn_tree_words(const attn_problem *problem);

/* The pool on the host, before a run or after. */
pool_model attn_problem_pool(const attn_problem *problem, bool after);

static inline int32_t attn_total_q(const attn_problem *problem) {
    return problem->cu_seqlens_q[problem->c.num_seqs];
}
static inline int32_t attn_total_k(const attn_problem *problem) {
    return problem->cu_seqlens_k[problem->c.num_seqs];
}

/* The right answer, in double precision: [total_q, num_heads, head_dim_v] and [total_q, num_heads], to free. */
void attn_reference(const attn_problem *problem, double **out, double **lse);

#endif
