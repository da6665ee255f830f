/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by one work-item, CPU tier: TUNE_ROWS rows of a problem against tiles of TUNE_KEYS keys. No barriers, no
 * local memory. Online softmax in base 2, as lib/attn_tile.h.
 *
 * Vectors of TUNE_LANES floats, 8 or 16, which fill a register, run along head_dim, padded with zeros. A vector of
 * scores, and of what is known of rows, has ROW_BLOCK rows one behind the other, KEY_BLOCK lanes each: so many sums
 * stay in registers while they are made, and each vector of q and K that is loaded serves several of them.
 *
 * Many rows read a tile of K, then of V, from a float32 copy in private memory, which is a core's first-level cache. One
 * or two blocks of rows, which read each key once or twice, take it straight from the pool.
 *
 * Decode waits for memory more than it computes. So rows are fetched line by line between the products, some keys before
 * they are read; and a work-item takes a tile of several KV heads, so that memory is read in its order: one head after
 * the other, or, where a token's heads lie side by side, all heads of some keys after all heads of the keys before.
 */
#ifndef CPU_ATTN_TILE_H
#define CPU_ATTN_TILE_H

#include "cpu/rows.h"
#include "cpu/vectors.h"
#include "lib/attn_problem.h"
#include "lib/attn_result.h"

/* Up to so many blocks of rows read keys straight from the pool; so many, of several heads, are worked on by turns. */
#define FEW_BLOCKS 2
#define MOST_BLOCKS (WITH_SPLITS && ROW_BLOCKS < 8 ? 8 : ROW_BLOCKS)

/* Of many rows varlen has keys turned: what that costs is shared by them. Decode's rows are many in company alone. */
#define KEY_VECTORS (TUNE_KEYS / TUNE_LANES)
#define TURNS_KEYS (!WITH_SPLITS && ROW_BLOCKS >= 16 && KEY_VECTORS % 2 == 0)

/* The portable tier has local memory and a size of sub-groups here; this one needs none. */
#define SUB_GROUP
typedef int tile_memory;
#define TILE_MEMORY(name) tile_memory name = 0

/* x where y is NaN. */
INLINE floats larger_of(floats x, floats y) {
    return select(x, y, x < y);
}

/* The largest, or the sum, of a row's lanes, in each of them. */
INLINE floats row_max_of(floats x) {
    x = KEY_BLOCK > 1 ? larger_of(x, SWAP1(x)) : x;
    x = KEY_BLOCK > 2 ? larger_of(x, SWAP2(x)) : x;
    x = KEY_BLOCK > 4 ? larger_of(x, SWAP4(x)) : x;
    return KEY_BLOCK > 8 ? larger_of(x, SWAP8(x)) : x;
}
INLINE floats row_sum_of(floats x) {
    x = KEY_BLOCK > 1 ? x + SWAP1(x) : x;
    x = KEY_BLOCK > 2 ? x + SWAP2(x) : x;
    x = KEY_BLOCK > 4 ? x + SWAP4(x) : x;
    return KEY_BLOCK > 8 ? x + SWAP8(x) : x;
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

/*
 * The products of ROW_BLOCK query rows and KEY_BLOCK keys, straight from their rows, of the KV head `head` heads further,
 * or from the tile. Meanwhile the rows that come soon are fetched, and those of `next`, if it is not 0.
 */
INLINE floats products_of(const floats *q, const bool straight, const tile_row *rows, int head, const tile_row *next,
                          const floats *tile) {
    floats sums[TUNE_LANES];
#pragma unroll
    for (int i = 0; i < TUNE_LANES; i++)
        sums[i] = 0;
    for (int c = 0; c < K_COLUMNS; c++) {
        if (straight && IS_LINE(c)) {
#pragma unroll
            for (int k = 0; k < KEY_BLOCK; k++) {
                line_fetch_near(row_of_head(rows[k + SOON], head, false), c);
                if (next != 0)
                    line_fetch(next[k], c);
            }
        }
#pragma unroll
        for (int k = 0; k < KEY_BLOCK; k++) {
            const floats key =
                straight ? row_vector(row_of_head(rows[k], head, false), c, HEAD_DIM) : tile[k * TILE_COLUMNS + c];
#pragma unroll
            for (int r = 0; r < ROW_BLOCK; r++)
                sums[r * KEY_BLOCK + k] += q[r * K_COLUMNS + c] * key;
        }
    }
    return sums_of(sums);
}

/* Turns a tile of keys: vector d * KEY_VECTORS + v has element d of the v-th TUNE_LANES keys. */
static void tile_turn(const floats *tile, floats *turned) {
    for (int v = 0; v < KEY_VECTORS; v++)
        for (int c = 0; c < K_COLUMNS; c++) {
            floats x[TUNE_LANES];
#pragma unroll
            for (int i = 0; i < TUNE_LANES; i++)
                x[i] = tile[(v * TUNE_LANES + i) * TILE_COLUMNS + c];
            turn(x);
#pragma unroll
            for (int i = 0; i < TUNE_LANES; i++)
                turned[(c * TUNE_LANES + i) * KEY_VECTORS + v] = x[i];
        }
}

/* The products of ROW_BLOCK query rows and the turned keys of a tile, which need no sums of lanes. */
INLINE void products_of_turned(const floats *q, const floats *turned, floats *products) {
    const float *rows = (const float *)q;
    for (int first = 0; first < KEY_VECTORS; first += 2) {
        floats sums[2][ROW_BLOCK];
#pragma unroll
        for (int i = 0; i < 2 * ROW_BLOCK; i++)
            sums[i / ROW_BLOCK][i % ROW_BLOCK] = 0;
        for (int d = 0; d < HEAD_DIM; d++) {
            const floats keys[2] = {turned[d * KEY_VECTORS + first], turned[d * KEY_VECTORS + first + 1]};
#pragma unroll
            for (int r = 0; r < ROW_BLOCK; r++) {
                const float x = rows[r * K_COLUMNS * TUNE_LANES + d];
                sums[0][r] += x * keys[0];
                sums[1][r] += x * keys[1];
            }
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            turn_quarters(sums[i]);
#pragma unroll
            for (int k = 0; k < ROW_BLOCK; k++)
                products[(first + i) * ROW_BLOCK + k] = sums[i][k];
        }
    }
}

/* Which keys the rows from first_row on see: of each lane's row, the first and the one behind the last. */
typedef struct row_bounds {
    ints low, high;
} row_bounds;
INLINE row_bounds bounds_of(const attn_problem *p, int first_row, int last_row) {
    int low[TUNE_LANES], high[TUNE_LANES];
    for (int r = 0; r < ROW_BLOCK; r++) {
        const int row = min(first_row + r, last_row);
        for (int k = 0; k < KEY_BLOCK; k++) {
            low[r * KEY_BLOCK + k] = problem_low(p, row);
            high[r * KEY_BLOCK + k] = min(problem_high(p, row), p->key_end);
        }
    }
    const row_bounds bounds = {LOAD_INTS(0, low), LOAD_INTS(0, high)};
    return bounds;
}

/*
 * problem_score of the products of the rows from first_row on, of which the last one counts for those behind it, and
 * keys of which the first is at `position`. masked: not every row sees all of them.
 */
INLINE floats scores_of(const attn_problem *p, int first_row, int last_row, int position, floats product,
                        row_bounds bounds, bool masked) {
    floats score = product;
    (void)p;
    (void)first_row;
    (void)last_row;
#if WITH_SOFTCAP
    score = p->mask.scale.y * tanh(product);
#endif
#if WITH_ALIBI
    float biases[TUNE_LANES];
    for (int i = 0; i < TUNE_LANES; i++) {
        const int row = min(first_row + i / KEY_BLOCK, last_row);
        const long slopes = p->mask.alibi_layout.x + row_seq(p, row) * p->mask.alibi_layout.y;
        const float distance = (float)(problem_position(p, row) - position - i % KEY_BLOCK * KEY_BLOCKS);
        biases[i] = p->mask.alibi[slopes + problem_head(p, row)] * LOG2_E * fabs(distance);
    }
    score -= LOAD_FLOATS(0, biases);
#endif
    if (!masked)
        return score;
    int keys[TUNE_LANES];
    for (int i = 0; i < TUNE_LANES; i++)
        keys[i] = position + i % KEY_BLOCK * KEY_BLOCKS;
    ints sees = LOAD_INTS(0, keys) >= bounds.low && LOAD_INTS(0, keys) < bounds.high;
#if WITH_TREE || WITH_GUARD
    int is_seen[TUNE_LANES];
    STORE_INTS(sees, 0, is_seen);
    for (int i = 0; i < TUNE_LANES; i++)
        is_seen[i] = is_seen[i] && problem_sees(p, min(first_row + i / KEY_BLOCK, last_row), keys[i]) ? -1 : 0;
    sees = LOAD_INTS(0, is_seen);
#endif
    return select((floats)(-INFINITY), score, sees);
}

/*
 * Turns the products of a block of rows, with the tile of keys from position `first` on, into weights. Returns what the
 * sums so far are to be multiplied by.
 */
INLINE floats weigh(const attn_problem *p, int first_row, int last_row, int first, bool masked, floats *products,
                    floats *row_max, floats *row_sum) {
    row_bounds bounds = {0, 0};
    if (masked)
        bounds = bounds_of(p, first_row, last_row);
    floats new_max = *row_max;
    for (int k = 0; k < KEY_BLOCKS; k++) {
        products[k] = scores_of(p, first_row, last_row, first + k, products[k], bounds, masked);
        new_max = larger_of(new_max, products[k]);
    }
    new_max = row_max_of(new_max);
    /* While a row has seen no key its maximum is -infinity, and infinity minus infinity would be NaN. */
    const floats base = select(new_max, (floats)0, new_max == -INFINITY);
    floats sum = 0;
    for (int k = 0; k < KEY_BLOCKS; k++) {
        products[k] = power_of_two(products[k] - base);
        sum += products[k];
    }
    const floats rescale = power_of_two(*row_max - base);
    *row_sum = *row_sum * rescale + row_sum_of(sum);
    *row_max = new_max;
    return rescale;
}

/*
 * acc = acc * rescale + the values, weighted, of a block of rows and key_blocks * KEY_BLOCK keys. Values are read as keys
 * are by products_of.
 */
INLINE void accumulate(floats *acc, floats rescale, const float *weights, int key_blocks, const bool straight,
                       const tile_row *rows, int head, const tile_row *next, const floats *tile) {
    float scales[TUNE_LANES];
    STORE_FLOATS(rescale, 0, scales);
    for (int begin = 0; begin < V_COLUMNS; begin += V_BLOCK) {
        floats sums[ROW_BLOCK][V_BLOCK];
#pragma unroll
        for (int r = 0; r < ROW_BLOCK; r++)
#pragma unroll
            for (int c = 0; c < V_BLOCK; c++)
                sums[r][c] = acc[r * V_COLUMNS + begin + c] * scales[r * KEY_BLOCK];
        for (int k = 0; k < key_blocks; k++) {
#pragma unroll
            for (int j = 0; j < KEY_BLOCK; j++) {
                const int key = k * KEY_BLOCK + j;
                floats value[V_BLOCK];
#pragma unroll
                for (int c = 0; c < V_BLOCK; c++) {
                    value[c] = straight ? row_vector(row_of_head(rows[key], head, true), begin + c, HEAD_DIM_V)
                                        : tile[key * TILE_COLUMNS + begin + c];
                    if (straight && !VALUES_IN_KEYS && IS_LINE(c)) {
                        line_fetch_near(row_of_head(rows[key + SOON], head, true), begin + c);
                        if (next != 0)
                            line_fetch(next[key], begin + c);
                    }
                }
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

/* Runs the rows of `heads` KV heads from p->kv_head on over the part's keys, and stores their results. */
INLINE void run_heads(attn_problem *p, const __global STORAGE(Q) * q, long4 q_layout, int heads,
                      attn_result_target target) {
    floats queries[MOST_BLOCKS * ROW_BLOCK * K_COLUMNS];
    floats tile[TUNE_KEYS * TILE_COLUMNS], turned[TURNS_KEYS ? TUNE_KEYS * K_COLUMNS : 1];
    floats acc[MOST_BLOCKS * ROW_BLOCK * V_COLUMNS];
    floats weights[MOST_BLOCKS * KEY_BLOCKS]; /* of a block of rows after the other, as vectors of scores are */
    floats row_max[MOST_BLOCKS], row_sum[MOST_BLOCKS], rescale[MOST_BLOCKS];
    /* Of the first head, this tile and the next; of the heads read together, K, V and what of K comes then. */
    tile_row key_rows[2][TUNE_KEYS], value_rows[2][TUNE_KEYS], near_rows[AFTER_VALUES + SOON];
    const int first_head = p->kv_head;
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
    /* Whole tiles between full_begin and here are read straight from the pool. */
    const bool few = blocks <= FEW_BLOCKS, turns = TURNS_KEYS && !few;
    const int straight_end = few && !WITH_GUARD ? min(full_end, stored_end(p)) : 0;

    for (int head = 0; head < heads; head++) {
        p->kv_head = first_head + head;
        for (int r = 0; r < blocks * ROW_BLOCK; r++) {
            const int at = head * blocks * ROW_BLOCK + r;
            q_load(p, q, q_layout, min(p->first_row + r, last_row), queries + at * K_COLUMNS);
            for (int c = 0; c < V_COLUMNS; c++)
                acc[at * V_COLUMNS + c] = 0;
        }
        if (first_tile < full_begin || first_tile + TUNE_KEYS > straight_end)
            tile_fetch(p, first_tile, 0, TUNE_KEYS);
    }
    for (int b = 0; b < heads * blocks; b++) {
        row_max[b] = -INFINITY;
        row_sum[b] = 0;
    }
    p->kv_head = first_head;
    if (few && begin < end) {
        rows_find(p, first_tile, false, key_rows[0]);
        rows_find(p, first_tile, true, value_rows[0]);
    }
    for (int first = first_tile; first < end; first += TUNE_KEYS) {
        const bool masked = WITH_GUARD || first < full_begin || first + TUNE_KEYS > full_end;
        const bool straight = first >= full_begin && first + TUNE_KEYS <= straight_end;
        const int turn = (first - first_tile) / TUNE_KEYS % 2;
        if (few) {
            p->kv_head = first_head;
            rows_find(p, first + TUNE_KEYS, false, key_rows[1 - turn]);
            rows_find(p, first + TUNE_KEYS, true, value_rows[1 - turn]);
        }
        const int together = straight && HEADS_SIDE_BY_SIDE ? heads : 1;
        const bool next_is_straight = first + 2 * TUNE_KEYS <= straight_end;
        /* One head of several side by side is read in small pieces: near is then too late, and far more is on its way. */
        const bool far = HEADS_SIDE_BY_SIDE && heads == 1 && next_is_straight;
        for (int head = 0; head < heads; head += together) {
            if (straight) {
                rows_of_head(key_rows[turn], head, false, near_rows);
                rows_of_head(value_rows[turn], head, true, near_rows + VALUES);
                for (int j = 0; j < SOON; j++)
                    near_rows[AFTER_VALUES + j] = head + together < heads
                                                      ? row_of_head(key_rows[turn][j], head + together, false)
                                                      : key_rows[1 - turn][j];
            }
            p->kv_head = first_head + head;
            if (!straight) {
                tile_load(p, first, begin, false, tile);
                if (turns)
                    tile_turn(tile, turned);
            }
            const int product_blocks = together > 1 ? 1 : KEY_BLOCKS;
            for (int first_k = 0; first_k < KEY_BLOCKS; first_k += product_blocks)
                for (int i = 0; i < together; i++) {
                    p->kv_head = first_head + head + i;
                    if (straight && !next_is_straight)
                        tile_fetch(p, first + TUNE_KEYS, first_k * KEY_BLOCK, product_blocks * KEY_BLOCK);
                    for (int b = 0; b < blocks; b++) {
                        const int state = (head + i) * blocks + b;
                        const floats *q_block = queries + state * ROW_BLOCK * K_COLUMNS;
                        /* By pieces: a burst waits for itself. */
                        const int fetched = b * TUNE_KEYS / blocks;
                        if (!straight)
                            tile_fetch(p, first + TUNE_KEYS, fetched, (b + 1) * TUNE_KEYS / blocks - fetched);
                        if (turns)
                            products_of_turned(q_block, turned, weights + state * KEY_BLOCKS);
                        for (int k = first_k; k < first_k + product_blocks && !turns; k++) {
                            const int key = k * KEY_BLOCK;
                            weights[state * KEY_BLOCKS + k] =
                                straight ? products_of(q_block, true, near_rows + key, i,
                                                       far && b == 0 ? key_rows[1 - turn] + key : 0, 0)
                                         : products_of(q_block, false, 0, 0, 0, tile + key * TILE_COLUMNS);
                        }
                        if (first_k + product_blocks == KEY_BLOCKS)
                            rescale[state] = weigh(p, p->first_row + b * ROW_BLOCK, last_row, first, masked,
                                                   weights + state * KEY_BLOCKS, &row_max[state], &row_sum[state]);
                    }
                }
            p->kv_head = first_head + head;
#if !VALUES_IN_KEYS
            if (!straight)
                tile_load(p, first, begin, true, tile);
#endif
            if (masked && !tile_is_finite(tile)) {
                for (int r = 0; r < rows; r++) {
                    const int state = head * blocks + r / ROW_BLOCK, lane = r % ROW_BLOCK * KEY_BLOCK;
                    accumulate_seen(acc + (head * blocks * ROW_BLOCK + r) * V_COLUMNS,
                                    ((const float *)&rescale[state])[lane],
                                    (const float *)(weights + state * KEY_BLOCKS) + lane, tile);
                }
                continue;
            }
            const int value_blocks = together > 1 ? VALUE_BLOCKS : KEY_BLOCKS;
            for (int k = 0; k < KEY_BLOCKS; k += value_blocks)
                for (int i = 0; i < together; i++)
                    for (int b = 0; b < blocks; b++) {
                        const int state = (head + i) * blocks + b;
                        const float *block_weights = (const float *)(weights + state * KEY_BLOCKS + k);
                        const floats scale = k == 0 ? rescale[state] : 1;
                        floats *block_acc = acc + state * ROW_BLOCK * V_COLUMNS;
                        if (straight)
                            accumulate(block_acc, scale, block_weights, value_blocks, true,
                                       near_rows + VALUES + k * KEY_BLOCK, i,
                                       far && b == 0 ? value_rows[1 - turn] + k * KEY_BLOCK : 0, 0);
                        else
                            accumulate(block_acc, scale, block_weights, KEY_BLOCKS, false, 0, 0, 0, tile);
                    }
        }
    }
    for (int head = 0; head < heads; head++) {
        p->kv_head = first_head + head;
        for (int r = 0; r < rows; r++) {
            const int row = p->first_row + r, lane = r % ROW_BLOCK * KEY_BLOCK;
            const int state = head * blocks + r / ROW_BLOCK, at = head * blocks * ROW_BLOCK + r;
            const float divisor = result_store_sums(p, &target, row, ((const float *)&row_max[state])[lane],
                                                    ((const float *)&row_sum[state])[lane]);
            for (int d = 0; d < HEAD_DIM_V; d += 8)
                result_store8(p, &target, row, d, vload8(0, (const float *)(acc + at * V_COLUMNS) + d), divisor);
        }
    }
}

/* Runs the tile's rows, of all KV heads that the work-group takes. */
static void attn_tile(attn_problem *p, const __global STORAGE(Q) * q, long4 q_layout, tile_memory unused,
                      attn_result_target target) {
    (void)unused;
    const int first_head = p->kv_head, heads = WITH_SPLITS ? problem_heads() : 1;
    const int blocks = (min(TUNE_ROWS, p->num_rows - p->first_row) + ROW_BLOCK - 1) / ROW_BLOCK;
    const int at_once = WITH_SPLITS ? min(heads, max(MOST_BLOCKS / blocks, 1)) : 1;
    for (int head = 0; head < heads; head += at_once) {
        p->kv_head = first_head + head;
        run_heads(p, q, q_layout, at_once, target);
    }
}

#endif
