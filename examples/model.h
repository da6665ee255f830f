/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forward pass of an engine, with something simple in place of a model: in each layer q, k and v are made of the
 * token, and the next token is a hash of all that attention gave. So attention is real, and one wrong bit shows.
 */
#ifndef MODEL_H
#define MODEL_H

#include <pagedcl/pagedcl.h>

enum { MODEL_DECODE, MODEL_PREFILL, MODEL_PATHS };
enum { MODEL_MAX_SEQS = 4, MODEL_MAX_CHUNK = 24, MODEL_BLOCK_SIZE = 16, MODEL_ROW_BLOCKS = 8 };

/* A step: two batches, each of num_seqs sequences with their new tokens one behind the other. */
typedef struct model_step {
    int32_t num_seqs[MODEL_PATHS];
    int32_t cu_seqlens_q[MODEL_PATHS][MODEL_MAX_SEQS + 1]; /* where a sequence's new tokens begin; of decode one each */
    int32_t tokens[MODEL_PATHS][MODEL_MAX_CHUNK];
    int32_t cache_seqlens[MODEL_PATHS][MODEL_MAX_SEQS]; /* decode: without the new tokens; prefill: with them */
    int32_t block_table[MODEL_PATHS][MODEL_MAX_SEQS][MODEL_ROW_BLOCKS];
    pagedcl_action copies[MODEL_MAX_SEQS]; /* done first */
    int64_t num_copies;
    int32_t next_tokens[MODEL_MAX_SEQS]; /* written: of those that decode */
} model_step;

typedef struct model model;

model *model_create(pagedcl_device *device, int32_t num_blocks);
void model_forward(model *m, model_step *step);
void model_destroy(model *m);

#endif
