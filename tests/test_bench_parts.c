/* SPDX-License-Identifier: Apache-2.0 */
/* What pagedcl bench is made of: its values, its reference, its statistics, its set of cells. */
#include "batch.h"
#include "expected.h"
#include "report.h"
#include "row.h"
#include "value.h"

#include "ref/ref_attn.h"
#include "support/fixture.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(bench_parts);

Test(bench_parts, the_device_fills_what_the_host_knows) {
    static const pagedcl_dtype dtypes[] = {PAGEDCL_FLOAT32, PAGEDCL_FLOAT16, PAGEDCL_BFLOAT16};
    enum { ROWS = 5, COLUMNS = 67, FIRST = 3 };
    const int64_t first_row = ((int64_t)1 << 33) + 7;
    bench_rig rig;
    tool_error error;
    cr_assert(bench_rig_open(NULL, PAGEDCL_TIER_AUTO, false, 1, &rig, &error), "%s", error.text);
    for (size_t i = 0; i < 3; i++) {
        size_t size = pagedcl_dtype_size(dtypes[i]), bytes = (FIRST + ROWS * COLUMNS) * size;
        unsigned char *got = fixture_alloc(bytes);
        cl_mem mem = bench_buffer(&rig, bytes, &error);
        cr_assert(mem && bench_poison(&rig, mem, bytes, &error), "%s", error.text);
        cr_assert(bench_fill(&rig, mem, FIRST, dtypes[i], 9, first_row, ROWS, COLUMNS, 8, 2, &error), "%s", error.text);
        cr_assert(bench_read(&rig, mem, 0, bytes, got, &error), "%s", error.text);
        for (size_t b = 0; b < FIRST * size; b++)
            cr_expect_eq(got[b], 0xff);
        for (int64_t r = 0; r < ROWS; r++)
            for (int64_t c = 0; c < COLUMNS; c++)
                cr_expect_eq(bench_element(got, FIRST + r * COLUMNS + c, dtypes[i]),
                             (double)(2 * value_at(value_key(9, (uint64_t)(first_row + r)), (uint32_t)c, 8)));
        clReleaseMemObject(mem);
        free(got);
    }
    bench_rig_close(&rig);
}

Test(bench_parts, values_are_spread) {
    enum { COUNT = 1 << 16 };
    double sum = 0, squares = 0, neighbours = 0, rows = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        double value = (double)value_at(value_key(1, i / 128), i % 128, 8);
        cr_assert(fabs(value) < 1 && value != 0 && value * 256 == round(value * 256));
        sum += value;
        squares += value * value;
        neighbours += value * (double)value_at(value_key(1, i / 128), i % 128 + 1, 8);
        rows += value * (double)value_at(value_key(1, i / 128 + 1), i % 128, 8);
    }
    /* Standard deviations of these: 0.0023 and 0.0013. */
    cr_expect_lt(fabs(sum / COUNT), 0.01);
    cr_expect_float_eq(squares / COUNT, 1.0 / 3, 0.01);
    cr_expect_lt(fabs(neighbours / COUNT), 0.006);
    cr_expect_lt(fabs(rows / COUNT), 0.006);
}

Test(bench_parts, elements_of_every_dtype) {
    const float f32 = -1.25f;
    const uint16_t f16 = 0x3e00, bf16 = 0xbfc0;
    const unsigned char e4m3[] = {0x38, 0xb8, 0x01, 0x7e, 0x00}, e5m2[] = {0x3c, 0xc0, 0x01}, int8[] = {127, 0x81};
    cr_expect_eq(bench_element(&f32, 0, PAGEDCL_FLOAT32), -1.25);
    cr_expect_eq(bench_element(&f16, 0, PAGEDCL_FLOAT16), 1.5);
    cr_expect_eq(bench_element(&bf16, 0, PAGEDCL_BFLOAT16), -1.5);
    cr_expect_eq(bench_element(e4m3, 0, PAGEDCL_FLOAT8_E4M3), 1);
    cr_expect_eq(bench_element(e4m3, 1, PAGEDCL_FLOAT8_E4M3), -1);
    cr_expect_eq(bench_element(e4m3, 2, PAGEDCL_FLOAT8_E4M3), 0x1p-9);
    cr_expect_eq(bench_element(e4m3, 3, PAGEDCL_FLOAT8_E4M3), 448);
    cr_expect_eq(bench_element(e4m3, 4, PAGEDCL_FLOAT8_E4M3), 0);
    cr_expect_eq(bench_element(e5m2, 0, PAGEDCL_FLOAT8_E5M2), 1);
    cr_expect_eq(bench_element(e5m2, 1, PAGEDCL_FLOAT8_E5M2), -2);
    cr_expect_eq(bench_element(e5m2, 2, PAGEDCL_FLOAT8_E5M2), 0x1p-16);
    cr_expect_eq(bench_element(int8, 0, PAGEDCL_INT8), 127.0 / 128);
    cr_expect_eq(bench_element(int8, 1, PAGEDCL_INT8), -127.0 / 128);
}

/* ---- The reference, against that of the tests ---- */

typedef struct reference_case {
    bench_cell cell;
    bench_batch batch;
    bench_queries queries;
    int32_t seqlens_q[3], first_rows[4];
} reference_case;

static reference_case make_case(bench_model model, int32_t query, int32_t layers) {
    reference_case r = {.cell = {.kind = BENCH_KIND_DECODE,
                                 .model = model,
                                 .dtype = PAGEDCL_FLOAT16,
                                 .batch = 3,
                                 .context = 37,
                                 .ragged = true,
                                 .query = query,
                                 .layers = layers,
                                 .block_size = 16}};
    tool_error error;
    cr_assert(bench_batch_create(&r.cell, false, &r.batch, &error), "%s", error.text);
    for (int32_t i = 0; i < 3; i++) {
        r.seqlens_q[i] = query < r.batch.seqlens[i] ? query : r.batch.seqlens[i];
        r.first_rows[i + 1] = r.first_rows[i] + r.seqlens_q[i];
    }
    r.queries.total_rows = r.first_rows[3];
    return r;
}

static float *make_rows(uint32_t seed, int64_t first_row, int64_t rows, int32_t columns, float scale) {
    float *values = fixture_alloc((size_t)(rows * columns) * sizeof *values);
    for (int64_t r = 0; r < rows; r++)
        for (int32_t c = 0; c < columns; c++)
            values[r * columns + c] = scale * value_at(value_key(seed, (uint64_t)(first_row + r)), (uint32_t)c, 8);
    return values;
}

/* The sequence that a sample is of, by the tests' reference. */
static void reference_sequence(const reference_case *r, const bench_sample *s, double *out, double *lse) {
    const bench_model *m = &r->cell.model;
    float *sinks = fixture_alloc((size_t)m->num_heads * sizeof *sinks);
    for (int32_t h = 0; h < m->num_heads; h++)
        sinks[h] = bench_sink(h);
    const ref_attn attn = {.num_heads = m->num_heads,
                           .num_kv_heads = m->num_kv_heads,
                           .head_dim = m->head_dim,
                           .head_dim_v = m->head_dim_v,
                           .scale = m->scale > 0 ? (double)m->scale : 1 / sqrt(m->head_dim),
                           .causal = true,
                           .has_window = m->window > 0,
                           .window_left = m->window - 1,
                           .window_right = 0,
                           .softcap = (double)m->softcap,
                           .sinks = m->has_sinks ? sinks : NULL};
    int32_t seqlen_k = r->batch.seqlens[s->seq], seqlen_q = r->seqlens_q[s->seq];
    int64_t token = s->layer * r->batch.total_tokens + r->batch.first_tokens[s->seq];
    int64_t query = s->layer * r->queries.total_rows + r->first_rows[s->seq];
    float *q = make_rows(BENCH_SEED_Q, query * m->num_heads, (int64_t)seqlen_q * m->num_heads, m->head_dim, 8);
    float *k = make_rows(BENCH_SEED_K, token * m->num_kv_heads, (int64_t)seqlen_k * m->num_kv_heads, m->head_dim, 1);
    float *v = make_rows(m->v_in_k ? BENCH_SEED_K : BENCH_SEED_V, token * m->num_kv_heads,
                         (int64_t)seqlen_k * m->num_kv_heads, m->head_dim_v, 1);
    ref_attn_sequence(&attn, q, seqlen_q, (ref_keys){.k = k, .v = v}, seqlen_k, out, lse);
    free(q);
    free(k);
    free(v);
    free(sinks);
}

static void check_against_reference(bench_model model, int32_t query, int32_t layers, double effort) {
    reference_case r = make_case(model, query, layers);
    r.queries.seqlens = r.seqlens_q;
    r.queries.first_rows = r.first_rows;
    bench_expected e;
    tool_error error;
    cr_assert(bench_expected_create(&r.cell, &r.batch, &r.queries, effort, &e, &error), "%s", error.text);
    cr_expect_eq(e.all_samples * e.num_heads, layers * r.queries.total_rows * model.num_heads);
    cr_expect_gt(e.num_samples, 1);
    cr_expect_eq(e.num_samples == e.all_samples, effort > 1e6);
    double *out = fixture_alloc((size_t)(query * model.num_heads * model.head_dim_v) * sizeof *out);
    double *lse = fixture_alloc((size_t)(query * model.num_heads) * sizeof *lse);
    for (int64_t i = 0; i < e.num_samples; i++) {
        reference_sequence(&r, &e.samples[i], out, lse);
        for (int32_t h = 0; h < e.num_heads; h++) {
            int64_t row = (int64_t)e.samples[i].token * model.num_heads + e.samples[i].first_head + h;
            cr_assert_float_eq(e.lse[i * e.num_heads + h], lse[row], 1e-12);
            for (int32_t d = 0; d < model.head_dim_v; d++)
                cr_assert_float_eq(e.out[(i * e.num_heads + h) * model.head_dim_v + d], out[row * model.head_dim_v + d],
                                   1e-12);
        }
    }
    free(out);
    free(lse);
    bench_expected_free(&e);
    bench_batch_free(&r.batch);
}

Test(bench_parts, expects_what_the_reference_says) {
    const bench_model plain = {.num_heads = 14, .num_kv_heads = 2, .head_dim = 24, .head_dim_v = 24};
    bench_model m = plain;
    check_against_reference(m, 1, 1, 1e9);
    check_against_reference(m, 5, 2, 1e9);
    check_against_reference(m, 37, 1, 1e9);
    check_against_reference(m, 37, 2, 1); /* some samples alone */
    m.window = 6;
    check_against_reference(m, 9, 1, 1e9);
    m = plain;
    m.softcap = 1.5f;
    check_against_reference(m, 3, 1, 1e9);
    m = plain;
    m.has_sinks = true;
    check_against_reference(m, 3, 1, 1e9);
    const bench_model latent = {
        .num_heads = 32, .num_kv_heads = 1, .head_dim = 24, .head_dim_v = 16, .v_in_k = true, .scale = 0.25f};
    check_against_reference(latent, 2, 1, 1e9);
}

/* ---- What comparing finds ---- */

/* A right result on the device with one number changed; whether it passes. */
static bool passes(const bench_rig *rig, const reference_case *r, const bench_expected *e, int64_t element,
                   float change_out, float change_lse) {
    const bench_model *m = &r->cell.model;
    int64_t rows = r->queries.total_rows * m->num_heads, count = rows * m->head_dim_v;
    float *out = fixture_alloc((size_t)count * sizeof *out), *lse = fixture_alloc((size_t)rows * sizeof *lse);
    for (int64_t i = 0; i < count; i++) /* all samples in their order are all rows */
        out[i] = (float)e->out[i];
    for (int64_t i = 0; i < rows; i++)
        lse[i] = (float)e->lse[i];
    out[element] += change_out;
    lse[element / m->head_dim_v] += change_lse;
    cl_int code[2];
    cl_mem out_mem = clCreateBuffer(rig->context, CL_MEM_COPY_HOST_PTR, (size_t)count * sizeof *out, out, &code[0]);
    cl_mem lse_mem = clCreateBuffer(rig->context, CL_MEM_COPY_HOST_PTR, (size_t)rows * sizeof *lse, lse, &code[1]);
    cr_assert(code[0] == CL_SUCCESS && code[1] == CL_SUCCESS);
    bench_check check = {0};
    tool_error error = {0};
    bool passed = bench_expected_compare(rig, e, &r->queries, out_mem, lse_mem, &check, &error);
    cr_expect_eq(passed, check.max_error <= 1);
    if (!passed)
        cr_expect(strncmp(error.text, "wrong result: ", 14) == 0, "%s", error.text);
    clReleaseMemObject(out_mem);
    clReleaseMemObject(lse_mem);
    free(out);
    free(lse);
    return passed;
}

Test(bench_parts, one_wrong_number_is_found) {
    const bench_model model = {.num_heads = 14, .num_kv_heads = 2, .head_dim = 24, .head_dim_v = 24};
    reference_case r = make_case(model, 1, 1);
    r.cell.dtype = PAGEDCL_FLOAT32;
    r.queries.seqlens = r.seqlens_q;
    r.queries.first_rows = r.first_rows;
    bench_rig rig;
    tool_error error;
    bench_expected e;
    cr_assert(bench_rig_open(NULL, PAGEDCL_TIER_AUTO, false, 1, &rig, &error), "%s", error.text);
    cr_assert(bench_expected_create(&r.cell, &r.batch, &r.queries, 1e9, &e, &error), "%s", error.text);
    int64_t last = r.queries.total_rows * 14 * 24 - 1;
    cr_expect(passes(&rig, &r, &e, 0, 0, 0));
    cr_expect_not(passes(&rig, &r, &e, 0, 0.01f, 0));
    cr_expect_not(passes(&rig, &r, &e, last, -0.01f, 0));
    cr_expect_not(passes(&rig, &r, &e, last / 2, NAN, 0));
    cr_expect_not(passes(&rig, &r, &e, last / 2, 0, 2e-4f));
    cr_expect_not(passes(&rig, &r, &e, last, 0, NAN));
    bench_expected_free(&e);
    bench_batch_free(&r.batch);
    bench_rig_close(&rig);
}

/* ---- Statistics, and times that are none ---- */

Test(bench_parts, quartiles) {
    double values[] = {5, 1, 4, 2, 3};
    bench_spread s = bench_spread_of(values, 5);
    cr_expect(s.median == 3 && s.low == 2 && s.high == 4 && s.min == 1 && s.max == 5);
    double four[] = {4, 1, 3, 2};
    s = bench_spread_of(four, 4);
    cr_expect(s.median == 2.5 && s.low == 1.75 && s.high == 3.25);
    double one[] = {7};
    s = bench_spread_of(one, 1);
    cr_expect(s.median == 7 && s.low == 7 && s.high == 7);
}

Test(bench_parts, no_time_is_no_number) {
    double stopped[] = {1, 0, 2};
    cr_expect(isnan(bench_spread_of(stopped, 3).median));
    cr_expect(isnan(bench_spread_of(stopped, 0).median));
    double unknown[] = {1, NAN};
    cr_expect(isnan(bench_spread_of(unknown, 2).median));

    bench_rig rig = {.info = PAGEDCL_DEVICE_INFO_INIT};
    bench_roofs roofs = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    bench_row row = {.outcome = {.result = BENCH_NO_TIMES, .message = "the clocks gave no times"},
                     .bytes_per_second = NAN,
                     .operations_per_second = NAN,
                     .roof_share = NAN};
    row.outcome.timing = row.baseline.timing = bench_timing_none();
    json_t *document = bench_to_json(&rig, &roofs, &row, 1, "2026-01-01T00:00:00Z");
    cr_assert(document);
    char *text = json_dumps(document, 0);
    cr_assert(text);
    cr_expect(strstr(text, "\"result\": \"n/a\""), "%s", text);
    cr_expect(strstr(text, "\"error_occurred\": true"), "%s", text);
    cr_expect(strstr(text, "\"bytes_per_second\": null"), "%s", text);
    cr_expect_not(strstr(text, "nan"), "%s", text);
    free(text);
    json_decref(document);
}

/* ---- Cells ---- */

static bool has_cell(const bench_cell *cells, int32_t count, const char *wanted) {
    char name[192];
    for (int32_t i = 0; i < count; i++) {
        bench_cell_name(&cells[i], name, sizeof name);
        if (strcmp(name, wanted) == 0)
            return true;
    }
    return false;
}

Test(bench_parts, the_set_of_gpus_has_what_peers_publish) {
    static const char *const wanted[] = {
        "decode/llama3-8b/float16/1x8192",         "decode/llama3-8b/float16/1x8192/warm",
        "decode/llama3-8b/float16/1x131072",       "decode/llama3-8b/float16/16x8192",
        "decode/llama3-8b/float16/64x8192",        "decode/llama3-8b/float16/256x2048",
        "decode/llama3-8b/float16/ragged64x31642", "prefill/llama3-8b/float16/32x512",
        "prefill/llama3-8b/float16/8x2048",        "prefill/llama3-8b/float16/2x8192",
        "prefill/llama3-8b/float16/1x16384"};
    bench_cell cells[256];
    for (int quick = 0; quick < 2; quick++) {
        int32_t count = bench_standard_set(false, quick == 1, cells, 256);
        for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
            cr_expect(has_cell(cells, count, wanted[i]), "%s", wanted[i]);
    }
    bench_cell_default(BENCH_KIND_DECODE, "llama3-8b", &cells[0]);
    const bench_model *m = &cells[0].model;
    cr_expect(m->num_heads == 32 && m->num_kv_heads == 8 && m->head_dim == 128 && cells[0].block_size == 16);
}

Test(bench_parts, ragged_lengths) {
    bench_cell cell;
    cr_assert(bench_cell_default(BENCH_KIND_DECODE, NULL, &cell));
    cell.batch = 64;
    cell.context = 31642;
    cell.ragged = true;
    bench_batch batch;
    tool_error error;
    cr_assert(bench_batch_create(&cell, true, &batch, &error), "%s", error.text);
    int32_t shortest = INT32_MAX, longest = 0;
    for (int32_t i = 0; i < 64; i++) {
        shortest = batch.seqlens[i] < shortest ? batch.seqlens[i] : shortest;
        longest = batch.seqlens[i] > longest ? batch.seqlens[i] : longest;
    }
    cr_expect_eq(shortest, 134);
    cr_expect_eq(longest, 31642);
    cr_expect_lt(labs((long)batch.total_tokens - 376547), 4000);

    /* Every block of the pool once: in a table, or spare. */
    unsigned char *used = calloc(1, (size_t)batch.pool_blocks);
    cr_assert(used);
    int32_t ascending = 0;
    for (int32_t i = 0; i < batch.pool_blocks; i++) {
        cr_assert(batch.order[i] >= 0 && batch.order[i] < batch.pool_blocks && !used[batch.order[i]]);
        used[batch.order[i]] = 1;
        ascending += i > 0 && batch.order[i] == batch.order[i - 1] + 1;
    }
    cr_expect_lt(ascending, 20, "the tables are not shuffled");
    free(used);
    bench_batch_free(&batch);
}
