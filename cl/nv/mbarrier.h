/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Barriers in local memory of NVIDIA's GPUs of compute capability 9.0 and later, where copies of boxes arrive (nv/tensor_map.h).
 */
#ifndef NV_MBARRIER_H
#define NV_MBARRIER_H

#include "nv/warp.h"

/* A barrier of 8 bytes in local memory: a phase ends when `count` arrivals are there, and the next, of the other
   parity, begins. */
static void mbarrier_init(uint at, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(at), "r"(count) : "memory");
}
static void mbarrier_arrive(uint at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(at) : "memory");
}

/* Whether the phase of that parity has ended; the second waits a little for it. The phase before the first has parity 1,
   and has. */
#define MBARRIER_ASK(name, instruction)                                                          \
    static bool name(uint at, uint parity) {                                                     \
        uint done;                                                                               \
        asm volatile("{ .reg .pred done; mbarrier." instruction ".parity.shared::cta.b64 done, " \
                     "[%1], %2; selp.u32 %0, 1, 0, done; }"                                      \
                     : "=r"(done)                                                                \
                     : "r"(at), "r"(parity)                                                      \
                     : "memory");                                                                \
        return done != 0;                                                                        \
    }
MBARRIER_ASK(mbarrier_test, "test_wait")
MBARRIER_ASK(mbarrier_try, "try_wait")

static void mbarrier_wait(uint at, uint parity) {
    while (!mbarrier_try(at, parity)) {
    }
}

/* Arrives, and lets the phase wait for so many bytes of boxes besides. */
static void mbarrier_arrive_expecting(uint at, uint bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(at), "r"(bytes) : "memory");
}

/* Lets the phase wait for this work-item's copies of copy_begin16 that it has begun, besides its arrivals. */
static void copy_arrive(uint at) {
    asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" : : "r"(at) : "memory");
}

/* Boxes that are copied later, and products of warpgroups, see what this work-item wrote before. */
static void fence_async(void) {
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

#endif
