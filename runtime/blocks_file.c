/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks_file.h"

#include "dtype.h"
#include "scales.h"
#include "status.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char pcl_file_magic[8] = "PCLSEQ02";

uint64_t pcl_file_checksum(uint64_t before, const void *bytes, size_t size) {
    const unsigned char *at = bytes;
    uint64_t sum = before ^ size;
    for (; size > 0; at += 8, size -= size < 8 ? size : 8) {
        uint64_t word = 0;
        memcpy(&word, at, size < 8 ? size : 8);
        sum = (sum ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        sum ^= sum >> 29;
    }
    return sum;
}

uint64_t pcl_file_checksum_tokens(uint64_t before, const unsigned char *tokens, size_t num_tokens, size_t token_bytes) {
    for (size_t i = 0; i < num_tokens; i++)
        before = pcl_file_checksum(before, tokens + i * token_bytes, token_bytes);
    return before;
}

static int64_t bits_of(float scale) {
    uint32_t bits;
    memcpy(&bits, &scale, sizeof bits);
    return bits;
}

/* Checks the geometry of a group and fills in its defaults. */
static pagedcl_status read_geometry(int32_t g, pagedcl_kv_geometry *of) {
    if (of->head_dim_v == 0)
        of->head_dim_v = of->head_dim;
    if (of->num_layers < 1 || of->num_kv_heads < 1 || of->head_dim < 1 || of->head_dim_v < 1 ||
        (pagedcl_dtype_size(of->dtype) == 0 && of->dtype != PAGEDCL_INT4))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "geometry[%" PRId32 "] has %" PRId32 " layers, %" PRId32 " KV heads, head_dim %" PRId32
                        ", head_dim_v %" PRId32 ", dtype %s",
                        g, of->num_layers, of->num_kv_heads, of->head_dim, of->head_dim_v,
                        pagedcl_dtype_name(of->dtype));
    if (of->v_in_k != 0 && (of->v_in_k != 1 || of->head_dim_v > of->head_dim))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "geometry[%" PRId32 "] has v_in_k %" PRId32 ", head_dim %" PRId32 ", head_dim_v %" PRId32
                        ": V must fit K's row",
                        g, of->v_in_k, of->head_dim, of->head_dim_v);
    pcl_scales scales = {of->dtype, of->v_in_k, of->scale_per_row, of->k_scale, of->v_scale};
    PCL_TRY(pcl_scales_read(&scales));
    of->k_scale = scales.k;
    of->v_scale = scales.v;
    return PAGEDCL_SUCCESS;
}

static pagedcl_status read_form(const pcl_group *group, int32_t g, const pagedcl_kv_geometry *geometry,
                                pcl_file_form *form) {
    pagedcl_kv_geometry of = *geometry;
    PCL_TRY(read_geometry(g, &of));
    form->group = (pcl_file_group){.num_layers = of.num_layers,
                                   .num_kv_heads = of.num_kv_heads,
                                   .head_dim = of.head_dim,
                                   .dtype = of.dtype,
                                   .head_dim_v = of.head_dim_v,
                                   .v_in_k = of.v_in_k,
                                   .scale_per_row = of.scale_per_row,
                                   .k_scale = bits_of(of.k_scale),
                                   .v_scale = bits_of(of.v_scale),
                                   .block_size = group->block_size,
                                   .window = group->window};
    const int32_t dims[2] = {of.head_dim, of.head_dim_v};
    form->num_sides = of.v_in_k ? 1 : 2;
    uint64_t bytes = 0;
    for (int side = 0; side < form->num_sides; side++) {
        form->elements[side] = (size_t)pcl_dtype_bytes(of.dtype, pcl_dtype_padded(of.dtype, dims[side]));
        form->scales[side] = (size_t)pcl_scales_stored(of.dtype, of.scale_per_row, dims[side]);
        bytes += form->elements[side] + form->scales[side];
    }
    if (__builtin_mul_overflow(bytes, (uint64_t)of.num_layers, &bytes) ||
        __builtin_mul_overflow(bytes, (uint64_t)of.num_kv_heads, &bytes))
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "a token of geometry[%" PRId32 "] does not fit 64 bits", g);
    form->token_bytes = bytes;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pcl_file_forms(const pagedcl_blocks *blocks, const pagedcl_kv_geometry *geometry,
                              pcl_file_form **forms) {
    pcl_file_form *made = calloc((size_t)blocks->num_groups, sizeof *made);
    if (made == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no host memory for %" PRId32 " groups", blocks->num_groups);
    pagedcl_status status = PAGEDCL_SUCCESS;
    for (int32_t g = 0; g < blocks->num_groups && status == PAGEDCL_SUCCESS; g++)
        status = read_form(&blocks->groups[g], g, &geometry[g], &made[g]);
    if (status != PAGEDCL_SUCCESS)
        free(made);
    else
        *forms = made;
    return status;
}

bool pcl_file_scales_are_valid(const pcl_file_form *form, const unsigned char *tokens, size_t num_tokens) {
    const pagedcl_dtype dtype = (pagedcl_dtype)form->group.dtype;
    if (form->scales[0] == 0)
        return true;
    for (uint64_t layer = 0; layer < num_tokens * (uint64_t)form->group.num_layers; layer++)
        for (int side = 0; side < form->num_sides; side++)
            for (int64_t head = 0; head < form->group.num_kv_heads; head++) {
                tokens += form->elements[side];
                if (!pcl_scales_are_valid(dtype, tokens, (int64_t)form->scales[side]))
                    return false;
                tokens += form->scales[side];
            }
    return true;
}

pagedcl_status pcl_file_buffer(const pagedcl_blocks *blocks, const pcl_file_form *forms, unsigned char **buffer) {
    size_t largest = 1;
    for (int32_t g = 0; g < blocks->num_groups; g++) {
        size_t bytes;
        if (__builtin_mul_overflow(forms[g].token_bytes, (size_t)blocks->groups[g].block_size, &bytes))
            return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "a block of group %" PRId32 " does not fit memory", g);
        largest = bytes > largest ? bytes : largest;
    }
    *buffer = malloc(largest);
    if (*buffer == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no host memory for a block of %zu bytes", largest);
    return PAGEDCL_SUCCESS;
}
