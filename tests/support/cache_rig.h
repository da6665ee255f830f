/* SPDX-License-Identifier: Apache-2.0 */
/* A pool with random content on the device, the same on the host, and rows to write into it. */
#ifndef CACHE_RIG_H
#define CACHE_RIG_H

#include "pool_model.h"
#include "pool_shape.h"
#include "strided.h"

typedef struct cache_rig {
    const char *name;
    pagedcl_device *device;
    pagedcl_cache *cache;
    pool_model model;
} cache_rig;

/* Pools with unfriendly shapes, in one segment and in several. */
enum { NUM_CACHE_SHAPES = 6 };
extern const pool_shape cache_shapes[NUM_CACHE_SHAPES];

/* 2 layers of 4 blocks of 16 tokens, 2 heads of 80, float16: for tests of what is refused. */
extern const pool_shape small_pool;

cache_rig cache_rig_open(const pool_shape *shape);
void cache_rig_close(cache_rig *rig);

int64_t cache_rig_slots(const cache_rig *rig);

/* Asserts what the pool's counters say. */
void cache_rig_expect_faults(const cache_rig *rig, uint32_t writes);

/* `tokens` random rows for the pool's heads, on the host and on the device. */
typedef struct cache_rows {
    float *k, *v;
    strided k_tensor, v_tensor;
} cache_rows;

cache_rows cache_rows_create(const cache_rig *rig, pagedcl_dtype dtype, int64_t tokens, strided_layout layout);
void cache_rows_destroy(cache_rows *rows);

/* count random floats that dtype holds exactly, to free. */
float *random_floats(pagedcl_dtype dtype, int64_t count, uint64_t seed);

#endif
