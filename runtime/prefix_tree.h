/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tree of known blocks: a node for each unit of tokens behind its parent's, with the blocks that hold them. Nodes
 * are found by an open-addressing hash table; every node holds a block at least, so there are never more than blocks.
 */
#ifndef PCL_PREFIX_TREE_H
#define PCL_PREFIX_TREE_H

#include "prefix_keys.h"

#include <pagedcl/blocks.h>

/* Node 0 is the root: no tokens. */
enum { PCL_ROOT = 0 };

typedef struct pcl_node {
    uint64_t hash; /* of the parent's hash, the keys and the tokens */
    int32_t parent;
    int32_t first_child; /* the last one recorded; 0: none */
    int32_t prev, next;  /* siblings; 0: none. While unused, next is the next unused node */
    uint32_t generation; /* counts the node's lives */
    int32_t num_blocks;  /* entries that are not -1 */
    int32_t priority;
    int32_t part;   /* of keys */
    pcl_keys *keys; /* NULL: no extra keys in this unit */
} pcl_node;

/* How far the tree knows a sequence. */
typedef struct pcl_chain {
    int64_t recorded; /* tokens whose ids were told */
    int32_t node;     /* of the last whole unit of these */
    uint32_t generation;
    int32_t *tail;  /* the recorded tokens behind it; memory for a unit, which stays with the entry */
    pcl_keys *keys; /* NULL: none */
} pcl_chain;

typedef struct pcl_prefix_tree {
    pcl_node *nodes; /* NULL: the cache is off */
    int32_t *tokens; /* [nodes, unit] */
    int32_t *blocks; /* [nodes, width]; -1: evicted, or left of a window */
    int32_t *slots;  /* of the hash table: a node, 0: empty */
    int64_t *runs;   /* by group, while a prompt is looked up: where the blocks begin that are there without a gap */
    uint64_t slot_mask;
    uint64_t hash_mask; /* all ones; a test makes all hashes equal by 0 */
    int32_t unused;     /* the first unused node */
    pcl_keys_buffer keys;
} pcl_prefix_tree;

/* prefix_tree.c */

pagedcl_status pcl_prefix_create(pagedcl_blocks *blocks, uint64_t seed);
void pcl_prefix_destroy(pagedcl_blocks *blocks);

int32_t *pcl_node_row(const pagedcl_blocks *blocks, int32_t node);
const int32_t *pcl_node_tokens(const pagedcl_blocks *blocks, int32_t node);

/* The hash of a unit of tokens behind a parent's hash. part -1: no keys. */
uint64_t pcl_prefix_hash(const pagedcl_blocks *blocks, uint64_t parent, const int32_t *tokens, const pcl_keys *keys,
                         int32_t part);

/* The child of `parent` with these tokens and keys, whose hash is `hash`; 0: none. */
int32_t pcl_prefix_child(const pagedcl_blocks *blocks, int32_t parent, uint64_t hash, const int32_t *tokens,
                         const pcl_keys *keys, int32_t part);

/* Adds such a child, which must not be there yet, with the blocks of `row`, a row of seq's table. 0 when it must not
   be: a block is known already, or none is left. */
int32_t pcl_node_add(pagedcl_blocks *blocks, int32_t parent, uint64_t hash, const int32_t *tokens, pcl_keys *keys,
                     int32_t part, const int32_t *row, pagedcl_seq seq);

/* Gives the node the blocks of the row that it lacks. */
void pcl_node_fill(pagedcl_blocks *blocks, int32_t node, const int32_t *row, pagedcl_seq seq);

/* Takes the next block to evict out of the tree, and what is behind it. One must be evictable. */
void pcl_prefix_evict_next(pagedcl_blocks *blocks);

/* Blocks that pcl_prefix_evict_next can get at. */
int64_t pcl_prefix_evictable(const pagedcl_blocks *blocks);

/* Checks the tree: every node reachable and found by its hash, its blocks pointing back at it. */
pagedcl_status pcl_prefix_check(const pagedcl_blocks *blocks);

/* The group of the entry of a row. */
int32_t pcl_group_of_column(const pagedcl_blocks *blocks, int32_t column);

/* prefix.c */

/* Makes sure that the chain has a tail. */
pagedcl_status pcl_chain_reserve(const pagedcl_blocks *blocks, pcl_chain *chain);

/* An empty chain; it keeps the memory of its tail. */
void pcl_chain_reset(pcl_chain *chain);

/* `to`, which is empty, becomes what `from` knows of the first num_tokens tokens. */
void pcl_chain_inherit(const pagedcl_blocks *blocks, pcl_chain *to, const pcl_chain *from, int64_t num_tokens);

/* Takes back what was recorded behind num_tokens tokens. */
void pcl_chain_shorten(const pagedcl_blocks *blocks, pcl_chain *chain, int64_t num_tokens);

/* Whether the tree still has all that was recorded; then pcl_chain_tokens writes it into tokens[0 .. recorded). */
bool pcl_chain_is_known(const pagedcl_blocks *blocks, const pcl_chain *chain);
void pcl_chain_tokens(const pagedcl_blocks *blocks, const pcl_chain *chain, int32_t *tokens);

#endif
