/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a token's row lies in a pool. Plain arithmetic, in 64 bits from the first multiply, compiled by the kernels and
 * by the host's tests. A pool is split into segments of 2^segment_shift blocks.
 */
#ifndef ADDRESS_H
#define ADDRESS_H

#if defined(__OPENCL_C_VERSION__) || defined(__OPENCL_VERSION__)
typedef long address_index;
#else
#include <stdint.h>
typedef int64_t address_index;
#endif

static inline int address_segment(int block, int segment_shift) {
    return block >> segment_shift;
}

/* The index, inside its segment, of the first element of a KV head's row at a token offset of a block. */
static inline address_index address_row(int block, int segment_shift, int token, int kv_head,
                                        address_index block_stride, address_index token_stride,
                                        address_index head_stride) {
    return (block & ((1 << segment_shift) - 1)) * block_stride + token * token_stride + kv_head * head_stride;
}

#endif
