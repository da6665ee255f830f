/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a device has the instructions of tier nv_wgmma, and they do what they are taken to do: c = a * b^T of
 * matrices a [64, 16] and b [16, 16] of elements, c [64, 16] of floats. Launch: one work-group of 128.
 */
#include "nv/warpgroup.h"

__kernel __attribute__((reqd_work_group_size(WARPGROUP, 1, 1))) void
nv_wgmma_probe(const __global ushort *a, const __global ushort *b, __global float *c) {
    /* Rows of 128 bytes, of which a matrix of 16 columns has the first 32. */
    __local uint4 memory[(64 + 16) * 8] __attribute__((aligned(1024)));
    const int item = get_local_id(0), lane = item % 32;
    for (int i = item; i < (64 + 16) * 2; i += WARPGROUP) {
        const int row = i / 2, piece = i % 2;
        const __global ushort *from = row < 64 ? a + row * 16 : b + (row - 64) * 16;
        copy_begin16(local_address(memory + row * 8 + (piece ^ (row & 7))), from + piece * 8, true);
    }
    copy_commit();
    COPY_WAIT(0);
    fence_products();
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint at = local_address(memory);
    float sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    products_begin();
    PRODUCT(16, sums, matrix_at(at, 0, 1024), matrix_at(at + 64 * 128, 0, 1024), 0);
    products_commit();
    PRODUCTS_WAIT(16, sums, 0);
    for (int i = 0; i < 8; i++)
        c[(item / 32 * 16 + lane / 4 + i / 2 % 2 * 8) * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2] = sums[i];
}
