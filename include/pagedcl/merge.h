/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merging two partial attention results of the same queries over different keys, each normalised and with its LSE:
 * with m = max(lse_a, lse_b),  w_x = e^(lse_x - m),  out = (w_a out_a + w_b out_b) / (w_a + w_b),
 * lse = m + log(w_a + w_b). A side whose LSE is -infinity saw no key: its values count for nothing, NaN or not; where
 * both are, the result is 0 and -infinity.
 *
 * Queues and events: as in cache.h. Threads: one merge must not be used from two threads at once.
 */
#ifndef PAGEDCL_MERGE_H
#define PAGEDCL_MERGE_H

#include <pagedcl/cache.h>
#include <pagedcl/init.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pagedcl_merge pagedcl_merge;

typedef struct pagedcl_merge_desc {
    size_t struct_size;  /* sizeof(pagedcl_merge_desc), set by PAGEDCL_MERGE_DESC_INIT */
    int32_t num_heads;   /* at least 1 */
    int32_t head_dim;    /* of the values, 1 to 576 */
    pagedcl_dtype dtype; /* of out_a, out_b and out. Default: float32 */
} pagedcl_merge_desc;
#define PAGEDCL_MERGE_DESC_INIT PAGEDCL_INIT(pagedcl_merge_desc)

/* One side of a merge, or its result: out [T, num_heads, head_dim], and LSE, float32 [T, num_heads] contiguous. */
typedef struct pagedcl_partial {
    pagedcl_tensor out;
    cl_mem lse;
    int64_t lse_offset; /* elements */
} pagedcl_partial;

/* Makes a merge and builds its kernel (blocking). Errors: INVALID_ARGUMENT, UNSUPPORTED, BUILD_FAILED, OUT_OF_MEMORY. */
PAGEDCL_API pagedcl_status pagedcl_merge_create(pagedcl_device *device, const pagedcl_merge_desc *desc,
                                                pagedcl_merge **merge);

/* NULL is allowed. Waits for nothing. */
PAGEDCL_API void pagedcl_merge_destroy(pagedcl_merge *merge);

/*
 * Enqueues the merge of num_tokens rows of a and b into result, which may be a or b; result->lse may be NULL, with
 * offset 0.
 * Errors: INVALID_ARGUMENT, BUFFER_TOO_SMALL, OPENCL_ERROR.
 */
PAGEDCL_API pagedcl_status pagedcl_merge_run(pagedcl_merge *merge, cl_command_queue queue, int64_t num_tokens,
                                             const pagedcl_partial *a, const pagedcl_partial *b,
                                             const pagedcl_partial *result, cl_uint num_events, const cl_event *events,
                                             cl_event *event);

#ifdef __cplusplus
}
#endif
#endif
