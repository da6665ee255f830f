/* SPDX-License-Identifier: Apache-2.0 */
/* A Qwen3-architecture model on a device, float32. Matrices are [outputs, inputs], row-major. */
#ifndef ENGINE_MODEL_H
#define ENGINE_MODEL_H

#include "config.h"
#include "progress.h"

#include <pagedcl/device.h>

typedef struct model_layer {
    cl_mem attn_norm; /* [hidden_size] */
    cl_mem qkv;       /* [(num_heads + 2 * num_kv_heads) * head_dim, hidden_size]: q over k over v */
    cl_mem q_norm;    /* [head_dim] */
    cl_mem k_norm;    /* [head_dim] */
    cl_mem attn_out;  /* [hidden_size, num_heads * head_dim] */
    cl_mem mlp_norm;  /* [hidden_size] */
    cl_mem gate_up;   /* [2 * intermediate_size, hidden_size]: gate over up */
    cl_mem mlp_out;   /* [hidden_size, intermediate_size] */
} model_layer;

typedef struct model {
    model_config config;
    int64_t num_parameters; /* elements on the device; a tied output head counts once */
    cl_mem embedding;       /* [vocab_size, hidden_size] */
    cl_mem norm;            /* [hidden_size], after the last layer */
    cl_mem head;            /* [vocab_size, hidden_size], the embedding itself when tied */
    model_layer *layers;
} model;

/*
 * Reads the weights of a folder that `config` was read from and puts them on the device (blocking). *m may be
 * destroyed whatever the outcome.
 */
bool model_load(pagedcl_device *device, const char *folder, const model_config *config, engine_progress progress,
                model *m, tool_error *error);
void model_destroy(model *m);

#endif
