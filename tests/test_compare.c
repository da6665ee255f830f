/* SPDX-License-Identifier: Apache-2.0 */
/* pagedcl compare from outside, over runs that are made up here. */
#define _POSIX_C_SOURCE 200809L

#include "support/temp_folder.h"
#include "support/tool.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *folder;
static char paths[3][512], page[512];

static void make_folder(void) {
    folder = temp_folder_create();
    for (int i = 0; i < 3; i++)
        snprintf(paths[i], sizeof paths[i], "%s/%c.json", folder, 'a' + i);
    snprintf(page, sizeof page, "%s/page.html", folder);
}

static void remove_folder(void) {
    temp_folder_remove(folder);
}

TestSuite(compare, .init = make_folder, .fini = remove_folder);

#define COMPARE(...) tool_run_with((const char *const[]){"compare", __VA_ARGS__, NULL}, (const char *const[]){NULL})

/* ---- runs ---- */

/* Reads 1 TB/s, multiplies 10 TFLOP/s. */
static json_t *make_run(const char *device) {
    json_t *run = json_pack(
        "{s:{s:s, s:i, s:s, s:s, s:s, s:{s:s, s:s, s:s, s:s}, s:{s:f, s:f, s:f, s:f, s:n, s:f}}, s:[]}", "context",
        "schema", "pagedcl-bench-1", "contract", 1, "version", "0.1.0", "commit", "abc", "date", "2026-01-01T00:00:00Z",
        "device", "name", device, "platform", "P", "driver_version", "1.2", "tier", "cpu", "roofs",
        "read_bytes_per_second", 1e12, "write_bytes_per_second", 1e12, "copy_bytes_per_second", 1e12,
        "multiply_add_float32_per_second", 1e13, "matrix_float16_per_second", "launch_us", 5.0, "benchmarks");
    cr_assert(run);
    return run;
}

/* A decode or prefill that takes `us`, and needs 10^6 bytes and 2 * 10^6 operations for each sequence. */
static json_t *add_row(json_t *run, const char *kind, int batch, int context, double us) {
    char name[64];
    snprintf(name, sizeof name, "%s/m/float16/%dx%d", kind, batch, context);
    double bytes = 1e6 * batch, operations = 2e6 * batch;
    json_t *row = json_pack(
        "{s:s, s:s, s:s, s:s, s:{s:s, s:s, s:i, s:i, s:b, s:n, s:i}, s:s, s:s, s:{s:f, s:f, s:f}, s:f, s:f, s:f, s:f, "
        "s:s, s:f}",
        "name", name, "kind", kind, "result", "pass", "message", "", "shape", "model", "m", "dtype", "float16", "batch",
        batch, "context", context, "ragged", 0, "query", "layers", 1, "blocks", "shuffled", "cache", "cold",
        "device_us", "median", us, "low", us * 0.99, "high", us * 1.01, "bytes", bytes, "operations", operations,
        "bytes_per_second", bytes / us * 1e6, "operations_per_second", operations / us * 1e6, "roof", "read",
        "roof_share", bytes / us * 1e6 / 1e12);
    cr_assert(row);
    json_array_append_new(json_object_get(run, "benchmarks"), row);
    return row;
}

static void spoil(json_t *row, const char *result, const char *message) {
    json_object_set_new(row, "result", json_string(result));
    json_object_set_new(row, "message", json_string(message));
}

/* Writes the run, and drops it. */
static void save(json_t *run, int number) {
    cr_assert_eq(json_dump_file(run, paths[number], 0), 0);
    json_decref(run);
}

static char *read_file(const char *path) {
    FILE *file = fopen(path, "r");
    cr_assert(file, "%s was not written", path);
    size_t capacity = 1 << 20;
    char *text = malloc(capacity);
    size_t size = fread(text, 1, capacity - 1, file);
    text[size] = '\0';
    fclose(file);
    return text;
}

static int occurrences(const char *text, const char *wanted) {
    int count = 0;
    for (const char *at = text; (at = strstr(at, wanted)) != NULL; at += strlen(wanted))
        count++;
    return count;
}

static void expect_text(const char *text, const char *wanted) {
    cr_expect(strstr(text, wanted), "no \"%s\" in:\n%.4000s", wanted, text);
}

/* ---- what is shown ---- */

Test(compare, shows_runs_side_by_side) {
    json_t *a = make_run("card one"), *b = make_run("card two");
    add_row(a, "decode", 4, 1024, 8);
    add_row(a, "decode", 8, 1024, 20);
    add_row(b, "decode", 4, 1024, 32);
    add_row(b, "decode", 8, 1024, 10);
    save(a, 0);
    save(b, 1);
    tool_run run = COMPARE(paths[0], paths[1]);
    cr_assert_eq(run.exit_status, 0, "%s", run.err);
    expect_text(run.out, "A  card one, driver 1.2, tier cpu");
    /* 4 MB in 8 us are 500 GB/s, half of the roof; in 32 us a quarter as fast. */
    expect_text(run.out, "8.00 us       500 GB/s  50 %");
    expect_text(run.out, "32.0 us       125 GB/s  12 %   0.25x");
    expect_text(run.out, "   2.00x");
    expect_text(run.out, "B is 0.71 times as fast as A, the geometric mean of 2");
    tool_run_free(&run);

    run = COMPARE("--markdown", paths[0], paths[1]);
    cr_assert_eq(run.exit_status, 0, "%s", run.err);
    expect_text(run.out, "| decode/m/float16/4x1024 | 8.00 us | 500 GB/s | 50 % | 32.0 us | 125 GB/s | 12 % | 0.25x |");
    tool_run_free(&run);

    run = COMPARE(paths[0]);
    cr_assert_eq(run.exit_status, 0, "%s", run.err);
    expect_text(run.out, "card one");
    tool_run_free(&run);
}

Test(compare, failed_skipped_and_missing_cells_have_no_times) {
    json_t *a = make_run("one"), *b = make_run("two"), *c = make_run("three");
    add_row(a, "decode", 1, 1024, 2);
    add_row(a, "decode", 1, 2048, 2);
    spoil(add_row(b, "decode", 1, 1024, 2), "fail", "wrong result: 1 for 2");
    add_row(b, "decode", 1, 4096, 2);
    json_t *skipped = add_row(c, "decode", 1, 1024, 2);
    spoil(skipped, "skip", "it takes 9 GiB");
    json_object_set_new(skipped, "bytes", json_real(0)); /* as what could not begin */
    json_object_set_new(skipped, "operations", json_null());
    save(a, 0);
    save(b, 1);
    save(c, 2);
    tool_run run = COMPARE(paths[0], paths[1], paths[2], "--html", page);
    cr_assert_eq(run.exit_status, 0, "%s", run.err);
    expect_text(run.out, "FAIL");
    expect_text(run.out, "B  decode/m/float16/1x1024: FAIL: wrong result: 1 for 2");
    expect_text(run.out, "C  decode/m/float16/1x1024: skipped: it takes 9 GiB");
    cr_expect_eq(occurrences(run.out, "times as fast"), 0, "nothing is in two runs:\n%s", run.out);
    tool_run_free(&run);
    char *html = read_file(page);
    expect_text(html, "<td class=\"first fail\" colspan=\"4\">FAIL</td>");
    expect_text(html, "wrong result: 1 for 2");
    expect_text(html, "it takes 9 GiB");
    expect_text(html, "B FAIL</tspan>");
    free(html);
}

/* What docs/bench.md promises of the page; a browser sees it in tests/page. */
Test(compare, the_page_has_a_table_behind_each_chart) {
    static const char *const ids[] = {"roofline", "bandwidth", "operations", "share", "context-0", "batch-0"};
    json_t *a = make_run("one"), *b = make_run("two");
    for (int i = 0; i < 3; i++) {
        add_row(a, "decode", 1, 1024 << i, 2 << i);
        add_row(b, "decode", 1, 1024 << i, 3 << i);
        add_row(a, "prefill", 2 << i, 512, 40);
        add_row(b, "prefill", 2 << i, 512, 41);
    }
    save(a, 0);
    save(b, 1);
    tool_run run = COMPARE(paths[0], paths[1], "--html", page);
    cr_assert_eq(run.exit_status, 0, "%s", run.err);
    tool_run_free(&run);
    char *html = read_file(page);
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        char text[128];
        snprintf(text, sizeof text, "<figure id=\"%s\">", ids[i]);
        expect_text(html, text);
        snprintf(text, sizeof text, "aria-labelledby=\"%s-title\" aria-describedby=\"%s-desc\"", ids[i], ids[i]);
        expect_text(html, text);
        snprintf(text, sizeof text, "<desc id=\"%s-desc\">", ids[i]);
        expect_text(html, text);
    }
    int figures = occurrences(html, "<figure");
    cr_expect_eq(figures, 6);
    cr_expect_eq(occurrences(html, "<desc"), figures);
    cr_expect_eq(occurrences(html, "<summary>"), figures);
    cr_expect_eq(occurrences(html, "<table"), figures + 3);
    expect_text(html, "from 1024 to 4096: from 2 \xc2\xb5s to 12 \xc2\xb5s.");
    cr_expect_eq(occurrences(html, "://"), 0, "the page names another place");
    cr_expect_eq(occurrences(html, "<script"), 0);
    cr_expect_eq(occurrences(html, "src="), 0);
    cr_expect_eq(occurrences(html, "nan"), 0);
    cr_expect_eq(occurrences(html, "inf"), 0);
    free(html);
}

/* A run that measured nothing, and one whose roofs were not measured. */
Test(compare, what_is_not_known_is_not_drawn) {
    json_t *a = make_run("one"), *roofs, *value;
    save(a, 0);
    tool_run run = COMPARE(paths[0], "--html", page);
    cr_assert_eq(run.exit_status, 0, "%s", run.err);
    tool_run_free(&run);
    char *html = read_file(page);
    cr_expect_eq(occurrences(html, "<figure"), 0);
    free(html);

    const char *key;
    a = make_run("one");
    roofs = json_object_get(json_object_get(a, "context"), "roofs");
    json_object_foreach(roofs, key, value) json_object_set_new(roofs, key, json_null());
    json_t *row = add_row(a, "decode", 4, 1024, 8);
    json_object_set_new(row, "roof", json_null());
    json_object_set_new(row, "roof_share", json_null());
    save(a, 0);
    run = COMPARE(paths[0], "--html", page);
    cr_assert_eq(run.exit_status, 0, "%s", run.err);
    tool_run_free(&run);
    html = read_file(page);
    cr_expect_eq(occurrences(html, "<figure"), 2, "roofline and bandwidth alone");
    cr_expect_eq(occurrences(html, "nan"), 0);
    cr_expect_eq(occurrences(html, "inf"), 0);
    free(html);
}

/* ---- what is hostile ---- */

Test(compare, texts_of_files_are_texts) {
    const char *evil = "</title><script>alert('&')</script>\"\033[31m\n";
    json_t *a = make_run(evil);
    json_t *context = json_object_get(a, "context"), *row = add_row(a, "decode", 1, 1024, 2);
    json_object_set_new(json_object_get(context, "device"), "driver_version", json_string(evil));
    json_object_set_new(context, "commit", json_string(evil));
    json_object_set_new(json_object_get(row, "shape"), "model", json_string(evil));
    json_object_set_new(row, "name", json_string(evil));
    row = add_row(a, "decode", 1, 2048, 2);
    json_object_set_new(json_object_get(row, "shape"), "model", json_string(evil));
    spoil(add_row(a, "decode", 2, 2048, 2), "fail", evil);
    save(a, 0);
    tool_run run = COMPARE(paths[0], "--html", page);
    cr_assert_eq(run.exit_status, 0, "%s", run.err);
    cr_expect_null(strchr(run.out, '\033'), "the terminal is commanded");
    tool_run_free(&run);
    run = COMPARE(paths[0], "--markdown");
    cr_assert_eq(run.exit_status, 0, "%s", run.err);
    cr_expect_null(strchr(run.out, '\033'));
    cr_expect_eq(occurrences(run.out, "\\<script"), occurrences(run.out, "<script"));
    tool_run_free(&run);
    char *html = read_file(page);
    cr_expect_eq(occurrences(html, "<script"), 0);
    cr_expect_eq(occurrences(html, "</title>"), occurrences(html, "<title"));
    cr_expect_null(strchr(html, '\033'));
    expect_text(html, "&lt;script&gt;alert(&#39;&amp;&#39;)");
    free(html);
}

static void expect_refused(tool_run run, const char *reason) {
    cr_expect_eq(run.exit_status, 2, "exit status %d for \"%s\"\n%s", run.exit_status, reason, run.err);
    cr_expect_eq(tool_lines(run.err), 1, "%s", run.err);
    cr_expect_str_eq(run.out, "");
    expect_text(run.err, reason);
    tool_run_free(&run);
}

/* Run 0 with a row, the given part of which is another; then compare it with run 1, which is whole. */
static void expect_damage(const char *part, const char *key, json_t *value, const char *reason) {
    json_t *a = make_run("one"), *row = add_row(a, "decode", 4, 1024, 8);
    json_t *context = json_object_get(a, "context");
    json_t *to = strcmp(part, "context") == 0  ? context
                 : strcmp(part, "roofs") == 0  ? json_object_get(context, "roofs")
                 : strcmp(part, "shape") == 0  ? json_object_get(row, "shape")
                 : strcmp(part, "spread") == 0 ? json_object_get(row, "device_us")
                                               : row;
    json_object_set_new(to, key, value);
    save(a, 0);
    json_t *b = make_run("two");
    add_row(b, "decode", 4, 1024, 8);
    save(b, 1);
    expect_refused(COMPARE(paths[1], paths[0], "--html", page), reason);
    cr_expect_null(fopen(page, "r"), "a page was written");
}

Test(compare, damaged_runs_are_refused) {
    expect_damage("context", "schema", json_string("pagedcl-bench-2"), "no run of pagedcl bench");
    expect_damage("context", "contract", json_null(), "no number \"contract\"");
    expect_damage("roofs", "read_bytes_per_second", json_string("fast"), "read_bytes_per_second");
    expect_damage("roofs", "launch_us", json_integer(-1), "launch_us");
    expect_damage("row", "kind", json_string("fly"), "no known kind");
    expect_damage("row", "kind", json_integer(3), "no known kind");
    expect_damage("row", "shape", json_array(), "no batch");
    expect_damage("row", "result", json_string("won"), "unknown result \"won\"");
    expect_damage("row", "bytes", json_string("many"), "no bytes");
    expect_damage("row", "bytes", json_real(8e6), "counts other bytes");
    expect_damage("row", "operations_per_second", json_real(1), "its rates are not");
    expect_damage("row", "roof", json_string("sky"), "roof_share");
    expect_damage("row", "roof_share", json_real(0.9), "roof_share");
    expect_damage("shape", "batch", json_integer(0), "no batch");
    expect_damage("shape", "context", json_integer(1LL << 40), "no batch");
    expect_damage("shape", "query", json_string("1"), "no query");
    expect_damage("spread", "median", json_real(1e9), "no device_us");
    expect_damage("spread", "low", json_real(-1), "no device_us");
}

Test(compare, runs_of_other_things_are_refused) {
    expect_damage("context", "contract", json_integer(2), "contract 2, and");
    expect_damage("shape", "block_size", json_integer(32), "another shape");
    expect_damage("shape", "dtype", json_string("float32"), "another shape");
    expect_damage("row", "cache", json_string("warm"), "another shape");
    expect_damage("row", "layout", json_string("HND"), "another shape");
    expect_damage("row", "layout", json_integer(1), "another shape");
    expect_damage("row", "splits", json_string("fast"), "another shape");
    expect_damage("row", "name", json_string("decode/other"), "no cell that another run has");
}

/* What was measured before rows named layouts and splits had these. */
Test(compare, older_runs_had_one_layout) {
    json_t *a = make_run("one"), *b = make_run("two");
    add_row(a, "decode", 4, 1024, 8);
    json_t *row = add_row(b, "decode", 4, 1024, 8);
    json_object_set_new(row, "layout", json_string("NHD"));
    json_object_set_new(row, "splits", json_string("fixed"));
    save(a, 0);
    save(b, 1);
    tool_run run = COMPARE(paths[0], paths[1]);
    cr_assert_eq(run.exit_status, 0, "%s", run.err);
    expect_text(run.out, "B is 1.00 times as fast as A");
    tool_run_free(&run);
}

Test(compare, files_are_hostile) {
    static const char *const texts[] = {"", "{", "[1]", "{\"context\": 1, \"context\": 2}", "\xff\xfe"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        FILE *file = fopen(paths[0], "w");
        fputs(texts[i], file);
        fclose(file);
        expect_refused(COMPARE(paths[0]), paths[0]);
    }
    char deep[20002];
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = '\0';
    FILE *file = fopen(paths[0], "w");
    fputs(deep, file);
    fclose(file);
    expect_refused(COMPARE(paths[0]), "line 1");
    json_t *a = make_run("one");
    add_row(a, "decode", 4, 1024, 8);
    add_row(a, "decode", 4, 1024, 8);
    save(a, 0);
    expect_refused(COMPARE(paths[0]), "is there twice");
    a = make_run("one");
    for (int i = 0; i < 4097; i++)
        add_row(a, "decode", 1, i + 1, 8);
    save(a, 0);
    expect_refused(COMPARE(paths[0]), "more than 4096 cells");
}

Test(compare, wrong_use_is_refused) {
    json_t *a = make_run("one");
    add_row(a, "decode", 4, 1024, 8);
    save(a, 0);
    const char *p = paths[0];
    tool_run run = tool_run_with((const char *const[]){"compare", NULL}, (const char *const[]){NULL});
    expect_refused(run, "which runs?");
    expect_refused(COMPARE(p, p, p, p, p, p, p, p, p), "more than 8 runs");
    expect_refused(COMPARE("/nonexistent/run.json"), "/nonexistent/run.json: No such file");
    expect_refused(COMPARE(p, "--html=/nonexistent/page.html"), "/nonexistent/page.html");
    expect_refused(COMPARE(p, "--unknown"), "unrecognized option");
    run = COMPARE("--help");
    cr_expect_eq(run.exit_status, 0);
    expect_text(run.out, "--html=FILE");
    tool_run_free(&run);
}
