/* SPDX-License-Identifier: Apache-2.0 */
#include "device_list.h"

#include "caps.h"
#include "opencl_load.h"
#include "status.h"
#include "struct_size.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEVICES_PER_PLATFORM = 256 };

static pagedcl_status no_platform(void) {
    const char *missing = pcl_opencl_missing();
    if (missing != NULL)
        return pcl_fail(
            PAGEDCL_NO_PLATFORM,
            "OpenCL is not installed (%s): install the OpenCL loader, which is ocl-icd-libopencl1 in Debian "
            "and Ubuntu, and the GPU vendor's OpenCL driver, or pocl-opencl-icd for the CPU",
            missing);
    return pcl_fail(PAGEDCL_NO_PLATFORM,
                    "no OpenCL driver is installed, or the ICD loader cannot find one: install the GPU vendor's OpenCL "
                    "driver, or pocl-opencl-icd for the CPU; OCL_ICD_VENDORS and OCL_ICD_FILENAMES change where the "
                    "loader looks");
}

pagedcl_status pcl_device_list(pcl_listed_device **devices, size_t *count) {
    *devices = NULL;
    *count = 0;
    cl_uint num_platforms = 0;
    cl_int code = clGetPlatformIDs(0, NULL, &num_platforms);
    if (code == -1001 || (code == CL_SUCCESS && num_platforms == 0))
        return no_platform();
    if (code != CL_SUCCESS)
        return pcl_fail_opencl(code, "clGetPlatformIDs");
    cl_platform_id *platforms = calloc(num_platforms, sizeof *platforms);
    if (platforms == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for the list of platforms");
    code = clGetPlatformIDs(num_platforms, platforms, NULL);
    if (code != CL_SUCCESS) {
        free(platforms);
        return pcl_fail_opencl(code, "clGetPlatformIDs");
    }
    pcl_listed_device *list = NULL;
    size_t length = 0;
    for (cl_uint p = 0; p < num_platforms; p++) {
        cl_device_id ids[MAX_DEVICES_PER_PLATFORM];
        cl_uint num_ids = 0;
        /* A platform without devices, or with a broken driver, must not hide the others. */
        if (clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, MAX_DEVICES_PER_PLATFORM, ids, &num_ids) != CL_SUCCESS)
            continue;
        if (num_ids > MAX_DEVICES_PER_PLATFORM)
            num_ids = MAX_DEVICES_PER_PLATFORM;
        if (num_ids == 0)
            continue;
        pcl_listed_device *longer = realloc(list, (length + num_ids) * sizeof *list);
        if (longer == NULL) {
            free(list);
            free(platforms);
            return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for the list of devices");
        }
        list = longer;
        for (cl_uint d = 0; d < num_ids; d++) {
            pcl_listed_device *device = &list[length++];
            *device = (pcl_listed_device){.platform = platforms[p], .id = ids[d]};
            device->info.struct_size = sizeof device->info;
            device->info.platform_index = (int32_t)p;
            device->info.device_index = (int32_t)d;
            pcl_caps_query(platforms[p], ids[d], &device->info);
        }
    }
    free(platforms);
    *devices = list;
    *count = length;
    return PAGEDCL_SUCCESS;
}

/* Whether `part` occurs in `text`, case ignored. */
static bool contains(const char *text, const char *part) {
    size_t length = strlen(part);
    for (; strlen(text) >= length; text++) {
        size_t i = 0;
        while (i < length && tolower((unsigned char)text[i]) == tolower((unsigned char)part[i]))
            i++;
        if (i == length)
            return true;
    }
    return false;
}

static bool same(const char *a, const char *b) {
    return strlen(a) == strlen(b) && contains(a, b);
}

static bool matches(const pagedcl_device_info *info, const char *selector) {
    int platform = 0, device = 0, used = 0;
    if (sscanf(selector, "%d:%d%n", &platform, &device, &used) == 2 && selector[used] == '\0')
        return info->platform_index == platform && info->device_index == device;
    if (same(selector, "gpu"))
        return info->kind == PAGEDCL_DEVICE_DISCRETE_GPU || info->kind == PAGEDCL_DEVICE_INTEGRATED_GPU;
    if (same(selector, "cpu"))
        return info->kind == PAGEDCL_DEVICE_CPU;
    if (same(selector, "accelerator"))
        return info->kind == PAGEDCL_DEVICE_ACCELERATOR;
    bool pocl = contains(info->platform_name, "Portable Computing Language");
    if (same(selector, "pocl"))
        return pocl;
    /* PoCL names the CPU's maker, so that "intel" would find it where Intel's own runtime is meant. */
    if (same(selector, "nvidia") || same(selector, "intel"))
        return !pocl && (contains(info->vendor, selector) || contains(info->platform_name, selector));
    if (same(selector, "amd"))
        return !pocl && (contains(info->vendor, "Advanced Micro Devices") || contains(info->vendor, "AMD") ||
                         contains(info->platform_name, "AMD"));
    return contains(info->device_name, selector) || contains(info->platform_name, selector);
}

size_t pcl_device_select(const pcl_listed_device *devices, size_t count, const char *selector) {
    size_t best = count;
    for (size_t i = 0; i < count; i++) {
        const pagedcl_device_info *info = &devices[i].info;
        if (!info->usable || (selector[0] != '\0' && !matches(info, selector)))
            continue;
        const pagedcl_device_info *best_info = best < count ? &devices[best].info : NULL;
        if (best_info == NULL || info->kind < best_info->kind ||
            (info->kind == best_info->kind && info->compute_units > best_info->compute_units))
            best = i;
    }
    return best;
}

pagedcl_status pagedcl_device_list(pagedcl_device_info *infos, size_t capacity, size_t *count) {
    if (count == NULL || (infos == NULL && capacity > 0))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "pagedcl_device_list needs count, and infos when capacity is not 0");
    pcl_listed_device *devices = NULL;
    size_t length = 0;
    PCL_TRY(pcl_device_list(&devices, &length));
    pagedcl_status status = PAGEDCL_SUCCESS;
    /* The caller's array has the stride of the caller's struct. */
    char *at = (char *)infos;
    for (size_t i = 0; i < length && i < capacity && status == PAGEDCL_SUCCESS; i++) {
        pagedcl_device_info *info = (pagedcl_device_info *)(void *)at;
        status = PCL_FILL_STRUCT(info, &devices[i].info, tier_reason);
        at += info->struct_size;
    }
    free(devices);
    if (status == PAGEDCL_SUCCESS)
        *count = length;
    return status;
}
