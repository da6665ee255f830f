/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks_file.h"

#include "status.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char pcl_file_magic[8] = "PCLSEQ01";

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

pagedcl_status pcl_file_token_bytes(const pagedcl_blocks *blocks, const pagedcl_kv_geometry *geometry,
                                    uint64_t *token_bytes) {
    for (int32_t g = 0; g < blocks->num_groups; g++) {
        const pagedcl_kv_geometry *of = &geometry[g];
        uint64_t bytes = pagedcl_dtype_size(of->dtype);
        if (of->num_layers < 1 || of->num_kv_heads < 1 || of->head_dim < 1 || bytes == 0)
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                            "geometry[%" PRId32 "] has %" PRId32 " layers, %" PRId32 " KV heads, head_dim %" PRId32
                            ", dtype %s",
                            g, of->num_layers, of->num_kv_heads, of->head_dim, pagedcl_dtype_name(of->dtype));
        if (__builtin_mul_overflow(bytes * 2, (uint64_t)of->num_layers, &bytes) ||
            __builtin_mul_overflow(bytes, (uint64_t)of->num_kv_heads, &bytes) ||
            __builtin_mul_overflow(bytes, (uint64_t)of->head_dim, &bytes))
            return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "a token of geometry[%" PRId32 "] does not fit 64 bits", g);
        token_bytes[g] = bytes;
    }
    return PAGEDCL_SUCCESS;
}

pcl_file_group pcl_file_group_of(const pagedcl_blocks *blocks, const pagedcl_kv_geometry *geometry, int32_t group) {
    return (pcl_file_group){.num_layers = geometry[group].num_layers,
                            .num_kv_heads = geometry[group].num_kv_heads,
                            .head_dim = geometry[group].head_dim,
                            .dtype = geometry[group].dtype,
                            .block_size = blocks->groups[group].block_size,
                            .window = blocks->groups[group].window};
}

pagedcl_status pcl_file_buffer(const pagedcl_blocks *blocks, const uint64_t *token_bytes, unsigned char **buffer) {
    size_t largest = 1;
    for (int32_t g = 0; g < blocks->num_groups; g++) {
        size_t bytes;
        if (__builtin_mul_overflow(token_bytes[g], (size_t)blocks->groups[g].block_size, &bytes))
            return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "a block of group %" PRId32 " does not fit memory", g);
        largest = bytes > largest ? bytes : largest;
    }
    *buffer = malloc(largest);
    if (*buffer == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no host memory for a block of %zu bytes", largest);
    return PAGEDCL_SUCCESS;
}
