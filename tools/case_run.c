/* SPDX-License-Identifier: Apache-2.0 */
#include "case_run.h"

#include "difference.h"

#include <pagedcl/merge.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What outputs are filled with before the call: NaN in every dtype, so that a value never written fails. */
enum { FILL_BYTE = 0xff };

/* A device buffer that a call writes. */
typedef struct output {
    cl_mem mem;
    size_t num_bytes;
} output;

typedef struct run {
    const case_file *c;
    case_outcome *outcome;
    pagedcl_device *device;
    cl_command_queue queue;
    pagedcl_cache *cache;
    pagedcl_attn *attn;
    pagedcl_plan *plan;
    cl_mem q;
    cl_mem k;
    cl_mem v;
    cl_mem rotary_cos;
    cl_mem rotary_sin;
    cl_mem alibi_slopes;
    cl_mem sinks;
    cl_mem out_a;
    cl_mem lse_a;
    cl_mem out_b;
    cl_mem lse_b;
    pagedcl_merge *merge;
    output out; /* of attention and merge */
    output lse;
    output k_out; /* of gather */
    output v_out;
    /* Copies, since a tensor of a file need not be aligned. */
    void *cu_seqlens_q;
    void *cu_seqlens_k;
    void *block_table;
    void *cache_seqlens;
    void *slot_mapping;
    void *block_pairs;
} run;

#define TRY(call)                           \
    do {                                    \
        pagedcl_status try_status = (call); \
        if (try_status != PAGEDCL_SUCCESS)  \
            return try_status;              \
    } while (0)

/* The first failure is the one to tell. Returns false. */
__attribute__((format(printf, 2, 3))) static bool fail(run *r, const char *format, ...) {
    if (r->outcome->result == CASE_FAILED)
        return false;
    r->outcome->result = CASE_FAILED;
    va_list args;
    va_start(args, format);
    vsnprintf(r->outcome->message, sizeof r->outcome->message, format, args);
    va_end(args);
    return false;
}

/* A buffer of these bytes, or of FILL_BYTE where bytes is NULL. */
static bool make_buffer(run *r, cl_mem *mem, const void *bytes, size_t num_bytes) {
    size_t size = num_bytes > 0 ? num_bytes : 1; /* OpenCL has no empty buffers */
    void *initial = malloc(size);
    if (!initial)
        return fail(r, "out of memory");
    memset(initial, FILL_BYTE, size);
    if (bytes && num_bytes > 0)
        memcpy(initial, bytes, num_bytes);
    cl_int code;
    *mem = clCreateBuffer(pagedcl_device_context(r->device), CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, size, initial,
                          &code);
    free(initial);
    return code == CL_SUCCESS || fail(r, "clCreateBuffer of %zu bytes returned %d", size, (int)code);
}

static bool make_input(run *r, cl_mem *mem, const safetensors_tensor *tensor) {
    return !tensor || make_buffer(r, mem, tensor->data, tensor->num_bytes);
}

static bool make_output(run *r, output *out, size_t num_bytes) {
    out->num_bytes = num_bytes;
    return make_buffer(r, &out->mem, NULL, num_bytes);
}

static bool copy_array(run *r, void **array, const safetensors_tensor *tensor) {
    if (!tensor)
        return true;
    *array = malloc(tensor->num_bytes + 1);
    if (!*array)
        return fail(r, "out of memory");
    memcpy(*array, tensor->data, tensor->num_bytes);
    return true;
}

/* Everything that is not the library's. */
static bool prepare(run *r) {
    const case_file *c = r->c;
    if (!copy_array(r, &r->cu_seqlens_q, c->cu_seqlens_q) || !copy_array(r, &r->cu_seqlens_k, c->cu_seqlens_k) ||
        !copy_array(r, &r->block_table, c->block_table) || !copy_array(r, &r->cache_seqlens, c->cache_seqlens) ||
        !copy_array(r, &r->slot_mapping, c->slot_mapping) || !copy_array(r, &r->block_pairs, c->block_pairs))
        return false;
    if (!make_input(r, &r->q, c->q) || !make_input(r, &r->k, c->k_new ? c->k_new : c->k) ||
        !make_input(r, &r->v, c->v_new ? c->v_new : c->v))
        return false;
    if (!make_input(r, &r->rotary_cos, c->rotary_cos) || !make_input(r, &r->rotary_sin, c->rotary_sin) ||
        !make_input(r, &r->alibi_slopes, c->alibi_slopes) || !make_input(r, &r->sinks, c->sinks) ||
        !make_input(r, &r->out_a, c->out_a) || !make_input(r, &r->lse_a, c->lse_a) ||
        !make_input(r, &r->out_b, c->out_b) || !make_input(r, &r->lse_b, c->lse_b))
        return false;
    const safetensors_tensor *like_out = c->q ? c->q : c->out_a;
    if (like_out) {
        size_t num_elements = (size_t)like_out->num_elements;
        size_t num_rows_heads = c->head_dim > 0 ? num_elements / (size_t)c->head_dim : 0;
        return make_output(r, &r->out, num_elements * sizeof(float)) &&
               make_output(r, &r->lse, num_rows_heads * sizeof(float));
    }
    if (c->op == CASE_GATHER) {
        size_t num_bytes = c->expect_k ? c->expect_k->num_bytes : c->k_cache->num_bytes;
        return make_output(r, &r->k_out, num_bytes) && make_output(r, &r->v_out, num_bytes);
    }
    return true;
}

static void release(run *r) {
    pagedcl_merge_destroy(r->merge);
    pagedcl_plan_destroy(r->plan);
    pagedcl_attn_destroy(r->attn);
    pagedcl_cache_destroy(r->cache);
    const cl_mem buffers[] = {r->q,       r->k,         r->v,        r->rotary_cos, r->rotary_sin, r->alibi_slopes,
                              r->sinks,   r->out_a,     r->lse_a,    r->out_b,      r->lse_b,      r->out.mem,
                              r->lse.mem, r->k_out.mem, r->v_out.mem};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        if (buffers[i])
            clReleaseMemObject(buffers[i]);
    free(r->cu_seqlens_q);
    free(r->cu_seqlens_k);
    free(r->block_table);
    free(r->cache_seqlens);
    free(r->slot_mapping);
    free(r->block_pairs);
}

static pagedcl_status make_cache(run *r) {
    const case_file *c = r->c;
    pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT;
    desc.num_blocks = c->num_blocks;
    desc.block_size = c->block_size;
    desc.num_kv_heads = c->num_kv_heads;
    desc.head_dim = c->head_dim;
    desc.dtype = case_dtype(c->k_cache);
    TRY(pagedcl_cache_create(r->device, &desc, &r->cache));
    return pagedcl_cache_upload_blocks(r->cache, NULL, 0, NULL, c->num_blocks, c->k_cache->data, c->v_cache->data, 0,
                                       NULL, NULL);
}

static pagedcl_status plan_batch(run *r) {
    const case_file *c = r->c;
    if (c->op == CASE_DECODE) {
        pagedcl_decode_batch batch = PAGEDCL_DECODE_BATCH_INIT;
        batch.num_seqs = c->num_seqs;
        batch.seqlen_q = c->seqlen_q;
        batch.seqlen_new = c->seqlen_new;
        batch.cache_seqlens = r->cache_seqlens;
        batch.block_table = r->block_table;
        batch.block_table_stride = c->block_table->shape[1];
        batch.num_splits = c->num_splits;
        return pagedcl_plan_decode(r->plan, NULL, &batch);
    }
    pagedcl_varlen_batch batch = PAGEDCL_VARLEN_BATCH_INIT;
    batch.num_seqs = c->num_seqs;
    batch.cu_seqlens_q = r->cu_seqlens_q;
    batch.cu_seqlens_k = r->cu_seqlens_k;
    batch.cache_seqlens = r->cache_seqlens;
    batch.block_table = r->block_table;
    batch.block_table_stride = c->block_table ? c->block_table->shape[1] : 0;
    return pagedcl_plan_varlen(r->plan, NULL, &batch);
}

static pagedcl_status call_attention(run *r, pagedcl_tier tier) {
    const case_file *c = r->c;
    pagedcl_attn_desc desc = PAGEDCL_ATTN_DESC_INIT;
    desc.cache = r->cache;
    desc.num_heads = c->num_heads;
    desc.num_kv_heads = c->num_kv_heads;
    desc.head_dim = c->head_dim;
    desc.kv_dtype = case_dtype(c->k_cache ? c->k_cache : c->k);
    desc.q_dtype = case_dtype(c->q);
    desc.out_dtype = PAGEDCL_FLOAT32;
    desc.softmax_scale = c->softmax_scale;
    desc.causal = c->causal;
    desc.paths = c->op == CASE_DECODE ? PAGEDCL_PATH_DECODE : PAGEDCL_PATH_VARLEN;
    if (c->window_left >= 0 || c->window_right >= 0) {
        desc.has_window = 1;
        desc.window_left = c->window_left;
        desc.window_right = c->window_right;
    }
    desc.softcap = c->softcap;
    desc.has_alibi = c->alibi_slopes != NULL;
    desc.has_sinks = c->sinks != NULL;
    if (c->rotary_cos) {
        desc.rotary_dim = (int32_t)(2 * c->rotary_cos->shape[1]);
        desc.rotary_interleaved = c->rotary_interleaved;
    }
    desc.tier = tier;
    TRY(pagedcl_attn_create(r->device, &desc, &r->attn));
    TRY(pagedcl_attn_get_desc(r->attn, &desc));
    r->outcome->tier = desc.tier;
    TRY(pagedcl_plan_create(r->attn, &r->plan));
    TRY(plan_batch(r));

    pagedcl_attn_args args = PAGEDCL_ATTN_ARGS_INIT;
    args.q.mem = r->q;
    args.out.mem = r->out.mem;
    args.lse = r->lse.mem;
    args.alibi_slopes = r->alibi_slopes;
    args.sinks = r->sinks;
    args.rotary_cos = r->rotary_cos;
    args.rotary_sin = r->rotary_sin;
    args.rotary_positions = c->rotary_cos ? c->rotary_cos->shape[0] : 0;
    if (c->k) {
        args.k.mem = r->k;
        args.v.mem = r->v;
    } else if (c->seqlen_new > 0) {
        args.k_new.mem = r->k;
        args.v_new.mem = r->v;
    }
    return pagedcl_attn_run(r->attn, NULL, r->plan, &args, 0, NULL, NULL);
}

static pagedcl_status call_merge(run *r) {
    const case_file *c = r->c;
    pagedcl_merge_desc desc = PAGEDCL_MERGE_DESC_INIT;
    desc.num_heads = c->num_heads;
    desc.head_dim = c->head_dim;
    TRY(pagedcl_merge_create(r->device, &desc, &r->merge));
    const pagedcl_partial a = {.out = {.mem = r->out_a}, .lse = r->lse_a};
    const pagedcl_partial b = {.out = {.mem = r->out_b}, .lse = r->lse_b};
    const pagedcl_partial result = {.out = {.mem = r->out.mem}, .lse = r->lse.mem};
    return pagedcl_merge_run(r->merge, NULL, c->out_a->shape[0], &a, &b, &result, 0, NULL, NULL);
}

static pagedcl_status call(run *r, pagedcl_tier tier) {
    const case_file *c = r->c;
    if (c->k_cache)
        TRY(make_cache(r));
    switch (c->op) {
    case CASE_VARLEN:
    case CASE_DECODE:
        return call_attention(r, tier);
    case CASE_WRITE: {
        pagedcl_tensor k = {.mem = r->k};
        pagedcl_tensor v = {.mem = r->v};
        return pagedcl_cache_write(r->cache, NULL, 0, &k, &v, case_dtype(c->k), r->slot_mapping,
                                   c->slot_mapping->num_elements, 0, NULL, NULL);
    }
    case CASE_GATHER: {
        pagedcl_tensor k = {.mem = r->k_out.mem};
        pagedcl_tensor v = {.mem = r->v_out.mem};
        return pagedcl_cache_gather(r->cache, NULL, 0, r->block_table, c->block_table->shape[1], r->cache_seqlens,
                                    c->num_seqs, &k, &v, 0, NULL, NULL);
    }
    case CASE_COPY_BLOCKS:
        return pagedcl_cache_copy_blocks(r->cache, NULL, r->block_pairs, c->block_pairs->shape[0], 0, NULL, NULL);
    case CASE_MERGE:
        return call_merge(r);
    }
    return PAGEDCL_UNSUPPORTED;
}

/* "[1,0,7]" for an element of the tensor. */
static void format_index(char *text, size_t size, const safetensors_tensor *tensor, int64_t element) {
    int64_t index[SAFETENSORS_MAX_DIMS];
    for (int i = tensor->num_dims - 1; i >= 0; i--) {
        index[i] = element % tensor->shape[i];
        element /= tensor->shape[i];
    }
    size_t used = 0;
    for (int i = 0; i < tensor->num_dims && used < size; i++) {
        int length = snprintf(text + used, size - used, "%s%" PRId64, i == 0 ? "[" : ",", index[i]);
        used += length > 0 ? (size_t)length : 0;
    }
    if (used < size)
        snprintf(text + used, size - used, "]");
}

/* `want` is the tensor that `got` must be like, under the name `name`. */
static bool check(run *r, const char *name, const void *got, const safetensors_tensor *want, bool exact) {
    const case_file *c = r->c;
    tolerance allowed = {exact || (c->atol == 0 && c->rtol == 0), c->atol, c->rtol};
    difference d = difference_of(got, want->data, case_dtype(want), want->num_elements, &allowed);
    if (d.max_error > r->outcome->max_error)
        r->outcome->max_error = d.max_error;
    if (d.count == 0)
        return true;
    char index[128];
    format_index(index, sizeof index, want, d.worst);
    return fail(r, "%s%s is %.9g, expected %.9g; %" PRId64 " of %" PRId64 " values differ", name, index, d.got, d.want,
                d.count, want->num_elements);
}

static void *read_output(run *r, const output *out) {
    void *bytes = malloc(out->num_bytes + 1);
    if (!bytes) {
        fail(r, "out of memory");
        return NULL;
    }
    cl_int code = CL_SUCCESS;
    if (out->num_bytes > 0)
        code = clEnqueueReadBuffer(r->queue, out->mem, CL_TRUE, 0, out->num_bytes, bytes, 0, NULL, NULL);
    if (code != CL_SUCCESS) {
        fail(r, "clEnqueueReadBuffer returned %d", (int)code);
        free(bytes);
        return NULL;
    }
    return bytes;
}

static void check_output(run *r, const char *name, const output *out, const safetensors_tensor *want) {
    if (!want)
        return;
    void *got = read_output(r, out);
    if (got)
        check(r, name, got, want, false);
    free(got);
}

static void check_untouched(run *r, const char *name, const output *out) {
    if (!out->mem)
        return;
    unsigned char *bytes = read_output(r, out);
    for (size_t i = 0; bytes && i < out->num_bytes; i++) {
        if (bytes[i] != FILL_BYTE) {
            fail(r, "the call was refused, but wrote %s", name);
            break;
        }
    }
    free(bytes);
}

/* Whether what the case stores goes into the cache as it is, bit for bit. */
static bool stores_exactly(const case_file *c) {
    const safetensors_tensor *stored = c->op == CASE_WRITE ? c->k : c->k_new;
    return !stored || (stored->dtype == c->k_cache->dtype && !c->rotary_cos);
}

/* The pool must be as the case says, or as it was: a slot that no token went into keeps its bytes, NaN or not. */
static void check_cache(run *r) {
    const case_file *c = r->c;
    if (!r->cache)
        return;
    void *k = malloc(c->k_cache->num_bytes + 1);
    void *v = malloc(c->v_cache->num_bytes + 1);
    if (!k || !v) {
        fail(r, "out of memory");
    } else if (pagedcl_cache_download_blocks(r->cache, NULL, 0, NULL, c->num_blocks, k, v, 0, NULL, NULL) !=
               PAGEDCL_SUCCESS) {
        fail(r, "the cache could not be read: %s", pagedcl_last_error());
    } else {
        cl_int code = clFinish(r->queue);
        bool exact = !c->expect_k_cache || stores_exactly(c);
        if (code != CL_SUCCESS)
            fail(r, "clFinish returned %d", (int)code);
        else if (check(r, "k_cache", k, c->expect_k_cache ? c->expect_k_cache : c->k_cache, exact))
            check(r, "v_cache", v, c->expect_v_cache ? c->expect_v_cache : c->v_cache, exact);
    }
    free(k);
    free(v);
}

/* Whether the status says that the caller was wrong. */
static bool is_refusal(pagedcl_status status) {
    switch (status) {
    case PAGEDCL_INVALID_ARGUMENT:
    case PAGEDCL_INVALID_HANDLE:
    case PAGEDCL_INVALID_HEADS:
    case PAGEDCL_INVALID_LENGTH:
    case PAGEDCL_INVALID_BLOCK:
    case PAGEDCL_INVALID_SLOT:
    case PAGEDCL_CAPACITY:
    case PAGEDCL_BUFFER_TOO_SMALL:
    case PAGEDCL_SIZE_OVERFLOW:
    case PAGEDCL_UNSUPPORTED:
    case PAGEDCL_POOL_TOO_LARGE:
        return true;
    default:
        return false;
    }
}

static void judge(run *r, pagedcl_status status) {
    const case_file *c = r->c;
    case_outcome *outcome = r->outcome;
    if (status != PAGEDCL_SUCCESS)
        snprintf(outcome->message, sizeof outcome->message, "%s: %s", pagedcl_status_name(status),
                 pagedcl_last_error());
    if (c->expect_error) {
        if (status == PAGEDCL_SUCCESS)
            fail(r, "the call was accepted, but is to be refused: %s", c->expect_error);
        else if (!is_refusal(status))
            outcome->result = CASE_FAILED;
        check_untouched(r, "out", &r->out);
        check_untouched(r, "lse", &r->lse);
        check_untouched(r, "k", &r->k_out);
        check_untouched(r, "v", &r->v_out);
        check_cache(r);
    } else if (status == PAGEDCL_SUCCESS) {
        check_output(r, "out", &r->out, c->expect_out);
        check_output(r, "lse", &r->lse, c->expect_lse);
        check_output(r, "k", &r->k_out, c->expect_k);
        check_output(r, "v", &r->v_out, c->expect_v);
        check_cache(r);
    } else {
        outcome->result = status == PAGEDCL_UNSUPPORTED ? CASE_UNSUPPORTED : CASE_FAILED;
    }
}

void case_run(pagedcl_device *device, const case_file *file, pagedcl_tier tier, case_outcome *outcome) {
    *outcome = (case_outcome){.result = CASE_PASSED, .tier = PAGEDCL_TIER_AUTO, .max_error = -1};
    const char *feature = case_unsupported_feature(file);
    if (feature) {
        outcome->result = CASE_UNSUPPORTED;
        snprintf(outcome->message, sizeof outcome->message, "needs %s", feature);
        return;
    }
    run r = {.c = file, .outcome = outcome, .device = device, .queue = pagedcl_device_queue(device)};
    if (prepare(&r))
        judge(&r, call(&r, tier));
    clFinish(r.queue); /* an upload that a refused call left behind reads the file's bytes */
    release(&r);
}
