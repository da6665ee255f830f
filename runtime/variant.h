/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One of the library's kernels with its macros. The key, "attn_decode HEAD_DIM=80 ...", is what logs, errors, tests and
 * benchmarks call it by.
 */
#ifndef PCL_VARIANT_H
#define PCL_VARIANT_H

#include <pagedcl/device.h>
#include <pagedcl/dtype.h>

#include <stdbool.h>
#include <stdint.h>

typedef struct pcl_variant {
    char key[1024];
    bool many_registers;    /* needs them more than it needs many threads */
    int32_t most_registers; /* of a work-item, where the compiler takes a limit; 0: as many as it likes */
    bool for_hopper;        /* has instructions that runtime/ptx.h shows */
} pcl_variant;

/* A variant of cl/<kernel>.cl without macros; then one call a macro. */
void pcl_variant_init(pcl_variant *variant, const char *kernel);
void pcl_variant_int(pcl_variant *variant, const char *macro, int64_t value);
void pcl_variant_dtype(pcl_variant *variant, const char *macro, pagedcl_dtype dtype);

/*
 * Builds the programs of `count` variants at once (blocking); programs[i] is the caller's.
 * Errors: as pagedcl_programs_build and pcl_kernel_source.
 */
pagedcl_status pcl_variants_build(pagedcl_device *device, const pcl_variant *variants, size_t count,
                                  cl_program *programs);

/* A kernel of a variant's program; the second: that which has the name of its file. */
pagedcl_status pcl_program_kernel(const pcl_variant *variant, cl_program program, const char *name, cl_kernel *kernel);
pagedcl_status pcl_variant_kernel(const pcl_variant *variant, cl_program program, cl_kernel *kernel);

#endif
