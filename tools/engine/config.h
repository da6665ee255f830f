/* SPDX-License-Identifier: Apache-2.0 */
/* The config.json of a model folder. */
#ifndef ENGINE_CONFIG_H
#define ENGINE_CONFIG_H

#include "tool_error.h"

#include <stdint.h>

enum { CONFIG_MAX_EOS = 16 };

typedef struct model_config {
    int32_t num_layers;
    int32_t hidden_size;
    int32_t intermediate_size;
    int32_t num_heads;
    int32_t num_kv_heads;
    int32_t head_dim;
    int32_t vocab_size;
    int32_t max_positions; /* tokens of the longest sequence */
    float rms_norm_eps;
    double rope_theta;
    bool tied_embeddings;        /* the output head is the embedding */
    int32_t eos[CONFIG_MAX_EOS]; /* the tokens that end a text */
    int32_t num_eos;
} model_config;

/* Reads folder/config.json. Whatever this engine does not compute as the model means it is refused. */
bool model_config_read(const char *folder, model_config *config, tool_error *error);

bool model_config_ends(const model_config *config, int32_t token);

#endif
