/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of the continuous batch: what the scheduler decides and the forward pass computes. A row is one token of one
 * sequence. Sequences that decode come first, one row each; then those that prefill, some rows each.
 */
#ifndef ENGINE_STEP_H
#define ENGINE_STEP_H

#include <stdint.h>

typedef struct engine_step {
    int32_t num_rows;
    int32_t *tokens;    /* [num_rows] */
    int32_t *positions; /* [num_rows], in their sequences */

    int32_t num_decode;  /* sequences, and rows */
    int32_t num_prefill; /* sequences */
    int32_t *requests;   /* [num_decode + num_prefill] */
    int32_t
        *cache_seqlens; /* [num_decode + num_prefill]: of decode before the step's token, of prefill with its tokens */
    int32_t *prefill_cu_seqlens; /* [num_prefill + 1], from 0: rows behind the decode rows */
    int32_t *block_table;        /* [num_decode + num_prefill, block_table_stride] */
    int64_t block_table_stride;

    int32_t *copies; /* [num_copies, 2]: blocks to copy before anything is written, source and destination */
    int32_t num_copies;

    int32_t num_outputs;
    int32_t *output_rows;     /* [num_outputs]: rows whose logits give their sequence's next token */
    int32_t *output_requests; /* [num_outputs] */
} engine_step;

#endif
