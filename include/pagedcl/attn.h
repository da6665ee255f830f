/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over packed keys and over a paged pool.
 *
 * The contract, kept by every device and tier:
 * - For query row i of a sequence, key j is at position j and the row at position i + seqlen_k - seqlen_q (bottom-
 *   right). With `causal` the row sees the keys up to its own position, otherwise all keys of its sequence.
 * - A window (left, right) is inclusive on both sides and counts from the row's position: keys from position - left to
 *   position + right; -1 is unbounded. "The last W keys" is left = W - 1, right = 0.
 * - s = softmax_scale * q.k;  with a softcap c, s = c * tanh(s / c);  with ALiBi, s = s - slope * |distance|;  then the
 *   mask;  out = sum_j e^(s_j - LSE) v_j  with  LSE = log(sum_j e^(s_j)), the natural logarithm. A sink is one more
 *   logit of a head in that sum, without a value.
 * - Query head h reads KV head floor(h / (num_heads / num_kv_heads)).
 * - Rotary embedding turns the first rotary_dim elements of q and k_new by their position's angles: in pairs
 *   (x, y) -> (x cos - y sin, y cos + x sin), element i with i + rotary_dim / 2, or interleaved 2i with 2i + 1.
 * - A tree mask, for speculative decoding, says which of a sequence's last seqlen_q keys each of its query tokens sees;
 *   all older keys are visible.
 * - A row that sees no key gives output 0 and LSE -infinity (with a sink: LSE = sink). A sequence with no query writes nothing; rows that no
 *   sequence owns are never written.
 * - Products, sums and LSE are accumulated in float32 by the online softmax (Milakov and Gimelshein, 2018).
 * - Unused slots may hold anything, NaN included: it reaches no result.
 * - The same sequence gives the same bits alone or in any batch, for any physical order of its blocks. (num_splits
 *   above 0 chooses another order of additions, by the sequence's length alone, PAGEDCL_SPLITS_FAST one by the batch.)
 *
 * What belongs to something that the operator, the batch or the run does not have (window_left without has_window, the
 * slopes of an operator without ALiBi, an lse_offset without an lse) must be 0 or NULL: it is refused, by name.
 *
 * Block tables are arrays of the host, and checked, or, of an operator with device_tables, a buffer that the host does
 * not see. Then the entries that the lengths, which stay the host's, make use of are read once by a command of the plan,
 * and an entry for which a table of the host would be refused is guarded against: no row sees its keys, new tokens for
 * it are not stored, nothing outside the pool is touched, and the plan counts it (pagedcl_plan_read_faults). That two
 * sequences append to one block is not noticed: its slots then hold tokens of either.
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
#include <pagedcl/init.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pagedcl_attn pagedcl_attn;
typedef struct pagedcl_plan pagedcl_plan;

/* What an operator's plans may be: kernels of the other path are not built. */
typedef enum pagedcl_path {
    PAGEDCL_PATH_ALL = 0,
    PAGEDCL_PATH_VARLEN = 1,
    PAGEDCL_PATH_DECODE = 2,
} pagedcl_path;

typedef struct pagedcl_attn_desc {
    size_t struct_size;   /* sizeof(pagedcl_attn_desc), set by PAGEDCL_ATTN_DESC_INIT */
    pagedcl_cache *cache; /* the pool that keys come from; gives num_kv_heads, head_dim, kv_dtype. NULL: packed keys */
    int32_t num_heads;    /* query heads, a multiple of num_kv_heads */
    int32_t num_kv_heads; /* without a cache; with one, 0 or the cache's */
    int32_t head_dim;     /* likewise: 1 to 576 */
    pagedcl_dtype kv_dtype;  /* likewise: packed keys, the pool. Default: q_dtype */
    pagedcl_dtype q_dtype;   /* q, k_new and v_new. Default: kv_dtype; float16 when that is default or quantised */
    pagedcl_dtype out_dtype; /* default: q_dtype. LSE is always float32 */
    float softmax_scale;     /* 0 means 1 / sqrt(head_dim) */
    int32_t causal;          /* 0 or 1 */
    pagedcl_tier tier;       /* PAGEDCL_TIER_AUTO: the device's */
    int32_t head_dim_v;      /* likewise; 0: head_dim */
    int32_t has_window;      /* 1: window_left and window_right bound the keys; -1: unbounded */
    int32_t window_left;
    int32_t window_right; /* causal makes it 0, if it is more or -1 */
    float softcap;        /* c of the contract; 0: none */
    int32_t has_alibi;    /* 1: runs are given alibi_slopes */
    int32_t has_sinks;    /* 1: runs are given sinks */
    int32_t rotary_dim;   /* an even number up to head_dim; 0: none. Otherwise runs are given the tables */
    int32_t rotary_interleaved;
    int32_t has_tree; /* 1: batches are given a tree_mask, which hides keys beside causal and window */
    pagedcl_path paths;
    int32_t device_tables; /* 1: batches take block_table_mem, with a cache; 0: block_table */
} pagedcl_attn_desc;
#define PAGEDCL_ATTN_DESC_INIT PAGEDCL_INIT(pagedcl_attn_desc)

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
 * Arrays are the host's, except block_table_mem.
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
    const uint32_t *tree_mask;    /* with has_tree: for each query token of a sequence of q_len, ceil(q_len / 32) words;
                                     bit j % 32 of word j / 32: the token sees key seqlen_k - q_len + j */
    cl_mem block_table_mem;     /* with device_tables, in place of block_table: int32 [num_seqs, block_table_stride] */
    int64_t block_table_offset; /* its first element */
    cl_uint num_events;         /* what the plan's commands wait for: events, as in OpenCL */
    const cl_event *events;
} pagedcl_varlen_batch;
#define PAGEDCL_VARLEN_BATCH_INIT PAGEDCL_INIT(pagedcl_varlen_batch)

/*
 * Whether work-groups of a decode batch take several sequences at once where their tables begin with the same blocks,
 * a shared prompt for one, which are then read once for all of them. It changes no bit of a result. Only splits of
 * 512 keys, or 2,048 in latent attention of tier nv_wgmma, are shared that lie in front of every new token and query,
 * with num_splits 0 and tables of the host.
 */
typedef enum pagedcl_sharing {
    PAGEDCL_SHARE_AUTO = 0, /* as far as there is work enough to keep the device busy */
    PAGEDCL_SHARE_OFF = 1,
    PAGEDCL_SHARE_ALL = 2, /* wherever it saves reading */
} pagedcl_sharing;

/*
 * num_splits of a decode batch: parts about as large as give each compute unit a few. Faster than parts of a fixed number of
 * tokens for few sequences and for very long ones; but a sequence's bits then depend on its company and on the device.
 */
#define PAGEDCL_SPLITS_FAST (-1)

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
    int32_t num_splits;        /* parts that a sequence's keys are cut into, at most, 1 to 256 (clamped); 0: parts of a
                                     fixed number of tokens; or PAGEDCL_SPLITS_FAST */
    const uint32_t *tree_mask; /* as in pagedcl_varlen_batch: [num_seqs, seqlen_q, ceil(seqlen_q / 32)] */
    cl_mem block_table_mem;    /* these four too */
    int64_t block_table_offset;
    cl_uint num_events;
    const cl_event *events;
    pagedcl_sharing share_prefix;
} pagedcl_decode_batch;
#define PAGEDCL_DECODE_BATCH_INIT PAGEDCL_INIT(pagedcl_decode_batch)

/*
 * Checks a batch, divides it among work-groups and uploads it by one write; the plan then stands for it until the next
 * such call. The arrays are copied, and may be changed at once; runs of the batch before may still be running. The call
 * does not block. block_table_mem is read by a command on `queue` behind the batch's events: commands that are behind a
 * run of the batch, and on an in-order queue all that come later, may change it.
 * Errors: INVALID_ARGUMENT, INVALID_LENGTH (negative, falling, more than 2^31 - 1 tokens), CAPACITY (tokens that the
 * table row has no room for), INVALID_BLOCK (an entry inside the used length that is -1 or not in the pool; a block
 * that two sequences append to), BUFFER_TOO_SMALL (block_table_mem, for num_seqs rows), OUT_OF_DEVICE_MEMORY. The
 * messages name the sequence.
 */
PAGEDCL_API pagedcl_status pagedcl_plan_varlen(pagedcl_plan *plan, cl_command_queue queue,
                                               const pagedcl_varlen_batch *batch);
PAGEDCL_API pagedcl_status pagedcl_plan_decode(pagedcl_plan *plan, cl_command_queue queue,
                                               const pagedcl_decode_batch *batch);

/*
 * Enqueues a read of the plan's faults: table entries that its batches had to guard against since it was made. Each
 * batch counts each bad entry once, whatever its runs: in reads, if its block holds tokens from before the append; in
 * writes, if the run appends to it. An entry that is not in use does not count, nor does -1 for a block of which only
 * tokens left of the window were to be seen, nor any of a sequence without query tokens. *faults must stay until *event
 * is complete; num_events, events and event are as in cache.h. Errors: INVALID_ARGUMENT (also: no device_tables).
 */
PAGEDCL_API pagedcl_status pagedcl_plan_read_faults(pagedcl_plan *plan, cl_command_queue queue, pagedcl_faults *faults,
                                                    cl_uint num_events, const cl_event *events, cl_event *event);

/* The tensors of a run. T: total query rows of the plan. Offsets and strides are in elements. */
typedef struct pagedcl_attn_args {
    size_t struct_size;   /* sizeof(pagedcl_attn_args), set by PAGEDCL_ATTN_ARGS_INIT */
    int32_t layer;        /* of the pool */
    pagedcl_tensor q;     /* [T, num_heads, head_dim] in q_dtype; it is not changed */
    pagedcl_tensor k;     /* packed keys: [total_k, num_kv_heads, head_dim] in kv_dtype; otherwise none */
    pagedcl_tensor v;     /* likewise, with head_dim_v */
    pagedcl_tensor k_new; /* what an appending plan stores, in q_dtype; otherwise none */
    pagedcl_tensor v_new; /* likewise, with head_dim_v; none where V lies in K */
    pagedcl_tensor out;   /* [T, num_heads, head_dim_v] in out_dtype; must not overlap another tensor */
    cl_mem lse;           /* float32 [T, num_heads] contiguous; NULL: not wanted */
    int64_t lse_offset;   /* elements */
    cl_mem alibi_slopes;  /* float32 [num_heads], or [num_seqs, num_heads] with a stride */
    int64_t alibi_offset;
    int64_t alibi_seq_stride; /* from one sequence's slopes to the next's; 0: all have the same */
    cl_mem sinks;             /* float32 [num_heads] */
    int64_t sinks_offset;
    cl_mem rotary_cos; /* float32 [rotary_positions, rotary_dim / 2] each, contiguous */
    cl_mem rotary_sin;
    int64_t rotary_cos_offset;
    int64_t rotary_sin_offset;
    int64_t rotary_positions; /* at least the longest seqlen_k of the batch */
} pagedcl_attn_args;
#define PAGEDCL_ATTN_ARGS_INIT PAGEDCL_INIT(pagedcl_attn_args)

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
