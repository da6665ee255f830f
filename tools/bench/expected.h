/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What attention must give, by its definition in double precision. The values are known by their hash, so that long
 * contexts are checked without reading them: whole results where that is quick, otherwise some query rows and heads,
 * each over all its keys.
 */
#ifndef BENCH_EXPECTED_H
#define BENCH_EXPECTED_H

#include "batch.h"

/* How a check went. */
typedef struct bench_check {
    int64_t rows;     /* result rows, of a head or of a token, that were compared */
    int64_t all_rows; /* that there are */
    double max_error; /* the largest error, as a share of what is allowed */
} bench_check;

/* Query rows of all layers: layer l, sequence b and token t are row l * total_rows + first_rows[b] + t. */
typedef struct bench_queries {
    int32_t *seqlens;    /* [num_seqs] */
    int32_t *first_rows; /* [num_seqs + 1] */
    int64_t total_rows;  /* of a layer */
} bench_queries;

/* What q holds is this times the values of value.h: some keys then matter much more than others. */
#define BENCH_Q_SCALE 8.0f

/* Heads of one query row that read the same KV head. */
typedef struct bench_sample {
    int32_t layer;
    int32_t seq;
    int32_t token;
    int32_t first_head;
} bench_sample;

typedef struct bench_expected {
    const bench_cell *cell;
    int64_t num_samples;
    int64_t all_samples; /* that there are */
    bench_sample *samples;
    int32_t num_heads; /* of each sample */
    double *out;       /* [num_samples, num_heads, head_dim_v] */
    double *lse;       /* [num_samples, num_heads] */
} bench_expected;

/* Of the operator and the pool of bench_pool_fill. effort: multiplications to spend, about; at least two rows are checked. */
bool bench_expected_create(const bench_cell *cell, const bench_batch *batch, const bench_queries *queries,
                           double effort, bench_expected *expected, tool_error *error);
void bench_expected_free(bench_expected *expected);

/* Keys that a token of a sequence sees: from *first to before the result. */
int32_t bench_visible(const bench_cell *cell, int32_t seqlen_q, int32_t seqlen_k, int32_t token, int32_t *first);

/* The sink of a head. */
float bench_sink(int32_t head);

/* Compares results on the device; out in the dtype of queries. False after "wrong result ..." too. */
bool bench_expected_compare(const bench_rig *rig, const bench_expected *expected, const bench_queries *queries,
                            cl_mem out, cl_mem lse, bench_check *check, tool_error *error);

/* An element of a tensor on the host, of any dtype; int8 as k_scale of the pools here has it. */
double bench_element(const void *elements, int64_t index, pagedcl_dtype dtype);

/* The relative error that results of a dtype may have. */
double bench_tolerance(pagedcl_dtype dtype);

#endif
