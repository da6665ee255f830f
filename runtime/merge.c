/* SPDX-License-Identifier: Apache-2.0 */
#include "merge.h"

#include "device.h"
#include "dtype.h"
#include "launch.h"
#include "status.h"
#include "struct_size.h"
#include "tensor.h"
#include "variant.h"
#include "warm.h"

#include <inttypes.h>
#include <stdlib.h>

enum { MAX_HEAD_DIM = 576, GROUP_ITEMS = 256, CPU_GROUP_ITEMS = 64 };

struct pagedcl_merge {
    pagedcl_device *device; /* retained */
    pagedcl_merge_desc desc;
    int32_t row_items, group_items; /* TUNE_ITEMS and TUNE_WG of the kernel */
    cl_program program;
    cl_kernel kernel;
};

static pagedcl_status read_desc(const pagedcl_merge_desc *desc, pagedcl_merge_desc *own) {
    PCL_TRY(PCL_READ_STRUCT(own, desc, dtype));
    if (own->dtype == PAGEDCL_DTYPE_DEFAULT)
        own->dtype = PAGEDCL_FLOAT32;
    if (own->num_heads < 1)
        return pcl_fail(PAGEDCL_INVALID_HEADS, "num_heads is %d", own->num_heads);
    if (own->head_dim < 1 || own->head_dim > MAX_HEAD_DIM)
        return pcl_fail(PAGEDCL_UNSUPPORTED, "head_dim %d is not 1 to %d", own->head_dim, MAX_HEAD_DIM);
    if (pagedcl_dtype_size(own->dtype) == 0 || pcl_dtype_is_quantized(own->dtype))
        return pcl_fail(PAGEDCL_UNSUPPORTED, "dtype %d (%s) is not float32, float16 or bfloat16", (int)own->dtype,
                        pagedcl_dtype_name(own->dtype));
    return PAGEDCL_SUCCESS;
}

/* A core that walks along whole rows is faster; on a GPU neighbours take neighbours. */
static void divide(pagedcl_merge *merge) {
    const pagedcl_device_info *info = &merge->device->info;
    const bool cpu = info->kind == PAGEDCL_DEVICE_CPU;
    const int32_t row_vectors = (merge->desc.head_dim + 7) / 8;
    merge->group_items = cpu ? CPU_GROUP_ITEMS : GROUP_ITEMS;
    while ((uint64_t)merge->group_items > info->max_work_group_size && merge->group_items > 1)
        merge->group_items /= 2;
    merge->row_items = cpu ? 1 : row_vectors < merge->group_items ? row_vectors : merge->group_items;
}

static pagedcl_status build(pagedcl_merge *merge) {
    divide(merge);
    pcl_variant variant;
    pcl_variant_init(&variant, "merge");
    pcl_variant_int(&variant, "NUM_HEADS", merge->desc.num_heads);
    pcl_variant_int(&variant, "HEAD_DIM", merge->desc.head_dim);
    pcl_variant_dtype(&variant, "OUT_DTYPE", merge->desc.dtype);
    pcl_variant_int(&variant, "TUNE_ITEMS", merge->row_items);
    pcl_variant_int(&variant, "TUNE_WG", merge->group_items);
    pcl_variant_int(&variant, "HAS_UNALIGNED", merge->device->info.kind == PAGEDCL_DEVICE_CPU);
    PCL_TRY(pcl_variants_build(merge->device, &variant, 1, &merge->program));
    return pcl_variant_kernel(&variant, merge->program, &merge->kernel);
}

pagedcl_status pagedcl_merge_create(pagedcl_device *device, const pagedcl_merge_desc *desc, pagedcl_merge **out) {
    if (device == NULL || out == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "device and merge must not be NULL");
    pagedcl_merge_desc own;
    PCL_TRY(read_desc(desc, &own));
    pagedcl_merge *merge = calloc(1, sizeof *merge);
    if (merge == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for a merge");
    merge->device = pcl_device_retain(device);
    merge->desc = own;
    pagedcl_status status = build(merge);
    if (status == PAGEDCL_SUCCESS)
        status = pcl_warm_merge(merge);
    if (status != PAGEDCL_SUCCESS) {
        pagedcl_merge_destroy(merge);
        return status;
    }
    *out = merge;
    return PAGEDCL_SUCCESS;
}

pagedcl_device *pcl_merge_device(const pagedcl_merge *merge) {
    return merge->device;
}

void pagedcl_merge_destroy(pagedcl_merge *merge) {
    if (merge == NULL)
        return;
    if (merge->kernel != NULL)
        clReleaseKernel(merge->kernel);
    if (merge->program != NULL)
        clReleaseProgram(merge->program);
    pagedcl_device_destroy(merge->device);
    free(merge);
}

static void set_partial(pcl_arguments *arguments, const pagedcl_partial *partial) {
    pcl_argument_tensor(arguments, &partial->out);
    pcl_argument_mem(arguments, partial->lse);
    pcl_argument_long(arguments, partial->lse_offset);
}

static pagedcl_status enqueue(pagedcl_merge *merge, pcl_chain *chain, int64_t num_tokens,
                              const pagedcl_partial sides[3]) {
    pcl_arguments arguments = pcl_arguments_of(merge->kernel);
    for (int i = 0; i < 3; i++)
        set_partial(&arguments, &sides[i]);
    pcl_argument_long(&arguments, num_tokens);
    const int64_t group_rows = merge->group_items / merge->row_items, rows = num_tokens * merge->desc.num_heads;
    const int64_t groups = rows / group_rows + (rows % group_rows != 0 || rows == 0);
    return pcl_launch_groups(chain, &arguments, groups, 1, (size_t)merge->group_items);
}

pagedcl_status pcl_merge_launch_nothing(pagedcl_merge *merge, pcl_chain *chain, cl_mem any) {
    const pagedcl_partial none = {.out = {.mem = any}, .lse = any};
    return enqueue(merge, chain, 0, (const pagedcl_partial[3]){none, none, none});
}

/* Checks one side and completes its layout. A result need not have an LSE. */
static pagedcl_status check(const pagedcl_merge *merge, const char *const names[2], const pagedcl_partial *partial,
                            int64_t num_tokens, bool lse_needed, pagedcl_partial *own) {
    const pagedcl_merge_desc *desc = &merge->desc;
    if (partial == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s is missing", names[0]);
    *own = *partial;
    PCL_TRY(
        pcl_tensor_check(names[0], &partial->out, num_tokens, desc->num_heads, desc->head_dim, desc->dtype, &own->out));
    if (partial->lse != NULL || (lse_needed && num_tokens > 0))
        return pcl_buffer_check(names[1], partial->lse, partial->lse_offset, num_tokens * desc->num_heads,
                                sizeof(cl_float));
    if (partial->lse_offset != 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s is NULL, but its lse_offset is %" PRId64, names[1],
                        partial->lse_offset);
    own->lse = own->out.mem;
    own->lse_offset = -1;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pagedcl_merge_run(pagedcl_merge *merge, cl_command_queue queue, int64_t num_tokens,
                                 const pagedcl_partial *a, const pagedcl_partial *b, const pagedcl_partial *result,
                                 cl_uint num_events, const cl_event *events, cl_event *event) {
    if (merge == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "merge is NULL");
    if (num_tokens < 0 || num_tokens > INT64_MAX / merge->desc.num_heads)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "num_tokens is %" PRId64, num_tokens);
    pagedcl_partial sides[3];
    PCL_TRY(check(merge, (const char *const[2]){"out_a", "lse_a"}, a, num_tokens, true, &sides[0]));
    PCL_TRY(check(merge, (const char *const[2]){"out_b", "lse_b"}, b, num_tokens, true, &sides[1]));
    PCL_TRY(check(merge, (const char *const[2]){"out", "lse"}, result, num_tokens, false, &sides[2]));
    pcl_chain chain;
    PCL_TRY(pcl_chain_begin(&chain, merge->device, queue, num_events, events));
    pagedcl_status status = num_tokens > 0 ? enqueue(merge, &chain, num_tokens, sides) : PAGEDCL_SUCCESS;
    return pcl_chain_end(&chain, status, event);
}
