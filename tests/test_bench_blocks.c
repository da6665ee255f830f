/* SPDX-License-Identifier: Apache-2.0 */
/* pagedcl bench-blocks, from outside. What it measures is not tested here: tools/check runs it with --check. */
#include "support/tool.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <string.h>

#define RUN(...) tool_run_with((const char *const[]){"bench-blocks", __VA_ARGS__, NULL}, (const char *const[]){NULL})

static void expect_refused(tool_run run, const char *words) {
    cr_expect_eq(run.exit_status, 2);
    cr_expect_str_eq(run.out, "");
    cr_expect_not_null(strstr(run.err, words), "no \"%s\" in:\n%s", words, run.err);
    tool_run_free(&run);
}

Test(bench_blocks, measures_a_pool_of_any_size) {
    static const struct {
        const char *blocks, *sequences;
        int num_sequences, admitted;
    } rows[] = {{"--blocks=43", NULL, 1, 336}, {"--blocks=4300", "--sequences=100", 100, 34400}};
    static const char *const costs[] = {"append_ns", "first_ns", "record_ns", "fork_ns", "release_ns", "miss_ns"};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tool_run run = RUN("--json", rows[i].blocks, rows[i].sequences);
        cr_assert_eq(run.exit_status, 0, "%s", run.err);
        json_t *document = json_loads(run.out, 0, NULL);
        const json_t *size = json_array_get(json_object_get(document, "sizes"), 0);
        cr_assert_not_null(size, "%s", run.out);
        cr_expect_eq(json_integer_value(json_object_get(size, "sequences")), rows[i].num_sequences);
        cr_expect_eq(json_integer_value(json_object_get(document, "admitted_tokens")), rows[i].admitted);
        for (size_t c = 0; c < sizeof costs / sizeof costs[0]; c++)
            cr_expect_gt(json_real_value(json_object_get(size, costs[c])), 0.0, "%s", costs[c]);
        cr_expect_gt(json_real_value(json_object_get(document, "admission_ns")), 0.0);
        json_decref(document);
        tool_run_free(&run);
    }
}

Test(bench_blocks, refuses_bad_options) {
    expect_refused(RUN("--blocks=0"), "--blocks is \"0\"; it must be a whole number");
    expect_refused(RUN("--blocks=9999999999999"), "--blocks is");
    expect_refused(RUN("--sequences=x"), "--sequences is \"x\"");
    expect_refused(RUN("--sequences=4"), "--sequences goes with --blocks");
    expect_refused(RUN("--blocks=4300", "--check"), "--check compares the standard sizes");
    expect_refused(RUN("--blocks=42", "--sequences=1"), "1 sequences take up to 43 blocks; the pool has 42");
    expect_refused(RUN("fast"), "\"fast\" is no option; pagedcl bench-blocks takes no other argument");
    expect_refused(RUN("--fast"), "unrecognized option");
}
