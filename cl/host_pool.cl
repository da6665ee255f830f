/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves whole blocks of a layer, bit for bit, between a pool and a staging buffer, where a block is the K_BLOCK_BYTES of
 * each layer's K followed by the V_BLOCK_BYTES of its V, the layers one behind the other. Block i of the launch is
 * blocks[2i] of the pool, and i of the staging buffer. No block is written twice by a launch. UNIT_BYTES, which all
 * bytes and addresses are multiples of, is what a work-item moves. Launch: one dimension of
 * num_blocks * (K_BLOCK_BYTES + V_BLOCK_BYTES) / UNIT_BYTES work-items or more.
 */
#include "lib/pool.h"

#if UNIT_BYTES == 16
typedef uint4 unit;
#elif UNIT_BYTES == 8
typedef uint2 unit;
#elif UNIT_BYTES == 4
typedef uint unit;
#elif UNIT_BYTES == 2
typedef ushort unit;
#elif UNIT_BYTES == 1
typedef uchar unit;
#else
#error UNIT_BYTES must be 1, 2, 4, 8 or 16
#endif

#define K_UNITS (K_BLOCK_BYTES / UNIT_BYTES)
#define V_UNITS (V_BLOCK_BYTES / UNIT_BYTES)

/* staged_layer: where the layer begins in a staged block, staged_block: the distance of two blocks, both in units. */
__kernel void host_pool(POOL_PARAMS, __global unit *staged, long staged_layer, long staged_block,
                        const __global int *blocks, long blocks_offset, long num_blocks, int into_pool) {
    long i = (long)get_global_id(0);
    long index = i / (K_UNITS + V_UNITS);
    long part = i % (K_UNITS + V_UNITS);
    if (index >= num_blocks)
        return;
    int block = blocks[blocks_offset + 2 * index];
    pool keys = POOL_KEYS;
    pool values = POOL_VALUES;
    pool_row row = pool_row_at(&keys, block, 0, 0);
    long at = part;
    if (part >= K_UNITS) {
        row = pool_row_at(&values, block, 0, 0);
        at = part - K_UNITS;
    }
    __global unit *pooled = (__global unit *)(row.base + UNIT(KV, row.at)) + at;
    staged += index * staged_block + staged_layer + part;
    if (into_pool)
        *pooled = *staged;
    else
        *staged = *pooled;
}
