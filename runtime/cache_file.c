/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of blocks between a pool and files of sequences. */
#include <pagedcl/cache_file.h>

#include "cache.h"
#include "dtype.h"
#include "status.h"
#include "struct_size.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

pagedcl_status pagedcl_cache_geometry(const pagedcl_cache *cache, pagedcl_kv_geometry *geometry) {
    if (cache == NULL || geometry == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "cache and geometry must not be NULL");
    const pagedcl_cache_desc *desc = &cache->desc;
    if (pcl_dtype_is_quantized(desc->dtype) || desc->v_in_k || desc->head_dim_v != desc->head_dim)
        return pcl_fail(PAGEDCL_UNSUPPORTED,
                        "files have rows of float32, float16 and bfloat16, V's like K's; this pool has %s, head_dim %d "
                        "and %d%s",
                        pagedcl_dtype_name(desc->dtype), desc->head_dim, desc->head_dim_v,
                        desc->v_in_k ? ", V in K" : "");
    *geometry = (pagedcl_kv_geometry){desc->num_layers, desc->num_kv_heads, desc->head_dim, desc->dtype};
    return PAGEDCL_SUCCESS;
}

/* A transfer under way. */
typedef struct transfer {
    pagedcl_cache *cache;
    pcl_chain chain;
    bool load;
    int32_t block, first_slot, num_slots;
    size_t row_bytes; /* of a head */
    char *staging;    /* [num_layers, 2], each with the rows of its slots and heads in the order of the pool */
} transfer;

/* Whether the slots of a head lie side by side, as in the layout HND. Otherwise a slot's heads come together. */
static bool is_by_head(const pcl_pool_side *side) {
    return side->strides.token == side->head_dim;
}

/* One side of a layer: as few commands as its strides allow. */
static pagedcl_status move_side(transfer *t, const pcl_pool_side *side, int32_t layer, char *at) {
    const pagedcl_cache *cache = t->cache;
    int64_t heads = cache->desc.num_kv_heads, slots = t->num_slots,
            element = (int64_t)pagedcl_dtype_size(cache->desc.dtype);
    int32_t segment = t->block >> cache->segment_shift;
    cl_mem buffer = side->buffers[(int64_t)layer * cache->num_segments + segment];
    int64_t block = t->block - ((int64_t)segment << cache->segment_shift);
    int64_t begin = side->offsets[layer] + block * side->strides.block + t->first_slot * side->strides.token;
    bool by_head = is_by_head(side);
    int64_t outer = by_head ? heads : slots, inner = by_head ? slots : heads;
    int64_t outer_stride = by_head ? side->strides.head : side->strides.token;
    int64_t inner_stride = by_head ? side->strides.token : side->strides.head;
    /* Rows that follow each other go together: those of the inner dimension, or all. */
    int64_t run = inner_stride == side->head_dim ? inner : 1;
    if (run == inner && outer_stride == inner * side->head_dim)
        run = inner * outer;
    for (int64_t row = 0; row < inner * outer; row += run) {
        size_t offset = (size_t)((begin + row / inner * outer_stride + row % inner * inner_stride) * element);
        size_t size = (size_t)run * t->row_bytes;
        char *host = at + (size_t)row * t->row_bytes;
        PCL_TRY(t->load ? pcl_chain_write(&t->chain, buffer, offset, size, host)
                        : pcl_chain_read(&t->chain, buffer, offset, size, host));
    }
    return PAGEDCL_SUCCESS;
}

static size_t side_bytes(const transfer *t) {
    return (size_t)t->cache->desc.num_kv_heads * (size_t)t->num_slots * t->row_bytes;
}

static pagedcl_status move_all(transfer *t) {
    for (int32_t layer = 0; layer < t->cache->desc.num_layers; layer++) {
        char *at = t->staging + 2 * (size_t)layer * side_bytes(t);
        PCL_TRY(move_side(t, &t->cache->k, layer, at));
        PCL_TRY(move_side(t, &t->cache->v, layer, at + side_bytes(t)));
    }
    return PAGEDCL_SUCCESS;
}

/* Between the staging buffer and the file's order, [num_slots, num_layers, 2, num_kv_heads, dim]. */
static void reorder(const transfer *t, char *kv) {
    size_t sides = 2 * (size_t)t->cache->desc.num_layers, heads = (size_t)t->cache->desc.num_kv_heads;
    size_t slots = (size_t)t->num_slots;
    for (size_t slot = 0; slot < slots; slot++)
        for (size_t side = 0; side < sides; side++)
            for (size_t head = 0; head < heads; head++) {
                bool by_head = is_by_head(side % 2 == 0 ? &t->cache->k : &t->cache->v);
                size_t row = by_head ? head * slots + slot : slot * heads + head;
                char *staged = t->staging + side * side_bytes(t) + row * t->row_bytes;
                char *filed = kv + ((slot * sides + side) * heads + head) * t->row_bytes;
                memcpy(t->load ? staged : filed, t->load ? filed : staged, t->row_bytes);
            }
}

static pagedcl_status run(transfer *t, cl_command_queue queue) {
    PCL_TRY(pcl_chain_begin(&t->chain, t->cache->device, queue, 0, NULL));
    cl_command_queue used = t->chain.queue;
    cl_event event = NULL;
    pagedcl_status status = pcl_chain_end(&t->chain, move_all(t), &event);
    /* Whatever failed, nothing uses the staging buffer from here on. */
    cl_int code = event != NULL ? clWaitForEvents(1, &event) : clFinish(used);
    if (event != NULL)
        clReleaseEvent(event);
    if (status == PAGEDCL_SUCCESS && code != CL_SUCCESS)
        status = pcl_fail_opencl(code, "clWaitForEvents");
    return status;
}

static pagedcl_status transfer_rows(void *user, int32_t group, int32_t block, int32_t first_slot, int32_t num_slots,
                                    void *kv, bool load) {
    pagedcl_cache_transfer own;
    pagedcl_kv_geometry geometry;
    PCL_TRY(PCL_READ_STRUCT(&own, (const pagedcl_cache_transfer *)user, queue));
    if (own.caches == NULL || group < 0 || group >= own.num_groups || kv == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "group %d of %d caches; caches and kv must not be NULL", group,
                        own.num_groups);
    PCL_TRY(pagedcl_cache_geometry(own.caches[group], &geometry));
    transfer t = {.cache = own.caches[group],
                  .load = load,
                  .block = block,
                  .first_slot = first_slot,
                  .num_slots = num_slots,
                  .row_bytes = (size_t)geometry.head_dim * pagedcl_dtype_size(geometry.dtype)};
    PCL_TRY(pcl_cache_check_block(t.cache, "the transfer of group", group, block));
    if (first_slot < 0 || num_slots < 0 || num_slots > t.cache->desc.block_size - first_slot)
        return pcl_fail(PAGEDCL_INVALID_SLOT, "%d slots from %d on of a block of %d", num_slots, first_slot,
                        t.cache->desc.block_size);
    size_t size;
    if (__builtin_mul_overflow((size_t)num_slots * t.row_bytes, 2 * (size_t)geometry.num_layers, &size) ||
        __builtin_mul_overflow(size, (size_t)geometry.num_kv_heads, &size))
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "%d slots of %d layers", num_slots, geometry.num_layers);
    if (size == 0)
        return PAGEDCL_SUCCESS;
    t.staging = malloc(size);
    if (t.staging == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for %zu bytes of a block", size);
    if (load)
        reorder(&t, kv);
    pagedcl_status status = run(&t, own.queue);
    if (!load && status == PAGEDCL_SUCCESS)
        reorder(&t, kv);
    free(t.staging);
    return status;
}

pagedcl_status pagedcl_cache_save(void *user, int32_t group, int32_t block, int32_t first_slot, int32_t num_slots,
                                  void *kv) {
    return transfer_rows(user, group, block, first_slot, num_slots, kv, false);
}

pagedcl_status pagedcl_cache_load(void *user, int32_t group, int32_t block, int32_t first_slot, int32_t num_slots,
                                  void *kv) {
    return transfer_rows(user, group, block, first_slot, num_slots, kv, true);
}
