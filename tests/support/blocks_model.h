/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plain model of an engine over the block manager, driven by bytes: random ones in a test, chosen ones in a fuzzer.
 *
 * What a slot must hold is a function of all tokens up to its position and of the extra keys. The model keeps a pool
 * that holds such values, does what the manager names (copies, wipes, transfers) to it, and after every operation reads
 * every sequence back through its tables: a block shared, found, copied, moved or swapped wrongly shows a wrong value.
 * Reads and transfers under a fence happen as late as the fence allows, all other writes at once: a block that is taken
 * too early shows a wrong value, too. What is known by its tokens is counted from events and looked up by brute force.
 * It prints what is wrong and aborts.
 */
#ifndef BLOCKS_MODEL_H
#define BLOCKS_MODEL_H

#include <stddef.h>
#include <stdint.h>

/* What happened, so that a test can tell whether it tested anything. */
typedef struct blocks_model_counts {
    int64_t operations;
    int64_t hits, partial_hits, evictions, copies, swaps, moves, wipes, rollbacks, dropped, refused, out_of_memory;
} blocks_model_counts;

/* Lets the next `count` allocations of the library succeed and the following ones fail; below 0: all succeed. */
typedef void (*blocks_model_allow)(int64_t count);

/* Reads the bytes as a description of a manager and operations on it. allow: NULL when no allocation is to fail. */
void blocks_model_run(const uint8_t *data, size_t size, blocks_model_allow allow, blocks_model_counts *counts);

#endif
