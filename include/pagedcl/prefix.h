/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefix cache of the block manager: blocks that are found by the tokens they hold and all tokens before them.
 *
 *     pagedcl_prefix_seq_create(blocks, &prompt, &seq, &num_cached);   what is cached already
 *     append and compute the other prompt.num_tokens - num_cached tokens
 *     pagedcl_prefix_record(blocks, seq, tokens, n);                   what can be found from now on
 *
 * A block is known by its parent (the block before it), its tokens and the extra keys of its positions, and is found
 * by a chained hash of these; a hit compares all of them, so that a hash never decides alone. When block sizes differ
 * by group, the largest one is the unit that is found, whole only, and a fork that leaves its parent inside a unit is
 * not recorded any further. Blocks stay known while their sequence lives and, afterwards,
 * until their memory is needed: then the least recently used of the lowest priority goes first, and with it all blocks
 * behind it, since nothing would lead to them. With a manager made without prefix_cache nothing is ever found.
 *
 * Found blocks hold what the commands of the recording sequence write: commands that read them go behind those.
 */
#ifndef PAGEDCL_PREFIX_H
#define PAGEDCL_PREFIX_H

#include <pagedcl/blocks.h>
#include <pagedcl/init.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What an extra key is. Two keys are the same only if type, size and bytes are. */
typedef enum pagedcl_key_type {
    PAGEDCL_KEY_ADAPTER = 1, /* the adapter (LoRA) that computes keys and values */
    PAGEDCL_KEY_MEDIA = 2,   /* the content behind placeholder tokens, such as the digest of an image */
    PAGEDCL_KEY_SALT = 3,    /* whom the prompt belongs to: no hit across salts. Let the server choose it */
    PAGEDCL_KEY_USER = 1000, /* from here on: the caller's own */
} pagedcl_key_type;

/* Something besides tokens that keys and values depend on, from `position` on. */
typedef struct pagedcl_prefix_key {
    int32_t type;     /* a pagedcl_key_type, or above PAGEDCL_KEY_USER */
    int64_t position; /* the first token that it affects: 0 for adapter and salt */
    const void *data;
    size_t size; /* bytes */
} pagedcl_prefix_key;

typedef struct pagedcl_prompt {
    size_t struct_size; /* sizeof(pagedcl_prompt), set by PAGEDCL_PROMPT_INIT */
    const int32_t *tokens;
    int64_t num_tokens;
    const pagedcl_prefix_key *keys; /* in ascending order of position, then of type */
    int64_t num_keys;
    int32_t
        min_partial; /* tokens of a block that are worth its copy; 0: 1. From the block size on: whole blocks only */
} pagedcl_prompt;
#define PAGEDCL_PROMPT_INIT PAGEDCL_INIT(pagedcl_prompt)

/*
 * Makes a sequence of the longest cached prefix of the prompt; *num_cached, its length, is at most num_tokens - 1, so
 * that the last token remains to be computed. The sequence holds what was found: nothing of it is evicted before the
 * sequence is freed. A block of which the front part matches counts with that part; the first append copies it, like
 * any shared block. (Of the blocks that continue a prefix, the 32 recorded last are looked at for this.) The keys stay
 * with the sequence and its forks; the arrays are the caller's again.
 * Errors: INVALID_ARGUMENT, SIZE_OVERFLOW, OUT_OF_MEMORY.
 */
PAGEDCL_API pagedcl_status pagedcl_prefix_seq_create(pagedcl_blocks *blocks, const pagedcl_prompt *prompt,
                                                     pagedcl_seq *seq, int64_t *num_cached);

/* How long the cached prefix is now. Holds nothing, counts nothing, and is no use. Errors: as seq_create's. */
PAGEDCL_API pagedcl_status pagedcl_prefix_peek(pagedcl_blocks *blocks, const pagedcl_prompt *prompt,
                                               int64_t *num_cached);

/*
 * Says which the next num_tokens tokens of the sequence are that were not recorded yet; the commands that compute them
 * are enqueued. The blocks that they fill become known, save those whose tokens are known from another block already.
 * Shortening the sequence takes back what was recorded behind its end.
 * Errors: INVALID_HANDLE, INVALID_ARGUMENT, INVALID_LENGTH (more than the sequence has), NOT_READY (swapped out, or in
 * the open step).
 */
PAGEDCL_API pagedcl_status pagedcl_prefix_record(pagedcl_blocks *blocks, pagedcl_seq seq, const int32_t *tokens,
                                                 int64_t num_tokens);

typedef enum pagedcl_priority {
    PAGEDCL_PRIORITY_LOW = -1,   /* evicted before all others */
    PAGEDCL_PRIORITY_NORMAL = 0, /* what recorded blocks have */
    PAGEDCL_PRIORITY_HIGH = 1,   /* evicted when nothing else is left */
    PAGEDCL_PRIORITY_PINNED = 2, /* never evicted */
} pagedcl_priority;

/*
 * Gives the known whole blocks of the prompt a priority; *num_tokens (NULL allowed) says how many tokens they hold. A
 * block before others keeps at least their priority, a block recorded behind others gets at most theirs.
 * Errors: as seq_create's.
 */
PAGEDCL_API pagedcl_status pagedcl_prefix_set_priority(pagedcl_blocks *blocks, const pagedcl_prompt *prompt,
                                                       pagedcl_priority priority, int64_t *num_tokens);

/*
 * Evicts at least num_blocks cached blocks, or all that are neither pinned nor under a fence: INT64_MAX empties the
 * cache, as a change of the weights demands. *num_evicted (NULL allowed): how many it were.
 */
PAGEDCL_API pagedcl_status pagedcl_prefix_evict(pagedcl_blocks *blocks, int64_t num_blocks, int64_t *num_evicted);

#ifdef __cplusplus
}
#endif
#endif
