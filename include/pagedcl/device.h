/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices: what there is, and the handle that everything on a device hangs on.
 *
 * A pagedcl_device holds a context, a device, a queue, what the device can do, and how kernels are built for it. It
 * is opened by the library or made from the caller's own OpenCL objects. Caches and operators keep the device alive:
 * it may be destroyed in any order.
 *
 * Threads: every function here may be called from any thread at any time, on one device too, save destroy, which must
 * be the last use of that reference.
 */
#ifndef PAGEDCL_DEVICE_H
#define PAGEDCL_DEVICE_H

#include <pagedcl/init.h>
#include <pagedcl/opencl.h>
#include <pagedcl/status.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pagedcl_device pagedcl_device;

/* In order of preference: the default device is the first of the smallest kind. */
typedef enum pagedcl_device_kind {
    PAGEDCL_DEVICE_DISCRETE_GPU = 0,
    PAGEDCL_DEVICE_INTEGRATED_GPU = 1, /* shares its memory with the host */
    PAGEDCL_DEVICE_ACCELERATOR = 2,
    PAGEDCL_DEVICE_CPU = 3,
} pagedcl_device_kind;

/* "discrete gpu", "integrated gpu", "accelerator", "cpu". */
PAGEDCL_API const char *pagedcl_device_kind_name(pagedcl_device_kind kind);

/* A family of kernels. Every device runs `portable`; the others need a capability. */
typedef enum pagedcl_tier {
    PAGEDCL_TIER_AUTO = 0,     /* the best that the device can run */
    PAGEDCL_TIER_PORTABLE = 1, /* OpenCL C 1.2, work-groups sharing tiles through local memory */
    PAGEDCL_TIER_CPU = 2,      /* wide vectors, one work-item a tile, no barriers */
    PAGEDCL_TIER_NV_MMA = 3,   /* matrix instructions of NVIDIA's GPUs, from compute capability 8.0 on */
    PAGEDCL_TIER_NV_WGMMA = 4, /* nv_mma, with the matrix instructions and tensor maps of Hopper, capability 9.0 */
} pagedcl_tier;

/* "auto", "portable", "cpu", "nv_mma", "nv_wgmma". */
PAGEDCL_API const char *pagedcl_tier_name(pagedcl_tier tier);

/* What a device is and can do. Strings are cut to their size and always end in a zero byte. */
typedef struct pagedcl_device_info {
    size_t struct_size;     /* sizeof(pagedcl_device_info), set by PAGEDCL_DEVICE_INFO_INIT */
    int32_t platform_index; /* the "P:D" of the selector: position in the ICD loader's order */
    int32_t device_index;   /* -1 for both when the device was adopted and is not in the list */
    pagedcl_device_kind kind;
    char platform_name[128];
    char platform_version[128];
    char device_name[128];
    char vendor[128];
    char device_version[128]; /* CL_DEVICE_VERSION */
    char driver_version[128];
    char opencl_c_version[64]; /* CL_DEVICE_OPENCL_C_VERSION */
    uint64_t global_memory;    /* bytes */
    uint64_t max_allocation;   /* bytes of the largest single buffer the driver admits to */
    uint64_t local_memory;     /* bytes a work-group may use */
    uint32_t compute_units;
    uint64_t max_work_group_size;
    int32_t has_fp16;      /* cl_khr_fp16: half arithmetic. Half storage needs nothing */
    int32_t has_subgroups; /* cl_khr_subgroups or cl_intel_subgroups */
    int32_t usable;        /* 0: the device is not available, has no compiler, or is older than OpenCL 1.2 */
    pagedcl_tier tier;     /* what PAGEDCL_TIER_AUTO means here */
    char tier_reason[256]; /* why that tier, and why not the higher ones; or why not usable */
} pagedcl_device_info;
#define PAGEDCL_DEVICE_INFO_INIT PAGEDCL_INIT(pagedcl_device_info)

typedef enum pagedcl_log_level {
    PAGEDCL_LOG_INFO = 0,    /* what was chosen, built, loaded */
    PAGEDCL_LOG_WARNING = 1, /* something is worse than it could be: a damaged cache entry, a fallback */
    PAGEDCL_LOG_ERROR = 2,   /* whole build logs of failed builds; the call that failed also returns a status */
} pagedcl_log_level;

/* Called from the thread that made the call, or from a build thread; calls never overlap for one device. */
typedef void (*pagedcl_log_callback)(void *user, pagedcl_log_level level, const char *message);

typedef struct pagedcl_device_options {
    size_t struct_size;       /* sizeof(pagedcl_device_options), set by PAGEDCL_DEVICE_OPTIONS_INIT */
    pagedcl_log_callback log; /* NULL: silent */
    void *log_user;
    pagedcl_tier tier;     /* PAGEDCL_TIER_AUTO: the environment's PAGEDCL_TIER if set, else the best */
    const char *cache_dir; /* folder of built programs. NULL: the environment's PAGEDCL_CACHE_DIR, else
                                   XDG_CACHE_HOME/pagedcl, else HOME/.cache/pagedcl. "": no cache on disk */
    int32_t profiling;     /* not 0: open makes the queue with CL_QUEUE_PROFILING_ENABLE */
    const char *tuning;    /* file of a tuning database (tuning.h). NULL: the environment's PAGEDCL_TUNING, if set.
                                   "": none. A file that is none or cannot be read fails the call */
} pagedcl_device_options;
#define PAGEDCL_DEVICE_OPTIONS_INIT PAGEDCL_INIT(pagedcl_device_options)

/* What building programs cost on this device so far, in this process. */
typedef struct pagedcl_build_stats {
    size_t struct_size;     /* sizeof(pagedcl_build_stats), set by PAGEDCL_BUILD_STATS_INIT */
    int64_t compiled;       /* programs built from source */
    int64_t loaded;         /* programs loaded from the cache on disk */
    double compile_seconds; /* wall-clock of builds from source; builds that ran at once count once */
    double load_seconds;    /* wall-clock of loads; likewise */
} pagedcl_build_stats;
#define PAGEDCL_BUILD_STATS_INIT PAGEDCL_INIT(pagedcl_build_stats)

/*
 * Lists every device of every platform, in the ICD loader's order, usable or not: writes the first `capacity` into
 * infos (each with its struct_size set; NULL when capacity is 0) and the number there is into *count.
 * Errors: NO_PLATFORM (the loader finds no driver), OPENCL_ERROR. A platform that fails is left out.
 */
PAGEDCL_API pagedcl_status pagedcl_device_list(pagedcl_device_info *infos, size_t capacity, size_t *count);

/*
 * Opens a device with a context and an in-order queue of its own.
 *
 * selector: NULL or "": the environment's PAGEDCL_DEVICE if set, else the best usable device: discrete GPU before
 * integrated GPU before accelerator before CPU, then most compute units, then the order of the list. Otherwise, case
 * ignored, the best usable device among those that match:
 *   "gpu", "cpu", "accelerator"        the kind
 *   "nvidia", "amd", "intel", "pocl"   the vendor or platform
 *   "P:D"                              platform and device index, as pagedcl_device_list has them
 *   anything else                      a part of the device's or the platform's name
 * options: NULL for the defaults.
 * Errors: NO_PLATFORM, NO_DEVICE (the message lists what there is), INVALID_ARGUMENT, OUT_OF_MEMORY, OPENCL_ERROR.
 */
PAGEDCL_API pagedcl_status pagedcl_device_open(const char *selector, const pagedcl_device_options *options,
                                               pagedcl_device **device);

/*
 * Uses the caller's context, device and queue; each is retained. queue may be in-order or out-of-order, with or
 * without profiling; it is what functions use where the caller passes no queue.
 * Errors: INVALID_ARGUMENT (they do not belong together), UNSUPPORTED (device not usable), OPENCL_ERROR.
 */
PAGEDCL_API pagedcl_status pagedcl_device_adopt(cl_context context, cl_device_id id, cl_command_queue queue,
                                                const pagedcl_device_options *options, pagedcl_device **device);

/* Drops the caller's reference. NULL is allowed. Waits for nothing. */
PAGEDCL_API void pagedcl_device_destroy(pagedcl_device *device);

/* The OpenCL objects; they belong to the device and are not retained for the caller. */
PAGEDCL_API cl_context pagedcl_device_context(const pagedcl_device *device);
PAGEDCL_API cl_device_id pagedcl_device_id(const pagedcl_device *device);
PAGEDCL_API cl_command_queue pagedcl_device_queue(const pagedcl_device *device);

/* Fills info, up to info->struct_size; `tier` is the one in use. */
PAGEDCL_API pagedcl_status pagedcl_device_get_info(const pagedcl_device *device, pagedcl_device_info *info);

/* Fills stats, up to stats->struct_size. */
PAGEDCL_API pagedcl_status pagedcl_device_get_build_stats(const pagedcl_device *device, pagedcl_build_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
