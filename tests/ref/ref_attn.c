/* SPDX-License-Identifier: Apache-2.0 */
#include "ref_attn.h"

#include <math.h>
#include <stdlib.h>

/* The first element of KV head `head` at a position of the sequence. */
static int64_t key_element(const ref_attn *attn, ref_keys keys, int32_t position, int32_t head) {
    int64_t row = position;
    if (keys.block_table)
        row = (int64_t)keys.block_table[position / keys.block_size] * keys.block_size + position % keys.block_size;
    return (row * attn->num_kv_heads + head) * attn->head_dim;
}

static double dot(const float *a, const float *b, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* One query row of one head over keys 0 .. visible - 1; scores has room for them. */
static void attend(const ref_attn *attn, const float *q, ref_keys keys, int32_t kv_head, int32_t visible,
                   double *scores, double *out, double *lse) {
    for (int32_t d = 0; d < attn->head_dim; d++)
        out[d] = 0;
    *lse = -INFINITY;
    if (visible == 0)
        return;

    double max = -INFINITY;
    for (int32_t j = 0; j < visible; j++) {
        scores[j] = attn->scale * dot(q, keys.k + key_element(attn, keys, j, kv_head), attn->head_dim);
        max = fmax(max, scores[j]);
    }
    double sum = 0;
    for (int32_t j = 0; j < visible; j++)
        sum += exp(scores[j] - max);
    *lse = max + log(sum);
    for (int32_t j = 0; j < visible; j++) {
        const float *v = keys.v + key_element(attn, keys, j, kv_head);
        double weight = exp(scores[j] - max) / sum;
        for (int32_t d = 0; d < attn->head_dim; d++)
            out[d] += weight * (double)v[d];
    }
}

void ref_attn_sequence(const ref_attn *attn, const float *q, int32_t seqlen_q, ref_keys keys, int32_t seqlen_k,
                       double *out, double *lse) {
    int32_t group = attn->num_heads / attn->num_kv_heads;
    double *scores = malloc(sizeof(double) * ((size_t)seqlen_k + 1));
    if (!scores)
        abort();
    for (int32_t i = 0; i < seqlen_q; i++) {
        int32_t position = i + seqlen_k - seqlen_q;
        int32_t visible = !attn->causal ? seqlen_k : position < 0 ? 0 : position + 1;
        for (int32_t h = 0; h < attn->num_heads; h++) {
            int64_t row = (int64_t)i * attn->num_heads + h;
            attend(attn, q + row * attn->head_dim, keys, h / group, visible, scores, out + row * attn->head_dim,
                   lse + row);
        }
    }
    free(scores);
}

void ref_attn_varlen(const ref_attn *attn, int32_t num_seqs, const float *q, const int32_t *cu_seqlens_q,
                     const float *k, const float *v, const int32_t *cu_seqlens_k, double *out, double *lse) {
    for (int32_t b = 0; b < num_seqs; b++) {
        int64_t first_row = (int64_t)cu_seqlens_q[b] * attn->num_heads;
        int64_t first_key = (int64_t)cu_seqlens_k[b] * attn->num_kv_heads * attn->head_dim;
        ref_keys keys = {.k = k + first_key, .v = v + first_key};
        ref_attn_sequence(attn, q + first_row * attn->head_dim, cu_seqlens_q[b + 1] - cu_seqlens_q[b], keys,
                          cu_seqlens_k[b + 1] - cu_seqlens_k[b], out + first_row * attn->head_dim, lse + first_row);
    }
}
