/* SPDX-License-Identifier: Apache-2.0 */
#include "batch.h"

#include "value.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* Fisher and Yates, the same order every time. */
static void shuffle(int32_t *items, int32_t count, uint32_t seed) {
    for (int32_t i = count - 1; i > 0; i--) {
        int32_t j = (int32_t)(value_key(seed, (uint64_t)i) % (uint32_t)(i + 1));
        int32_t swapped = items[i];
        items[i] = items[j];
        items[j] = swapped;
    }
}

static void choose_lengths(const bench_cell *cell, int32_t *seqlens) {
    const double shortest = 134.0 / 31642;
    for (int32_t i = 0; i < cell->batch; i++) {
        double share = cell->ragged && cell->batch > 1 ? pow(shortest, (double)i / (cell->batch - 1)) : 1;
        int32_t length = (int32_t)lround(cell->context * share);
        seqlens[i] = length > 1 ? length : 1;
    }
    if (cell->ragged)
        shuffle(seqlens, cell->batch, 1);
}

/* Adds up lengths and blocks. */
static bool measure_lengths(const bench_cell *cell, bench_batch *batch, tool_error *error) {
    int64_t blocks = 0;
    for (int32_t i = 0; i < batch->num_seqs; i++) {
        batch->first_tokens[i] = batch->total_tokens;
        batch->total_tokens += batch->seqlens[i];
        batch->longest = batch->seqlens[i] > batch->longest ? batch->seqlens[i] : batch->longest;
        blocks += (batch->seqlens[i] - 1) / cell->block_size + 1;
    }
    batch->first_tokens[batch->num_seqs] = batch->total_tokens;
    batch->stride = (batch->longest - 1) / cell->block_size + 1;
    if (blocks < 1 || blocks > INT32_MAX / 2)
        return tool_fail(error, "the batch takes %" PRId64 " blocks, more than a pool can have", blocks);
    batch->num_blocks = (int32_t)blocks;
    return true;
}

bool bench_batch_create(const bench_cell *cell, bool spare_blocks, bench_batch *batch, tool_error *error) {
    *batch = (bench_batch){.num_seqs = cell->batch};
    size_t num_seqs = (size_t)cell->batch;
    batch->seqlens = malloc(num_seqs * sizeof *batch->seqlens);
    batch->first_tokens = malloc((num_seqs + 1) * sizeof *batch->first_tokens);
    if (batch->seqlens == NULL || batch->first_tokens == NULL)
        return tool_fail(error, "out of memory");
    choose_lengths(cell, batch->seqlens);
    if (!measure_lengths(cell, batch, error))
        return false;
    batch->pool_blocks = spare_blocks ? 2 * batch->num_blocks : batch->num_blocks;
    batch->order = malloc((size_t)batch->pool_blocks * sizeof *batch->order);
    batch->block_table = malloc(num_seqs * (size_t)batch->stride * sizeof *batch->block_table);
    if (batch->order == NULL || batch->block_table == NULL)
        return tool_fail(error, "out of memory");
    for (int32_t i = 0; i < batch->pool_blocks; i++)
        batch->order[i] = i;
    if (!cell->sequential)
        shuffle(batch->order, batch->pool_blocks, 2);
    const int32_t *next = batch->order;
    for (int32_t i = 0; i < batch->num_seqs; i++) {
        int32_t used = (batch->seqlens[i] - 1) / cell->block_size + 1;
        int32_t *row = batch->block_table + i * batch->stride;
        for (int64_t j = 0; j < batch->stride; j++)
            row[j] = j < used ? *next++ : -1;
    }
    return true;
}

void bench_batch_free(bench_batch *batch) {
    free(batch->seqlens);
    free(batch->first_tokens);
    free(batch->block_table);
    free(batch->order);
    *batch = (bench_batch){0};
}

int64_t bench_batch_slot(const bench_batch *batch, const bench_cell *cell, int32_t seq, int32_t position) {
    int32_t block = batch->block_table[seq * batch->stride + position / cell->block_size];
    return (int64_t)block * cell->block_size + position % cell->block_size;
}

int bench_value_bits(pagedcl_dtype dtype) {
    switch (dtype) {
    case PAGEDCL_INT8:
        return 7;
    case PAGEDCL_FLOAT8_E4M3:
        return 4;
    case PAGEDCL_FLOAT8_E5M2:
    case PAGEDCL_INT4:
        return 3;
    default:
        return 8;
    }
}

int64_t bench_pool_row_bytes(pagedcl_dtype dtype, int32_t columns) {
    int64_t width = columns;
    return dtype == PAGEDCL_INT4 ? (width + 1) / 2 + (width + 31) / 32 * 2 : width * (int64_t)pagedcl_dtype_size(dtype);
}

pagedcl_cache_desc bench_pool_desc(const bench_cell *cell, const bench_batch *batch) {
    pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT;
    desc.num_layers = cell->layers;
    desc.num_blocks = batch->pool_blocks;
    desc.block_size = cell->block_size;
    desc.num_kv_heads = cell->model.num_kv_heads;
    desc.head_dim = cell->model.head_dim;
    desc.head_dim_v = cell->model.head_dim_v;
    desc.v_in_k = cell->model.v_in_k;
    desc.dtype = cell->dtype;
    desc.layout = cell->layout;
    if (cell->dtype == PAGEDCL_INT8)
        desc.k_scale = desc.v_scale = 0x1p-7f;
    return desc;
}

bool bench_check_memory(const bench_rig *rig, const pagedcl_cache_desc *pool, uint64_t bytes, tool_error *error) {
    uint64_t pool_bytes = 0;
    if (pool != NULL && !tool_try(error, pagedcl_cache_bytes(pool, &pool_bytes), "pool"))
        return false;
    uint64_t most = rig->info.global_memory / 10 * 8;
    if (pool_bytes <= most && bytes <= most - pool_bytes)
        return true;
    tool_fail(error, "it takes %.1f GiB, and the device has %.1f", (double)(pool_bytes + bytes) / 0x1p30,
              (double)rig->info.global_memory / 0x1p30);
    error->status = PAGEDCL_UNSUPPORTED;
    return false;
}

/* A part of the tokens on their way into the pool. */
typedef struct staging {
    cl_mem k, v; /* v: NULL where V lies in K */
    int64_t *slots;
    int64_t capacity; /* tokens */
} staging;

static bool stage(const bench_rig *rig, const bench_cell *cell, const bench_batch *batch, staging *s,
                  tool_error *error) {
    const bench_model *m = &cell->model;
    uint64_t element = pagedcl_dtype_size(bench_cell_q_dtype(cell));
    uint64_t k_bytes = (uint64_t)m->num_kv_heads * (uint64_t)m->head_dim * element;
    uint64_t v_bytes = (uint64_t)m->num_kv_heads * (uint64_t)m->head_dim_v * element;
    s->capacity = (int64_t)((64 << 20) / k_bytes) + 1;
    if (s->capacity > batch->total_tokens)
        s->capacity = batch->total_tokens;
    s->slots = malloc((size_t)s->capacity * sizeof *s->slots);
    if (s->slots == NULL)
        return tool_fail(error, "out of memory");
    s->k = bench_buffer(rig, (uint64_t)s->capacity * k_bytes, error);
    if (s->k == NULL || m->v_in_k)
        return s->k != NULL;
    s->v = bench_buffer(rig, (uint64_t)s->capacity * v_bytes, error);
    return s->v != NULL;
}

/* Tokens first .. first + count - 1 of a layer. */
static bool write_tokens(const bench_rig *rig, const bench_cell *cell, const bench_batch *batch, pagedcl_cache *cache,
                         const staging *s, int32_t layer, int64_t first, int64_t count, tool_error *error) {
    const bench_model *m = &cell->model;
    pagedcl_dtype dtype = bench_cell_q_dtype(cell);
    int bits = bench_value_bits(cell->dtype);
    int64_t row = (layer * batch->total_tokens + first) * m->num_kv_heads, rows = count * m->num_kv_heads;
    if (!bench_fill(rig, s->k, 0, dtype, BENCH_SEED_K, row, rows, m->head_dim, bits, 1, error))
        return false;
    if (s->v != NULL && !bench_fill(rig, s->v, 0, dtype, BENCH_SEED_V, row, rows, m->head_dim_v, bits, 1, error))
        return false;
    const pagedcl_tensor k = {.mem = s->k}, v = {.mem = s->v};
    return tool_try(
        error,
        pagedcl_cache_write(cache, NULL, layer, &k, s->v != NULL ? &v : NULL, dtype, s->slots, count, 0, NULL, NULL),
        "filling the pool");
}

bool bench_pool_fill(const bench_rig *rig, const bench_cell *cell, const bench_batch *batch, pagedcl_cache *cache,
                     int32_t num_new, tool_error *error) {
    staging s = {0};
    bool ok = stage(rig, cell, batch, &s, error);
    int32_t seq = 0, position = 0;
    for (int64_t first = 0; ok && first < batch->total_tokens; first += s.capacity) {
        int64_t count = batch->total_tokens - first < s.capacity ? batch->total_tokens - first : s.capacity;
        for (int64_t i = 0; i < count; i++) {
            s.slots[i] = position < batch->seqlens[seq] - num_new ? bench_batch_slot(batch, cell, seq, position) : -1;
            if (++position == batch->seqlens[seq]) {
                seq++;
                position = 0;
            }
        }
        for (int32_t layer = 0; ok && layer < cell->layers; layer++)
            ok = write_tokens(rig, cell, batch, cache, &s, layer, first, count, error);
    }
    ok = ok && tool_try_opencl(error, clFinish(rig->queue), "clFinish");
    if (s.k != NULL)
        clReleaseMemObject(s.k);
    if (s.v != NULL)
        clReleaseMemObject(s.v);
    free(s.slots);
    return ok;
}
