/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators and batches drawn at random from all that the contract allows, against the reference. TEST_SEED chooses
 * them, TEST_CASES says how many operators, or TEST_SECONDS for how long; operator i of a seed is operator 0 of
 * seed + i. While a batch runs, its case file lies in the current folder, where the format can say it: what fails or
 * crashes leaves it there for `pagedcl replay`.
 */
#include "support/attn_rig.h"
#include "support/case_writer.h"
#include "support/elements.h"
#include "support/expect.h"
#include "support/random.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_SEQS = 5, BATCHES = 8, DEFAULT_CASES = 8 };

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define ONE_OF(state, ...) \
    one_of(state, (const int32_t[]){__VA_ARGS__}, (int32_t)COUNT(((const int32_t[]){__VA_ARGS__})))

static int32_t one_of(random_state *state, const int32_t *values, int32_t count) {
    return values[random_below(state, count)];
}

static bool one_in(random_state *state, int32_t n) {
    return random_below(state, n) == 0;
}

static pagedcl_dtype draw_dtype(random_state *state) {
    return (pagedcl_dtype)ONE_OF(state, PAGEDCL_FLOAT32, PAGEDCL_FLOAT16, PAGEDCL_BFLOAT16);
}

/* Mostly small heads, since the reference is slow; now and then the largest. */
static void draw_shape(random_state *state, attn_case *c) {
    c->num_kv_heads = ONE_OF(state, 1, 2, 3);
    c->group = ONE_OF(state, 1, 2, 3, 5, 7, 7, 16);
    c->head_dim = ONE_OF(state, 1, 3, 8, 12, 17, 24, 40, 64, 80, 100);
    c->head_dim_v = one_in(state, 4) ? ONE_OF(state, 1, 5, 8, 20, 64, 96) : c->head_dim;
    if (one_in(state, 10)) {
        c->num_kv_heads = ONE_OF(state, 1, 1, 2);
        c->group = ONE_OF(state, 1, 2, 3);
        c->head_dim = ONE_OF(state, 112, 120, 128, 192, 256, 257, 320, 512, 576);
        c->head_dim_v = one_in(state, 3) ? ONE_OF(state, 64, 128, 384, 576) : c->head_dim;
    }
    c->block_size = ONE_OF(state, 1, 2, 5, 16, 33);
}

/* Where the keys of a pool lie, and as what. */
static void draw_pool(random_state *state, attn_case *c) {
    c->v_in_k = c->head_dim_v <= c->head_dim && one_in(state, 6);
    if (one_in(state, 24)) { /* latent attention */
        c->num_kv_heads = 1;
        c->group = 16;
        c->head_dim = 576;
        c->head_dim_v = 512;
        c->v_in_k = true;
    }
    c->num_layers = 1 + random_below(state, 2);
    c->pool = (pool_form)random_below(state, 5);
    if (c->pool == POOL_INTERLEAVED && (c->head_dim != c->head_dim_v || c->v_in_k))
        c->pool = POOL_WITH_GAPS;
    if (one_in(state, 5)) {
        c->kv_dtype = (pagedcl_dtype)ONE_OF(state, PAGEDCL_INT8, PAGEDCL_FLOAT8_E4M3, PAGEDCL_FLOAT8_E5M2);
        c->k_scale = 1.0f / (float)ONE_OF(state, 1, 32, 64);
        c->v_scale = c->v_in_k ? c->k_scale : 1.0f / (float)ONE_OF(state, 1, 16, 32);
    } else if (one_in(state, 8)) {
        c->kv_dtype = PAGEDCL_INT4;
        c->pool = one_in(state, 2) ? POOL_OF_LIBRARY : POOL_OF_LIBRARY_HND;
    }
}

/* What stays while the lengths change. A pool is to have so many segments, 0: as few as will do. */
static attn_case draw_operator(random_state *state, int32_t window[2], int32_t *segments) {
    attn_case c = {.path = (attn_path)random_below(state, 3)};
    draw_shape(state, &c);
    c.q_dtype = draw_dtype(state);
    c.kv_dtype = one_in(state, 2) ? c.q_dtype : draw_dtype(state);
    if (c.path != VARLEN_PACKED)
        draw_pool(state, &c);
    c.out_dtype = one_in(state, 3) ? c.q_dtype : PAGEDCL_FLOAT32;
    c.causal = random_below(state, 2);
    c.softcap = one_in(state, 4) ? (float)ONE_OF(state, 1, 5, 50) : 0;
    c.alibi = one_in(state, 3) ? 1 + random_below(state, 2) : 0;
    c.sinks = one_in(state, 3);
    c.tree = one_in(state, 4);
    if (one_in(state, 3)) {
        c.rotary_dim = 2 * random_below(state, c.head_dim / 2 + 1);
        c.rotary_interleaved = c.rotary_dim && one_in(state, 2);
    }
    if (one_in(state, 2)) {
        window[0] = ONE_OF(state, -1, 0, 1, 6, 40, 200);
        window[1] = c.causal ? ONE_OF(state, -1, 0, 9) : ONE_OF(state, -1, 0, 3, 50);
        c.window = window;
    }
    c.layout = (strided_layout)random_below(state, 2);
    c.without_lse = one_in(state, 5);
    c.released = c.path != VARLEN_PACKED && c.window && window[0] >= 0 && one_in(state, 2);
    bool of_library = c.path != VARLEN_PACKED && !pool_form_is_adopted(c.pool);
    *segments = of_library && one_in(state, 2) ? ONE_OF(state, 2, 4, 8) : 0;
    c.device_table = c.path != VARLEN_PACKED && one_in(state, 3);
    return c;
}

/* The blocks of a segment, if `segments` of them are to hold the batch: what the library allocates is a power of two. */
static int32_t blocks_of_segment(const attn_case *c, int32_t segments) {
    int32_t blocks = 3, segment = 1;
    for (int32_t b = 0; b < c->num_seqs; b++)
        blocks += (c->seqlens_k[b] + c->block_size - 1) / c->block_size;
    while (segment * segments < blocks)
        segment *= 2;
    return segment;
}

/* Up to two entries of a table on the device that name no block. */
static void spoil_table(random_state *state, attn_problem *p) {
    for (int32_t i = p->c.device_table ? random_below(state, 3) : 0; i > 0; i--)
        p->block_table[random_below(state, p->c.num_seqs * p->block_table_stride)] =
            ONE_OF(state, -1, -5, p->num_blocks, INT32_MAX, INT32_MIN);
}

/* The lengths of one batch; the arrays have room for MAX_SEQS. */
static void draw_batch(random_state *state, attn_case *c, int32_t segments, int32_t *seqlens_q, int32_t *seqlens_k) {
    c->num_seqs = 1 + random_below(state, MAX_SEQS);
    c->seqlens_q = seqlens_q;
    c->seqlens_k = seqlens_k;
    c->seqlen_q = ONE_OF(state, 1, 1, 1, 2, 5, 34);
    c->num_splits = ONE_OF(state, 0, 0, 1, 2, 5, 300);
    c->shared = c->path == DECODE && one_in(state, 4) ? ONE_OF(state, 520, 1100) : 0;
    bool can_share = c->path == DECODE && c->num_splits == 0 && !c->device_table;
    c->share_prefix = can_share ? (pagedcl_sharing)random_below(state, 3) : PAGEDCL_SHARE_AUTO;
    /* What an int4 pool makes of rotated keys is not known exactly. */
    bool append = c->path != VARLEN_PACKED && (c->kv_dtype != PAGEDCL_INT4 || !c->rotary_dim);
    c->append = append ? random_below(state, 2) : 0;
    if (c->path == DECODE && c->append)
        c->append = one_in(state, 3) ? ONE_OF(state, 1, 3, 20) : c->seqlen_q;
    for (int32_t b = 0; b < c->num_seqs; b++) {
        seqlens_q[b] = c->path == DECODE ? c->seqlen_q : ONE_OF(state, 0, 1, 1, 4, 33, 70);
        int32_t least = c->path == DECODE ? c->append : c->append ? seqlens_q[b] : 0;
        if (c->rotary_dim && least < seqlens_q[b])
            least = seqlens_q[b];
        int32_t more = ONE_OF(state, 0, 1, c->block_size, 2 * c->block_size + 1, 31, 32, 64, 300);
        seqlens_k[b] = least + more + c->shared;
        if (c->path == DECODE && one_in(state, 8))
            seqlens_k[b] += 512;
    }
    c->segment_blocks = segments ? blocks_of_segment(c, segments) : 0;
}

/* ---- a case for people ---- */

static void print_case(const attn_problem *p, bool unordered) {
    static const char *const paths[] = {"packed", "paged", "decode"};
    const attn_case *c = &p->c;
    fprintf(
        stderr,
        "%s: %s, %d/%d heads of %d/%d, block_size %d, dtypes q %d kv %d out %d, causal %d, softcap %g, alibi %d, "
        "sinks %d, tree %d, rotary_dim %d%s, window %d %d%s, layout %d, lse %d, v_in_k %d, layers %d, pool %d, "
        "segment_blocks %d, scales %g %g, table on the %s, append %d, num_splits %d, shared %d %d, %s queue, seqlens_q/"
        "seqlens_k",
        c->name, paths[c->path], p->num_heads, c->num_kv_heads, c->head_dim, c->head_dim_v, c->block_size,
        (int)c->q_dtype, (int)c->kv_dtype, (int)c->out_dtype, c->causal, (double)c->softcap, c->alibi, c->sinks,
        c->tree, c->rotary_dim, c->rotary_interleaved ? " interleaved" : "", c->window ? c->window[0] : -1,
        c->window ? c->window[1] : -1, c->released ? " released" : "", (int)c->layout, !c->without_lse, c->v_in_k,
        c->num_layers, (int)c->pool, c->segment_blocks, (double)c->k_scale, (double)c->v_scale,
        c->device_table ? "device" : "host", c->append, c->num_splits, c->shared, (int)c->share_prefix,
        unordered ? "unordered" : "ordered");
    for (int32_t b = 0; b < c->num_seqs; b++)
        fprintf(stderr, " %d/%d", p->cu_seqlens_q[b + 1] - p->cu_seqlens_q[b],
                p->cu_seqlens_k[b + 1] - p->cu_seqlens_k[b]);
    fprintf(stderr, "\n");
}

/* ---- a case for `pagedcl replay` ---- */

typedef struct case_tensors {
    case_tensor list[24];
    char dims[24][64];
    size_t count;
} case_tensors;

static const char *dtype_name(pagedcl_dtype dtype) {
    return dtype == PAGEDCL_FLOAT16 ? "F16" : dtype == PAGEDCL_BFLOAT16 ? "BF16" : "F32";
}

/* Up to four dimensions; those that are -1 are none. */
static void add(case_tensors *tensors, const char *name, const char *dtype, size_t element, const void *data,
                const int64_t dims[4]) {
    size_t i = tensors->count++, used = 0, bytes = element;
    cr_assert_lt(i, COUNT(tensors->list));
    for (int d = 0; d < 4; d++) {
        if (dims[d] < 0)
            continue;
        bytes *= (size_t)dims[d];
        used += (size_t)snprintf(tensors->dims[i] + used, sizeof(tensors->dims[i]) - used, "%s%" PRId64,
                                 used ? "," : "", dims[d]);
    }
    void *copy = fixture_alloc(bytes);
    if (bytes > 0)
        memcpy(copy, data, bytes);
    tensors->list[i] = (case_tensor){name, dtype, tensors->dims[i], copy, bytes};
}
#define DIMS(...) ((const int64_t[4]){__VA_ARGS__})

static int64_t count_of(const int64_t dims[4]) {
    int64_t count = 1;
    for (int d = 0; d < 4; d++)
        count *= dims[d] < 0 ? 1 : dims[d];
    return count;
}

static void add_elements(case_tensors *tensors, const char *name, pagedcl_dtype dtype, const float *values,
                         const int64_t dims[4]) {
    void *elements = fixture_alloc((size_t)count_of(dims) * sizeof(float));
    elements_from_floats(dtype, values, count_of(dims), elements);
    add(tensors, name, dtype_name(dtype), pagedcl_dtype_size(dtype), elements, dims);
    free(elements);
}

static void add_doubles(case_tensors *tensors, const char *name, const double *values, const int64_t dims[4]) {
    float *floats = fixture_alloc((size_t)count_of(dims) * sizeof(float));
    for (int64_t i = 0; i < count_of(dims); i++)
        floats[i] = (float)values[i];
    add_elements(tensors, name, PAGEDCL_FLOAT32, floats, dims);
    free(floats);
}

/* Whether the format of the case files has all that the case needs. */
static bool is_expressible(const attn_case *c) {
    bool decode = c->path == DECODE;
    return c->head_dim == c->head_dim_v && !c->v_in_k && !is_quantized(c->kv_dtype) && !c->tree && c->alibi != 2 &&
           (decode || !c->rotary_dim) && (decode || !c->append) && !c->device_table;
}

static void add_pool(case_tensors *tensors, const attn_problem *p, bool after) {
    pool_model pool = attn_problem_pool(p, after);
    size_t element = pagedcl_dtype_size(p->c.kv_dtype);
    const char *dtype = dtype_name(p->c.kv_dtype);
    const int64_t dims[4] = {p->num_blocks, p->c.block_size, p->c.num_kv_heads, p->c.head_dim};
    int32_t layer = p->c.num_layers - 1;
    add(tensors, after ? "expect.k_cache" : "k_cache", dtype, element, pool_model_k(&pool, layer, 0), dims);
    add(tensors, after ? "expect.v_cache" : "v_cache", dtype, element, pool_model_v(&pool, layer, 0), dims);
    pool_model_destroy(&pool);
}

static void add_answer(case_tensors *tensors, const attn_problem *p) {
    double *out, *lse;
    attn_reference(p, &out, &lse);
    if (p->c.path == DECODE) {
        add_doubles(tensors, "expect.out", out, DIMS(p->c.num_seqs, p->c.seqlen_q, p->num_heads, p->c.head_dim));
        add_doubles(tensors, "expect.lse", lse, DIMS(p->c.num_seqs, p->c.seqlen_q, p->num_heads, -1));
    } else {
        add_doubles(tensors, "expect.out", out, DIMS(attn_total_q(p), p->num_heads, p->c.head_dim, -1));
        add_doubles(tensors, "expect.lse", lse, DIMS(attn_total_q(p), p->num_heads, -1, -1));
    }
    free(out);
    free(lse);
}

static void add_keys(case_tensors *tensors, const attn_problem *p) {
    int64_t seqs = p->c.num_seqs, heads = p->c.num_kv_heads, dim = p->c.head_dim;
    if (p->c.path == VARLEN_PACKED) {
        add_elements(tensors, "k", p->c.kv_dtype, p->k, DIMS(attn_total_k(p), heads, dim, -1));
        add_elements(tensors, "v", p->c.kv_dtype, p->v, DIMS(attn_total_k(p), heads, dim, -1));
        add(tensors, "cu_seqlens_k", "I32", 4, p->cu_seqlens_k, DIMS(seqs + 1, -1, -1, -1));
        return;
    }
    add_pool(tensors, p, false);
    add_pool(tensors, p, true);
    add(tensors, "block_table", "I32", 4, p->block_table, DIMS(seqs, p->block_table_stride, -1, -1));
    add(tensors, "cache_seqlens", "I32", 4, p->cache_seqlens, DIMS(seqs, -1, -1, -1));
    if (p->total_new > 0) {
        add_elements(tensors, "k_new", p->c.q_dtype, p->k_new, DIMS(seqs, p->c.append, heads, dim));
        add_elements(tensors, "v_new", p->c.q_dtype, p->v_new, DIMS(seqs, p->c.append, heads, dim));
    }
}

static void write_case(const attn_problem *p, const char *path) {
    const attn_case *c = &p->c;
    case_tensors tensors = {.count = 0};
    if (c->path == DECODE) {
        add_elements(&tensors, "q", c->q_dtype, p->q, DIMS(c->num_seqs, c->seqlen_q, p->num_heads, c->head_dim));
    } else {
        add_elements(&tensors, "q", c->q_dtype, p->q, DIMS(attn_total_q(p), p->num_heads, c->head_dim, -1));
        add(&tensors, "cu_seqlens_q", "I32", 4, p->cu_seqlens_q, DIMS(c->num_seqs + 1, -1, -1, -1));
    }
    add_keys(&tensors, p);
    if (c->alibi)
        add_elements(&tensors, "alibi_slopes", PAGEDCL_FLOAT32, p->alibi_slopes, DIMS(p->num_heads, -1, -1, -1));
    if (c->sinks)
        add_elements(&tensors, "sinks", PAGEDCL_FLOAT32, p->sinks, DIMS(p->num_heads, -1, -1, -1));
    if (c->rotary_dim) {
        const int64_t *dims = DIMS(attn_rotary_positions(p), c->rotary_dim / 2, -1, -1);
        add_elements(&tensors, "rotary_cos", PAGEDCL_FLOAT32, p->rotary_cos, dims);
        add_elements(&tensors, "rotary_sin", PAGEDCL_FLOAT32, p->rotary_sin, dims);
    }
    add_answer(&tensors, p);

    char metadata[512];
    tolerance allowed = tolerance_of(PAGEDCL_FLOAT32); /* replay's output is float32 */
    snprintf(metadata, sizeof metadata,
             "{\"case\":\"1\",\"op\":\"%s\",\"softmax_scale\":\"%.9g\",\"causal\":\"%d\",\"window_left\":\"%d\","
             "\"window_right\":\"%d\",\"softcap\":\"%.9g\",\"num_splits\":\"%d\",\"rotary_interleaved\":\"%d\","
             "\"atol\":\"%g\",\"rtol\":\"%g\"}",
             c->path == DECODE ? "decode" : "varlen", (double)c->scale, c->causal, c->window ? c->window[0] : -1,
             c->window ? c->window[1] : -1, (double)c->softcap, c->num_splits, c->rotary_interleaved, allowed.absolute,
             allowed.relative);
    case_writer_tensors(path, metadata, tensors.list, tensors.count);
    for (size_t i = 0; i < tensors.count; i++)
        free((void *)tensors.list[i].data);
}

/* ---- the test ---- */

/* The number in an environment variable, or another one. */
static uint64_t number_of(const char *variable, uint64_t otherwise) {
    const char *text = getenv(variable);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

/* On a queue that promises no order, two runs in a row: the second finds the tokens that the first has stored. */
static attn_result solve(pagedcl_device *device, pagedcl_tier tier, const attn_problem *p, bool unordered) {
    if (!unordered)
        return attn_solve(device, tier, p);
    cl_int code;
    cl_command_queue queue = clCreateCommandQueue(pagedcl_device_context(device), pagedcl_device_id(device),
                                                  CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
    if (code == CL_INVALID_QUEUE_PROPERTIES) /* the device has no such queues */
        return attn_solve(device, tier, p);
    expect_cl(code);
    attn_rig rig = attn_rig_open(device, tier, p);
    expect_ok(attn_rig_plan(&rig, queue));
    attn_rig_run(&rig, queue, 0, NULL, NULL);
    cl_event done;
    attn_rig_run(&rig, queue, 0, NULL, &done);
    expect_cl(clWaitForEvents(1, &done));
    expect_cl(clReleaseEvent(done));
    attn_result result = attn_rig_read(&rig);
    attn_rig_close(&rig);
    expect_cl(clReleaseCommandQueue(queue));
    return result;
}

static void check_batch(pagedcl_device *device, const attn_problem *p, bool unordered) {
    pagedcl_tier tiers[FIXTURE_MAX_TIERS];
    for (int t = 0, n = fixture_tiers(device, tiers); t < n; t++) {
        char name[128];
        snprintf(name, sizeof name, "%s, %s", p->c.name, pagedcl_tier_name(tiers[t]));
        attn_result result = solve(device, tiers[t], p, unordered);
        attn_expect_reference(p, &result, name);
        attn_result_destroy(&result);
    }
}

static void check_operator(pagedcl_device *device, uint64_t seed) {
    random_state state = {seed};
    int32_t window[2], segments, seqlens_q[MAX_SEQS], seqlens_k[MAX_SEQS];
    attn_case c = draw_operator(&state, window, &segments);
    for (int batch = 0; batch < BATCHES; batch++) {
        char name[64], path[96];
        snprintf(name, sizeof name, "TEST_SEED=%" PRIu64 " TEST_CASES=1, batch %d", seed, batch);
        snprintf(path, sizeof path, "attn-random-%" PRIu64 "-%d.safetensors", seed, batch);
        c.name = name;
        draw_batch(&state, &c, segments, seqlens_q, seqlens_k);
        attn_problem p = attn_problem_create(&c, random_bits(&state));
        bool unordered = one_in(&state, 4);
        spoil_table(&state, &p);
        print_case(&p, unordered);
        if (is_expressible(&p.c))
            write_case(&p, path);
        check_batch(device, &p, unordered);
        remove(path);
        attn_problem_destroy(&p);
    }
}

Test(attn_random, operators_and_batches) {
    uint64_t seed = number_of("TEST_SEED", 1), seconds = number_of("TEST_SECONDS", 0);
    uint64_t cases = number_of("TEST_CASES", seconds ? UINT64_MAX : DEFAULT_CASES), done = 0;
    time_t start = time(NULL);
    fprintf(stderr, "TEST_SEED=%" PRIu64 "\n", seed);
    while (done < cases && (!seconds || time(NULL) - start < (time_t)seconds)) {
        /* What a device holds of an operator's programs goes with it. */
        pagedcl_device *device = fixture_open();
        check_operator(device, seed + done++);
        pagedcl_device_destroy(device);
    }
    fprintf(stderr, "%" PRIu64 " operators, %" PRIu64 " batches in %.0f s, TEST_SEED=%" PRIu64 "\n", done,
            done * BATCHES, difftime(time(NULL), start), seed);
}
