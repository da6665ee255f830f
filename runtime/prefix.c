/* SPDX-License-Identifier: Apache-2.0 */
/* The prefix cache: prompts are looked up in the tree of known blocks, sequences are recorded into it. */
#include "blocks.h"

#include "status.h"
#include "struct_size.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Of the blocks that continue a prefix, how many are compared with the rest of a prompt. */
enum { MAX_PARTIAL_CANDIDATES = 32 };

/* A chain's node when the tree lost it: nothing more of the sequence is recorded. */
enum { LOST = -1 };

static bool is_on(const pagedcl_blocks *blocks) {
    return blocks->prefix.nodes != NULL;
}

pagedcl_status pcl_chain_reserve(const pagedcl_blocks *blocks, pcl_chain *chain) {
    if (chain->tail != NULL || !is_on(blocks))
        return PAGEDCL_SUCCESS;
    chain->tail = calloc((size_t)blocks->unit, sizeof *chain->tail);
    if (chain->tail == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no host memory for the %" PRId32 " tokens of a block", blocks->unit);
    return PAGEDCL_SUCCESS;
}

void pcl_chain_reset(pcl_chain *chain) {
    *chain = (pcl_chain){.tail = chain->tail};
}

static bool lives(const pagedcl_blocks *blocks, const pcl_chain *chain) {
    return chain->node == PCL_ROOT ||
           (chain->node > 0 && blocks->prefix.nodes[chain->node].generation == chain->generation);
}

static void go_to(const pagedcl_blocks *blocks, pcl_chain *chain, int32_t node) {
    chain->node = node;
    chain->generation = blocks->prefix.nodes[node].generation;
}

void pcl_chain_inherit(const pagedcl_blocks *blocks, pcl_chain *to, const pcl_chain *from, int64_t num_tokens) {
    to->recorded = from->recorded;
    to->node = from->node;
    to->generation = from->generation;
    to->keys = pcl_keys_retain(from->keys);
    if (is_on(blocks))
        memcpy(to->tail, from->tail, (size_t)(from->recorded % blocks->unit) * sizeof *to->tail);
    pcl_chain_shorten(blocks, to, num_tokens);
}

void pcl_chain_shorten(const pagedcl_blocks *blocks, pcl_chain *chain, int64_t num_tokens) {
    if (num_tokens >= chain->recorded)
        return;
    int64_t depth = chain->recorded / blocks->unit, left = num_tokens / blocks->unit;
    chain->recorded = num_tokens;
    if (!is_on(blocks))
        return;
    if (num_tokens == 0) {
        go_to(blocks, chain, PCL_ROOT);
    } else if (left < depth && lives(blocks, chain)) {
        int32_t node = chain->node;
        for (; depth > left + 1; depth--)
            node = blocks->prefix.nodes[node].parent;
        /* What is left of the node's tokens is a tail again. */
        memcpy(chain->tail, pcl_node_tokens(blocks, node), (size_t)(num_tokens % blocks->unit) * sizeof *chain->tail);
        go_to(blocks, chain, blocks->prefix.nodes[node].parent);
    }
}

bool pcl_chain_is_known(const pagedcl_blocks *blocks, const pcl_chain *chain) {
    return is_on(blocks) && lives(blocks, chain);
}

void pcl_chain_tokens(const pagedcl_blocks *blocks, const pcl_chain *chain, int32_t *tokens) {
    int64_t unit = blocks->unit, row = chain->recorded / unit;
    memcpy(tokens + row * unit, chain->tail, (size_t)(chain->recorded % unit) * sizeof *tokens);
    for (int32_t node = chain->node; row-- > 0; node = blocks->prefix.nodes[node].parent)
        memcpy(tokens + row * unit, pcl_node_tokens(blocks, node), (size_t)unit * sizeof *tokens);
}

static uint64_t child_hash(const pagedcl_blocks *blocks, int32_t parent, const int32_t *tokens, const pcl_keys *keys,
                           int32_t part) {
    return pcl_prefix_hash(blocks, blocks->prefix.nodes[parent].hash, tokens, keys, part);
}

/* Lets the tree know the unit of these tokens. */
static void record_unit(pagedcl_blocks *blocks, pcl_sequence *s, const int32_t *tokens, pagedcl_seq seq) {
    pcl_chain *chain = pcl_sequence_chain(blocks, s);
    int64_t unit = chain->recorded / blocks->unit - 1;
    const int32_t *row = s->table + unit * blocks->width;
    if (!lives(blocks, chain)) {
        chain->node = LOST;
        return;
    }
    int32_t part = pcl_keys_part_of(chain->keys, unit);
    uint64_t hash = child_hash(blocks, chain->node, tokens, chain->keys, part);
    int32_t node = pcl_prefix_child(blocks, chain->node, hash, tokens, chain->keys, part);
    if (node != 0)
        pcl_node_fill(blocks, node, row, seq);
    else
        node = pcl_node_add(blocks, chain->node, hash, tokens, chain->keys, part, row, seq);
    if (node != 0)
        go_to(blocks, chain, node);
    else
        chain->node = LOST;
}

pagedcl_status pagedcl_prefix_record(pagedcl_blocks *blocks, pagedcl_seq seq, const int32_t *tokens,
                                     int64_t num_tokens) {
    pcl_sequence *s = NULL;
    PCL_TRY(pcl_sequence_find_settled(blocks, seq, &s));
    pcl_chain *chain = pcl_sequence_chain(blocks, s);
    if (num_tokens < 0 || (tokens == NULL && num_tokens > 0))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "num_tokens is %" PRId64 "%s", num_tokens,
                        num_tokens < 0 ? "; it is 0 or more" : ", but tokens is NULL");
    if (num_tokens > s->length - chain->recorded)
        return pcl_fail(PAGEDCL_INVALID_LENGTH,
                        "%" PRId64 " tokens behind the %" PRId64 " recorded ones are more than the sequence's %" PRId64,
                        num_tokens, chain->recorded, s->length);
    if (!is_on(blocks)) {
        chain->recorded += num_tokens;
        return PAGEDCL_SUCCESS;
    }
    while (num_tokens > 0) {
        int32_t in_tail = (int32_t)(chain->recorded % blocks->unit);
        int64_t taken = blocks->unit - in_tail < num_tokens ? blocks->unit - in_tail : num_tokens;
        chain->recorded += taken;
        if (taken == blocks->unit) {
            record_unit(blocks, s, tokens, seq);
        } else {
            memcpy(chain->tail + in_tail, tokens, (size_t)taken * sizeof *tokens);
            if (in_tail + taken == blocks->unit)
                record_unit(blocks, s, chain->tail, seq);
        }
        tokens += taken;
        num_tokens -= taken;
    }
    return PAGEDCL_SUCCESS;
}

/* What is known of a prompt. */
typedef struct match {
    int32_t node;       /* of the last whole unit */
    int64_t num_units;  /* whole units */
    int32_t partial;    /* a node whose front part follows, 0: none */
    int64_t num_tokens; /* all in all */
} match;

/* Goes on along known whole units within `limit` tokens. With windows, runs says where each group's blocks begin that
   are there without a gap, and *best is the last point at which every window is covered. */
static match walk(const pagedcl_blocks *blocks, const pagedcl_prompt *prompt, const pcl_keys *keys, int64_t limit,
                  match *best) {
    int64_t *runs = blocks->prefix.runs;
    match m = {0};
    memset(runs, 0, (size_t)blocks->num_groups * sizeof *runs);
    *best = m;
    while (limit - m.num_tokens >= blocks->unit) {
        const int32_t *tokens = prompt->tokens + m.num_tokens;
        int32_t part = pcl_keys_part_of(keys, m.num_units);
        uint64_t hash = child_hash(blocks, m.node, tokens, keys, part);
        int32_t node = pcl_prefix_child(blocks, m.node, hash, tokens, keys, part);
        if (node == 0)
            break;
        m.node = node;
        m.num_tokens += blocks->unit;
        bool covered = true;
        for (int32_t g = 0; g < blocks->num_groups && blocks->windowed; g++) {
            const pcl_group *group = &blocks->groups[g];
            for (int32_t j = 0; j < group->per_unit; j++)
                if (pcl_node_row(blocks, node)[group->column + j] < 0)
                    runs[g] = m.num_units * group->per_unit + j + 1;
            covered &= runs[g] <= pcl_first_seen(group, m.num_tokens);
        }
        m.num_units++;
        if (covered)
            *best = m;
    }
    return m;
}

/* Whether the node's blocks for the first num_tokens - m.num_tokens of its tokens are there, as far as windows see. */
static bool has_part(const pagedcl_blocks *blocks, const match *m, int32_t node, int64_t num_tokens) {
    for (int32_t g = 0; g < blocks->num_groups && blocks->windowed; g++) {
        const pcl_group *group = &blocks->groups[g];
        int64_t first = m->num_units * group->per_unit, seen = pcl_first_seen(group, num_tokens);
        if (seen < first && blocks->prefix.runs[g] > seen)
            return false;
        for (int64_t i = seen > first ? seen : first; i < pcl_blocks_for(group, num_tokens); i++)
            if (pcl_node_row(blocks, node)[group->column + i - first] < 0)
                return false;
    }
    return true;
}

/*
 * Looks for the block behind the match that shares most tokens with the prompt. With smaller blocks in some groups the
 * prompt would keep some of the unit's blocks, which are known already, and could not be recorded as a unit of its own.
 */
static void match_part(const pagedcl_blocks *blocks, const pagedcl_prompt *prompt, const pcl_keys *keys, int64_t limit,
                       match *m) {
    if (blocks->width != blocks->num_groups)
        return;
    const int32_t *tokens = prompt->tokens + m->num_tokens;
    int32_t part = pcl_keys_part_of(keys, m->num_units), candidates = 0;
    int64_t most = limit - m->num_tokens < blocks->unit ? limit - m->num_tokens : blocks->unit;
    int64_t longest = prompt->min_partial > 1 ? prompt->min_partial - 1 : 0;
    int32_t node = blocks->prefix.nodes[m->node].first_child;
    for (; node != 0 && candidates < MAX_PARTIAL_CANDIDATES; node = blocks->prefix.nodes[node].next, candidates++) {
        const pcl_node *n = &blocks->prefix.nodes[node];
        const int32_t *known = pcl_node_tokens(blocks, node);
        int64_t common = 0;
        while (common < most && known[common] == tokens[common])
            common++;
        if (common > longest && pcl_keys_equal_parts(n->keys, n->keys == NULL ? -1 : n->part, keys, part) &&
            has_part(blocks, m, node, m->num_tokens + common)) {
            longest = common;
            m->partial = node;
        }
    }
    if (m->partial != 0)
        m->num_tokens += longest;
}

static match find(const pagedcl_blocks *blocks, const pagedcl_prompt *prompt, const pcl_keys *keys) {
    match best = {0};
    if (!is_on(blocks) || prompt->num_tokens == 0)
        return best;
    /* The last token is left to compute: its logits are wanted. */
    int64_t limit = prompt->num_tokens - 1;
    match last = walk(blocks, prompt, keys, limit, &best);
    if (best.num_units == last.num_units)
        match_part(blocks, prompt, keys, limit, &best);
    else {
        match_part(blocks, prompt, keys, limit, &last);
        if (last.partial != 0)
            best = last;
    }
    return best;
}

static pagedcl_status read_prompt(pagedcl_blocks *blocks, const pagedcl_prompt *prompt, pagedcl_prompt *own,
                                  pcl_keys **keys) {
    if (blocks == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "blocks is NULL");
    PCL_TRY(PCL_READ_STRUCT(own, prompt, min_partial));
    if (own->num_tokens < 0 || (own->tokens == NULL && own->num_tokens > 0))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "num_tokens is %" PRId64 "%s", own->num_tokens,
                        own->num_tokens < 0 ? "; it is 0 or more" : ", but tokens is NULL");
    if (own->min_partial < 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "min_partial is %" PRId32 "; it is 0 or more", own->min_partial);
    return pcl_keys_prepare(&blocks->prefix.keys, own, blocks->unit, keys);
}

/* Lets the sequence's table have the blocks that were found. */
static void hold(pagedcl_blocks *blocks, pcl_sequence *s, const match *m) {
    int64_t row = m->num_units;
    if (m->partial != 0)
        memcpy(s->table + row * blocks->width, pcl_node_row(blocks, m->partial),
               (size_t)blocks->width * sizeof *s->table);
    for (int32_t node = m->node; row-- > 0; node = blocks->prefix.nodes[node].parent)
        memcpy(s->table + row * blocks->width, pcl_node_row(blocks, node), (size_t)blocks->width * sizeof *s->table);
    for (int32_t g = 0; g < blocks->num_groups; g++) {
        const pcl_group *group = &blocks->groups[g];
        int64_t first = pcl_first_seen(group, m->num_tokens);
        for (int64_t i = pcl_blocks_for(group, m->num_tokens); i-- > 0;) {
            int32_t *entry = &s->table[pcl_entry(blocks, group, i)];
            if (i >= first) {
                pcl_block_retain(blocks, *entry);
            } else {
                *entry = -1;
                s->num_dropped++;
            }
        }
    }
}

/* The keys for a new sequence: those of the tree if it has the same, so that a known tenant takes no memory. */
static pagedcl_status keep_keys(const pagedcl_blocks *blocks, const match *m, pcl_keys *prepared, pcl_keys **kept) {
    *kept = NULL;
    if (prepared == NULL)
        return PAGEDCL_SUCCESS;
    for (int32_t node = m->partial != 0 ? m->partial : m->node; node != PCL_ROOT;
         node = blocks->prefix.nodes[node].parent) {
        pcl_keys *known = blocks->prefix.nodes[node].keys;
        if (known != NULL && pcl_keys_equal(known, prepared)) {
            *kept = pcl_keys_retain(known);
            return PAGEDCL_SUCCESS;
        }
    }
    *kept = pcl_keys_copy(prepared);
    if (*kept == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no host memory for %zu bytes of extra keys", prepared->num_bytes);
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_prefix_seq_create(pagedcl_blocks *blocks, const pagedcl_prompt *prompt, pagedcl_seq *seq,
                                         int64_t *num_cached) {
    pagedcl_prompt own;
    pcl_keys *keys;
    PCL_TRY(read_prompt(blocks, prompt, &own, &keys));
    if (seq == NULL || num_cached == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s is NULL", seq == NULL ? "seq" : "num_cached");
    match m = find(blocks, &own, keys);
    int32_t index;
    PCL_TRY(pcl_sequence_reserve(blocks, pcl_rows_for(blocks, m.num_tokens), &index));
    PCL_TRY(keep_keys(blocks, &m, keys, &keys));

    pcl_sequence *s = pcl_sequence_take(blocks, index);
    hold(blocks, s, &m);
    pcl_sequence_set_length(blocks, s, m.num_tokens);
    pcl_chain *chain = &blocks->chains[index];
    chain->keys = keys;
    chain->recorded = m.num_tokens;
    if (is_on(blocks)) {
        go_to(blocks, chain, m.node);
        if (m.partial != 0)
            memcpy(chain->tail, pcl_node_tokens(blocks, m.partial),
                   (size_t)(m.num_tokens % blocks->unit) * sizeof *chain->tail);
    }
    pagedcl_blocks_stats *stats = &blocks->stats;
    stats->lookups++;
    stats->hits += m.num_tokens > 0;
    stats->lookup_tokens += own.num_tokens;
    stats->hit_tokens += m.num_tokens;
    *seq = pcl_sequence_handle(blocks, index);
    *num_cached = m.num_tokens;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_prefix_peek(pagedcl_blocks *blocks, const pagedcl_prompt *prompt, int64_t *num_cached) {
    pagedcl_prompt own;
    pcl_keys *keys;
    PCL_TRY(read_prompt(blocks, prompt, &own, &keys));
    if (num_cached == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "num_cached is NULL");
    *num_cached = find(blocks, &own, keys).num_tokens;
    return PAGEDCL_SUCCESS;
}

/* Blocks without references go to the list of their new priority. */
static void set_priority(pagedcl_blocks *blocks, int32_t node, int32_t priority) {
    blocks->prefix.nodes[node].priority = priority;
    for (int32_t column = 0; column < blocks->width; column++) {
        int32_t block = pcl_node_row(blocks, node)[column];
        if (block >= 0 && blocks->block[block].refcount == 0)
            pcl_block_place(blocks, block);
    }
}

pagedcl_status pagedcl_prefix_set_priority(pagedcl_blocks *blocks, const pagedcl_prompt *prompt,
                                           pagedcl_priority priority, int64_t *num_tokens) {
    pagedcl_prompt own;
    pcl_keys *keys;
    PCL_TRY(read_prompt(blocks, prompt, &own, &keys));
    if ((int)priority < PAGEDCL_PRIORITY_LOW || priority > PAGEDCL_PRIORITY_PINNED)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%d is no pagedcl_priority", (int)priority);
    match last = {0}, best;
    if (is_on(blocks))
        last = walk(blocks, &own, keys, own.num_tokens, &best);
    for (int32_t node = last.node; node != PCL_ROOT; node = blocks->prefix.nodes[node].parent) {
        const pcl_node *nodes = blocks->prefix.nodes;
        int32_t least = priority;
        for (int32_t child = nodes[node].first_child; child != 0 && least < nodes[node].priority;
             child = nodes[child].next)
            if (nodes[child].priority > least)
                least = nodes[child].priority;
        if (least != nodes[node].priority)
            set_priority(blocks, node, least);
    }
    if (num_tokens != NULL)
        *num_tokens = last.num_tokens;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_prefix_evict(pagedcl_blocks *blocks, int64_t num_blocks, int64_t *num_evicted) {
    if (blocks == NULL || num_blocks < 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "blocks is NULL, or num_blocks is %" PRId64, num_blocks);
    int64_t before = blocks->stats.evicted;
    while (blocks->stats.evicted - before < num_blocks && pcl_prefix_evictable(blocks) > 0)
        pcl_prefix_evict_next(blocks);
    if (num_evicted != NULL)
        *num_evicted = blocks->stats.evicted - before;
    return PAGEDCL_SUCCESS;
}
