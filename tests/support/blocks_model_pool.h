/* SPDX-License-Identifier: Apache-2.0 */
/* What the model of blocks_model.h knows: its sequences, its pool, what is still to happen, what is known. */
#ifndef BLOCKS_MODEL_POOL_H
#define BLOCKS_MODEL_POOL_H

#include "blocks_model.h"

#include <pagedcl/pagedcl.h>

#include <stdbool.h>

enum { MODEL_SEQS = 8, MODEL_TOKENS = 64, MODEL_BLOCKS = 24, MODEL_GROUPS = 2, MODEL_BLOCK_SIZE = 4, MODEL_SALTS = 3 };

typedef struct model_group {
    int32_t block_size;
    int64_t window;
} model_group;

typedef enum model_state { MODEL_NONE, MODEL_LIVE, MODEL_ENDING } model_state;

typedef struct model_seq {
    model_state state;
    pagedcl_seq handle;
    int64_t length, recorded;
    int64_t dropped_at;   /* what a query at this position does not see was given back */
    int64_t saved_length; /* before the step */
    bool in_step, swapped;
    uint64_t fence, arrival; /* arrival: of the transfer that brings it back */
    int salt;
    int32_t tokens[MODEL_TOKENS];
    uint64_t values[MODEL_TOKENS]; /* what the slot of each position must hold */
    int32_t rows[MODEL_GROUPS][MODEL_TOKENS];
} model_seq;

/* What a block is known by. */
typedef struct model_known {
    bool known;
    int32_t group;
    int64_t index, unit;
    uint64_t value, parent; /* at the end of the unit, and before it */
    int32_t tokens[MODEL_BLOCK_SIZE];
} model_known;

typedef struct model_deferred {
    enum { MODEL_READ, MODEL_DOWNLOAD, MODEL_UPLOAD } kind;
    uint64_t fence;
    int32_t group;
    int64_t slot; /* of the pool */
    int32_t host; /* block of the host tier */
    uint64_t value;
} model_deferred;

typedef struct model {
    const uint8_t *data;
    size_t size, position;
    blocks_model_allow allow;
    int64_t budget; /* allocations that the next call may make */
    blocks_model_counts *counts;
    int64_t evictions_before;

    pagedcl_blocks *blocks;
    pagedcl_blocks_stats before;
    int32_t num_blocks, num_groups, unit;
    model_group group[MODEL_GROUPS];
    bool prefix, wipe, windowed, sizes_differ;

    model_seq seqs[MODEL_SEQS];
    uint64_t pool[MODEL_GROUPS][MODEL_BLOCKS * MODEL_BLOCK_SIZE];
    uint64_t host[MODEL_GROUPS][MODEL_BLOCKS * MODEL_BLOCK_SIZE];
    model_known known[MODEL_BLOCKS];

    bool step_open;
    /* Sources of the open step's copies, and the slots that are copied: so many as `host` says. */
    int32_t held[MODEL_SEQS * MODEL_TOKENS];
    model_deferred held_slots[MODEL_SEQS * MODEL_TOKENS];
    int num_held;
    uint64_t last_fence, reached;
    model_deferred *deferred;
    size_t num_deferred, deferred_capacity;
} model;

__attribute__((format(printf, 4, 5), noreturn)) void model_fail(const model *m, const char *file, int line,
                                                                const char *format, ...);

#define CHECK(condition, ...)                               \
    do {                                                    \
        if (!(condition))                                   \
            model_fail(m, __FILE__, __LINE__, __VA_ARGS__); \
    } while (0)

#define MUST(call) CHECK((call) == PAGEDCL_SUCCESS, "%s failed", #call)

/* blocks_model_pool.c */

/* What a slot before the first position would hold. */
uint64_t model_salt(int salt);

/* Sets values[p] from the position before and tokens[p]. */
void model_value_at(model_seq *s, int64_t p);

int64_t model_blocks_for(const model_group *group, int64_t num_tokens);
int64_t model_first_seen(const model_group *group, int64_t position);

/* The blocks that a query at `position` does not see are given back. */
void model_drop(model *m, model_seq *s, int64_t position);

/* Whether a query behind num_tokens tokens would see what was given back. */
bool model_window_refuses(const model *m, const model_seq *s, int64_t num_tokens);

/* Whether a block of the group is known as the index-th one of a prefix that ends in this value. */
bool model_knows(const model *m, int32_t group, int64_t index, uint64_t value);

void model_defer(model *m, model_deferred deferred);
void model_run_deferred(model *m, uint64_t fence);

/* blocks_model_check.c */

pagedcl_blocks_stats model_stats(const model *m);

/* Whether the transfer that brings the sequence back is still to come. */
bool model_arrives(const model *m, const model_seq *s);

/* Reads the tables of every sequence again, and everything through them. */
void model_check_all(model *m);

/* Notes what becomes known and what is not known any more; user is the model. */
void model_listen(void *user, const pagedcl_block_event *event);

/* A block that was just taken is clean where that is promised. */
void model_check_taken(const model *m, int32_t group, int32_t block);
void model_check_taken_host(const model *m, int32_t group, int32_t host_block);

/* What is cached of the first num_tokens tokens, by brute force over what events told. */
int64_t model_expected_hit(const model *m, const model_seq *s, int64_t num_tokens, int32_t min_partial);

#endif
