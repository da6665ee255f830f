/* SPDX-License-Identifier: Apache-2.0 */
#include "ref_attn.h"

#include <math.h>
#include <stdlib.h>

static int32_t head_dim_v(const ref_attn *attn) {
    return attn->head_dim_v ? attn->head_dim_v : attn->head_dim;
}

/* Which row of keys.k and keys.v is a KV head's at a position of the sequence. */
static int64_t key_row(const ref_attn *attn, ref_keys keys, int32_t position, int32_t head) {
    int64_t slot = position;
    if (keys.block_table)
        slot = (int64_t)keys.block_table[position / keys.block_size] * keys.block_size + position % keys.block_size;
    return slot * attn->num_kv_heads + head;
}

static double *doubles(int64_t count) {
    double *memory = malloc(sizeof(double) * ((size_t)count + 1));
    if (!memory)
        abort();
    return memory;
}

void ref_attn_rotate(const ref_attn *attn, int32_t position, const float *row, double *rotated) {
    for (int32_t d = 0; d < attn->head_dim; d++)
        rotated[d] = (double)row[d];
    for (int32_t i = 0; i < attn->rotary_dim / 2; i++) {
        int32_t first = attn->rotary_interleaved ? 2 * i : i;
        int32_t second = attn->rotary_interleaved ? 2 * i + 1 : i + attn->rotary_dim / 2;
        int64_t angle = (int64_t)position * (attn->rotary_dim / 2) + i;
        double cosine = (double)attn->rotary_cos[angle], sine = (double)attn->rotary_sin[angle];
        double x = (double)row[first], y = (double)row[second];
        rotated[first] = x * cosine - y * sine;
        rotated[second] = y * cosine + x * sine;
    }
}

/* A query row: a token and a head of a sequence. */
typedef struct query {
    const double *q; /* rotated */
    int32_t token;
    int32_t head;
    int32_t seqlen_q, seqlen_k;
    double slope; /* ALiBi's; 0: none */
} query;

static int64_t position_of(const query *row) {
    return (int64_t)row->token + row->seqlen_k - row->seqlen_q;
}

static bool sees(const ref_attn *attn, const query *row, int32_t key) {
    int64_t position = position_of(row), new_token = (int64_t)key - (row->seqlen_k - row->seqlen_q);
    if (attn->hidden && attn->hidden[key])
        return false;
    if (attn->causal && key > position)
        return false;
    if (attn->has_window && attn->window_left >= 0 && key < position - attn->window_left)
        return false;
    if (attn->has_window && attn->window_right >= 0 && key > position + attn->window_right)
        return false;
    if (!attn->tree_mask || new_token < 0)
        return true;
    int32_t words = (row->seqlen_q + 31) / 32;
    return attn->tree_mask[(int64_t)row->token * words + new_token / 32] >> new_token % 32 & 1;
}

static double score_of(const ref_attn *attn, const query *row, const float *k, int32_t key) {
    double score = 0;
    for (int32_t d = 0; d < attn->head_dim; d++)
        score += row->q[d] * (double)k[d];
    score *= attn->scale;
    if (attn->softcap != 0)
        score = attn->softcap * tanh(score / attn->softcap);
    return score - row->slope * fabs((double)(position_of(row) - key));
}

/* One query row over the keys of its sequence; scores has room for them. */
static void attend(const ref_attn *attn, const query *row, ref_keys keys, double *scores, double *out, double *lse) {
    int32_t kv_head = row->head / (attn->num_heads / attn->num_kv_heads), dim = head_dim_v(attn);
    double sink = attn->sinks ? (double)attn->sinks[row->head] : -INFINITY, max = sink;
    for (int32_t j = 0; j < row->seqlen_k; j++) {
        if (sees(attn, row, j)) {
            scores[j] = score_of(attn, row, keys.k + key_row(attn, keys, j, kv_head) * attn->head_dim, j);
            max = fmax(max, scores[j]);
        }
    }
    for (int32_t d = 0; d < dim; d++)
        out[d] = 0;
    *lse = -INFINITY;
    if (max == -INFINITY)
        return;

    double sum = exp(sink - max);
    for (int32_t j = 0; j < row->seqlen_k; j++)
        sum += sees(attn, row, j) ? exp(scores[j] - max) : 0;
    *lse = max + log(sum);
    for (int32_t j = 0; j < row->seqlen_k; j++) {
        if (!sees(attn, row, j))
            continue;
        const float *v = keys.v + key_row(attn, keys, j, kv_head) * dim;
        double weight = exp(scores[j] - max) / sum;
        for (int32_t d = 0; d < dim; d++)
            out[d] += weight * (double)v[d];
    }
}

void ref_attn_sequence(const ref_attn *attn, const float *q, int32_t seqlen_q, ref_keys keys, int32_t seqlen_k,
                       double *out, double *lse) {
    double *scores = doubles(seqlen_k), *rotated = doubles(attn->head_dim);
    query row = {.q = rotated, .seqlen_q = seqlen_q, .seqlen_k = seqlen_k};
    for (row.token = 0; row.token < seqlen_q; row.token++) {
        for (row.head = 0; row.head < attn->num_heads; row.head++) {
            int64_t index = (int64_t)row.token * attn->num_heads + row.head;
            ref_attn_rotate(attn, (int32_t)position_of(&row), q + index * attn->head_dim, rotated);
            row.slope = attn->alibi_slopes ? (double)attn->alibi_slopes[row.head] : 0;
            attend(attn, &row, keys, scores, out + index * head_dim_v(attn), lse + index);
        }
    }
    free(scores);
    free(rotated);
}

void ref_attn_varlen(const ref_attn *attn, int32_t num_seqs, const float *q, const int32_t *cu_seqlens_q,
                     const float *k, const float *v, const int32_t *cu_seqlens_k, double *out, double *lse) {
    ref_attn one = *attn;
    for (int32_t b = 0; b < num_seqs; b++) {
        int32_t seqlen_q = cu_seqlens_q[b + 1] - cu_seqlens_q[b], seqlen_k = cu_seqlens_k[b + 1] - cu_seqlens_k[b];
        int64_t first_row = (int64_t)cu_seqlens_q[b] * attn->num_heads;
        int64_t first_key = (int64_t)cu_seqlens_k[b] * attn->num_kv_heads;
        ref_keys keys = {.k = k + first_key * attn->head_dim, .v = v + first_key * head_dim_v(attn)};
        ref_attn_sequence(&one, q + first_row * attn->head_dim, seqlen_q, keys, seqlen_k,
                          out + first_row * head_dim_v(attn), lse + first_row);
        if (one.alibi_slopes)
            one.alibi_slopes += attn->alibi_seq_stride;
        if (one.hidden)
            one.hidden += seqlen_k;
        if (one.tree_mask)
            one.tree_mask += (int64_t)seqlen_q * ((seqlen_q + 31) / 32);
    }
}
