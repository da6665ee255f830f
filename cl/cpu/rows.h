/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rows of a tile of TUNE_KEYS keys and values: where they are, fetching them into the cache, reading them.
 */
#ifndef CPU_ROWS_H
#define CPU_ROWS_H

#include "cpu/vectors.h"
#include "lib/attn_problem.h"

/* The order of a row's sums depends on these, so they do not on TUNE_ROWS. Decode may have as few rows as GROUP. */
#define ROW_BLOCK (WITH_SPLITS && GROUP < 3 ? GROUP : 4)
#define KEY_BLOCK (TUNE_LANES / ROW_BLOCK)
#define ROW_BLOCKS ((TUNE_ROWS + ROW_BLOCK - 1) / ROW_BLOCK)
#define KEY_BLOCKS (TUNE_KEYS / KEY_BLOCK)

/*
 * The position in a tile of its n-th key: the keys of a vector of scores lie far from each other, so that the tile is
 * read in as many places by turns. That keeps more of memory busy than one piece after the other.
 */
#define TILE_POSITION(n) ((n) % KEY_BLOCK * KEY_BLOCKS + (n) / KEY_BLOCK)

/* Vectors that cover a row. Those of V are summed V_BLOCK at a time, which are as many sums as scores have. */
#define K_COLUMNS ((HEAD_DIM + TUNE_LANES - 1) / TUNE_LANES)
#define V_BLOCKS ((HEAD_DIM_V + TUNE_LANES * KEY_BLOCK - 1) / (TUNE_LANES * KEY_BLOCK))
#define V_BLOCK ((HEAD_DIM_V + TUNE_LANES * V_BLOCKS - 1) / (TUNE_LANES * V_BLOCKS))
#define V_COLUMNS (V_BLOCKS * V_BLOCK)
#if WITH_PAGED
#define VALUES_IN_KEYS (V_IN_K && V_COLUMNS <= K_COLUMNS)
#else
#define VALUES_IN_KEYS 0
#endif
#define TILE_COLUMNS (K_COLUMNS > V_COLUMNS ? K_COLUMNS : V_COLUMNS)

/*
 * Begins to bring a cache line into the second-level cache, or with NEAR into the first-level one. PoCL's prefetch does
 * nothing, and that of Intel's runtime is a call of a function, for which all vectors leave their registers.
 */
#if defined(__x86_64__) || defined(__aarch64__) || defined(__INTEL_LLVM_COMPILER)
#define FETCH(line) __builtin_prefetch((const void *)(ulong)(line), 0, 2)
#define FETCH_NEAR(line) __builtin_prefetch((const void *)(ulong)(line), 0, 3)
#else
#define FETCH(line) prefetch(line, 1)
#define FETCH_NEAR(line) prefetch(line, 1)
#endif

/* A row of K or V: where it begins, and the scales of a quantised pool. */
#if WITH_PAGED && KV_QUANTIZED
typedef struct tile_row {
    const __global STORAGE(KV) * begin;
#if KV_STORED_SCALES
    const __global STORAGE(SCALE) * scales;
#else
    float scale;
#endif
} tile_row;
#define ROW_BEGIN(row) ((row).begin)
#if KV_STORED_SCALES
#define ROW_SCALE(row, d) LOAD1(SCALE)((row).scales, (d) / SCALE_GROUP(KV))
#else
#define ROW_SCALE(row, d) ((row).scale)
#endif
#else
typedef const __global STORAGE(KV) * tile_row;
#define ROW_BEGIN(row) (row)
#define ROW_SCALE(row, d) 1
#endif

INLINE tile_row row_at(const attn_problem *p, int position, const bool values) {
    const keys_row row = values ? value_row(p, position) : key_row(p, position);
#if !WITH_PAGED
    return row;
#else
    const __global STORAGE(KV) *begin = row.base + UNIT(KV, row.at);
#if !KV_QUANTIZED
    return begin;
#elif KV_STORED_SCALES
    const tile_row found = {begin, row.scales};
    return found;
#else
    const tile_row found = {begin, row.pool_scale};
    return found;
#endif
#endif
}

/* Vector c of a row of dim elements of the pool, or of packed keys; zeros behind its end. */
INLINE floats row_vector(tile_row row, int c, const int dim) {
    const int d = c * TUNE_LANES;
    if (d >= dim)
        return 0;
    if (d + TUNE_LANES > dim) {
        float x[TUNE_LANES];
        for (int i = 0; i < TUNE_LANES; i += 8)
            vstore8(d + i < dim ? ROW_LOAD8(KV, ROW_BEGIN(row), 0, d + i, dim) * ROW_SCALE(row, d + i) : 0, 0, x + i);
        return LOAD_FLOATS(0, x);
    }
    return LOAD_LANES(KV)(ROW_BEGIN(row), d) * ROW_SCALE(row, d);
}

/* Whether a cache line begins with vector c of a row, and beginning to fetch it. */
#define VECTOR_BYTES (UNIT(KV, TUNE_LANES) * (int)sizeof(STORAGE(KV)))
#define IS_LINE(c) ((c)*VECTOR_BYTES % 64 == 0)
INLINE void line_fetch(tile_row row, int c) {
    FETCH((const __global uchar *)ROW_BEGIN(row) + c * VECTOR_BYTES);
}
INLINE void line_fetch_near(tile_row row, int c) {
    FETCH_NEAR((const __global uchar *)ROW_BEGIN(row) + c * VECTOR_BYTES);
}

/* Whether the heads of a token lie side by side: they are then read together, token by token. */
#if WITH_PAGED
#define HEADS_SIDE_BY_SIDE (K_TOKEN_STRIDE > K_HEAD_STRIDE)
#else
#define HEADS_SIDE_BY_SIDE 1
#endif

/*
 * Rows are fetched near so many keys before they are read: 12 KiB of them, which is as long as memory takes and a part of
 * the first-level cache. Of heads side by side 2 KiB each, and those of 8 heads are 16 KiB; of fewer heads more keys
 * would not help, since at their distances rows share the cache's sets.
 */
#define NEAR_BYTES (HEADS_SIDE_BY_SIDE ? 2048 : 12288)
#define NEAR_KEYS (NEAR_BYTES / (K_COLUMNS * VECTOR_BYTES) / KEY_BLOCK * KEY_BLOCK)
#define SOON (NEAR_KEYS < KEY_BLOCK ? KEY_BLOCK : NEAR_KEYS > TUNE_KEYS ? TUNE_KEYS : NEAR_KEYS)

/* Then values are summed so many vectors of scores at a time, which is 8 keys or more: sums are loaded and stored. */
#define VALUE_BLOCKS (KEY_BLOCK >= 8 ? 1 : KEY_BLOCKS * KEY_BLOCK > 8 ? 8 / KEY_BLOCK : KEY_BLOCKS)

/* Where a head's rows of V begin behind those of K, which may be the same, and where what comes then. */
#define VALUES (VALUES_IN_KEYS ? 0 : TUNE_KEYS)
#define AFTER_VALUES (VALUES + TUNE_KEYS)

/* Begins to fetch `count` rows of a tile, from the n-th on, as far as the part has them. */
static void tile_fetch(const attn_problem *p, int first, int n, int count) {
    for (int j = n; j < n + count; j++) {
        const int position = first + TILE_POSITION(j);
        if (position >= p->key_end || !problem_has(p, position))
            continue;
        const tile_row key = row_at(p, position, false), value = row_at(p, position, true);
        for (int c = 0; c < K_COLUMNS; c += IS_LINE(1) ? 1 : 64 / VECTOR_BYTES)
            line_fetch(key, c);
        for (int c = 0; c < V_COLUMNS; c += IS_LINE(1) ? 1 : 64 / VECTOR_BYTES)
            line_fetch(value, c);
    }
}

/* The rows of a tile, of KV head p->kv_head; the last of the sequence stands for those behind its end. */
INLINE void rows_find(const attn_problem *p, int first, const bool values, tile_row *rows) {
    for (int j = 0; j < TUNE_KEYS; j++)
        rows[j] = row_at(p, min(first + TILE_POSITION(j), p->k_len - 1), values);
}

/* The row of the same position, `head` KV heads further. */
INLINE tile_row row_of_head(tile_row row, int head, const bool values) {
#if WITH_PAGED
    ROW_BEGIN(row) += head * (long)UNIT(KV, values ? V_HEAD_STRIDE : K_HEAD_STRIDE);
#if KV_STORED_SCALES
    row.scales += head * ROW_SCALES(values && !V_IN_K ? HEAD_DIM_V : HEAD_DIM);
#endif
#endif
    (void)head;
    (void)values;
    return row;
}
INLINE void rows_of_head(const tile_row *rows, int head, const bool values, tile_row *to) {
    for (int j = 0; j < TUNE_KEYS; j++)
        to[j] = row_of_head(rows[j], head, values);
}

/* Where the positions end whose keys are found in memory: the rest comes from k_new and v_new. */
INLINE int stored_end(const attn_problem *p) {
    return WITH_APPEND ? p->new_first : p->k_len;
}

/* Positions first .. first + TUNE_KEYS - 1 of K or V; outside begin .. p->key_end - 1, and without a block, they are
   zeros, and nothing is read. */
INLINE void tile_load(const attn_problem *p, int first, int begin, const bool values, floats *tile) {
    const int dim = values ? HEAD_DIM_V : HEAD_DIM;
    const int columns = values ? V_COLUMNS : K_COLUMNS;
    for (int j = 0; j < TUNE_KEYS; j++) {
        const int position = first + TILE_POSITION(j);
        floats *to = tile + j * TILE_COLUMNS;
        const bool is_there = position >= begin && position < p->key_end && problem_has(p, position);
        if (is_there && position < stored_end(p)) {
            const tile_row row = row_at(p, position, values);
            for (int c = 0; c < columns; c++)
                to[c] = row_vector(row, c, dim);
            continue;
        }
        for (int c = 0; c < columns; c++)
            to[c] = 0;
#if WITH_APPEND
        for (int d = 0; is_there && d < dim; d += 8)
            vstore8(values ? value8(p, position, d) : key8(p, position, d), 0, (float *)to + d);
#endif
    }
}

#endif
