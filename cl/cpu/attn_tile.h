/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by one work-item, CPU tier: TUNE_ROWS rows of a problem against tiles of TUNE_KEYS keys. No barriers, no
 * local memory. Online softmax in base 2, as lib/attn_tile.h.
 *
 * Vectors of TUNE_LANES floats, 8 or 16, which fill a register, run along head_dim, padded with zeros. A vector of
 * scores, and of what is known of rows, has ROW_BLOCK rows one behind the other, KEY_BLOCK lanes each: so many sums
 * stay in registers while they are made, and each vector of q and K that is loaded serves several of them.
 *
 * Many rows read a tile of K, then of V, from a float32 copy in private memory, which is a core's first-level cache. A
 * single block of rows, which reads each key once, takes it straight from the pool, and fetches the next tile ahead.
 */
#ifndef CPU_ATTN_TILE_H
#define CPU_ATTN_TILE_H

#include "lib/attn_problem.h"
#include "lib/attn_result.h"

#ifndef TUNE_LANES
#error TUNE_LANES is missing
#endif

/* Swaps neighbouring lanes, pairs of them, and so on; there is no half of 8 lanes with 8 more. */
#if TUNE_LANES == 16
#define SWAP1(x) (x).s1032547698badcfe
#define SWAP2(x) (x).s23016745ab89efcd
#define SWAP4(x) (x).s45670123cdef89ab
#define SWAP8(x) (x).s89abcdef01234567
#else
#define SWAP1(x) (x).s10325476
#define SWAP2(x) (x).s23016745
#define SWAP4(x) (x).s45670123
#define SWAP8(x) (x)
#endif
typedef PASTE(float, TUNE_LANES) floats;
typedef PASTE(int, TUNE_LANES) ints;
#define LOAD_FLOATS PASTE(vload, TUNE_LANES)
#define STORE_FLOATS PASTE(vstore, TUNE_LANES)
#define LOAD_LANES(role) PASTE(PASTE(load, TUNE_LANES), PASTE(_, role##_DTYPE))

/* The order of a row's sums depends on these, so they do not on TUNE_ROWS. Decode may have as few rows as GROUP. */
#define ROW_BLOCK (WITH_SPLITS && GROUP < 3 ? GROUP : 4)
#define KEY_BLOCK (TUNE_LANES / ROW_BLOCK)
#define ROW_BLOCKS ((TUNE_ROWS + ROW_BLOCK - 1) / ROW_BLOCK)
#define KEY_BLOCKS (TUNE_KEYS / KEY_BLOCK)

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

/* The portable tier has local memory and a size of sub-groups here; this one needs none. */
#define SUB_GROUP
typedef int tile_memory;
#define TILE_MEMORY(name) tile_memory name = 0

/* What is small, or has arguments that are constants where it is called. */
#define INLINE static inline __attribute__((always_inline))

/* Begins to bring a cache line into the second-level cache. PoCL's prefetch does nothing. */
#if defined(__x86_64__) || defined(__aarch64__)
#define FETCH(line) __builtin_prefetch((const void *)(ulong)(line), 0, 2)
#else
#define FETCH(line) prefetch(line, 1)
#endif

INLINE floats add_neighbours(floats a, floats b) {
    return (floats)(a.even, b.even) + (floats)(a.odd, b.odd);
}

/* Lane i is the sum of all lanes of x[i]. */
INLINE floats sums_of(const floats *x) {
    floats a[TUNE_LANES / 2], b[TUNE_LANES / 4];
#pragma unroll
    for (int i = 0; i < TUNE_LANES / 2; i++)
        a[i] = add_neighbours(x[2 * i], x[2 * i + 1]);
#pragma unroll
    for (int i = 0; i < TUNE_LANES / 4; i++)
        b[i] = add_neighbours(a[2 * i], a[2 * i + 1]);
#if TUNE_LANES == 16
    return add_neighbours(add_neighbours(b[0], b[1]), add_neighbours(b[2], b[3]));
#else
    return add_neighbours(b[0], b[1]);
#endif
}

/* The largest, or the sum, of a row's lanes, in each of them. */
INLINE floats row_max_of(floats x) {
    x = KEY_BLOCK > 1 ? fmax(x, SWAP1(x)) : x;
    x = KEY_BLOCK > 2 ? fmax(x, SWAP2(x)) : x;
    x = KEY_BLOCK > 4 ? fmax(x, SWAP4(x)) : x;
    return KEY_BLOCK > 8 ? fmax(x, SWAP8(x)) : x;
}
INLINE floats row_sum_of(floats x) {
    x = KEY_BLOCK > 1 ? x + SWAP1(x) : x;
    x = KEY_BLOCK > 2 ? x + SWAP2(x) : x;
    x = KEY_BLOCK > 4 ? x + SWAP4(x) : x;
    return KEY_BLOCK > 8 ? x + SWAP8(x) : x;
}

INLINE const __global STORAGE(KV) *row_begin(keys_row row) {
#if WITH_PAGED
    return row.base + UNIT(KV, row.at);
#else
    return row;
#endif
}

/* Vector c of a row of dim elements of the pool, or of packed keys; zeros behind its end. */
INLINE floats row_vector(keys_row row, int c, const int dim) {
    const int d = c * TUNE_LANES;
    if (d >= dim)
        return 0;
    if (d + TUNE_LANES > dim) {
        float x[TUNE_LANES];
        for (int i = 0; i < TUNE_LANES; i += 8)
            vstore8(d + i < dim ? keys_load8(row, d + i, dim) : 0, 0, x + i);
        return LOAD_FLOATS(0, x);
    }
#if WITH_PAGED && KV_QUANTIZED
    return LOAD_LANES(KV)(row_begin(row), d) * pool_scale_at(row, d);
#else
    return LOAD_LANES(KV)(row_begin(row), d);
#endif
}

/* Where the positions end whose keys are found in memory: the rest comes from k_new and v_new. */
INLINE int stored_end(const attn_problem *p) {
    return WITH_APPEND ? p->new_first : p->k_len;
}

INLINE keys_row row_at(const attn_problem *p, int position, const bool values) {
    return values ? value_row(p, position) : key_row(p, position);
}

/* Finds the row of a position, if the part has that, and begins to fetch it. */
INLINE void row_fetch(const attn_problem *p, int position, const bool values, keys_row *row) {
    const int bytes = UNIT(KV, values ? HEAD_DIM_V : HEAD_DIM) * (int)sizeof(STORAGE(KV));
    if (position >= p->key_end || !problem_has(p, position))
        return;
    *row = row_at(p, position, values);
#pragma unroll
    for (int i = 0; i < bytes; i += 64)
        FETCH((const __global uchar *)row_begin(*row) + i);
}

/* Positions first .. first + TUNE_KEYS - 1 of K or V; outside begin .. p->key_end - 1, and without a block, they are
   zeros, and nothing is read. */
INLINE void tile_load(const attn_problem *p, int first, int begin, const bool values, floats *tile) {
    const int dim = values ? HEAD_DIM_V : HEAD_DIM;
    const int columns = values ? V_COLUMNS : K_COLUMNS;
    for (int j = 0; j < TUNE_KEYS; j++) {
        const int position = first + j;
        floats *to = tile + j * TILE_COLUMNS;
        const bool is_there = position >= begin && position < p->key_end && problem_has(p, position);
        if (is_there && position < stored_end(p)) {
            const keys_row row = row_at(p, position, values);
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

/* Whether no value of the tile is infinite or NaN. */
static bool tile_is_finite(const floats *tile) {
    floats zeros = 0;
    for (int j = 0; j < TUNE_KEYS; j++)
        for (int c = 0; c < V_COLUMNS; c++)
            zeros += tile[j * TILE_COLUMNS + c] * 0;
    return all(zeros == 0);
}

/* A query row, ready for the products. */
static void q_load(const attn_problem *p, const __global STORAGE(Q) * q, long4 q_layout, int row, floats *to) {
    to[K_COLUMNS - 1] = 0;
    for (int d = 0; d < HEAD_DIM; d += 8)
        vstore8(query8(p, q, q_layout, row, d), 0, (float *)to + d);
}

/* The products of ROW_BLOCK query rows and KEY_BLOCK keys, straight from their rows or from the tile. */
INLINE floats products_of(const floats *q, const bool straight, const keys_row *rows, const floats *tile) {
    floats sums[TUNE_LANES];
#pragma unroll
    for (int i = 0; i < TUNE_LANES; i++)
        sums[i] = 0;
    for (int c = 0; c < K_COLUMNS; c++) {
#pragma unroll
        for (int k = 0; k < KEY_BLOCK; k++) {
            const floats key = straight ? row_vector(rows[k], c, HEAD_DIM) : tile[k * TILE_COLUMNS + c];
#pragma unroll
            for (int r = 0; r < ROW_BLOCK; r++)
                sums[r * KEY_BLOCK + k] += q[r * K_COLUMNS + c] * key;
        }
    }
    return sums_of(sums);
}

/*
 * problem_score of the products of the rows from first_row on, of which the last one counts for those behind it, and
 * the keys from `position` on. masked: not every row sees all of them.
 */
INLINE floats scores_of(const attn_problem *p, int first_row, int last_row, int position, floats product, bool masked) {
    floats score = product;
#if WITH_SOFTCAP
    score = p->mask.scale.y * tanh(product);
#endif
#if WITH_ALIBI
    float biases[TUNE_LANES];
    for (int i = 0; i < TUNE_LANES; i++) {
        const int row = min(first_row + i / KEY_BLOCK, last_row);
        const long slopes = p->mask.alibi_layout.x + row_seq(p, row) * p->mask.alibi_layout.y;
        const float distance = (float)(problem_position(p, row) - position - i % KEY_BLOCK);
        biases[i] = p->mask.alibi[slopes + problem_head(p, row)] * LOG2_E * fabs(distance);
    }
    score -= LOAD_FLOATS(0, biases);
#endif
    if (!masked)
        return score;
    int sees[TUNE_LANES];
    for (int r = 0; r < ROW_BLOCK; r++) {
        const int row = min(first_row + r, last_row);
        const int low = problem_low(p, row), high = min(problem_high(p, row), p->key_end);
        for (int k = 0; k < KEY_BLOCK; k++) {
            const int key = position + k;
            sees[r * KEY_BLOCK + k] = key >= low && key < high && problem_sees(p, row, key) ? -1 : 0;
        }
    }
    return select((floats)(-INFINITY), score, LOAD_FLOATS(0, sees));
}

/*
 * acc = acc * rescale + the values, weighted, of a block of rows. Values are read from their rows, while those of the
 * tile from `next` on are found and fetched, or from the tile.
 */
INLINE void accumulate(floats *acc, floats rescale, const float *weights, const bool straight, const keys_row *rows,
                       const floats *tile, const attn_problem *p, int next, keys_row *next_rows) {
    float scales[TUNE_LANES];
    STORE_FLOATS(rescale, 0, scales);
    for (int begin = 0; begin < V_COLUMNS; begin += V_BLOCK) {
        floats sums[ROW_BLOCK][V_BLOCK];
#pragma unroll
        for (int r = 0; r < ROW_BLOCK; r++)
#pragma unroll
            for (int c = 0; c < V_BLOCK; c++)
                sums[r][c] = acc[r * V_COLUMNS + begin + c] * scales[r * KEY_BLOCK];
        for (int k = 0; k < KEY_BLOCKS; k++) {
#pragma unroll
            for (int j = 0; j < KEY_BLOCK; j++) {
                const int key = k * KEY_BLOCK + j;
                floats value[V_BLOCK];
                if (straight && j % V_BLOCKS == begin / V_BLOCK)
                    row_fetch(p, next + key, true, next_rows + key);
#pragma unroll
                for (int c = 0; c < V_BLOCK; c++)
                    value[c] = straight ? row_vector(rows[key], begin + c, HEAD_DIM_V)
                                        : tile[key * TILE_COLUMNS + begin + c];
#pragma unroll
                for (int r = 0; r < ROW_BLOCK; r++)
#pragma unroll
                    for (int c = 0; c < V_BLOCK; c++)
                        sums[r][c] += weights[k * TUNE_LANES + r * KEY_BLOCK + j] * value[c];
            }
        }
#pragma unroll
        for (int r = 0; r < ROW_BLOCK; r++)
#pragma unroll
            for (int c = 0; c < V_BLOCK; c++)
                acc[r * V_COLUMNS + begin + c] = sums[r][c];
    }
}

/* The same for one row of a block: values whose weight is 0, which it may not see, may be NaN, and are not met. */
static void accumulate_seen(floats *acc, float rescale, const float *weights, const floats *tile) {
    for (int c = 0; c < V_COLUMNS; c++)
        acc[c] *= rescale;
    for (int j = 0; j < TUNE_KEYS; j++) {
        const float weight = weights[j / KEY_BLOCK * TUNE_LANES + j % KEY_BLOCK];
        for (int c = 0; c < V_COLUMNS && weight != 0; c++)
            acc[c] += weight * tile[j * TILE_COLUMNS + c];
    }
}

/* Runs the tile's rows over the part's keys, and stores their results. */
static void attn_tile(const attn_problem *p, const __global STORAGE(Q) * q, long4 q_layout, tile_memory unused,
                      attn_result_target target) {
    (void)unused;
    floats queries[ROW_BLOCKS * ROW_BLOCK * K_COLUMNS];
    floats tile[TUNE_KEYS * TILE_COLUMNS];
    floats acc[ROW_BLOCKS * ROW_BLOCK * V_COLUMNS];
    float weights[ROW_BLOCKS * ROW_BLOCK * TUNE_KEYS]; /* of a block of rows after the other, as vectors of scores are */
    floats row_max[ROW_BLOCKS], row_sum[ROW_BLOCKS], rescale[ROW_BLOCKS];
    keys_row key_rows[TUNE_KEYS], value_rows[2][TUNE_KEYS]; /* of this tile and the next */
    const int rows = min(TUNE_ROWS, p->num_rows - p->first_row);
    const int last_row = p->first_row + rows - 1;
    const int blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
    /* As in lib/attn_tile.h: keys that some row sees, and keys that all see. */
    const int begin = max(p->key_begin, problem_low(p, p->first_row));
    const int end = min(p->key_end, problem_high(p, last_row));
    const int full_begin = max(begin, problem_low(p, last_row));
    const int tree_begin = WITH_TREE ? p->k_len - p->q_len : p->k_len;
    const int full_end = min(min(problem_high(p, p->first_row), p->key_end), tree_begin);
    const int first_tile = p->key_begin + (begin - p->key_begin) / TUNE_KEYS * TUNE_KEYS;

    for (int r = 0; r < blocks * ROW_BLOCK; r++) {
        q_load(p, q, q_layout, min(p->first_row + r, last_row), queries + r * K_COLUMNS);
        for (int c = 0; c < V_COLUMNS; c++)
            acc[r * V_COLUMNS + c] = 0;
    }
    for (int b = 0; b < blocks; b++) {
        row_max[b] = -INFINITY;
        row_sum[b] = 0;
    }
    for (int j = 0; j < TUNE_KEYS && blocks == 1; j++) {
        row_fetch(p, first_tile + j, false, &key_rows[j]);
        row_fetch(p, first_tile + j, true, &value_rows[0][j]);
    }
    for (int first = first_tile; first < end; first += TUNE_KEYS) {
        const bool masked = WITH_GUARD || first < full_begin || first + TUNE_KEYS > full_end;
        const bool straight = blocks == 1 && !masked && first + TUNE_KEYS <= stored_end(p);
        const int turn = (first - first_tile) / TUNE_KEYS % 2;
        if (!straight)
            tile_load(p, first, begin, false, tile);
        for (int b = 0; b < blocks; b++) {
            const floats *q_block = queries + b * ROW_BLOCK * K_COLUMNS;
            floats scores[KEY_BLOCKS];
            floats new_max = row_max[b];
            for (int k = 0; k < KEY_BLOCKS; k++) {
                const int key = k * KEY_BLOCK;
                const floats product = straight ? products_of(q_block, true, key_rows + key, 0)
                                                : products_of(q_block, false, 0, tile + key * TILE_COLUMNS);
                for (int j = 0; j < KEY_BLOCK && straight; j++)
                    row_fetch(p, first + TUNE_KEYS + key + j, false, &key_rows[key + j]);
                scores[k] = scores_of(p, p->first_row + b * ROW_BLOCK, last_row, first + key, product, masked);
                new_max = fmax(new_max, scores[k]);
            }
            new_max = row_max_of(new_max);
            /* While a row has seen no key its maximum is -infinity, and infinity minus infinity would be NaN. */
            const floats base = select(new_max, (floats)0, new_max == -INFINITY);
            floats sum = 0;
            for (int k = 0; k < KEY_BLOCKS; k++) {
                const floats weight = exp2(scores[k] - base);
                sum += weight;
                STORE_FLOATS(weight, b * KEY_BLOCKS + k, weights);
            }
            rescale[b] = exp2(row_max[b] - base);
            row_sum[b] = row_sum[b] * rescale[b] + row_sum_of(sum);
            row_max[b] = new_max;
        }
        if (straight) {
            accumulate(acc, rescale[0], weights, true, value_rows[turn], 0, p, first + TUNE_KEYS, value_rows[1 - turn]);
            continue;
        }
        for (int j = 0; j < TUNE_KEYS && blocks == 1; j++) {
            row_fetch(p, first + TUNE_KEYS + j, false, &key_rows[j]);
            row_fetch(p, first + TUNE_KEYS + j, true, &value_rows[1 - turn][j]);
        }
#if !VALUES_IN_KEYS
        tile_load(p, first, begin, true, tile);
#endif
        if (masked && !tile_is_finite(tile)) {
            for (int r = 0; r < rows; r++) {
                const int b = r / ROW_BLOCK, lane = r % ROW_BLOCK * KEY_BLOCK;
                accumulate_seen(acc + r * V_COLUMNS, ((const float *)&rescale[b])[lane],
                                weights + b * ROW_BLOCK * TUNE_KEYS + lane, tile);
            }
            continue;
        }
        for (int b = 0; b < blocks; b++)
            accumulate(acc + b * ROW_BLOCK * V_COLUMNS, rescale[b], weights + b * ROW_BLOCK * TUNE_KEYS, false, 0, tile,
                       p, 0, 0);
    }
    for (int r = 0; r < rows; r++) {
        const int row = p->first_row + r, b = r / ROW_BLOCK, lane = r % ROW_BLOCK * KEY_BLOCK;
        const float divisor = result_store_sums(p, &target, row, ((const float *)&row_max[b])[lane],
                                                ((const float *)&row_sum[b])[lane]);
        for (int d = 0; d < HEAD_DIM_V; d += 8)
            result_store8(p, &target, row, d, vload8(0, (const float *)(acc + r * V_COLUMNS) + d), divisor);
    }
}

#endif
