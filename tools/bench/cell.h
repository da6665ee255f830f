/* SPDX-License-Identifier: Apache-2.0 */
/* What the benchmark may be asked to measure: an operation with the shape of a model and of a batch. */
#ifndef BENCH_CELL_H
#define BENCH_CELL_H

#include <pagedcl/cache.h>
#include <pagedcl/device.h>
#include <pagedcl/dtype.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum bench_kind {
    BENCH_KIND_DECODE,  /* attention of the last `query` tokens of each sequence, 1 by default */
    BENCH_KIND_PREFILL, /* causal varlen attention over the pool, of the last `query` tokens, all by default */
    BENCH_KIND_STEP,    /* a plan, then append and attention of one token in each of `layers` layers */
    BENCH_KIND_WRITE,   /* keys and values of all tokens into the pool */
    BENCH_KIND_GATHER,  /* and out of it */
    BENCH_KIND_COPY,    /* all blocks, to others */
    BENCH_KIND_MERGE,   /* of two partial results for all tokens */
    BENCH_NUM_KINDS,
} bench_kind;

/* What matters of a model for attention. */
typedef struct bench_model {
    char name[64];
    int32_t num_heads;
    int32_t num_kv_heads;
    int32_t head_dim;
    int32_t head_dim_v;
    int32_t window; /* keys that a token sees, at most; 0: all */
    float softcap;  /* 0: none */
    float scale;    /* 0: 1 / sqrt(head_dim) */
    bool v_in_k;    /* latent attention */
    bool has_sinks;
} bench_model;

typedef struct bench_cell {
    bench_kind kind;
    bench_model model;
    pagedcl_dtype dtype; /* of the pool, and of everything else if it has 16 or 32 bits; otherwise that is float16 */
    int32_t batch;       /* sequences */
    int32_t context;     /* tokens of each; of the longest if `ragged` */
    int32_t query;       /* 0: the default of the kind */
    int32_t layers;
    int32_t block_size;
    pagedcl_layout layout; /* of the pool; NHD for a merge, which has none */
    bool ragged;           /* lengths spread evenly by their logarithms, from 134 / 31642 of the context to all of it */
    bool sequential;       /* block tables in ascending order; otherwise shuffled */
    bool fast_splits;      /* decode and step: PAGEDCL_SPLITS_FAST; otherwise parts of a fixed number of keys */
    bool warm;             /* runs follow each other at once; otherwise caches are flushed before each */
    bool baseline;         /* the gather baseline beside it, where it supports the cell */
} bench_cell;

const char *bench_kind_name(bench_kind kind);

/* "decode/llama3-8b/float16/16x8192", with what differs from the usual behind it. */
void bench_cell_name(const bench_cell *cell, char *name, size_t size);

/* Whether a cell of a kind has a pool, and whether sequences are cut into parts. */
bool bench_kind_has_pool(bench_kind kind);
bool bench_kind_has_splits(bench_kind kind);

/* As rows and documents name them: "NHD" or "HND", "fixed" or "fast". */
const char *bench_cell_layout_name(const bench_cell *cell);
const char *bench_cell_splits_name(const bench_cell *cell);

/* Whether the pool's elements count times a scale. */
bool bench_cell_is_quantized(const bench_cell *cell);

/* Of queries, results and new keys. */
pagedcl_dtype bench_cell_q_dtype(const bench_cell *cell);

/* The standard set of a device: its cells, written to `cells`, at most `capacity`, and their number. */
int32_t bench_standard_set(bool is_cpu, bool quick, bench_cell *cells, int32_t capacity);

/* A cell like those of the standard set, of a model of the set or, with NULL, of Llama-3-8B. False: no such model. */
bool bench_cell_default(bench_kind kind, const char *model, bench_cell *cell);

/* The names of the models, ", " between them. */
void bench_model_names(char *names, size_t size);

/* Names a model after its shape, as one of an unknown name is. */
void bench_model_rename(bench_model *model);

#endif
