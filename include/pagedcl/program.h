/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Building OpenCL programs: several at once, through the device's cache on disk, with errors that carry the log.
 * The library's own kernels are built by this; an engine may build its kernels by it too.
 */
#ifndef PAGEDCL_PROGRAM_H
#define PAGEDCL_PROGRAM_H

#include <pagedcl/device.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pagedcl_program_desc {
    const char *name;    /* for logs and errors */
    const char *source;  /* OpenCL C, complete: no #include */
    const char *options; /* of clBuildProgram; NULL: none */
} pagedcl_program_desc;

/*
 * Builds `count` programs for the device, several at once, blocking until all are done. programs[i] belongs to the
 * caller (clReleaseProgram). A program comes from the cache on disk when one with the same source, options, platform,
 * device, driver and library version was built before; a damaged entry is built anew and logged. With an
 * implementation that keeps built programs itself (PoCL) the cache is left to it.
 * Errors: BUILD_FAILED (the message has the name, device, options, code and log), OUT_OF_MEMORY, OPENCL_ERROR;
 * then no program is left behind.
 */
PAGEDCL_API pagedcl_status pagedcl_programs_build(pagedcl_device *device, const pagedcl_program_desc *descs,
                                                  size_t count, cl_program *programs);

#ifdef __cplusplus
}
#endif
#endif
