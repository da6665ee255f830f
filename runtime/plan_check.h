/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a batch that need neither its table's entries nor a division into work. */
#ifndef PCL_PLAN_CHECK_H
#define PCL_PLAN_CHECK_H

#include "attn.h"

/* The batch is one for the operator, and its arrays are there. Errors: those of pagedcl_plan_varlen. */
pagedcl_status pcl_plan_check_varlen(const pagedcl_attn *attn, const pagedcl_varlen_batch *batch);
pagedcl_status pcl_plan_check_decode(const pagedcl_attn *attn, const pagedcl_decode_batch *batch);

#endif
