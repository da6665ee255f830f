/* SPDX-License-Identifier: Apache-2.0 */
/* Block tables that live on the device, on their way into a plan. */
#ifndef PCL_PLAN_TABLES_H
#define PCL_PLAN_TABLES_H

#include "plan.h"

/* The caller's table, checked: int32 rows `stride` apart, from element `offset` on. */
typedef struct pcl_device_table {
    cl_mem mem; /* NULL: no row has an entry */
    int64_t offset, stride;
} pcl_device_table;

/*
 * Enqueues the kernel that fills in the tables of a batch of at least one sequence, in the plan's buffer whose other
 * sections are enqueued already. `plan`'s own batch is not looked at.
 */
pagedcl_status pcl_plan_tables_take(pagedcl_plan *plan, pcl_chain *chain, cl_mem buffer, const pcl_plan_batch *batch,
                                    const pcl_device_table *table);

#endif
