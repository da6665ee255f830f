/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include "support/attn_rig.h"
#include "support/elements.h"
#include "support/expect.h"
#include "support/random.h"

#include <pagedcl/merge.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 9, HEADS = 3 };

/* Two partial results and what they merge to. */
typedef struct merging {
    int32_t head_dim;
    pagedcl_dtype dtype;
    float *out[2]; /* [TOKENS, HEADS, head_dim] */
    float lse[2][TOKENS * HEADS];
    double *want_out;
    double want_lse[TOKENS * HEADS];
} merging;

/* Straight from the header's formula. */
static void solve(merging *m) {
    for (int64_t row = 0; row < TOKENS * HEADS; row++) {
        double lse[2] = {(double)m->lse[0][row], (double)m->lse[1][row]}, max = fmax(lse[0], lse[1]), sum = 0;
        double weights[2] = {0, 0};
        for (int side = 0; side < 2; side++) {
            if (lse[side] != -INFINITY)
                weights[side] = exp(lse[side] - max);
            sum += weights[side];
        }
        m->want_lse[row] = sum == 0 ? -INFINITY : max + log(sum);
        for (int64_t i = row * m->head_dim; i < (row + 1) * m->head_dim; i++) {
            m->want_out[i] = 0;
            for (int side = 0; side < 2; side++)
                if (weights[side] != 0)
                    m->want_out[i] += weights[side] / sum * (double)m->out[side][i];
        }
    }
}

/* Rows in which both, one, or none of the sides saw a key, and one far outweighs the other; a side that saw none holds
   NaN. */
static merging merging_create(int32_t head_dim, pagedcl_dtype dtype) {
    merging m = {.head_dim = head_dim, .dtype = dtype};
    random_state state = {(uint64_t)head_dim};
    size_t count = TOKENS * HEADS * (size_t)head_dim;
    m.want_out = fixture_alloc(count * sizeof(double));
    for (int side = 0; side < 2; side++) {
        m.out[side] = fixture_alloc(count * sizeof(float));
        for (int row = 0; row < TOKENS * HEADS; row++) {
            bool empty = row % 5 == 3 || row % 5 == 1 + side;
            m.lse[side][row] = empty ? -INFINITY : (row % 7 == 6 ? 90 * (float)side : 0) + random_normal(&state);
            for (int32_t d = 0; d < head_dim; d++)
                m.out[side][row * head_dim + d] = empty ? NAN : element_round(dtype, random_normal(&state));
        }
    }
    solve(&m);
    return m;
}

static void merging_destroy(merging *m) {
    free(m->out[0]);
    free(m->out[1]);
    free(m->want_out);
}

/* Partial results on the device. */
typedef struct side {
    strided out;
    guarded lse;
    pagedcl_partial partial;
} side;

static side side_create(const pagedcl_device *device, const merging *m, strided_layout layout, const float *out,
                        const float *lse) {
    side s = {.out = strided_create(device, m->dtype, TOKENS, HEADS, m->head_dim, layout, 0, out)};
    float *content = fixture_poisoned((2 + TOKENS * HEADS) * sizeof(float));
    if (lse)
        memcpy(content + 2, lse, TOKENS * HEADS * sizeof(float));
    s.lse = guarded_create(device, (2 + TOKENS * HEADS) * sizeof(float), content);
    free(content);
    s.partial = (pagedcl_partial){.out = s.out.view, .lse = s.lse.mem, .lse_offset = 2};
    return s;
}

static void side_destroy(side *s) {
    strided_destroy(&s->out);
    guarded_destroy(&s->lse);
}

static void expect_merged(const pagedcl_device *device, const merging *m, const side *s, bool with_lse,
                          const char *name) {
    float *out = strided_read(device, &s->out, name), *lse = guarded_read(device, &s->lse, name);
    expect_close(name, "out", out, m->want_out, (int64_t)TOKENS * HEADS * m->head_dim, tolerance_of(m->dtype));
    unsigned char *poison = fixture_poisoned((2 + TOKENS * HEADS) * sizeof(float));
    expect_same_bytes(name, "lse that no row owns", lse, poison, 2 * sizeof(float));
    if (with_lse)
        expect_close(name, "lse", lse + 2, m->want_lse, TOKENS * HEADS, tolerance_of(PAGEDCL_FLOAT32));
    else
        expect_same_bytes(name, "lse", lse, poison, (2 + TOKENS * HEADS) * sizeof(float));
    free(out);
    free(lse);
    free(poison);
}

static pagedcl_merge *merge_create(pagedcl_device *device, int32_t head_dim, pagedcl_dtype dtype) {
    pagedcl_merge_desc desc = PAGEDCL_MERGE_DESC_INIT;
    desc.num_heads = HEADS;
    desc.head_dim = head_dim;
    desc.dtype = dtype;
    pagedcl_merge *merge;
    expect_ok(pagedcl_merge_create(device, &desc, &merge));
    return merge;
}

/* Into a third result, with its LSE or without, into a, into b, and into one's values and the other's LSE. */
static void check_merge(pagedcl_device *device, int32_t head_dim, pagedcl_dtype dtype, strided_layout layout) {
    enum { APART, WITHOUT_LSE, INTO_A, INTO_B, CROSSWISE, TARGETS };
    static const char *const names[TARGETS] = {"apart", "without LSE", "into a", "into b", "crosswise"};
    merging m = merging_create(head_dim, dtype);
    pagedcl_merge *merge = merge_create(device, head_dim, dtype);
    for (int target = 0; target < TARGETS; target++) {
        side sides[3] = {side_create(device, &m, layout, m.out[0], m.lse[0]),
                         side_create(device, &m, layout, m.out[1], m.lse[1]),
                         side_create(device, &m, layout, NULL, NULL)};
        side result = target == INTO_A || target == CROSSWISE ? sides[0] : target == INTO_B ? sides[1] : sides[2];
        if (target == WITHOUT_LSE) {
            result.partial.lse = NULL;
            result.partial.lse_offset = 0;
        }
        if (target == CROSSWISE) {
            result.lse = sides[1].lse;
            result.partial.lse = sides[1].partial.lse;
        }
        expect_ok(pagedcl_merge_run(merge, NULL, TOKENS, &sides[0].partial, &sides[1].partial, &result.partial, 0, NULL,
                                    NULL));
        expect_merged(device, &m, &result, target != WITHOUT_LSE, names[target]);
        for (int i = 0; i < 3; i++)
            side_destroy(&sides[i]);
    }
    pagedcl_merge_destroy(merge);
    merging_destroy(&m);
}

/* B133 among them: both sides empty. With a work-item for a row, as on CPUs, and with several, as on GPUs, where rows
   fill parts of work-groups or more than one, and where a work-group is smaller than a row. */
Test(merge, two_results) {
    pagedcl_device *device = fixture_open();
    const uint64_t most = device->info.max_work_group_size;
    for (int as = 0; as < 3; as++) {
        device->info.kind = as == 0 ? PAGEDCL_DEVICE_CPU : PAGEDCL_DEVICE_DISCRETE_GPU;
        device->info.max_work_group_size = as == 2 && most > 32 ? 32 : most;
        check_merge(device, 24, PAGEDCL_FLOAT32, CONTIGUOUS);
        check_merge(device, 5, PAGEDCL_FLOAT32, WITH_GAPS);
        check_merge(device, 1, PAGEDCL_FLOAT16, CONTIGUOUS);
        check_merge(device, 20, PAGEDCL_FLOAT16, WITH_ALIGNED_GAPS);
        check_merge(device, 128, PAGEDCL_FLOAT16, CONTIGUOUS);
        check_merge(device, 80, PAGEDCL_BFLOAT16, WITH_GAPS);
        check_merge(device, 576, PAGEDCL_BFLOAT16, WITH_GAPS);
        check_merge(device, 576, PAGEDCL_FLOAT32, WITH_ALIGNED_GAPS);
    }
    pagedcl_device_destroy(device);
}

/* The halves of a sequence's keys, each attended to by itself, merge to the whole. */
Test(merge, halves_of_a_sequence) {
    const int32_t seqlen_q[] = {TOKENS}, seqlen_k[] = {70};
    attn_case c = {"halves",          .num_seqs = 1,  .seqlens_q = seqlen_q, .seqlens_k = seqlen_k,
                   .num_kv_heads = 1, .group = HEADS, .head_dim = 24};
    pagedcl_device *device = fixture_open();
    attn_problem whole = attn_problem_create(&c, 1);
    attn_problem first = attn_problem_part(&whole, 0, 0, TOKENS, 30),
                 second = attn_problem_part(&whole, 0, 0, TOKENS, 40);
    memcpy(second.k, whole.k + 30 * 24, 40 * 24 * sizeof(float));
    memcpy(second.v, whole.v + 30 * 24, 40 * 24 * sizeof(float));
    attn_result results[2] = {attn_solve(device, PAGEDCL_TIER_AUTO, &first),
                              attn_solve(device, PAGEDCL_TIER_AUTO, &second)};
    merging m = {.head_dim = 24, .dtype = PAGEDCL_FLOAT32};
    double *want_lse;
    attn_reference(&whole, &m.want_out, &want_lse);
    memcpy(m.want_lse, want_lse, sizeof(m.want_lse));
    side sides[2] = {side_create(device, &m, CONTIGUOUS, results[0].out, results[0].lse),
                     side_create(device, &m, CONTIGUOUS, results[1].out, results[1].lse)};
    pagedcl_merge *merge = merge_create(device, 24, PAGEDCL_FLOAT32);
    expect_ok(
        pagedcl_merge_run(merge, NULL, TOKENS, &sides[0].partial, &sides[1].partial, &sides[0].partial, 0, NULL, NULL));
    expect_merged(device, &m, &sides[0], true, "halves");
    pagedcl_merge_destroy(merge);
    for (int i = 0; i < 2; i++) {
        side_destroy(&sides[i]);
        attn_result_destroy(&results[i]);
    }
    free(m.want_out);
    free(want_lse);
    attn_problem_destroy(&whole);
    attn_problem_destroy(&first);
    attn_problem_destroy(&second);
    pagedcl_device_destroy(device);
}

Test(merge, no_rows_is_no_error) {
    pagedcl_device *device = fixture_open();
    pagedcl_merge *merge = merge_create(device, 8, PAGEDCL_FLOAT32);
    const pagedcl_partial none = {.lse = NULL};
    cl_event event;
    expect_ok(pagedcl_merge_run(merge, NULL, 0, &none, &none, &none, 0, NULL, &event));
    expect_cl(clWaitForEvents(1, &event));
    expect_cl(clReleaseEvent(event));
    pagedcl_merge_destroy(merge);
    pagedcl_merge_destroy(NULL);
    pagedcl_device_destroy(device);
}

Test(merge, impossible_descriptions_are_refused) {
    const struct {
        int32_t num_heads, head_dim, dtype;
        pagedcl_status status;
        const char *words;
    } cases[] = {
        {0, 8, 0, PAGEDCL_INVALID_HEADS, "num_heads"}, {-1, 8, 0, PAGEDCL_INVALID_HEADS, "num_heads"},
        {1, 0, 0, PAGEDCL_UNSUPPORTED, "head_dim"},    {1, 577, 0, PAGEDCL_UNSUPPORTED, "head_dim"},
        {1, 8, 99, PAGEDCL_UNSUPPORTED, "dtype"},
    };
    pagedcl_device *device = fixture_open();
    pagedcl_merge *merge = NULL;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        pagedcl_merge_desc desc = PAGEDCL_MERGE_DESC_INIT;
        desc.num_heads = cases[i].num_heads;
        desc.head_dim = cases[i].head_dim;
        desc.dtype = (pagedcl_dtype)cases[i].dtype;
        expect_refused(pagedcl_merge_create(device, &desc, &merge), cases[i].status, cases[i].words);
    }
    cr_assert_null(merge);
    pagedcl_device_destroy(device);
}

Test(merge, bad_runs_are_refused_and_write_nothing) {
    pagedcl_device *device = fixture_open();
    merging m = merging_create(8, PAGEDCL_FLOAT32);
    pagedcl_merge *merge = merge_create(device, 8, PAGEDCL_FLOAT32);
    side sides[3] = {side_create(device, &m, CONTIGUOUS, m.out[0], m.lse[0]),
                     side_create(device, &m, CONTIGUOUS, m.out[1], m.lse[1]),
                     side_create(device, &m, CONTIGUOUS, NULL, NULL)};
    static const char *const outs[] = {"out_a", "out_b", "out"}, *const lses[] = {"lse_a", "lse_b", "lse"};
    const pagedcl_partial good[3] = {sides[0].partial, sides[1].partial, sides[2].partial};
    for (int i = 0; i < 3; i++) {
        pagedcl_partial partials[3];
#define REFUSED(changed, status, words)                                                                             \
    memcpy(partials, good, sizeof(good));                                                                           \
    changed;                                                                                                        \
    expect_refused(pagedcl_merge_run(merge, NULL, TOKENS, &partials[0], &partials[1], &partials[2], 0, NULL, NULL), \
                   status, words)
        REFUSED(partials[i].out.mem = NULL, PAGEDCL_INVALID_ARGUMENT, outs[i]);
        REFUSED(partials[i].out.offset = -1, PAGEDCL_INVALID_ARGUMENT, outs[i]);
        REFUSED(partials[i].out.offset = 1, PAGEDCL_BUFFER_TOO_SMALL, outs[i]);
        REFUSED(partials[i].out.token_stride = -1, PAGEDCL_INVALID_ARGUMENT, outs[i]);
        REFUSED(partials[i].lse_offset = -1, PAGEDCL_INVALID_ARGUMENT, lses[i]);
        REFUSED(partials[i].lse_offset = 3, PAGEDCL_BUFFER_TOO_SMALL, lses[i]);
        /* Of the result alone the LSE may be NULL, without an offset then. */
        REFUSED(partials[i].lse = NULL, PAGEDCL_INVALID_ARGUMENT, lses[i]);
#undef REFUSED
    }
#define RUN(merge, tokens, a) pagedcl_merge_run(merge, NULL, tokens, a, &good[1], &good[2], 0, NULL, NULL)
    expect_refused(RUN(NULL, TOKENS, &good[0]), PAGEDCL_INVALID_ARGUMENT, "merge is NULL");
    expect_refused(RUN(merge, -1, &good[0]), PAGEDCL_INVALID_ARGUMENT, "num_tokens is -1");
    expect_refused(RUN(merge, TOKENS, NULL), PAGEDCL_INVALID_ARGUMENT, "out_a");
    expect_refused(RUN(merge, INT64_MAX, &good[0]), PAGEDCL_INVALID_ARGUMENT, "num_tokens is 9223372036854775807");
#undef RUN
    unsigned char *out = guarded_read(device, &sides[2].out.buffer, "refused");
    unsigned char *poison = fixture_poisoned(sides[2].out.buffer.bytes);
    expect_same_bytes("refused", "out", out, poison, sides[2].out.buffer.bytes);
    free(out);
    free(poison);
    for (int i = 0; i < 3; i++)
        side_destroy(&sides[i]);
    pagedcl_merge_destroy(merge);
    merging_destroy(&m);
    pagedcl_device_destroy(device);
}
