/* SPDX-License-Identifier: Apache-2.0 */
#include "caps.h"

#include "nv_probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *pagedcl_device_kind_name(pagedcl_device_kind kind) {
    switch (kind) {
    case PAGEDCL_DEVICE_DISCRETE_GPU:
        return "discrete gpu";
    case PAGEDCL_DEVICE_INTEGRATED_GPU:
        return "integrated gpu";
    case PAGEDCL_DEVICE_ACCELERATOR:
        return "accelerator";
    case PAGEDCL_DEVICE_CPU:
        return "cpu";
    }
    return "invalid";
}

const char *pagedcl_tier_name(pagedcl_tier tier) {
    switch (tier) {
    case PAGEDCL_TIER_AUTO:
        return "auto";
    case PAGEDCL_TIER_PORTABLE:
        return "portable";
    case PAGEDCL_TIER_CPU:
        return "cpu";
    case PAGEDCL_TIER_NV_MMA:
        return "nv_mma";
    case PAGEDCL_TIER_NV_WGMMA:
        return "nv_wgmma";
    }
    return "invalid";
}

/* Copies what fits of a string that OpenCL gave, without the blanks that some drivers put around it. */
static void copy_trimmed(char *to, size_t size, const char *from) {
    while (*from == ' ')
        from++;
    size_t length = strlen(from);
    while (length > 0 && from[length - 1] == ' ')
        length--;
    if (length >= size)
        length = size - 1;
    memcpy(to, from, length);
    to[length] = '\0';
}

static void platform_string(cl_platform_id platform, cl_platform_info name, char *to, size_t size) {
    char text[1024] = "";
    if (clGetPlatformInfo(platform, name, sizeof text - 1, text, NULL) != CL_SUCCESS)
        text[0] = '\0';
    copy_trimmed(to, size, text);
}

static void device_string(cl_device_id id, cl_device_info name, char *to, size_t size) {
    char text[1024] = "";
    if (clGetDeviceInfo(id, name, sizeof text - 1, text, NULL) != CL_SUCCESS)
        text[0] = '\0';
    copy_trimmed(to, size, text);
}

static cl_bool device_bool(cl_device_id id, cl_device_info name) {
    cl_bool value = CL_FALSE;
    return clGetDeviceInfo(id, name, sizeof value, &value, NULL) == CL_SUCCESS && value;
}

static uint64_t device_ulong(cl_device_id id, cl_device_info name) {
    cl_ulong value = 0;
    return clGetDeviceInfo(id, name, sizeof value, &value, NULL) == CL_SUCCESS ? value : 0;
}

int pcl_has_extension(cl_device_id id, const char *word) {
    size_t size = 0;
    if (clGetDeviceInfo(id, CL_DEVICE_EXTENSIONS, 0, NULL, &size) != CL_SUCCESS || size == 0)
        return 0;
    char *list = malloc(size + 1);
    if (list == NULL)
        return 0;
    int found = 0;
    if (clGetDeviceInfo(id, CL_DEVICE_EXTENSIONS, size, list, NULL) == CL_SUCCESS) {
        list[size] = '\0';
        size_t length = strlen(word);
        for (const char *at = list; (at = strstr(at, word)) != NULL && !found; at += length)
            found = (at == list || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0');
    }
    free(list);
    return found;
}

int pcl_float_lanes(cl_device_id id) {
    cl_uint lanes = 0;
    return clGetDeviceInfo(id, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, sizeof lanes, &lanes, NULL) == CL_SUCCESS
               ? (int)lanes
               : 0;
}

/* "OpenCL 3.0 PoCL ..." is 3, 0. */
static int version_below_1_2(const char *device_version) {
    int major = 0, minor = 0;
    if (sscanf(device_version, "OpenCL %d.%d", &major, &minor) != 2)
        return 1;
    return major < 1 || (major == 1 && minor < 2);
}

static pagedcl_device_kind kind_of(cl_device_id id) {
    cl_device_type type = 0;
    if (clGetDeviceInfo(id, CL_DEVICE_TYPE, sizeof type, &type, NULL) != CL_SUCCESS)
        type = 0;
    if (type & CL_DEVICE_TYPE_GPU)
        return device_bool(id, CL_DEVICE_HOST_UNIFIED_MEMORY) ? PAGEDCL_DEVICE_INTEGRATED_GPU
                                                              : PAGEDCL_DEVICE_DISCRETE_GPU;
    return type & CL_DEVICE_TYPE_CPU ? PAGEDCL_DEVICE_CPU : PAGEDCL_DEVICE_ACCELERATOR;
}

static void choose_tier(cl_device_id id, pagedcl_device_info *info) {
    const char *refusal = NULL;
    if (!device_bool(id, CL_DEVICE_AVAILABLE))
        refusal = "the driver says that the device is not available";
    else if (!device_bool(id, CL_DEVICE_COMPILER_AVAILABLE))
        refusal = "the driver has no OpenCL C compiler";
    else if (version_below_1_2(info->device_version))
        refusal = "the device is older than OpenCL 1.2";
    else if (!device_bool(id, CL_DEVICE_ENDIAN_LITTLE))
        refusal = "the device is big-endian";
    info->usable = refusal == NULL;
    info->tier = PAGEDCL_TIER_PORTABLE;
    const char *reason =
        "runs on every device; cpu is for devices of type CPU, nv_mma and nv_wgmma for NVIDIA's GPUs from "
        "compute capability 8.0 on";
    int capability = pcl_nv_capability(id);
    char nv_reason[128];
    if (info->kind == PAGEDCL_DEVICE_CPU) {
        info->tier = PAGEDCL_TIER_CPU;
        reason = "a CPU: wide vectors instead of work-groups; no higher tier is for CPUs";
    } else if (capability >= PCL_NV_MMA_CAPABILITY) {
        info->tier = capability == PCL_NV_WGMMA_CAPABILITY ? PAGEDCL_TIER_NV_WGMMA : PAGEDCL_TIER_NV_MMA;
        snprintf(nv_reason, sizeof nv_reason, "compute capability %d.%d; operators that it does not serve run as %s",
                 capability / 10, capability % 10,
                 info->tier == PAGEDCL_TIER_NV_MMA ? "portable" : "nv_mma or portable");
        reason = nv_reason;
    }
    copy_trimmed(info->tier_reason, sizeof info->tier_reason, refusal != NULL ? refusal : reason);
}

void pcl_caps_query(cl_platform_id platform, cl_device_id id, pagedcl_device_info *info) {
    info->kind = kind_of(id);
    platform_string(platform, CL_PLATFORM_NAME, info->platform_name, sizeof info->platform_name);
    platform_string(platform, CL_PLATFORM_VERSION, info->platform_version, sizeof info->platform_version);
    device_string(id, CL_DEVICE_NAME, info->device_name, sizeof info->device_name);
    device_string(id, CL_DEVICE_VENDOR, info->vendor, sizeof info->vendor);
    device_string(id, CL_DEVICE_VERSION, info->device_version, sizeof info->device_version);
    device_string(id, CL_DRIVER_VERSION, info->driver_version, sizeof info->driver_version);
    device_string(id, CL_DEVICE_OPENCL_C_VERSION, info->opencl_c_version, sizeof info->opencl_c_version);
    info->global_memory = device_ulong(id, CL_DEVICE_GLOBAL_MEM_SIZE);
    info->max_allocation = device_ulong(id, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    info->local_memory = device_ulong(id, CL_DEVICE_LOCAL_MEM_SIZE);
    cl_uint units = 0;
    if (clGetDeviceInfo(id, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL) != CL_SUCCESS)
        units = 0;
    info->compute_units = units;
    /* The first dimension's limit may be lower than the work-group's, and all kernels use that dimension. */
    size_t group = 0, items[16] = {0};
    if (clGetDeviceInfo(id, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof group, &group, NULL) != CL_SUCCESS)
        group = 1;
    if (clGetDeviceInfo(id, CL_DEVICE_MAX_WORK_ITEM_SIZES, sizeof items, items, NULL) == CL_SUCCESS && items[0] > 0 &&
        items[0] < group)
        group = items[0];
    info->max_work_group_size = group;
    info->has_fp16 = pcl_has_extension(id, "cl_khr_fp16");
    info->has_subgroups = pcl_has_extension(id, "cl_khr_subgroups") || pcl_has_extension(id, "cl_intel_subgroups");
    choose_tier(id, info);
}
