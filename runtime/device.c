/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include "caps.h"
#include "device_list.h"
#include "file_system.h"
#include "nv_probe.h"
#include "status.h"
#include "struct_size.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void pcl_log(pagedcl_device *device, pagedcl_log_level level, const char *format, ...) {
    if (device->log == NULL)
        return;
    va_list args;
    va_start(args, format);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *message = length < 0 ? NULL : malloc((size_t)length + 1);
    if (message == NULL)
        return;
    va_start(args, format);
    vsnprintf(message, (size_t)length + 1, format, args);
    va_end(args);
    pcl_mutex_lock(&device->log_lock);
    device->log(device->log_user, level, message);
    pcl_mutex_unlock(&device->log_lock);
    free(message);
}

/* The tier that the options or the environment ask for, else the best. */
static pagedcl_status choose_tier(pagedcl_device *device, pagedcl_tier asked) {
    const char *source = "the device's options";
    if (asked == PAGEDCL_TIER_AUTO) {
        const char *name = getenv("PAGEDCL_TIER");
        if (name == NULL || name[0] == '\0' || strcmp(name, "auto") == 0)
            return PAGEDCL_SUCCESS;
        source = "the environment's PAGEDCL_TIER";
        if (strcmp(name, "portable") == 0)
            asked = PAGEDCL_TIER_PORTABLE;
        else if (strcmp(name, "cpu") == 0)
            asked = PAGEDCL_TIER_CPU;
        else if (strcmp(name, "nv_mma") == 0)
            asked = PAGEDCL_TIER_NV_MMA;
        else if (strcmp(name, "nv_wgmma") == 0)
            asked = PAGEDCL_TIER_NV_WGMMA;
        else
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                            "PAGEDCL_TIER is \"%s\"; it may be auto, portable, cpu, nv_mma or nv_wgmma", name);
    }
    if (asked == PAGEDCL_TIER_NV_MMA && device->nv_capability < PCL_NV_MMA_CAPABILITY)
        return pcl_fail(PAGEDCL_UNSUPPORTED,
                        "tier nv_mma, asked for by %s, needs an NVIDIA GPU of compute capability 8.0", source);
    if (asked == PAGEDCL_TIER_NV_WGMMA && device->nv_capability != PCL_NV_WGMMA_CAPABILITY)
        return pcl_fail(PAGEDCL_UNSUPPORTED,
                        "tier nv_wgmma, asked for by %s, needs an NVIDIA GPU of compute capability 9.0", source);
    if (asked < PAGEDCL_TIER_PORTABLE || asked > PAGEDCL_TIER_NV_WGMMA)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "tier %d is not one of pagedcl_tier", (int)asked);
    device->info.tier = asked;
    snprintf(device->info.tier_reason, sizeof device->info.tier_reason, "asked for by %s", source);
    return PAGEDCL_SUCCESS;
}

/* folder + "/" + rest in memory of its own. */
static char *join(const char *folder, const char *rest) {
    size_t size = strlen(folder) + strlen(rest) + 2;
    char *path = malloc(size);
    if (path != NULL)
        snprintf(path, size, "%s/%s", folder, rest);
    return path;
}

/* Where built programs are kept; *dir is NULL for nowhere. */
static pagedcl_status choose_cache_dir(const char *asked, char **dir) {
    *dir = NULL;
    if (asked == NULL)
        asked = getenv("PAGEDCL_CACHE_DIR");
    if (asked != NULL) {
        if (asked[0] == '\0')
            return PAGEDCL_SUCCESS;
        *dir = join(asked, "");
    } else {
        char *folder = NULL;
        if (pcl_fs_cache_folder(&folder) && folder == NULL)
            return PAGEDCL_SUCCESS;
        *dir = folder != NULL ? join(folder, "pagedcl") : NULL;
        free(folder);
    }
    return *dir != NULL ? PAGEDCL_SUCCESS : pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for the cache folder's name");
}

/* The tuning database that the options or the environment name. */
static pagedcl_status load_tuning(pagedcl_device *device, const char *path) {
    if (path == NULL)
        path = getenv("PAGEDCL_TUNING");
    if (path == NULL || path[0] == '\0')
        return PAGEDCL_SUCCESS;
    PCL_TRY(pcl_tuning_load(path, &device->info, &device->tuned));
    pcl_log(device, PAGEDCL_LOG_INFO, "tuning database %s: %zu families for this device", path, device->tuned.count);
    return PAGEDCL_SUCCESS;
}

/* A device around OpenCL objects, each of which it retains. */
static pagedcl_status make(cl_context context, cl_device_id id, cl_command_queue queue, const pagedcl_device_info *info,
                           const pagedcl_device_options *options, pagedcl_device **out) {
    pagedcl_device *device = calloc(1, sizeof *device);
    if (device == NULL || !pcl_mutex_init(&device->lock) || !pcl_mutex_init(&device->log_lock)) {
        free(device);
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for a device");
    }
    atomic_init(&device->references, 1);
    device->info = *info;
    device->info.struct_size = sizeof device->info;
    device->builds.struct_size = sizeof device->builds;
    device->quirks = pcl_quirks_of(info);
    device->log = options->log;
    device->log_user = options->log_user;
    device->id = id;
    device->nv_capability = pcl_nv_capability(id);
    device->float_lanes = pcl_float_lanes(id);
    pagedcl_status status = choose_tier(device, options->tier);
    if (status == PAGEDCL_SUCCESS)
        status = choose_cache_dir(options->cache_dir, &device->cache_dir);
    if (status == PAGEDCL_SUCCESS)
        status = load_tuning(device, options->tuning);
    cl_int code = CL_SUCCESS;
    if (status == PAGEDCL_SUCCESS && (code = clRetainContext(context)) == CL_SUCCESS) {
        device->context = context;
        if ((code = clRetainCommandQueue(queue)) == CL_SUCCESS)
            device->queue = queue;
    }
    if (status == PAGEDCL_SUCCESS && code != CL_SUCCESS)
        status = pcl_fail_opencl(code, "retaining the context and the queue");
    if (status != PAGEDCL_SUCCESS) {
        pagedcl_device_destroy(device);
        return status;
    }
    pcl_nv_probe(device);
    pcl_log(device, PAGEDCL_LOG_INFO, "device %s (%s), driver %s, tier %s: %s", info->device_name, info->platform_name,
            info->driver_version, pagedcl_tier_name(device->info.tier), device->info.tier_reason);
    *out = device;
    return PAGEDCL_SUCCESS;
}

/* Names every device, for a selector that matches none. */
static pagedcl_status no_device(const pcl_listed_device *devices, size_t count, const char *selector) {
    char list[2048] = "";
    size_t used = 0;
    for (size_t i = 0; i < count && used < sizeof list; i++) {
        const pagedcl_device_info *info = &devices[i].info;
        int length = snprintf(list + used, sizeof list - used, "%s%d:%d %s%s", i == 0 ? "" : ", ", info->platform_index,
                              info->device_index, info->device_name, info->usable ? "" : " (not usable)");
        used += length < 0 ? 0 : (size_t)length;
    }
    if (count == 0)
        return pcl_fail(PAGEDCL_NO_DEVICE, "OpenCL is installed but has no device: check the GPU's driver, or install "
                                           "pocl-opencl-icd to use the CPU");
    if (selector[0] == '\0')
        return pcl_fail(PAGEDCL_NO_DEVICE, "no OpenCL device is usable; there is %s", list);
    return pcl_fail(
        PAGEDCL_NO_DEVICE,
        "no usable OpenCL device matches \"%s\"; there is %s. Choose by P:D, gpu, cpu, accelerator, nvidia, "
        "amd, intel, pocl or a part of a name",
        selector, list);
}

static pagedcl_status read_options(const pagedcl_device_options *options, pagedcl_device_options *own) {
    static const pagedcl_device_options defaults = PAGEDCL_DEVICE_OPTIONS_INIT;
    if (options == NULL)
        options = &defaults;
    return PCL_READ_STRUCT(own, options, profiling);
}

static pagedcl_status open_listed(const pcl_listed_device *listed, const pagedcl_device_options *options,
                                  pagedcl_device **device) {
    cl_context_properties properties[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)listed->platform, 0};
    cl_int code = CL_SUCCESS;
    cl_context context = clCreateContext(properties, 1, &listed->id, NULL, NULL, &code);
    if (code != CL_SUCCESS)
        return pcl_fail_opencl(code, "clCreateContext");
    cl_command_queue queue =
        clCreateCommandQueue(context, listed->id, options->profiling ? CL_QUEUE_PROFILING_ENABLE : 0, &code);
    pagedcl_status status = code == CL_SUCCESS ? make(context, listed->id, queue, &listed->info, options, device)
                                               : pcl_fail_opencl(code, "clCreateCommandQueue");
    if (code == CL_SUCCESS)
        clReleaseCommandQueue(queue);
    clReleaseContext(context);
    return status;
}

pagedcl_status pagedcl_device_open(const char *selector, const pagedcl_device_options *options,
                                   pagedcl_device **device) {
    if (device == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "device is NULL");
    pagedcl_device_options own;
    PCL_TRY(read_options(options, &own));
    if (selector == NULL || selector[0] == '\0')
        selector = getenv("PAGEDCL_DEVICE");
    if (selector == NULL)
        selector = "";
    pcl_listed_device *devices = NULL;
    size_t count = 0;
    PCL_TRY(pcl_device_list(&devices, &count));
    size_t chosen = pcl_device_select(devices, count, selector);
    pagedcl_status status =
        chosen < count ? open_listed(&devices[chosen], &own, device) : no_device(devices, count, selector);
    free(devices);
    return status;
}

/* Whether the queue belongs to the context and the device, and the device to the context. */
static pagedcl_status check_adoption(cl_context context, cl_device_id id, cl_command_queue queue) {
    cl_context queue_context = NULL;
    cl_device_id queue_device = NULL;
    cl_int code = clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof queue_context, &queue_context, NULL);
    if (code == CL_SUCCESS)
        code = clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof queue_device, &queue_device, NULL);
    if (code != CL_SUCCESS)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "queue is not a command queue: clGetCommandQueueInfo returned %d (%s)", (int)code,
                        pcl_opencl_error_name(code));
    if (queue_context != context)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "the queue belongs to another context");
    if (queue_device != id)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "the queue belongs to another device");
    return PAGEDCL_SUCCESS;
}

/* Finds where an adopted device stands in the list; it may be nowhere, a sub-device for instance. */
static void find_indices(cl_device_id id, pagedcl_device_info *info) {
    info->platform_index = info->device_index = -1;
    pcl_listed_device *devices = NULL;
    size_t count = 0;
    if (pcl_device_list(&devices, &count) != PAGEDCL_SUCCESS)
        return;
    for (size_t i = 0; i < count; i++)
        if (devices[i].id == id) {
            info->platform_index = devices[i].info.platform_index;
            info->device_index = devices[i].info.device_index;
        }
    free(devices);
}

pagedcl_status pagedcl_device_adopt(cl_context context, cl_device_id id, cl_command_queue queue,
                                    const pagedcl_device_options *options, pagedcl_device **device) {
    if (context == NULL || id == NULL || queue == NULL || device == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "context, id, queue and device must not be NULL");
    pagedcl_device_options own;
    PCL_TRY(read_options(options, &own));
    PCL_TRY(check_adoption(context, id, queue));
    cl_platform_id platform = NULL;
    cl_int code = clGetDeviceInfo(id, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL);
    if (code != CL_SUCCESS)
        return pcl_fail_opencl(code, "clGetDeviceInfo");
    pagedcl_device_info info = PAGEDCL_DEVICE_INFO_INIT;
    find_indices(id, &info);
    pcl_caps_query(platform, id, &info);
    if (!info.usable)
        return pcl_fail(PAGEDCL_UNSUPPORTED, "%s cannot be used: %s", info.device_name, info.tier_reason);
    return make(context, id, queue, &info, &own, device);
}

pagedcl_device *pcl_device_retain(pagedcl_device *device) {
    atomic_fetch_add(&device->references, 1);
    return device;
}

void pagedcl_device_destroy(pagedcl_device *device) {
    if (device == NULL || atomic_fetch_sub(&device->references, 1) > 1)
        return;
    if (device->queue != NULL)
        clReleaseCommandQueue(device->queue);
    if (device->context != NULL)
        clReleaseContext(device->context);
    pcl_mutex_destroy(&device->log_lock);
    pcl_mutex_destroy(&device->lock);
    pcl_tuning_free(&device->tuned);
    free(device->cache_dir);
    free(device);
}

cl_context pagedcl_device_context(const pagedcl_device *device) {
    return device->context;
}

cl_device_id pagedcl_device_id(const pagedcl_device *device) {
    return device->id;
}

cl_command_queue pagedcl_device_queue(const pagedcl_device *device) {
    return device->queue;
}

pagedcl_status pagedcl_device_get_info(const pagedcl_device *device, pagedcl_device_info *info) {
    if (device == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "device is NULL");
    return PCL_FILL_STRUCT(info, &device->info, tier_reason);
}

pagedcl_status pagedcl_device_get_build_stats(const pagedcl_device *device, pagedcl_build_stats *stats) {
    if (device == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "device is NULL");
    pagedcl_device *unlocked = (pagedcl_device *)device; /* the lock is the only thing that changes */
    pcl_mutex_lock(&unlocked->lock);
    pagedcl_build_stats own = device->builds;
    pcl_mutex_unlock(&unlocked->lock);
    return PCL_FILL_STRUCT(stats, &own, load_seconds);
}
