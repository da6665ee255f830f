/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PCL_DEVICE_H
#define PCL_DEVICE_H

#include "quirks.h"
#include "thread.h"
#include "tuning.h"

#include <pagedcl/device.h>

#include <stdatomic.h>

struct pagedcl_device {
    atomic_int references;
    cl_context context;
    cl_device_id id;
    cl_command_queue queue;
    pagedcl_device_info info; /* tier: the one in use */
    int nv_capability;        /* as pcl_nv_capability */
    int float_lanes;          /* floats in a vector register, as far as the driver tells; 0: unknown */
    pcl_quirks quirks;
    pagedcl_log_callback log;
    void *log_user;
    char *cache_dir; /* NULL: no cache on disk */
    pcl_mutex log_lock;
    pcl_mutex lock; /* of what follows */
    pagedcl_build_stats builds;
    pcl_tuning_list tuned;
};

/* One more owner; pagedcl_device_destroy drops it. */
pagedcl_device *pcl_device_retain(pagedcl_device *device);

/* Passes one message to the log callback, whole however long. */
__attribute__((format(printf, 3, 4))) void pcl_log(pagedcl_device *device, pagedcl_log_level level, const char *format,
                                                   ...);

#endif
