/* SPDX-License-Identifier: Apache-2.0 */
/* pagedcl bench from outside, over cells that take moments. What its times are cannot be tested: all else is. */
#define _POSIX_C_SOURCE 200809L

#include "support/fixture.h"
#include "support/temp_folder.h"
#include "support/tool.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <jansson.h>
#include <pagedcl/version.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char *folder;
static char path[512]; /* of the JSON document */

static void make_folder(void) {
    folder = temp_folder_create();
    snprintf(path, sizeof path, "%s/run.json", folder);
}

static void remove_folder(void) {
    temp_folder_remove(folder);
}

TestSuite(bench, .init = make_folder, .fini = remove_folder);

#define RUN(...) tool_run_with((const char *const[]){"bench", __VA_ARGS__, NULL}, (const char *const[]){NULL})
#define ALL_KINDS "--kind=decode,prefill,step,write,gather,copy,merge"
/* Caches can be so large that each run would flush them for seconds. */
#define FLUSH "--flush=8"
#define TINY \
    FLUSH, "--heads=14", "--kv-heads=2", "--head-dim=80", "--batch=3", "--context=17", "--ragged", "--time=0.01"

static json_t *load_document(void) {
    json_error_t error;
    json_t *document = json_load_file(path, 0, &error);
    cr_assert(document, "%s: %s", path, error.text);
    return document;
}

static const json_t *row_of(const json_t *document, size_t index) {
    const json_t *row = json_array_get(json_object_get(document, "benchmarks"), index);
    cr_assert(row, "no row %zu", index);
    return row;
}

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    cr_assert(text, "no text \"%s\"", key);
    return text;
}

static double number_of(const json_t *object, const char *key) {
    const json_t *number = json_object_get(object, key);
    cr_assert(json_is_number(number), "no number \"%s\"", key);
    return json_number_value(number);
}

static void expect_exit(tool_run *run, int status) {
    cr_assert_eq(run->exit_status, status, "exit status %d\n%s%s", run->exit_status, run->out, run->err);
}

static void expect_text(const char *text, const char *wanted) {
    cr_expect(strstr(text, wanted), "no \"%s\" in:\n%s", wanted, text);
}

/* What docs/bench.md promises of a row that passed. */
static void check_row(const json_t *row) {
    static const char *const spreads[] = {"device_us", "host_us"};
    const char *name = text_of(row, "name");
    cr_expect_str_eq(text_of(row, "result"), "pass", "%s: %s", name, text_of(row, "message"));
    for (size_t i = 0; i < 2; i++) {
        const json_t *spread = json_object_get(row, spreads[i]);
        cr_expect_gt(number_of(spread, "min"), 0, "%s", name);
        cr_expect_leq(number_of(spread, "min"), number_of(spread, "low"), "%s", name);
        cr_expect_leq(number_of(spread, "low"), number_of(spread, "median"), "%s", name);
        cr_expect_leq(number_of(spread, "median"), number_of(spread, "high"), "%s", name);
        cr_expect_leq(number_of(spread, "high"), number_of(spread, "max"), "%s", name);
    }
    cr_expect_eq(number_of(row, "cpu_time"), number_of(json_object_get(row, "device_us"), "median"));
    cr_expect_eq(number_of(row, "real_time"), number_of(json_object_get(row, "host_us"), "median"));
    cr_expect_str_eq(text_of(row, "time_unit"), "us");
    cr_expect_str_eq(text_of(row, "blocks"), "shuffled");
    cr_expect_str_eq(text_of(row, "cache"), "cold");
    cr_expect_str_eq(text_of(row, "layout"), "NHD");
    cr_expect_str_eq(text_of(row, "splits"), "fixed");
    double seconds = number_of(row, "cpu_time") * 1e-6;
    double bytes = number_of(row, "bytes");
    cr_expect_float_eq(number_of(row, "bytes_per_second") * seconds, bytes, 1e-6 * bytes, "%s", name);
    cr_expect_gt(number_of(row, "roof_share"), 0, "%s", name);
    cr_expect_gt(number_of(row, "checked_rows"), 0, "%s", name);
    cr_expect_eq(number_of(row, "checked_rows"), number_of(row, "all_rows"), "%s is small: all of it is checked", name);
    cr_expect_leq(number_of(row, "error_of_allowed"), 1, "%s", name);
    const json_t *variants = json_object_get(row, "variants");
    cr_expect_gt(json_array_size(variants), 0, "%s", name);
    cr_expect(strstr(json_string_value(json_array_get(variants, 0)), "="), "%s", name);
}

Test(bench, measures_every_kind) {
    tool_run run = RUN(ALL_KINDS, TINY, "--json", path);
    expect_exit(&run, 0);
    expect_text(run.out, "7 measured, 0 failed");
    expect_text(run.out, "shuffled");
    tool_run_free(&run);
    json_t *document = load_document();
    const json_t *context = json_object_get(document, "context"), *roofs = json_object_get(context, "roofs");
    cr_expect_str_eq(text_of(context, "schema"), "pagedcl-bench-1");
    cr_expect_eq(number_of(context, "contract"), PAGEDCL_CONTRACT_VERSION);
    cr_expect_str_eq(text_of(context, "host_name"), text_of(json_object_get(context, "device"), "name"),
                     "a run that is shown to others names no host");
    text_of(context, "version");
    text_of(context, "commit");
    text_of(json_object_get(context, "device"), "name");
    text_of(json_object_get(context, "device"), "driver_version");
    cr_expect_gt(number_of(roofs, "read_bytes_per_second"), 0);
    cr_expect_gt(number_of(roofs, "write_bytes_per_second"), 0);
    cr_expect_gt(number_of(roofs, "copy_bytes_per_second"), 0);
    cr_expect_gt(number_of(roofs, "multiply_add_float32_per_second"), 0);
    cr_expect_gt(number_of(roofs, "launch_us"), 0);
    cr_expect_leq(number_of(context, "flush_bytes"), 64 << 20, "8 MiB, and on a GPU 64");
    cr_expect_eq(json_array_size(json_object_get(document, "benchmarks")), 7);
    for (size_t i = 0; i < 7; i++)
        check_row(row_of(document, i));

    /* Lengths 1 (0.07 of a token), 1 (1.1) and 17: K and V of 2 heads once, q and out of 14 heads for 3 tokens. */
    const json_t *decode = row_of(document, 0);
    cr_expect_str_eq(text_of(decode, "name"), "decode/14x2x80/float16/ragged3x17");
    cr_expect_eq(number_of(decode, "bytes"), (19 * 2 + 3 * 14) * 2 * 80 * 2);
    cr_expect_eq(number_of(decode, "operations"), 4 * 14 * 19 * 80);
    cr_expect_str_eq(text_of(json_object_get(decode, "baseline"), "result"), "pass");
    const json_t *prefill = row_of(document, 1); /* of 17 tokens, 17 * 18 / 2 pairs */
    cr_expect_eq(number_of(prefill, "operations"), 4 * 14 * (153 + 2) * 80);
    json_decref(document);
}

Test(bench, measures_every_feature_and_dtype) {
    static const char *const cells[][3] = {
        {"--window=5", "--dtype=float32", "decode/14x2x80-window5/float32/ragged3x17"},
        {"--softcap=2", "--dtype=bfloat16", "decode/14x2x80-softcap2/bfloat16/ragged3x17"},
        {"--sinks", "--dtype=float8_e4m3", "decode/14x2x80-sinks/float8_e4m3/ragged3x17"},
        {"--head-dim-v=64", "--v-in-k", "decode/14x2x80x64-latent/float16/ragged3x17"},
        {"--dtype=int4", "--sinks", "decode/14x2x80-sinks/int4/ragged3x17"},
        {"--dtype=int8", "--sequential", "decode/14x2x80/int8/ragged3x17/sequential"},
        {"--layout=hnd", "--dtype=float32", "decode/14x2x80/float32/ragged3x17/hnd"},
        {"--splits=fast", "--layout=hnd", "decode/14x2x80/float16/ragged3x17/hnd/fast"},
        {"--block-size=8", "--warm", "decode/14x2x80/float16/ragged3x17/block8/warm"},
    };
    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++) {
        tool_run run = RUN(TINY, "--kind=decode,prefill,step,write", "--no-baseline", cells[i][0], cells[i][1]);
        expect_exit(&run, 0);
        expect_text(run.out, cells[i][2]);
        expect_text(run.out, "4 measured, 0 failed");
        tool_run_free(&run);
    }
}

/* A copy of a source in which one text stands for another. */
static void plant(const char *from, const char *to, const char *text, const char *fault) {
    char line[1024];
    FILE *in = fopen(from, "r"), *out = fopen(to, "w");
    cr_assert(in && out, "cannot copy %s to %s", from, to);
    while (fgets(line, sizeof line, in)) {
        const char *rest = line;
        for (const char *at; (at = strstr(rest, text)); rest = at + strlen(text))
            fprintf(out, "%.*s%s", (int)(at - rest), rest, fault);
        fputs(rest, out);
    }
    fclose(in);
    cr_assert_eq(fclose(out), 0);
}

/* The kernels of the tree, with faults: sums that are off by a thousandth, or copies by work-items that do another's
   work. */
static void plant_faults(const char *part, bool in_copies) {
    char from[1024], to[1024];
    snprintf(from, sizeof from, "%s%s", KERNEL_DIR, part);
    DIR *kernels = opendir(from);
    cr_assert(kernels, "cannot open %s", from);
    for (struct dirent *entry; (entry = readdir(kernels));) {
        const char *name = entry->d_name;
        if (name[0] == '.')
            continue;
        snprintf(from, sizeof from, "%s%s/%s", KERNEL_DIR, part, name);
        snprintf(to, sizeof to, "%s%s/%s", folder, part, name);
        if (!strchr(name, '.')) {
            cr_assert_eq(mkdir(to, 0700), 0, "cannot make %s", to);
            snprintf(from, sizeof from, "%s/%s", part, name);
            plant_faults(from, in_copies);
        } else if (in_copies && strcmp(part, "/cache") == 0) {
            plant(from, to, "get_global_id(0)", "(get_global_id(0) & ~(size_t)1)");
        } else {
            plant(from, to, " log(", in_copies ? " log(" : " 0.001f + log(");
        }
    }
    closedir(kernels);
}

static void expect_failures(const char *kind, const char *dtype, const char *reason) {
    char kinds[64], variable[600];
    snprintf(kinds, sizeof kinds, "--kind=%s", kind);
    snprintf(variable, sizeof variable, "PAGEDCL_KERNEL_DIR=%s", folder);
    tool_run run =
        tool_run_with((const char *const[]){"bench", kinds, dtype, TINY, "--no-baseline", "--json", path, NULL},
                      (const char *const[]){variable, NULL});
    expect_exit(&run, 1);
    expect_text(run.out, "FAIL  wrong result: ");
    expect_text(run.out, reason);
    tool_run_free(&run);
    json_t *document = load_document();
    for (size_t i = 0; i < json_array_size(json_object_get(document, "benchmarks")); i++) {
        const json_t *row = row_of(document, i);
        cr_expect_str_eq(text_of(row, "result"), "fail", "%s passed", text_of(row, "name"));
        cr_expect(json_is_true(json_object_get(row, "error_occurred")));
        text_of(row, "error_message");
        cr_expect_null(json_object_get(row, "real_time"), "a failed row has no times");
        cr_expect(json_is_null(json_object_get(json_object_get(row, "device_us"), "median")));
    }
    json_decref(document);
}

Test(bench, a_wrong_result_is_shown_and_not_timed) {
    plant_faults("", false);
    expect_failures("merge", "--dtype=float16", "the LSE of row 0");
    expect_failures("decode", "--dtype=float16", "lse[0,0]");
}

Test(bench, a_wrong_copy_is_shown_and_not_timed) {
    plant_faults("", true);
    expect_failures("write,gather,copy", "--dtype=float16", "K of token ");
    /* A write of int4 is by every fourth work-item. */
    expect_failures("gather,copy", "--dtype=int4", "K of token ");
}

/* All times of the stored run, times a factor. */
static void scale_times(double factor) {
    json_t *document = load_document(), *row;
    size_t i;
    json_array_foreach(json_object_get(document, "benchmarks"), i, row) {
        const char *key;
        json_t *value;
        json_object_foreach(json_object_get(row, "device_us"), key, value)
            json_real_set(value, json_real_value(value) * factor);
    }
    cr_assert_eq(json_dump_file(document, path, 0), 0);
    json_decref(document);
}

static tool_run check_merge(void) {
    return RUN("--kind=merge", TINY, "--check", path);
}

Test(bench, check_finds_what_is_slower) {
    tool_run run = RUN("--kind=merge", TINY, "--json", path);
    expect_exit(&run, 0);
    tool_run_free(&run);

    scale_times(1e-3); /* it was fast once */
    run = check_merge();
    expect_exit(&run, 1);
    expect_text(run.out, "SLOWER");
    expect_text(run.out, "1 compared, 1 slower");
    tool_run_free(&run);

    scale_times(1e6);
    run = check_merge();
    expect_exit(&run, 0);
    expect_text(run.out, "faster");
    expect_text(run.out, "1 compared, 0 slower");
    tool_run_free(&run);

    run = RUN("--kind=merge", TINY, "--layers=2", "--dtype=float32", "--check", path);
    expect_exit(&run, 1);
    expect_text(run.out, "n/a: no cell of this run is in");
    tool_run_free(&run);
}

Test(bench, nothing_to_measure_is_told) {
    tool_run run = RUN("--filter=^nothing$", "--time=0.01", "--json", path);
    expect_exit(&run, 1);
    expect_text(run.out, "0 measured, 0 failed");
    expect_text(run.out, "n/a");
    tool_run_free(&run);
    json_t *document = load_document();
    cr_expect_eq(json_array_size(json_object_get(document, "benchmarks")), 0);
    cr_expect(json_is_array(json_object_get(document, "benchmarks")));
    cr_expect_gt(number_of(json_object_get(document, "context"), "flush_bytes"), 64 << 20, "by the device's caches");
    json_decref(document);
}

Test(bench, what_cannot_be_done_is_skipped) {
    tool_run run = RUN(FLUSH, "--batch=1024", "--context=1048576", "--time=0.01", "--json", path);
    expect_exit(&run, 1); /* nothing was measured */
    expect_text(run.out, "skipped");
    expect_text(run.out, "GiB");
    tool_run_free(&run);
    json_t *document = load_document();
    cr_expect_str_eq(text_of(row_of(document, 0), "result"), "skip");
    json_decref(document);

    run = RUN(FLUSH, "--batch=65536", "--context=16777216", "--layers=1", "--time=0.01");
    expect_exit(&run, 1);
    expect_text(run.out, "more than a pool can have");
    tool_run_free(&run);
}

/* With rows of int4 that end within a byte and within the elements of a scale. */
Test(bench, moves_quantised_pools) {
    static const char *const dtypes[] = {"--dtype=int8", "--dtype=float8_e5m2", "--dtype=int4"};
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        for (int hnd = 0; hnd < 2; hnd++) {
            tool_run run = RUN(TINY, "--kind=write,gather,copy", dtypes[i], "--head-dim=81", "--head-dim-v=33",
                               hnd ? "--layout=hnd" : "--layout=nhd");
            expect_exit(&run, 0);
            expect_text(run.out, "3 measured, 0 failed");
            tool_run_free(&run);
        }
    }
}

/* In sequences of several parts. */
Test(bench, layouts_and_splits_are_told) {
    tool_run run = RUN(ALL_KINDS, FLUSH, "--heads=4", "--kv-heads=2", "--head-dim=80", "--batch=2", "--context=1100",
                       "--query=1", "--layers=2", "--time=0.01", "--layout=hnd", "--splits=fast", "--json", path);
    expect_exit(&run, 0);
    expect_text(run.out, "7 measured, 0 failed");
    expect_text(run.out, "shuffled   HND    fast");
    expect_text(run.out, "shuffled   HND    -");
    expect_text(run.out, "-          -      -");
    tool_run_free(&run);
    static const char *const wanted[][3] = {
        {"decode/4x2x80/float16/2x1100/query1/hnd/fast", "HND", "fast"},
        {"prefill/4x2x80/float16/2x1100/query1/hnd", "HND", "fixed"},
        {"step/4x2x80/float16/2x1100/query1/layers2/hnd/fast", "HND", "fast"},
        {"write/4x2x80/float16/2x1100/hnd", "HND", "fixed"},
        {"gather/4x2x80/float16/2x1100/hnd", "HND", "fixed"},
        {"copy/4x2x80/float16/2x1100/hnd", "HND", "fixed"},
        {"merge/4x2x80/float16/2x1100", "NHD", "fixed"},
    };
    json_t *document = load_document();
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        const json_t *row = row_of(document, i);
        cr_expect_str_eq(text_of(row, "name"), wanted[i][0]);
        cr_expect_str_eq(text_of(row, "result"), "pass");
        cr_expect_str_eq(text_of(row, "layout"), wanted[i][1], "%s", wanted[i][0]);
        cr_expect_str_eq(text_of(row, "splits"), wanted[i][2], "%s", wanted[i][0]);
    }
    json_decref(document);
}

/* Two rows of 80 elements a token, of 40 bytes with three scales of two bytes. */
Test(bench, counts_the_bytes_of_int4) {
    tool_run run = RUN(TINY, "--kind=gather,copy", "--dtype=int4", "--json", path);
    expect_exit(&run, 0);
    tool_run_free(&run);
    json_t *document = load_document();
    cr_expect_eq(number_of(row_of(document, 0), "bytes"), 19 * 2 * 2 * (40 + 6 + 80 * 4));
    cr_expect_eq(number_of(row_of(document, 1), "bytes"), 4 * 16 * 2 * 2 * (40 + 6) * 2);
    json_decref(document);
}

Test(bench, lists_the_cells_that_match) {
    tool_run run = RUN("--list", "--quick", "--filter", "^(write|merge)/");
    expect_exit(&run, 0);
    cr_expect_eq(tool_lines(run.out), 2, "%s", run.out);
    expect_text(run.out, "write/");
    tool_run_free(&run);
    int lines[3];
    static const char *const sets[] = {"--set=cpu", "--set=gpu", "--set=all"};
    for (size_t i = 0; i < 3; i++) {
        run = RUN("--list", sets[i]);
        expect_exit(&run, 0);
        lines[i] = tool_lines(run.out);
        tool_run_free(&run);
    }
    cr_expect(lines[0] > 20 && lines[1] > 20 && lines[2] > lines[1] && lines[2] <= lines[0] + lines[1],
              "%d, %d and %d cells", lines[0], lines[1], lines[2]);
}

static void expect_refused(tool_run run, const char *reason) {
    cr_expect_eq(run.exit_status, 2, "exit status %d\n%s", run.exit_status, run.err);
    cr_expect_eq(tool_lines(run.err), 1, "%s", run.err);
    cr_expect_str_eq(run.out, "");
    expect_text(run.err, reason);
    tool_run_free(&run);
}

static void write_text(const char *text) {
    FILE *file = fopen(path, "w");
    cr_assert(file);
    fputs(text, file);
    cr_assert_eq(fclose(file), 0);
}

Test(bench, wrong_use_is_refused) {
    expect_refused(RUN("--kind=fly"), "--kind is \"fly\"; it must be decode");
    expect_refused(RUN("--kind=decode,"), "--kind is");
    expect_refused(RUN("--tier=none"), "--tier is \"none\"");
    expect_refused(RUN("--set=none"), "--set is \"none\"");
    expect_refused(RUN("--dtype=float64"), "--dtype is \"float64\"");
    expect_refused(RUN("--layout=nhwc"), "--layout is \"nhwc\"; it must be nhd or hnd");
    expect_refused(RUN("--splits=4"), "--splits is \"4\"; it must be fixed or fast");
    expect_refused(RUN("--batch=0"), "--batch is \"0\"; it must be a whole number from 1 to");
    expect_refused(RUN("--flush=0"), "--flush is \"0\"; it must be a whole number from 1 to");
    expect_refused(RUN("--head-dim=577"), "--head-dim is \"577\"");
    expect_refused(RUN("--time=-1"), "--time is \"-1\"; it must be a number above 0");
    expect_refused(RUN("--filter=("), "which is no regular expression");
    expect_refused(RUN("--model=gpt-1"), "no model \"gpt-1\"; there are qwen3-0.6b, llama3-8b");
    expect_refused(RUN("--heads=7", "--kv-heads=2"), "7 query heads are no multiple of 2 KV heads");
    expect_refused(RUN("--unknown"), "unrecognized option");
    expect_refused(RUN("file"), "\"file\" is no option");
    expect_refused(RUN("--device=no such device"), "no such device");
    expect_refused(RUN("--check=/nonexistent/run.json"), "/nonexistent/run.json: No such file");
    expect_refused(RUN("--kind=merge", TINY, "--json=/nonexistent/run.json"), "/nonexistent/run.json");
}

Test(bench, stored_runs_are_hostile) {
    static const char *const bad[][2] = {
        {"", "line"},
        {"[]", "no run of pagedcl bench"},
        {"{\"context\": {\"schema\": \"other\"}, \"benchmarks\": []}", "no run of pagedcl bench"},
        {"{\"context\": {\"schema\": \"pagedcl-bench-1\"}, \"benchmarks\": []}", "device has no name"},
        {"{\"context\": {\"schema\": \"pagedcl-bench-1\", \"device\": {\"name\": \"x\"}}}", "no list"},
        {"{\"context\": {\"schema\": \"pagedcl-bench-1\", \"device\": {\"name\": \"x\"}}, \"benchmarks\": [3]}",
         "benchmarks[0] has no name"},
        {"{\"context\": {\"schema\": \"pagedcl-bench-1\", \"device\": {\"name\": \"x\"}}, \"benchmarks\": "
         "[{\"name\": \"a\", \"result\": \"pass\", \"device_us\": {\"median\": 0}}]}",
         "benchmarks[0] passed"},
        {"{\"context\": {\"schema\": \"pagedcl-bench-1\", \"device\": {\"name\": \"x\"}}, \"benchmarks\": []}",
         "is of the device \"x\", and this is"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_text(bad[i][0]);
        expect_refused(RUN("--check", path), bad[i][1]);
    }
}
