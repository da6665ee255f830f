/* SPDX-License-Identifier: Apache-2.0 */
/* A pool on the host: plain arrays, to which the tests do what the library should have done to the device's. */
#ifndef POOL_MODEL_H
#define POOL_MODEL_H

#include "block_layout.h"

#include <pagedcl/cache.h>

typedef struct pool_model {
    pagedcl_cache_desc desc;
    block_layout k_layout, v_layout; /* NHD, whatever the pool's layout */
    size_t row_bytes;                /* of K of one token, without stored scales */
    size_t layer_bytes;              /* of K of all blocks */
    size_t v_row_bytes;              /* likewise of V; 0 where it lies in K */
    size_t v_layer_bytes;
    unsigned char *k; /* [num_layers, num_blocks] blocks of k_layout */
    unsigned char *v; /* likewise, of v_layout */
} pool_model;

/* Every byte poison. desc has no defaults left to resolve, save head_dim_v and the scales. */
pool_model pool_model_create(const pagedcl_cache_desc *desc);
void pool_model_destroy(pool_model *model);

/* Random finite elements everywhere, in a pool that stores no scales. */
void pool_model_randomize(pool_model *model, uint64_t seed);

/* The rows of a slot. */
unsigned char *pool_model_k(const pool_model *model, int32_t layer, int64_t slot);
unsigned char *pool_model_v(const pool_model *model, int32_t layer, int64_t slot);

/* The value that `value` has once it is stored in a pool of that dtype and, of 8 bits, that scale (0: 1). */
float pool_model_round(pagedcl_dtype dtype, float scale, float value);

/* Stores rows of num_kv_heads * head_dim, and head_dim_v, floats into a slot. */
void pool_model_write(pool_model *model, int32_t layer, int64_t slot, const float *k, const float *v);

/* All layers to the device, blocking. */
void pool_model_upload(const pool_model *model, pagedcl_cache *cache);

/* Asserts that the device holds what the model holds, bit for bit, in all layers. `name` is the case. */
void pool_model_expect(const pool_model *model, pagedcl_cache *cache, const char *name);

#endif
