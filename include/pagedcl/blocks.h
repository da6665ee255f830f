/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block manager: which physical block holds which tokens of which sequence. Host only, no OpenCL: what must happen
 * on the device (copies, wipes, swaps) it names, and the caller enqueues it.
 *
 * A pool has num_blocks blocks of block_size tokens. A sequence has one block table per cache group (a set of layers
 * that share a table); all groups draw from the one pool. Position p of a sequence lies in logical block
 * floor(p / block_size), and the table gives its physical block: slot = block * block_size + p mod block_size.
 * Groups may have block sizes and windows of their own; a group with a window gives back the blocks that no later query
 * can see, and its table has -1 in their place.
 *
 * Refcounts say how many tables point at a block: 1 on allocation, +1 on sharing, -1 on release. A block without
 * references is free, or cached when its tokens are known: then it can be found again by them until its memory is
 * needed (prefix.h). A write into a block that has more than one reference, or is known by its tokens, first copies it
 * (copy-on-write): append names the copies that must be enqueued on the device (pagedcl_actions_enqueue, or
 * pagedcl_cache_copy_blocks of the group's cache) before anything is written.
 *
 * This header: the pool, sequences, their tables. step.h: steps that commit or roll back, fences, room and victims.
 * prefix.h: the prefix cache. swap.h: host memory and compaction. blocks_report.h: events, text for people. What is
 * named is done on the device by actions.h.
 *
 * Threads: one manager must not be used from two threads at once; different managers are independent.
 * Errors: every function either does all of what it says or changes nothing.
 * Law: free + cached + used = total after every call, each block being in one of the three classes.
 */
#ifndef PAGEDCL_BLOCKS_H
#define PAGEDCL_BLOCKS_H

#include <pagedcl/init.h>
#include <pagedcl/status.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pagedcl_blocks pagedcl_blocks;

/* Names a sequence of one manager. Never reused: the handle of a freed sequence is refused, not mistaken. 0 is none. */
typedef uint64_t pagedcl_seq;

typedef struct pagedcl_blocks_desc {
    size_t struct_size; /* sizeof(pagedcl_blocks_desc), set by PAGEDCL_BLOCKS_DESC_INIT */
    int32_t num_blocks; /* blocks of the pool, at least 1 */
    int32_t block_size; /* tokens a block holds, at least 1 */
    int32_t num_groups; /* cache groups; 0 means 1 */

    /* By group, num_groups entries each, read by create alone; NULL: all 0. Of two block sizes in use, the larger one
       is a multiple of the smaller one, 256 times it at most. */
    const int32_t *group_block_sizes; /* tokens a block of the group holds; 0: block_size */
    const int64_t *group_windows;     /* keys that a query sees, itself included (attn.h's left + 1); 0: all */

    int32_t prefix_cache;      /* not 0: blocks are found by their tokens, see prefix.h; takes memory for those */
    int32_t wipe;              /* not 0: a freed block waits until it was wiped, see step.h */
    int32_t watermark;         /* blocks that pagedcl_blocks_fits leaves alone */
    int32_t num_host_blocks;   /* blocks of the host tier, see swap.h */
    uint64_t prefix_hash_seed; /* a secret one makes collisions unpredictable: they cost time, never a wrong hit */
} pagedcl_blocks_desc;
#define PAGEDCL_BLOCKS_DESC_INIT PAGEDCL_INIT(pagedcl_blocks_desc)

/* A block whose content must be copied on the device, in all layers of the group. */
typedef struct pagedcl_block_copy {
    int32_t group;
    int32_t src; /* physical block */
    int32_t dst; /* physical block, not src */
} pagedcl_block_copy;

typedef struct pagedcl_blocks_stats {
    size_t struct_size;    /* sizeof(pagedcl_blocks_stats), set by PAGEDCL_BLOCKS_STATS_INIT */
    int64_t total;         /* blocks of the pool */
    int64_t free;          /* blocks without references or known tokens; free + cached + used = total */
    int64_t used;          /* blocks with one reference or more, each counted once */
    int64_t shared;        /* of these, blocks with two references or more */
    int64_t references;    /* of all tables, and of the open step: references - used = blocks saved by sharing */
    int64_t peak_used;     /* the largest `used` so far */
    int64_t num_seqs;      /* sequences that live */
    int64_t num_tokens;    /* sum of their lengths */
    int64_t copies;        /* copy-on-write copies named so far */
    int64_t out_of_blocks; /* appends and swaps refused with PAGEDCL_OUT_OF_BLOCKS so far */

    int64_t cached;    /* blocks without references that can be found by their tokens */
    int64_t available; /* blocks that can be taken now: of the free ones those that wait for nothing, of the cached ones
                          those that may be evicted */
    int64_t waiting;   /* free and cached blocks whose fence is not reached */
    int64_t unwiped;   /* free blocks that must be wiped first */

    int64_t lookups;       /* prompts looked up so far */
    int64_t hits;          /* of these, prompts of which something was found */
    int64_t lookup_tokens; /* tokens of these prompts */
    int64_t hit_tokens;    /* of these, tokens found */
    int64_t stored;        /* blocks that became known by their tokens so far */
    int64_t evicted;       /* cached blocks that were taken for their memory so far, or went with their prefix */

    int64_t host_total;  /* blocks of the host tier; host_free + host_used = host_total */
    int64_t host_free;   /* those that wait for a fence included */
    int64_t host_used;   /* blocks that hold swapped-out sequences */
    int64_t num_swapped; /* sequences that are swapped out */
    int64_t swapped_out; /* blocks swapped out so far */
    int64_t swapped_in;  /* blocks swapped in so far */
    int64_t compacted;   /* blocks moved by compaction so far */

    int64_t host_unwiped; /* free blocks of the host tier that must be wiped first */
} pagedcl_blocks_stats;
#define PAGEDCL_BLOCKS_STATS_INIT PAGEDCL_INIT(pagedcl_blocks_stats)

/*
 * Makes a manager with all blocks free. Host memory: 40 bytes a block, and the tables; with prefix_cache some 70 bytes
 * and a block's tokens more for each block.
 * Errors: INVALID_ARGUMENT, SIZE_OVERFLOW, OUT_OF_MEMORY.
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_create(const pagedcl_blocks_desc *desc, pagedcl_blocks **blocks);

/* Frees the manager and all its sequences. NULL is allowed. */
PAGEDCL_API void pagedcl_blocks_destroy(pagedcl_blocks *blocks);

/* Makes an empty sequence (length 0, no block). */
PAGEDCL_API pagedcl_status pagedcl_blocks_seq_create(pagedcl_blocks *blocks, pagedcl_seq *seq);

/*
 * Makes a sequence of the first num_tokens tokens of `parent` by sharing its blocks, in every group; nothing is
 * copied now. A block that is shared in part is copied by the first append, of either sequence, that writes into it.
 * num_tokens from 0 to the parent's length.
 * Errors: INVALID_HANDLE, INVALID_LENGTH (also: a query there would see what a window group gave back), NOT_READY (the
 * parent is swapped out, or in the open step), OUT_OF_MEMORY.
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_share(pagedcl_blocks *blocks, pagedcl_seq parent, int64_t num_tokens,
                                                pagedcl_seq *seq);

/* Shares the whole of `parent`: pagedcl_blocks_share at the parent's length. */
PAGEDCL_API pagedcl_status pagedcl_blocks_fork(pagedcl_blocks *blocks, pagedcl_seq parent, pagedcl_seq *seq);

/*
 * Makes room for num_tokens more tokens (0 or more) and lengthens the sequence by them, in every group: takes blocks
 * for those that do not fit, and replaces a last block that is shared and would be written by a copy. At most one
 * copy per group. copies: room for num_groups entries; *num_copies says how many there are, in ascending group order.
 * The caller enqueues the copies before the writes. Both may be NULL only while no block is shared.
 * A window group gives back the blocks that the queries of the new tokens cannot see: at once, or on commit when a step
 * is open (step.h).
 * Errors: INVALID_HANDLE, INVALID_ARGUMENT (num_tokens < 0, or a copy is needed and copies is NULL), SIZE_OVERFLOW,
 * OUT_OF_BLOCKS (all or nothing), NEVER_FITS (the sequence would be larger than the pool), NOT_READY (swapped out),
 * OUT_OF_MEMORY.
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_append(pagedcl_blocks *blocks, pagedcl_seq seq, int64_t num_tokens,
                                                 pagedcl_block_copy *copies, size_t *num_copies);

/*
 * How many free blocks an append of num_tokens would take, copies included.
 * Errors: as append's, save OUT_OF_BLOCKS and NEVER_FITS.
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_needed(const pagedcl_blocks *blocks, pagedcl_seq seq, int64_t num_tokens,
                                                 int64_t *num_blocks);

/*
 * Shortens the sequence to num_tokens (0 to its length) and releases the blocks behind them. The rest of the last
 * block keeps what it holds; it is unused now.
 * Errors: INVALID_HANDLE, INVALID_LENGTH (also: a query there would see what a window group gave back), NOT_READY
 * (swapped out, or in the open step).
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_truncate(pagedcl_blocks *blocks, pagedcl_seq seq, int64_t num_tokens);

/*
 * Ends the sequence at any moment and releases its blocks; its handle is invalid from then on. Blocks that the open step
 * uses are released with the step, blocks under a fence are not taken again before it is reached.
 * Errors: INVALID_HANDLE.
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_seq_free(pagedcl_blocks *blocks, pagedcl_seq seq);

/* The number of tokens of the sequence. Errors: INVALID_HANDLE. */
PAGEDCL_API pagedcl_status pagedcl_blocks_seq_length(const pagedcl_blocks *blocks, pagedcl_seq seq, int64_t *length);

/*
 * Writes the sequence's block table of `group` into row[0 .. capacity), -1 behind its last block and left of a window.
 * *num_blocks (NULL allowed): ceil(length / block_size), the entries in use.
 * Errors: INVALID_HANDLE, INVALID_ARGUMENT (group), CAPACITY (more blocks than `capacity`), NOT_READY (swapped out).
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_table(const pagedcl_blocks *blocks, pagedcl_seq seq, int32_t group,
                                                int32_t *row, int64_t capacity, int64_t *num_blocks);

/*
 * The slots of positions first .. first + num_tokens - 1 in `group`, for pagedcl_cache_write; -1 left of a window.
 * Errors: INVALID_HANDLE, INVALID_ARGUMENT (group), INVALID_LENGTH (a position outside the sequence), NOT_READY.
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_slots(const pagedcl_blocks *blocks, pagedcl_seq seq, int32_t group,
                                                int64_t first, int64_t num_tokens, int64_t *slots);

/*
 * Tags tell a block's owners apart: its tag changes whenever it is taken. This writes the tags of the entries that
 * pagedcl_blocks_table writes, 0 for -1, into tags[0 .. capacity). Errors: as pagedcl_blocks_table.
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_tags(const pagedcl_blocks *blocks, pagedcl_seq seq, int32_t group,
                                               uint32_t *tags, int64_t capacity);

/*
 * Checks a copy of a table that the caller kept, by the tags it kept with it: every entry must be -1 or still in use
 * under its tag. Errors: INVALID_BLOCK, naming the entry, the block, and the sequence that has it now.
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_check_tags(const pagedcl_blocks *blocks, const int32_t *row,
                                                     const uint32_t *tags, int64_t num_entries);

/* The refcount of a physical block, 0 when it is free or cached. Errors: INVALID_BLOCK. */
PAGEDCL_API pagedcl_status pagedcl_blocks_refcount(const pagedcl_blocks *blocks, int32_t block, int32_t *refcount);

/* Fills stats, up to stats->struct_size. */
PAGEDCL_API pagedcl_status pagedcl_blocks_get_stats(const pagedcl_blocks *blocks, pagedcl_blocks_stats *stats);

/*
 * Checks every invariant (refcounts against tables, lists against classes, the prefix tree, the counters) in time
 * proportional to the pool and the tables. PAGEDCL_SUCCESS, or INVALID_ARGUMENT with the broken one in
 * pagedcl_last_error(): a bug of the library. For tests and debug builds.
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_check(const pagedcl_blocks *blocks);

#ifdef __cplusplus
}
#endif
#endif
