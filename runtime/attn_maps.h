/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor maps of a cache's pool (cl/nv/pool_maps.h), with which an operator of tier nv_wgmma fetches keys and values: made
 * once, with the operator. They are of the memory that the pool has then; a kernel that finds it elsewhere, as after
 * pagedcl_cache_set_buffers, does without.
 */
#ifndef PCL_ATTN_MAPS_H
#define PCL_ATTN_MAPS_H

#include "arguments.h"
#include "attn.h"

#include <stdbool.h>

/* Whether the layout of a pool of 16-bit elements or 8-bit codes allows them; of others, and NULL: no. */
bool pcl_pool_has_maps(const pagedcl_cache *cache);

/* Whether the operator's tier and its pool have them. */
bool pcl_attn_has_maps(const pagedcl_attn *attn);

/* The variant of cl/attn_maps.cl for the operator's pool. */
void pcl_attn_maps_variant(const pagedcl_attn *attn, pcl_variant *variant);

/* Makes attn->maps with the program that is built (blocking), which it then releases. */
pagedcl_status pcl_attn_maps_make(pagedcl_attn *attn);

/* The last arguments of cl/attn_varlen_wgmma.cl and cl/attn_decode_stream.cl. */
void pcl_attn_maps_arguments(const pagedcl_attn *attn, int32_t layer, pcl_arguments *arguments);

#endif
