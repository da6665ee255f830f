/* SPDX-License-Identifier: Apache-2.0 */
/* A manager with the memory of a device that tests keep: two groups, a byte pattern for each token. */
#ifndef KV_POOL_H
#define KV_POOL_H

#include <pagedcl/pagedcl.h>

#include <stdbool.h>

enum { KV_GROUPS = 2, KV_TOKEN_BYTES = 64 };

typedef struct kv_pool {
    pagedcl_blocks *blocks;
    int32_t block_sizes[KV_GROUPS];
    unsigned char *memory[KV_GROUPS];
    int64_t transfers, fail_at; /* the transfer that fails, from 1; 0: none */
} kv_pool;

/* What both groups hold: float16, and int8 rows of 3 and 2 elements, each with a scale of its own. */
extern const pagedcl_kv_geometry kv_geometry[KV_GROUPS];
extern const size_t kv_token_bytes[KV_GROUPS];

/* Where in a token of group 1 its first scale is. */
enum { KV_SCALE_AT = 3 };

/* A pool whose groups have blocks of these sizes. windows: NULL for none. */
kv_pool kv_pool_create(int32_t num_blocks, int32_t block_size_0, int32_t block_size_1, const int64_t *windows,
                       bool prefix_cache);
void kv_pool_destroy(kv_pool *pool);

/* Stores tokens' keys and values, which are a function of all tokens up to each. */
void kv_pool_fill(kv_pool *pool, pagedcl_seq seq, const int32_t *tokens, int64_t first, int64_t num_tokens);

/* Whether every position that the tables show holds what it must. */
bool kv_pool_holds(const kv_pool *pool, pagedcl_seq seq, const int32_t *tokens, int64_t num_tokens);

/* The token at position p of the sequence, kv_token_bytes[group] bytes. */
unsigned char *kv_pool_token(const kv_pool *pool, pagedcl_seq seq, int32_t group, int64_t p);

/* The transfers of pagedcl_blocks_save and _load; user is the pool. */
pagedcl_status kv_pool_read(void *user, int32_t group, int32_t block, int32_t first_slot, int32_t num_slots, void *kv);
pagedcl_status kv_pool_write(void *user, int32_t group, int32_t block, int32_t first_slot, int32_t num_slots, void *kv);

#endif
