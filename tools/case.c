/* SPDX-License-Identifier: Apache-2.0 */
#include "case.h"

#include "file_error.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const op_names[] = {
    [CASE_VARLEN] = "varlen", [CASE_DECODE] = "decode",           [CASE_WRITE] = "write",
    [CASE_GATHER] = "gather", [CASE_COPY_BLOCKS] = "copy_blocks", [CASE_MERGE] = "merge",
};

enum {
    VARLEN = 1 << CASE_VARLEN,
    DECODE = 1 << CASE_DECODE,
    WRITE = 1 << CASE_WRITE,
    GATHER = 1 << CASE_GATHER,
    COPY_BLOCKS = 1 << CASE_COPY_BLOCKS,
    MERGE = 1 << CASE_MERGE,
};

/*
 * What a tensor must look like. A letter of the shape stands for one size, the same in every tensor; "c" stands for
 * b + 1 and a digit for itself.
 */
typedef struct tensor_rule {
    const char *name;
    const char *shape;
    char element;      /* 'f': F32, F16 or BF16; 's': F32; 'i': I32; 'l': I64 */
    unsigned required; /* the operations that need it */
    unsigned optional; /* the operations that may have it */
    size_t member;     /* where case_file holds it */
} tensor_rule;

#define MEMBER(name) offsetof(case_file, name)
static const tensor_rule tensor_rules[] = {
    {"q", "thd", 'f', VARLEN, 0, MEMBER(q)},
    {"q", "bqhd", 'f', DECODE, 0, MEMBER(q)},
    {"k", "kgd", 'f', WRITE, VARLEN, MEMBER(k)},
    {"v", "kgd", 'f', WRITE, VARLEN, MEMBER(v)},
    {"cu_seqlens_q", "c", 'i', VARLEN, 0, MEMBER(cu_seqlens_q)},
    {"cu_seqlens_k", "c", 'i', 0, VARLEN, MEMBER(cu_seqlens_k)},
    {"k_cache", "NSgd", 'f', DECODE | WRITE | GATHER | COPY_BLOCKS, VARLEN, MEMBER(k_cache)},
    {"v_cache", "NSgd", 'f', DECODE | WRITE | GATHER | COPY_BLOCKS, VARLEN, MEMBER(v_cache)},
    {"block_table", "bm", 'i', DECODE | GATHER, VARLEN, MEMBER(block_table)},
    {"cache_seqlens", "b", 'i', DECODE | GATHER, VARLEN, MEMBER(cache_seqlens)},
    {"k_new", "bngd", 'f', 0, DECODE, MEMBER(k_new)},
    {"v_new", "bngd", 'f', 0, DECODE, MEMBER(v_new)},
    {"rotary_cos", "pr", 's', 0, DECODE, MEMBER(rotary_cos)},
    {"rotary_sin", "pr", 's', 0, DECODE, MEMBER(rotary_sin)},
    {"alibi_slopes", "h", 's', 0, VARLEN | DECODE, MEMBER(alibi_slopes)},
    {"sinks", "h", 's', 0, VARLEN | DECODE, MEMBER(sinks)},
    {"slot_mapping", "k", 'l', WRITE, 0, MEMBER(slot_mapping)},
    {"block_pairs", "x2", 'i', COPY_BLOCKS, 0, MEMBER(block_pairs)},
    {"out_a", "thd", 'f', MERGE, 0, MEMBER(out_a)},
    {"lse_a", "th", 's', MERGE, 0, MEMBER(lse_a)},
    {"out_b", "thd", 'f', MERGE, 0, MEMBER(out_b)},
    {"lse_b", "th", 's', MERGE, 0, MEMBER(lse_b)},
    {"expect.out", "thd", 's', 0, VARLEN | MERGE, MEMBER(expect_out)},
    {"expect.out", "bqhd", 's', 0, DECODE, MEMBER(expect_out)},
    {"expect.lse", "th", 's', 0, VARLEN | MERGE, MEMBER(expect_lse)},
    {"expect.lse", "bqh", 's', 0, DECODE, MEMBER(expect_lse)},
    {"expect.k", "egd", 'f', 0, GATHER, MEMBER(expect_k)},
    {"expect.v", "egd", 'f', 0, GATHER, MEMBER(expect_v)},
    {"expect.k_cache", "NSgd", 'f', 0, VARLEN | DECODE | WRITE | GATHER | COPY_BLOCKS, MEMBER(expect_k_cache)},
    {"expect.v_cache", "NSgd", 'f', 0, VARLEN | DECODE | WRITE | GATHER | COPY_BLOCKS, MEMBER(expect_v_cache)},
};

/* Tensors of one dtype; where `both` is set, neither comes without the other. */
static const struct {
    size_t a;
    size_t b;
    bool both;
} tensor_pairs[] = {
    {MEMBER(k), MEMBER(v), true},
    {MEMBER(k_cache), MEMBER(v_cache), true},
    {MEMBER(k_new), MEMBER(v_new), true},
    {MEMBER(rotary_cos), MEMBER(rotary_sin), true},
    {MEMBER(out_a), MEMBER(out_b), true},
    {MEMBER(expect_k), MEMBER(expect_v), true},
    {MEMBER(expect_k_cache), MEMBER(expect_v_cache), true},
    {MEMBER(expect_k), MEMBER(k_cache), false},
    {MEMBER(expect_k_cache), MEMBER(k_cache), false},
};
#undef MEMBER

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* A case in the making. */
typedef struct reader {
    case_file *c;
    file_error error;
    int64_t sizes['z' + 1]; /* by the letter of the rules; -1 where no tensor had it yet */
} reader;

static const safetensors_tensor **member_of(case_file *c, size_t member) {
    return (const safetensors_tensor **)(void *)((char *)c + member);
}

static const char *rule_name(size_t member) {
    size_t i = 0;
    while (tensor_rules[i].member != member)
        i++;
    return tensor_rules[i].name;
}

static const char *size_name(char letter) {
    switch (letter) {
    case 'b':
        return "the number of sequences";
    case 'q':
        return "the number of query tokens a sequence";
    case 't':
        return "the number of query rows";
    case 'h':
        return "num_heads";
    case 'g':
        return "num_kv_heads";
    case 'd':
        return "head_dim";
    case 'N':
        return "num_blocks";
    case 'S':
        return "block_size";
    case 'k':
        return "the number of key rows";
    default:
        return "its counterpart";
    }
}

static bool check_dimension(reader *r, const safetensors_tensor *tensor, int index, char letter) {
    int64_t size = tensor->shape[index];
    if (size > INT32_MAX)
        return file_fail(&r->error, "%s: dimension %d is %" PRId64 ", beyond 2^31 - 1", tensor->name, index, size);
    if (letter >= '0' && letter <= '9')
        return size == letter - '0' || file_fail(&r->error, "%s: dimension %d is %" PRId64 ", but must be %c",
                                                 tensor->name, index, size, letter);
    if (letter == 'c') {
        if (size == 0)
            return file_fail(&r->error, "%s is empty", tensor->name);
        letter = 'b';
        size--;
    }
    int64_t *known = &r->sizes[(unsigned char)letter];
    if (*known == -1)
        *known = size;
    return *known == size || file_fail(&r->error, "%s: dimension %d makes %s %" PRId64 ", but another tensor %" PRId64,
                                       tensor->name, index, size_name(letter), size, *known);
}

static bool dtype_fits(safetensors_dtype dtype, char element) {
    switch (element) {
    case 'f':
        return dtype == SAFETENSORS_F32 || dtype == SAFETENSORS_F16 || dtype == SAFETENSORS_BF16;
    case 's':
        return dtype == SAFETENSORS_F32;
    case 'i':
        return dtype == SAFETENSORS_I32;
    default:
        return dtype == SAFETENSORS_I64;
    }
}

static bool read_tensor(reader *r, const safetensors_tensor *tensor, const tensor_rule *rule) {
    if (!dtype_fits(tensor->dtype, rule->element))
        return file_fail(&r->error, "%s cannot be of dtype %s", tensor->name, tensor->dtype_name);
    size_t num_dims = strlen(rule->shape);
    if ((size_t)tensor->num_dims != num_dims)
        return file_fail(&r->error, "%s has %d dimensions, but must have %zu", tensor->name, tensor->num_dims,
                         num_dims);
    for (int i = 0; i < tensor->num_dims; i++)
        if (!check_dimension(r, tensor, i, rule->shape[i]))
            return false;
    *member_of(r->c, rule->member) = tensor;
    return true;
}

static bool read_tensors(reader *r) {
    unsigned op = 1u << r->c->op;
    for (size_t t = 0; t < safetensors_count(r->c->file); t++) {
        const safetensors_tensor *tensor = safetensors_at(r->c->file, t);
        const tensor_rule *rule = NULL;
        for (size_t i = 0; i < COUNT(tensor_rules) && !rule; i++)
            if ((tensor_rules[i].required | tensor_rules[i].optional) & op &&
                !strcmp(tensor_rules[i].name, tensor->name))
                rule = &tensor_rules[i];
        if (!rule)
            return file_fail(&r->error, "a %s case has no tensor \"%.80s\"", op_names[r->c->op], tensor->name);
        if (!read_tensor(r, tensor, rule))
            return false;
    }
    for (size_t i = 0; i < COUNT(tensor_rules); i++)
        if (tensor_rules[i].required & op && !*member_of(r->c, tensor_rules[i].member))
            return file_fail(&r->error, "%s is missing", tensor_rules[i].name);
    for (size_t i = 0; i < COUNT(tensor_pairs); i++) {
        const safetensors_tensor *a = *member_of(r->c, tensor_pairs[i].a);
        const safetensors_tensor *b = *member_of(r->c, tensor_pairs[i].b);
        if (tensor_pairs[i].both && !a != !b)
            return file_fail(&r->error, "%s is missing", rule_name(a ? tensor_pairs[i].b : tensor_pairs[i].a));
        if (a && b && a->dtype != b->dtype)
            return file_fail(&r->error, "%s and %s differ in dtype", a->name, b->name);
    }
    return true;
}

/* What the rules of single tensors cannot say. */
static bool check_whole(reader *r) {
    const case_file *c = r->c;
    if (c->op == CASE_VARLEN) {
        bool packed = c->k && c->cu_seqlens_k;
        bool paged = c->k_cache && c->block_table && c->cache_seqlens;
        bool any_packed = c->k || c->cu_seqlens_k;
        bool any_paged = c->k_cache || c->block_table || c->cache_seqlens;
        if (packed == paged || any_packed == any_paged)
            return file_fail(&r->error, "a varlen case has either k, v and cu_seqlens_k, or k_cache, v_cache, "
                                        "block_table and cache_seqlens");
    }
    if (c->expect_k_cache && !c->k_cache)
        return file_fail(&r->error, "k_cache is missing");

    bool expects_values = c->expect_out || c->expect_lse || c->expect_k || c->expect_k_cache;
    if (c->expect_error)
        return !expects_values || file_fail(&r->error, "expects both an error and values");
    switch (c->op) {
    case CASE_VARLEN:
    case CASE_DECODE:
    case CASE_MERGE:
        return c->expect_out || file_fail(&r->error, "expect.out is missing");
    case CASE_WRITE:
    case CASE_COPY_BLOCKS:
        return c->expect_k_cache || file_fail(&r->error, "expect.k_cache is missing");
    case CASE_GATHER:
        return c->expect_k || file_fail(&r->error, "expect.k is missing");
    }
    return false;
}

/* Parameters keep their default where the file has none. */
static bool read_integer(const reader *r, const char *key, int32_t low, int32_t *value) {
    const char *text = safetensors_metadata(r->c->file, key);
    if (!text)
        return true;
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end == text || *end || errno || number < low || number > INT32_MAX)
        return file_fail(&r->error, "%s is \"%.40s\", but must be an integer of at least %" PRId32, key, text, low);
    *value = (int32_t)number;
    return true;
}

static bool read_number(const reader *r, const char *key, double low, double *value) {
    const char *text = safetensors_metadata(r->c->file, key);
    if (!text)
        return true;
    char *end;
    double number = strtod(text, &end);
    if (end == text || *end || !isfinite((float)number) || number < low)
        return file_fail(&r->error, "%s is \"%.40s\", but must be a finite number of at least %g", key, text, low);
    *value = number;
    return true;
}

static bool read_parameters(reader *r) {
    case_file *c = r->c;
    const char *version = safetensors_metadata(c->file, "case");
    if (!version)
        return file_fail(&r->error, "is no case file: __metadata__ has no \"case\"");
    if (strcmp(version, "1") != 0)
        return file_fail(&r->error, "is a case of version \"%.20s\"; this program reads version 1", version);
    const char *op = safetensors_metadata(c->file, "op");
    if (!op)
        return file_fail(&r->error, "__metadata__ has no \"op\"");
    size_t i = 0;
    while (i < COUNT(op_names) && strcmp(op, op_names[i]) != 0)
        i++;
    if (i == COUNT(op_names))
        return file_fail(&r->error, "the operation \"%.40s\" is not known", op);
    c->op = (case_op)i;
    c->expect_error = safetensors_metadata(c->file, "expect_error");

    double softmax_scale = 0;
    double softcap = 0;
    int32_t causal = 0, interleaved = 0;
    c->window_left = c->window_right = -1;
    if (!read_number(r, "softmax_scale", -HUGE_VAL, &softmax_scale) || !read_number(r, "softcap", 0, &softcap) ||
        !read_number(r, "atol", 0, &c->atol) || !read_number(r, "rtol", 0, &c->rtol) ||
        !read_integer(r, "causal", 0, &causal) || !read_integer(r, "rotary_interleaved", 0, &interleaved) ||
        !read_integer(r, "window_left", -1, &c->window_left) ||
        !read_integer(r, "window_right", -1, &c->window_right) || !read_integer(r, "num_splits", 0, &c->num_splits))
        return false;
    if (causal > 1)
        return file_fail(&r->error, "causal is %" PRId32 ", but must be 0 or 1", causal);
    if (interleaved > 1)
        return file_fail(&r->error, "rotary_interleaved is %" PRId32 ", but must be 0 or 1", interleaved);
    c->causal = causal;
    c->rotary_interleaved = interleaved;
    c->softmax_scale = (float)softmax_scale;
    c->softcap = (float)softcap;
    return true;
}

static int32_t size_of(const reader *r, char letter) {
    int64_t size = r->sizes[(unsigned char)letter];
    return size < 0 ? 0 : (int32_t)size;
}

static bool read_case(reader *r) {
    case_file *c = r->c;
    c->file = safetensors_open(r->error.path, r->error.text, r->error.size);
    if (!c->file || !read_parameters(r) || !read_tensors(r) || !check_whole(r))
        return false;
    c->num_seqs = size_of(r, 'b');
    c->seqlen_q = size_of(r, 'q');
    c->seqlen_new = size_of(r, 'n');
    c->num_heads = size_of(r, 'h');
    c->num_kv_heads = size_of(r, 'g');
    c->head_dim = size_of(r, 'd');
    c->num_blocks = size_of(r, 'N');
    c->block_size = size_of(r, 'S');
    return true;
}

case_file *case_open(const char *path, char *error, size_t error_size) {
    reader r = {.c = calloc(1, sizeof(case_file)), .error = {path, error, error_size}};
    if (!r.c) {
        file_fail(&r.error, "out of memory");
        return NULL;
    }
    for (size_t i = 0; i < COUNT(r.sizes); i++)
        r.sizes[i] = -1;
    if (!read_case(&r)) {
        case_close(r.c);
        return NULL;
    }
    return r.c;
}

void case_close(case_file *file) {
    if (!file)
        return;
    safetensors_close(file->file);
    free(file);
}

const char *case_unsupported_feature(const case_file *file) {
    if (file->op == CASE_MERGE && file->out_a->dtype != SAFETENSORS_F32)
        return "a merge in another dtype than F32";
    if (file->k_new && file->k_new->dtype != file->q->dtype)
        return "k_new in another dtype than q";
    return NULL;
}

pagedcl_dtype case_dtype(const safetensors_tensor *tensor) {
    switch (tensor->dtype) {
    case SAFETENSORS_F32:
        return PAGEDCL_FLOAT32;
    case SAFETENSORS_F16:
        return PAGEDCL_FLOAT16;
    case SAFETENSORS_BF16:
        return PAGEDCL_BFLOAT16;
    case SAFETENSORS_I64:
    case SAFETENSORS_I32:
    case SAFETENSORS_OTHER:
        break;
    }
    return PAGEDCL_DTYPE_DEFAULT;
}
