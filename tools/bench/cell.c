/* SPDX-License-Identifier: Apache-2.0 */
#include "cell.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { GPU = 1, CPU = 2, GPU_QUICK = 4, CPU_QUICK = 8, BASELINE = 16, RAGGED = 32, WARM = 64 };

static const bench_model models[] = {
    {.name = "qwen3-0.6b", .num_heads = 16, .num_kv_heads = 8, .head_dim = 128, .head_dim_v = 128},
    {.name = "llama3-8b", .num_heads = 32, .num_kv_heads = 8, .head_dim = 128, .head_dim_v = 128},
    {.name = "llama3-70b", .num_heads = 64, .num_kv_heads = 8, .head_dim = 128, .head_dim_v = 128},
    {.name = "mistral-7b", .num_heads = 32, .num_kv_heads = 8, .head_dim = 128, .head_dim_v = 128, .window = 4096},
    {.name = "gemma2-9b", .num_heads = 16, .num_kv_heads = 8, .head_dim = 256, .head_dim_v = 256, .softcap = 50},
    {.name = "gpt-oss", .num_heads = 64, .num_kv_heads = 8, .head_dim = 64, .head_dim_v = 64, .has_sinks = true},
    {.name = "deepseek-mla",
     .num_heads = 128,
     .num_kv_heads = 1,
     .head_dim = 576,
     .head_dim_v = 512,
     .v_in_k = true,
     .scale = 0.07216878f}, /* of the 192 elements that a head has before they are folded into the latent ones */
};
enum { NUM_MODELS = sizeof models / sizeof models[0] };

#define F16 PAGEDCL_FLOAT16
#define F32 PAGEDCL_FLOAT32

static const struct entry {
    const char *model;
    bench_kind kind;
    pagedcl_dtype dtype;
    int32_t batch, context, layers;
    unsigned flags;
} entries[] = {
    {"llama3-8b", BENCH_KIND_DECODE, F16, 1, 512, 1, GPU},
    {"llama3-8b", BENCH_KIND_DECODE, F16, 1, 2048, 1, GPU},
    {"llama3-8b", BENCH_KIND_DECODE, F16, 1, 8192, 1, GPU | GPU_QUICK | BASELINE},
    {"llama3-8b", BENCH_KIND_DECODE, F16, 1, 8192, 1, GPU | GPU_QUICK | WARM},
    {"llama3-8b", BENCH_KIND_DECODE, F16, 1, 32768, 1, GPU},
    {"llama3-8b", BENCH_KIND_DECODE, F16, 1, 131072, 1, GPU | GPU_QUICK | BASELINE},
    {"llama3-8b", BENCH_KIND_DECODE, F16, 4, 8192, 1, GPU},
    {"llama3-8b", BENCH_KIND_DECODE, F16, 16, 8192, 1, GPU | GPU_QUICK | BASELINE},
    {"llama3-8b", BENCH_KIND_DECODE, F16, 64, 8192, 1, GPU | GPU_QUICK},
    {"llama3-8b", BENCH_KIND_DECODE, F16, 256, 2048, 1, GPU | GPU_QUICK},
    {"llama3-8b", BENCH_KIND_DECODE, F16, 64, 31642, 1, GPU | GPU_QUICK | RAGGED},
    {"llama3-8b", BENCH_KIND_DECODE, F32, 16, 8192, 1, GPU},
    {"llama3-8b", BENCH_KIND_DECODE, PAGEDCL_BFLOAT16, 16, 8192, 1, GPU},
    {"llama3-8b", BENCH_KIND_DECODE, PAGEDCL_INT8, 16, 8192, 1, GPU},
    {"llama3-8b", BENCH_KIND_DECODE, PAGEDCL_FLOAT8_E4M3, 16, 8192, 1, GPU},
    {"llama3-8b", BENCH_KIND_DECODE, PAGEDCL_FLOAT8_E5M2, 16, 8192, 1, GPU},
    {"llama3-8b", BENCH_KIND_DECODE, PAGEDCL_INT4, 16, 8192, 1, GPU},
    {"qwen3-0.6b", BENCH_KIND_DECODE, F16, 64, 8192, 1, GPU},
    {"llama3-70b", BENCH_KIND_DECODE, F16, 64, 8192, 1, GPU},
    {"mistral-7b", BENCH_KIND_DECODE, F16, 64, 8192, 1, GPU},
    {"gemma2-9b", BENCH_KIND_DECODE, F16, 64, 8192, 1, GPU},
    {"gpt-oss", BENCH_KIND_DECODE, F16, 1, 131072, 1, GPU},
    {"gpt-oss", BENCH_KIND_DECODE, F16, 64, 8192, 1, GPU},
    {"deepseek-mla", BENCH_KIND_DECODE, F16, 1, 131072, 1, GPU},
    {"deepseek-mla", BENCH_KIND_DECODE, F16, 64, 8192, 1, GPU},
    {"llama3-8b", BENCH_KIND_PREFILL, F16, 1, 512, 1, GPU},
    {"llama3-8b", BENCH_KIND_PREFILL, F16, 1, 2048, 1, GPU},
    {"llama3-8b", BENCH_KIND_PREFILL, F16, 32, 512, 1, GPU | GPU_QUICK | BASELINE},
    {"llama3-8b", BENCH_KIND_PREFILL, F16, 8, 2048, 1, GPU | GPU_QUICK | BASELINE},
    {"llama3-8b", BENCH_KIND_PREFILL, F16, 2, 8192, 1, GPU | GPU_QUICK | BASELINE},
    {"llama3-8b", BENCH_KIND_PREFILL, F16, 1, 16384, 1, GPU | GPU_QUICK},
    {"qwen3-0.6b", BENCH_KIND_PREFILL, F16, 8, 2048, 1, GPU},
    {"llama3-70b", BENCH_KIND_PREFILL, F16, 8, 2048, 1, GPU},
    {"mistral-7b", BENCH_KIND_PREFILL, F16, 1, 16384, 1, GPU},
    {"gemma2-9b", BENCH_KIND_PREFILL, F16, 8, 2048, 1, GPU},
    {"gpt-oss", BENCH_KIND_PREFILL, F16, 8, 2048, 1, GPU},
    {"deepseek-mla", BENCH_KIND_PREFILL, F16, 8, 512, 1, GPU},
    {"llama3-8b", BENCH_KIND_STEP, F16, 64, 2048, 8, GPU | GPU_QUICK},
    {"qwen3-0.6b", BENCH_KIND_STEP, F16, 16, 1024, 28, GPU},
    {"llama3-8b", BENCH_KIND_WRITE, F16, 8, 2048, 1, GPU | GPU_QUICK},
    {"llama3-8b", BENCH_KIND_GATHER, F16, 64, 8192, 1, GPU | GPU_QUICK},
    {"llama3-8b", BENCH_KIND_COPY, F16, 8, 2048, 1, GPU | GPU_QUICK},
    {"llama3-8b", BENCH_KIND_MERGE, F16, 8, 2048, 1, GPU | GPU_QUICK},

    {"qwen3-0.6b", BENCH_KIND_DECODE, F32, 4, 1024, 1, CPU_QUICK},
    {"qwen3-0.6b", BENCH_KIND_DECODE, F16, 4, 1024, 1, CPU_QUICK},
    {"qwen3-0.6b", BENCH_KIND_DECODE, F16, 8, 2048, 1, CPU_QUICK | RAGGED},
    {"qwen3-0.6b", BENCH_KIND_PREFILL, F32, 2, 256, 1, CPU_QUICK},
    {"qwen3-0.6b", BENCH_KIND_STEP, F16, 4, 512, 4, CPU_QUICK},
    {"qwen3-0.6b", BENCH_KIND_WRITE, F16, 4, 1024, 1, CPU_QUICK},
    {"qwen3-0.6b", BENCH_KIND_GATHER, F16, 4, 1024, 1, CPU_QUICK},
    {"qwen3-0.6b", BENCH_KIND_COPY, F16, 4, 1024, 1, CPU_QUICK},
    {"qwen3-0.6b", BENCH_KIND_MERGE, F32, 4, 256, 1, CPU_QUICK},

    {"llama3-8b", BENCH_KIND_DECODE, F16, 1, 1024, 1, CPU},
    {"llama3-8b", BENCH_KIND_DECODE, F16, 1, 4096, 1, CPU},
    {"llama3-8b", BENCH_KIND_DECODE, F32, 1, 32768, 1, CPU | BASELINE},
    {"llama3-8b", BENCH_KIND_DECODE, F16, 1, 32768, 1, CPU | BASELINE},
    {"llama3-8b", BENCH_KIND_DECODE, F32, 16, 4096, 1, CPU},
    {"llama3-8b", BENCH_KIND_DECODE, F16, 4, 4096, 1, CPU},
    {"llama3-8b", BENCH_KIND_DECODE, PAGEDCL_BFLOAT16, 4, 4096, 1, CPU},
    {"llama3-8b", BENCH_KIND_DECODE, PAGEDCL_INT8, 4, 4096, 1, CPU},
    {"llama3-8b", BENCH_KIND_DECODE, PAGEDCL_FLOAT8_E4M3, 4, 4096, 1, CPU},
    {"llama3-8b", BENCH_KIND_DECODE, PAGEDCL_FLOAT8_E5M2, 4, 4096, 1, CPU},
    {"llama3-8b", BENCH_KIND_DECODE, PAGEDCL_INT4, 4, 4096, 1, CPU},
    {"llama3-8b", BENCH_KIND_DECODE, F16, 16, 4096, 1, CPU},
    {"llama3-8b", BENCH_KIND_DECODE, F16, 16, 8192, 1, CPU | RAGGED},
    {"qwen3-0.6b", BENCH_KIND_DECODE, F16, 16, 4096, 1, CPU},
    {"llama3-70b", BENCH_KIND_DECODE, F16, 4, 4096, 1, CPU},
    {"mistral-7b", BENCH_KIND_DECODE, F16, 4, 8192, 1, CPU},
    {"gemma2-9b", BENCH_KIND_DECODE, F16, 4, 4096, 1, CPU},
    {"gpt-oss", BENCH_KIND_DECODE, F16, 4, 4096, 1, CPU},
    {"deepseek-mla", BENCH_KIND_DECODE, F16, 4, 1024, 1, CPU},
    {"llama3-8b", BENCH_KIND_PREFILL, F16, 1, 256, 1, CPU},
    {"llama3-8b", BENCH_KIND_PREFILL, F16, 1, 512, 1, CPU},
    {"llama3-8b", BENCH_KIND_PREFILL, F16, 1, 1024, 1, CPU},
    {"llama3-8b", BENCH_KIND_PREFILL, F32, 1, 1024, 1, CPU | BASELINE},
    {"llama3-8b", BENCH_KIND_PREFILL, F16, 4, 512, 1, CPU | BASELINE},
    {"qwen3-0.6b", BENCH_KIND_PREFILL, F16, 1, 1024, 1, CPU},
    {"gemma2-9b", BENCH_KIND_PREFILL, F16, 1, 512, 1, CPU},
    {"gpt-oss", BENCH_KIND_PREFILL, F32, 1, 1024, 1, CPU},
    {"gpt-oss", BENCH_KIND_PREFILL, F16, 1, 1024, 1, CPU},
    {"qwen3-0.6b", BENCH_KIND_STEP, F16, 8, 1024, 28, CPU},
    {"llama3-8b", BENCH_KIND_WRITE, F16, 8, 2048, 1, CPU},
    {"llama3-8b", BENCH_KIND_GATHER, F16, 8, 2048, 1, CPU},
    {"llama3-8b", BENCH_KIND_COPY, F16, 8, 2048, 1, CPU},
    {"llama3-8b", BENCH_KIND_MERGE, F16, 4, 2048, 1, CPU},
};
enum { NUM_ENTRIES = sizeof entries / sizeof entries[0] };

const char *bench_kind_name(bench_kind kind) {
    static const char *const names[BENCH_NUM_KINDS] = {"decode", "prefill", "step", "write", "gather", "copy", "merge"};
    return names[kind];
}

/* Appends to a text, as far as there is room. */
__attribute__((format(printf, 3, 4))) static void append(char *text, size_t size, const char *format, ...) {
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, size - used, format, args);
    va_end(args);
}

void bench_cell_name(const bench_cell *cell, char *name, size_t size) {
    snprintf(name, size, "%s/%s/%s/%s%" PRId32 "x%" PRId32, bench_kind_name(cell->kind), cell->model.name,
             pagedcl_dtype_name(cell->dtype), cell->ragged ? "ragged" : "", cell->batch, cell->context);
    if (cell->query > 0)
        append(name, size, "/query%" PRId32, cell->query);
    if (cell->layers > 1)
        append(name, size, "/layers%" PRId32, cell->layers);
    if (cell->block_size != 16)
        append(name, size, "/block%" PRId32, cell->block_size);
    if (cell->layout == PAGEDCL_LAYOUT_HND)
        append(name, size, "/hnd");
    if (cell->sequential)
        append(name, size, "/sequential");
    if (cell->fast_splits)
        append(name, size, "/fast");
    if (cell->warm)
        append(name, size, "/warm");
}

bool bench_kind_has_pool(bench_kind kind) {
    return kind != BENCH_KIND_MERGE;
}

bool bench_kind_has_splits(bench_kind kind) {
    return kind == BENCH_KIND_DECODE || kind == BENCH_KIND_STEP;
}

const char *bench_cell_layout_name(const bench_cell *cell) {
    return cell->layout == PAGEDCL_LAYOUT_HND ? "HND" : "NHD";
}

const char *bench_cell_splits_name(const bench_cell *cell) {
    return cell->fast_splits ? "fast" : "fixed";
}

bool bench_cell_is_quantized(const bench_cell *cell) {
    return pagedcl_dtype_size(cell->dtype) < 2; /* 0 for int4 */
}

pagedcl_dtype bench_cell_q_dtype(const bench_cell *cell) {
    return bench_cell_is_quantized(cell) ? PAGEDCL_FLOAT16 : cell->dtype;
}

static const bench_model *find_model(const char *name) {
    for (int i = 0; i < NUM_MODELS; i++)
        if (strcmp(models[i].name, name) == 0)
            return &models[i];
    return NULL;
}

int32_t bench_standard_set(bool is_cpu, bool quick, bench_cell *cells, int32_t capacity) {
    unsigned wanted = is_cpu ? (quick ? CPU_QUICK : CPU) : (quick ? GPU_QUICK : GPU);
    int32_t count = 0;
    for (int i = 0; i < NUM_ENTRIES && count < capacity; i++) {
        const struct entry *e = &entries[i];
        if (e->flags & wanted)
            cells[count++] = (bench_cell){.kind = e->kind,
                                          .model = *find_model(e->model),
                                          .dtype = e->dtype,
                                          .batch = e->batch,
                                          .context = e->context,
                                          .ragged = (e->flags & RAGGED) != 0,
                                          .layers = e->layers,
                                          .block_size = 16,
                                          .warm = (e->flags & WARM) != 0,
                                          .baseline = (e->flags & BASELINE) != 0};
    }
    return count;
}

bool bench_cell_default(bench_kind kind, const char *model, bench_cell *cell) {
    const bench_model *found = find_model(model != NULL ? model : "llama3-8b");
    if (found == NULL)
        return false;
    *cell = (bench_cell){.kind = kind,
                         .model = *found,
                         .dtype = PAGEDCL_FLOAT16,
                         .batch = 1,
                         .context = 1024,
                         .layers = kind == BENCH_KIND_STEP ? 8 : 1,
                         .block_size = 16,
                         .baseline = true};
    return true;
}

void bench_model_names(char *names, size_t size) {
    names[0] = '\0';
    for (int i = 0; i < NUM_MODELS; i++)
        append(names, size, "%s%s", i > 0 ? ", " : "", models[i].name);
}

void bench_model_rename(bench_model *m) {
    snprintf(m->name, sizeof m->name, "%" PRId32 "x%" PRId32 "x%" PRId32, m->num_heads, m->num_kv_heads, m->head_dim);
    if (m->head_dim_v != m->head_dim)
        append(m->name, sizeof m->name, "x%" PRId32, m->head_dim_v);
    if (m->v_in_k)
        append(m->name, sizeof m->name, "-latent");
    if (m->window > 0)
        append(m->name, sizeof m->name, "-window%" PRId32, m->window);
    if (m->softcap > 0)
        append(m->name, sizeof m->name, "-softcap%g", (double)m->softcap);
    if (m->has_sinks)
        append(m->name, sizeof m->name, "-sinks");
}
