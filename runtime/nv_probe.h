/* SPDX-License-Identifier: Apache-2.0 */
/* Whether an NVIDIA GPU can run the tiers nv_mma and nv_wgmma. */
#ifndef PCL_NV_PROBE_H
#define PCL_NV_PROBE_H

#include "device.h"
#include "variant.h"

/* Major version * 10 + minor version of the compute capability, 0 where the driver knows none. */
int pcl_nv_capability(cl_device_id id);

/* The least of tier nv_mma, the least for its 8-bit floats of type e4m3, and that of nv_wgmma, whose instructions other
   GPUs do not have. */
enum { PCL_NV_MMA_CAPABILITY = 80, PCL_NV_E4M3_CAPABILITY = 89, PCL_NV_WGMMA_CAPABILITY = 90 };

/* Whether a tier's kernels, or those that it falls back to, are for NVIDIA's GPUs alone. */
static inline bool pcl_tier_is_nv(pagedcl_tier tier) {
    return tier == PAGEDCL_TIER_NV_MMA || tier == PAGEDCL_TIER_NV_WGMMA;
}

/* Bytes of local memory that a work-group may declare: more than OpenCL's limit says. */
int64_t pcl_nv_local_memory(int capability);

/*
 * For a device whose tier is one of those: builds a small kernel, runs it on the device's queue and compares (blocking).
 * What fails, memory that cannot be had too, makes the tier the next simpler one, which is tried in the same way;
 * tier_reason and the log say why.
 */
void pcl_nv_probe(pagedcl_device *device);

/* The kernel of a tier's probe. */
void pcl_nv_probe_variant(pagedcl_tier tier, pcl_variant *variant);

#endif
