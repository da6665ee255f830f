/* SPDX-License-Identifier: Apache-2.0 */
/* What a device is and can do, asked of OpenCL. */
#ifndef PCL_CAPS_H
#define PCL_CAPS_H

#include <pagedcl/device.h>

/* Fills every field of info but the indices. A property that the driver refuses to tell counts as absent. */
void pcl_caps_query(cl_platform_id platform, cl_device_id id, pagedcl_device_info *info);

/* Floats in a register of the device, by its native vector width; 0 when the driver does not tell. */
int pcl_float_lanes(cl_device_id id);

/* Whether the word is in the device's space-separated list of extensions. */
int pcl_has_extension(cl_device_id id, const char *word);

#endif
