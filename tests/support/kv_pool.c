/* SPDX-License-Identifier: Apache-2.0 */
#include "kv_pool.h"

#include <stdlib.h>
#include <string.h>

enum { LAYERS_1 = 3, DIM_1 = KV_SCALE_AT, DIM_V_1 = 2 };

const pagedcl_kv_geometry kv_geometry[KV_GROUPS] = {
    {.num_layers = 1, .num_kv_heads = 3, .head_dim = 1, .dtype = PAGEDCL_FLOAT16},
    {.num_layers = LAYERS_1,
     .num_kv_heads = 1,
     .head_dim = DIM_1,
     .dtype = PAGEDCL_INT8,
     .head_dim_v = DIM_V_1,
     .scale_per_row = 1},
};

const size_t kv_token_bytes[KV_GROUPS] = {12, LAYERS_1 *(DIM_1 + DIM_V_1 + 2 * sizeof(float))};

static unsigned char *slot_of(const kv_pool *pool, int32_t group, int64_t slot) {
    return pool->memory[group] + (size_t)slot * kv_token_bytes[group];
}

kv_pool kv_pool_create(int32_t num_blocks, int32_t block_size_0, int32_t block_size_1, const int64_t *windows,
                       bool prefix_cache) {
    kv_pool pool = {.block_sizes = {block_size_0, block_size_1}};
    pagedcl_blocks_desc desc = PAGEDCL_BLOCKS_DESC_INIT;
    desc.num_blocks = num_blocks;
    desc.block_size = block_size_0;
    desc.num_groups = KV_GROUPS;
    desc.group_block_sizes = pool.block_sizes;
    desc.group_windows = windows;
    desc.prefix_cache = prefix_cache;
    if (pagedcl_blocks_create(&desc, &pool.blocks) != PAGEDCL_SUCCESS)
        abort();
    for (int g = 0; g < KV_GROUPS; g++) {
        size_t bytes = (size_t)num_blocks * (size_t)pool.block_sizes[g] * kv_token_bytes[g];
        pool.memory[g] = malloc(bytes);
        if (pool.memory[g] == NULL)
            abort();
        memset(pool.memory[g], 0xa5, bytes);
    }
    return pool;
}

void kv_pool_destroy(kv_pool *pool) {
    pagedcl_blocks_destroy(pool->blocks);
    for (int g = 0; g < KV_GROUPS; g++)
        free(pool->memory[g]);
}

/* The bytes of position p in the group. */
static void pattern(const int32_t *tokens, int64_t p, int32_t group, unsigned char *bytes) {
    uint64_t value = (uint64_t)group + 1;
    for (int64_t i = 0; i <= p; i++)
        value = (value + (uint64_t)(uint32_t)tokens[i] + 1) * UINT64_C(0x9e3779b97f4a7c15);
    for (size_t i = 0; i < kv_token_bytes[group]; i++, value = value * 5 + 1)
        bytes[i] = (unsigned char)(value >> 40);
    /* Scales are finite and not below 0. */
    for (size_t i = DIM_1; group == 1 && i < kv_token_bytes[1]; i += DIM_1 + DIM_V_1 + 2 * sizeof(float)) {
        bytes[i + 3] &= 0x3f;
        bytes[i + 3 + sizeof(float) + DIM_V_1] &= 0x3f;
    }
}

unsigned char *kv_pool_token(const kv_pool *pool, pagedcl_seq seq, int32_t group, int64_t p) {
    int64_t slot;
    if (pagedcl_blocks_slots(pool->blocks, seq, group, p, 1, &slot) != PAGEDCL_SUCCESS)
        abort();
    return slot < 0 ? NULL : slot_of(pool, group, slot);
}

void kv_pool_fill(kv_pool *pool, pagedcl_seq seq, const int32_t *tokens, int64_t first, int64_t num_tokens) {
    for (int32_t g = 0; g < KV_GROUPS; g++)
        for (int64_t p = first; p < first + num_tokens; p++)
            pattern(tokens, p, g, kv_pool_token(pool, seq, g, p));
}

bool kv_pool_holds(const kv_pool *pool, pagedcl_seq seq, const int32_t *tokens, int64_t num_tokens) {
    int64_t length;
    if (pagedcl_blocks_seq_length(pool->blocks, seq, &length) != PAGEDCL_SUCCESS || length != num_tokens)
        return false;
    for (int32_t g = 0; g < KV_GROUPS; g++)
        for (int64_t p = 0; p < num_tokens; p++) {
            unsigned char want[KV_TOKEN_BYTES];
            const unsigned char *got = kv_pool_token(pool, seq, g, p);
            pattern(tokens, p, g, want);
            if (got != NULL && memcmp(got, want, kv_token_bytes[g]) != 0)
                return false;
        }
    return true;
}

static pagedcl_status transfer(kv_pool *pool, int32_t group, int32_t block, int32_t first_slot, int32_t num_slots,
                               void *kv, bool read) {
    size_t bytes = (size_t)num_slots * kv_token_bytes[group];
    unsigned char *memory = slot_of(pool, group, (int64_t)block * pool->block_sizes[group] + first_slot);
    if (++pool->transfers == pool->fail_at)
        return PAGEDCL_DEVICE_LOST;
    memcpy(read ? kv : memory, read ? memory : kv, bytes);
    return PAGEDCL_SUCCESS;
}

pagedcl_status kv_pool_read(void *user, int32_t group, int32_t block, int32_t first_slot, int32_t num_slots, void *kv) {
    return transfer(user, group, block, first_slot, num_slots, kv, true);
}

pagedcl_status kv_pool_write(void *user, int32_t group, int32_t block, int32_t first_slot, int32_t num_slots,
                             void *kv) {
    return transfer(user, group, block, first_slot, num_slots, kv, false);
}
