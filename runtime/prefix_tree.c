/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks.h"

#include "status.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

pagedcl_status pcl_prefix_create(pagedcl_blocks *blocks, uint64_t seed) {
    pcl_prefix_tree *tree = &blocks->prefix;
    size_t num_nodes = (size_t)blocks->stats.total + 1, num_slots = 16;
    while (num_slots < 2 * num_nodes)
        num_slots *= 2;
    tree->nodes = calloc(num_nodes, sizeof *tree->nodes);
    tree->slots = calloc(num_slots, sizeof *tree->slots);
    tree->runs = calloc((size_t)blocks->num_groups, sizeof *tree->runs);
    size_t tokens, entries;
    if (!__builtin_mul_overflow(num_nodes, (size_t)blocks->unit, &tokens))
        tree->tokens = calloc(tokens, sizeof *tree->tokens);
    if (!__builtin_mul_overflow(num_nodes, (size_t)blocks->width, &entries))
        tree->blocks = calloc(entries, sizeof *tree->blocks);
    if (tree->nodes == NULL || tree->slots == NULL || tree->runs == NULL || tree->tokens == NULL ||
        tree->blocks == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY,
                        "no host memory for a prefix cache of %" PRId64 " blocks of %" PRId32 " tokens",
                        blocks->stats.total, blocks->unit);
    tree->slot_mask = num_slots - 1;
    tree->hash_mask = UINT64_MAX;
    tree->nodes[PCL_ROOT] = (pcl_node){.hash = seed, .priority = PAGEDCL_PRIORITY_PINNED};
    for (size_t node = 1; node < num_nodes; node++)
        tree->nodes[node].next = node + 1 < num_nodes ? (int32_t)node + 1 : 0;
    tree->unused = 1;
    return PAGEDCL_SUCCESS;
}

void pcl_prefix_destroy(pagedcl_blocks *blocks) {
    pcl_prefix_tree *tree = &blocks->prefix;
    for (int64_t node = 0; tree->nodes != NULL && node <= blocks->stats.total; node++)
        pcl_keys_release(tree->nodes[node].keys);
    free(tree->nodes);
    free(tree->tokens);
    free(tree->blocks);
    free(tree->slots);
    free(tree->runs);
    free(tree->keys.keys);
}

static int32_t *tokens_of(const pagedcl_blocks *blocks, int32_t node) {
    return blocks->prefix.tokens + (int64_t)node * blocks->unit;
}

int32_t *pcl_node_row(const pagedcl_blocks *blocks, int32_t node) {
    return blocks->prefix.blocks + (int64_t)node * blocks->width;
}

const int32_t *pcl_node_tokens(const pagedcl_blocks *blocks, int32_t node) {
    return tokens_of(blocks, node);
}

/* Multiply and fold, two tokens at a time. */
static uint64_t mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

uint64_t pcl_prefix_hash(const pagedcl_blocks *blocks, uint64_t parent, const int32_t *tokens, const pcl_keys *keys,
                         int32_t part) {
    uint64_t hash = mix(parent, part < 0 ? 0 : keys->parts[part].hash);
    int32_t i = 0;
    for (; i + 1 < blocks->unit; i += 2)
        hash = mix(hash, (uint64_t)(uint32_t)tokens[i] << 32 | (uint32_t)tokens[i + 1]);
    if (i < blocks->unit)
        hash = mix(hash, (uint32_t)tokens[i]);
    return mix(hash, UINT64_C(0xd6e8feb86659fd93)) & blocks->prefix.hash_mask;
}

int32_t pcl_prefix_child(const pagedcl_blocks *blocks, int32_t parent, uint64_t hash, const int32_t *tokens,
                         const pcl_keys *keys, int32_t part) {
    const pcl_prefix_tree *tree = &blocks->prefix;
    for (uint64_t slot = hash & tree->slot_mask; tree->slots[slot] != 0; slot = (slot + 1) & tree->slot_mask) {
        int32_t found = tree->slots[slot];
        const pcl_node *node = &tree->nodes[found];
        if (node->hash == hash && node->parent == parent &&
            memcmp(tokens_of(blocks, found), tokens, (size_t)blocks->unit * sizeof *tokens) == 0 &&
            pcl_keys_equal_parts(node->keys, node->part, keys, part))
            return found;
    }
    return 0;
}

static void tell(const pagedcl_blocks *blocks, pagedcl_block_event_type type, pagedcl_seq seq, int32_t node,
                 int32_t column, int32_t block) {
    if (blocks->listener == NULL)
        return;
    const pcl_node *n = &blocks->prefix.nodes[node];
    pagedcl_block_event event = {.type = type,
                                 .group = pcl_group_of_column(blocks, column),
                                 .block = block,
                                 .host_block = -1,
                                 .seq = seq,
                                 .hash = n->hash,
                                 .parent_hash = blocks->prefix.nodes[n->parent].hash,
                                 .tokens = tokens_of(blocks, node),
                                 .num_tokens = blocks->unit};
    blocks->listener(blocks->listener_user, &event);
}

int32_t pcl_group_of_column(const pagedcl_blocks *blocks, int32_t column) {
    int32_t group = 0;
    while (group + 1 < blocks->num_groups && blocks->groups[group + 1].column <= column)
        group++;
    return group;
}

void pcl_node_fill(pagedcl_blocks *blocks, int32_t node, const int32_t *row, pagedcl_seq seq) {
    pcl_node *n = &blocks->prefix.nodes[node];
    int32_t *own = pcl_node_row(blocks, node);
    for (int32_t column = 0; column < blocks->width; column++) {
        int32_t block = row[column];
        if (own[column] >= 0 || block < 0 || blocks->block[block].node != PCL_ROOT)
            continue;
        own[column] = block;
        blocks->block[block].node = node;
        n->num_blocks++;
        blocks->stats.stored++;
        tell(blocks, PAGEDCL_BLOCK_STORED, seq, node, column, block);
    }
}

/* Whether a new node could have the blocks of the row: all, save in groups with a window, and one at least. */
static bool can_fill(const pagedcl_blocks *blocks, const int32_t *row) {
    bool some = false;
    for (int32_t g = 0; g < blocks->num_groups; g++) {
        const pcl_group *group = &blocks->groups[g];
        for (int32_t column = group->column; column < group->column + group->per_unit; column++) {
            bool fills = row[column] >= 0 && blocks->block[row[column]].node == PCL_ROOT;
            if (!fills && group->window == 0)
                return false;
            some |= fills;
        }
    }
    return some;
}

int32_t pcl_node_add(pagedcl_blocks *blocks, int32_t parent, uint64_t hash, const int32_t *tokens, pcl_keys *keys,
                     int32_t part, const int32_t *row, pagedcl_seq seq) {
    pcl_prefix_tree *tree = &blocks->prefix;
    if (!can_fill(blocks, row))
        return 0;
    /* There is one: each node in use has a block, and the row has a block that none has. */
    int32_t node = tree->unused;
    pcl_node *n = &tree->nodes[node];
    tree->unused = n->next;
    int32_t priority = tree->nodes[parent].priority;
    *n = (pcl_node){.hash = hash,
                    .parent = parent,
                    .next = tree->nodes[parent].first_child,
                    .generation = n->generation,
                    .priority = priority < PAGEDCL_PRIORITY_NORMAL ? priority : PAGEDCL_PRIORITY_NORMAL,
                    .part = part,
                    .keys = part < 0 ? NULL : pcl_keys_retain(keys)};
    if (n->next != 0)
        tree->nodes[n->next].prev = node;
    tree->nodes[parent].first_child = node;
    memcpy(tokens_of(blocks, node), tokens, (size_t)blocks->unit * sizeof *tokens);
    for (int32_t column = 0; column < blocks->width; column++)
        pcl_node_row(blocks, node)[column] = -1;
    uint64_t slot = hash & tree->slot_mask;
    while (tree->slots[slot] != 0)
        slot = (slot + 1) & tree->slot_mask;
    tree->slots[slot] = node;
    pcl_node_fill(blocks, node, row, seq);
    return node;
}

/* Takes a node out of the hash table, and moves those behind it up so that no probe ends early. */
static void erase_slot(pcl_prefix_tree *tree, int32_t node) {
    uint64_t mask = tree->slot_mask, hole = tree->nodes[node].hash & mask;
    while (tree->slots[hole] != node)
        hole = (hole + 1) & mask;
    for (uint64_t slot = (hole + 1) & mask; tree->slots[slot] != 0; slot = (slot + 1) & mask) {
        uint64_t home = tree->nodes[tree->slots[slot]].hash & mask;
        if (((slot - home) & mask) < ((slot - hole) & mask))
            continue; /* its home is behind the hole */
        tree->slots[hole] = tree->slots[slot];
        hole = slot;
    }
    tree->slots[hole] = 0;
}

static void lose_block(pagedcl_blocks *blocks, int32_t node, int32_t column) {
    int32_t *entry = pcl_node_row(blocks, node) + column;
    bool idle = blocks->block[*entry].refcount == 0;
    blocks->stats.evicted += idle;
    tell(blocks, idle ? PAGEDCL_BLOCK_EVICTED : PAGEDCL_BLOCK_REMOVED, 0, node, column, *entry);
    pcl_block_forget(blocks, *entry);
    *entry = -1;
    blocks->prefix.nodes[node].num_blocks--;
}

/* Removes a node without children. */
static void remove_leaf(pagedcl_blocks *blocks, int32_t node) {
    pcl_prefix_tree *tree = &blocks->prefix;
    pcl_node *n = &tree->nodes[node];
    for (int32_t column = 0; column < blocks->width; column++)
        if (pcl_node_row(blocks, node)[column] >= 0)
            lose_block(blocks, node, column);
    erase_slot(tree, node);
    if (n->prev != 0)
        tree->nodes[n->prev].next = n->next;
    else
        tree->nodes[n->parent].first_child = n->next;
    if (n->next != 0)
        tree->nodes[n->next].prev = n->prev;
    pcl_keys_release(n->keys);
    *n = (pcl_node){.generation = n->generation + 1, .next = tree->unused};
    tree->unused = node;
}

static void remove_subtree(pagedcl_blocks *blocks, int32_t node) {
    const pcl_node *nodes = blocks->prefix.nodes;
    int32_t at = node, removed;
    do {
        while (nodes[at].first_child != 0)
            at = nodes[at].first_child;
        removed = at;
        at = nodes[at].parent;
        remove_leaf(blocks, removed);
    } while (removed != node);
}

int64_t pcl_prefix_evictable(const pagedcl_blocks *blocks) {
    int64_t count = 0;
    for (int list = PCL_IDLE; list < PCL_PINNED; list++)
        count += blocks->lists[list].count;
    return count;
}

void pcl_prefix_evict_next(pagedcl_blocks *blocks) {
    int list = PCL_IDLE;
    while (blocks->lists[list].count == 0)
        list++;
    int32_t block = blocks->lists[list].head;
    int32_t node = blocks->block[block].node, column = 0;
    while (pcl_node_row(blocks, node)[column] != block)
        column++;
    /* Left of a window nothing is needed to reach what is behind. */
    if (blocks->groups[pcl_group_of_column(blocks, column)].window > 0 && blocks->prefix.nodes[node].num_blocks > 1)
        lose_block(blocks, node, column);
    else
        remove_subtree(blocks, node);
}

static pagedcl_status broken(int32_t node, const char *what) {
    return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "broken: node %" PRId32 " of the prefix tree %s", node, what);
}

static bool is_node(const pagedcl_blocks *blocks, int32_t node) {
    return node >= 0 && node <= blocks->stats.total;
}

static pagedcl_status check_row(const pagedcl_blocks *blocks, int32_t node, int64_t *num_blocks) {
    int32_t count = 0;
    for (int32_t column = 0; column < blocks->width; column++) {
        int32_t block = pcl_node_row(blocks, node)[column];
        if (block == -1 && blocks->groups[pcl_group_of_column(blocks, column)].window > 0)
            continue;
        if (block < 0 || block >= blocks->stats.total || blocks->block[block].node != node)
            return broken(node, "has a block that does not know it");
        count++;
    }
    if (count == 0 || count != blocks->prefix.nodes[node].num_blocks)
        return broken(node, "counts its blocks wrongly");
    *num_blocks += count;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pcl_prefix_check(const pagedcl_blocks *blocks) {
    const pcl_prefix_tree *tree = &blocks->prefix;
    int64_t num_nodes = 0, num_blocks = 0, num_slots = 0, num_unused = 0, known = 0;
    for (int32_t block = 0; block < blocks->stats.total; block++)
        known += blocks->block[block].node != PCL_ROOT;
    if (tree->nodes == NULL)
        return known == 0 ? PAGEDCL_SUCCESS : broken(0, "does not exist, but blocks are known");

    /* Every node that can be reached from the root, children before siblings. */
    for (int32_t node = tree->nodes[PCL_ROOT].first_child; node != 0;) {
        if (!is_node(blocks, node))
            return broken(node, "does not exist");
        const pcl_node *n = &tree->nodes[node];
        if (!is_node(blocks, n->parent) || !is_node(blocks, n->first_child) || !is_node(blocks, n->next))
            return broken(node, "leads to nodes that do not exist");
        int32_t part = n->keys == NULL ? -1 : n->part;
        if (++num_nodes > blocks->stats.total)
            return broken(node, "is reached twice");
        if (n->hash != pcl_prefix_hash(blocks, tree->nodes[n->parent].hash, tokens_of(blocks, node), n->keys, part) ||
            pcl_prefix_child(blocks, n->parent, n->hash, tokens_of(blocks, node), n->keys, part) != node)
            return broken(node, "is not found by its tokens");
        if (n->priority > tree->nodes[n->parent].priority)
            return broken(node, "has a higher priority than its parent");
        PCL_TRY(check_row(blocks, node, &num_blocks));
        if (n->first_child != 0 &&
            (tree->nodes[n->first_child].parent != node || tree->nodes[n->first_child].prev != 0))
            return broken(n->first_child, "does not know its parent");
        if (n->next != 0 && (tree->nodes[n->next].prev != node || tree->nodes[n->next].parent != n->parent))
            return broken(n->next, "does not know its sibling");
        int32_t next = n->first_child;
        while (next == 0 && node != PCL_ROOT) {
            next = tree->nodes[node].next;
            node = tree->nodes[node].parent;
        }
        node = next;
    }
    for (uint64_t slot = 0; slot <= tree->slot_mask; slot++)
        num_slots += tree->slots[slot] != 0;
    for (int32_t node = tree->unused; is_node(blocks, node) && node != 0 && num_unused <= blocks->stats.total;
         node = tree->nodes[node].next)
        num_unused++;
    if (num_slots != num_nodes || num_unused != blocks->stats.total - num_nodes)
        return broken(0, "has nodes that cannot be reached");
    if (num_blocks != known)
        return broken(0, "does not have all blocks that are known");
    return PAGEDCL_SUCCESS;
}
