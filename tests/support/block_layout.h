/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a pool's block has where, and what its bytes mean, from the descriptions in cache.h and the formats' definitions:
 * rows of elements in any dtype, and behind them their scales where these are stored.
 */
#ifndef BLOCK_LAYOUT_H
#define BLOCK_LAYOUT_H

#include <pagedcl/cache.h>

#include <stdbool.h>

/* ---- the codes of quantised dtypes ---- */

bool is_quantized(pagedcl_dtype dtype);

double code_value(pagedcl_dtype dtype, unsigned char code);

/* The largest value of a code. */
double code_largest(pagedcl_dtype dtype);

/* The distance of neighbouring codes around a value. */
double code_step(pagedcl_dtype dtype, double value);

/* The code whose value is nearest. */
unsigned char code_of(pagedcl_dtype dtype, double value);

/* ---- blocks ---- */

/* K, or V, of one block. */
typedef struct block_layout {
    pagedcl_dtype dtype;
    pagedcl_layout order;
    int32_t block_size, num_kv_heads, head_dim;
    size_t row_bytes;     /* of a token and head */
    int32_t scale_group;  /* elements along a row that share a stored scale; 0: none is stored */
    float scale;          /* of the pool, where none is stored */
    size_t elements_end;  /* bytes of the rows */
    size_t scales_offset; /* bytes from the block's beginning to its scales, and behind them */
    size_t scales_end;
    size_t bytes; /* of the block */
} block_layout;

/* scale: the pool's k_scale or v_scale; 0: 1. */
block_layout block_layout_of(const pagedcl_cache_desc *desc, int32_t head_dim, float scale);

/* Where the row of a token and head begins. */
size_t block_row(const block_layout *layout, int32_t token, int32_t head);

/* Where the scales of that row are stored, and how many bytes they have: 0 when none are stored. */
size_t block_scales(const block_layout *layout, int32_t token, int32_t head, size_t *bytes);

double block_scale(const block_layout *layout, const unsigned char *block, int32_t token, int32_t head, int32_t d);

/* Element d of a quantised row. */
double block_value(const block_layout *layout, const unsigned char *block, int32_t token, int32_t head, int32_t d);

/* Stores the head_dim values of a row, of any dtype. */
void block_store(const block_layout *layout, unsigned char *block, int32_t token, int32_t head, const float *values);

#endif
