/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L

#include "program.h"

#include "device.h"
#include "program_disk.h"
#include "ptx.h"
#include "status.h"

#include <stdlib.h>
#include <string.h>

/* One program's way through a call of pagedcl_programs_build. */
typedef struct build {
    const pagedcl_program_desc *desc;
    bool for_hopper;
    cl_program program; /* NULL: failed */
    pagedcl_status status;
    cl_int code; /* of the build from source */
    char *error; /* the message, since it arose on another thread */
    bool from_disk;
    double start, end; /* pcl_clock */
} build;

typedef struct build_batch {
    pagedcl_device *device;
    build *builds;
} build_batch;

/* The build log, the caller's to free; NULL when there is none. */
static char *build_log(cl_program program, cl_device_id id) {
    size_t size = 0;
    if (clGetProgramBuildInfo(program, id, CL_PROGRAM_BUILD_LOG, 0, NULL, &size) != CL_SUCCESS || size < 2)
        return NULL;
    char *log = malloc(size + 1);
    if (log != NULL && clGetProgramBuildInfo(program, id, CL_PROGRAM_BUILD_LOG, size, log, NULL) != CL_SUCCESS) {
        free(log);
        log = NULL;
    }
    if (log != NULL)
        log[size] = '\0';
    return log;
}

static pagedcl_status fail_build(pagedcl_device *device, const pagedcl_program_desc *desc, cl_program program,
                                 cl_int code) {
    char *log = build_log(program, device->id);
    const char *options = desc->options != NULL ? desc->options : "";
    const char *text = log != NULL ? log : "(the driver gave no log)";
    pcl_log(device, PAGEDCL_LOG_ERROR, "building %s failed with options \"%s\":\n%s", desc->name, options, text);
    pagedcl_status status =
        pcl_fail(PAGEDCL_BUILD_FAILED, "building %s for %s failed with %d (%s), options \"%s\":\n%s", desc->name,
                 device->info.device_name, (int)code, pcl_opencl_error_name(code), options, text);
    free(log);
    return status;
}

/* Makes sure that the program's kernels exist: some drivers compile only now. */
static cl_int create_kernels(cl_program program) {
    cl_uint count = 0;
    cl_int code = clCreateKernelsInProgram(program, 0, NULL, &count);
    if (code != CL_SUCCESS || count == 0)
        return code;
    cl_kernel *kernels = calloc(count, sizeof *kernels);
    if (kernels == NULL)
        return CL_OUT_OF_HOST_MEMORY;
    code = clCreateKernelsInProgram(program, count, kernels, NULL);
    if (code == CL_SUCCESS)
        for (cl_uint i = 0; i < count; i++)
            clReleaseKernel(kernels[i]);
    free(kernels);
    return code;
}

/* False when the driver does not take the binary. */
static bool build_binary(pagedcl_device *device, const pagedcl_program_desc *desc, const unsigned char *binary,
                         size_t size, cl_program *program) {
    cl_int code = CL_SUCCESS, binary_code = CL_SUCCESS;
    cl_program made = clCreateProgramWithBinary(device->context, 1, &device->id, &size, &binary, &binary_code, &code);
    if (code != CL_SUCCESS)
        return false;
    if (binary_code != CL_SUCCESS || clBuildProgram(made, 1, &device->id, desc->options, NULL, NULL) != CL_SUCCESS ||
        create_kernels(made) != CL_SUCCESS) {
        clReleaseProgram(made);
        return false;
    }
    *program = made;
    return true;
}

/* The binary of a program built for one device, the caller's to free; NULL when the driver gives none. An adopted
   context may hold several devices: the program has a slot for each, all but ours empty. */
static unsigned char *program_binary(pagedcl_device *device, cl_program program, size_t *size) {
    cl_uint count = 0;
    if (clGetProgramInfo(program, CL_PROGRAM_NUM_DEVICES, sizeof count, &count, NULL) != CL_SUCCESS || count == 0)
        return NULL;
    cl_device_id *ids = calloc(count, sizeof *ids);
    size_t *sizes = calloc(count, sizeof *sizes);
    unsigned char **binaries = calloc(count, sizeof *binaries), *binary = NULL;
    if (ids != NULL && sizes != NULL && binaries != NULL &&
        clGetProgramInfo(program, CL_PROGRAM_DEVICES, count * sizeof *ids, ids, NULL) == CL_SUCCESS &&
        clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, count * sizeof *sizes, sizes, NULL) == CL_SUCCESS)
        for (cl_uint i = 0; i < count; i++)
            if (ids[i] == device->id && sizes[i] > 0) {
                binaries[i] = binary = malloc(sizes[i]);
                *size = sizes[i];
            }
    if (binary != NULL &&
        clGetProgramInfo(program, CL_PROGRAM_BINARIES, count * sizeof *binaries, binaries, NULL) != CL_SUCCESS) {
        free(binary);
        binary = NULL;
    }
    free(ids);
    free(sizes);
    free(binaries);
    return binary;
}

/* Replaces the program by one with the instructions that only Hopper has. */
static pagedcl_status show_for_hopper(pagedcl_device *device, build *b) {
    unsigned char *ptx = NULL, *shown = NULL;
    size_t size = 0, shown_size = 0;
    pagedcl_status status = PAGEDCL_SUCCESS;
    if ((ptx = program_binary(device, b->program, &size)) == NULL)
        status = pcl_fail(PAGEDCL_BUILD_FAILED, "%s: the driver gives no binary", b->desc->name);
    clReleaseProgram(b->program);
    b->program = NULL;
    if (status == PAGEDCL_SUCCESS)
        status = pcl_ptx_for_hopper(ptx, size, &shown, &shown_size);
    if (status == PAGEDCL_SUCCESS && !build_binary(device, b->desc, shown, shown_size, &b->program))
        status = pcl_fail(PAGEDCL_BUILD_FAILED, "%s: the driver does not take the program for sm_90a", b->desc->name);
    free(ptx);
    free(shown);
    return status;
}

static pagedcl_status build_source(pagedcl_device *device, build *b) {
    const pagedcl_program_desc *desc = b->desc;
    cl_program made = clCreateProgramWithSource(device->context, 1, (const char **)&desc->source, NULL, &b->code);
    if (b->code != CL_SUCCESS)
        return pcl_fail_opencl(b->code, "clCreateProgramWithSource");
    b->code = clBuildProgram(made, 1, &device->id, desc->options, NULL, NULL);
    if (b->code == CL_SUCCESS && !device->quirks.keeps_programs)
        b->code = create_kernels(made);
    if (b->code != CL_SUCCESS) {
        pagedcl_status status = fail_build(device, desc, made, b->code);
        clReleaseProgram(made);
        return status;
    }
    b->program = made;
    return b->for_hopper ? show_for_hopper(device, b) : PAGEDCL_SUCCESS;
}

static pagedcl_status build_through_disk(pagedcl_device *device, build *b) {
    if (device->cache_dir == NULL || device->quirks.keeps_programs)
        return build_source(device, b);
    char *key = pcl_disk_key(&device->info, b->desc, b->for_hopper);
    if (key == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for the cache key of %s", b->desc->name);
    unsigned char *binary = NULL;
    size_t size = 0;
    pcl_disk_result found = pcl_disk_load(device->cache_dir, key, &binary, &size);
    if (found == PCL_DISK_HIT) {
        b->from_disk = build_binary(device, b->desc, binary, size, &b->program);
        free(binary);
        binary = NULL;
    }
    if (found == PCL_DISK_DAMAGED || (found == PCL_DISK_HIT && !b->from_disk))
        pcl_log(device, PAGEDCL_LOG_WARNING, "the cached program of %s in %s is damaged; building it anew",
                b->desc->name, device->cache_dir);
    pagedcl_status status = PAGEDCL_SUCCESS;
    if (!b->from_disk) {
        status = build_source(device, b);
        if (status == PAGEDCL_SUCCESS)
            binary = program_binary(device, b->program, &size);
        /* A cache that cannot be written costs time, not correctness. */
        if (binary != NULL && pcl_disk_store(device->cache_dir, key, binary, size) != PAGEDCL_SUCCESS)
            pcl_log(device, PAGEDCL_LOG_WARNING, "%s", pagedcl_last_error());
        free(binary);
    }
    free(key);
    return status;
}

static void build_one(void *arg, size_t i) {
    build_batch *batch = arg;
    build *b = &batch->builds[i];
    b->start = pcl_clock();
    b->status = build_through_disk(batch->device, b);
    if (b->status != PAGEDCL_SUCCESS)
        b->error = strdup(pagedcl_last_error());
    b->end = pcl_clock();
    if (b->status == PAGEDCL_SUCCESS)
        pcl_log(batch->device, PAGEDCL_LOG_INFO, "%s %s in %.1f ms", b->from_disk ? "loaded" : "built", b->desc->name,
                1e3 * (b->end - b->start));
}

/* Compilers that ran out of memory side by side may each have enough alone. */
static void build_again(build_batch *batch, size_t i) {
    build *b = &batch->builds[i];
    free(b->error);
    *b = (build){.desc = b->desc, .for_hopper = b->for_hopper};
    build_one(batch, i);
}

static int by_start(const void *a, const void *b) {
    double x = ((const build *)a)->start, y = ((const build *)b)->start;
    return x < y ? -1 : x > y;
}

/* The length of the union of the intervals of the builds of one kind; they are in the order of their starts. */
static double seconds_of(const build *builds, size_t count, bool from_disk) {
    double seconds = 0, covered = 0;
    for (size_t i = 0; i < count; i++) {
        const build *b = &builds[i];
        if (b->from_disk != from_disk || b->end <= covered)
            continue;
        seconds += b->end - (b->start > covered ? b->start : covered);
        covered = b->end;
    }
    return seconds;
}

static void count_builds(pagedcl_device *device, build *builds, size_t count) {
    qsort(builds, count, sizeof *builds, by_start);
    pcl_mutex_lock(&device->lock);
    for (size_t i = 0; i < count; i++) {
        device->builds.compiled += !builds[i].from_disk;
        device->builds.loaded += builds[i].from_disk;
    }
    device->builds.compile_seconds += seconds_of(builds, count, false);
    device->builds.load_seconds += seconds_of(builds, count, true);
    pcl_mutex_unlock(&device->lock);
}

pagedcl_status pcl_programs_build(pagedcl_device *device, const pagedcl_program_desc *descs, const bool *for_hopper,
                                  size_t count, cl_program *programs) {
    if (device == NULL || (count > 0 && (descs == NULL || programs == NULL)))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "device, descs and programs must not be NULL");
    for (size_t i = 0; i < count; i++)
        if (descs[i].name == NULL || descs[i].source == NULL)
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "descs[%zu] has no name or no source", i);
    if (count == 0)
        return PAGEDCL_SUCCESS;
    build *builds = calloc(count, sizeof *builds);
    if (builds == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory to build %zu programs", count);
    for (size_t i = 0; i < count; i++) {
        builds[i].desc = &descs[i];
        builds[i].for_hopper = for_hopper != NULL && for_hopper[i];
    }
    build_batch batch = {device, builds};
    if (device->quirks.builds_one_at_a_time)
        for (size_t i = 0; i < count; i++)
            build_one(&batch, i);
    else
        pcl_parallel(count, build_one, &batch);
    for (size_t i = 0; i < count && count > 1; i++)
        if (builds[i].code == CL_OUT_OF_HOST_MEMORY)
            build_again(&batch, i);

    pagedcl_status status = PAGEDCL_SUCCESS;
    for (size_t i = 0; i < count && status == PAGEDCL_SUCCESS; i++)
        if (builds[i].status != PAGEDCL_SUCCESS)
            status = pcl_fail(builds[i].status, "%s", builds[i].error != NULL ? builds[i].error : descs[i].name);
    for (size_t i = 0; i < count; i++) {
        if (status == PAGEDCL_SUCCESS)
            programs[i] = builds[i].program;
        else if (builds[i].program != NULL)
            clReleaseProgram(builds[i].program);
        free(builds[i].error);
    }
    if (status == PAGEDCL_SUCCESS)
        count_builds(device, builds, count);
    free(builds);
    return status;
}

pagedcl_status pagedcl_programs_build(pagedcl_device *device, const pagedcl_program_desc *descs, size_t count,
                                      cl_program *programs) {
    return pcl_programs_build(device, descs, NULL, count, programs);
}
