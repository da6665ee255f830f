/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PCL_LAUNCH_H
#define PCL_LAUNCH_H

#include "arguments.h"
#include "chain.h"

/*
 * Launches the kernel over rows * columns work-items and as many more as fill the last work-group: at least one. For
 * kernels that index by get_global_id(0) alone and know where to stop. Errors: OPENCL_ERROR (of an argument too), SIZE_OVERFLOW.
 */
pagedcl_status pcl_launch_items(pcl_chain *chain, const pcl_arguments *arguments, int64_t rows, int64_t columns);

/*
 * Launches the kernel over x * y work-groups of `local` work-items; x and y above 0, y at most 65,535, which is what
 * some devices take in the second dimension. For kernels that index by get_group_id. Errors: as pcl_launch_items.
 */
pagedcl_status pcl_launch_groups(pcl_chain *chain, const pcl_arguments *arguments, int64_t x, int64_t y, size_t local);

#endif
