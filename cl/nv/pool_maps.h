/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor maps of a pool of 16-bit elements. A box is BOX_TOKENS tokens of a block, those of one KV head. A segment has a
 * record of MAPS_RECORD bytes: the map of K, the map of V, and the addresses (two ulong) that they are of. Memory may
 * have moved, or be another buffer by now: then the maps are of no use.
 */
#ifndef NV_POOL_MAPS_H
#define NV_POOL_MAPS_H

#include "lib/pool.h"
#include "nv/tensor_map.h"

#define MAPS_RECORD (3 * MAP_BYTES)

#if BLOCK_SIZE % 32 == 0
#define BOX_TOKENS 32
#elif BLOCK_SIZE % 16 == 0
#define BOX_TOKENS 16
#elif BLOCK_SIZE % 8 == 0
#define BOX_TOKENS 8
#else
#error BLOCK_SIZE is not a multiple of 8, which is where the swizzle begins again
#endif

/* Where block 0 of a segment begins. */
static ulong segment_address(const pool *p, int segment) {
    const pool_row row = pool_row_at(p, segment << p->segment_shift, 0, 0);
    return (ulong)(row.base + row.at);
}

/* Whether the records of a layer are of the memory that the pool has. */
static bool maps_hold(const __global uchar *records, const pool *keys, const pool *values) {
    bool hold = true;
#pragma unroll
    for (int i = 0; i < NUM_SEGMENTS; i++) {
        const ulong2 of = *(const __global ulong2 *)(records + i * MAPS_RECORD + 2 * MAP_BYTES);
        hold =
            hold && of.x == segment_address(keys, i) && of.y == segment_address(values, i) && ((of.x | of.y) & 15) == 0;
    }
    return hold;
}

#endif
