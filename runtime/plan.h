/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PCL_PLAN_H
#define PCL_PLAN_H

#include "attn.h"
#include "cache.h"
#include "faults.h"
#include "plan_share.h"

typedef enum pcl_plan_kind { PCL_PLAN_EMPTY, PCL_PLAN_VARLEN, PCL_PLAN_DECODE } pcl_plan_kind;

/* What a checked and uploaded batch looks like to a run. Sections are indices of ints in the uploaded buffer. */
typedef struct pcl_plan_batch {
    pcl_plan_kind kind;
    int64_t total_q;       /* query rows of q, out and lse */
    int64_t total_k;       /* packed key rows */
    int64_t total_new;     /* rows of k_new and v_new; 0: no append */
    int64_t num_positions; /* the longest seqlen_k: rows that rotary tables need */
    int32_t seqlen_q;      /* decode */
    int64_t num_work;      /* work items */
    int64_t num_merges;    /* sequences with more than one split */
    int64_t num_partials;  /* rows of partial results */
    int64_t num_appends;   /* items of a varlen append */
    int64_t num_seqs;
    int32_t work, records, merges, appends, trees, members, tables;
    size_t size;        /* bytes of all sections */
    size_t upload_size; /* of those that the host writes: tables, the last one, may be the device's */
} pcl_plan_batch;

struct pagedcl_plan {
    pagedcl_attn *attn; /* retained */
    cl_kernel kernels[PCL_ATTN_KERNELS];
    pcl_upload upload;
    pcl_plan_batch batch;
    pcl_share share;   /* of the batch that is being planned */
    pcl_faults faults; /* with device_tables */
    pcl_fence runs;    /* the last run: partial results are one run's at a time */
    cl_mem partial_acc, partial_sums;
    cl_mem arrivals;          /* of tier nv_mma: an int for each partial row, 0 between runs */
    cl_mem counters;          /* of tier nv_wgmma: two ints (cl/nv/problems.h), 0 between runs */
    int64_t partial_capacity; /* rows */
    int32_t *owners;          /* [num_blocks]: the last epoch in which a sequence appended to the block */
    int32_t epoch;
};

#endif
