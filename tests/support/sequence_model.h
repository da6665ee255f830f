/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plain model of sequences, and beside the manager a simulated pool: tokens are stored where the slots say, blocks are
 * copied when the manager names a copy. After every call each sequence must read back exactly its own tokens through its
 * tables. Its functions do the same to the manager and to the model, and end the test when they disagree.
 */
#ifndef SEQUENCE_MODEL_H
#define SEQUENCE_MODEL_H

#include <pagedcl/blocks.h>

#include <criterion/criterion.h>

#include <stdbool.h>

/* A Criterion assertion costs microseconds even when it holds: too much for millions. */
#define CHECK(condition, ...)            \
    do {                                 \
        if (!(condition))                \
            cr_assert_fail(__VA_ARGS__); \
    } while (0)

#define OK(call) CHECK((call) == PAGEDCL_SUCCESS, "%s: %s", #call, pagedcl_last_error())

enum { MAX_GROUPS = 3, MAX_SEQS = 8 };

typedef struct model_seq {
    pagedcl_seq handle; /* 0: none */
    int64_t length;
    int64_t *tokens;
} model_seq;

typedef struct model {
    char name[96]; /* for messages */
    pagedcl_blocks *blocks;
    int32_t num_blocks, block_size, num_groups;
    int64_t *pool[MAX_GROUPS]; /* [num_blocks, block_size]: the token in every slot */
    int64_t next_token;        /* every token is a number of its own */
    model_seq seqs[MAX_SEQS];
    int32_t *references; /* by block, counted from the tables */
    int32_t *row;        /* room for a table */
    int64_t *slots;      /* room for the slots of a sequence */
} model;

void model_init(model *m, int32_t num_blocks, int32_t block_size, int32_t num_groups);
void model_destroy(model *m);

/* Everything that must hold after every call. */
void model_check(model *m);

/* Sequences are numbers below MAX_SEQS: one is made, empty; or of the first tokens of another one. */
void model_create(model *m, int i);
void model_share(model *m, int parent, int64_t num_tokens, int child);
void model_free(model *m, int i);

/* Appends, copies what the manager names, stores new tokens. False when the pool is too small; it says so itself. */
bool model_append(model *m, int i, int64_t num_tokens);
void model_truncate(model *m, int i, int64_t num_tokens);

/* The free blocks that an append must take: the new ones, and a copy for each last block that others point at too. */
int64_t model_needed(model *m, int i, int64_t num_tokens, size_t *num_copies);

/* The physical block of logical block b of sequence i, in group 0. */
int32_t model_block(const model *m, int i, int64_t b);

pagedcl_blocks_stats model_stats(const model *m);

#endif
