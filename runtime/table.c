/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include "status.h"

#include <inttypes.h>

static int64_t blocks_of(const pagedcl_cache *cache, int64_t tokens) {
    return (tokens + cache->desc.block_size - 1) / cache->desc.block_size;
}

pagedcl_status pcl_table_check_room(const pagedcl_cache *cache, int64_t stride, int32_t seq, int64_t tokens) {
    if (tokens < 0)
        return pcl_fail(PAGEDCL_INVALID_LENGTH, "sequence %d has length %" PRId64, seq, tokens);
    int64_t blocks = blocks_of(cache, tokens);
    if (blocks > stride)
        return pcl_fail(PAGEDCL_CAPACITY,
                        "sequence %d: %" PRId64 " tokens need %" PRId64 " blocks of %d, its row of the block table has "
                        "%" PRId64,
                        seq, tokens, blocks, cache->desc.block_size, stride);
    return PAGEDCL_SUCCESS;
}

pagedcl_status pcl_table_check(const pagedcl_cache *cache, const pcl_table *table, int32_t seq, int64_t first,
                               int64_t tokens) {
    PCL_TRY(pcl_table_check_room(cache, table->stride, seq, tokens));
    int64_t blocks = blocks_of(cache, tokens);
    for (int64_t i = 0; i < blocks; i++) {
        int32_t block = table->entries[seq * table->stride + i];
        bool unseen = block == -1 && (i + 1) * cache->desc.block_size <= first;
        if (!unseen && (block < 0 || block >= cache->desc.num_blocks))
            return pcl_fail(PAGEDCL_INVALID_BLOCK,
                            "sequence %d: entry %" PRId64 " of its block table is %d%s, inside the %" PRId64
                            " tokens in use; the pool has blocks 0 to %d",
                            seq, i, block, block == -1 ? " (not allocated)" : "", tokens, cache->desc.num_blocks - 1);
    }
    return PAGEDCL_SUCCESS;
}

void pcl_table_slots(const pagedcl_cache *cache, const pcl_table *table, int32_t seq, int64_t first, int64_t count,
                     int64_t *slots) {
    int64_t block_size = cache->desc.block_size;
    for (int64_t i = 0; i < count; i++) {
        int64_t position = first + i;
        slots[i] = table->entries[seq * table->stride + position / block_size] * block_size + position % block_size;
    }
}
