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

/* A tensor of 16-bit elements that begins at `address`, and the boxes that are copied of it. The first dimension's elements
   lie side by side; strides are the others', in bytes. They and the address are multiples of 16. */
typedef struct tensor_shape {
    int rank; /* 4 or 5 */
    ulong address;
    uint sizes[5];
    ulong strides[4];
    uint box[5];
} tensor_shape;

/* A warp makes the map of a tensor, at `to`. What lies outside the tensor is zeros in a box. scratch: of the warp alone,
   aligned to MAP_BYTES. */
static void map_make(__global uchar *to, __local uint *scratch, tensor_shape t) {
    const uint map = local_address(scratch), lane = get_local_id(0) % 32;
    scratch[lane] = 0;
    warp_barrier();
    if (lane == 0) {
        MAP_SET_64("global_address", "", t.address);
        MAP_SET_32("rank", "", (uint)t.rank - 1);
        MAP_SET_32("box_dim", ", 0", t.box[0]);
        MAP_SET_32("box_dim", ", 1", t.box[1]);
        MAP_SET_32("box_dim", ", 2", t.box[2]);
        MAP_SET_32("box_dim", ", 3", t.box[3]);
        MAP_SET_32("global_dim", ", 0", t.sizes[0]);
        MAP_SET_32("global_dim", ", 1", t.sizes[1]);
        MAP_SET_32("global_dim", ", 2", t.sizes[2]);
        MAP_SET_32("global_dim", ", 3", t.sizes[3]);
        MAP_SET_64("global_stride", ", 0", t.strides[0]);
        MAP_SET_64("global_stride", ", 1", t.strides[1]);
        MAP_SET_64("global_stride", ", 2", t.strides[2]);
        if (t.rank == 5) {
            MAP_SET_32("box_dim", ", 4", t.box[4]);
            MAP_SET_32("global_dim", ", 4", t.sizes[4]);
            MAP_SET_64("global_stride", ", 3", t.strides[3]);
            MAP_SET_32("element_stride", ", 4", 1u);
        }
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

/* Before the first use of a map that may have been made since the device used another at its place. Begins to load it. */
static void map_acquire(const __global uchar *map) {
    asm volatile(HOPPER "fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" : : "l"((ulong)map) : "memory");
    asm volatile("prefetch.tensormap [%0];" : : "l"((ulong)map) : "memory");
}

/* Begins to copy a box of 4 dimensions, or 5, to local memory, at a multiple of 128 bytes. at: its first element. The
   barrier's phase waits for its bytes once they are expected. box_stream: what is read once, so that the second-level cache
   need not keep it. */
static void box_begin(uint to, const __global uchar *map, int4 at, uint barrier_at) {
    asm volatile(HOPPER "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                        "[%0], [%1, {%2, %3, %4, %5}], [%6];"
                 :
                 : "r"(to), "l"((ulong)map), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w), "r"(barrier_at)
                 : "memory");
}
#define EVICT_FIRST "{ .reg .b64 policy; createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n" HOPPER
static void box_stream(uint to, const __global uchar *map, int4 at, uint barrier_at) {
    asm volatile(EVICT_FIRST
                 "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6], policy;\n}"
                 :
                 : "r"(to), "l"((ulong)map), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w), "r"(barrier_at)
                 : "memory");
}
static void box_stream5(uint to, const __global uchar *map, int4 at, int last, uint barrier_at) {
    asm volatile(EVICT_FIRST
                 "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], policy;\n}"
                 :
                 : "r"(to), "l"((ulong)map), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w), "r"(last), "r"(barrier_at)
                 : "memory");
}

#endif
