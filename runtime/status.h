/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the library's own files fail: they return pcl_fail(...). Exported for libpagedcl_gather, so that
 * pagedcl_last_error() speaks for it too; no part of the API.
 */
#ifndef PCL_STATUS_H
#define PCL_STATUS_H

#include <pagedcl/opencl.h>
#include <pagedcl/status.h>

/* Sets this thread's message and returns status. The text is cut where pagedcl_last_error's buffer ends. */
PAGEDCL_API __attribute__((format(printf, 2, 3))) pagedcl_status pcl_fail(pagedcl_status status, const char *format,
                                                                          ...);

/* The same for an OpenCL call that returned code; code decides between OUT_OF_MEMORY, DEVICE_LOST and the like. */
PAGEDCL_API pagedcl_status pcl_fail_opencl(cl_int code, const char *call);

/* "CL_INVALID_VALUE" for -30; "unknown OpenCL error" otherwise. */
const char *pcl_opencl_error_name(cl_int code);

/* Returns from the calling function when the call failed. */
#define PCL_TRY(call)                       \
    do {                                    \
        pagedcl_status try_status = (call); \
        if (try_status != PAGEDCL_SUCCESS)  \
            return try_status;              \
    } while (0)

#endif
