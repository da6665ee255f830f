/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For programs linked with --wrap=pcl_warm_attn,--wrap=pcl_warm_cache: what PoCL compiles at a kernel's first launch is
 * compiled when a test launches it, and what no test launches is not. Most shapes of a pool are there for one or two of
 * its kernels.
 */
#include "warm.h"

pagedcl_status __wrap_pcl_warm_attn(pagedcl_attn *attn);
pagedcl_status __wrap_pcl_warm_cache(pagedcl_cache *cache);

pagedcl_status __wrap_pcl_warm_attn(pagedcl_attn *attn) {
    (void)attn;
    return PAGEDCL_SUCCESS;
}

pagedcl_status __wrap_pcl_warm_cache(pagedcl_cache *cache) {
    (void)cache;
    return PAGEDCL_SUCCESS;
}
