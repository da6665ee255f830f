/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor maps of a pool of 16-bit elements, or of codes of 8 bits, two of which are a column. A box is some tokens of a
 * block, those of one KV head: BOX_COLUMNS of the columns of COLUMN_TOKENS; or, of rows that are so many times as long
 * (ROW_BOXES), all columns of ROW_TOKENS, as one panel of columns behind the other.
 *
 * A segment has a record of MAPS_RECORD bytes: the maps of K and of V for boxes of columns, the addresses (two ulong) that
 * they are of, the maps for boxes of rows. Memory may have moved, or be another buffer by now: then the maps are of no use.
 */
#ifndef NV_POOL_MAPS_H
#define NV_POOL_MAPS_H

#include "lib/pool.h"
#include "nv/tensor_map.h"

#define MAPS_RECORD (5 * MAP_BYTES)
#define COLUMN_MAPS 0
#define MAPS_ADDRESSES (2 * MAP_BYTES)
#define ROW_MAPS (3 * MAP_BYTES)

#define MAP_COLUMNS(elements) ((elements) / (CODES ? 2 : 1))
#define ROW_BOXES (MAP_COLUMNS(HEAD_DIM) % BOX_COLUMNS == 0 && MAP_COLUMNS(HEAD_DIM_V) % BOX_COLUMNS == 0)

#if BLOCK_SIZE % 16 == 0
#define ROW_TOKENS 16
#elif BLOCK_SIZE % 8 == 0
#define ROW_TOKENS 8
#else
#error BLOCK_SIZE is not a multiple of 8, which is where the swizzle begins again
#endif

/* Where V is in K warpgroups alone fetch by columns (nv/stream_warpgroups.h), in tiles of 64: fewer boxes are fetched
   faster. */
#if V_IN_K && ROW_BOXES && BLOCK_SIZE % 64 == 0
#define COLUMN_TOKENS 64
#else
#define COLUMN_TOKENS ROW_TOKENS
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
        const ulong2 of = *(const __global ulong2 *)(records + i * MAPS_RECORD + MAPS_ADDRESSES);
        hold =
            hold && of.x == segment_address(keys, i) && of.y == segment_address(values, i) && ((of.x | of.y) & 15) == 0;
    }
    return hold;
}

#endif
