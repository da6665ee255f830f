/* SPDX-License-Identifier: Apache-2.0 */
/* Merging two partial results. */
#include "subject.h"

#include "value.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LSE_SCALE 4.0f

typedef struct merge_subject {
    const bench_rig *rig;
    const bench_cell *cell;
    double effort;
    int64_t num_tokens;
    pagedcl_merge *merge;
    cl_mem out[3], lse[3]; /* of the sides, and merged */
    uint64_t out_bytes, lse_bytes;
} merge_subject;

static bool enqueue(void *user, cl_event *event, tool_error *error) {
    merge_subject *s = user;
    pagedcl_partial partials[3];
    for (int i = 0; i < 3; i++)
        partials[i] = (pagedcl_partial){.out = {.mem = s->out[i]}, .lse = s->lse[i]};
    return tool_try(
        error,
        pagedcl_merge_run(s->merge, NULL, s->num_tokens, &partials[0], &partials[1], &partials[2], 0, NULL, event),
        "merge");
}

/* The sides have seeds of their own. */
static uint32_t side_seed(uint32_t seed, int side) {
    return seed + 100 * (uint32_t)side;
}

static bool check_row(const merge_subject *s, int64_t row, const void *got, float got_lse, bench_check *result,
                      tool_error *error) {
    uint32_t key[2];
    double lse[2], weight[2], sum = 0;
    for (int i = 0; i < 2; i++) {
        key[i] = value_key(side_seed(BENCH_SEED_OUT, i), (uint64_t)row);
        lse[i] = (double)(LSE_SCALE * value_at(value_key(side_seed(BENCH_SEED_LSE, i), (uint64_t)row), 0, 8));
        weight[i] = exp(lse[i]);
        sum += weight[i];
    }
    pagedcl_dtype dtype = bench_cell_q_dtype(s->cell);
    for (int32_t d = 0; d < s->cell->model.head_dim_v; d++) {
        double want = (weight[0] * (double)value_at(key[0], (uint32_t)d, 8) +
                       weight[1] * (double)value_at(key[1], (uint32_t)d, 8)) /
                      sum;
        double is = bench_element(got, d, dtype), distance = fabs(is - want) / bench_tolerance(dtype);
        if (!(distance <= 1))
            return tool_fail(error, "wrong result: element %d of row %" PRId64 " is %.6g, and should be %.6g", (int)d,
                             row, is, want);
        result->max_error = distance > result->max_error ? distance : result->max_error;
    }
    if (!(fabs((double)got_lse - log(sum)) <= 1e-5))
        return tool_fail(error, "wrong result: the LSE of row %" PRId64 " is %.8g, and should be %.8g", row,
                         (double)got_lse, log(sum));
    return true;
}

static bool check(void *user, const bench_work *work, bench_check *result, tool_error *error) {
    merge_subject *s = user;
    int64_t rows = s->num_tokens * s->cell->model.num_heads;
    double most = s->effort / (s->cell->model.head_dim_v * 50.0);
    int64_t chosen = most < 4096 ? (int64_t)most + 1 : 4096;
    chosen = chosen < rows ? chosen : rows;
    uint64_t row_bytes = s->out_bytes / (uint64_t)rows;
    void *got = malloc(row_bytes);
    bool ok = got != NULL || tool_fail(error, "out of memory");
    ok = ok && bench_poison(s->rig, s->out[2], s->out_bytes, error) &&
         bench_poison(s->rig, s->lse[2], s->lse_bytes, error) && work->enqueue(work->user, NULL, error);
    for (int64_t i = 0; ok && i < chosen; i++) {
        int64_t row = chosen < 2 ? 0 : (int64_t)((double)i / (double)(chosen - 1) * (double)(rows - 1));
        float lse = NAN;
        ok = bench_read(s->rig, s->out[2], (uint64_t)row * row_bytes, row_bytes, got, error) &&
             bench_read(s->rig, s->lse[2], (uint64_t)row * sizeof lse, sizeof lse, &lse, error) &&
             check_row(s, row, got, lse, result, error);
    }
    result->rows = chosen;
    result->all_rows = rows;
    free(got);
    return ok;
}

static void release(void *user) {
    merge_subject *s = user;
    pagedcl_merge_destroy(s->merge);
    for (int i = 0; i < 3; i++) {
        if (s->out[i] != NULL)
            clReleaseMemObject(s->out[i]);
        if (s->lse[i] != NULL)
            clReleaseMemObject(s->lse[i]);
    }
    free(s);
}

static bool prepare(merge_subject *s, bench_subject *subject, tool_error *error) {
    const bench_rig *rig = s->rig;
    const bench_model *m = &s->cell->model;
    pagedcl_merge_desc desc = PAGEDCL_MERGE_DESC_INIT;
    desc.num_heads = m->num_heads;
    desc.head_dim = m->head_dim_v;
    desc.dtype = bench_cell_q_dtype(s->cell);
    int64_t rows = s->num_tokens * m->num_heads;
    s->out_bytes = (uint64_t)(rows * m->head_dim_v) * pagedcl_dtype_size(desc.dtype);
    s->lse_bytes = (uint64_t)rows * sizeof(float);
    subject->bytes = 3 * (double)(s->out_bytes + s->lse_bytes);
    if (!bench_check_memory(rig, NULL, 3 * (s->out_bytes + s->lse_bytes), error) ||
        !tool_try(error, pagedcl_merge_create(rig->device, &desc, &s->merge), "merge"))
        return false;
    subject->variants_size = strlen(rig->variants);
    for (int i = 0; i < 3; i++) {
        s->out[i] = bench_buffer(rig, s->out_bytes, error);
        s->lse[i] = s->out[i] != NULL ? bench_buffer(rig, s->lse_bytes, error) : NULL;
        if (s->lse[i] == NULL)
            return false;
    }
    return true;
}

static bool fill(merge_subject *s, tool_error *error) {
    const bench_model *m = &s->cell->model;
    pagedcl_dtype dtype = bench_cell_q_dtype(s->cell);
    int64_t rows = s->num_tokens * m->num_heads;
    for (int side = 0; side < 2; side++)
        if (!bench_fill(s->rig, s->out[side], 0, dtype, side_seed(BENCH_SEED_OUT, side), 0, rows, m->head_dim_v, 8, 1,
                        error) ||
            !bench_fill(s->rig, s->lse[side], 0, PAGEDCL_FLOAT32, side_seed(BENCH_SEED_LSE, side), 0, rows, 1, 8,
                        LSE_SCALE, error))
            return false;
    return true;
}

bool bench_merge_subject(const bench_rig *rig, const bench_cell *cell, double effort, bench_subject *subject,
                         tool_error *error) {
    merge_subject *s = calloc(1, sizeof *s);
    if (s == NULL)
        return tool_fail(error, "out of memory");
    *s = (merge_subject){.rig = rig, .cell = cell, .effort = effort};
    s->num_tokens = (int64_t)cell->batch * cell->context;
    *subject = (bench_subject){
        .work = {.enqueue = enqueue, .user = s}, .copies = true, .check = check, .release = release, .user = s};
    if (prepare(s, subject, error) && fill(s, error))
        return true;
    release(s);
    return false;
}
