/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a token's row lies in a pool. Plain arithmetic in 64 bits from the first multiply, compiled by the kernels and
 * by the host's tests. Shape macros: BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM.
 *
 * A pool is split into segments of 2^segment_shift blocks; the element offset is inside the segment.
 */
#ifndef ADDRESS_H
#define ADDRESS_H

#if defined(__OPENCL_C_VERSION__) || defined(__OPENCL_VERSION__)
typedef ulong address_offset;
#else
#include <stdint.h>
typedef uint64_t address_offset;
#endif

static int address_segment(int block, int segment_shift) {
    return block >> segment_shift;
}

/* The element offset, inside its segment, of element 0 of a KV head's row at a token offset of a block. */
static address_offset address_row(int block, int segment_shift, int token, int kv_head) {
    address_offset inside = (address_offset)(block & ((1 << segment_shift) - 1));
    return ((inside * BLOCK_SIZE + (address_offset)token) * NUM_KV_HEADS + (address_offset)kv_head) * HEAD_DIM;
}

#endif
