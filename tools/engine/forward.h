/* SPDX-License-Identifier: Apache-2.0 */
/* The model's forward pass over one step of the batch: rows in, logits of the rows that give a token out. */
#ifndef ENGINE_FORWARD_H
#define ENGINE_FORWARD_H

#include "model.h"
#include "step.h"

#include <pagedcl/attn.h>

typedef struct forward forward;

typedef struct forward_options {
    int32_t num_blocks;
    int32_t block_size;
    pagedcl_dtype kv_dtype;
    int32_t max_rows;    /* of a step */
    int32_t max_outputs; /* of a step */
} forward_options;

/* Makes the pool, the operator and the buffers of a step, and builds every kernel (blocking). The model must outlive. */
forward *forward_create(pagedcl_device *device, const model *m, const forward_options *options, engine_error *error);
void forward_destroy(forward *f); /* NULL is allowed */

/* Computes the step (blocking). logits: [step->num_outputs, vocab_size]. */
bool forward_run(forward *f, const engine_step *step, float *logits, engine_error *error);

#endif
