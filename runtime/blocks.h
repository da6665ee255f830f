/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the block manager: blocks.c keeps the pool, sequences.c the tables that point into it. */
#ifndef PCL_BLOCKS_H
#define PCL_BLOCKS_H

#include <pagedcl/blocks.h>

#include <stdbool.h>

typedef struct pcl_sequence {
    uint32_t generation; /* of the sequence that lives here, or that did last; from 1 */
    bool live;
    int32_t next_free; /* while not live: the next index of the list that free_seq begins */
    int64_t length;    /* tokens */
    int32_t *table;    /* physical block of logical block i in group g: table[i * num_groups + g] */
    int64_t capacity;  /* logical blocks that the table has memory for */
} pcl_sequence;

struct pagedcl_blocks {
    int32_t block_size;
    int32_t num_groups;
    int32_t *refcounts;  /* by physical block; at most stats.num_seqs, since a sequence holds a block once */
    int32_t *free_stack; /* the stats.free free blocks; the next one to take is the last */
    int32_t *counted;    /* by physical block: what pagedcl_blocks_check counts, so that it allocates nothing */
    pagedcl_blocks_stats stats;

    pcl_sequence *seqs; /* by the index in a handle; entries are used again, with the next generation */
    int32_t num_seqs;   /* entries that were ever used */
    int32_t seq_capacity;
    int32_t free_seq; /* the first entry to use again, -1: none */
};

/* Takes a free block and gives it one reference. There must be one. */
int32_t pcl_block_take(pagedcl_blocks *blocks);

/* Adds a reference to a block in use. */
void pcl_block_retain(pagedcl_blocks *blocks, int32_t block);

/* Drops a reference to a block in use; the last one frees it. */
void pcl_block_release(pagedcl_blocks *blocks, int32_t block);

/* Blocks that num_tokens tokens need in one group. */
static inline int64_t pcl_blocks_for(const pagedcl_blocks *blocks, int64_t num_tokens) {
    return num_tokens / blocks->block_size + (num_tokens % blocks->block_size != 0);
}

#endif
