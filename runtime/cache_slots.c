/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a pool by slot: write and gather. */
#include "cache.h"

#include "dtype.h"
#include "launch.h"
#include "status.h"
#include "table.h"
#include "tensor.h"

#include <inttypes.h>
#include <string.h>

pagedcl_status pcl_cache_enqueue_write(const pagedcl_cache *cache, pcl_chain *chain, int32_t layer,
                                       const pagedcl_tensor *k, const pagedcl_tensor *v, pagedcl_dtype dtype,
                                       cl_mem slots, int64_t slots_offset, int64_t num_slots) {
    pcl_arguments arguments = pcl_arguments_of(cache->kernels[PCL_CACHE_WRITE]);
    pcl_argument_tensor(&arguments, k);
    pcl_argument_tensor(&arguments, v);
    pcl_argument_int(&arguments, (int32_t)dtype);
    pcl_argument_mem(&arguments, slots);
    pcl_argument_long(&arguments, slots_offset);
    pcl_argument_long(&arguments, num_slots);
    pcl_argument_int(&arguments, cache->desc.num_blocks);
    pcl_argument_mem(&arguments, cache->faults.counters);
    pcl_cache_arguments(cache, layer, &arguments);
    return pcl_launch_items(chain, &arguments, num_slots, cache->token_items);
}

pagedcl_status pcl_cache_enqueue_gather(const pagedcl_cache *cache, pcl_chain *chain, int32_t layer, cl_mem slots,
                                        int64_t num_slots, const pagedcl_tensor *k, const pagedcl_tensor *v) {
    pcl_arguments arguments = pcl_arguments_of(cache->kernels[PCL_CACHE_GATHER]);
    pcl_cache_arguments(cache, layer, &arguments);
    pcl_argument_mem(&arguments, slots);
    pcl_argument_long(&arguments, 0);
    pcl_argument_long(&arguments, num_slots);
    pcl_argument_mem(&arguments, k->mem);
    pcl_argument_long(&arguments, k->offset);
    pcl_argument_mem(&arguments, v->mem);
    pcl_argument_long(&arguments, v->offset);
    return pcl_launch_items(chain, &arguments, num_slots, cache->token_items);
}

/* True when the slot's mark was set already. */
static bool mark_slot(pagedcl_cache *cache, int64_t slot) {
    unsigned char *byte = &cache->slot_marks[slot / 8], bit = (unsigned char)(1u << slot % 8);
    bool was_set = (*byte & bit) != 0;
    *byte |= bit;
    return was_set;
}

/* Every slot is in the pool or -1, and none occurs twice. */
static pagedcl_status check_slots(pagedcl_cache *cache, const int64_t *slots, int64_t num_slots) {
    int64_t end = (int64_t)cache->desc.num_blocks * cache->desc.block_size, marked = 0;
    pagedcl_status status = PAGEDCL_SUCCESS;
    for (; marked < num_slots && status == PAGEDCL_SUCCESS; marked++) {
        int64_t slot = slots[marked];
        if (slot < -1 || slot >= end)
            status = pcl_fail(PAGEDCL_INVALID_SLOT,
                              "slot_mapping[%" PRId64 "] is %" PRId64 "; the pool has slots 0 to %" PRId64, marked,
                              slot, end - 1);
        else if (slot >= 0 && mark_slot(cache, slot))
            status = pcl_fail(PAGEDCL_INVALID_SLOT,
                              "slot_mapping[%" PRId64 "] is %" PRId64 ", which an earlier row has too", marked, slot);
    }
    for (int64_t t = 0; t < marked; t++)
        if (slots[t] >= 0 && slots[t] < end)
            cache->slot_marks[slots[t] / 8] = 0;
    return status;
}

/* k must be there; and v, unless it lies in k, where k stands in for it and nothing is read. */
static pagedcl_status check_sides(const pagedcl_cache *cache, const pagedcl_tensor *k, const pagedcl_tensor **v) {
    if (k == NULL || (*v == NULL) != (cache->desc.v_in_k != 0))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, cache->desc.v_in_k ? "k must not be NULL, and v must be: it lies in k"
                                                                     : "k and v must not be NULL");
    if (cache->desc.v_in_k)
        *v = k;
    return PAGEDCL_SUCCESS;
}

/* The rows of a write. */
typedef struct rows {
    pagedcl_tensor k, v; /* complete */
    pagedcl_dtype dtype; /* no default */
    int64_t count;
} rows;

/* Checks the rows of a write into a layer, and fills in what is left out. */
static pagedcl_status read_rows(const pagedcl_cache *cache, int32_t layer, const pagedcl_tensor *k,
                                const pagedcl_tensor *v, pagedcl_dtype dtype, int64_t num_slots, rows *own) {
    PCL_TRY(pcl_cache_check_layer(cache, layer));
    PCL_TRY(check_sides(cache, k, &v));
    if (num_slots < 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "num_slots is %" PRId64, num_slots);
    const pagedcl_cache_desc *desc = &cache->desc;
    own->count = num_slots;
    own->dtype = dtype == PAGEDCL_DTYPE_DEFAULT ? desc->dtype : dtype;
    if (pagedcl_dtype_size(own->dtype) == 0 || pcl_dtype_is_quantized(own->dtype))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "dtype %d (%s) is not one of k and v's: float32, float16 or bfloat16",
                        (int)own->dtype, pagedcl_dtype_name(own->dtype));
    PCL_TRY(pcl_tensor_check("k", k, num_slots, desc->num_kv_heads, desc->head_dim, own->dtype, &own->k));
    return pcl_tensor_check("v", v, num_slots, desc->num_kv_heads, desc->head_dim_v, own->dtype, &own->v);
}

pagedcl_status pagedcl_cache_write(pagedcl_cache *cache, cl_command_queue queue, int32_t layer, const pagedcl_tensor *k,
                                   const pagedcl_tensor *v, pagedcl_dtype dtype, const int64_t *slot_mapping,
                                   int64_t num_slots, cl_uint num_events, const cl_event *events, cl_event *event) {
    rows own;
    PCL_TRY(read_rows(cache, layer, k, v, dtype, num_slots, &own));
    if (slot_mapping == NULL && num_slots > 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "slot_mapping must not be NULL");
    PCL_TRY(check_slots(cache, slot_mapping, num_slots));

    pcl_chain chain;
    PCL_TRY(pcl_chain_begin(&chain, cache->device, queue, num_events, events));
    pagedcl_status status = PAGEDCL_SUCCESS;
    if (num_slots > 0) {
        /* num_slots rows are in a buffer: their slots fit the host's memory too. */
        size_t size = (size_t)num_slots * sizeof *slot_mapping;
        void *staging = NULL;
        status = pcl_upload_begin(&cache->upload, size, &staging);
        if (status == PAGEDCL_SUCCESS) {
            memcpy(staging, slot_mapping, size);
            status = pcl_upload_send(&cache->upload, &chain, size);
        }
        if (status == PAGEDCL_SUCCESS)
            status = pcl_cache_enqueue_write(cache, &chain, layer, &own.k, &own.v, own.dtype,
                                             pcl_upload_buffer(&cache->upload), 0, num_slots);
        if (status == PAGEDCL_SUCCESS)
            pcl_upload_used(&cache->upload, &chain);
    }
    return pcl_chain_end(&chain, status, event);
}

pagedcl_status pagedcl_cache_write_mapped(pagedcl_cache *cache, cl_command_queue queue, int32_t layer,
                                          const pagedcl_tensor *k, const pagedcl_tensor *v, pagedcl_dtype dtype,
                                          cl_mem slot_mapping, int64_t slot_mapping_offset, int64_t num_slots,
                                          cl_uint num_events, const cl_event *events, cl_event *event) {
    rows own;
    PCL_TRY(read_rows(cache, layer, k, v, dtype, num_slots, &own));
    if (num_slots > 0)
        PCL_TRY(pcl_buffer_check("slot_mapping", slot_mapping, slot_mapping_offset, num_slots, sizeof(cl_long)));
    pcl_chain chain;
    PCL_TRY(pcl_chain_begin(&chain, cache->device, queue, num_events, events));
    pagedcl_status status = PAGEDCL_SUCCESS;
    if (num_slots > 0) {
        status = pcl_faults_use(&cache->faults, &chain);
        if (status == PAGEDCL_SUCCESS)
            status = pcl_cache_enqueue_write(cache, &chain, layer, &own.k, &own.v, own.dtype, slot_mapping,
                                             slot_mapping_offset, num_slots);
        if (status == PAGEDCL_SUCCESS)
            pcl_faults_used(&cache->faults, &chain);
    }
    return pcl_chain_end(&chain, status, event);
}

pagedcl_status pagedcl_cache_read_faults(pagedcl_cache *cache, cl_command_queue queue, pagedcl_faults *faults,
                                         cl_uint num_events, const cl_event *events, cl_event *event) {
    if (cache == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "cache is NULL");
    return pcl_faults_read(&cache->faults, queue, faults, num_events, events, event);
}

static pagedcl_status enqueue_gather(pagedcl_cache *cache, pcl_chain *chain, int32_t layer, const pcl_table *table,
                                     const int32_t *seqlens, int32_t num_seqs, int64_t total, const pagedcl_tensor *k,
                                     const pagedcl_tensor *v) {
    size_t size = (size_t)total * sizeof(int64_t);
    void *staging = NULL;
    PCL_TRY(pcl_upload_begin(&cache->upload, size, &staging));
    int64_t *slots = staging;
    for (int32_t seq = 0; seq < num_seqs; seq++) {
        pcl_table_slots(cache, table, seq, 0, seqlens[seq], slots);
        slots += seqlens[seq];
    }
    PCL_TRY(pcl_upload_send(&cache->upload, chain, size));
    PCL_TRY(pcl_cache_enqueue_gather(cache, chain, layer, pcl_upload_buffer(&cache->upload), total, k, v));
    pcl_upload_used(&cache->upload, chain);
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_cache_gather(pagedcl_cache *cache, cl_command_queue queue, int32_t layer,
                                    const int32_t *block_table, int64_t block_table_stride, const int32_t *seqlens,
                                    int32_t num_seqs, const pagedcl_tensor *k, const pagedcl_tensor *v,
                                    cl_uint num_events, const cl_event *events, cl_event *event) {
    PCL_TRY(pcl_cache_check_layer(cache, layer));
    if (k == NULL || v == NULL || num_seqs < 0 || block_table_stride < 0 ||
        (num_seqs > 0 && (seqlens == NULL || (block_table == NULL && block_table_stride > 0))))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "k, v, block_table and seqlens must not be NULL, num_seqs and block_table_stride not below 0");
    pcl_table table = {block_table, block_table_stride};
    int64_t total = 0;
    for (int32_t seq = 0; seq < num_seqs; seq++) {
        PCL_TRY(pcl_table_check(cache, &table, seq, 0, seqlens[seq]));
        total += seqlens[seq];
    }
    if ((k->token_stride | k->head_stride | v->token_stride | v->head_stride) != 0)
        return pcl_fail(PAGEDCL_UNSUPPORTED, "gather writes contiguous rows: leave the strides of k and v 0");
    pagedcl_dtype dtype = pcl_cache_gathered_dtype(cache);
    pagedcl_tensor own_k, own_v;
    PCL_TRY(pcl_tensor_check("k", k, total, cache->desc.num_kv_heads, cache->desc.head_dim, dtype, &own_k));
    PCL_TRY(pcl_tensor_check("v", v, total, cache->desc.num_kv_heads, cache->desc.head_dim_v, dtype, &own_v));

    pcl_chain chain;
    PCL_TRY(pcl_chain_begin(&chain, cache->device, queue, num_events, events));
    pagedcl_status status = PAGEDCL_SUCCESS;
    if (total > 0)
        status = enqueue_gather(cache, &chain, layer, &table, seqlens, num_seqs, total, &own_k, &own_v);
    return pcl_chain_end(&chain, status, event);
}
