/* SPDX-License-Identifier: Apache-2.0 */
/* Write, gather, and copies of blocks. */
#include "subject.h"

#include "float16.h"
#include "value.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEAD_DIM = 576 }; /* of a cell */

typedef struct cache_subject {
    const bench_rig *rig;
    const bench_cell *cell;
    bench_batch batch;
    double effort;
    pagedcl_cache *cache;
    cl_mem k, v; /* what is written, or where it is gathered: [total_tokens, num_kv_heads, head_dim] */
    uint64_t k_bytes, v_bytes;
    int64_t *slots;       /* of all tokens */
    int32_t *block_pairs; /* copies: from a block of the tables to one in none */
} cache_subject;

/* Of the rows outside the pool. A gather turns quantised ones into float32. */
static pagedcl_dtype rows_dtype(const bench_cell *cell) {
    if (cell->kind == BENCH_KIND_WRITE)
        return bench_cell_q_dtype(cell);
    return bench_cell_is_quantized(cell) ? PAGEDCL_FLOAT32 : cell->dtype;
}

static bool enqueue_write(void *user, cl_event *event, tool_error *error) {
    cache_subject *s = user;
    const pagedcl_tensor k = {.mem = s->k}, v = {.mem = s->v};
    return tool_try(error,
                    pagedcl_cache_write(s->cache, NULL, 0, &k, s->v != NULL ? &v : NULL, bench_cell_q_dtype(s->cell),
                                        s->slots, s->batch.total_tokens, 0, NULL, event),
                    "write");
}

static bool enqueue_gather(void *user, cl_event *event, tool_error *error) {
    cache_subject *s = user;
    const pagedcl_tensor k = {.mem = s->k}, v = {.mem = s->v};
    return tool_try(error,
                    pagedcl_cache_gather(s->cache, NULL, 0, s->batch.block_table, s->batch.stride, s->batch.seqlens,
                                         s->batch.num_seqs, &k, s->v != NULL ? &v : NULL, 0, NULL, event),
                    "gather");
}

static bool enqueue_copy(void *user, cl_event *event, tool_error *error) {
    cache_subject *s = user;
    return tool_try(
        error, pagedcl_cache_copy_blocks(s->cache, NULL, s->block_pairs, s->batch.num_blocks, 0, NULL, event), "copy");
}

/* Copies are exact. `got` is a row of a token and KV head in `dtype`. */
static bool check_row(const cache_subject *s, const char *what, const void *got, int64_t first, pagedcl_dtype dtype,
                      uint32_t seed, int64_t token, int32_t head, int32_t columns, tool_error *error) {
    uint32_t key = value_key(seed, (uint64_t)(token * s->cell->model.num_kv_heads + head));
    for (int32_t d = 0; d < columns; d++) {
        double want = (double)value_at(key, (uint32_t)d, bench_value_bits(s->cell->dtype));
        double is = bench_element(got, first + d, dtype);
        if (!(is == want))
            return tool_fail(error,
                             "wrong result: %s of token %" PRId64 ", head %d, element %d is %.6g, and should be %.6g",
                             what, token, (int)head, (int)d, is, want);
    }
    return true;
}

/* The row of a block's token and KV head: from which element on, and of which dtype. Of int4 it is put together in
   `values`; scales have the order of NHD in every layout. */
static const void *block_row(const cache_subject *s, const void *block, int64_t token, int64_t head, int32_t columns,
                             float *values, int64_t *first, pagedcl_dtype *dtype) {
    const int64_t nhd = token * s->cell->model.num_kv_heads + head, hnd = head * s->cell->block_size + token;
    const int64_t row = s->cell->layout == PAGEDCL_LAYOUT_HND ? hnd : nhd;
    *dtype = s->cell->dtype;
    *first = row * columns;
    if (*dtype != PAGEDCL_INT4)
        return block;
    const unsigned char *bytes = block;
    int64_t rows = (int64_t)s->cell->block_size * s->cell->model.num_kv_heads, row_bytes = (columns + 1) / 2;
    int64_t scales = (rows * row_bytes + 3) / 4 * 4 + nhd * ((columns + 31) / 32) * 2;
    for (int32_t d = 0; d < columns; d++) {
        uint16_t scale;
        memcpy(&scale, bytes + scales + (int64_t)(d / 32) * 2, sizeof scale);
        int code = bytes[row * row_bytes + d / 2] >> (d % 2 * 4) & 15;
        values[d] = (float)(code < 8 ? code : code - 16) * float16_to_float(scale);
    }
    *dtype = PAGEDCL_FLOAT32;
    *first = 0;
    return values;
}

/* What a pool's block holds of a sequence, from one of its positions on. */
static bool check_block(const cache_subject *s, const void *k, const void *v, int32_t seq, int32_t position,
                        bench_check *result, tool_error *error) {
    const bench_model *m = &s->cell->model;
    float values[MAX_HEAD_DIM];
    pagedcl_dtype dtype;
    int64_t first;
    for (int32_t t = 0; t < s->cell->block_size && position + t < s->batch.seqlens[seq]; t++) {
        int64_t token = s->batch.first_tokens[seq] + position + t;
        for (int32_t h = 0; h < m->num_kv_heads; h++) {
            const void *at = block_row(s, k, t, h, m->head_dim, values, &first, &dtype);
            if (!check_row(s, "K", at, first, dtype, BENCH_SEED_K, token, h, m->head_dim, error))
                return false;
            if (m->v_in_k)
                continue;
            at = block_row(s, v, t, h, m->head_dim_v, values, &first, &dtype);
            if (!check_row(s, "V", at, first, dtype, BENCH_SEED_V, token, h, m->head_dim_v, error))
                return false;
        }
        result->rows++;
    }
    return true;
}

/* How many of `count` pieces of `tokens` tokens the effort is enough for: at least one. */
static int64_t affordable(const cache_subject *s, int64_t count, int64_t tokens) {
    const bench_model *m = &s->cell->model;
    double cost = (double)tokens * m->num_kv_heads * (m->head_dim + m->head_dim_v) * 10;
    double most = s->effort / cost;
    return most >= (double)count ? count : most > 1 ? (int64_t)most : 1;
}

/* The i-th of `chosen` pieces out of `count`: all, or some spread among them, the last one too. */
static int64_t piece(int64_t i, int64_t chosen, int64_t count) {
    return chosen == count || chosen < 2 ? i : (int64_t)((double)i / (double)(chosen - 1) * (double)(count - 1));
}

/* The sequence whose tokens a place in batch.order holds, and from which position on. */
static int32_t owner_of(const cache_subject *s, int64_t place, int32_t *position) {
    for (int32_t seq = 0;; seq++) {
        int64_t blocks = (s->batch.seqlens[seq] - 1) / s->cell->block_size + 1;
        if (place < blocks) {
            *position = (int32_t)place * s->cell->block_size;
            return seq;
        }
        place -= blocks;
    }
}

/* Blocks of the tables, or what they were copied to. */
static bool check_blocks(const cache_subject *s, int64_t first_place, bench_check *result, tool_error *error) {
    int64_t count = s->batch.num_blocks, chosen = affordable(s, count, s->cell->block_size);
    pagedcl_cache_desc block = bench_pool_desc(s->cell, &s->batch);
    block.num_layers = block.num_blocks = 1;
    uint64_t bytes;
    if (!tool_try(error, pagedcl_cache_bytes(&block, &bytes), "pool"))
        return false;
    void *k = malloc(bytes), *v = malloc(bytes);
    bool ok = (k != NULL && v != NULL) || tool_fail(error, "out of memory");
    for (int64_t i = 0; ok && i < chosen; i++) {
        int64_t place = piece(i, chosen, count);
        int32_t position, seq = owner_of(s, place, &position);
        ok = tool_try(error,
                      pagedcl_cache_download_blocks(s->cache, NULL, 0, &s->batch.order[first_place + place], 1, k,
                                                    s->cell->model.v_in_k ? NULL : v, 0, NULL, NULL),
                      "reading a block") &&
             tool_try_opencl(error, clFinish(s->rig->queue), "clFinish") &&
             check_block(s, k, v, seq, position, result, error);
    }
    free(k);
    free(v);
    return ok;
}

/* Blocks that hold zeros stand for what was there before. */
static bool spoil_blocks(const cache_subject *s, int64_t first_place, tool_error *error) {
    pagedcl_cache_desc block = bench_pool_desc(s->cell, &s->batch);
    block.num_layers = block.num_blocks = 1;
    uint64_t bytes;
    if (!tool_try(error, pagedcl_cache_bytes(&block, &bytes), "pool"))
        return false;
    int64_t count = s->batch.num_blocks, chosen = affordable(s, count, s->cell->block_size);
    void *zeros = calloc(1, bytes);
    bool ok = zeros != NULL || tool_fail(error, "out of memory");
    for (int64_t i = 0; ok && i < chosen; i++)
        ok = tool_try(error,
                      pagedcl_cache_upload_blocks(s->cache, NULL, 0,
                                                  &s->batch.order[first_place + piece(i, chosen, count)], 1, zeros,
                                                  s->cell->model.v_in_k ? NULL : zeros, 0, NULL, NULL),
                      "clearing a block");
    ok = tool_try_opencl(error, clFinish(s->rig->queue), "clFinish") && ok;
    free(zeros);
    return ok;
}

static bool check_pool(void *user, const bench_work *work, bench_check *result, tool_error *error) {
    cache_subject *s = user;
    int64_t first_place = s->cell->kind == BENCH_KIND_COPY ? s->batch.num_blocks : 0;
    result->rows = 0;
    result->all_rows = s->batch.total_tokens;
    return spoil_blocks(s, first_place, error) && work->enqueue(work->user, NULL, error) &&
           check_blocks(s, first_place, result, error);
}

static bool check_gather(void *user, const bench_work *work, bench_check *result, tool_error *error) {
    cache_subject *s = user;
    const bench_model *m = &s->cell->model;
    pagedcl_dtype dtype = rows_dtype(s->cell);
    int64_t count = s->batch.total_tokens, chosen = affordable(s, count, 1);
    chosen = chosen < 4096 ? chosen : 4096;
    uint64_t k_row = s->k_bytes / (uint64_t)count, v_row = s->v_bytes / (uint64_t)count;
    void *k = malloc(k_row), *v = malloc(v_row + 1);
    bool ok = (k != NULL && v != NULL) || tool_fail(error, "out of memory");
    ok = ok && bench_poison(s->rig, s->k, s->k_bytes, error) && bench_poison(s->rig, s->v, s->v_bytes, error) &&
         work->enqueue(work->user, NULL, error);
    for (int64_t i = 0; ok && i < chosen; i++) {
        int64_t token = piece(i, chosen, count);
        ok = bench_read(s->rig, s->k, (uint64_t)token * k_row, k_row, k, error) &&
             (s->v == NULL || bench_read(s->rig, s->v, (uint64_t)token * v_row, v_row, v, error));
        for (int32_t h = 0; ok && h < m->num_kv_heads; h++)
            ok = check_row(s, "K", k, (int64_t)h * m->head_dim, dtype, BENCH_SEED_K, token, h, m->head_dim, error) &&
                 (s->v == NULL || check_row(s, "V", v, (int64_t)h * m->head_dim_v, dtype, BENCH_SEED_V, token, h,
                                            m->head_dim_v, error));
    }
    result->rows = chosen;
    result->all_rows = count;
    free(k);
    free(v);
    return ok;
}

static void release(void *user) {
    cache_subject *s = user;
    pagedcl_cache_destroy(s->cache);
    if (s->k != NULL)
        clReleaseMemObject(s->k);
    if (s->v != NULL)
        clReleaseMemObject(s->v);
    free(s->slots);
    free(s->block_pairs);
    bench_batch_free(&s->batch);
    free(s);
}

/* K and V of all tokens outside the pool, with their values when they are to be written. */
static bool make_rows(cache_subject *s, tool_error *error) {
    const bench_model *m = &s->cell->model;
    pagedcl_dtype dtype = rows_dtype(s->cell);
    int64_t heads = s->batch.total_tokens * m->num_kv_heads;
    int bits = bench_value_bits(s->cell->dtype);
    s->k_bytes = (uint64_t)(heads * m->head_dim) * pagedcl_dtype_size(dtype);
    s->v_bytes = m->v_in_k ? 0 : (uint64_t)(heads * m->head_dim_v) * pagedcl_dtype_size(dtype);
    s->k = bench_buffer(s->rig, s->k_bytes, error);
    if (s->k == NULL)
        return false;
    if (!m->v_in_k && (s->v = bench_buffer(s->rig, s->v_bytes, error)) == NULL)
        return false;
    if (s->cell->kind != BENCH_KIND_WRITE)
        return true;
    return bench_fill(s->rig, s->k, 0, dtype, BENCH_SEED_K, 0, heads, m->head_dim, bits, 1, error) &&
           (m->v_in_k || bench_fill(s->rig, s->v, 0, dtype, BENCH_SEED_V, 0, heads, m->head_dim_v, bits, 1, error));
}

static bool make_slots(cache_subject *s, tool_error *error) {
    s->slots = malloc((size_t)s->batch.total_tokens * sizeof *s->slots);
    if (s->slots == NULL)
        return tool_fail(error, "out of memory");
    for (int32_t seq = 0; seq < s->batch.num_seqs; seq++)
        for (int32_t t = 0; t < s->batch.seqlens[seq]; t++)
            s->slots[s->batch.first_tokens[seq] + t] = bench_batch_slot(&s->batch, s->cell, seq, t);
    return true;
}

static bool make_pairs(cache_subject *s, tool_error *error) {
    s->block_pairs = malloc((size_t)s->batch.num_blocks * 2 * sizeof *s->block_pairs);
    if (s->block_pairs == NULL)
        return tool_fail(error, "out of memory");
    for (int32_t i = 0; i < s->batch.num_blocks; i++) {
        s->block_pairs[2 * (size_t)i] = s->batch.order[i];
        s->block_pairs[2 * (size_t)i + 1] = s->batch.order[s->batch.num_blocks + i];
    }
    return true;
}

static bool prepare(cache_subject *s, bench_subject *subject, tool_error *error) {
    const bench_cell *cell = s->cell;
    const bench_model *m = &cell->model;
    if (!bench_batch_create(cell, cell->kind == BENCH_KIND_COPY, &s->batch, error))
        return false;
    pagedcl_cache_desc pool = bench_pool_desc(cell, &s->batch);
    double columns = (double)m->num_kv_heads * (m->head_dim + (m->v_in_k ? 0 : m->head_dim_v));
    double in_pool = m->num_kv_heads * (double)(bench_pool_row_bytes(cell->dtype, m->head_dim) +
                                                (m->v_in_k ? 0 : bench_pool_row_bytes(cell->dtype, m->head_dim_v)));
    double outside = columns * (double)pagedcl_dtype_size(rows_dtype(cell));
    double tokens = (double)s->batch.total_tokens;
    subject->copies = true;
    subject->work = (bench_work){.enqueue = enqueue_write, .user = s};
    subject->check = check_pool;
    subject->bytes = tokens * (in_pool + outside);
    if (cell->kind == BENCH_KIND_GATHER) {
        subject->work.enqueue = enqueue_gather;
        subject->check = check_gather;
    } else if (cell->kind == BENCH_KIND_COPY) {
        subject->work.enqueue = enqueue_copy;
        subject->bytes = (double)s->batch.num_blocks * cell->block_size * 2 * in_pool;
    }
    uint64_t rows = cell->kind == BENCH_KIND_COPY ? 0 : (uint64_t)(tokens * outside);
    if (!bench_check_memory(s->rig, &pool, rows, error) ||
        !tool_try(error, pagedcl_cache_create(s->rig->device, &pool, &s->cache), "pool"))
        return false;
    subject->variants_size = strlen(s->rig->variants);
    if (cell->kind == BENCH_KIND_WRITE)
        return make_rows(s, error) && make_slots(s, error);
    if (!bench_pool_fill(s->rig, cell, &s->batch, s->cache, 0, error))
        return false;
    return cell->kind == BENCH_KIND_COPY ? make_pairs(s, error) : make_rows(s, error);
}

bool bench_cache_subject(const bench_rig *rig, const bench_cell *cell, double effort, bench_subject *subject,
                         tool_error *error) {
    cache_subject *s = calloc(1, sizeof *s);
    if (s == NULL)
        return tool_fail(error, "out of memory");
    s->rig = rig;
    s->cell = cell;
    s->effort = effort;
    *subject = (bench_subject){.release = release, .user = s};
    if (prepare(s, subject, error))
        return true;
    release(s);
    return false;
}
