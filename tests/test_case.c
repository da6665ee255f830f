/* SPDX-License-Identifier: Apache-2.0 */
#include "case.h"
#include "support/case_writer.h"
#include "support/temp_folder.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *folder;
static char path[256]; /* of the file that the test writes */

static void make_folder(void) {
    folder = temp_folder_create();
    snprintf(path, sizeof path, "%s/file.safetensors", folder);
}

static void remove_folder(void) {
    temp_folder_remove(folder);
}

TestSuite(case_file, .init = make_folder, .fini = remove_folder);

#define DECODE_TENSORS                                                                                 \
    "q F16 2,1,4,8;k_cache F16 5,16,2,8;v_cache F16 5,16,2,8;block_table I32 2,3;cache_seqlens I32 2;" \
    "k_new F16 2,1,2,8;v_new F16 2,1,2,8"
#define DECODE DECODE_TENSORS ";expect.out F32 2,1,4,8;expect.lse F32 2,1,4"
#define PACKED "q F32 14,4,8;cu_seqlens_q I32 4;k F32 8,2,8;v F32 8,2,8;cu_seqlens_k I32 4;expect.out F32 14,4,8"
#define PAGED                                                                                        \
    "q F32 14,4,8;cu_seqlens_q I32 4;k_cache F16 5,16,2,8;v_cache F16 5,16,2,8;block_table I32 3,2;" \
    "cache_seqlens I32 3;expect.out F32 14,4,8"
#define WRITE                                                                               \
    "k F16 9,2,8;v F16 9,2,8;slot_mapping I64 9;k_cache F16 5,16,2,8;v_cache F16 5,16,2,8;" \
    "expect.k_cache F16 5,16,2,8;expect.v_cache F16 5,16,2,8"
#define GATHER                                                                                                 \
    "k_cache BF16 5,16,2,8;v_cache BF16 5,16,2,8;block_table I32 2,3;cache_seqlens I32 2;expect.k BF16 7,2,8;" \
    "expect.v BF16 7,2,8"
#define COPY                                                                                     \
    "k_cache F32 5,16,2,8;v_cache F32 5,16,2,8;block_pairs I32 2,2;expect.k_cache F32 5,16,2,8;" \
    "expect.v_cache F32 5,16,2,8"
#define MERGE_OF_F16 \
    "out_a F16 7,4,8;lse_a F32 7,4;out_b F16 7,4,8;lse_b F32 7,4;expect.out F32 7,4,8;expect.lse F32 7,4"
#define MERGE "out_a F32 7,4,8;lse_a F32 7,4;out_b F32 7,4,8;lse_b F32 7,4;expect.out F32 7,4,8;expect.lse F32 7,4"

static case_file *open_good(const char *metadata, const char *tensors) {
    case_writer_zeros(path, metadata, tensors);
    char error[256];
    case_file *file = case_open(path, error, sizeof error);
    cr_assert_not_null(file, "%s", error);
    return file;
}

Test(case_file, reads_parameters_and_sizes) {
    case_file *c = open_good("{\"case\":\"1\",\"op\":\"decode\",\"softmax_scale\":\"0.125\",\"causal\":\"1\","
                             "\"window_left\":\"-1\",\"softcap\":\"0.0\",\"num_splits\":\"8\",\"atol\":\"2e-05\","
                             "\"rtol\":\"0.5\",\"note\":\"other keys are free\"}",
                             DECODE);
    cr_expect_eq(c->op, CASE_DECODE);
    cr_expect_eq(c->softmax_scale, 0.125f);
    cr_expect(c->causal);
    cr_expect_eq(c->num_splits, 8);
    cr_expect_eq(c->atol, 2e-05);
    cr_expect_eq(c->rtol, 0.5);
    cr_expect_null(c->expect_error);
    cr_expect_eq(c->num_seqs, 2);
    cr_expect_eq(c->seqlen_q, 1);
    cr_expect_eq(c->seqlen_new, 1);
    cr_expect_eq(c->num_heads, 4);
    cr_expect_eq(c->num_kv_heads, 2);
    cr_expect_eq(c->head_dim, 8);
    cr_expect_eq(c->num_blocks, 5);
    cr_expect_eq(c->block_size, 16);
    cr_expect_eq(case_dtype(c->q), PAGEDCL_FLOAT16);
    cr_expect_eq(case_dtype(c->expect_out), PAGEDCL_FLOAT32);
    cr_expect_eq(case_dtype(c->block_table), PAGEDCL_DTYPE_DEFAULT);
    cr_expect_null(c->sinks);
    cr_expect_null(case_unsupported_feature(c));
    case_close(c);
}

Test(case_file, has_defaults) {
    case_file *c = open_good("{\"case\":\"1\",\"op\":\"varlen\"}", PACKED);
    cr_expect_eq(c->softmax_scale, 0.0f);
    cr_expect_not(c->causal);
    cr_expect_eq(c->window_left, -1);
    cr_expect_eq(c->window_right, -1);
    cr_expect_eq(c->num_splits, 0);
    cr_expect_eq(c->atol, 0.0);
    cr_expect_eq(c->num_seqs, 3);
    case_close(c);
}

Test(case_file, reads_every_operation) {
    static const struct {
        const char *metadata;
        const char *tensors;
        case_op op;
    } rows[] = {
        {"{\"case\":\"1\",\"op\":\"varlen\"}", PAGED, CASE_VARLEN},
        {"{\"case\":\"1\",\"op\":\"write\"}", WRITE, CASE_WRITE},
        {"{\"case\":\"1\",\"op\":\"gather\"}", GATHER, CASE_GATHER},
        {"{\"case\":\"1\",\"op\":\"copy_blocks\"}", COPY, CASE_COPY_BLOCKS},
        {"{\"case\":\"1\",\"op\":\"merge\"}", MERGE, CASE_MERGE},
        {"{\"case\":\"1\",\"op\":\"decode\",\"expect_error\":\"heads\"}", DECODE_TENSORS, CASE_DECODE},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        case_file *c = open_good(rows[i].metadata, rows[i].tensors);
        cr_expect_eq(c->op, rows[i].op);
        case_close(c);
    }
}

Test(case_file, names_the_feature_it_needs) {
    case_file *c = open_good("{\"case\":\"1\",\"op\":\"merge\"}", MERGE_OF_F16);
    const char *feature = case_unsupported_feature(c);
    cr_assert_not_null(feature);
    cr_expect_str_eq(feature, "a merge in another dtype than F32");
    case_close(c);
}

static void expect_refused(const char *what, const char *reason) {
    char error[256] = "";
    case_file *c = case_open(path, error, sizeof error);
    cr_expect_null(c, "%s: accepted", what);
    cr_expect_eq(strncmp(error, path, strlen(path)), 0, "%s: the message does not name the file: %s", what, error);
    cr_expect_not_null(strstr(error, reason), "%s: expected \"%s\" in: %s", what, reason, error);
    cr_expect_null(strchr(error, '\n'), "%s: more than a line: %s", what, error);
    case_close(c);
}

Test(case_file, refuses_bad_parameters) {
    static const struct {
        const char *metadata; /* NULL: none at all */
        const char *reason;
    } rows[] = {
        {NULL, "no case file"},
        {"{\"op\":\"decode\"}", "no case file"},
        {"{\"case\":\"2\",\"op\":\"decode\"}", "version \"2\""},
        {"{\"case\":\"1\"}", "no \"op\""},
        {"{\"case\":\"1\",\"op\":\"encode\\n\"}", "\"encode?\" is not known"},
        {"{\"case\":\"1\",\"op\":\"decode\",\"softmax_scale\":\"\"}", "softmax_scale"},
        {"{\"case\":\"1\",\"op\":\"decode\",\"softmax_scale\":\"1x\"}", "softmax_scale"},
        {"{\"case\":\"1\",\"op\":\"decode\",\"softmax_scale\":\"nan\"}", "softmax_scale"},
        {"{\"case\":\"1\",\"op\":\"decode\",\"softmax_scale\":\"1e300\"}", "softmax_scale"},
        {"{\"case\":\"1\",\"op\":\"decode\",\"softcap\":\"-1\"}", "softcap"},
        {"{\"case\":\"1\",\"op\":\"decode\",\"atol\":\"-1e-9\"}", "atol"},
        {"{\"case\":\"1\",\"op\":\"decode\",\"rtol\":\"inf\"}", "rtol"},
        {"{\"case\":\"1\",\"op\":\"decode\",\"causal\":\"2\"}", "causal"},
        {"{\"case\":\"1\",\"op\":\"decode\",\"causal\":\"yes\"}", "causal"},
        {"{\"case\":\"1\",\"op\":\"decode\",\"window_left\":\"-2\"}", "window_left"},
        {"{\"case\":\"1\",\"op\":\"decode\",\"num_splits\":\"2147483648\"}", "num_splits"},
        {"{\"case\":\"1\",\"op\":\"decode\",\"num_splits\":\"99999999999999999999\"}", "num_splits"},
        {"{\"case\":\"1\",\"op\":\"decode\",\"expect_error\":\"heads\"}", "both an error and values"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        case_writer_zeros(path, rows[i].metadata, DECODE);
        expect_refused(rows[i].metadata ? rows[i].metadata : "no metadata", rows[i].reason);
    }
}

Test(case_file, refuses_bad_tensors) {
    static const struct {
        const char *op;
        const char *tensors;
        const char *reason;
    } rows[] = {
        {"decode", "expect.out F32 2,1,4,8", "q is missing"},
        {"decode", DECODE_TENSORS, "expect.out is missing"},
        {"decode", DECODE ";surprise F32 1", "no tensor \"surprise\""},
        {"decode", DECODE ";slot_mapping I64 1", "no tensor \"slot_mapping\""},
        {"decode", DECODE ";sinks F32 5", "num_heads 5"},
        {"decode", DECODE ";sinks F16 4", "sinks cannot be of dtype F16"},
        {"decode", DECODE ";rotary_cos F32 9,4", "rotary_sin is missing"},
        {"decode", DECODE ";expect.k_cache F16 5,16,2,8", "expect.v_cache is missing"},
        {"decode", DECODE ";expect.k_cache F32 5,16,2,8;expect.v_cache F32 5,16,2,8", "differ in dtype"},
        {"decode", DECODE ";expect.k_cache F16 6,16,2,8;expect.v_cache F16 6,16,2,8", "num_blocks 6"},
        {"decode",
         "q F16 2,4,8;k_cache F16 5,16,2,8;v_cache F16 5,16,2,8;block_table I32 2,3;cache_seqlens I32 2;"
         "expect.out F32 2,1,4,8",
         "q has 3 dimensions"},
        {"decode",
         "q F16 2,1,4,8;k_cache F16 5,16,2,16;v_cache F16 5,16,2,16;block_table I32 2,3;cache_seqlens I32 2;"
         "expect.out F32 2,1,4,8",
         "head_dim 16"},
        {"decode",
         "q F16 2,1,4,8;k_cache F16 5,16,2,8;v_cache F16 5,16,3,8;block_table I32 2,3;cache_seqlens I32 2;"
         "expect.out F32 2,1,4,8",
         "num_kv_heads 3"},
        {"decode",
         "q F16 2,1,4,8;k_cache F16 5,16,2,8;v_cache F32 5,16,2,8;block_table I32 2,3;cache_seqlens I32 2;"
         "expect.out F32 2,1,4,8",
         "k_cache and v_cache differ in dtype"},
        {"decode",
         "q F16 2,1,4,8;k_cache F16 5,16,2,8;v_cache F16 5,16,2,8;block_table I64 2,3;cache_seqlens I32 2;"
         "expect.out F32 2,1,4,8",
         "block_table cannot be of dtype I64"},
        {"decode",
         "q F16 2,1,4,8;k_cache F16 5,16,2,8;v_cache F16 5,16,2,8;block_table I32 2,3;cache_seqlens I32 3;"
         "expect.out F32 2,1,4,8",
         "the number of sequences 3"},
        {"varlen", "q F32 14,4,8;cu_seqlens_q I32 4;expect.out F32 14,4,8", "either k, v and cu_seqlens_k"},
        {"varlen", PACKED ";cache_seqlens I32 3", "either k, v and cu_seqlens_k"},
        {"varlen", PACKED ";k_cache F16 5,16,2,8;v_cache F16 5,16,2,8", "either k, v and cu_seqlens_k"},
        {"varlen", "q F32 14,4,8;cu_seqlens_q I32 0;expect.out F32 14,4,8", "cu_seqlens_q is empty"},
        {"varlen", "q F32 14,4,8;cu_seqlens_q I32 4;k F32 8,2,8;v F32 8,2,8;cu_seqlens_k I32 5;expect.out F32 14,4,8",
         "the number of sequences 4"},
        {"varlen", "q F32 14,4,8;cu_seqlens_q I32 4;k F32 8,2,8;v F32 7,2,8;cu_seqlens_k I32 4;expect.out F32 14,4,8",
         "the number of key rows 7"},
        {"varlen",
         "q F32 0,4294967296,8;cu_seqlens_q I32 4;k F32 8,2,8;v F32 8,2,8;cu_seqlens_k I32 4;"
         "expect.out F32 0,4294967296,8",
         "beyond 2^31 - 1"},
        {"write", "k F16 9,2,8;v F16 9,2,8;slot_mapping I64 8;k_cache F16 5,16,2,8;v_cache F16 5,16,2,8",
         "the number of key rows 8"},
        {"write", "k F16 9,2,8;v F16 9,2,8;slot_mapping I32 9;k_cache F16 5,16,2,8;v_cache F16 5,16,2,8",
         "slot_mapping cannot be of dtype I32"},
        {"write", "k F16 9,2,8;v F16 9,2,8;slot_mapping I64 9;k_cache F16 5,16,2,8;v_cache F16 5,16,2,8",
         "expect.k_cache is missing"},
        {"copy_blocks", "k_cache F32 5,16,2,8;v_cache F32 5,16,2,8;block_pairs I32 2,3", "must be 2"},
        {"gather", "k_cache F32 5,16,2,8;v_cache F32 5,16,2,8;block_table I32 2,3;cache_seqlens I32 2",
         "expect.k is missing"},
        {"merge", "out_a F32 7,4,8;lse_a F32 7,4;out_b F32 7,4,8;lse_b F32 7,4", "expect.out is missing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char metadata[64];
        snprintf(metadata, sizeof metadata, "{\"case\":\"1\",\"op\":\"%s\"}", rows[i].op);
        case_writer_zeros(path, metadata, rows[i].tensors);
        expect_refused(rows[i].tensors, rows[i].reason);
    }
}

Test(case_file, refuses_what_is_no_safetensors_file) {
    expect_refused("missing", "No such file");
    case_writer_bytes(path, "pagedcl", 7);
    expect_refused("short", "too short");
}

/* Damage that the safetensors reader lets through must be caught here, or be harmless. */
Test(case_file, survives_random_damage) {
    enum { HEADER_BYTES = 700 };
    case_writer_zeros(path, "{\"case\":\"1\",\"op\":\"decode\",\"causal\":\"1\",\"atol\":\"0.5\"}", DECODE);
    static unsigned char good[65536];
    static unsigned char bad[sizeof good];
    FILE *file = fopen(path, "rb");
    cr_assert_not_null(file);
    size_t size = fread(good, 1, sizeof good, file);
    fclose(file);
    cr_assert(size > HEADER_BYTES && size < sizeof good);

    uint32_t random = 7;
    int opened = 0;
    int refused = 0;
    for (int round = 0; round < 4000; round++) {
        memcpy(bad, good, size);
        for (int i = 0; i <= round % 3; i++) {
            random = random * 1664525 + 1013904223;
            unsigned char *byte = &bad[8 + (random >> 8) % HEADER_BYTES];
            random = random * 1664525 + 1013904223;
            /* A digit for a digit keeps the JSON whole, so that the damage reaches the shapes. */
            *byte = *byte >= '0' && *byte <= '9' ? (unsigned char)('0' + (random >> 8) % 10)
                                                 : (unsigned char)(round % 2 ? *byte : random >> 16);
        }
        case_writer_bytes(path, bad, size);
        char error[128];
        case_file *c = case_open(path, error, sizeof error);
        c ? opened++ : refused++;
        if (c)
            cr_expect_eq(c->q->num_elements, (int64_t)c->num_seqs * c->seqlen_q * c->num_heads * c->head_dim);
        case_close(c);
    }
    cr_expect(opened > 100 && refused > 1000, "%d opened, %d refused: the damage is too weak", opened, refused);
}
