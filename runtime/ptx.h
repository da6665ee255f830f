/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Instructions that NVIDIA's compiler of OpenCL C does not let through: it compiles for the target sm_90, and those that
 * only Hopper has are of sm_90a. Kernels have them in comments, each line behind PCL_PTX_MARK (HOPPER of
 * cl/nv/warpgroup.h). The binary of a built program is PTX, a text, in which they can be shown.
 */
#ifndef PCL_PTX_H
#define PCL_PTX_H

#include <pagedcl/status.h>

#include <stddef.h>

#define PCL_PTX_MARK "//@SM90A "

/*
 * *out, the caller's to free, is the PTX for sm_90a: its target changed, the marks taken away, and each kernel told to
 * run alone on its multiprocessor, without which the assembler ignores setmaxnreg. Ends with a NUL that *out_size does
 * not count. Errors: UNSUPPORTED (not PTX for sm_90, or without a mark), OUT_OF_MEMORY.
 */
pagedcl_status pcl_ptx_for_hopper(const unsigned char *ptx, size_t size, unsigned char **out, size_t *out_size);

#endif
