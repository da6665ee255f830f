/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of a run, against the operator and the batch. Exported for libpagedcl_gather; no part of the API. */
#ifndef PCL_ATTN_ARGS_H
#define PCL_ATTN_ARGS_H

#include <pagedcl/attn.h>

/* What a batch has of everything. */
typedef struct pcl_attn_counts {
    int64_t num_seqs, total_q;
    int64_t total_k;       /* packed keys */
    int64_t total_new;     /* tokens that the run appends */
    int64_t num_positions; /* of the longest sequence */
} pcl_attn_counts;

/*
 * Checks args. *own is args with the default strides of its tensors filled in.
 * Errors: INVALID_ARGUMENT, INVALID_LENGTH, SIZE_OVERFLOW, BUFFER_TOO_SMALL, each naming the argument.
 */
PAGEDCL_API pagedcl_status pcl_attn_args_read(const pagedcl_attn_desc *desc, const pcl_attn_counts *counts,
                                              const pagedcl_attn_args *args, pagedcl_attn_args *own);

#endif
