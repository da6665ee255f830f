/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extra keys of the prefix cache, in the form in which they are compared: by unit, each with its type, its offset in
 * the unit, and its length before its bytes, so that no two lists of keys look alike. One object holds all keys of a
 * prompt; its sequence, the forks and the nodes of the tree share it.
 */
#ifndef PCL_PREFIX_KEYS_H
#define PCL_PREFIX_KEYS_H

#include <pagedcl/prefix.h>

#include <stdbool.h>

/* The keys of one unit. */
typedef struct pcl_keys_part {
    int64_t unit;
    uint64_t hash;
    size_t offset, size; /* in the bytes */
} pcl_keys_part;

typedef struct pcl_keys {
    int64_t references;
    int32_t num_parts;
    size_t num_bytes;
    unsigned char *bytes;
    pcl_keys_part parts[]; /* in ascending order of units; the bytes follow */
} pcl_keys;

/* Where a prompt's keys are put together before it is known whether they must be kept. */
typedef struct pcl_keys_buffer {
    pcl_keys *keys;
    size_t capacity;
} pcl_keys_buffer;

/* Checks and serialises the prompt's keys into the buffer. *keys is NULL when there are none. */
pagedcl_status pcl_keys_prepare(pcl_keys_buffer *buffer, const pagedcl_prompt *prompt, int32_t unit, pcl_keys **keys);

/* A copy of keys that outlives the buffer, with one reference; NULL when there is no memory. */
pcl_keys *pcl_keys_copy(const pcl_keys *keys);

/* NULL is allowed and stays NULL. */
pcl_keys *pcl_keys_retain(pcl_keys *keys);
void pcl_keys_release(pcl_keys *keys);

/* The part of a unit, -1: none. */
int32_t pcl_keys_part_of(const pcl_keys *keys, int64_t unit);

int64_t pcl_keys_count(const pcl_keys *keys);

/* Calls `call` for each key, as it was given, until one fails. keys may be NULL. */
pagedcl_status pcl_keys_each(const pcl_keys *keys, int32_t unit,
                             pagedcl_status (*call)(void *user, const pagedcl_prefix_key *key), void *user);

bool pcl_keys_equal_parts(const pcl_keys *a, int32_t part_a, const pcl_keys *b, int32_t part_b);
bool pcl_keys_equal(const pcl_keys *a, const pcl_keys *b);

#endif
