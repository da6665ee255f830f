/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention straight from its definition, in double precision: the right answer of every attention test. It knows
 * nothing of tiles, splits or tiers. Inputs are floats that hold the stored elements exactly.
 */
#ifndef REF_ATTN_H
#define REF_ATTN_H

#include <stdbool.h>
#include <stdint.h>

/* A field that is 0 or NULL is a feature that is not used. */
typedef struct ref_attn {
    int32_t num_heads;
    int32_t num_kv_heads;
    int32_t head_dim;
    double scale;
    bool causal;
    int32_t head_dim_v; /* 0: head_dim */
    bool has_window;
    int32_t window_left, window_right; /* -1: unbounded */
    double softcap;
    const float *alibi_slopes; /* [num_heads] of the first sequence, those of the next alibi_seq_stride behind */
    int64_t alibi_seq_stride;
    const float *sinks;        /* [num_heads] */
    const uint32_t *tree_mask; /* of the sequences one behind the other: [seqlen_q, ceil(seqlen_q / 32)] each */
    const bool *hidden;        /* keys of the sequences one behind the other: no row sees those that are true */
    int32_t rotary_dim;
    bool rotary_interleaved;
    const float *rotary_cos, *rotary_sin; /* [positions, rotary_dim / 2] */
} ref_attn;

/* Keys, rows of num_kv_heads * head_dim, and values: packed, or in a pool [num_blocks, block_size] and read through the
 * block table of one sequence. Keys are rotated already. */
typedef struct ref_keys {
    const float *k;
    const float *v;
    const int32_t *block_table; /* NULL: packed */
    int32_t block_size;
} ref_keys;

/* A row of head_dim elements as the rotary embedding turns it at a position. */
void ref_attn_rotate(const ref_attn *attn, int32_t position, const float *row, double *rotated);

/*
 * One sequence: q is [seqlen_q, num_heads, head_dim], not rotated yet, out [seqlen_q, num_heads, head_dim_v] and lse
 * [seqlen_q, num_heads]. A row that sees no key gets zeros and -infinity, or its sink.
 */
void ref_attn_sequence(const ref_attn *attn, const float *q, int32_t seqlen_q, ref_keys keys, int32_t seqlen_k,
                       double *out, double *lse);

/* Sequences in packed rows, each with its own packed keys. */
void ref_attn_varlen(const ref_attn *attn, int32_t num_seqs, const float *q, const int32_t *cu_seqlens_q,
                     const float *k, const float *v, const int32_t *cu_seqlens_k, double *out, double *lse);

#endif
