/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of blocks between a pool and files of sequences. */
#include <pagedcl/cache_file.h>

#include "cache.h"
#include "dtype.h"
#include "scales.h"
#include "status.h"
#include "struct_size.h"

#include <stdlib.h>
#include <string.h>

pagedcl_status pagedcl_cache_geometry(const pagedcl_cache *cache, pagedcl_kv_geometry *geometry) {
    if (cache == NULL || geometry == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "cache and geometry must not be NULL");
    const pagedcl_cache_desc *desc = &cache->desc;
    *geometry = (pagedcl_kv_geometry){.num_layers = desc->num_layers,
                                      .num_kv_heads = desc->num_kv_heads,
                                      .head_dim = desc->head_dim,
                                      .dtype = desc->dtype,
                                      .head_dim_v = desc->head_dim_v,
                                      .v_in_k = desc->v_in_k,
                                      .scale_per_row = desc->scale_per_row,
                                      .k_scale = desc->k_scale,
                                      .v_scale = desc->v_scale};
    return PAGEDCL_SUCCESS;
}

/* K or V of the slots of a layer, as the staging buffer holds them: the rows in the order of the pool, then the scales
   that are stored for them, [slots, heads]. */
typedef struct side_form {
    const pcl_pool_side *side;
    int64_t row;  /* elements, with what fills the last byte */
    bool by_head; /* the slots of a head lie side by side, as in the layout HND; otherwise a slot's heads do */
    size_t row_bytes, scale_bytes;
    size_t offset; /* in the staging of a layer */
} side_form;

/* A transfer under way. */
typedef struct transfer {
    pagedcl_cache *cache;
    pcl_chain chain;
    bool load;
    int32_t block, first_slot, num_slots;
    side_form sides[2]; /* K, V */
    int num_sides;      /* 1: V lies in K */
    size_t layer_bytes;
    char *staging; /* [num_layers] */
} transfer;

static pagedcl_status describe(transfer *t) {
    const pagedcl_cache_desc *desc = &t->cache->desc;
    const pcl_pool_side *const pool[2] = {&t->cache->k, &t->cache->v};
    t->num_sides = desc->v_in_k ? 1 : 2;
    size_t slot_bytes = 0, rows = 0;
    for (int i = 0; i < t->num_sides; i++) {
        side_form *form = &t->sides[i];
        form->side = pool[i];
        form->row = pcl_dtype_padded(desc->dtype, pool[i]->head_dim);
        form->by_head = pool[i]->strides.token == form->row;
        form->row_bytes = (size_t)pcl_dtype_bytes(desc->dtype, form->row);
        form->scale_bytes = (size_t)pcl_scales_stored(desc->dtype, desc->scale_per_row, pool[i]->head_dim);
        slot_bytes += form->row_bytes + form->scale_bytes;
    }
    if (__builtin_mul_overflow((size_t)t->num_slots, (size_t)desc->num_kv_heads, &rows) ||
        __builtin_mul_overflow(rows, slot_bytes, &t->layer_bytes) ||
        t->layer_bytes > SIZE_MAX / (size_t)desc->num_layers)
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "%d slots of %d layers", t->num_slots, desc->num_layers);
    t->sides[1].offset = rows * (t->sides[0].row_bytes + t->sides[0].scale_bytes);
    return PAGEDCL_SUCCESS;
}

static pagedcl_status move_bytes(transfer *t, cl_mem buffer, int64_t offset, size_t size, char *host) {
    return t->load ? pcl_chain_write(&t->chain, buffer, (size_t)offset, size, host)
                   : pcl_chain_read(&t->chain, buffer, (size_t)offset, size, host);
}

/* One side of a layer: as few commands as its strides allow. */
static pagedcl_status move_side(transfer *t, const side_form *form, int32_t layer, char *at) {
    const pagedcl_cache *cache = t->cache;
    const pagedcl_dtype dtype = cache->desc.dtype;
    const pcl_pool_side *side = form->side;
    int64_t heads = cache->desc.num_kv_heads, slots = t->num_slots;
    int32_t segment = t->block >> cache->segment_shift;
    cl_mem buffer = side->buffers[(int64_t)layer * cache->num_segments + segment];
    int64_t block =
        side->offsets[layer] + (t->block - ((int64_t)segment << cache->segment_shift)) * side->strides.block;
    int64_t begin = block + t->first_slot * side->strides.token;
    int64_t outer = form->by_head ? heads : slots, inner = form->by_head ? slots : heads;
    int64_t outer_stride = form->by_head ? side->strides.head : side->strides.token;
    int64_t inner_stride = form->by_head ? side->strides.token : side->strides.head;
    /* Rows that follow each other go together: those of the inner dimension, or all. */
    int64_t run = inner_stride == form->row ? inner : 1;
    if (run == inner && outer_stride == inner * form->row)
        run = inner * outer;
    for (int64_t row = 0; row < inner * outer; row += run) {
        int64_t element = begin + row / inner * outer_stride + row % inner * inner_stride;
        PCL_TRY(move_bytes(t, buffer, pcl_dtype_bytes(dtype, element), (size_t)run * form->row_bytes,
                           at + (size_t)row * form->row_bytes));
    }
    if (form->scale_bytes == 0)
        return PAGEDCL_SUCCESS;
    /* Token by token in every layout. */
    int64_t scales =
        pcl_dtype_bytes(dtype, block) + side->scales_offset + t->first_slot * heads * (int64_t)form->scale_bytes;
    return move_bytes(t, buffer, scales, (size_t)(slots * heads) * form->scale_bytes,
                      at + (size_t)(slots * heads) * form->row_bytes);
}

static pagedcl_status move_all(transfer *t) {
    for (int32_t layer = 0; layer < t->cache->desc.num_layers; layer++)
        for (int i = 0; i < t->num_sides; i++)
            PCL_TRY(
                move_side(t, &t->sides[i], layer, t->staging + (size_t)layer * t->layer_bytes + t->sides[i].offset));
    return PAGEDCL_SUCCESS;
}

static void copy_bytes(const transfer *t, char *staged, char **filed, size_t size) {
    memcpy(t->load ? staged : *filed, t->load ? *filed : staged, size);
    *filed += size;
}

/* Between the staging buffer and the file's order, in which a row is followed by its scales. */
static void reorder(const transfer *t, char *filed) {
    size_t heads = (size_t)t->cache->desc.num_kv_heads, slots = (size_t)t->num_slots;
    for (size_t slot = 0; slot < slots; slot++)
        for (size_t side = 0; side < (size_t)t->cache->desc.num_layers * (size_t)t->num_sides; side++) {
            const side_form *form = &t->sides[side % (size_t)t->num_sides];
            char *rows = t->staging + side / (size_t)t->num_sides * t->layer_bytes + form->offset;
            char *scales = rows + slots * heads * form->row_bytes;
            for (size_t head = 0; head < heads; head++) {
                size_t row = form->by_head ? head * slots + slot : slot * heads + head;
                copy_bytes(t, rows + row * form->row_bytes, &filed, form->row_bytes);
                copy_bytes(t, scales + (slot * heads + head) * form->scale_bytes, &filed, form->scale_bytes);
            }
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
    PCL_TRY(PCL_READ_STRUCT(&own, (const pagedcl_cache_transfer *)user, queue));
    if (own.caches == NULL || group < 0 || group >= own.num_groups || own.caches[group] == NULL || kv == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "group %d of %d caches; caches and kv must not be NULL", group,
                        own.num_groups);
    transfer t = {
        .cache = own.caches[group], .load = load, .block = block, .first_slot = first_slot, .num_slots = num_slots};
    PCL_TRY(pcl_cache_check_block(t.cache, "the transfer of group", group, block));
    if (first_slot < 0 || num_slots < 0 || num_slots > t.cache->desc.block_size - first_slot)
        return pcl_fail(PAGEDCL_INVALID_SLOT, "%d slots from %d on of a block of %d", num_slots, first_slot,
                        t.cache->desc.block_size);
    PCL_TRY(describe(&t));
    size_t size = t.layer_bytes * (size_t)t.cache->desc.num_layers;
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
