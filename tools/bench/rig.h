/* SPDX-License-Identifier: Apache-2.0 */
/* The device under test, with the kernels of bench.cl, on one in-order queue that takes times. */
#ifndef BENCH_RIG_H
#define BENCH_RIG_H

#include "tool_error.h"

#include <pagedcl/device.h>
#include <pagedcl/dtype.h>

#include <stddef.h>
#include <stdint.h>

typedef enum bench_kernel {
    BENCH_FILL,
    BENCH_READ,
    BENCH_WRITE,
    BENCH_COPY,
    BENCH_MULTIPLY_ADD,
    BENCH_NOTHING,
    BENCH_MULTIPLY_ADD_HALF, /* NULL without cl_khr_fp16 */
    BENCH_MATRIX_MULTIPLY,   /* NULL where it does not build */
    BENCH_NUM_KERNELS,
} bench_kernel;

enum { BENCH_VARIANTS_SIZE = 8192 };

typedef struct bench_rig {
    pagedcl_device *device;
    cl_context context;
    cl_command_queue queue;
    pagedcl_device_info info;
    pagedcl_tier tier; /* for operators; AUTO: the device's */
    bool verbose;
    bool quiet; /* warnings are expected, and not shown */
    bool is_cpu;
    uint64_t cache_bytes; /* of the last level, as the driver reports it */
    uint32_t clock_mhz;   /* the highest, likewise; 0: not told */
    size_t fma_width;
    cl_kernel kernels[BENCH_NUM_KERNELS];
    cl_mem sink; /* where kernels write that have no result */
    cl_mem flush;
    uint64_t flush_bytes; /* unless asked for less, larger than any last-level cache there is */
    char variants
        [BENCH_VARIANTS_SIZE]; /* keys of the kernels built since it was last cleared, each ended by a newline */
} bench_rig;

typedef struct bench_argument {
    size_t size;
    const void *value;
} bench_argument;
#define BENCH_ARGUMENT(variable) \
    { sizeof(variable), &(variable) }

/* The seeds of the tensors. */
enum { BENCH_SEED_K = 1, BENCH_SEED_V, BENCH_SEED_Q, BENCH_SEED_SINKS, BENCH_SEED_OUT, BENCH_SEED_LSE };

/* Seconds of a clock that never goes back. */
double bench_now(void);

enum { BENCH_MOST_FLUSH_MIB = 1 << 20 };

/* flush_mib: what is read to flush the caches; 0: by what the driver tells of them. *rig may be closed whatever the
   outcome. */
bool bench_rig_open(const char *selector, pagedcl_tier tier, bool verbose, int32_t flush_mib, bench_rig *rig,
                    tool_error *error);
void bench_rig_close(bench_rig *rig);

/* Builds bench.cl for the rig's device, is_cpu and fma_width; with_mma: what is for NVIDIA's matrix units alone. */
bool bench_build(const bench_rig *rig, bool with_mma, cl_program *program, tool_error *error);

/* Enqueues `items` work-items of a kernel in work-groups of `group`, which divides them. event may be NULL. */
bool bench_launch(const bench_rig *rig, bench_kernel kernel, const bench_argument *arguments, cl_uint num_arguments,
                  size_t items, size_t group, cl_event *event, tool_error *error);

/* A size of work-groups that the device takes: the wanted one, or that halved until it does. */
size_t bench_group(const bench_rig *rig, size_t wanted);

/* NULL after a failure. Of 0 bytes a buffer of one. */
cl_mem bench_buffer(const bench_rig *rig, uint64_t bytes, tool_error *error);

/* Values of value.h, times scale, in rows first_row .. first_row + rows - 1 of a tensor, put from element `first` on. */
bool bench_fill(const bench_rig *rig, cl_mem mem, int64_t first, pagedcl_dtype dtype, uint32_t seed, int64_t first_row,
                int64_t rows, int64_t columns, int bits, float scale, tool_error *error);

/* All bytes 0xff, NaN in every float type. */
bool bench_poison(const bench_rig *rig, cl_mem mem, uint64_t bytes, tool_error *error);

/* Enqueues what makes the caches forget everything else. */
bool bench_flush(const bench_rig *rig, tool_error *error);

/* Reads, and waits for it. */
bool bench_read(const bench_rig *rig, cl_mem mem, uint64_t offset, uint64_t bytes, void *to, tool_error *error);

#endif
