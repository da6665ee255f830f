/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gather baseline: the same attention by gather + GEMM + softmax + GEMM, the GEMMs by CLBlast. It is the yardstick
 * of benchmarks and a second opinion in tests, in a library of its own (libpagedcl_gather), since CLBlast needs a C++
 * runtime. Scores are kept in full: memory grows with seqlen_q * seqlen_k * num_heads.
 */
#ifndef PAGEDCL_ATTN_GATHER_H
#define PAGEDCL_ATTN_GATHER_H

#include <pagedcl/attn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pagedcl_attn_gather pagedcl_attn_gather;

/*
 * Makes the baseline of an operator: the same heads, dtypes, scale and causality. The operator is kept alive.
 * Errors: as pagedcl_attn_create; UNSUPPORTED for an operator with a window, softcap, ALiBi, sinks, rotary embedding,
 * tree masks or block tables on the device, or whose V is not shaped like K.
 */
PAGEDCL_API pagedcl_status pagedcl_attn_gather_create(pagedcl_device *device, pagedcl_attn *attn,
                                                      pagedcl_attn_gather **gather);
PAGEDCL_API void pagedcl_attn_gather_destroy(pagedcl_attn_gather *gather);

/*
 * Attention over a varlen batch (append: refused), as pagedcl_plan_varlen followed by pagedcl_attn_run would give it
 * up to the order of additions. Allocates, and may block. Errors: as those two.
 */
PAGEDCL_API pagedcl_status pagedcl_attn_gather_varlen(pagedcl_attn_gather *gather, cl_command_queue queue,
                                                      const pagedcl_varlen_batch *batch, const pagedcl_attn_args *args,
                                                      cl_uint num_events, const cl_event *events, cl_event *event);

#ifdef __cplusplus
}
#endif
#endif
