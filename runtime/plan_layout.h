/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step's batch divided into work items and laid out as the kernels read it (cl/lib/attn_problem.h), without OpenCL.
 *
 * The upload is ints: the work items, one record per sequence, the sequences to merge, the items of a varlen append, the
 * tree masks, the sequences of work items that are for several, and the used parts of the block tables, which may come
 * from a buffer of the caller's instead.
 */
#ifndef PCL_PLAN_LAYOUT_H
#define PCL_PLAN_LAYOUT_H

#include "plan.h"
#include "plan_tables.h"
#include "table.h"

enum { PCL_MAX_SPLITS = 256 };

/* A batch while it is being planned: its sequences, and how their keys are cut. */
typedef struct pcl_planning {
    pagedcl_plan *plan;
    const pagedcl_attn *attn;
    pagedcl_cache *cache; /* NULL: packed keys */
    pcl_table table;      /* of the two the one that the operator has */
    pcl_device_table device_table;
    cl_uint num_events; /* the caller's */
    const cl_event *events;
    const pagedcl_varlen_batch *varlen; /* one of the two */
    const pagedcl_decode_batch *decode;
    const uint32_t *tree_mask;
    int32_t num_splits; /* or PAGEDCL_SPLITS_FAST, and then: */
    int64_t fast_keys;  /* keys of a split, about */
    pcl_plan_batch batch;
} pcl_planning;

/*
 * Checks every sequence and decides where in the upload everything lies: the rest of p->batch. Of the plan's it changes
 * what is for one batch alone, its shared splits and owners of blocks. Errors: those of pagedcl_plan_varlen.
 */
pagedcl_status pcl_plan_measure(pcl_planning *p);

/* Writes the measured batch into staging memory of p->batch.size bytes. */
void pcl_plan_lay_out(const pcl_planning *p, int32_t *ints);

#endif
