/* SPDX-License-Identifier: Apache-2.0 */
#include "plan_tables.h"

#include "launch.h"
#include "status.h"

pagedcl_status pcl_plan_tables_take(pagedcl_plan *plan, pcl_chain *chain, cl_mem buffer, const pcl_plan_batch *batch,
                                    const pcl_device_table *table) {
    pcl_arguments arguments = pcl_arguments_of(plan->kernels[PCL_ATTN_TABLES]);
    pcl_argument_mem(&arguments, buffer);
    pcl_argument_int(&arguments, batch->records);
    /* Without entries nothing is read, but the parameter must be a buffer. */
    pcl_argument_mem(&arguments, table->mem != NULL ? table->mem : plan->faults.counters);
    pcl_argument_long(&arguments, table->offset);
    pcl_argument_long(&arguments, table->stride);
    pcl_argument_int(&arguments, plan->attn->desc.cache->desc.num_blocks);
    pcl_argument_mem(&arguments, plan->faults.counters);
    PCL_TRY(pcl_faults_use(&plan->faults, chain));
    PCL_TRY(pcl_launch_groups(chain, &arguments, batch->num_seqs, 1,
                              (size_t)plan->attn->tuning[PCL_ATTN_TABLES].work_group));
    pcl_faults_used(&plan->faults, chain);
    return chain->status;
}

pagedcl_status pagedcl_plan_read_faults(pagedcl_plan *plan, cl_command_queue queue, pagedcl_faults *faults,
                                        cl_uint num_events, const cl_event *events, cl_event *event) {
    if (plan == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "plan is NULL");
    if (!plan->attn->desc.device_tables)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "the operator has no device_tables: what is wrong with a table on the host is refused");
    return pcl_faults_read(&plan->faults, queue, faults, num_events, events, event);
}
