/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of layers.cl, enqueued on the device's own in-order queue. */
#ifndef ENGINE_LAYERS_H
#define ENGINE_LAYERS_H

#include "config.h"

#include <pagedcl/device.h>

typedef struct layers {
    cl_command_queue queue;
    cl_program program;
    cl_kernel take_rows;
    cl_kernel rms_norm;
    cl_kernel norm_rotate;
    cl_kernel silu_multiply;
    size_t group; /* size of the work-groups that reduce */
} layers;

/* *l may be destroyed whatever the outcome. */
bool layers_create(pagedcl_device *device, layers *l, tool_error *error);
void layers_destroy(layers *l);

/* Row i of out is row rows[i] of table. */
bool layers_take_rows(const layers *l, cl_mem table, cl_mem rows, cl_mem out, int32_t num_rows, int32_t width,
                      tool_error *error);

/* out may be in. */
bool layers_rms_norm(const layers *l, cl_mem in, cl_mem weight, cl_mem out, int32_t num_rows, int32_t width, float eps,
                     tool_error *error);

/* Normalises and rotates the query and key heads of qkv in place. frequencies: [head_dim / 2]. */
bool layers_norm_rotate(const layers *l, cl_mem qkv, cl_mem q_norm, cl_mem k_norm, cl_mem frequencies, cl_mem positions,
                        int32_t num_rows, const model_config *config, tool_error *error);

/* out [num_rows, width] = silu(gate) * up. gate_up: [num_rows, 2, width]. */
bool layers_silu_multiply(const layers *l, cl_mem gate_up, cl_mem out, int32_t num_rows, int32_t width,
                          tool_error *error);

#endif
