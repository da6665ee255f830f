/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Splits of a decode batch that lie in the same blocks for several sequences, whose rows may then share a work item and
 * read them once. Which sequences go together decides over speed alone: a row does the same either way.
 */
#ifndef PCL_PLAN_SHARE_H
#define PCL_PLAN_SHARE_H

#include <pagedcl/status.h>

#include <stdbool.h>
#include <stdint.h>

/* Splits of a sequence that all of its query rows see in full, counted from position 0; none if begin = end. */
typedef struct pcl_share_range {
    int64_t begin, end;
} pcl_share_range;

/* What a batch offers to share. */
typedef struct pcl_share_batch {
    const int32_t *table; /* [num_seqs, stride]: blocks in these splits are known to be in the pool */
    int64_t stride;
    int32_t num_seqs;
    int32_t block_size;
    int32_t split_keys;
    int32_t most_members; /* sequences whose rows fit a tile */
    int64_t num_work;     /* work items without sharing: one for each split of a sequence */
    int64_t least_work;   /* so many should be left, if there are: they keep the device busy */
} pcl_share_batch;

/* One work item for several sequences. */
typedef struct pcl_share_item {
    int32_t split;
    int32_t count; /* of members, at least 2 */
    int64_t first; /* index of the first in `members` */
} pcl_share_item;

/* A split of a sequence, while splits are compared: equal ones form a list. */
typedef struct pcl_share_entry {
    uint64_t hash;
    int32_t seq, split;
    int64_t next;        /* -1: the last of its list */
    int64_t last, count; /* of the list, in its first entry; 0 in the others */
} pcl_share_entry;

/* The answer, and memory that later batches use again. All zero: none. */
typedef struct pcl_share {
    pcl_share_range *ranges; /* [num_seqs], which the caller fills in between begin and find */
    pcl_share_item *items;
    int32_t *members; /* sequences of the items, one item's behind the other's */
    int64_t num_items, num_members;
    int64_t *first_entries; /* [num_seqs] */
    pcl_share_entry *entries;
    bool *taken;    /* by entry: an item has it */
    int64_t *slots; /* of a hash table: an entry, or -1 */
    int64_t seq_capacity, entry_capacity;
} pcl_share;

void pcl_share_release(pcl_share *share);

/* Makes room for the ranges of a batch; until pcl_share_find nothing is shared. Errors: OUT_OF_MEMORY. */
pagedcl_status pcl_share_begin(pcl_share *share, int32_t num_seqs);

/* Finds what to share, in time proportional to the blocks of the ranges. Errors: OUT_OF_MEMORY. */
pagedcl_status pcl_share_find(pcl_share *share, const pcl_share_batch *batch);

/* Whether one of the items has the split of the sequence. */
bool pcl_share_has(const pcl_share *share, int32_t seq, int64_t split);

#endif
