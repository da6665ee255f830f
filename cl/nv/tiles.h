/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles of TUNE_KEYS keys of a problem: which they are, and what becomes of their products.
 */
#ifndef NV_TILES_H
#define NV_TILES_H

#include "lib/attn_problem.h"
#include "nv/warp.h"

/* The keys of a problem's part that some row sees, begin .. end - 1, and the tiles of TUNE_KEYS that they lie in; those
   that all rows see. */
typedef struct tile_range {
    int begin, end;
    int full_begin, full_end;
    int start; /* the first tile's first key */
    int num_tiles;
} tile_range;

static tile_range tile_range_of(const attn_problem *p) {
    const int last_row = min(p->first_row + TUNE_ROWS, p->num_rows) - 1;
    tile_range range;
    range.begin = max(p->key_begin, problem_low(p, p->first_row));
    range.end = min(p->key_end, problem_high(p, last_row));
    range.full_begin = problem_low(p, last_row);
    range.full_end = min(problem_high(p, p->first_row), WITH_TREE ? p->k_len - p->q_len : p->k_len);
    range.start = p->key_begin + (range.begin - p->key_begin) / TUNE_KEYS * TUNE_KEYS;
    range.num_tiles = range.end > range.start ? (range.end - range.start + TUNE_KEYS - 1) / TUNE_KEYS : 0;
    return range;
}

/* What becomes of products on their way to the softmax. */
typedef struct score_scale {
    bool is_late; /* the softmax scales them, which costs nothing */
    float first, late;
} score_scale;

/* The scale is left to the softmax, unless something comes between, or it would turn the order round. */
static score_scale score_scale_of(const attn_problem *p) {
#if CODES && !ROW_SCALED
    const float all = p->mask.scale.x * p->keys.k.scale;
#else
    const float all = p->mask.scale.x;
#endif
    const bool late = (WITH_SOFTCAP | WITH_ALIBI) == 0 && all > 0;
    return (score_scale){late, late ? 1 : all, late ? all : 1};
}

#endif
