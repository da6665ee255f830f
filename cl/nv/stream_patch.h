/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What no box brings into a stage of the stream.
 */
#ifndef NV_STREAM_PATCH_H
#define NV_STREAM_PATCH_H

#include "nv/stream.h"

/* The first position whose key is not in the pool. */
static int stream_new_first(const attn_problem *p) {
    return WITH_APPEND ? p->new_first : p->k_len;
}

/*
 * What a tile needs that is not all old keys of p from `begin` on: new ones, which are not in the pool yet, and zeros
 * for values that are none, since a weight of 0 meets them. first: the first of WARP_KEYS keys. By `items`
 * work-items, of which this is one, before a barrier of theirs.
 */
static void stream_patch(const attn_problem *p, int begin, int first, __local uchar *keys, __local uchar *values,
                         __local float *key_scales, int item, int items) {
    const int new_first = stream_new_first(p);
    for (int i = item; i < WARP_KEYS * K_VECTORS; i += items) {
        const int key = i / K_VECTORS, d = i % K_VECTORS * 8, position = first + key;
        if (position >= new_first && key_exists(p, begin, position))
            tile_store_row8(keys + boxed_element(K_BOX, key, d), p, true, position, d, true);
    }
    for (int i = item; i < WARP_KEYS * V_VECTORS; i += items) {
        const int key = i / V_VECTORS, d = i % V_VECTORS * 8, position = first + key;
        const bool exists = key_exists(p, begin, position);
        if (!exists || (!VALUES_IN_KEYS && position >= new_first))
            tile_store_row8(values + boxed_element(V_BOX, key, d), p, false, position, d, exists);
    }
#if ROW_SCALED
    for (int i = item; i < WARP_KEYS * (VALUES_IN_KEYS ? 1 : 2); i += items) {
        const int key = i % WARP_KEYS, position = first + key;
        if (position >= new_first && key_exists(p, begin, position))
            key_scales[i / WARP_KEYS * VALUE_SCALES + key] = row_scale(p, i < WARP_KEYS, position);
    }
#else
    (void)key_scales;
#endif
    fence_async();
}

#endif
