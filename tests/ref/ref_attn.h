/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention straight from its definition, in double precision: the right answer of every attention test. It knows
 * nothing of tiles, splits or tiers. Inputs are floats that hold the stored elements exactly.
 */
#ifndef REF_ATTN_H
#define REF_ATTN_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ref_attn {
    int32_t num_heads;
    int32_t num_kv_heads;
    int32_t head_dim;
    double scale;
    bool causal;
} ref_attn;

/* Keys and values, rows of num_kv_heads * head_dim: packed, or in a pool [num_blocks, block_size] and read through
 * the block table of one sequence. */
typedef struct ref_keys {
    const float *k;
    const float *v;
    const int32_t *block_table; /* NULL: packed */
    int32_t block_size;
} ref_keys;

/*
 * One sequence: q and out are [seqlen_q, num_heads, head_dim], lse is [seqlen_q, num_heads]. A row that sees no key
 * gets zeros and -infinity.
 */
void ref_attn_sequence(const ref_attn *attn, const float *q, int32_t seqlen_q, ref_keys keys, int32_t seqlen_k,
                       double *out, double *lse);

/* Sequences in packed rows, each with its own packed keys. */
void ref_attn_varlen(const ref_attn *attn, int32_t num_seqs, const float *q, const int32_t *cu_seqlens_q,
                     const float *k, const float *v, const int32_t *cu_seqlens_k, double *out, double *lse);

#endif
