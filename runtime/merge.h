/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PCL_MERGE_H
#define PCL_MERGE_H

#include "chain.h"

#include <pagedcl/merge.h>

/* The device that the merge is on. */
pagedcl_device *pcl_merge_device(const pagedcl_merge *merge);

/* A launch that reads and writes nothing; `any` is a buffer. */
pagedcl_status pcl_merge_launch_nothing(pagedcl_merge *merge, pcl_chain *chain, cl_mem any);

#endif
