/* SPDX-License-Identifier: Apache-2.0 */
#include "expected.h"

#include "float16.h"
#include "value.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Heads of a KV head that are computed together, at most: latent attention has 128. */
enum { MAX_HEADS = 8, MIN_SAMPLES = 2 };

double bench_element(const void *elements, int64_t index, pagedcl_dtype dtype) {
    size_t size = pagedcl_dtype_size(dtype);
    const unsigned char *at = (const unsigned char *)elements + (size_t)index * size;
    uint16_t bits = at[0];
    float value;
    if (size == 2)
        memcpy(&bits, at, sizeof bits);
    switch (dtype) {
    case PAGEDCL_FLOAT32:
        memcpy(&value, at, sizeof value);
        return (double)value;
    case PAGEDCL_BFLOAT16:
        return (double)bfloat16_to_float(bits);
    case PAGEDCL_INT8:
        return (double)(bits < 128 ? bits : bits - 256) / 128;
    case PAGEDCL_FLOAT8_E5M2: /* the upper half of a float16 */
        return (double)float16_to_float((uint16_t)(bits << 8));
    case PAGEDCL_FLOAT8_E4M3: /* a float16's digits with another bias */
        value = float16_to_float((uint16_t)((bits & 0x7fu) << 7)) * 256;
        return bits & 0x80u ? -(double)value : (double)value;
    default:
        return (double)float16_to_float(bits);
    }
}

/* Sums are float32; what is rounded to the dtype is the result, and the probabilities where matrix units multiply them. */
double bench_tolerance(pagedcl_dtype dtype) {
    return dtype == PAGEDCL_FLOAT32 ? 1e-4 : dtype == PAGEDCL_BFLOAT16 ? 0x1p-6 : 0x1p-8;
}

float bench_sink(int32_t head) {
    return 4 * value_at(value_key(BENCH_SEED_SINKS, 0), (uint32_t)head, 8);
}

int32_t bench_visible(const bench_cell *cell, int32_t seqlen_q, int32_t seqlen_k, int32_t token, int32_t *first) {
    int32_t position = seqlen_k - seqlen_q + token, window = cell->model.window;
    *first = window > 0 && position >= window ? position - window + 1 : 0;
    return position + 1;
}

static double cost_of(const bench_cell *cell, int32_t visible, int32_t heads) {
    return (double)visible * (cell->model.head_dim + cell->model.head_dim_v) * (2 + heads);
}

/* A sample by its number among all, those of a token one behind the other. */
static bench_sample sample_of(const bench_cell *cell, const bench_batch *batch, const bench_queries *queries,
                              int32_t heads, int64_t number) {
    int32_t per_token = cell->model.num_heads / heads;
    int64_t row = number / per_token % queries->total_rows;
    int32_t seq = 0, above = batch->num_seqs;
    while (above - seq > 1) {
        int32_t middle = seq + (above - seq) / 2;
        if (queries->first_rows[middle] <= row)
            seq = middle;
        else
            above = middle;
    }
    return (bench_sample){.layer = (int32_t)(number / per_token / queries->total_rows),
                          .seq = seq,
                          .token = (int32_t)(row - queries->first_rows[seq]),
                          .first_head = (int32_t)(number % per_token) * heads};
}

static double all_cost(const bench_cell *cell, const bench_batch *batch, const bench_queries *queries, int32_t heads) {
    double cost = 0;
    for (int32_t b = 0; b < batch->num_seqs; b++)
        for (int32_t t = 0; t < queries->seqlens[b]; t++) {
            int32_t first, end = bench_visible(cell, queries->seqlens[b], batch->seqlens[b], t, &first);
            cost += cost_of(cell, end - first, heads);
        }
    int32_t samples_of_token = cell->model.num_heads / heads;
    return cost * cell->layers * samples_of_token;
}

/* All of them, or the first, the last and some between until the effort is spent. */
static bool choose_samples(const bench_batch *batch, const bench_queries *queries, double effort, bench_expected *e,
                           tool_error *error) {
    const bench_cell *cell = e->cell;
    bool whole = all_cost(cell, batch, queries, e->num_heads) <= effort;
    const int64_t most = whole ? e->all_samples : 4096;
    e->samples = malloc((size_t)most * sizeof *e->samples);
    if (e->samples == NULL)
        return tool_fail(error, "out of memory");
    while (e->num_samples < most && (whole || e->num_samples < MIN_SAMPLES || effort > 0)) {
        int64_t i = e->num_samples, number = i;
        if (!whole && i > 0) {
            uint64_t high = value_key(3, (uint64_t)i), low = value_key(4, (uint64_t)i);
            number = i == 1 ? e->all_samples - 1 : (int64_t)((high << 32 | low) % (uint64_t)e->all_samples);
        }
        bench_sample sample = sample_of(cell, batch, queries, e->num_heads, number);
        int32_t first,
            end = bench_visible(cell, queries->seqlens[sample.seq], batch->seqlens[sample.seq], sample.token, &first);
        effort -= cost_of(cell, end - first, e->num_heads);
        if (!whole && effort < 0 && i >= MIN_SAMPLES)
            break;
        e->samples[e->num_samples++] = sample;
    }
    return true;
}

/* Room for one sample. */
typedef struct scratch {
    double *q;      /* [head_dim, heads] */
    double *scores; /* [visible keys, heads] */
    float *row;     /* [head_dim] */
} scratch;

static void load_row(float *row, uint32_t seed, int64_t number, int32_t columns, int bits) {
    uint32_t key = value_key(seed, (uint64_t)number);
    for (int32_t d = 0; d < columns; d++)
        row[d] = value_at(key, (uint32_t)d, bits);
}

static void load_queries(const bench_expected *e, int64_t row, int32_t first_head, const scratch *s) {
    int32_t heads = e->num_heads, head_dim = e->cell->model.head_dim;
    for (int32_t h = 0; h < heads; h++) {
        load_row(s->row, BENCH_SEED_Q, row * e->cell->model.num_heads + first_head + h, head_dim, 8);
        for (int32_t d = 0; d < head_dim; d++)
            s->q[d * heads + h] = (double)(BENCH_Q_SCALE * s->row[d]);
    }
}

static void score(const bench_expected *e, const scratch *s, double *scores) {
    const bench_model *m = &e->cell->model;
    int32_t heads = e->num_heads;
    double scale = m->scale > 0 ? (double)m->scale : 1 / sqrt(m->head_dim), sums[MAX_HEADS] = {0};
    for (int32_t d = 0; d < m->head_dim; d++)
        for (int32_t h = 0; h < heads; h++)
            sums[h] += s->q[d * heads + h] * (double)s->row[d];
    for (int32_t h = 0; h < heads; h++) {
        scores[h] = scale * sums[h];
        if (m->softcap > 0)
            scores[h] = (double)m->softcap * tanh(scores[h] / (double)m->softcap);
    }
}

static void attend(bench_expected *e, const bench_batch *batch, const bench_queries *queries, int64_t index,
                   const scratch *s) {
    const bench_cell *cell = e->cell;
    const bench_model *m = &cell->model;
    const bench_sample *sample = &e->samples[index];
    int32_t heads = e->num_heads, bits = bench_value_bits(cell->dtype);
    int32_t first,
        end = bench_visible(cell, queries->seqlens[sample->seq], batch->seqlens[sample->seq], sample->token, &first);
    int64_t kv_head = sample->first_head / (m->num_heads / m->num_kv_heads);
    int64_t token = sample->layer * batch->total_tokens + batch->first_tokens[sample->seq];
    load_queries(e, sample->layer * queries->total_rows + queries->first_rows[sample->seq] + sample->token,
                 sample->first_head, s);
    double max[MAX_HEADS], sum[MAX_HEADS];
    for (int32_t h = 0; h < heads; h++)
        max[h] = m->has_sinks ? (double)bench_sink(sample->first_head + h) : -INFINITY;
    for (int32_t j = first; j < end; j++) {
        double *scores = s->scores + (int64_t)(j - first) * heads;
        load_row(s->row, BENCH_SEED_K, (token + j) * m->num_kv_heads + kv_head, m->head_dim, bits);
        score(e, s, scores);
        for (int32_t h = 0; h < heads; h++)
            max[h] = fmax(max[h], scores[h]);
    }
    double *out = e->out + index * heads * m->head_dim_v;
    memset(out, 0, (size_t)heads * (size_t)m->head_dim_v * sizeof *out);
    for (int32_t h = 0; h < heads; h++)
        sum[h] = m->has_sinks ? exp((double)bench_sink(sample->first_head + h) - max[h]) : 0;
    for (int32_t j = first; j < end; j++) {
        const double *scores = s->scores + (int64_t)(j - first) * heads;
        load_row(s->row, m->v_in_k ? BENCH_SEED_K : BENCH_SEED_V, (token + j) * m->num_kv_heads + kv_head,
                 m->head_dim_v, bits);
        for (int32_t h = 0; h < heads; h++) {
            double weight = exp(scores[h] - max[h]), *head_out = out + (int64_t)h * m->head_dim_v;
            sum[h] += weight;
            for (int32_t d = 0; d < m->head_dim_v; d++)
                head_out[d] += weight * (double)s->row[d];
        }
    }
    for (int32_t h = 0; h < heads; h++) {
        e->lse[index * heads + h] = max[h] + log(sum[h]);
        for (int32_t d = 0; d < m->head_dim_v; d++)
            out[(int64_t)h * m->head_dim_v + d] /= sum[h];
    }
}

static int32_t heads_of_sample(const bench_model *m) {
    int32_t heads = m->num_heads / m->num_kv_heads;
    while (heads > MAX_HEADS)
        heads = heads % 2 == 0 ? heads / 2 : 1;
    return heads;
}

bool bench_expected_create(const bench_cell *cell, const bench_batch *batch, const bench_queries *queries,
                           double effort, bench_expected *e, tool_error *error) {
    const bench_model *m = &cell->model;
    *e = (bench_expected){.cell = cell, .num_heads = heads_of_sample(m)};
    e->all_samples = cell->layers * queries->total_rows * (m->num_heads / e->num_heads);
    if (!choose_samples(batch, queries, effort, e, error))
        return false;
    size_t heads = (size_t)e->num_heads, rows = (size_t)e->num_samples * heads, head_dim = (size_t)m->head_dim;
    e->out = malloc(rows * (size_t)m->head_dim_v * sizeof *e->out);
    e->lse = malloc(rows * sizeof *e->lse);
    scratch s = {.q = malloc(heads * head_dim * sizeof *s.q),
                 .scores = malloc((size_t)batch->longest * heads * sizeof *s.scores),
                 .row = malloc(head_dim * sizeof *s.row)};
    bool ok = e->out != NULL && e->lse != NULL && s.q != NULL && s.scores != NULL && s.row != NULL;
    for (int64_t i = 0; ok && i < e->num_samples; i++)
        attend(e, batch, queries, i, &s);
    free(s.q);
    free(s.scores);
    free(s.row);
    return ok || tool_fail(error, "out of memory");
}

void bench_expected_free(bench_expected *e) {
    free(e->samples);
    free(e->out);
    free(e->lse);
    *e = (bench_expected){0};
}

/* `size` numbers that should be near others, as a share of what is allowed. NaN counts as infinitely far. */
static double error_of(const double *want, const void *got, int64_t first, int32_t size, pagedcl_dtype dtype,
                       int32_t *worst) {
    double allowed = bench_tolerance(dtype), squares = 0, max = 0;
    for (int32_t d = 0; d < size; d++)
        squares += want[d] * want[d];
    double typical = sqrt(squares / size);
    for (int32_t d = 0; d < size; d++) {
        double distance = fabs(bench_element(got, first + d, dtype) - want[d]);
        double error = isfinite(distance) ? distance / (allowed * (typical + fabs(want[d]))) : INFINITY;
        if (error > max) {
            max = error;
            *worst = d;
        }
    }
    return max;
}

static bool compare_sample(const bench_expected *e, const bench_queries *queries, int64_t index, const void *out,
                           const float *lse, bench_check *check, tool_error *error) {
    const bench_cell *cell = e->cell;
    const bench_sample *sample = &e->samples[index];
    int32_t dim = cell->model.head_dim_v;
    pagedcl_dtype dtype = bench_cell_q_dtype(cell);
    for (int32_t h = 0; h < e->num_heads; h++) {
        const double *want = e->out + (index * e->num_heads + h) * dim;
        int32_t worst = 0;
        double far = error_of(want, out, (int64_t)h * dim, dim, dtype, &worst);
        check->max_error = far > check->max_error ? far : check->max_error;
        if (far > 1)
            return tool_fail(
                error, "wrong result: out[%d,%d,%d] of sequence %d in layer %d is %.6g, and should be %.6g",
                (int)(queries->first_rows[sample->seq] + sample->token), (int)(sample->first_head + h), (int)worst,
                (int)sample->seq, (int)sample->layer, bench_element(out, (int64_t)h * dim + worst, dtype), want[worst]);
        /* It tells of single keys that were left out or counted twice, which a mean of many values does not show. */
        double wanted = e->lse[index * e->num_heads + h], distance = fabs((double)lse[h] - wanted) / 5e-5;
        far = isfinite(distance) ? distance : INFINITY;
        check->max_error = far > check->max_error ? far : check->max_error;
        if (far > 1)
            return tool_fail(error, "wrong result: lse[%d,%d] of sequence %d in layer %d is %.8g, and should be %.8g",
                             (int)(queries->first_rows[sample->seq] + sample->token), (int)(sample->first_head + h),
                             (int)sample->seq, (int)sample->layer, (double)lse[h], wanted);
    }
    return true;
}

bool bench_expected_compare(const bench_rig *rig, const bench_expected *e, const bench_queries *queries, cl_mem out,
                            cl_mem lse, bench_check *check, tool_error *error) {
    const bench_model *m = &e->cell->model;
    uint64_t head_bytes = (uint64_t)m->head_dim_v * pagedcl_dtype_size(bench_cell_q_dtype(e->cell));
    uint64_t heads = (uint64_t)e->num_heads;
    void *got = malloc(heads * head_bytes);
    float got_lse[MAX_HEADS];
    bool ok = got != NULL || tool_fail(error, "out of memory");
    for (int64_t i = 0; ok && i < e->num_samples; i++) {
        const bench_sample *sample = &e->samples[i];
        int64_t row = sample->layer * queries->total_rows + queries->first_rows[sample->seq] + sample->token;
        uint64_t head = (uint64_t)row * (uint64_t)m->num_heads + (uint64_t)sample->first_head;
        ok = bench_read(rig, out, head * head_bytes, heads * head_bytes, got, error) &&
             bench_read(rig, lse, head * sizeof(float), heads * sizeof(float), got_lse, error) &&
             compare_sample(e, queries, i, got, got_lse, check, error);
    }
    check->rows = e->num_samples * e->num_heads;
    check->all_rows = e->all_samples * e->num_heads;
    free(got);
    return ok;
}
