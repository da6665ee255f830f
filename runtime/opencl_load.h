/* SPDX-License-Identifier: Apache-2.0 */
/* Whether there is OpenCL at all, which is a question only where it is loaded at run time (PAGEDCL_OPENCL=load). */
#ifndef PCL_OPENCL_LOAD_H
#define PCL_OPENCL_LOAD_H

#include <pagedcl/opencl.h>

#include <stddef.h>

/* Why there is no OpenCL on this machine; NULL: there is. */
#ifdef PCL_OPENCL_LOAD
const char *pcl_opencl_missing(void);
#else
static inline const char *pcl_opencl_missing(void) {
    return NULL;
}
#endif

#endif
