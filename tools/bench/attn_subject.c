/* SPDX-License-Identifier: Apache-2.0 */
/* Decode, prefill, and whole steps of decode. */
#include "subject.h"

#include <pagedcl/attn_gather.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct attn_subject {
    const bench_rig *rig;
    const bench_cell *cell;
    bench_batch batch;
    bench_queries queries;
    bench_expected expected;
    int32_t *cache_seqlens; /* of decode: before the append */
    pagedcl_cache *cache;
    pagedcl_attn *attn;
    pagedcl_plan *plan;
    pagedcl_attn *plain_attn; /* the baseline's */
    pagedcl_attn_gather *gather;
    cl_mem q, out, lse, k_new, v_new, sinks;
    uint64_t out_bytes, lse_bytes;
} attn_subject;

static bool is_decode(const bench_cell *cell) {
    return cell->kind != BENCH_KIND_PREFILL;
}

static int32_t num_new(const bench_cell *cell) {
    if (cell->kind != BENCH_KIND_STEP)
        return 0;
    return cell->query > 0 ? cell->query : 1;
}

static bool choose_queries(attn_subject *s, tool_error *error) {
    const bench_cell *cell = s->cell;
    size_t num_seqs = (size_t)s->batch.num_seqs;
    s->queries.seqlens = malloc(num_seqs * sizeof *s->queries.seqlens);
    s->queries.first_rows = malloc((num_seqs + 1) * sizeof *s->queries.first_rows);
    s->cache_seqlens = malloc(num_seqs * sizeof *s->cache_seqlens);
    if (s->queries.seqlens == NULL || s->queries.first_rows == NULL || s->cache_seqlens == NULL)
        return tool_fail(error, "out of memory");
    for (int32_t i = 0; i < s->batch.num_seqs; i++) {
        int32_t length = s->batch.seqlens[i], query = cell->query > 0 ? cell->query : is_decode(cell) ? 1 : length;
        if (query > length)
            return tool_fail(error, "a sequence of %d tokens has no %d query tokens", (int)length, (int)query);
        s->queries.seqlens[i] = query;
        s->queries.first_rows[i] = (int32_t)s->queries.total_rows;
        s->queries.total_rows += query;
        s->cache_seqlens[i] = length - num_new(cell);
        if (s->queries.total_rows > INT32_MAX)
            return tool_fail(error, "the batch has more query tokens than a plan can");
    }
    s->queries.first_rows[num_seqs] = (int32_t)s->queries.total_rows;
    return true;
}

static pagedcl_attn_desc describe(const attn_subject *s) {
    const bench_model *m = &s->cell->model;
    pagedcl_attn_desc desc = PAGEDCL_ATTN_DESC_INIT;
    desc.cache = s->cache;
    desc.num_heads = m->num_heads;
    desc.q_dtype = bench_cell_q_dtype(s->cell);
    desc.softmax_scale = m->scale;
    desc.causal = 1;
    desc.tier = s->rig->tier;
    desc.has_window = m->window > 0;
    desc.window_left = m->window > 0 ? m->window - 1 : 0;
    desc.softcap = m->softcap;
    desc.has_sinks = m->has_sinks;
    desc.paths = is_decode(s->cell) ? PAGEDCL_PATH_DECODE : PAGEDCL_PATH_VARLEN;
    return desc;
}

static bool make_operator(attn_subject *s, tool_error *error) {
    pagedcl_cache_desc pool = bench_pool_desc(s->cell, &s->batch);
    pagedcl_device *device = s->rig->device;
    if (!tool_try(error, pagedcl_cache_create(device, &pool, &s->cache), "pool"))
        return false;
    pagedcl_attn_desc desc = describe(s);
    return tool_try(error, pagedcl_attn_create(device, &desc, &s->attn), "operator") &&
           tool_try(error, pagedcl_plan_create(s->attn, &s->plan), "plan");
}

static bool make_sinks(attn_subject *s, tool_error *error) {
    size_t num_heads = (size_t)s->cell->model.num_heads;
    float *sinks = malloc(num_heads * sizeof *sinks);
    if (sinks == NULL)
        return tool_fail(error, "out of memory");
    for (size_t h = 0; h < num_heads; h++)
        sinks[h] = bench_sink((int32_t)h);
    cl_int code;
    s->sinks = clCreateBuffer(s->rig->context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, num_heads * sizeof *sinks,
                              sinks, &code);
    free(sinks);
    return tool_try_opencl(error, code, "clCreateBuffer");
}

/* What a step appends: the last tokens of each sequence, [layers, num_seqs, num_new, num_kv_heads, columns]. */
static bool make_new(attn_subject *s, cl_mem *mem, uint32_t seed, int32_t columns, tool_error *error) {
    const bench_cell *cell = s->cell;
    const bench_batch *batch = &s->batch;
    pagedcl_dtype dtype = bench_cell_q_dtype(cell);
    int64_t heads = cell->model.num_kv_heads, tokens = num_new(cell), size = tokens * heads * columns;
    uint64_t elements = (uint64_t)cell->layers * (uint64_t)batch->num_seqs * (uint64_t)size;
    *mem = bench_buffer(s->rig, elements * pagedcl_dtype_size(dtype), error);
    bool ok = *mem != NULL;
    for (int32_t layer = 0; layer < cell->layers; layer++)
        for (int32_t i = 0; ok && i < batch->num_seqs; i++)
            ok = bench_fill(s->rig, *mem, ((int64_t)layer * batch->num_seqs + i) * size, dtype, seed,
                            (layer * batch->total_tokens + batch->first_tokens[i + 1] - tokens) * heads, tokens * heads,
                            columns, bench_value_bits(cell->dtype), 1, error);
    return ok;
}

static bool make_tensors(attn_subject *s, tool_error *error) {
    const bench_cell *cell = s->cell;
    const bench_model *m = &cell->model;
    pagedcl_dtype dtype = bench_cell_q_dtype(cell);
    int64_t heads = cell->layers * s->queries.total_rows * m->num_heads;
    s->q = bench_buffer(s->rig, (uint64_t)(heads * m->head_dim) * pagedcl_dtype_size(dtype), error);
    if (s->q == NULL ||
        !bench_fill(s->rig, s->q, 0, dtype, BENCH_SEED_Q, 0, heads, m->head_dim, 8, BENCH_Q_SCALE, error))
        return false;
    s->out_bytes = (uint64_t)(heads * m->head_dim_v) * pagedcl_dtype_size(dtype);
    s->lse_bytes = (uint64_t)heads * sizeof(float);
    s->out = bench_buffer(s->rig, s->out_bytes, error);
    s->lse = s->out != NULL ? bench_buffer(s->rig, s->lse_bytes, error) : NULL;
    if (s->lse == NULL || (m->has_sinks && !make_sinks(s, error)))
        return false;
    if (num_new(cell) == 0)
        return true;
    return make_new(s, &s->k_new, BENCH_SEED_K, m->head_dim, error) &&
           (m->v_in_k || make_new(s, &s->v_new, BENCH_SEED_V, m->head_dim_v, error));
}

static pagedcl_varlen_batch varlen_batch(const attn_subject *s) {
    pagedcl_varlen_batch batch = PAGEDCL_VARLEN_BATCH_INIT;
    batch.num_seqs = s->batch.num_seqs;
    batch.cu_seqlens_q = s->queries.first_rows;
    batch.cache_seqlens = s->batch.seqlens;
    batch.block_table = s->batch.block_table;
    batch.block_table_stride = s->batch.stride;
    return batch;
}

static bool plan_batch(attn_subject *s, tool_error *error) {
    if (!is_decode(s->cell)) {
        pagedcl_varlen_batch varlen = varlen_batch(s);
        return tool_try(error, pagedcl_plan_varlen(s->plan, NULL, &varlen), "plan");
    }
    pagedcl_decode_batch batch = PAGEDCL_DECODE_BATCH_INIT;
    batch.num_seqs = s->batch.num_seqs;
    batch.seqlen_q = s->queries.seqlens[0];
    batch.seqlen_new = num_new(s->cell);
    batch.num_splits = s->cell->fast_splits ? PAGEDCL_SPLITS_FAST : 0;
    batch.cache_seqlens = s->cache_seqlens;
    batch.block_table = s->batch.block_table;
    batch.block_table_stride = s->batch.stride;
    return tool_try(error, pagedcl_plan_decode(s->plan, NULL, &batch), "plan");
}

static pagedcl_attn_args layer_args(const attn_subject *s, int32_t layer) {
    const bench_model *m = &s->cell->model;
    int64_t heads = layer * s->queries.total_rows * m->num_heads;
    int64_t new_heads = (int64_t)layer * s->batch.num_seqs * num_new(s->cell) * m->num_kv_heads;
    pagedcl_attn_args args = PAGEDCL_ATTN_ARGS_INIT;
    args.layer = layer;
    args.q = (pagedcl_tensor){.mem = s->q, .offset = heads * m->head_dim};
    args.out = (pagedcl_tensor){.mem = s->out, .offset = heads * m->head_dim_v};
    args.k_new = (pagedcl_tensor){.mem = s->k_new, .offset = s->k_new != NULL ? new_heads * m->head_dim : 0};
    args.v_new = (pagedcl_tensor){.mem = s->v_new, .offset = s->v_new != NULL ? new_heads * m->head_dim_v : 0};
    args.lse = s->lse;
    args.lse_offset = heads;
    args.sinks = s->sinks;
    return args;
}

static bool enqueue(void *user, cl_event *event, tool_error *error) {
    attn_subject *s = user;
    if (s->cell->kind == BENCH_KIND_STEP && !plan_batch(s, error))
        return false;
    for (int32_t layer = 0; layer < s->cell->layers; layer++) {
        pagedcl_attn_args args = layer_args(s, layer);
        cl_event *last = layer + 1 < s->cell->layers ? NULL : event;
        if (!tool_try(error, pagedcl_attn_run(s->attn, NULL, s->plan, &args, 0, NULL, last), "run"))
            return false;
    }
    return true;
}

static bool enqueue_baseline(void *user, cl_event *event, tool_error *error) {
    attn_subject *s = user;
    pagedcl_varlen_batch batch = varlen_batch(s);
    pagedcl_attn_args args = layer_args(s, 0);
    return tool_try(error, pagedcl_attn_gather_varlen(s->gather, NULL, &batch, &args, 0, NULL, event), "baseline");
}

static bool check(void *user, const bench_work *work, bench_check *result, tool_error *error) {
    attn_subject *s = user;
    return bench_poison(s->rig, s->out, s->out_bytes, error) && bench_poison(s->rig, s->lse, s->lse_bytes, error) &&
           work->enqueue(work->user, NULL, error) &&
           bench_expected_compare(s->rig, &s->expected, &s->queries, s->out, s->lse, result, error);
}

/* FNV-1a of a buffer. */
static bool digest_buffer(const bench_rig *rig, cl_mem mem, uint64_t bytes, uint64_t *hash, tool_error *error) {
    const uint64_t piece = (uint64_t)4 << 20;
    unsigned char *read = malloc((size_t)piece);
    bool ok = read != NULL || tool_fail(error, "out of memory");
    for (uint64_t at = 0; ok && at < bytes; at += piece) {
        uint64_t size = bytes - at < piece ? bytes - at : piece;
        ok = bench_read(rig, mem, at, size, read, error);
        for (uint64_t i = 0; ok && i < size; i++)
            *hash = (*hash ^ read[i]) * UINT64_C(0x100000001b3);
    }
    free(read);
    return ok;
}

static bool digest(void *user, uint64_t *hash, tool_error *error) {
    const attn_subject *s = user;
    *hash = UINT64_C(0xcbf29ce484222325);
    return digest_buffer(s->rig, s->out, s->out_bytes, hash, error) &&
           digest_buffer(s->rig, s->lse, s->lse_bytes, hash, error);
}

static void release(void *user) {
    attn_subject *s = user;
    pagedcl_attn_gather_destroy(s->gather);
    pagedcl_attn_destroy(s->plain_attn);
    pagedcl_plan_destroy(s->plan);
    pagedcl_attn_destroy(s->attn);
    pagedcl_cache_destroy(s->cache);
    const cl_mem buffers[] = {s->q, s->out, s->lse, s->k_new, s->v_new, s->sinks};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        if (buffers[i] != NULL)
            clReleaseMemObject(buffers[i]);
    bench_expected_free(&s->expected);
    bench_batch_free(&s->batch);
    free(s->queries.seqlens);
    free(s->queries.first_rows);
    free(s->cache_seqlens);
    free(s);
}

/* Bytes that the baseline takes beside the pool: gathered keys, their and the queries' float32 copies, all scores. */
static double baseline_bytes(const attn_subject *s) {
    const bench_model *m = &s->cell->model;
    double scores = 0;
    for (int32_t i = 0; i < s->batch.num_seqs; i++) {
        double own = (double)s->queries.seqlens[i] * s->batch.seqlens[i] * m->num_heads * sizeof(float);
        scores = own > scores ? own : scores;
    }
    double keys = (double)s->batch.total_tokens * m->num_kv_heads * 2;
    double rows = (double)s->queries.total_rows * m->num_heads * m->head_dim * 2;
    return scores + keys * (double)((int64_t)m->head_dim * 4 + bench_pool_row_bytes(s->cell->dtype, m->head_dim)) +
           rows * sizeof(float);
}

/* Whether there is one; if not, the subject says why. */
static bool make_baseline(attn_subject *s, bench_subject *subject, tool_error *error) {
    const bench_rig *rig = s->rig;
    if (!s->cell->baseline || s->cell->kind == BENCH_KIND_STEP)
        return false;
    pagedcl_cache_desc pool = bench_pool_desc(s->cell, &s->batch);
    pagedcl_attn_desc desc = describe(s);
    desc.paths = PAGEDCL_PATH_VARLEN;
    if (bench_check_memory(rig, &pool, (uint64_t)baseline_bytes(s), error) &&
        tool_try(error, pagedcl_attn_create(rig->device, &desc, &s->plain_attn), "baseline") &&
        tool_try(error, pagedcl_attn_gather_create(rig->device, s->plain_attn, &s->gather), "baseline"))
        return true;
    snprintf(subject->no_baseline, sizeof subject->no_baseline, "%.255s", error->text);
    return false;
}

/* Each key and value once a KV head, queries and results once. */
static void count_costs(const attn_subject *s, bench_subject *subject) {
    const bench_cell *cell = s->cell;
    const bench_model *m = &cell->model;
    double pairs = 0, keys = 0;
    for (int32_t b = 0; b < s->batch.num_seqs; b++) {
        int32_t first = 0, end = 0, oldest = 0;
        for (int32_t t = 0; t < s->queries.seqlens[b]; t++) {
            end = bench_visible(cell, s->queries.seqlens[b], s->batch.seqlens[b], t, &first);
            oldest = t == 0 ? first : oldest;
            pairs += end - first;
        }
        keys += end - oldest;
    }
    double kv_columns = m->head_dim + (m->v_in_k ? 0 : m->head_dim_v), columns = m->head_dim + m->head_dim_v;
    double kv_bytes = (double)(bench_pool_row_bytes(cell->dtype, m->head_dim) +
                               (m->v_in_k ? 0 : bench_pool_row_bytes(cell->dtype, m->head_dim_v)));
    double q_size = (double)pagedcl_dtype_size(bench_cell_q_dtype(cell));
    double rows = (double)s->queries.total_rows * m->num_heads;
    double news = (double)num_new(cell) * s->batch.num_seqs * m->num_kv_heads;
    /* A new token is read as k_new and written; the attention that reads it has it at hand. */
    double bytes = keys * m->num_kv_heads * kv_bytes + rows * columns * q_size + news * kv_columns * q_size;
    subject->bytes = cell->layers * bytes;
    subject->operations = cell->layers * 2 * m->num_heads * pairs * columns;
}

static bool prepare(attn_subject *s, double effort, bench_subject *subject, tool_error *error) {
    const bench_rig *rig = s->rig;
    if (!bench_batch_create(s->cell, false, &s->batch, error) || !choose_queries(s, error))
        return false;
    pagedcl_cache_desc pool = bench_pool_desc(s->cell, &s->batch);
    const bench_model *m = &s->cell->model;
    double rows = (double)s->cell->layers * (double)s->queries.total_rows * m->num_heads;
    if (!bench_check_memory(rig, &pool, (uint64_t)(rows * (m->head_dim + m->head_dim_v) * 4), error) ||
        !make_operator(s, error) || !make_tensors(s, error) ||
        !bench_pool_fill(rig, s->cell, &s->batch, s->cache, num_new(s->cell), error) || !plan_batch(s, error))
        return false;
    pagedcl_attn_desc made = PAGEDCL_ATTN_DESC_INIT;
    if (!tool_try(error, pagedcl_attn_get_desc(s->attn, &made), "operator"))
        return false;
    subject->tier = made.tier;
    subject->variants_size = strlen(rig->variants); /* the baseline's come behind them */
    if (!tool_try(error,
                  pagedcl_attn_get_tuning(s->attn, is_decode(s->cell) ? PAGEDCL_PATH_DECODE : PAGEDCL_PATH_VARLEN,
                                          subject->tuning, sizeof subject->tuning),
                  "operator"))
        return false;
    count_costs(s, subject);
    if (make_baseline(s, subject, error))
        subject->baseline = (bench_work){.enqueue = enqueue_baseline, .user = s};
    return bench_expected_create(s->cell, &s->batch, &s->queries, effort, &s->expected, error);
}

bool bench_attn_subject(const bench_rig *rig, const bench_cell *cell, double effort, bench_subject *subject,
                        tool_error *error) {
    attn_subject *s = calloc(1, sizeof *s);
    if (s == NULL)
        return tool_fail(error, "out of memory");
    s->rig = rig;
    s->cell = cell;
    *subject = (bench_subject){
        .work = {.enqueue = enqueue, .user = s}, .check = check, .digest = digest, .release = release, .user = s};
    if (prepare(s, effort, subject, error))
        return true;
    release(s);
    return false;
}
