/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a device has the instructions of tier nv_mma, and they do what they are taken to do: c = a * b^T of matrices
 * a [16, 16] and b [16, 16] (8 rows count) of elements, c [16, 8] of floats. Launch: one work-group of 32.
 */
#include "nv/warp.h"

enum { PITCH = 24 };

__kernel __attribute__((reqd_work_group_size(32, 1, 1))) void
nv_probe(const __global ushort *a, const __global ushort *b, __global float *c) {
    __local uint4 memory[2 * 16 * PITCH / 8];
    __local ushort *a_rows = (__local ushort *)memory, *b_rows = a_rows + 16 * PITCH;
    const int lane = get_local_id(0);
    const int at = lane / 2 * PITCH + lane % 2 * 8;
    copy_begin16(local_address(a_rows + at), a + lane * 8, true);
    copy_begin16(local_address(b_rows + at), b + lane * 8, true);
    copy_commit();
    COPY_WAIT(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    uint a_fragment[4], b_fragment[4];
    load_matrices(a_fragment, local_address(a_rows + lane % 16 * PITCH + lane / 16 * 8));
    load_matrices(b_fragment, local_address(b_rows + (lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 8));
    float sums[4] = {0, 0, 0, 0};
    mma(sums, a_fragment, b_fragment[0], b_fragment[1]);
    for (int e = 0; e < 4; e++)
        c[(lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2] = sums[e];
}
