/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A case file: one call with its right answer, as tests/cases/README.md defines it. What is opened here is complete,
 * its shapes fit together and its dtypes are right; whether lengths, block ids and slots are valid is for the library
 * to judge, since a case may be about that.
 */
#ifndef CASE_H
#define CASE_H

#include "safetensors.h"

#include <pagedcl/dtype.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum case_op {
    CASE_VARLEN,
    CASE_DECODE,
    CASE_WRITE,
    CASE_GATHER,
    CASE_COPY_BLOCKS,
    CASE_MERGE,
} case_op;

/* Parameters that the file does not have are at their default. A tensor that it does not have is NULL. */
typedef struct case_file {
    safetensors *file;
    case_op op;
    float softmax_scale;
    bool causal;
    int32_t window_left;
    int32_t window_right;
    float softcap;
    int32_t num_splits;
    bool rotary_interleaved;
    double atol;
    double rtol;
    const char *expect_error; /* NULL: the call must succeed */

    const safetensors_tensor *q;
    const safetensors_tensor *k;
    const safetensors_tensor *v;
    const safetensors_tensor *cu_seqlens_q;
    const safetensors_tensor *cu_seqlens_k;
    const safetensors_tensor *k_cache;
    const safetensors_tensor *v_cache;
    const safetensors_tensor *block_table;
    const safetensors_tensor *cache_seqlens;
    const safetensors_tensor *k_new;
    const safetensors_tensor *v_new;
    const safetensors_tensor *rotary_cos;
    const safetensors_tensor *rotary_sin;
    const safetensors_tensor *alibi_slopes;
    const safetensors_tensor *sinks;
    const safetensors_tensor *slot_mapping;
    const safetensors_tensor *block_pairs;
    const safetensors_tensor *out_a;
    const safetensors_tensor *lse_a;
    const safetensors_tensor *out_b;
    const safetensors_tensor *lse_b;
    const safetensors_tensor *expect_out;
    const safetensors_tensor *expect_lse;
    const safetensors_tensor *expect_k; /* what a gather reads */
    const safetensors_tensor *expect_v;
    const safetensors_tensor *expect_k_cache;
    const safetensors_tensor *expect_v_cache;

    /* What the shapes say; 0 where no tensor has such a dimension. */
    int32_t num_seqs;
    int32_t seqlen_q;   /* decode */
    int32_t seqlen_new; /* decode */
    int32_t num_heads;
    int32_t num_kv_heads;
    int32_t head_dim;
    int32_t num_blocks;
    int32_t block_size;
} case_file;

/* Opens and checks a case. NULL on failure, with one line in error[0 .. error_size) that names the file. */
case_file *case_open(const char *path, char *error, size_t error_size);
void case_close(case_file *file); /* NULL is allowed */

/* What the case needs that the library has no call for, or NULL. */
const char *case_unsupported_feature(const case_file *file);

/* The library's name for the tensor's element type; PAGEDCL_DTYPE_DEFAULT for integers. */
pagedcl_dtype case_dtype(const safetensors_tensor *tensor);

#endif
