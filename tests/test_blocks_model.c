/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations on the block manager against the model of support/blocks_model.h, with and without allocations that
 * fail. TEST_SEED chooses others; TEST_LONGER=N runs N times as many.
 */
#include "support/allocations.h"
#include "support/blocks_model.h"
#include "support/random.h"

#include <pagedcl/pagedcl.h>

#include <criterion/criterion.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t number_of(const char *variable, uint64_t otherwise) {
    const char *text = getenv(variable);
    return text != NULL ? strtoull(text, NULL, 0) : otherwise;
}

static void walk(const char *name, int64_t operations, blocks_model_allow allow) {
    enum { BYTES = 2000 };
    uint64_t seed = number_of("TEST_SEED", 2026);
    operations *= (int64_t)number_of("TEST_LONGER", 1);
    blocks_model_counts counts = {0};
    random_state random = {seed};
    for (uint64_t run = 0; counts.operations < operations; run++) {
        uint8_t data[BYTES];
        for (size_t i = 0; i < sizeof data; i++)
            data[i] = (uint8_t)random_bits(&random);
        blocks_model_run(data, sizeof data, allow, &counts);
    }
    printf("%s: TEST_SEED=%" PRIu64 ", %" PRId64 " operations: %" PRId64 " hits, %" PRId64 " in part, %" PRId64
           " evictions, %" PRId64 " copies, %" PRId64 " swaps, %" PRId64 " moves, %" PRId64 " wipes, %" PRId64
           " rollbacks, %" PRId64 " left of windows, %" PRId64 " refused, %" PRId64 " out of memory\n",
           name, seed, counts.operations, counts.hits, counts.partial_hits, counts.evictions, counts.copies,
           counts.swaps, counts.moves, counts.wipes, counts.rollbacks, counts.dropped, counts.refused,
           counts.out_of_memory);
    const int64_t all[] = {counts.hits,  counts.partial_hits, counts.evictions, counts.copies,  counts.swaps,
                           counts.moves, counts.wipes,        counts.rollbacks, counts.dropped, counts.refused};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        cr_assert_gt(all[i], operations / 10000, "the walk left something out: number %zu", i);
    cr_assert_eq(counts.out_of_memory > 0, allow != NULL);
}

Test(blocks_model, random_walk, .timeout = 36000) {
    walk("random_walk", 3000000, NULL);
}

Test(blocks_model, random_walk_without_memory, .timeout = 36000) {
    walk("random_walk_without_memory", 1000000, allocations_allow);
}

Test(blocks_model, create_without_memory) {
    const int32_t sizes[] = {4, 16};
    pagedcl_blocks_desc desc = PAGEDCL_BLOCKS_DESC_INIT;
    desc.num_blocks = 100;
    desc.block_size = 16;
    desc.num_groups = 2;
    desc.group_block_sizes = sizes;
    desc.prefix_cache = 1;
    desc.num_host_blocks = 10;
    pagedcl_status status = PAGEDCL_OUT_OF_MEMORY;
    int64_t allowed = 0;
    for (; status != PAGEDCL_SUCCESS; allowed++) {
        pagedcl_blocks *blocks = NULL;
        allocations_allow(allowed);
        status = pagedcl_blocks_create(&desc, &blocks);
        allocations_allow(-1);
        cr_assert(status == PAGEDCL_SUCCESS || (status == PAGEDCL_OUT_OF_MEMORY && blocks == NULL));
        pagedcl_blocks_destroy(blocks);
    }
    cr_assert_gt(allowed, 10);
}
