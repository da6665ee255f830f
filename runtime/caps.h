/* SPDX-License-Identifier: Apache-2.0 */
/* What a device is and can do, asked of OpenCL. */
#ifndef PCL_CAPS_H
#define PCL_CAPS_H

#include <pagedcl/device.h>

/* Fills every field of info but the indices. A property that the driver refuses to tell counts as absent. */
void pcl_caps_query(cl_platform_id platform, cl_device_id id, pagedcl_device_info *info);

#endif
