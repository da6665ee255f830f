/* SPDX-License-Identifier: Apache-2.0 */
/* The program from outside: its exit status and what it prints. */
#include "safetensors.h"
#include "support/case_writer.h"
#include "support/temp_folder.h"
#include "support/tool.h"

#include <pagedcl/version.h>

#include <criterion/criterion.h>
#include <glob.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *folder;
static char path[512]; /* of the file that the test writes */

static void make_folder(void) {
    folder = temp_folder_create();
    snprintf(path, sizeof path, "%s/own.safetensors", folder);
}

static void remove_folder(void) {
    temp_folder_remove(folder);
}

TestSuite(tool, .init = make_folder, .fini = remove_folder);

#define RUN(...) tool_run_with((const char *const[]){__VA_ARGS__, NULL}, (const char *const[]){NULL})

static void expect_run(tool_run *run, int exit_status, const char *out, const char *err) {
    cr_expect_eq(run->exit_status, exit_status, "exit status %d\n%s%s", run->exit_status, run->out, run->err);
    cr_expect_not_null(strstr(run->out, out), "no \"%s\" in:\n%s", out, run->out);
    cr_expect_not_null(strstr(run->err, err), "no \"%s\" in:\n%s", err, run->err);
}

/* Refused: exit status 2, nothing on stdout, and `reason` on stderr. */
static void expect_usage_error(tool_run run, const char *reason) {
    expect_run(&run, 2, "", reason);
    cr_expect_str_eq(run.out, "");
    tool_run_free(&run);
}

static void expect_one_line(tool_run run, const char *reason) {
    cr_expect_eq(tool_lines(run.err), 1, "%s", run.err);
    expect_usage_error(run, reason);
}

static void expect_printed(tool_run run, const char *out) {
    expect_run(&run, 0, out, "");
    cr_expect_str_eq(run.err, "");
    tool_run_free(&run);
}

Test(tool, explains_itself) {
    expect_printed(RUN("--help"), "devices");
    expect_printed(RUN("-h"), "replay");
    expect_printed(RUN("--version"), "pagedcl " PAGEDCL_VERSION_STRING "\n");
    expect_printed(RUN("devices", "--help"), "--json");
    expect_printed(RUN("replay", "--help"), "--device");
    expect_usage_error(tool_run_with((const char *const[]){NULL}, (const char *const[]){NULL}), "Usage: pagedcl");
}

Test(tool, refuses_bad_arguments) {
    expect_one_line(RUN("replya"), "did you mean \"replay\"?");
    expect_one_line(RUN("device"), "did you mean \"devices\"?");
    expect_one_line(RUN("frobnicate"), "no command \"frobnicate\"");
    expect_one_line(RUN(""), "no command \"\"");
    expect_one_line(RUN("--frobnicate"), "no option \"--frobnicate\"");
    expect_one_line(RUN("devices", "--frobnicate"), "pagedcl devices: unrecognized option '--frobnicate'");
    expect_one_line(RUN("devices", "0:0"), "0:0");
    expect_one_line(RUN("replay"), "needs case files");
    expect_one_line(RUN("replay", "--tier", "fast", path), "--tier is \"fast\"");
    expect_one_line(RUN("replay", "--tier"), "requires an argument");
    char long_name[1000];
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    expect_one_line(RUN(long_name), "no command");
}

Test(tool, refuses_a_device_that_is_not_there) {
    tool_run run = RUN("replay", "--device", "no-such-device", path);
    cr_expect_eq(tool_lines(run.err), 1);
    expect_usage_error(run, "no-such-device");
}

Test(tool, says_that_there_is_no_driver) {
    char vendors[600];
    snprintf(vendors, sizeof vendors, "OCL_ICD_VENDORS=%s", folder);
    const char *const env[] = {vendors, "OCL_ICD_FILENAMES=", NULL};
    static const char *const lines[][4] = {{"devices", NULL}, {"devices", "--json", NULL}, {"replay", "file", NULL}};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        tool_run run = tool_run_with(lines[i], env);
        cr_expect_eq(tool_lines(run.err), 1, "%s", run.err);
        expect_usage_error(run, "no OpenCL driver");
    }
}

Test(tool, lists_devices) {
    expect_printed(RUN("devices"), "(default)");
    tool_run run = RUN("devices", "--json");
    cr_expect_eq(run.exit_status, 0);
    json_t *document = json_loads(run.out, 0, NULL);
    cr_assert_not_null(document, "%s", run.out);
    const json_t *devices = json_object_get(document, "devices");
    cr_assert_gt(json_array_size(devices), 0);
    int defaults = 0;
    for (size_t i = 0; i < json_array_size(devices); i++) {
        const json_t *device = json_array_get(devices, i);
        defaults += json_is_true(json_object_get(device, "default"));
        cr_expect_gt(strlen(json_string_value(json_object_get(device, "name"))), 0);
        cr_expect_gt(strlen(json_string_value(json_object_get(device, "tier_reason"))), 0);
        cr_expect_gt(json_integer_value(json_object_get(device, "global_memory")), 0);
    }
    cr_expect_eq(defaults, 1);
    json_decref(document);
    tool_run_free(&run);
}

#define DECODE "q F32 2,1,4,8;k_cache F32 5,16,2,8;v_cache F32 5,16,2,8;block_table I32 2,3;cache_seqlens I32 2"

Test(tool, refuses_hostile_case_files) {
    static const struct {
        const char *metadata;
        const char *tensors;
        const char *reason;
    } rows[] = {
        {NULL, DECODE, "no case file"},
        {"{\"case\":\"1\",\"op\":\"decode\"}", DECODE, "expect.out is missing"},
        {"{\"case\":\"1\",\"op\":\"decode\"}", DECODE ";expect.out F32 2,1,4,9", "head_dim 9"},
        {"{\"case\":\"1\",\"op\":\"decode\\u001b[2J\"}", DECODE, "\"decode?[2J\" is not known"},
        {"{\"case\":\"1\",\"op\":\"decode\"}", "q F32 0,4294967296,1,1", "beyond 2^31 - 1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        case_writer_zeros(path, rows[i].metadata, rows[i].tensors);
        tool_run run = RUN("replay", path);
        cr_expect_eq(tool_lines(run.err), 1, "%s", run.err);
        expect_run(&run, 2, "0 passed, 0 failed, 0 unsupported, 1 unreadable\n", rows[i].reason);
        tool_run_free(&run);
    }
    tool_run run = RUN("replay", folder, "/nonexistent");
    cr_expect_eq(tool_lines(run.err), 2, "%s", run.err);
    expect_run(&run, 2, "2 unreadable", "/nonexistent: No such file");
    tool_run_free(&run);
}

/* Sizes that only the library can judge: refused, or accepted where the batch has nothing to do. No crash. */
Test(tool, survives_absurd_geometry) {
    static const struct {
        const char *q;
        const char *pool;
        const char *table;
        int exit_status; /* 0: refused, as the case wants; 1: accepted */
    } rows[] = {
        {"0,0,0,0", "0,0,0,0", "0,0", 0},           {"1,0,4,8", "5,16,2,8", "1,3", 0},
        {"1,1,4,8", "0,16,2,8", "1,3", 0},          {"1,1,4,8", "5,0,2,8", "1,3", 0},
        {"1,1,4,8", "5,16,0,8", "1,3", 0},          {"1,1,0,8", "5,16,2,8", "1,3", 0},
        {"1,1,4,7", "5,16,2,7", "1,3", 1},          {"1,1,4,0", "2147483647,1,1,0", "1,3", 0},
        {"0,2147483647,1,8", "5,16,1,8", "0,3", 1}, {"0,1,2147483646,8", "5,16,2,8", "0,3", 1},
        {"1,1,4,8", "5,16,2,8", "1,0", 1}, /* no room in the table, but no token either */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char tensors[256];
        snprintf(tensors, sizeof tensors,
                 "q F32 %s;k_cache F32 %s;v_cache F32 %s;block_table I32 %s;cache_seqlens I32 %c", rows[i].q,
                 rows[i].pool, rows[i].pool, rows[i].table, rows[i].table[0]);
        case_writer_zeros(path, "{\"case\":\"1\",\"op\":\"decode\",\"expect_error\":\"absurd\"}", tensors);
        tool_run run = RUN("replay", path);
        cr_expect_eq(run.exit_status, rows[i].exit_status, "%s: %d\n%s%s", tensors, run.exit_status, run.out, run.err);
        tool_run_free(&run);
    }
}

Test(tool, goes_on_after_a_file_that_is_no_case) {
    case_writer_bytes(path, "no case", 7);
    tool_run run = RUN("replay", path, TEST_CASES_DIR "/write-scatter.safetensors");
    expect_run(&run, 2, "1 passed, 0 failed, 0 unsupported, 1 unreadable\n", "own.safetensors: is too short");
    tool_run_free(&run);
}

/* Copies a golden case with one byte of a tensor changed. */
static void write_damaged(const char *name, const char *tensor, size_t byte) {
    char golden[512];
    snprintf(golden, sizeof golden, "%s/%s.safetensors", TEST_CASES_DIR, name);
    FILE *stream = fopen(golden, "rb");
    cr_assert(stream && fseek(stream, 0, SEEK_END) == 0);
    size_t size = (size_t)ftell(stream);
    rewind(stream);
    unsigned char *bytes = malloc(size);
    cr_assert(bytes && fread(bytes, 1, size, stream) == size);
    fclose(stream);

    char error[256];
    safetensors *file = safetensors_open(golden, error, sizeof error);
    cr_assert_not_null(file, "%s", error);
    const safetensors_tensor *found = safetensors_find(file, tensor);
    cr_assert(found && byte < found->num_bytes);
    /* The data of all tensors ends where the file does. */
    const unsigned char *end = NULL;
    for (size_t i = 0; i < safetensors_count(file); i++) {
        const safetensors_tensor *other = safetensors_at(file, i);
        const unsigned char *other_end = (const unsigned char *)other->data + other->num_bytes;
        end = !end || other_end > end ? other_end : end;
    }
    bytes[size - (size_t)(end - (const unsigned char *)found->data) + byte] ^= 0x40;
    safetensors_close(file);
    case_writer_bytes(path, bytes, size);
    free(bytes);
}

Test(tool, finds_wrong_results) {
    static const struct {
        const char *name;
        const char *tensor;
        size_t byte;
        const char *reason;
    } rows[] = {
        {"decode-d32", "expect.out", 7, "out[0,0,0,1] is "},
        {"decode-d32", "expect.lse", 11, "lse[0,0,2] is "},
        {"decode-d32", "expect.k_cache", 1, "k_cache[0,0,0,0] is "},
        {"decode-d32", "expect.v_cache", 0, "v_cache[0,0,0,0] is "},
        {"seed-varlen", "expect.out", 3, "out[0,0,0] is "},
        {"write-scatter", "expect.v_cache", 0, "v_cache[0,0,0,0] is "},
        {"gather-mix", "expect.k", 2, "k[0,0,1] is "},
        {"copy-blocks", "expect.k_cache", 0, "k_cache[0,0,0,0] is "},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        write_damaged(rows[i].name, rows[i].tensor, rows[i].byte);
        tool_run run = RUN("replay", path);
        expect_run(&run, 1, "0 passed, 1 failed, 0 unsupported\n", "");
        cr_expect_not_null(strstr(run.out, rows[i].reason), "%s %s: no \"%s\" in:\n%s", rows[i].name, rows[i].tensor,
                           rows[i].reason, run.out);
        tool_run_free(&run);
    }
}

Test(tool, fails_a_call_that_should_have_been_refused) {
    case_writer_zeros(path, "{\"case\":\"1\",\"op\":\"decode\",\"expect_error\":\"nothing is wrong\"}", DECODE);
    tool_run run = RUN("replay", path);
    expect_run(&run, 1, "the call was accepted, but is to be refused: nothing is wrong", "");
    tool_run_free(&run);
}

Test(tool, says_how_a_call_was_refused) {
    tool_run run = RUN("replay", "--verbose", TEST_CASES_DIR "/bad-heads.safetensors");
    expect_run(&run, 0, "PAGEDCL_INVALID_HEADS: ", "");
    tool_run_free(&run);
}

/* Every golden case passes, on every tier. */
static void replay_golden(const char *tier) {
    glob_t files;
    cr_assert_eq(glob(TEST_CASES_DIR "/*.safetensors", 0, NULL, &files), 0);
    const char *args[256] = {"replay", "--json", "--tier", tier};
    cr_assert_lt(files.gl_pathc + 5, 256);
    for (size_t i = 0; i < files.gl_pathc; i++)
        args[i + 4] = files.gl_pathv[i];
    tool_run run = tool_run_with(args, (const char *const[]){NULL});
    cr_expect_eq(run.exit_status, 0);
    json_t *document = json_loads(run.out, 0, NULL);
    cr_assert_not_null(document, "%s%s", run.out, run.err);
    cr_expect_eq(json_integer_value(json_object_get(document, "unsupported")), 0);
    cr_expect_eq((size_t)json_integer_value(json_object_get(document, "passed")), files.gl_pathc);
    const json_t *cases = json_object_get(document, "cases");
    cr_assert_eq(json_array_size(cases), files.gl_pathc);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        const json_t *row = json_array_get(cases, i);
        const char *name = json_string_value(json_object_get(row, "name"));
        const char *got_tier = json_string_value(json_object_get(row, "tier"));
        cr_expect_str_eq(json_string_value(json_object_get(row, "result")), "pass", "%s: %s", name,
                         json_string_value(json_object_get(row, "message")));
        cr_expect(!got_tier || strcmp(got_tier, tier) == 0, "%s ran on tier %s", name, got_tier);
    }
    json_decref(document);
    tool_run_free(&run);
    globfree(&files);
}

Test(tool, passes_the_golden_cases_portable) {
    replay_golden("portable");
}

Test(tool, passes_the_golden_cases_cpu) {
    replay_golden("cpu");
}
