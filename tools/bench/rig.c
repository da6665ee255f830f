/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L

#include "rig.h"

#include <pagedcl/program.h>

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern const char pcl_source_bench[];

static const uint64_t MIB = (uint64_t)1 << 20;

double bench_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Keeps the key of a kernel out of "built KEY in 1.2 ms" or "loaded KEY in ...". */
static void note_variant(bench_rig *rig, const char *message) {
    const char *key = strchr(message, ' ');
    const char *end = key != NULL ? strstr(key + 1, " in ") : NULL;
    size_t used = strlen(rig->variants);
    if (end != NULL && (strncmp(message, "built ", 6) == 0 || strncmp(message, "loaded ", 7) == 0))
        snprintf(rig->variants + used, sizeof rig->variants - used, "%.*s\n", (int)(end - key - 1), key + 1);
}

static void take_log(void *user, pagedcl_log_level level, const char *message) {
    bench_rig *rig = user;
    if (level == PAGEDCL_LOG_INFO)
        note_variant(rig, message);
    if (rig->verbose || (level == PAGEDCL_LOG_WARNING && !rig->quiet))
        fprintf(stderr, "pagedcl: %s%s\n", level == PAGEDCL_LOG_WARNING ? "warning: " : "", message);
}

bool bench_build(const bench_rig *rig, bool with_mma, cl_program *program, tool_error *error) {
    char key[96], options[96];
    snprintf(key, sizeof key, "bench CONTIGUOUS=%d FMA_WIDTH=%zu WITH_NV_MMA=%d", rig->is_cpu, rig->fma_width,
             with_mma);
    /* A strict standard may know no asm. */
    snprintf(options, sizeof options, "%s-DCONTIGUOUS=%d -DFMA_WIDTH=%zu -DWITH_NV_MMA=%d",
             with_mma ? "" : "-cl-std=CL1.2 ", rig->is_cpu, rig->fma_width, with_mma);
    pagedcl_program_desc desc = {.name = key, .source = pcl_source_bench, .options = options};
    return tool_try(error, pagedcl_programs_build(rig->device, &desc, 1, program), "kernels of the benchmark");
}

static bool make_kernel(bench_rig *rig, cl_program program, const char *name, bench_kernel kernel, tool_error *error) {
    cl_int code;
    rig->kernels[kernel] = clCreateKernel(program, name, &code);
    return tool_try_opencl(error, code, "clCreateKernel");
}

static bool make_kernels(bench_rig *rig, tool_error *error) {
    static const char *const names[] = {"fill",         "read_memory", "write_memory",     "copy_memory",
                                        "multiply_add", "nothing",     "multiply_add_half"};
    cl_program program;
    if (!bench_build(rig, false, &program, error))
        return false;
    bool ok = true;
    for (int i = 0; ok && i < BENCH_MULTIPLY_ADD_HALF + (rig->info.has_fp16 != 0); i++)
        ok = make_kernel(rig, program, names[i], (bench_kernel)i, error);
    clReleaseProgram(program);
    tool_error ignored;
    if (ok && strstr(rig->info.vendor, "NVIDIA") != NULL && bench_build(rig, true, &program, &ignored)) {
        make_kernel(rig, program, "matrix_multiply", BENCH_MATRIX_MULTIPLY, &ignored);
        clReleaseProgram(program);
    }
    return ok;
}

static bool ask(const bench_rig *rig, cl_device_info what, size_t size, void *value, tool_error *error) {
    return tool_try_opencl(error, clGetDeviceInfo(pagedcl_device_id(rig->device), what, size, value, NULL),
                           "clGetDeviceInfo");
}

static bool describe(bench_rig *rig, tool_error *error) {
    cl_ulong cache = 0;
    cl_uint clock = 0, width = 0;
    if (!ask(rig, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE, sizeof cache, &cache, error) ||
        !ask(rig, CL_DEVICE_MAX_CLOCK_FREQUENCY, sizeof clock, &clock, error) ||
        !ask(rig, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, sizeof width, &width, error))
        return false;
    rig->cache_bytes = cache;
    rig->clock_mhz = clock;
    rig->is_cpu = rig->info.kind == PAGEDCL_DEVICE_CPU;
    rig->fma_width = !rig->is_cpu ? 4 : width >= 16 ? 16 : width >= 8 ? 8 : 4;
    return true;
}

/* What a driver reports need not be the last level, which the system knows of a CPU. */
static uint64_t last_cache_bytes(const bench_rig *rig) {
    uint64_t bytes = rig->cache_bytes;
#ifdef _SC_LEVEL3_CACHE_SIZE
    const long shared = rig->is_cpu ? sysconf(_SC_LEVEL3_CACHE_SIZE) : 0;
    if (shared > 0 && (uint64_t)shared > bytes)
        bytes = (uint64_t)shared;
#endif
    return bytes;
}

/* No device gets less than the largest caches of its kind. */
static uint64_t choose_flush_bytes(const bench_rig *rig, int32_t asked_mib) {
    uint64_t bytes = rig->is_cpu ? 128 * MIB : 512 * MIB;
    if (bytes < 4 * last_cache_bytes(rig))
        bytes = 4 * last_cache_bytes(rig);
    /* With less, bench_flush would read nothing on a GPU. */
    const int32_t least_mib = rig->is_cpu ? 1 : 64;
    if (asked_mib > 0)
        bytes = (uint64_t)(asked_mib > least_mib ? asked_mib : least_mib) * MIB;
    uint64_t most = rig->info.global_memory / 8;
    if (most > rig->info.max_allocation)
        most = rig->info.max_allocation;
    return (bytes < most ? bytes : most) / MIB * MIB;
}

/* Memory that was never written may not be memory at all. */
static bool make_flush(bench_rig *rig, int32_t asked_mib, tool_error *error) {
    rig->flush_bytes = choose_flush_bytes(rig, asked_mib);
    rig->flush = bench_buffer(rig, rig->flush_bytes, error);
    return rig->flush != NULL &&
           bench_fill(rig, rig->flush, 0, PAGEDCL_FLOAT32, 0, 0, (int64_t)(rig->flush_bytes / 1024), 256, 8, 1, error);
}

bool bench_rig_open(const char *selector, pagedcl_tier tier, bool verbose, int32_t flush_mib, bench_rig *rig,
                    tool_error *error) {
    *rig = (bench_rig){.tier = tier, .verbose = verbose, .info = PAGEDCL_DEVICE_INFO_INIT};
    pagedcl_device_options options = PAGEDCL_DEVICE_OPTIONS_INIT;
    options.log = take_log;
    options.log_user = rig;
    options.profiling = 1;
    options.tier = tier;
    if (pagedcl_device_open(selector, &options, &rig->device) != PAGEDCL_SUCCESS)
        return tool_fail(error, "%.*s", (int)strcspn(pagedcl_last_error(), "\n"), pagedcl_last_error());
    rig->context = pagedcl_device_context(rig->device);
    rig->queue = pagedcl_device_queue(rig->device);
    if (!tool_try(error, pagedcl_device_get_info(rig->device, &rig->info), "device") || !describe(rig, error))
        return false;
    rig->sink = bench_buffer(rig, 64, error);
    return rig->sink != NULL && make_kernels(rig, error) && make_flush(rig, flush_mib, error);
}

void bench_rig_close(bench_rig *rig) {
    for (int i = 0; i < BENCH_NUM_KERNELS; i++)
        if (rig->kernels[i] != NULL)
            clReleaseKernel(rig->kernels[i]);
    if (rig->flush != NULL)
        clReleaseMemObject(rig->flush);
    if (rig->sink != NULL)
        clReleaseMemObject(rig->sink);
    pagedcl_device_destroy(rig->device);
    rig->device = NULL;
}

bool bench_launch(const bench_rig *rig, bench_kernel kernel, const bench_argument *arguments, cl_uint num_arguments,
                  size_t items, size_t group, cl_event *event, tool_error *error) {
    for (cl_uint i = 0; i < num_arguments; i++)
        if (!tool_try_opencl(error, clSetKernelArg(rig->kernels[kernel], i, arguments[i].size, arguments[i].value),
                             "clSetKernelArg"))
            return false;
    return tool_try_opencl(
        error, clEnqueueNDRangeKernel(rig->queue, rig->kernels[kernel], 1, NULL, &items, &group, 0, NULL, event),
        "clEnqueueNDRangeKernel");
}

size_t bench_group(const bench_rig *rig, size_t wanted) {
    while (wanted > rig->info.max_work_group_size)
        wanted /= 2;
    return wanted;
}

cl_mem bench_buffer(const bench_rig *rig, uint64_t bytes, tool_error *error) {
    cl_int code;
    cl_mem mem = clCreateBuffer(rig->context, CL_MEM_READ_WRITE, bytes > 0 ? bytes : 1, NULL, &code);
    if (code == CL_SUCCESS)
        return mem;
    tool_fail(error, "a buffer of %.1f MiB could not be made: OpenCL error %d", (double)bytes / (double)MIB, (int)code);
    return NULL;
}

bool bench_fill(const bench_rig *rig, cl_mem mem, int64_t first, pagedcl_dtype dtype, uint32_t seed, int64_t first_row,
                int64_t rows, int64_t columns, int bits, float scale, tool_error *error) {
    cl_ulong first_element = (cl_ulong)first, row = (cl_ulong)first_row, width = (cl_ulong)columns;
    cl_ulong count = (cl_ulong)rows * width;
    cl_int kind = (cl_int)dtype, digits = bits;
    const bench_argument arguments[] = {BENCH_ARGUMENT(mem),   BENCH_ARGUMENT(first_element), BENCH_ARGUMENT(count),
                                        BENCH_ARGUMENT(kind),  BENCH_ARGUMENT(seed),          BENCH_ARGUMENT(row),
                                        BENCH_ARGUMENT(width), BENCH_ARGUMENT(digits),        BENCH_ARGUMENT(scale)};
    size_t group = bench_group(rig, 256);
    return count == 0 ||
           bench_launch(rig, BENCH_FILL, arguments, 9, ((size_t)count + group - 1) / group * group, group, NULL, error);
}

bool bench_poison(const bench_rig *rig, cl_mem mem, uint64_t bytes, tool_error *error) {
    const cl_uchar ones = 0xff;
    return bytes == 0 ||
           tool_try_opencl(error, clEnqueueFillBuffer(rig->queue, mem, &ones, sizeof ones, 0, bytes, 0, NULL, NULL),
                           "clEnqueueFillBuffer");
}

bool bench_flush(const bench_rig *rig, tool_error *error) {
    size_t vector = rig->is_cpu ? 64 : 16;
    size_t group = rig->is_cpu ? 1 : bench_group(rig, 256);
    size_t items = rig->is_cpu ? 64 : 4096 * group; /* the buffer is a number of MiB: they divide it */
    cl_ulong count = rig->flush_bytes / vector / (4 * items) * (4 * items);
    const bench_argument arguments[] = {BENCH_ARGUMENT(rig->flush), BENCH_ARGUMENT(count), BENCH_ARGUMENT(rig->sink)};
    return bench_launch(rig, BENCH_READ, arguments, 3, items, group, NULL, error);
}

bool bench_read(const bench_rig *rig, cl_mem mem, uint64_t offset, uint64_t bytes, void *to, tool_error *error) {
    return tool_try_opencl(error, clEnqueueReadBuffer(rig->queue, mem, CL_TRUE, offset, bytes, to, 0, NULL, NULL),
                           "clEnqueueReadBuffer");
}
