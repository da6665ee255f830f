/* SPDX-License-Identifier: Apache-2.0 */
/* The one place that includes the OpenCL header. The library needs OpenCL 1.2 and nothing later. */
#ifndef PAGEDCL_OPENCL_H
#define PAGEDCL_OPENCL_H

#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 120
#endif
#ifdef __APPLE__
#include <OpenCL/opencl.h>
#else
#include <CL/cl.h>
#endif

#endif
