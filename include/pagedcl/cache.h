/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The KV pool of one cache group on the device.
 *
 * For each of num_layers layers, K has the shape [num_blocks, block_size, num_kv_heads, head_dim] and V the same with
 * head_dim_v, contiguous, in `dtype`: in the layout NHD slot s (= block * block_size + offset) has its K row of
 * num_kv_heads * head_dim elements at element s * num_kv_heads * head_dim. Where that is larger than the device's
 * largest allocation, it is split into segments of whole blocks; nobody but the library sees them. Or the buffers are
 * the caller's, with strides of their own. A new pool's content is undefined: a slot means something once it was
 * written.
 *
 * What belongs to something that a pool does not have (strides without buffers, a scale of 16-bit elements, a v where V
 * lies in K) must be 0 or NULL: it is refused, by name.
 *
 * Functions that take a queue enqueue commands and return; NULL means the device's own queue. num_events, events and
 * event are as in OpenCL: the commands wait for `events`, and *event, when event is not NULL, becomes an event of the
 * caller's that covers all of them (the queue is flushed then). Host arrays of block ids, slots and lengths are copied
 * before the call returns and may be changed at once.
 *
 * Threads: one cache must not be used from two threads at once.
 */
#ifndef PAGEDCL_CACHE_H
#define PAGEDCL_CACHE_H

#include <pagedcl/device.h>
#include <pagedcl/dtype.h>
#include <pagedcl/init.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pagedcl_cache pagedcl_cache;

/* The order of a block's dimensions. */
typedef enum pagedcl_layout {
    PAGEDCL_LAYOUT_NHD = 0, /* [block_size, num_kv_heads, head_dim]: a token's heads lie together */
    PAGEDCL_LAYOUT_HND = 1, /* [num_kv_heads, block_size, head_dim]: a head's tokens lie together */
} pagedcl_layout;

/* Distances inside a caller's pool, in elements. */
typedef struct pagedcl_pool_strides {
    int64_t block, token, head;
} pagedcl_pool_strides;

/* A caller's K and V of one layer: element (block, token, head, d) of K is at element k_offset + block * stride.block +
   token * stride.token + head * stride.head + d of k. K and V may be in one buffer. */
typedef struct pagedcl_pool_buffers {
    cl_mem k;
    int64_t k_offset;
    cl_mem v;
    int64_t v_offset;
} pagedcl_pool_buffers;

typedef struct pagedcl_cache_desc {
    size_t struct_size;         /* sizeof(pagedcl_cache_desc), set by PAGEDCL_CACHE_DESC_INIT */
    int32_t num_layers;         /* 0 means 1 */
    int32_t num_blocks;         /* at least 1 */
    int32_t block_size;         /* tokens, at least 1 */
    int32_t num_kv_heads;       /* at least 1 */
    int32_t head_dim;           /* 1 to 576 */
    pagedcl_dtype dtype;        /* default: float16 */
    uint64_t max_segment_bytes; /* 0: the device's largest allocation; a smaller value makes more segments. Not with
                                   buffers */
    int32_t head_dim_v;         /* 0: head_dim */
    int32_t v_in_k;        /* 1, for latent attention: V of a token is the first head_dim_v elements of its K row, and
                                   is not stored again. Functions then take no v, but for gather, which gives it */
    pagedcl_layout layout; /* of a pool that the library allocates */
    const pagedcl_pool_buffers *buffers; /* [num_layers], the caller's own; retained, the array is copied. NULL: the
                                            library allocates. Sub-buffers are welcome */
    pagedcl_pool_strides k_strides, v_strides; /* with buffers; all 0: those of `layout` */
    int32_t scale_per_row;  /* of an 8-bit dtype. 1: each token and KV head has a scale of its own, found by the write
                                   as its largest magnitude / the largest element, and in any case a normal number: an
                                   infinity counts as the largest float. Behind a block's elements, padded to
                                   4 bytes, lie its scales: float32 [block_size, num_kv_heads]. 0: k_scale and v_scale.
                                   An int4 pool always has scales there, see below */
    float k_scale, v_scale; /* of an 8-bit dtype without scale_per_row: value = element * scale. 0: 1 */
} pagedcl_cache_desc;
#define PAGEDCL_CACHE_DESC_INIT PAGEDCL_INIT(pagedcl_cache_desc)

/*
 * int4: a row of a token and KV head has ceil(head_dim / 2) bytes; the upper half of an odd row's last byte is 0. Behind
 * a block's rows, padded to 4 bytes, lie its scales, padded to 4 bytes again: float16 [block_size, num_kv_heads,
 * ceil(head_dim / 32)], one for each PAGEDCL_INT4_GROUP elements along the row: 4.5 bits an element in all. The write
 * finds a scale as the group's largest magnitude / 7, rounded up to a float16; so no element is further from what was
 * given than half of it. Magnitudes above 7 * 65504 become that. The library allocates these pools itself.
 */

/*
 * A tensor on the device: rows of `heads` heads of `head_dim` contiguous elements. Element (t, h, d) is at
 * offset + t * token_stride + h * head_stride + d, all in elements. A stride of 0 means contiguous:
 * head_stride = head_dim, token_stride = heads * head_stride. offset and strides are at least 0.
 */
typedef struct pagedcl_tensor {
    cl_mem mem;
    int64_t offset;
    int64_t token_stride;
    int64_t head_stride;
} pagedcl_tensor;

/*
 * Makes a pool and builds its kernels (blocking).
 * Errors: INVALID_ARGUMENT, UNSUPPORTED (head_dim, dtype), SIZE_OVERFLOW, POOL_TOO_LARGE (more than the device's
 * memory, or more than 8 segments a layer; the message says the limit), OUT_OF_DEVICE_MEMORY, BUILD_FAILED.
 */
PAGEDCL_API pagedcl_status pagedcl_cache_create(pagedcl_device *device, const pagedcl_cache_desc *desc,
                                                pagedcl_cache **cache);

/* Drops the caller's reference; operators on the cache keep it alive. Waits only for copies of host arrays that are still
   on their way to the device. NULL is allowed. */
PAGEDCL_API void pagedcl_cache_destroy(pagedcl_cache *cache);

/* The bytes of device memory that a pool of this description takes: num_layers * num_blocks * bytes of a block. */
PAGEDCL_API pagedcl_status pagedcl_cache_bytes(const pagedcl_cache_desc *desc, uint64_t *bytes);

/* Fills desc, up to desc->struct_size, with the defaults replaced by what they came to. */
PAGEDCL_API pagedcl_status pagedcl_cache_get_desc(const pagedcl_cache *cache, pagedcl_cache_desc *desc);

/*
 * Puts other buffers of the caller's in the place of those that the pool was made with; kernels and operators stay. For
 * tensors of one shape in changing memory. buffers: [num_layers], with the offsets that they had; retained, the array is
 * copied. Commands that were enqueued before keep the old ones. Attention of tier nv_wgmma is slower, prefill by a fifth and
 * decode by more, from memory that the pool did not have when the operator was made.
 * Errors: INVALID_ARGUMENT (the pool is the library's, another offset), BUFFER_TOO_SMALL.
 */
PAGEDCL_API pagedcl_status pagedcl_cache_set_buffers(pagedcl_cache *cache, const pagedcl_pool_buffers *buffers);

/*
 * Stores row t of k and v ([num_slots, num_kv_heads, head_dim], in `dtype`, which may differ from the pool's: a pool of
 * 8-bit or 4-bit elements quantises here) into slot slot_mapping[t] of `layer`. -1 skips the row. No slot may occur twice.
 * Errors: INVALID_ARGUMENT, INVALID_SLOT (names the row), BUFFER_TOO_SMALL.
 */
PAGEDCL_API pagedcl_status pagedcl_cache_write(pagedcl_cache *cache, cl_command_queue queue, int32_t layer,
                                               const pagedcl_tensor *k, const pagedcl_tensor *v, pagedcl_dtype dtype,
                                               const int64_t *slot_mapping, int64_t num_slots, cl_uint num_events,
                                               const cl_event *events, cl_event *event);

/* Counters of what kernels guarded against, as the device counts: from 0 on, modulo 2^32. What happened between two
   readings is their difference. */
typedef struct pagedcl_faults {
    uint32_t reads;
    uint32_t writes;
} pagedcl_faults;

/*
 * The same with slots on the device: int64 from element slot_mapping_offset of slot_mapping on, which the host does not
 * see. A slot that is neither in the pool nor -1 stores nothing, and counts in the cache's faults, once a row, as a
 * write. A slot that occurs twice is not noticed: its elements are then of either row.
 * Errors: INVALID_ARGUMENT, BUFFER_TOO_SMALL.
 */
PAGEDCL_API pagedcl_status pagedcl_cache_write_mapped(pagedcl_cache *cache, cl_command_queue queue, int32_t layer,
                                                      const pagedcl_tensor *k, const pagedcl_tensor *v,
                                                      pagedcl_dtype dtype, cl_mem slot_mapping,
                                                      int64_t slot_mapping_offset, int64_t num_slots,
                                                      cl_uint num_events, const cl_event *events, cl_event *event);

/*
 * Enqueues a read of the cache's faults since it was made. *faults must stay until *event is complete. Errors:
 * INVALID_ARGUMENT.
 */
PAGEDCL_API pagedcl_status pagedcl_cache_read_faults(pagedcl_cache *cache, cl_command_queue queue,
                                                     pagedcl_faults *faults, cl_uint num_events, const cl_event *events,
                                                     cl_event *event);

/*
 * Reads the first seqlens[i] tokens of each sequence through its block table into k and v, packed one sequence behind
 * the other: [sum of seqlens, num_kv_heads, head_dim], contiguous from `offset`, in the pool's dtype; a pool of 8-bit or
 * 4-bit elements gives float32, the element times its scale.
 * block_table: [num_seqs, block_table_stride]; entries behind ceil(seqlens[i] / block_size) are not looked at.
 * Errors: INVALID_ARGUMENT, INVALID_LENGTH, CAPACITY, INVALID_BLOCK, BUFFER_TOO_SMALL.
 */
PAGEDCL_API pagedcl_status pagedcl_cache_gather(pagedcl_cache *cache, cl_command_queue queue, int32_t layer,
                                                const int32_t *block_table, int64_t block_table_stride,
                                                const int32_t *seqlens, int32_t num_seqs, const pagedcl_tensor *k,
                                                const pagedcl_tensor *v, cl_uint num_events, const cl_event *events,
                                                cl_event *event);

/*
 * Copies whole blocks, K and V, in all layers: pairs[2*i] to pairs[2*i+1]. The pairs take effect in their order: a
 * block written by an earlier pair may be the source of a later one.
 * Errors: INVALID_ARGUMENT, INVALID_BLOCK (names the pair).
 */
PAGEDCL_API pagedcl_status pagedcl_cache_copy_blocks(pagedcl_cache *cache, cl_command_queue queue, const int32_t *pairs,
                                                     int64_t num_pairs, cl_uint num_events, const cl_event *events,
                                                     cl_event *event);

/*
 * Fills whole blocks, K and V and scales, with zero bytes in all layers. Elements of a caller's pool that belong to no
 * row keep what they are. Errors: INVALID_ARGUMENT, INVALID_BLOCK (names the entry).
 */
PAGEDCL_API pagedcl_status pagedcl_cache_wipe_blocks(pagedcl_cache *cache, cl_command_queue queue,
                                                     const int32_t *blocks, int64_t num_blocks, cl_uint num_events,
                                                     const cl_event *events, cl_event *event);

/*
 * Whole blocks of one layer to and from host memory, as the pool holds them, one behind the other: in k num_blocks times
 * [block_size, num_kv_heads, head_dim] in the pool's dtype (or the pool's other order), each followed by the scales that
 * it stores; in v likewise. Block i of them is physical block blocks[i]; blocks == NULL means 0 .. num_blocks-1.
 * The host memory must stay as it is until the event is complete. No block may occur twice in an upload.
 * Errors: INVALID_ARGUMENT, INVALID_BLOCK, UNSUPPORTED (a caller's pool whose strides leave gaps inside a block).
 */
PAGEDCL_API pagedcl_status pagedcl_cache_upload_blocks(pagedcl_cache *cache, cl_command_queue queue, int32_t layer,
                                                       const int32_t *blocks, int64_t num_blocks, const void *k,
                                                       const void *v, cl_uint num_events, const cl_event *events,
                                                       cl_event *event);
PAGEDCL_API pagedcl_status pagedcl_cache_download_blocks(pagedcl_cache *cache, cl_command_queue queue, int32_t layer,
                                                         const int32_t *blocks, int64_t num_blocks, void *k, void *v,
                                                         cl_uint num_events, const cl_event *events, cl_event *event);

#ifdef __cplusplus
}
#endif
#endif
