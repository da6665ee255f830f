/* SPDX-License-Identifier: Apache-2.0 */
/* Counters on the device of what kernels had to guard against: the two uints of pagedcl_faults. They only rise. */
#ifndef PCL_FAULTS_H
#define PCL_FAULTS_H

#include "chain.h"

#include <pagedcl/cache.h>

typedef struct pcl_faults {
    const pagedcl_device *device;
    cl_mem counters; /* NULL: not created */
    pcl_fence last;  /* the last command that counts or reads */
} pcl_faults;

/* Counters that are 0. */
pagedcl_status pcl_faults_create(const pagedcl_device *device, pcl_faults *faults);
void pcl_faults_release(pcl_faults *faults);

/* Puts the chain behind the counting before, so that a read finds all of it behind the last command alone. */
pagedcl_status pcl_faults_use(const pcl_faults *faults, pcl_chain *chain);

/* The chain, whose last command counted, ends here: to be called before pcl_chain_end. */
void pcl_faults_used(pcl_faults *faults, pcl_chain *chain);

/* Enqueues a read of the counters. */
pagedcl_status pcl_faults_read(pcl_faults *faults, cl_command_queue queue, pagedcl_faults *to, cl_uint num_events,
                               const cl_event *events, cl_event *event);

#endif
