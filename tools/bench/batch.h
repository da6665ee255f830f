/* SPDX-License-Identifier: Apache-2.0 */
/* The sequences of a cell, their blocks, and the pool that holds them. */
#ifndef BENCH_BATCH_H
#define BENCH_BATCH_H

#include "cell.h"
#include "rig.h"

#include <pagedcl/cache.h>

/*
 * Tokens are numbered through all sequences; token t has in layer l and KV head h the row (l * total_tokens + t) *
 * num_kv_heads + h of value.h.
 */
typedef struct bench_batch {
    int32_t num_seqs;
    int32_t *seqlens;      /* [num_seqs] */
    int64_t *first_tokens; /* [num_seqs + 1] */
    int64_t total_tokens;
    int32_t longest;
    int32_t *block_table; /* [num_seqs, stride] */
    int64_t stride;
    int32_t num_blocks; /* that the tables name */
    int32_t *order; /* [pool_blocks]: the blocks of the tables, those of the first sequence first, then the others */
    int32_t pool_blocks;
} bench_batch;

/* spare_blocks: of the pool, in no table. *batch may be freed whatever the outcome. */
bool bench_batch_create(const bench_cell *cell, bool spare_blocks, bench_batch *batch, tool_error *error);
void bench_batch_free(bench_batch *batch);

int64_t bench_batch_slot(const bench_batch *batch, const bench_cell *cell, int32_t seq, int32_t position);

/* Binary digits of the pool's values, so that its dtype holds them exactly. */
int bench_value_bits(pagedcl_dtype dtype);

/* Bytes that a row of the pool takes with its scales. */
int64_t bench_pool_row_bytes(pagedcl_dtype dtype, int32_t columns);

/* What the pool of a cell is like. */
pagedcl_cache_desc bench_pool_desc(const bench_cell *cell, const bench_batch *batch);

/* Fails with UNSUPPORTED when `bytes` more than the pool are more than the device has to give. */
bool bench_check_memory(const bench_rig *rig, const pagedcl_cache_desc *pool, uint64_t bytes, tool_error *error);

/* Writes K and V of all tokens, but for the last `num_new` of each sequence, into all layers. */
bool bench_pool_fill(const bench_rig *rig, const bench_cell *cell, const bench_batch *batch, pagedcl_cache *cache,
                     int32_t num_new, tool_error *error);

#endif
