/* SPDX-License-Identifier: Apache-2.0 */
/* Habits of OpenCL implementations that the runtime must know, each with its reason. */
#ifndef PCL_QUIRKS_H
#define PCL_QUIRKS_H

#include <pagedcl/device.h>

#include <stdbool.h>

typedef struct pcl_quirks {
    /* PoCL keeps built kernels on disk itself, per work-group size; asking it for a program's binary makes it compile
       a further, generic copy of every kernel. */
    bool keeps_programs;
    /* PoCL compiles a kernel at its first launch. */
    bool compiles_at_launch;
    /* Oclgrind's compiler crashes when two threads call it. */
    bool builds_one_at_a_time;
    /* Intel's compiler for GPUs lets a thread have half of the registers unless an option asks for all, and shares them
       among up to 32 work-items unless an attribute says fewer. */
    bool registers_on_request;
    /* NVIDIA's compiler gives a work-item all the registers that it finds a use for, which may leave a multiprocessor too
       few work-groups to wait for memory with; an option says how many at most. */
    bool registers_by_limit;
} pcl_quirks;

pcl_quirks pcl_quirks_of(const pagedcl_device_info *info);

#endif
