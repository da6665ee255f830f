/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's own kernels against their formulas in double precision. */
#include "layers.h"

#include "support/expect.h"
#include "support/fixture.h"
#include "support/random.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

/* No size is a multiple of a work-group. */
enum { ROWS = 3, WIDTH = 83, TABLE_ROWS = 5, NUM_HEADS = 7, NUM_KV_HEADS = 2, HEAD_DIM = 80 };

static const float EPS = 1e-6f;

static pagedcl_device *device;
static layers l;
static tool_error error;
static random_state state = {.seed = 11};

static void open_layers(void) {
    device = fixture_open();
    cr_assert(layers_create(device, &l, &error), "%s", error.text);
}

static void close_layers(void) {
    layers_destroy(&l);
    pagedcl_device_destroy(device);
}

TestSuite(generate_layers, .init = open_layers, .fini = close_layers);

static float *random_values(size_t count) {
    float *values = fixture_alloc(count * sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = random_normal(&state);
    return values;
}

/* Fails unless the buffer holds `count` values near `want`; destroys the buffer. */
static void check(const char *name, guarded *buffer, const double *want, int64_t count) {
    float *got = guarded_read(device, buffer, name);
    expect_close(name, "values", got, want, count, tolerance_of(PAGEDCL_FLOAT32));
    free(got);
    guarded_destroy(buffer);
}

/* RMSNorm of a row in double precision. */
static void normalise(const float *in, const float *weight, int width, double *out) {
    double sum = 0;
    for (int i = 0; i < width; i++)
        sum += (double)in[i] * in[i];
    double scale = 1 / sqrt(sum / width + (double)EPS);
    for (int i = 0; i < width; i++)
        out[i] = in[i] * scale * weight[i];
}

Test(generate_layers, take_rows) {
    static const int32_t rows[ROWS] = {4, 0, 4};
    float *table = random_values(TABLE_ROWS * WIDTH);
    double want[ROWS * WIDTH];
    for (int i = 0; i < ROWS * WIDTH; i++)
        want[i] = table[rows[i / WIDTH] * WIDTH + i % WIDTH];
    guarded in = guarded_create(device, TABLE_ROWS * WIDTH * sizeof *table, table);
    guarded indices = guarded_create(device, sizeof rows, rows);
    guarded out = guarded_create(device, ROWS * WIDTH * sizeof *table, NULL);
    cr_assert(layers_take_rows(&l, in.mem, indices.mem, out.mem, ROWS, WIDTH, &error), "%s", error.text);
    check("take_rows", &out, want, ROWS * WIDTH);
    guarded_destroy(&in);
    guarded_destroy(&indices);
    free(table);
}

Test(generate_layers, rms_norm) {
    float *values = random_values(ROWS * WIDTH);
    float *scales = random_values(WIDTH);
    double want[ROWS * WIDTH];
    for (int i = 0; i < WIDTH; i++) /* eps decides what a row of nothing becomes */
        values[WIDTH + i] = 0;
    for (int row = 0; row < ROWS; row++)
        normalise(values + row * WIDTH, scales, WIDTH, want + row * WIDTH);
    guarded in = guarded_create(device, ROWS * WIDTH * sizeof *values, values);
    guarded weight = guarded_create(device, WIDTH * sizeof *scales, scales);
    guarded out = guarded_create(device, ROWS * WIDTH * sizeof *values, NULL);
    cr_assert(layers_rms_norm(&l, in.mem, weight.mem, out.mem, ROWS, WIDTH, EPS, &error), "%s", error.text);
    check("rms_norm", &out, want, ROWS * WIDTH);
    cr_assert(layers_rms_norm(&l, in.mem, weight.mem, in.mem, ROWS, WIDTH, EPS, &error), "%s", error.text);
    check("rms_norm in place", &in, want, ROWS * WIDTH);
    guarded_destroy(&weight);
    free(values);
    free(scales);
}

Test(generate_layers, norm_rotate) {
    enum { ROW = (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM };
    static const int32_t positions[ROWS] = {0, 1, 2047};
    static double want[ROWS * ROW];
    const model_config config = {
        .num_heads = NUM_HEADS, .num_kv_heads = NUM_KV_HEADS, .head_dim = HEAD_DIM, .rms_norm_eps = EPS};
    float *values = random_values(ROWS * ROW);
    float *q_scales = random_values(HEAD_DIM);
    float *k_scales = random_values(HEAD_DIM);
    float frequencies[HEAD_DIM / 2];
    for (int i = 0; i < HEAD_DIM / 2; i++)
        frequencies[i] = (float)pow(10000, -2.0 * i / HEAD_DIM);
    for (int i = 0; i < ROWS * ROW; i++)
        want[i] = values[i];
    for (int row = 0; row < ROWS; row++)
        for (int head = 0; head < NUM_HEADS + NUM_KV_HEADS; head++) {
            double *x = want + row * ROW + head * HEAD_DIM;
            double normed[HEAD_DIM];
            normalise(values + row * ROW + head * HEAD_DIM, head < NUM_HEADS ? q_scales : k_scales, HEAD_DIM, normed);
            for (int i = 0; i < HEAD_DIM / 2; i++) {
                float angle = (float)positions[row] * frequencies[i]; /* rounded, as models are trained */
                x[i] = normed[i] * cos(angle) - normed[i + HEAD_DIM / 2] * sin(angle);
                x[i + HEAD_DIM / 2] = normed[i + HEAD_DIM / 2] * cos(angle) + normed[i] * sin(angle);
            }
        }
    guarded qkv = guarded_create(device, ROWS * ROW * sizeof *values, values);
    guarded q_norm = guarded_create(device, HEAD_DIM * sizeof *q_scales, q_scales);
    guarded k_norm = guarded_create(device, HEAD_DIM * sizeof *k_scales, k_scales);
    guarded rates = guarded_create(device, sizeof frequencies, frequencies);
    guarded places = guarded_create(device, sizeof positions, positions);
    cr_assert(layers_norm_rotate(&l, qkv.mem, q_norm.mem, k_norm.mem, rates.mem, places.mem, ROWS, &config, &error),
              "%s", error.text);
    check("norm_rotate", &qkv, want, ROWS * ROW);
    guarded_destroy(&q_norm);
    guarded_destroy(&k_norm);
    guarded_destroy(&rates);
    guarded_destroy(&places);
    free(values);
    free(q_scales);
    free(k_scales);
}

Test(generate_layers, silu_multiply) {
    float *values = random_values(ROWS * 2 * WIDTH);
    double want[ROWS * WIDTH];
    values[0] = 100; /* e^-x is 0 */
    values[1] = -100;
    values[2] = -1e30f; /* and infinite */
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < WIDTH; i++) {
            double gate = values[row * 2 * WIDTH + i];
            want[row * WIDTH + i] = gate / (1 + exp(-gate)) * values[(row * 2 + 1) * WIDTH + i];
        }
    guarded in = guarded_create(device, ROWS * 2 * WIDTH * sizeof *values, values);
    guarded out = guarded_create(device, ROWS * WIDTH * sizeof *values, NULL);
    cr_assert(layers_silu_multiply(&l, in.mem, out.mem, ROWS, WIDTH, &error), "%s", error.text);
    check("silu_multiply", &out, want, ROWS * WIDTH);
    guarded_destroy(&in);
    free(values);
}
