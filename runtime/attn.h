/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PCL_ATTN_H
#define PCL_ATTN_H

#include "attn_tuning.h"
#include "variant.h"

#include <pagedcl/attn.h>

#include <stdatomic.h>

typedef enum pcl_attn_kernel {
    PCL_ATTN_VARLEN, /* without a cache this one alone */
    PCL_ATTN_DECODE,
    PCL_ATTN_MERGE,
    PCL_ATTN_APPEND,
    PCL_ATTN_TABLES,
    PCL_ATTN_MAPS,
    PCL_ATTN_KERNELS
} pcl_attn_kernel;

struct pagedcl_attn {
    atomic_int references;
    pagedcl_device *device; /* retained */
    pagedcl_attn_desc desc; /* without defaults; its cache is retained */
    pcl_attn_tuning tuning[PCL_ATTN_KERNELS];
    pcl_variant variants[PCL_ATTN_KERNELS];
    cl_program programs[PCL_ATTN_KERNELS];
    bool streams;        /* its decode kernel is attn_decode_stream, */
    bool varlen_streams; /* and that of varlen attn_varlen_stream, */
    bool warpgroups;     /* or attn_varlen_wgmma */
    cl_mem maps;         /* tensor maps of the cache's layers (attn_maps.h), or NULL */
};

/* One more owner; pagedcl_attn_destroy drops it. */
pagedcl_attn *pcl_attn_retain(pagedcl_attn *attn);

#endif
