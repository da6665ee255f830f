/* SPDX-License-Identifier: Apache-2.0 */
/* Tuning databases: what is one, what a device takes from it, and that no size of a kernel makes a result wrong. */
#define _POSIX_C_SOURCE 200809L

#include "support/attn_rig.h"
#include "support/expect.h"
#include "support/temp_folder.h"

#include <pagedcl/tuning.h>

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(tuning);

#define HEAD "pagedcl-tuning 1\n"

static void expect_bad(const char *text, const char *reason) {
    expect_refused(pagedcl_tuning_check(text, strlen(text)), PAGEDCL_INVALID_ARGUMENT, reason);
}

Test(tuning, databases_are_hostile) {
    expect_ok(pagedcl_tuning_check(NULL, 0));
    expect_ok(pagedcl_tuning_check(HEAD, strlen(HEAD)));
    const char *good =
        HEAD "# a comment\n\np\td\t1.2\t0.1\tattn_decode x=1\tTUNE_ROWS=8 TUNE_KEYS=32\tus=3\tanything\n";
    expect_ok(pagedcl_tuning_check(good, strlen(good)));
    /* The last line may end without a newline. */
    expect_ok(pagedcl_tuning_check(good, strlen(good) - 1));
    expect_bad("pagedcl-tuning 2\n", "line 1: a tuning database begins with");
    expect_bad("{\"a\": 1}", "line 1");
    expect_bad("\n" HEAD, "line 1");
    expect_bad(HEAD "p\td\t1\t0.1\tf\n", "line 2: it has fewer than six fields");
    expect_bad(HEAD "# first\nword\n", "line 3: it has fewer");
    expect_bad(HEAD "p\td\t1\t0.1\t\tTUNE_ROWS=8\n", "family is empty");
    expect_bad(HEAD "p\td\t1\t0.1\tf\t\n", "no values");
    expect_bad(HEAD "p\td\t1\t0.1\tf\tTUNE_ROWS\n", "unknown name");
    expect_bad(HEAD "p\td\t1\t0.1\tf\tTUNE_COLUMNS=8\n", "unknown name");
    expect_bad(HEAD "p\td\t1\t0.1\tf\tTUNE_ROWS=8 -DX=1\n", "unknown name");
    expect_bad(HEAD "p\td\t1\t0.1\tf\tTUNE_ROWS=\n", "no number");
    expect_bad(HEAD "p\td\t1\t0.1\tf\tTUNE_ROWS=0\n", "no number");
    expect_bad(HEAD "p\td\t1\t0.1\tf\tTUNE_ROWS=-8\n", "no number");
    expect_bad(HEAD "p\td\t1\t0.1\tf\tTUNE_ROWS=8x\n", "no number");
    expect_bad(HEAD "p\td\t1\t0.1\tf\tTUNE_ROWS=4097\n", "no number");
    expect_bad(HEAD "p\td\t1\t0.1\tf\tTUNE_ROWS=99999999999999999999\n", "no number");
    expect_bad(HEAD "p\td\t1\t0.1\tf\tTUNE_ROWS=8 TUNE_ROWS=8\n", "twice");
    expect_bad(HEAD "p\td\t1\t0.1\tf\tTUNE_ROWS=8\033[0m\n", "control character");
    expect_refused(pagedcl_tuning_check(HEAD "\0", strlen(HEAD) + 1), PAGEDCL_INVALID_ARGUMENT, "control character");
    expect_refused(pagedcl_tuning_check(NULL, 3), PAGEDCL_INVALID_ARGUMENT, "NULL");
    static char longest[2000] = HEAD;
    memset(longest + strlen(HEAD), '#', 1500);
    expect_bad(longest, "longer than 1024");
    memcpy(longest, HEAD "p\td\t1\t0.1\t", strlen(HEAD "p\td\t1\t0.1\t"));
    longest[strlen(HEAD) + 400] = '\t';
    snprintf(longest + strlen(HEAD) + 401, 20, "TUNE_ROWS=8");
    expect_bad(longest, "too long");
}

/* ---- operators ---- */

static const int32_t lengths[] = {150, 1, 300}; /* several tiles of keys, the last of them not full */
static const attn_case decode_case = {"decode", DECODE, .seqlens_k = lengths};
static const attn_case varlen_case = {"varlen", VARLEN_PAGED, .causal = 1, .seqlens_k = lengths};

/* What an operator of the case runs with: "TUNE_WG=1 TUNE_ROWS=8 ...". The line is the database's. */
static const char *values_of(const attn_rig *rig, char line[1024]) {
    pagedcl_path path = rig->problem->c.path == DECODE ? PAGEDCL_PATH_DECODE : PAGEDCL_PATH_VARLEN;
    expect_ok(pagedcl_attn_get_tuning(rig->attn, path, line, 1024));
    return strrchr(line, '\t') + 1;
}

/* The device takes a line like `line`, with other values. */
static size_t take(pagedcl_device *device, const char *line, const char *values) {
    char text[4096];
    size_t count = 77;
    snprintf(text, sizeof text, HEAD "%.*s\t%s\n", (int)(strrchr(line, '\t') - line), line, values);
    expect_ok(pagedcl_device_tune(device, text, strlen(text), &count));
    return count;
}

static void count_warnings(void *user, pagedcl_log_level level, const char *message) {
    (void)message;
    *(int *)user += level == PAGEDCL_LOG_WARNING;
}

static pagedcl_device *open_logged(pagedcl_tier tier, int *warnings) {
    pagedcl_device_options options = PAGEDCL_DEVICE_OPTIONS_INIT;
    options.tier = tier;
    options.log = count_warnings;
    options.log_user = warnings;
    pagedcl_device *device;
    expect_ok(pagedcl_device_open(NULL, &options, &device));
    return device;
}

/* In every size a kernel gives what the reference says, and says which it has. */
static void check_values(pagedcl_tier tier, const attn_case *c, const char *const *values, size_t count) {
    int warnings = 0;
    pagedcl_device *device = open_logged(tier, &warnings);
    attn_problem p = attn_problem_create(c, 1);
    char line[1024], tuned[1024];
    attn_rig rig = attn_rig_open(device, tier, &p);
    values_of(&rig, line);
    attn_rig_close(&rig);
    for (size_t i = 0; i < count; i++) {
        cr_assert_eq(take(device, line, values[i]), 1);
        rig = attn_rig_open(device, tier, &p);
        const char *now = values_of(&rig, tuned);
        cr_expect(strstr(now, values[i]), "%s: wanted %s, got %s", c->name, values[i], now);
        expect_ok(attn_rig_plan(&rig, NULL));
        attn_rig_run(&rig, NULL, 0, NULL, NULL);
        attn_result result = attn_rig_read(&rig);
        attn_expect_reference(&p, &result, values[i]);
        attn_result_destroy(&result);
        attn_rig_close(&rig);
    }
    cr_expect_eq(warnings, 0);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}

Test(tuning, every_size_of_the_cpu_tier_is_right, .timeout = 600) {
    static const char *const values[] = {
        "TUNE_ROWS=1 TUNE_KEYS=16 TUNE_FEW_ROWS=1", "TUNE_ROWS=2 TUNE_KEYS=32 TUNE_FEW_ROWS=2",
        "TUNE_ROWS=4 TUNE_KEYS=64 TUNE_FEW_ROWS=1", "TUNE_ROWS=16 TUNE_KEYS=128 TUNE_FEW_ROWS=8 TUNE_LANES=8",
        "TUNE_ROWS=64 TUNE_KEYS=32 TUNE_FEW_ROWS=32 TUNE_LANES=16"};
    check_values(PAGEDCL_TIER_CPU, &decode_case, values, sizeof values / sizeof values[0]);
    check_values(PAGEDCL_TIER_CPU, &varlen_case, values, sizeof values / sizeof values[0]);
}

Test(tuning, every_size_of_the_portable_tier_is_right, .timeout = 600) {
    static const char *const values[] = {
        "TUNE_WG=8 TUNE_ROWS=2 TUNE_KEYS=8 TUNE_FEW_ROWS=1", "TUNE_WG=32 TUNE_ROWS=16 TUNE_KEYS=4 TUNE_FEW_ROWS=4",
        "TUNE_WG=64 TUNE_ROWS=4 TUNE_KEYS=64 TUNE_FEW_ROWS=4", "TUNE_WG=1 TUNE_ROWS=1 TUNE_KEYS=1 TUNE_FEW_ROWS=1"};
    /* 4 and 8 teams of 16 work-items, with 1 to 8 keys each. */
    static const char *const teams[] = {
        "TUNE_WG=64 TUNE_ROWS=2 TUNE_KEYS=4 TUNE_FEW_ROWS=1", "TUNE_WG=64 TUNE_ROWS=1 TUNE_KEYS=8 TUNE_FEW_ROWS=1",
        "TUNE_WG=128 TUNE_ROWS=8 TUNE_KEYS=64 TUNE_FEW_ROWS=2", "TUNE_WG=128 TUNE_ROWS=4 TUNE_KEYS=32 TUNE_FEW_ROWS=4"};
    check_values(PAGEDCL_TIER_PORTABLE, &decode_case, values, sizeof values / sizeof values[0]);
    check_values(PAGEDCL_TIER_PORTABLE, &decode_case, teams, sizeof teams / sizeof teams[0]);
    check_values(PAGEDCL_TIER_PORTABLE, &varlen_case, values, sizeof values / sizeof values[0]);
}

/* Sizes that a kernel cannot have do not reach it. */
Test(tuning, impossible_sizes_are_left_aside) {
    static const struct {
        pagedcl_tier tier;
        const char *values;
    } bad[] = {{PAGEDCL_TIER_CPU, "TUNE_ROWS=3"},
               {PAGEDCL_TIER_CPU, "TUNE_ROWS=128"},
               {PAGEDCL_TIER_CPU, "TUNE_KEYS=8"},
               {PAGEDCL_TIER_CPU, "TUNE_KEYS=48"},
               {PAGEDCL_TIER_CPU, "TUNE_WG=2"},
               {PAGEDCL_TIER_CPU, "TUNE_LANES=4"},
               {PAGEDCL_TIER_CPU, "TUNE_LANES=32"},
               {PAGEDCL_TIER_CPU, "TUNE_KEYS=4096"},
               {PAGEDCL_TIER_PORTABLE, "TUNE_WG=512"},
               {PAGEDCL_TIER_PORTABLE, "TUNE_WG=4"},
               {PAGEDCL_TIER_PORTABLE, "TUNE_ROWS=1 TUNE_KEYS=1"}};
    attn_problem p = attn_problem_create(&decode_case, 1);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int warnings = 0;
        char line[1024], again[1024];
        pagedcl_device *device = open_logged(bad[i].tier, &warnings);
        attn_rig rig = attn_rig_open(device, bad[i].tier, &p);
        values_of(&rig, line);
        attn_rig_close(&rig);
        take(device, line, bad[i].values);
        cr_expect_eq(warnings, 0);
        rig = attn_rig_open(device, bad[i].tier, &p);
        cr_expect_eq(warnings, 1, "%s: %d warnings", bad[i].values, warnings);
        values_of(&rig, again);
        cr_expect_str_eq(again, line);
        attn_rig_close(&rig);
        pagedcl_device_destroy(device);
    }
    attn_problem_destroy(&p);
}

/* Rows of a tile, and in the cpu tier nothing else, may change without a bit of the result. */
Test(tuning, other_rows_give_the_same_bits) {
    static const char *const values[] = {"TUNE_ROWS=1 TUNE_FEW_ROWS=1", "TUNE_ROWS=4 TUNE_FEW_ROWS=4",
                                         "TUNE_ROWS=16 TUNE_FEW_ROWS=16"};
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&decode_case, 1);
    char line[1024];
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_CPU, &p);
    values_of(&rig, line);
    attn_rig_close(&rig);
    size_t size = (size_t)p.cu_seqlens_q[p.c.num_seqs] * (size_t)p.num_heads * (size_t)p.c.head_dim * sizeof(float);
    attn_result first = attn_solve(device, PAGEDCL_TIER_CPU, &p);
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        take(device, line, values[i]);
        attn_result other = attn_solve(device, PAGEDCL_TIER_CPU, &p);
        cr_expect_eq(memcmp(first.out, other.out, size), 0, "%s gives other bits", values[i]);
        attn_result_destroy(&other);
    }
    attn_result_destroy(&first);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}

Test(tuning, entries_of_others_are_not_taken) {
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&decode_case, 1);
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_CPU, &p);
    char line[1024], again[1024], text[4096];
    values_of(&rig, line);
    attn_rig_close(&rig);
    cr_expect_eq(take(device, line, "TUNE_ROWS=1 TUNE_FEW_ROWS=1"), 1);
    /* Another driver: what was taken is dropped, and the library's own sizes are back. */
    size_t count = 77;
    snprintf(text, sizeof text, HEAD "x%s\n", line);
    expect_ok(pagedcl_device_tune(device, text, strlen(text), &count));
    cr_expect_eq(count, 0);
    rig = attn_rig_open(device, PAGEDCL_TIER_CPU, &p);
    values_of(&rig, again);
    cr_expect_str_eq(again, line);
    /* A text that is none changes nothing. */
    cr_expect_eq(take(device, line, "TUNE_ROWS=1 TUNE_FEW_ROWS=1"), 1);
    expect_refused(pagedcl_device_tune(device, "x", 1, &count), PAGEDCL_INVALID_ARGUMENT, "line 1");
    snprintf(text, sizeof text, HEAD "%s\n%s\n", line, line);
    expect_refused(pagedcl_device_tune(device, text, strlen(text), NULL), PAGEDCL_INVALID_ARGUMENT,
                   "line 3: the family");
    attn_rig_close(&rig);
    rig = attn_rig_open(device, PAGEDCL_TIER_CPU, &p);
    cr_expect(strstr(values_of(&rig, again), "TUNE_ROWS=1 "), "%s", again);

    expect_refused(pagedcl_device_tune(NULL, "", 0, NULL), PAGEDCL_INVALID_ARGUMENT, "device");
    expect_refused(pagedcl_attn_get_tuning(NULL, PAGEDCL_PATH_DECODE, line, 9), PAGEDCL_INVALID_ARGUMENT, "attn");
    expect_refused(pagedcl_attn_get_tuning(rig.attn, PAGEDCL_PATH_ALL, line, 9), PAGEDCL_INVALID_ARGUMENT, "path 0");
    attn_rig_close(&rig);
    attn_problem_destroy(&p);
    pagedcl_device_destroy(device);
}

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    cr_assert(file);
    fputs(text, file);
    fclose(file);
}

Test(tuning, a_device_opens_with_a_file) {
    char *folder = temp_folder_create(), path[512], line[1024], again[1024], text[4096];
    snprintf(path, sizeof path, "%s/tuning.txt", folder);
    pagedcl_device *device = fixture_open();
    attn_problem p = attn_problem_create(&decode_case, 1);
    attn_rig rig = attn_rig_open(device, PAGEDCL_TIER_CPU, &p);
    values_of(&rig, line);
    attn_rig_close(&rig);
    pagedcl_device_destroy(device);

    snprintf(text, sizeof text, HEAD "%.*s\tTUNE_ROWS=1 TUNE_FEW_ROWS=1\n", (int)(strrchr(line, '\t') - line), line);
    write_file(path, text);
    pagedcl_device_options options = PAGEDCL_DEVICE_OPTIONS_INIT;
    for (int by_environment = 0; by_environment <= 1; by_environment++) {
        options.tuning = by_environment ? NULL : path;
        setenv("PAGEDCL_TUNING", by_environment ? path : "/nonexistent", 1);
        expect_ok(pagedcl_device_open(NULL, &options, &device));
        rig = attn_rig_open(device, PAGEDCL_TIER_CPU, &p);
        cr_expect(strstr(values_of(&rig, again), "TUNE_ROWS=1 "), "%s", again);
        attn_rig_close(&rig);
        pagedcl_device_destroy(device);
    }
    options.tuning = ""; /* whatever the environment says */
    expect_ok(pagedcl_device_open(NULL, &options, &device));
    rig = attn_rig_open(device, PAGEDCL_TIER_CPU, &p);
    values_of(&rig, again);
    cr_expect_str_eq(again, line);
    attn_rig_close(&rig);
    pagedcl_device_destroy(device);

    options.tuning = path;
    write_file(path, "something else\n");
    expect_refused(pagedcl_device_open(NULL, &options, &device), PAGEDCL_INVALID_ARGUMENT, path);
    write_file(path, "");
    expect_refused(pagedcl_device_open(NULL, &options, &device), PAGEDCL_INVALID_ARGUMENT, "is empty");
    options.tuning = folder;
    expect_refused(pagedcl_device_open(NULL, &options, &device), PAGEDCL_IO_ERROR, folder);
    options.tuning = NULL;
    setenv("PAGEDCL_TUNING", "/nonexistent", 1);
    expect_refused(pagedcl_device_open(NULL, &options, &device), PAGEDCL_IO_ERROR, "/nonexistent: No such file");
    attn_problem_destroy(&p);
    temp_folder_remove(folder);
}
