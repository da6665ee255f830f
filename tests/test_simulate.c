/* SPDX-License-Identifier: Apache-2.0 */
/* pagedcl simulate, by traces whose every number follows by hand: a step takes a second, blocks hold four tokens. */
#include "support/temp_folder.h"
#include "support/tool.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *folder;
static char path[512];    /* of the trace that the test writes */
static char picture[512]; /* of the SVG file */

static void make_folder(void) {
    folder = temp_folder_create();
    snprintf(path, sizeof path, "%s/trace.jsonl", folder);
    snprintf(picture, sizeof picture, "%s/curve.svg", folder);
}

static void remove_folder(void) {
    temp_folder_remove(folder);
}

TestSuite(simulate, .init = make_folder, .fini = remove_folder);

#define RUN(...) tool_run_with((const char *const[]){"simulate", __VA_ARGS__, NULL}, (const char *const[]){NULL})
#define SECOND_STEPS "--block-size=4", "--step-ms=1000", "--prefill-ms=0", "--decode-ms=0", "--json", path

static void write_bytes(const char *bytes, size_t size) {
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, size, file), size);
    cr_assert_eq(fclose(file), 0);
}

static void write_trace(const char *text) {
    write_bytes(text, strlen(text));
}

/* The document that a run printed; frees the run. */
static json_t *document_of(tool_run run, int exit_status) {
    cr_assert_eq(run.exit_status, exit_status, "exit status %d\n%s%s", run.exit_status, run.out, run.err);
    cr_expect_str_eq(run.err, "");
    json_t *document = json_loads(run.out, 0, NULL);
    cr_assert_not_null(document, "%s", run.out);
    tool_run_free(&run);
    return document;
}

static const json_t *pool_of(const json_t *document, size_t index) {
    const json_t *pool = json_array_get(json_object_get(document, "pools"), index);
    cr_assert_not_null(pool);
    return pool;
}

static void expect_number(const json_t *object, const char *key, double wanted) {
    const json_t *value = json_object_get(object, key);
    cr_assert(json_is_number(value), "%s", key);
    cr_expect(fabs(json_number_value(value) - wanted) <= 1e-12, "%s is %.17g, not %.17g", key, json_number_value(value),
              wanted);
}

static void expect_refused(tool_run run, const char *reason) {
    cr_expect_eq(run.exit_status, 2, "exit status %d\n%s", run.exit_status, run.err);
    cr_expect_eq(tool_lines(run.err), 1, "%s", run.err);
    cr_expect_str_eq(run.out, "");
    cr_expect_not_null(strstr(run.err, reason), "no \"%s\" in:\n%s", reason, run.err);
    tool_run_free(&run);
}

Test(simulate, counts_a_shared_prefix) {
    write_trace("{\"arrival\": 3, \"prompt\": 10, \"output\": 3, \"prefix_id\": \"p\", \"prefix_length\": 8}\n"
                "\n"
                "{\"arrival\": 3, \"prompt\": 9, \"output\": 1, \"prefix_id\": \"p\", \"prefix_length\": 9}\r\n");
    json_t *document = document_of(RUN("--pool-blocks=8", "--max-batch=1", "--chunk=8", SECOND_STEPS), 0);
    const json_t *pool = pool_of(document, 0);
    /* The first one prefills 8 and 2 tokens and decodes 2; then the second one finds two blocks and computes a token. */
    expect_number(pool, "steps", 5);
    expect_number(pool, "seconds", 5);
    expect_number(pool, "hit_rate", 8.0 / 19);
    expect_number(pool, "peak_occupancy", 3.0 / 8);
    expect_number(pool, "mean_occupancy", 3.0 / 8);
    expect_number(pool, "fragmentation", (2 + 2 + 1 + 0 + 3) / (5 * 3 * 4.0));
    expect_number(pool, "preemptions", 0);
    expect_number(pool, "recomputed_tokens", 0);
    expect_number(pool, "mean_first_token_seconds", (2 + 5) / 2.0);
    json_decref(document);
}

Test(simulate, counts_a_preemption) {
    write_trace("{\"arrival\": 0, \"prompt\": 4, \"output\": 9}\n"
                "{\"arrival\": 0, \"prompt\": 4, \"output\": 6}");
    json_t *document = document_of(RUN("--pool-blocks=6,4,6", "--chunk=8", SECOND_STEPS), 0);
    cr_expect_eq(json_array_size(json_object_get(document, "pools")), 2);
    const json_t *pool = pool_of(document, 0);
    /* At 8 tokens each the pool is full: the second one goes, loses its second block to the first one, which runs
       for 4 steps more, and then computes the last 5 of its 9 tokens in a step. */
    expect_number(pool, "blocks", 4);
    expect_number(pool, "steps", 10);
    expect_number(pool, "hit_rate", 0);
    expect_number(pool, "peak_occupancy", 1);
    expect_number(pool, "mean_occupancy", (2 + 4 * 4 + 4 * 3 + 3) / (10 * 4.0));
    expect_number(pool, "fragmentation", (0 + 2 * (3 + 2 + 1 + 0) + (3 + 2 + 1 + 0) + 3) / (33 * 4.0));
    expect_number(pool, "preemptions", 1);
    expect_number(pool, "recomputed_tokens", 4);
    expect_number(pool, "mean_first_token_seconds", 1);

    pool = pool_of(document, 1);
    expect_number(pool, "blocks", 6);
    expect_number(pool, "steps", 9);
    expect_number(pool, "preemptions", 0);
    expect_number(document, "no_preemption_from", 6);
    expect_number(document, "knee", 4);
    json_decref(document);
}

/* The same pool: the second one's two blocks go to host memory and come back when the first one has ended. */
Test(simulate, counts_a_swap) {
    write_trace("{\"arrival\": 0, \"prompt\": 4, \"output\": 9}\n"
                "{\"arrival\": 0, \"prompt\": 4, \"output\": 6}");
    json_t *document =
        document_of(RUN("--pool-blocks=4", "--chunk=8", "--policy=swap", "--swap-ms=250", SECOND_STEPS), 0);
    const json_t *pool = pool_of(document, 0);
    cr_expect_str_eq(json_string_value(json_object_get(document, "policy")), "swap");
    expect_number(pool, "steps", 10);
    expect_number(pool, "seconds", 10 + (2 + 2) * 0.25);
    expect_number(pool, "mean_occupancy", (2 + 4 * 4 + 3 * (1.5 + 3) + 3 * 1.5) / (11 * 4.0));
    expect_number(pool, "preemptions", 1);
    expect_number(pool, "recomputed_tokens", 0);
    expect_number(pool, "swapped_blocks", 4);
    json_decref(document);

    /* Too little host memory. */
    document = document_of(RUN("--pool-blocks=4", "--chunk=8", "--policy=swap", "--host-blocks=1", SECOND_STEPS), 0);
    pool = pool_of(document, 0);
    expect_number(pool, "seconds", 10);
    expect_number(pool, "recomputed_tokens", 4);
    expect_number(pool, "swapped_blocks", 0);
    json_decref(document);
}

/* Whatever the pool and the host tier, every request ends, and a pool that preempts nobody swaps nothing. */
Test(simulate, swaps_in_every_size) {
    for (int host = 1; host < 200; host *= 3) {
        char option[32];
        snprintf(option, sizeof option, "--host-blocks=%d", host);
        json_t *document = document_of(RUN("--json", "--policy=swap", "--watermark=2", option,
                                           "--pool-blocks=47,48,60,90,130,1000", TEST_TRACES_DIR "/chat.jsonl"),
                                       0);
        size_t index;
        const json_t *pool;
        json_array_foreach(json_object_get(document, "pools"), index, pool) {
            cr_expect_str_eq(json_string_value(json_object_get(pool, "status")), "PAGEDCL_SUCCESS");
            json_int_t swapped = json_integer_value(json_object_get(pool, "swapped_blocks"));
            cr_expect_eq(swapped % 2, 0, "what goes out comes back");
            if (index == 5)
                cr_expect_eq(swapped, 0);
        }
        json_decref(document);
    }
}

Test(simulate, charges_rows_and_tokens) {
    write_trace("{\"arrival\": 0, \"prompt\": 6, \"output\": 2}\n{\"arrival\": 0, \"prompt\": 3, \"output\": 2}\n");
    json_t *document = document_of(RUN("--pool-blocks=8", "--chunk=8", "--step-ms=1000", "--prefill-ms=250",
                                       "--decode-ms=125", "--block-size=4", "--json", path),
                                   0);
    const json_t *pool = pool_of(document, 0);
    double first = 1 + 8 * 0.25;              /* 6 + 2 prompt tokens */
    double second = first + 1 + 0.25 + 0.125; /* the last prompt token, and the first request's second token */
    expect_number(pool, "steps", 3);
    expect_number(pool, "seconds", second + 1 + 0.125);
    expect_number(pool, "mean_first_token_seconds", (first + second) / 2);
    json_decref(document);
}

Test(simulate, reads_the_public_layout) {
    write_trace(
        "{\"timestamp\": 0, \"input_length\": 10, \"output_length\": 1, \"hash_ids\": [7, 8, 9]}\n"
        "{\"timestamp\": 5000, \"input_length\": 10, \"output_length\": 0, \"hash_ids\": [7, 8, 10], \"type\": 1}\n"
        "{\"timestamp\": 5000, \"input_length\": 8, \"output_length\": 1, \"hash_ids\": [8, 7]}\n"
        "{\"timestamp\": 9000, \"input_length\": 8, \"output_length\": 1, \"hash_ids\": [8, 7]}\n"
        "{\"timestamp\": 9000, \"input_length\": 14, \"output_length\": 1}\n");
    json_t *document = document_of(RUN("--pool-blocks=20", "--hash-block=4", SECOND_STEPS), 0);
    /* The second finds two blocks; the third none, since its first id differs; the fourth one of its two, since the
       last token is always computed. */
    expect_number(pool_of(document, 0), "hit_rate", (8 + 0 + 4) / (10 + 10 + 8 + 8 + 14.0));
    expect_number(pool_of(document, 0), "seconds", 10);
    json_decref(document);

    document = document_of(RUN("--pool-blocks=20", "--hash-block=4", "--timestamp=s", SECOND_STEPS), 0);
    expect_number(pool_of(document, 0), "seconds", 9001);
    json_decref(document);

    write_trace("{\"timestamp\": 0, \"input_length\": 1100, \"output_length\": 1, \"hash_ids\": [1, 2, 3]}\n"
                "{\"timestamp\": 9000, \"input_length\": 1100, \"output_length\": 1, \"hash_ids\": [1, 2, 4]}\n");
    document = document_of(RUN("--pool-blocks=900", SECOND_STEPS), 0);
    expect_number(pool_of(document, 0), "hit_rate", 1024 / 2200.0);
    json_decref(document);
}

Test(simulate, reads_token_lists) {
    write_trace("{\"arrival\": 9, \"prompt\": [1, 2, 3, 4, 5, 6, 7, 8, 9], \"output\": 1}\n"
                "{\"arrival\": 0, \"prompt\": [1, 2, 3, 4, 5, 6, 7, 9, 9], \"output\": 1}\n");
    json_t *document = document_of(RUN("--pool-blocks=8", SECOND_STEPS), 0);
    expect_number(pool_of(document, 0), "hit_rate", 4 / 18.0);
    json_decref(document);
}

Test(simulate, keeps_ids_of_files_apart) {
    write_trace("{\"arrival\": 0, \"prompt\": 9, \"output\": 1, \"prefix_id\": 1, \"prefix_length\": 8}\n");
    json_t *document = document_of(RUN("--pool-blocks=8", "--max-batch=1", path, SECOND_STEPS), 0);
    expect_number(document, "requests", 2);
    expect_number(pool_of(document, 0), "hit_rate", 0);
    json_decref(document);
}

Test(simulate, says_what_never_fits) {
    write_trace("{\"arrival\": 0, \"prompt\": 4, \"output\": 1}\n{\"arrival\": 0, \"prompt\": 8, \"output\": 2}\n");
    json_t *document = document_of(RUN("--pool-blocks=2,3", SECOND_STEPS), 1);
    cr_expect_str_eq(json_string_value(json_object_get(pool_of(document, 0), "status")), "PAGEDCL_NEVER_FITS");
    cr_expect_str_eq(json_string_value(json_object_get(pool_of(document, 1), "status")), "PAGEDCL_SUCCESS");
    json_decref(document);

    tool_run run = RUN("--block-size=4", "--pool-blocks=2", path);
    cr_expect_eq(run.exit_status, 1);
    cr_expect_not_null(strstr(run.out, "PAGEDCL_NEVER_FITS"), "%s", run.out);
    cr_expect_not_null(strstr(run.out, "You need 3 blocks at least"), "%s", run.out);
    cr_expect_not_null(strstr(run.out, "line 2)"), "%s", run.out);
    tool_run_free(&run);
    run = RUN("--block-size=4", "--pool-blocks=3", "--watermark=1", path);
    cr_expect_eq(run.exit_status, 1);
    tool_run_free(&run);
    document = document_of(RUN("--watermark=1", SECOND_STEPS), 0);
    expect_number(pool_of(document, 0), "blocks", 4);
    json_decref(document);
}

Test(simulate, answers_in_one_sentence) {
    static const struct {
        const char *pools;
        const char *answer;
    } rows[] = {
        {"--pool-blocks=3", "\nYou need more than 3 blocks, since the largest pool tried preempts.\n"},
        {"--pool-blocks=9", "\nYou need at most 9 blocks, since the smallest pool tried does not preempt.\n"},
        {"--pool-blocks=3,9", "\nYou need 9 blocks, from where on no pool tried preempts; the knee is at "},
        {"--pool-blocks=auto", "\nYou need 4 blocks, from where on no pool tried preempts; the knee is at "},
    };
    /* Two requests are admitted into 3 blocks, and both want a second one at their second token. */
    write_trace("{\"arrival\": 0, \"prompt\": 4, \"output\": 4}\n{\"arrival\": 0, \"prompt\": 4, \"output\": 4}\n");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tool_run run = RUN("--block-size=4", rows[i].pools, path);
        cr_expect_eq(run.exit_status, 0);
        cr_expect_not_null(strstr(run.out, rows[i].answer), "no \"%s\" in:\n%s", rows[i].answer, run.out);
        tool_run_free(&run);
    }
}

/* The pools that the search finds, each run by itself, say the same; around the answer they are close. */
Test(simulate, searches_where_preemption_ends) {
    static const char *const traces[] = {TEST_TRACES_DIR "/chat.jsonl", TEST_TRACES_DIR "/public.jsonl"};
    for (size_t i = 0; i < sizeof traces / sizeof traces[0]; i++) {
        json_t *document = document_of(RUN("--json", traces[i]), 0);
        json_int_t enough = json_integer_value(json_object_get(document, "no_preemption_from"));
        expect_number(pool_of(document, 0), "blocks",
                      json_number_value(json_object_get(document, "largest_request_blocks")));
        json_int_t before = 0, preempted_before = 0;
        size_t index;
        const json_t *pool;
        json_array_foreach(json_object_get(document, "pools"), index, pool) {
            json_int_t num_blocks = json_integer_value(json_object_get(pool, "blocks"));
            json_int_t preemptions = json_integer_value(json_object_get(pool, "preemptions"));
            cr_expect_gt(num_blocks, before);
            if (num_blocks >= enough)
                cr_expect_eq(preemptions, 0);
            if (num_blocks == enough) {
                cr_expect_gt(preempted_before, 0);
                cr_expect_leq(num_blocks - before, 1 + num_blocks / 64);
            }
            char option[64];
            snprintf(option, sizeof option, "--pool-blocks=%" JSON_INTEGER_FORMAT, num_blocks);
            json_t *alone = document_of(RUN(option, "--json", traces[i]), 0);
            cr_expect(json_equal(pool, pool_of(alone, 0)));
            json_decref(alone);
            before = num_blocks;
            preempted_before = preemptions;
        }
        json_decref(document);
    }
}

Test(simulate, draws_the_curve) {
    tool_run run = RUN(TEST_TRACES_DIR "/chat.jsonl", "--svg", picture);
    cr_expect_eq(run.exit_status, 0, "%s", run.err);
    const char *answer = strstr(run.out, "\nYou need ");
    cr_assert_not_null(answer, "%s", run.out);
    cr_expect_not_null(strstr(answer, "the knee is at "));
    cr_expect_eq(tool_lines(answer + 1), 1);
    char mark[64];
    snprintf(mark, sizeof mark, ">%ld blocks: from here on no preemption<",
             strtol(answer + strlen("\nYou need "), NULL, 10));
    tool_run_free(&run);

    static char svg[1 << 16];
    FILE *file = fopen(picture, "r");
    cr_assert_not_null(file);
    size_t size = fread(svg, 1, sizeof svg - 1, file);
    fclose(file);
    svg[size] = '\0';
    cr_expect_eq(strncmp(svg, "<svg ", 5), 0);
    cr_expect_str_eq(svg + size - strlen("</svg>\n"), "</svg>\n");
    const char *const parts[] = {mark,          "Mean time to first token", "seconds",
                                 "Preemptions", "prefix hit rate",          "blocks of the pool, 16 tokens each"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        cr_expect_not_null(strstr(svg, parts[i]), "no \"%s\"", parts[i]);
    cr_expect_null(strstr(svg, "nan"));
    cr_expect_null(strstr(svg, "inf"));

    run = RUN(TEST_TRACES_DIR "/chat.jsonl", "--svg", folder);
    cr_expect_eq(run.exit_status, 2);
    cr_expect_not_null(strstr(run.err, "cannot be written: Is a directory"), "%s", run.err);
    tool_run_free(&run);
}

Test(simulate, names_the_hostile_line) {
    static const struct {
        const char *line;
        const char *reason;
    } rows[] = {
        {"{", "is no JSON"},
        {"nonsense \x1b[2J", "is no JSON"},
        {"[]", "is no JSON object"},
        {"{} {}", "is no JSON"},
        {"{\"arrival\": 0, \"arrival\": 1, \"prompt\": 1, \"output\": 1}", "is no JSON: duplicate"},
        {"{}", "\"arrival\" is missing"},
        {"{\"arrival\": 0, \"output\": 1}", "\"prompt\" is missing"},
        {"{\"arrival\": 0, \"prompt\": 1}", "\"output\" is missing"},
        {"{\"arrival\": -1, \"prompt\": 1, \"output\": 1}", "\"arrival\" must be a time"},
        {"{\"arrival\": 1e300, \"prompt\": 1, \"output\": 1}", "\"arrival\" must be a time"},
        {"{\"arrival\": 1e999, \"prompt\": 1, \"output\": 1}", "is no JSON"},
        {"{\"arrival\": \"0\", \"prompt\": 1, \"output\": 1}", "\"arrival\" must be a time"},
        {"{\"arrival\": 0, \"prompt\": 0, \"output\": 1}", "\"prompt\" must be a whole number from 1"},
        {"{\"arrival\": 0, \"prompt\": 4294967297, \"output\": 1}", "\"prompt\" must be a whole number"},
        {"{\"arrival\": 0, \"prompt\": 99999999999999999999, \"output\": 1}", "is no JSON"},
        {"{\"arrival\": 0, \"prompt\": 1.5, \"output\": 1}", "\"prompt\" must be a whole number"},
        {"{\"arrival\": 0, \"prompt\": 1, \"output\": -1}", "\"output\" must be a whole number from 0"},
        {"{\"arrival\": 0, \"prompt\": 1, \"output\": 1, \"outptu\": 1}", "\"outptu\" is not known"},
        {"{\"arrival\": 0, \"prompt\": [], \"output\": 1}", "\"prompt\" must hold from 1"},
        {"{\"arrival\": 0, \"prompt\": [1, -1], \"output\": 1}", "\"prompt\" holds something else"},
        {"{\"arrival\": 0, \"prompt\": [2147483648], \"output\": 1}", "\"prompt\" holds something else"},
        {"{\"arrival\": 0, \"prompt\": [1], \"output\": 1, \"prefix_id\": 1}", "needs no \"prefix_id\""},
        {"{\"arrival\": 0, \"prompt\": 4, \"output\": 1, \"prefix_length\": 4}", "needs a \"prefix_id\""},
        {"{\"arrival\": 0, \"prompt\": 4, \"output\": 1, \"prefix_id\": 1}", "\"prefix_length\" is missing"},
        {"{\"arrival\": 0, \"prompt\": 4, \"output\": 1, \"prefix_id\": 1, \"prefix_length\": 5}", "from 0 to 4"},
        {"{\"arrival\": 0, \"prompt\": 4, \"output\": 1, \"prefix_id\": 1.5, \"prefix_length\": 4}", "\"prefix_id\""},
        {"{\"timestamp\": 0, \"output_length\": 1}", "\"input_length\" is missing"},
        {"{\"timestamp\": null, \"input_length\": 1, \"output_length\": 1}", "\"timestamp\" must be a time"},
        {"{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": 1}", "must be a list"},
        {"{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1.5]}", "something else"},
        {"{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [1, 2]}", "--hash-block"},
        {"{\"timestamp\": 0, \"input_length\": 1024, \"output_length\": 1, \"hash_ids\": [1]}", "--hash-block"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[512], reason[1024];
        snprintf(text, sizeof text, "{\"arrival\": 0, \"prompt\": 1, \"output\": 1}\n%s\n", rows[i].line);
        write_trace(text);
        tool_run run = RUN(path);
        cr_expect_null(strchr(run.err, '\x1b'));
        snprintf(reason, sizeof reason, "pagedcl: %s: line 2: ", path);
        cr_expect_eq(strncmp(run.err, reason, strlen(reason)), 0, "%s", run.err);
        expect_refused(run, rows[i].reason);
    }
    static const char zero[] = "{\"arrival\": 0, \"prompt\": 1, \"output\": 1}\0{}";
    write_bytes(zero, sizeof zero - 1);
    expect_refused(RUN(path), "line 1: is no JSON");
    write_trace("\n \t\n");
    expect_refused(RUN(path), "holds no request");
}

Test(simulate, refuses_what_is_too_deep_or_too_long) {
    static char text[(8 << 20) + 2];
    memset(text, '[', 1 << 20);
    write_bytes(text, 1 << 20);
    expect_refused(RUN(path), "line 1: is no JSON");
    memset(text, ' ', sizeof text);
    write_bytes(text, sizeof text);
    expect_refused(RUN(path), "line 1: is longer than 8388608 bytes");
}

Test(simulate, refuses_what_is_no_file) {
    expect_refused(RUN(folder), "is no file of text");
    expect_refused(RUN("/dev/zero"), "is no file of text");
    expect_refused(RUN("/nonexistent"), "/nonexistent: No such file");
}

Test(simulate, refuses_bad_options) {
    write_trace("{\"arrival\": 0, \"prompt\": 1, \"output\": 1}\n");
    tool_run run = tool_run_with((const char *const[]){"simulate", NULL}, (const char *const[]){NULL});
    expect_refused(run, "simulate needs a trace");
    expect_refused(RUN("--pool-blocks=", path), "--pool-blocks is \"\"");
    expect_refused(RUN("--pool-blocks=4,", path), "--pool-blocks is \"4,\"");
    expect_refused(RUN("--pool-blocks=0", path), "--pool-blocks is \"0\"");
    expect_refused(RUN("--pool-blocks=2147483648", path), "--pool-blocks is");
    expect_refused(RUN("--pool-blocks=many", path), "auto, or at most 64 numbers");
    expect_refused(RUN("--block-size=0", path), "--block-size is \"0\"");
    expect_refused(RUN("--max-batch=1x", path), "--max-batch is \"1x\"");
    expect_refused(RUN("--chunk=-1", path), "--chunk is \"-1\"");
    expect_refused(RUN("--step-ms=nan", path), "--step-ms is \"nan\"");
    expect_refused(RUN("--decode-ms=-1", path), "milliseconds from 0");
    expect_refused(RUN("--timestamp=us", path), "--timestamp is \"us\"");
    expect_refused(RUN("--polite", path), "unrecognized option");
    expect_refused(RUN("--policy=drop", path), "--policy is \"drop\"; it must be recompute or swap");
    expect_refused(RUN("--host-blocks=4", path), "--host-blocks is for --policy swap");
    expect_refused(RUN("--policy=swap", "--host-blocks=0", path), "--host-blocks is \"0\"");
    expect_refused(RUN("--swap-ms=-1", path), "--swap-ms is");
}
