/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over packed keys and over a paged pool.
 *
 * The contract, kept by every device and tier:
 * - For query row i of a sequence, key j is at position j and the row at position i + seqlen_k - seqlen_q (bottom-
 *   right). With `causal` the row sees the keys up to its own position, otherwise all keys of its sequence.
 * - s = softmax_scale * q.k;  out = sum_j e^(s_j - LSE) v_j  with  LSE = log(sum_j e^(s_j)), the natural logarithm.
 * - Query head h reads KV head floor(h / (num_heads / num_kv_heads)).
 * - A row that sees no key gives output 0 and LSE -infinity. A sequence with no query writes nothing; rows that no
 *   sequence owns are never written.
 * - Products, sums and LSE are accumulated in float32 by the online softmax (Milakov and Gimelshein, 2018).
 * - Unused slots may hold anything, NaN included: it reaches no result.
 * - The same sequence gives the same bits alone or in any batch, for any physical order of its blocks. (num_splits
 *   above 0 chooses another order of additions, by the sequence's length alone.)
 *
 * An operator is made once and builds its kernels. A plan holds one step's batch: it is checked and uploaded once and
 * serves all layers. Runs only enqueue: they allocate nothing, build nothing and do not block.
 *
 * Queues and events: as in cache.h. Runs of one plan are ordered one behind the other on any queue.
 * Threads: an operator may be used from several threads; one plan must not.
 */
#ifndef PAGEDCL_ATTN_H
#define PAGEDCL_ATTN_H

#include <pagedcl/cache.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pagedcl_attn pagedcl_attn;
typedef struct pagedcl_plan pagedcl_plan;

typedef struct pagedcl_attn_desc {
    size_t struct_size;   /* sizeof(pagedcl_attn_desc), set by PAGEDCL_ATTN_DESC_INIT */
    pagedcl_cache *cache; /* the pool that keys come from; gives num_kv_heads, head_dim, kv_dtype. NULL: packed keys */
    int32_t num_heads;    /* query heads, a multiple of num_kv_heads */
    int32_t num_kv_heads; /* without a cache; with one, 0 or the cache's */
    int32_t head_dim;     /* likewise: a multiple of 8 up to 256 */
    pagedcl_dtype kv_dtype;  /* likewise: packed keys, the pool. Default: q_dtype */
    pagedcl_dtype q_dtype;   /* q, k_new and v_new. Default: kv_dtype; float16 when both are default */
    pagedcl_dtype out_dtype; /* default: q_dtype. LSE is always float32 */
    float softmax_scale;     /* 0 means 1 / sqrt(head_dim) */
    int32_t causal;          /* 0 or 1 */
    pagedcl_tier tier;       /* PAGEDCL_TIER_AUTO: the device's */
} pagedcl_attn_desc;
#define PAGEDCL_ATTN_DESC_INIT \
    { .struct_size = sizeof(pagedcl_attn_desc) }

/*
 * Makes an operator and builds its kernels, several at once (blocking).
 * Errors: INVALID_ARGUMENT, INVALID_HEADS, UNSUPPORTED, BUILD_FAILED, OUT_OF_MEMORY.
 */
PAGEDCL_API pagedcl_status pagedcl_attn_create(pagedcl_device *device, const pagedcl_attn_desc *desc,
                                               pagedcl_attn **attn);

/* Drops the caller's reference; plans keep the operator alive. NULL is allowed. */
PAGEDCL_API void pagedcl_attn_destroy(pagedcl_attn *attn);

/* Fills desc, up to desc->struct_size, with the defaults replaced by what they came to. */
PAGEDCL_API pagedcl_status pagedcl_attn_get_desc(const pagedcl_attn *attn, pagedcl_attn_desc *desc);

/* Makes an empty plan for the operator. Its device buffers grow with the batches that it is given. */
PAGEDCL_API pagedcl_status pagedcl_plan_create(pagedcl_attn *attn, pagedcl_plan **plan);

/* NULL is allowed. Commands that use the plan may still be running; waits only for uploads still on their way. */
PAGEDCL_API void pagedcl_plan_destroy(pagedcl_plan *plan);

/*
 * A varlen batch: sequence b owns query rows cu_seqlens_q[b] .. cu_seqlens_q[b+1] - 1.
 * Keys, of an operator without a cache, packed: cu_seqlens_k, and rows cu_seqlens_k[b] .. cu_seqlens_k[b+1] - 1 of k
 * and v. Of an operator with a cache, in the pool: block_table and cache_seqlens, the tokens to read, those that the run
 * itself appends included.
 * Arrays are the host's.
 */
typedef struct pagedcl_varlen_batch {
    size_t struct_size;           /* sizeof(pagedcl_varlen_batch), set by PAGEDCL_VARLEN_BATCH_INIT */
    int32_t num_seqs;             /* 0 or more */
    const int32_t *cu_seqlens_q;  /* [num_seqs + 1], from 0, not falling */
    const int32_t *cu_seqlens_k;  /* [num_seqs + 1], likewise; NULL: keys in the pool */
    const int32_t *block_table;   /* [num_seqs, block_table_stride], -1: not allocated */
    int64_t block_table_stride;   /* entries of a row */
    const int32_t *cache_seqlens; /* [num_seqs] */
    int32_t append;               /* 1: runs store k_new and v_new, [total_q, num_kv_heads, head_dim], at the positions
                                     of their query rows first; needs seqlen_k >= seqlen_q, and blocks that no other
                                     sequence of the batch appends to */
} pagedcl_varlen_batch;
#define PAGEDCL_VARLEN_BATCH_INIT \
    { .struct_size = sizeof(pagedcl_varlen_batch) }

/*
 * A decode batch: every sequence has seqlen_q query tokens, the last of its keys; sequence b owns query rows
 * b * seqlen_q .. (b + 1) * seqlen_q - 1. cache_seqlens is the length before the append: with seqlen_new > 0 a run
 * stores seqlen_new tokens per sequence at cache_seqlens first and attends over the old and the new.
 */
typedef struct pagedcl_decode_batch {
    size_t struct_size;           /* sizeof(pagedcl_decode_batch), set by PAGEDCL_DECODE_BATCH_INIT */
    int32_t num_seqs;             /* 0 or more */
    int32_t seqlen_q;             /* 1 or more */
    int32_t seqlen_new;           /* 0: no append */
    const int32_t *cache_seqlens; /* [num_seqs] */
    const int32_t *block_table;   /* [num_seqs, block_table_stride], -1: not allocated */
    int64_t block_table_stride;
    int32_t num_splits; /* parts that a sequence's keys are cut into, at most, 1 to 256 (clamped); 0: parts of a
                                     fixed number of tokens */
} pagedcl_decode_batch;
#define PAGEDCL_DECODE_BATCH_INIT \
    { .struct_size = sizeof(pagedcl_decode_batch) }

/*
 * Checks a batch, divides it among work-groups and uploads it by one write; the plan then stands for it until the next
 * such call. The arrays are copied. The plan is double-buffered: runs of the batch before may still be running; the
 * call blocks only when the upload of two batches ago has not finished.
 * Errors: INVALID_ARGUMENT, INVALID_LENGTH (negative, falling, more than 2^31 - 1 tokens), CAPACITY (tokens that the
 * table row has no room for), INVALID_BLOCK (an entry inside the used length that is -1 or not in the pool; a block
 * that two sequences append to), OUT_OF_DEVICE_MEMORY. The messages name the sequence.
 */
PAGEDCL_API pagedcl_status pagedcl_plan_varlen(pagedcl_plan *plan, cl_command_queue queue,
                                               const pagedcl_varlen_batch *batch);
PAGEDCL_API pagedcl_status pagedcl_plan_decode(pagedcl_plan *plan, cl_command_queue queue,
                                               const pagedcl_decode_batch *batch);

/* The tensors of a run. T: total query rows of the plan. */
typedef struct pagedcl_attn_args {
    size_t struct_size; /* sizeof(pagedcl_attn_args), set by PAGEDCL_ATTN_ARGS_INIT */
    int32_t layer;      /* of the pool */
    pagedcl_tensor q;   /* [T, num_heads, head_dim] in q_dtype */
    pagedcl_tensor k;   /* packed keys: [total_k, num_kv_heads, head_dim] in kv_dtype; otherwise unused */
    pagedcl_tensor v;
    pagedcl_tensor k_new; /* what an appending plan stores, in q_dtype; otherwise unused */
    pagedcl_tensor v_new;
    pagedcl_tensor out; /* [T, num_heads, head_dim] in out_dtype; must not overlap another tensor */
    cl_mem lse;         /* float32 [T, num_heads] contiguous; NULL: not wanted */
    int64_t lse_offset; /* elements */
} pagedcl_attn_args;
#define PAGEDCL_ATTN_ARGS_INIT \
    { .struct_size = sizeof(pagedcl_attn_args) }

/*
 * Enqueues the attention of the planned batch, append included; *event covers both.
 * Errors: INVALID_ARGUMENT (no batch planned; a tensor that is missing or was not planned for), BUFFER_TOO_SMALL,
 * OPENCL_ERROR, DEVICE_LOST. Nothing is enqueued when an argument is refused.
 */
PAGEDCL_API pagedcl_status pagedcl_attn_run(pagedcl_attn *attn, cl_command_queue queue, pagedcl_plan *plan,
                                            const pagedcl_attn_args *args, cl_uint num_events, const cl_event *events,
                                            cl_event *event);

#ifdef __cplusplus
}
#endif
#endif
