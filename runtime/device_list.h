/* SPDX-License-Identifier: Apache-2.0 */
/* Every device of every platform. */
#ifndef PCL_DEVICE_LIST_H
#define PCL_DEVICE_LIST_H

#include <pagedcl/device.h>

typedef struct pcl_listed_device {
    cl_platform_id platform;
    cl_device_id id;
    pagedcl_device_info info;
} pcl_listed_device;

/* *devices is the caller's to free, in the ICD loader's order; NULL on failure. Errors: as pagedcl_device_list. */
pagedcl_status pcl_device_list(pcl_listed_device **devices, size_t *count);

/* The device that the selector means, see pagedcl_device_open: its index, or count when none matches. */
size_t pcl_device_select(const pcl_listed_device *devices, size_t count, const char *selector);

#endif
