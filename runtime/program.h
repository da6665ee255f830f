/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PCL_PROGRAM_H
#define PCL_PROGRAM_H

#include <pagedcl/program.h>

#include <stdbool.h>

/* pagedcl_programs_build, where for_hopper[i] says that program i has instructions that runtime/ptx.h shows; NULL: none
   has. A program whose options differ from another's in nothing else is the same to the cache on disk. */
pagedcl_status pcl_programs_build(pagedcl_device *device, const pagedcl_program_desc *descs, const bool *for_hopper,
                                  size_t count, cl_program *programs);

#endif
