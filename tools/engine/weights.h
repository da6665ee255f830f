/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The weights of a model folder: model.safetensors, or the files that model.safetensors.index.json names. The files
 * stay mapped; nothing is read before it is asked for.
 */
#ifndef ENGINE_WEIGHTS_H
#define ENGINE_WEIGHTS_H

#include "tool_error.h"
#include "safetensors.h"

typedef struct weights weights;

weights *weights_open(const char *folder, tool_error *error);
void weights_close(weights *w); /* NULL is allowed */

/*
 * The tensor of that name, of shape [rows, columns], or [columns] when rows is 0, in a dtype that
 * weights_to_float reads. NULL with an error when it is missing or not such a one.
 */
const safetensors_tensor *weights_find(const weights *w, const char *name, int64_t rows, int64_t columns,
                                       tool_error *error);

/* Elements first .. first + count - 1 of the tensor, in its order. */
void weights_to_float(const safetensors_tensor *tensor, int64_t first, int64_t count, float *values);

#endif
