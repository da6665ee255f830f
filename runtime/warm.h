/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implementations that compile a kernel at its first launch are made to do so when the kernel's owner is created, by a
 * launch that has nothing to do: a run then never compiles. Blocks until done; elsewhere these do nothing.
 */
#ifndef PCL_WARM_H
#define PCL_WARM_H

#include "attn.h"
#include "cache.h"
#include "merge.h"

pagedcl_status pcl_warm_cache(pagedcl_cache *cache);
pagedcl_status pcl_warm_attn(pagedcl_attn *attn);
pagedcl_status pcl_warm_merge(pagedcl_merge *merge);

#endif
