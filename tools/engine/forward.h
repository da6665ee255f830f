/* SPDX-License-Identifier: Apache-2.0 */
/* The model's forward pass over one step of the batch: rows in, logits of the rows that give a token out. */
#ifndef ENGINE_FORWARD_H
#define ENGINE_FORWARD_H

#include "model.h"
#include "step.h"

#include <pagedcl/attn.h>

typedef struct forward forward;

/*
 * Makes the pool, the operator and the buffers of steps of at most max_rows rows and max_outputs outputs, and builds
 * every kernel (blocking). The model must outlive it.
 */
forward *forward_create(pagedcl_device *device, const model *m, const pagedcl_cache_desc *pool, int32_t max_rows,
                        int32_t max_outputs, tool_error *error);
void forward_destroy(forward *f); /* NULL is allowed */

/* Computes the step (blocking). logits: [step->num_outputs, vocab_size]. */
bool forward_run(forward *f, const engine_step *step, float *logits, tool_error *error);

#endif
