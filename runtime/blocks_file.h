/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layout of a file of sequences. Numbers are 64 bits and little-endian.
 *
 *     head      pcl_file_head, then a pcl_file_group for each group
 *     data      for each sequence and group, the tokens from max(first, shared) to its length
 *     manifest  for each sequence a pcl_file_seq, a pcl_file_data for each group, its recorded tokens (32 bits each), and
 *               for each extra key a pcl_file_key and its bytes; each of these lists padded to 8 bytes
 *     tail      pcl_file_tail, with which the reader begins
 */
#ifndef PCL_BLOCKS_FILE_H
#define PCL_BLOCKS_FILE_H

#include "blocks.h"

#include <pagedcl/blocks_file.h>

#include <stdio.h>

typedef struct pcl_file_head {
    char magic[8];
    int64_t num_groups;
} pcl_file_head;

/* The geometry as pagedcl_kv_geometry has it, without defaults. */
typedef struct pcl_file_group {
    int64_t num_layers, num_kv_heads, head_dim, dtype;
    int64_t head_dim_v, v_in_k;
    int64_t scale_per_row, k_scale, v_scale; /* the last two are the bits of a float */
    int64_t block_size, window;
} pcl_file_group;

typedef struct pcl_file_seq {
    int64_t length, recorded;
    int64_t parent; /* an earlier sequence that has the first `shared` tokens, -1: none, and nothing is shared */
    int64_t shared;
    int64_t num_keys;
} pcl_file_seq;

typedef struct pcl_file_data {
    int64_t first; /* the first position that a window left */
    uint64_t offset, checksum;
} pcl_file_data;

typedef struct pcl_file_key {
    int64_t position, type, size;
} pcl_file_key;

typedef struct pcl_file_tail {
    int64_t num_seqs;
    uint64_t manifest_offset, manifest_size, manifest_checksum;
    uint64_t head_checksum; /* of the head with its groups */
    uint64_t checksum;      /* of the fields before this one */
    char magic[8];
} pcl_file_tail;

/* The last two characters are the version of the format. */
extern const char pcl_file_magic[8];
enum { PCL_FILE_NAME = 6 };

/* The checksum of bytes that follow those with the checksum `before`; 0 begins. */
uint64_t pcl_file_checksum(uint64_t before, const void *bytes, size_t size);

/* The same for tokens one by one, so that it does not matter how many are read at a time. */
uint64_t pcl_file_checksum_tokens(uint64_t before, const unsigned char *tokens, size_t num_tokens, size_t token_bytes);

static inline size_t pcl_file_padded(size_t size) {
    return (size + 7) / 8 * 8;
}

/* What a file has of a group, and of each of its tokens: in each layer num_kv_heads rows of K, then of V. A row is its
   elements, and behind them its stored scales. */
typedef struct pcl_file_form {
    pcl_file_group group;
    int num_sides;      /* 1: V lies in K */
    size_t elements[2]; /* bytes of a row of K, and of V, without scales */
    size_t scales[2];   /* bytes of its scales */
    uint64_t token_bytes;
} pcl_file_form;

/* Checks the geometry of every group and fills in its defaults. The forms, one for each group, are the caller's to free. */
pagedcl_status pcl_file_forms(const pagedcl_blocks *blocks, const pagedcl_kv_geometry *geometry, pcl_file_form **forms);

/* Whether the stored scales of tokens are such as a pool has. */
bool pcl_file_scales_are_valid(const pcl_file_form *form, const unsigned char *tokens, size_t num_tokens);

/* Memory for the tokens of the largest block, the caller's to free. */
pagedcl_status pcl_file_buffer(const pagedcl_blocks *blocks, const pcl_file_form *forms, unsigned char **buffer);

#endif
