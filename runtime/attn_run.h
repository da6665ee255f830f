/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PCL_ATTN_RUN_H
#define PCL_ATTN_RUN_H

#include "plan.h"

/* Enqueues a run of the plan's batch, with arguments that are checked and complete. */
pagedcl_status pcl_attn_enqueue(const pagedcl_attn *attn, pagedcl_plan *plan, const pagedcl_attn_args *args,
                                pcl_chain *chain);

#endif
