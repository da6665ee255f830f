/* SPDX-License-Identifier: Apache-2.0 */
/* Block tables that come from the caller. */
#ifndef PCL_TABLE_H
#define PCL_TABLE_H

#include "cache.h"

/* A caller's block table: [num_seqs][stride]. */
typedef struct pcl_table {
    const int32_t *entries;
    int64_t stride;
} pcl_table;

/* Whether a row of `stride` entries reaches as far as `tokens` tokens of sequence `seq`. Errors: INVALID_LENGTH, CAPACITY. */
pagedcl_status pcl_table_check_room(const pagedcl_cache *cache, int64_t stride, int32_t seq, int64_t tokens);

/*
 * Checks the row of sequence `seq` as far as `tokens` tokens reach; entries of blocks that lie before position `first`
 * altogether may be -1. Errors: INVALID_LENGTH (below 0), CAPACITY (the row is too short), INVALID_BLOCK; the message
 * names the sequence.
 */
pagedcl_status pcl_table_check(const pagedcl_cache *cache, const pcl_table *table, int32_t seq, int64_t first,
                               int64_t tokens);

/* Writes the slots of positions first .. first + count - 1 of a checked row. */
void pcl_table_slots(const pagedcl_cache *cache, const pcl_table *table, int32_t seq, int64_t first, int64_t count,
                     int64_t *slots);

#endif
