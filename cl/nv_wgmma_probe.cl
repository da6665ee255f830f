/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a device has the instructions of tier nv_wgmma, and they do what they are taken to do: c = a * b^T of
 * matrices a [64, 16] and b [16, 16] of elements, c [64, 16] of floats. a is copied, b fetched by a tensor map, which
 * lies in c until then. Launch: one work-group of 128.
 */
#include "nv/tensor_map.h"

__kernel __attribute__((reqd_work_group_size(WARPGROUP, 1, 1))) void
nv_wgmma_probe(const __global ushort *a, const __global ushort *b, __global float *c) {
    /* Rows of 128 bytes, of which a matrix of 16 columns has the first 32. */
    __local uint4 memory[(64 + 16) * 8] __attribute__((aligned(1024)));
    __local uint scratch[MAP_BYTES / 4] __attribute__((aligned(MAP_BYTES)));
    __local ulong landed[1];
    const int item = get_local_id(0), lane = item % 32;
    const uint at = local_address(memory);
    if (item < 32) {
        const tensor_shape shape = {4, (ulong)b, {16, 16, 1, 1}, {32, 512, 512}, {BOX_COLUMNS, 16, 1, 1}};
        map_make((__global uchar *)c, scratch, shape);
        if (item == 0) {
            mbarrier_init(local_address(landed), 1);
            fence_async();
            map_acquire((const __global uchar *)c);
            mbarrier_arrive_expecting(local_address(landed), 16 * 128);
            box_begin(at + 64 * 128, (const __global uchar *)c, (int4)(0, 0, 0, 0), local_address(landed));
        }
    }
    for (int i = item; i < 64 * 2; i += WARPGROUP) {
        const int row = i / 2, piece = i % 2;
        copy_begin16(at + row * 128 + (piece ^ (row & 7)) * 16, a + row * 16 + piece * 8, true);
    }
    copy_commit();
    COPY_WAIT(0);
    fence_async();
    barrier(CLK_LOCAL_MEM_FENCE);
    mbarrier_wait(local_address(landed), 0);
    float sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    products_begin();
    PRODUCT(16, sums, matrix_at(at, 0, 1024), matrix_at(at + 64 * 128, 0, 1024), 0);
    products_commit();
    PRODUCTS_WAIT(16, sums, 0);
    for (int i = 0; i < 8; i++)
        c[(item / 32 * 16 + lane / 4 + i / 2 % 2 * 8) * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2] = sums[i];
}
