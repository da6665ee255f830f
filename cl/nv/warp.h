/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Instructions of NVIDIA's GPUs, from compute capability 8.0 on, which OpenCL C has no words for: PTX, in the words of the
 * PTX ISA. A warp is 32 work-items with consecutive local ids; each function is called by all 32 of one together.
 *
 * Fragments, for lane l with g = l / 4 and t = l % 4. A, 16 rows x 16: a[0] row g, columns 2t and 2t + 1; a[1] row g + 8,
 * the same; a[2], a[3] the same 8 columns further. B, 16 x 8 columns: b0 rows 2t and 2t + 1 of column g; b1 8 rows further.
 * C and D, 16 x 8: c[0], c[1] row g, columns 2t and 2t + 1; c[2], c[3] row g + 8.
 */
#ifndef NV_WARP_H
#define NV_WARP_H

#include "lib/types.h"

#define ALL_LANES "0xffffffff"

/* The element of matrices, float16 or bfloat16: that of K and V; of q where those have codes of 8 bits (CODES), which
   some have with a scale for each row (ROW_SCALED). */
#if defined(KV_QUANTIZED)
#define CODES KV_QUANTIZED
#define ROW_SCALED KV_STORED_SCALES
#else
#define CODES 0
#define ROW_SCALED 0
#endif
#if CODES
#define MATRIX_DTYPE Q_DTYPE
#else
#define MATRIX_DTYPE KV_DTYPE
#endif
#define PTX_float16 "f16"
#define PTX_bfloat16 "bf16"
#define PTX(role) PASTE(PTX_, role##_DTYPE)

/* The address of local memory as instructions take it. */
static uint local_address(const __local void *pointer) {
    return (uint)(size_t)pointer;
}

/* d += a * b. */
static void mma(float *d, const uint *a, uint b0, uint b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." PTX(MATRIX) "." PTX(
            MATRIX) ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                    "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four matrices of 8 x 8; lane l gives the address of row l % 8 of matrix l / 8. */
static void load_matrices(uint *to, uint address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}
static void load_matrices_transposed(uint *to, uint address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

/* The same of two matrices, to whose rows lanes 0 to 15 point. */
static void load_two_matrices(uint *to, uint address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(address)
                 : "memory");
}
static void load_two_matrices_transposed(uint *to, uint address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(address)
                 : "memory");
}

/* A matrix of 8 x 8, of which lane l has columns 2t and 2t + 1 of row g, with rows and columns exchanged. */
static uint transposed(uint x) {
    uint y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* Begins to copy 16 bytes to local memory; zeros where not inside, and then nothing is read. Both aligned to 16. */
static void copy_begin16(uint to, const __global void *from, bool inside) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :
                 : "r"(to), "l"(from), "r"(inside ? 16 : 0)
                 : "memory");
}

/* The same of 4 bytes. */
static void copy_begin4(uint to, const __global void *from, bool inside) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" : : "r"(to), "l"(from), "r"(inside ? 4 : 0) : "memory");
}

/* The copies since the last call are one group. */
static void copy_commit(void) {
    asm volatile("cp.async.commit_group;" : : : "memory");
}

/* Waits for this work-item's groups, all but the last `pending`, a constant. */
#define COPY_WAIT(pending) asm volatile("cp.async.wait_group %0;" : : "n"(pending) : "memory")

/* Two floats as elements of a matrix, a in the lower half. */
static uint pack(float a, float b) {
    uint both;
    asm("cvt.rn." PTX(MATRIX) "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
    return both;
}
static float2 unpack(uint both) {
#if IS_BFLOAT16(MATRIX)
    return (float2)(as_float(both << 16), as_float(both & 0xffff0000));
#else
    float2 x;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(x.x), "=f"(x.y)
        : "r"(both));
    return x;
#endif
}

/* 2^x, to 2 units in the last place. */
static float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static float from_lane(float x, int lane) {
    float y;
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, " ALL_LANES ";" : "=f"(y) : "f"(x), "r"(lane));
    return y;
}
static ulong address_from_lane(ulong x, int lane) {
    const uint2 words = as_uint2(x);
    return as_ulong((uint2)(as_uint(from_lane(as_float(words.x), lane)), as_uint(from_lane(as_float(words.y), lane))));
}
static float from_lane_xor(float x, int mask) {
    float y;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, " ALL_LANES ";" : "=f"(y) : "f"(x), "r"(mask));
    return y;
}

/* What this work-item stored before, all work-items of the device see before what it stores after; and the other way
   round for what it loads. */
static void fence_device(void) {
    asm volatile("fence.acq_rel.gpu;" : : : "memory");
}

/* Adds 1; who sees that, and fences, sees what this work-item stored before, or knows of by a barrier. Returns what was there. */
static int increment_released(__global int *counter) {
    int before;
    asm volatile("{ .reg .b64 at; cvta.to.global.u64 at, %1; atom.release.gpu.global.add.s32 %0, [at], 1; }"
                 : "=r"(before)
                 : "l"((ulong)counter)
                 : "memory");
    return before;
}

static void warp_barrier(void) {
    asm volatile("bar.warp.sync " ALL_LANES ";" : : : "memory");
}

/* Bit l: lane l has x. */
static uint lanes_with(bool x) {
    uint lanes;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, " ALL_LANES "; }"
                 : "=r"(lanes)
                 : "r"((uint)x));
    return lanes;
}

static bool any_lane(bool x) {
    uint any;
    asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; vote.sync.any.pred q, p, " ALL_LANES
                 "; selp.u32 %0, 1, 0, q; }"
                 : "=r"(any)
                 : "r"((uint)x));
    return any != 0;
}

#endif
