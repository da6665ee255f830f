/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor maps of GPUs of compute capability 9.0: 128 bytes that describe a tensor in global memory, so that one
 * instruction copies a box of it to local memory, in the form that products of a warpgroup read (nv/warpgroup.h). Their
 * fields are set by instructions of their own, for their format is not documented; the host cannot make one without
 * CUDA's driver API.
 */
#ifndef NV_TENSOR_MAP_H
#define NV_TENSOR_MAP_H

#include "nv/warpgroup.h"

#define MAP_BYTES 128

/* A box has as many columns as a swizzled row of local memory. */
#define BOX_COLUMNS 64

#define MAP_SET(field, type, letter, value)                                                \
    asm volatile(HOPPER "tensormap.replace.tile." field ".shared::cta.b1024." type ", %1;" \
                 :                                                                         \
                 : "l"((ulong)map), letter(value)                                          \
                 : "memory")
#define MAP_SET_32(field, index, value) MAP_SET(field, "b32 [%0]" index, "r", value)
#define MAP_SET_64(field, index, value) MAP_SET(field, "b64 [%0]" index, "l", value)
#define MAP_CHOOSE(field, value)                                                                   \
    asm volatile(HOPPER "tensormap.replace.tile." field ".shared::cta.b1024.b32 [%0], " #value ";" \
                 :                                                                                 \
                 : "l"((ulong)map)                                                                 \
                 : "memory")

/*
 * A warp makes the map, at `to`, of a tensor of 16-bit elements [blocks, heads, tokens, columns] that begins at
 * `address`. sizes: x columns, y tokens, z heads, w blocks. strides: bytes from one token to the next (x), head (y) and
 * block (z). All of them multiples of 16, address too. A box is one head's `box_tokens` tokens of a block; what lies
 * outside the tensor is zeros. scratch: of the warp alone, aligned to MAP_BYTES.
 */
static void map_make(__global uchar *to, __local uint *scratch, ulong address, uint4 sizes, ulong3 strides,
                     uint box_tokens) {
    const uint map = local_address(scratch), lane = get_local_id(0) % 32;
    scratch[lane] = 0;
    warp_barrier();
    if (lane == 0) {
        MAP_SET_64("global_address", "", address);
        MAP_SET_32("rank", "", 3u); /* one less */
        MAP_SET_32("box_dim", ", 0", (uint)BOX_COLUMNS);
        MAP_SET_32("box_dim", ", 1", box_tokens);
        MAP_SET_32("box_dim", ", 2", 1u);
        MAP_SET_32("box_dim", ", 3", 1u);
        MAP_SET_32("global_dim", ", 0", sizes.x);
        MAP_SET_32("global_dim", ", 1", sizes.y);
        MAP_SET_32("global_dim", ", 2", sizes.z);
        MAP_SET_32("global_dim", ", 3", sizes.w);
        MAP_SET_64("global_stride", ", 0", strides.x);
        MAP_SET_64("global_stride", ", 1", strides.y);
        MAP_SET_64("global_stride", ", 2", strides.z);
        MAP_SET_32("element_stride", ", 0", 1u);
        MAP_SET_32("element_stride", ", 1", 1u);
        MAP_SET_32("element_stride", ", 2", 1u);
        MAP_SET_32("element_stride", ", 3", 1u);
        MAP_CHOOSE("elemtype", 1);          /* u16 */
        MAP_CHOOSE("interleave_layout", 0); /* none */
        MAP_CHOOSE("swizzle_mode", 3);      /* 128 bytes */
        MAP_CHOOSE("fill_mode", 0);         /* zeros */
    }
    warp_barrier();
    asm volatile("{ .reg .b64 to; cvta.to.global.u64 to, %0;\n" HOPPER
                 "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
                 "[to], [%1], 128;\n}"
                 :
                 : "l"((ulong)to), "l"((ulong)map)
                 : "memory");
}

/* Before the first use of a map that may have been made since the device used another at its place. */
static void map_acquire(const __global uchar *map) {
    asm volatile(HOPPER "fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" : : "l"((ulong)map) : "memory");
}

/* Begins to copy a box to local memory, at a multiple of 128 bytes. at: its first column, token, head, block. The
   barrier's phase waits for its bytes once they are expected. */
static void box_begin(uint to, const __global uchar *map, int4 at, uint barrier_at) {
    asm volatile(HOPPER "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                        "[%0], [%1, {%2, %3, %4, %5}], [%6];"
                 :
                 : "r"(to), "l"((ulong)map), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w), "r"(barrier_at)
                 : "memory");
}

/* Arrives, and lets the phase wait for so many bytes of boxes besides. */
static void mbarrier_arrive_expecting(uint at, uint bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(at), "r"(bytes) : "memory");
}

#endif
