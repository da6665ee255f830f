/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the block manager. blocks.c keeps the pool: every block is in use or in one of the lists below. sequences.c
 * keeps the tables that point into it, step.c what must be undone or released at a step's end, prefix.c the tree of
 * known blocks, swap.c the host tier.
 */
#ifndef PCL_BLOCKS_H
#define PCL_BLOCKS_H

#include "prefix_tree.h"
#include "swap.h"

#include <pagedcl/blocks.h>
#include <pagedcl/blocks_report.h>
#include <pagedcl/prefix.h>

#include <stdbool.h>

/* Where a block is that no table points at. */
typedef enum pcl_list_name {
    PCL_IN_USE,  /* no list */
    PCL_READY,   /* free, to be taken next; the last freed one first. No list but a stack, blocks->ready */
    PCL_WAITING, /* free or cached, its fence is not reached; in the order of fences */
    PCL_UNWIPED, /* free, to be wiped; the longest freed one first */
    PCL_IDLE,    /* cached: four lists, by priority from LOW; the least recently used one first */
    PCL_PINNED = PCL_IDLE + PAGEDCL_PRIORITY_PINNED - PAGEDCL_PRIORITY_LOW,
    PCL_NUM_LISTS,
} pcl_list_name;

typedef struct pcl_list {
    int32_t head, tail; /* -1: none */
    int64_t count;
} pcl_list;

typedef struct pcl_block {
    int32_t refcount;   /* tables that point at it, and copies of the open step that read it */
    int32_t node;       /* of the prefix tree that knows it; 0: none */
    int32_t prev, next; /* in its list; prev of a ready block is its place in the stack */
    uint64_t fence;     /* of the last commands of sequences that had it and released it */
    uint32_t tag;       /* another one for every owner; not 0 once it was taken */
    uint8_t list;       /* a pcl_list_name */
    bool dirty;         /* to be wiped before it is taken */
} pcl_block;

typedef struct pcl_group {
    int32_t block_size;
    int32_t per_unit; /* blocks of the group in a unit */
    int32_t column;   /* of the first of them in a row */
    int64_t window;   /* 0: none */
} pcl_group;

typedef enum pcl_sequence_state {
    PCL_SEQ_FREE,
    PCL_SEQ_LIVE,
    PCL_SEQ_ENDING, /* freed while in the open step, which still uses its blocks */
} pcl_sequence_state;

/*
 * A table has a row for each unit (the tokens of the largest block of any group), and a row has the blocks of the unit
 * group by group: blocks->width entries. Logical block i of a group is in row i / per_unit.
 */
typedef struct pcl_sequence {
    uint32_t generation; /* of the sequence that lives here, or that did last; from 1 */
    uint8_t state;       /* a pcl_sequence_state */
    bool in_step;        /* the open step appended to it */
    bool swapped;        /* its entries are blocks of the host tier */
    int32_t room;        /* tokens that its last blocks have room for and surely nobody else reads: an append of so many
                            looks at nothing but this line */
    int32_t next_free;   /* while free: the next index of the list that free_seq begins */
    uint64_t created;    /* counts up */
    uint64_t fence;      /* of the last commands that use its blocks */
    int64_t length;      /* tokens */
    int64_t num_dropped; /* entries that are -1 because they are left of a window */
    int32_t *table;      /* stays with the entry when the sequence is freed, for the next one */
    int64_t capacity;    /* rows that the table has memory for */
} pcl_sequence;

/* A sequence is one line of a processor's cache: thousands are appended to in turn. */
enum { PCL_LINE = 64 };
_Static_assert(sizeof(pcl_sequence) == PCL_LINE || sizeof(void *) < 8, "a sequence fills its line");

/* Appends of the open step, and the sources of their copies, which stay in use until it ends. */
typedef struct pcl_step_append {
    int32_t seq;
    int32_t num_copies;
    int64_t length; /* before */
} pcl_step_append;
typedef struct pcl_step_copy {
    int64_t entry; /* of the table */
    int32_t src;
} pcl_step_copy;

typedef struct pcl_step {
    bool open;
    pcl_step_append *appends;
    pcl_step_copy *copies;
    int64_t num_appends, appends_capacity;
    int64_t num_copies, copies_capacity;
} pcl_step;

struct pagedcl_blocks {
    int32_t block_size;
    int32_t num_groups;
    int32_t unit;     /* tokens of a row: the largest block size */
    int32_t smallest; /* block size */
    int32_t width;    /* entries of a row */
    bool wipe;
    bool windowed; /* some group has a window */
    int64_t watermark;
    uint64_t reached; /* the largest fence that is */
    pcl_group *groups;
    pcl_block *block; /* by physical block */
    pcl_list lists[PCL_NUM_LISTS];
    int32_t *ready;   /* [total], of which lists[PCL_READY].count are in use; the next one to take is the last */
    int32_t *counted; /* by physical block: what pagedcl_blocks_check counts, so that it allocates nothing */
    pagedcl_blocks_stats stats;

    pcl_sequence *seqs; /* by the index in a handle; entries are used again, with the next generation */
    pcl_chain *chains;  /* likewise: how much of each the prefix tree knows */
    void *seqs_memory;  /* in which seqs begins at a line */
    int32_t num_seqs;   /* entries that were ever used */
    int32_t seq_capacity;
    int32_t free_seq; /* the first entry to use again, -1: none */
    uint64_t num_created;

    pcl_step step;
    pcl_prefix_tree prefix;
    pcl_host_tier host;
    pagedcl_block_listener listener;
    void *listener_user;
};

/* blocks.c */

/* How many blocks pcl_block_take can give now. */
int64_t pcl_blocks_available(const pagedcl_blocks *blocks);

/* Takes a free block, evicting a cached one when none is free, and gives it one reference. One must be available. */
int32_t pcl_block_take(pagedcl_blocks *blocks);

/* Adds a reference to a block in use or cached. */
void pcl_block_retain(pagedcl_blocks *blocks, int32_t block);

/* Drops a reference; commands under `fence` may use the block. Without references it is free or cached. */
void pcl_block_release(pagedcl_blocks *blocks, int32_t block, uint64_t fence);

/* The prefix tree knows the block no longer. */
void pcl_block_forget(pagedcl_blocks *blocks, int32_t block);

/* The free block dst has the references and the node of src, which is free once `fence` is reached. */
void pcl_block_move(pagedcl_blocks *blocks, int32_t src, int32_t dst, uint64_t fence);

/* Puts a block without references into the list that its state demands, taking it out of the one it is in. */
void pcl_block_place(pagedcl_blocks *blocks, int32_t block);

/* sequences.c */

pagedcl_status pcl_sequence_find(const pagedcl_blocks *blocks, pagedcl_seq seq, pcl_sequence **found);

/* Refuses a sequence that is swapped out. */
pagedcl_status pcl_sequence_find_resident(const pagedcl_blocks *blocks, pagedcl_seq seq, pcl_sequence **found);

/* Refuses a sequence that is swapped out or in the open step. */
pagedcl_status pcl_sequence_find_settled(const pagedcl_blocks *blocks, pagedcl_seq seq, pcl_sequence **found);

pagedcl_seq pcl_sequence_handle(const pagedcl_blocks *blocks, int32_t index);

/* How much of the sequence the prefix tree knows. */
static inline pcl_chain *pcl_sequence_chain(const pagedcl_blocks *blocks, const pcl_sequence *s) {
    return &blocks->chains[s - blocks->seqs];
}

/* Makes sure of an entry for a new sequence with room for num_rows rows; its index. May move the sequences. */
pagedcl_status pcl_sequence_reserve(pagedcl_blocks *blocks, int64_t num_rows, int32_t *index);

/* Makes the reserved entry an empty sequence. */
pcl_sequence *pcl_sequence_take(pagedcl_blocks *blocks, int32_t index);

void pcl_sequence_set_length(pagedcl_blocks *blocks, pcl_sequence *s, int64_t length);

/* Releases the blocks behind the first num_tokens tokens and shortens the sequence to them. */
void pcl_sequence_shorten(pagedcl_blocks *blocks, pcl_sequence *s, int64_t num_tokens);

/* Releases everything and gives the entry back. */
void pcl_sequence_end(pagedcl_blocks *blocks, pcl_sequence *s);

/* Releases the blocks that a query at position `length` or behind it does not see. */
void pcl_sequence_drop_left(pagedcl_blocks *blocks, pcl_sequence *s, int64_t length);

/* step.c */

/* Makes sure that the open step can note an append with num_copies copies. */
pagedcl_status pcl_step_reserve(pagedcl_blocks *blocks, int64_t num_copies);

void pcl_step_free(pcl_step *step);

/* Blocks that num_tokens tokens need in the group. */
static inline int64_t pcl_blocks_for(const pcl_group *group, int64_t num_tokens) {
    return num_tokens / group->block_size + (num_tokens % group->block_size != 0);
}

/* Rows that they need. */
static inline int64_t pcl_rows_for(const pagedcl_blocks *blocks, int64_t num_tokens) {
    return num_tokens / blocks->unit + (num_tokens % blocks->unit != 0);
}

/* The entry of logical block i of the group. */
static inline int64_t pcl_entry(const pagedcl_blocks *blocks, const pcl_group *group, int64_t i) {
    if (group->per_unit == 1)
        return i * blocks->width + group->column;
    return i / group->per_unit * blocks->width + group->column + i % group->per_unit;
}

/* The first logical block that a query at position `length` sees. */
static inline int64_t pcl_first_seen(const pcl_group *group, int64_t length) {
    if (group->window == 0 || length < group->window)
        return 0;
    return (length - group->window + 1) / group->block_size;
}

#endif
