/* SPDX-License-Identifier: Apache-2.0 */
/* What the block manager tells those who watch it: events, and text for monitoring and for people. */
#ifndef PAGEDCL_BLOCKS_REPORT_H
#define PAGEDCL_BLOCKS_REPORT_H

#include <pagedcl/blocks.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pagedcl_block_event_type {
    PAGEDCL_BLOCK_STORED = 1,  /* the block can be found by its tokens from now on */
    PAGEDCL_BLOCK_REMOVED,     /* it cannot any more, since what leads to it was evicted; a sequence goes on using it */
    PAGEDCL_BLOCK_EVICTED,     /* it cannot any more and is free */
    PAGEDCL_BLOCK_SWAPPED_OUT, /* to host_block */
    PAGEDCL_BLOCK_SWAPPED_IN,  /* from host_block */
} pagedcl_block_event_type;

/* Fields that do not belong to the type are 0, host_block -1. The hashes are the same in every manager of one seed. */
typedef struct pagedcl_block_event {
    pagedcl_block_event_type type;
    int32_t group;
    int32_t block;
    int32_t host_block;
    pagedcl_seq seq;       /* stored, swapped: whose block it is */
    uint64_t hash;         /* stored, removed, evicted: of the tokens and all before them */
    uint64_t parent_hash;  /* of all before them */
    const int32_t *tokens; /* the tokens by which it is found, until the call returns */
    int64_t num_tokens;
} pagedcl_block_event;

/* Called within the call that causes the event; must not call the manager. */
typedef void (*pagedcl_block_listener)(void *user, const pagedcl_block_event *event);

/* One listener a manager; NULL: none. */
PAGEDCL_API pagedcl_status pagedcl_blocks_set_listener(pagedcl_blocks *blocks, pagedcl_block_listener listener,
                                                       void *user);

/*
 * Texts go into text[0 .. capacity), ending in a 0 byte. *length is the bytes that the whole text has without it, also
 * when BUFFER_TOO_SMALL is returned, and then nothing is written; text may be NULL with capacity 0.
 */

/* The counters in the Prometheus exposition format, each named pagedcl_blocks_... */
PAGEDCL_API pagedcl_status pagedcl_blocks_prometheus(const pagedcl_blocks *blocks, char *text, size_t capacity,
                                                     size_t *length);

/* Who owns what: a line for each sequence with its state and tables, a line for each known block. */
PAGEDCL_API pagedcl_status pagedcl_blocks_dump(const pagedcl_blocks *blocks, char *text, size_t capacity,
                                               size_t *length);

/*
 * A picture of the pool, `columns` blocks a line (0: 64), a character each: `.` free, `~` free and waiting for a fence
 * or a wipe, `c` cached, `C` cached and pinned, `1` to `9` so many references, `+` more.
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_map(const pagedcl_blocks *blocks, int32_t columns, char *text,
                                              size_t capacity, size_t *length);

#ifdef __cplusplus
}
#endif
#endif
