/* SPDX-License-Identifier: Apache-2.0 */
/* A rig puts the problem of a case on the device, runs it, and sees every byte that should not have been touched. */
#ifndef ATTN_RIG_H
#define ATTN_RIG_H

#include "adopted_pool.h"
#include "attn_case.h"
#include "fixture.h"
#include "pool_model.h"
#include "strided.h"

#include <pagedcl/attn.h>

/* What a run gave, as floats. */
typedef struct attn_result {
    float *out; /* [total_q, num_heads, head_dim_v] */
    float *lse; /* [total_q, num_heads]; NULL without */
} attn_result;

void attn_result_destroy(attn_result *result);

/* A problem on the device, in guarded memory; every output is poison before its first run. */
typedef struct attn_rig {
    const attn_problem *problem;
    pagedcl_device *device;
    pagedcl_cache *cache;
    pool_model pool; /* as it is to be after a run */
    adopted_pool adopted;
    pagedcl_attn *attn;
    pagedcl_plan *plan;
    strided q, k, v, k_new, v_new, out;
    guarded block_table; /* with device_table: two entries of poison, then the table as it is when the rig opens */
    guarded lse, alibi_slopes, sinks, rotary_cos, rotary_sin;
    char name[128]; /* the case and the tier, for messages */
} attn_rig;

attn_rig attn_rig_open(pagedcl_device *device, pagedcl_tier tier, const attn_problem *problem);
void attn_rig_close(attn_rig *rig);

/* Plans the problem's batch; the arrays that were passed are overwritten at once. */
pagedcl_status attn_rig_plan(attn_rig *rig, cl_command_queue queue);

pagedcl_attn_args attn_rig_args(const attn_rig *rig);

/* Enqueues one run. */
void attn_rig_run(attn_rig *rig, cl_command_queue queue, cl_uint num_events, const cl_event *events, cl_event *event);

/* Asserts that nothing but the results was written: guards, gaps, rows nobody owns, the whole pool. */
attn_result attn_rig_read(attn_rig *rig);

/* Plan, run and read in one. */
attn_result attn_solve(pagedcl_device *device, pagedcl_tier tier, const attn_problem *problem);

/* Asserts something of a result; `name` is the case. */
typedef void attn_check(const attn_problem *problem, const attn_result *result, const char *name);

/* The result is what the reference says. */
attn_check attn_expect_reference;

/* Solves the problem on every tier and checks each result. */
void attn_on_every_tier(pagedcl_device *device, const attn_problem *problem, attn_check *check);

/* Solves a table of cases on every tier and compares with the reference; or on one tier. */
void attn_check_cases(const attn_case *cases, size_t count);
void attn_check_cases_on(pagedcl_device *device, pagedcl_tier tier, const attn_case *cases, size_t count);

#endif
