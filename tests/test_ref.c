/* SPDX-License-Identifier: Apache-2.0 */
/* The reference and the bench itself, proved by laws, by numbers worked by hand, and by the golden cases. */
#include "ref/ref_attn.h"
#include "support/compare.h"
#include "support/elements.h"
#include "support/fixture.h"
#include "support/random.h"

#include "float16.h"
#include "safetensors.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS = 7, DIM = 8, HEADS = 6, KV_HEADS = 2 };

static const ref_attn attn = {.num_heads = HEADS, .num_kv_heads = KV_HEADS, .head_dim = DIM, .scale = 0.25};

/* Three queries over seven keys, all random. */
static struct {
    float q[3 * HEADS * DIM];
    float k[KEYS * KV_HEADS * DIM];
    float v[KEYS * KV_HEADS * DIM];
    double out[3 * HEADS * DIM];
    double lse[3 * HEADS];
} x;

static void fill(float *values, size_t count, uint64_t seed) {
    random_state state = {seed};
    for (size_t i = 0; i < count; i++)
        values[i] = random_normal(&state);
}

static void randomize(void) {
    fill(x.q, sizeof(x.q) / sizeof(float), 1);
    fill(x.k, sizeof(x.k) / sizeof(float), 2);
    fill(x.v, sizeof(x.v) / sizeof(float), 3);
}

static void expect_near(const char *what, double got, double want) {
    cr_assert(fabs(got - want) <= 1e-14 * fmax(1, fabs(want)), "%s: got %.17g, want %.17g", what, got, want);
}

TestSuite(ref, .init = randomize);

Test(ref, constant_value_comes_back) {
    for (int i = 0; i < KEYS * KV_HEADS * DIM; i++)
        x.v[i] = 0.75f;
    ref_attn_sequence(&attn, x.q, 3, (ref_keys){x.k, x.v, NULL, 0}, KEYS, x.out, x.lse);
    for (int i = 0; i < 3 * HEADS * DIM; i++)
        expect_near("out", x.out[i], 0.75);
}

Test(ref, one_key_gives_its_value_and_its_score) {
    ref_attn_sequence(&attn, x.q, 1, (ref_keys){x.k, x.v, NULL, 0}, 1, x.out, x.lse);
    for (int h = 0; h < HEADS; h++) {
        int kv_head = h / 3;
        double score = 0;
        for (int d = 0; d < DIM; d++) {
            expect_near("out", x.out[h * DIM + d], (double)x.v[kv_head * DIM + d]);
            score += 0.25 * (double)x.q[h * DIM + d] * (double)x.k[kv_head * DIM + d];
        }
        expect_near("lse", x.lse[h], score);
    }
}

Test(ref, zero_query_gives_the_mean) {
    memset(x.q, 0, sizeof(x.q));
    ref_attn_sequence(&attn, x.q, 3, (ref_keys){x.k, x.v, NULL, 0}, KEYS, x.out, x.lse);
    for (int h = 0; h < HEADS; h++) {
        expect_near("lse", x.lse[h], log(KEYS));
        for (int d = 0; d < DIM; d++) {
            double mean = 0;
            for (int j = 0; j < KEYS; j++)
                mean += (double)x.v[(j * KV_HEADS + h / 3) * DIM + d] / KEYS;
            expect_near("out", x.out[h * DIM + d], mean);
        }
    }
}

/* Scores 0 and ln 3 weigh 1/4 and 3/4; softmax_scale 2 on a dot product of ln(3)/2 gives that score. */
Test(ref, two_keys_by_hand) {
    ref_attn one = {.num_heads = 1, .num_kv_heads = 1, .head_dim = 2, .scale = 2};
    float q[2] = {1, 0}, k[4] = {0, 5, (float)(log(3) / 2), 7}, v[4] = {4, -8, 8, 0};
    double out[2], lse;
    ref_attn_sequence(&one, q, 1, (ref_keys){k, v, NULL, 0}, 2, out, &lse);
    cr_assert_float_eq(out[0], 7, 1e-6);
    cr_assert_float_eq(out[1], -2, 1e-6);
    cr_assert_float_eq(lse, log(4), 1e-6);
}

/* Five queries, two keys: bottom-right alignment leaves the first three rows without a key. */
Test(ref, more_queries_than_keys) {
    ref_attn causal = {.num_heads = 1, .num_kv_heads = 1, .head_dim = 1, .scale = 1, .causal = true};
    float q[5] = {1, 2, 3, 4, 0}, k[2] = {1, -1}, v[2] = {3, 5};
    double out[5], lse[5];
    ref_attn_sequence(&causal, q, 5, (ref_keys){k, v, NULL, 0}, 2, out, lse);
    for (int i = 0; i < 3; i++)
        cr_assert(out[i] == 0 && lse[i] == -INFINITY, "row %d", i);
    expect_near("row 3 out", out[3], 3);
    expect_near("row 3 lse", lse[3], 4);
    expect_near("row 4 out", out[4], 4);
    expect_near("row 4 lse", lse[4], log(2));
}

/* The design's varlen example: with q = 0 every row is the mean of the keys it sees, and key j's value is j. */
Test(ref, varlen_example) {
    ref_attn causal = {.num_heads = 1, .num_kv_heads = 1, .head_dim = 1, .scale = 1, .causal = true};
    int32_t cu_seqlens_q[4] = {0, 10, 13, 14}, cu_seqlens_k[4] = {0, 0, 1, 8};
    float q[14] = {0}, k[8] = {0}, v[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    double out[14], lse[14];
    ref_attn_varlen(&causal, 3, q, cu_seqlens_q, k, v, cu_seqlens_k, out, lse);
    for (int i = 0; i < 12; i++)
        cr_assert(out[i] == 0 && lse[i] == -INFINITY, "row %d", i);
    expect_near("row 12 out", out[12], 0);
    expect_near("row 12 lse", lse[12], 0);
    expect_near("row 13 out", out[13], 4);
    expect_near("row 13 lse", lse[13], log(7));

    causal.causal = false;
    ref_attn_varlen(&causal, 3, q, cu_seqlens_q, k, v, cu_seqlens_k, out, lse);
    cr_assert(out[9] == 0 && lse[9] == -INFINITY);
    cr_assert(out[10] == 0 && lse[10] == 0);
    expect_near("row 13 out", out[13], 4);
}

Test(ref, block_table_finds_the_same_keys) {
    int32_t table[3] = {3, 0, 2};
    float k[12 * KV_HEADS * DIM], v[12 * KV_HEADS * DIM];
    for (int i = 0; i < 12 * KV_HEADS * DIM; i++)
        k[i] = v[i] = NAN;
    for (int p = 0; p < KEYS; p++) {
        int slot = table[p / 3] * 3 + p % 3;
        memcpy(k + slot * KV_HEADS * DIM, x.k + p * KV_HEADS * DIM, sizeof(float) * KV_HEADS * DIM);
        memcpy(v + slot * KV_HEADS * DIM, x.v + p * KV_HEADS * DIM, sizeof(float) * KV_HEADS * DIM);
    }
    double out[3 * HEADS * DIM], lse[3 * HEADS];
    ref_attn_sequence(&attn, x.q, 3, (ref_keys){x.k, x.v, NULL, 0}, KEYS, x.out, x.lse);
    ref_attn_sequence(&attn, x.q, 3, (ref_keys){k, v, table, 3}, KEYS, out, lse);
    cr_assert_arr_eq(out, x.out, sizeof(out));
    cr_assert_arr_eq(lse, x.lse, sizeof(lse));
}

/* ---- golden cases ---- */

static float *tensor_floats(const safetensors *file, const char *name) {
    const safetensors_tensor *tensor = safetensors_find(file, name);
    cr_assert(tensor, "no tensor %s", name);
    pagedcl_dtype dtype = tensor->dtype == SAFETENSORS_F16    ? PAGEDCL_FLOAT16
                          : tensor->dtype == SAFETENSORS_BF16 ? PAGEDCL_BFLOAT16
                                                              : PAGEDCL_FLOAT32;
    cr_assert(dtype != PAGEDCL_FLOAT32 || tensor->dtype == SAFETENSORS_F32, "%s is no float", name);
    float *floats = fixture_alloc((size_t)tensor->num_elements * sizeof(float));
    elements_to_floats(dtype, tensor->data, tensor->num_elements, floats);
    return floats;
}

static int32_t *tensor_ints(const safetensors *file, const char *name) {
    const safetensors_tensor *tensor = safetensors_find(file, name);
    cr_assert(tensor && tensor->dtype == SAFETENSORS_I32, "no int32 tensor %s", name);
    return memcpy(fixture_alloc(tensor->num_bytes), tensor->data, tensor->num_bytes);
}

static double metadata_number(const safetensors *file, const char *key) {
    const char *value = safetensors_metadata(file, key);
    cr_assert(value, "no metadata %s", key);
    return atof(value);
}

static float *tensor_floats_if_any(const safetensors *file, const char *name) {
    return safetensors_find(file, name) ? tensor_floats(file, name) : NULL;
}

static bool is_attention(const safetensors *file) {
    const char *op = safetensors_metadata(file, "op");
    return op && (!strcmp(op, "varlen") || !strcmp(op, "decode")) && !safetensors_metadata(file, "expect_error");
}

/* The case's answer from the reference must be its answer in the file. */
static void check_golden(const safetensors *file, const char *name) {
    const safetensors_tensor *q_tensor = safetensors_find(file, "q");
    bool decode = !strcmp(safetensors_metadata(file, "op"), "decode");
    bool paged = safetensors_find(file, "block_table") != NULL;
    bool append = safetensors_find(file, "k_new") != NULL;
    const safetensors_tensor *k_tensor = safetensors_find(file, paged ? "k_cache" : "k");
    const safetensors_tensor *angles = safetensors_find(file, "rotary_cos");
    float *slopes = tensor_floats_if_any(file, "alibi_slopes"), *sinks = tensor_floats_if_any(file, "sinks");
    float *cosines = tensor_floats_if_any(file, "rotary_cos"), *sines = tensor_floats_if_any(file, "rotary_sin");
    ref_attn a = {
        .num_heads = (int32_t)q_tensor->shape[q_tensor->num_dims - 2],
        .num_kv_heads = (int32_t)k_tensor->shape[k_tensor->num_dims - 2],
        .head_dim = (int32_t)q_tensor->shape[q_tensor->num_dims - 1],
        .scale = metadata_number(file, "softmax_scale"),
        .causal = metadata_number(file, "causal") != 0,
        .has_window = true,
        .window_left = (int32_t)metadata_number(file, "window_left"),
        .window_right = (int32_t)metadata_number(file, "window_right"),
        .softcap = metadata_number(file, "softcap"),
        .alibi_slopes = slopes,
        .sinks = sinks,
        .rotary_dim = angles ? (int32_t)(2 * angles->shape[1]) : 0,
        .rotary_interleaved = angles && metadata_number(file, "rotary_interleaved") != 0,
        .rotary_cos = cosines,
        .rotary_sin = sines,
    };
    float *q = tensor_floats(file, "q");
    /* With an append the expected caches hold the new rows; that the append puts them there is not the reference's. */
    float *k = tensor_floats(file, !paged ? "k" : append ? "expect.k_cache" : "k_cache");
    float *v = tensor_floats(file, !paged ? "v" : append ? "expect.v_cache" : "v_cache");
    float *want_out = tensor_floats(file, "expect.out"), *want_lse = tensor_floats(file, "expect.lse");
    int32_t *cu_seqlens_q = decode ? NULL : tensor_ints(file, "cu_seqlens_q");
    int32_t *cu_seqlens_k = paged ? NULL : tensor_ints(file, "cu_seqlens_k");
    int32_t *block_table = paged ? tensor_ints(file, "block_table") : NULL;
    int32_t *cache_seqlens = paged ? tensor_ints(file, "cache_seqlens") : NULL;
    int32_t num_seqs = (int32_t)(decode ? q_tensor->shape[0] : safetensors_find(file, "cu_seqlens_q")->shape[0] - 1);

    int64_t rows = q_tensor->num_elements / a.head_dim;
    double *out = fixture_poisoned((size_t)q_tensor->num_elements * sizeof(double));
    double *lse = fixture_poisoned((size_t)rows * sizeof(double));
    for (int32_t b = 0; b < num_seqs; b++) {
        int32_t first = decode ? b * (int32_t)q_tensor->shape[1] : cu_seqlens_q[b];
        int32_t seqlen_q = decode ? (int32_t)q_tensor->shape[1] : cu_seqlens_q[b + 1] - first;
        ref_keys keys = {k, v, NULL, 0};
        int32_t seqlen_k;
        if (paged) {
            keys.block_table = block_table + b * safetensors_find(file, "block_table")->shape[1];
            keys.block_size = (int32_t)k_tensor->shape[1];
            seqlen_k = cache_seqlens[b] + (append ? (int32_t)safetensors_find(file, "k_new")->shape[1] : 0);
        } else {
            int64_t skip = (int64_t)cu_seqlens_k[b] * a.num_kv_heads * a.head_dim;
            keys.k += skip;
            keys.v += skip;
            seqlen_k = cu_seqlens_k[b + 1] - cu_seqlens_k[b];
        }
        int64_t row = (int64_t)first * a.num_heads;
        ref_attn_sequence(&a, q + row * a.head_dim, seqlen_q, keys, seqlen_k, out + row * a.head_dim, lse + row);
    }

    /* The files hold float32 roundings of float64 answers. */
    tolerance rounding = {1e-7, 1e-6};
    const char *text = compare_floats(want_out, out, q_tensor->num_elements, rounding);
    cr_assert(!text, "%s: out: %s", name, text);
    text = compare_floats(want_lse, lse, rows, rounding);
    cr_assert(!text, "%s: lse: %s", name, text);
    void *owned[] = {q,   k,   v,      want_out, want_lse, cu_seqlens_q, cu_seqlens_k, block_table, cache_seqlens,
                     out, lse, slopes, sinks,    cosines,  sines};
    for (size_t i = 0; i < sizeof(owned) / sizeof(owned[0]); i++)
        free(owned[i]);
}

Test(ref, golden_cases) {
    DIR *folder = opendir(TEST_CASES_DIR);
    cr_assert(folder, "no folder %s", TEST_CASES_DIR);
    int checked = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (!strstr(entry->d_name, ".safetensors"))
            continue;
        char path[1024], error[256];
        snprintf(path, sizeof(path), "%s/%s", TEST_CASES_DIR, entry->d_name);
        safetensors *file = safetensors_open(path, error, sizeof(error));
        cr_assert(file, "%s", error);
        if (is_attention(file)) {
            check_golden(file, entry->d_name);
            checked++;
        }
        safetensors_close(file);
    }
    closedir(folder);
    cr_assert_geq(checked, 45, "only %d golden cases were found", checked);
}

/* ---- the bench ---- */

Test(compare, a_planted_nan_fails_the_comparison) {
    double want[4] = {1, 2, 3, 4};
    float got[4] = {1, 2, 3, 4};
    tolerance loose = {1e30, 1e30};
    cr_assert_null(compare_floats(got, want, 4, loose));
    got[2] = NAN;
    const char *text = compare_floats(got, want, 4, loose);
    cr_assert(text && strstr(text, "element 2"), "%s", text ? text : "the NaN passed");
    got[2] = INFINITY;
    cr_assert(compare_floats(got, want, 4, loose), "infinity passed for a finite value");
    want[2] = NAN;
    got[2] = NAN;
    cr_assert(compare_floats(got, want, 4, loose), "NaN passed for NaN");
}

Test(compare, infinities_pass_as_themselves_alone) {
    double want[1] = {-INFINITY};
    tolerance loose = {1e30, 1e30};
    cr_assert_null(compare_floats((float[]){-INFINITY}, want, 1, loose));
    cr_assert(compare_floats((float[]){INFINITY}, want, 1, loose));
    cr_assert(compare_floats((float[]){-3e38f}, want, 1, loose));
    cr_assert(compare_floats((float[]){NAN}, want, 1, loose));
}

Test(compare, the_tolerance_is_the_limit) {
    double want[1] = {2};
    tolerance allowed = {0.25, 0.125};
    cr_assert_null(compare_floats((float[]){2.5f}, want, 1, allowed));
    cr_assert(compare_floats((float[]){2.5000002f}, want, 1, allowed));
    cr_assert(compare_bytes("abc", "abd", 3));
    cr_assert_null(compare_bytes("abc", "abd", 2));
}

Test(compare, sixteen_bit_floats_survive_the_round_trip) {
    for (uint32_t bits = 0; bits <= 0xffff; bits++) {
        float half = float16_to_float((uint16_t)bits), brain = bfloat16_to_float((uint16_t)bits);
        if (!isnan(half))
            cr_assert_eq(float16_from_float(half), bits, "float16 0x%04x", bits);
        if (!isnan(brain))
            cr_assert_eq(bfloat16_from_float(brain), bits, "bfloat16 0x%04x", bits);
    }
    cr_assert(isnan(float16_to_float(float16_from_float(NAN))) && isnan(bfloat16_to_float(bfloat16_from_float(NAN))));
}

/* Half way between two neighbours goes to the even one; a hair beyond goes up. */
Test(compare, rounding_is_to_nearest_even) {
    for (uint32_t bits = 0; bits < 0x7bff; bits++) {
        double low = (double)float16_to_float((uint16_t)bits), high = (double)float16_to_float((uint16_t)(bits + 1));
        float middle = (float)((low + high) / 2);
        cr_assert_eq(float16_from_float(middle), bits + (bits & 1), "float16 0x%04x", bits);
        cr_assert_eq(float16_from_float(nextafterf(middle, INFINITY)), bits + 1, "float16 0x%04x", bits);
        cr_assert_eq(float16_from_float(-nextafterf(middle, 0)), 0x8000 | bits, "float16 0x%04x", bits);
    }
    cr_assert_eq(float16_from_float(65519.996f), 0x7bff);
    cr_assert_eq(float16_from_float(65520.0f), 0x7c00);
    cr_assert_eq(bfloat16_from_float(1.00390625f), 0x3f80);
    cr_assert_eq(bfloat16_from_float(1.01171875f), 0x3f82);
    cr_assert_eq(bfloat16_from_float(3.4e38f), 0x7f80);
}
