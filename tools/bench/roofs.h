/* SPDX-License-Identifier: Apache-2.0 */
/* What the device can do at most, measured by kernels that do nothing else. */
#ifndef BENCH_ROOFS_H
#define BENCH_ROOFS_H

#include "measure.h"

/* A rate that was not measured is NaN. */
typedef struct bench_roofs {
    double read;              /* bytes a second */
    double write;             /* likewise */
    double copy;              /* likewise, read and written bytes added */
    double multiply_add;      /* operations a second, two in each multiply-add: float32 */
    double multiply_add_half; /* float16 vectors, with cl_khr_fp16 */
    double matrix;            /* float16 matrices with float32 sums, where bench.cl has a kernel for it */
    double launch;            /* seconds that a kernel takes that does nothing, one behind the other */
    double launch_and_wait;   /* seconds from the call of such a kernel until the host knows that it is done */
} bench_roofs;

bool bench_roofs_measure(const bench_rig *rig, double seconds, bench_roofs *roofs, tool_error *error);

#endif
