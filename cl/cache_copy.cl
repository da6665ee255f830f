/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies whole blocks inside a pool, bit for bit: pairs[2i] to pairs[2i+1]. No block is written that another pair of
 * the same launch reads or writes. One work-item moves 8 elements of K and of V. Launch: one dimension of
 * num_pairs * BLOCK_SIZE * NUM_KV_HEADS * HEAD_DIM / 8 work-items or more.
 */
#include "lib/pool.h"

__kernel void cache_copy(POOL_PARAMS(k_pool), POOL_PARAMS(v_pool), int segment_shift, const __global int *pairs,
                         long pairs_offset, long num_pairs) {
    const long block_vectors = (long)BLOCK_SIZE * NUM_KV_HEADS * (HEAD_DIM / 8);
    long i = (long)get_global_id(0);
    long pair = i / block_vectors;
    if (pair >= num_pairs)
        return;
    long element = i % block_vectors * 8;
    int from = pairs[pairs_offset + 2 * pair];
    int to = pairs[pairs_offset + 2 * pair + 1];
    pool keys = POOL(k_pool);
    pool values = POOL(v_pool);
    vstore8(vload8(0, pool_row(&keys, segment_shift, from, 0, 0) + element), 0,
            pool_row(&keys, segment_shift, to, 0, 0) + element);
    vstore8(vload8(0, pool_row(&values, segment_shift, from, 0, 0) + element), 0,
            pool_row(&values, segment_shift, to, 0, 0) + element);
}
