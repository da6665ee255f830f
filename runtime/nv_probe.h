/* SPDX-License-Identifier: Apache-2.0 */
/* Whether an NVIDIA GPU can run tier nv_mma. */
#ifndef PCL_NV_PROBE_H
#define PCL_NV_PROBE_H

#include "device.h"
#include "variant.h"

/* Major version * 10 + minor version of the compute capability, 0 where the driver knows none. */
int pcl_nv_capability(cl_device_id id);

/* The least of tier nv_mma. */
enum { PCL_NV_MMA_CAPABILITY = 80 };

/* Bytes of local memory that a work-group may declare: more than OpenCL's limit says. */
int64_t pcl_nv_local_memory(int capability);

/*
 * Builds a small kernel, runs it on the device's queue and compares (blocking). What fails makes the tier portable, and
 * tier_reason says why; so does memory that cannot be had.
 */
void pcl_nv_probe(pagedcl_device *device);

/* The kernel of the probe. */
void pcl_nv_probe_variant(pcl_variant *variant);

#endif
