/* SPDX-License-Identifier: Apache-2.0 */
#include "quirks.h"

#include <string.h>

pcl_quirks pcl_quirks_of(const pagedcl_device_info *info) {
    bool pocl = strcmp(info->platform_name, "Portable Computing Language") == 0;
    bool oclgrind = strcmp(info->platform_name, "Oclgrind") == 0;
    bool intel_gpu = strncmp(info->vendor, "Intel", 5) == 0 &&
                     (info->kind == PAGEDCL_DEVICE_DISCRETE_GPU || info->kind == PAGEDCL_DEVICE_INTEGRATED_GPU);
    bool nvidia_gpu = strncmp(info->vendor, "NVIDIA", 6) == 0 && info->kind != PAGEDCL_DEVICE_CPU;
    return (pcl_quirks){
        .keeps_programs = pocl,
        .compiles_at_launch = pocl,
        .builds_one_at_a_time = oclgrind,
        .registers_on_request = intel_gpu,
        .registers_by_limit = nvidia_gpu,
    };
}
