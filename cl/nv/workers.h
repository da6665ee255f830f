/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work-items of a work-group that compute: all of them, or those before HELPERS others.
 */
#ifndef NV_WORKERS_H
#define NV_WORKERS_H

#include "nv/warp.h"

#ifndef HELPERS
#define HELPERS 0
#endif
#define WORKERS (TUNE_WG - HELPERS)

/* A barrier of theirs. */
static void workers_barrier(void) {
#if HELPERS > 0
    asm volatile("bar.sync 1, %0;" : : "n"(WORKERS) : "memory");
#else
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
}

#endif
