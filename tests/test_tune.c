/* SPDX-License-Identifier: Apache-2.0 */
/* pagedcl tune from outside, over batches that take moments. What it finds cannot be tested: all else is. */
#define _POSIX_C_SOURCE 200809L

#include "support/temp_folder.h"
#include "support/tool.h"

#include <pagedcl/version.h>

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *folder;
static char paths[3][512];

static void make_folder(void) {
    folder = temp_folder_create();
    for (int i = 0; i < 3; i++)
        snprintf(paths[i], sizeof paths[i], "%s/%c.tuning", folder, 'a' + i);
}

static void remove_folder(void) {
    temp_folder_remove(folder);
}

TestSuite(tune, .init = make_folder, .fini = remove_folder);

#define TUNE(...) tool_run_with((const char *const[]){"tune", __VA_ARGS__, NULL}, (const char *const[]){NULL})
#define TINY "--quick", "--flush=1", "--tier=cpu", "--heads=6", "--kv-heads=2", "--head-dim=40", "--dtype=float32"
#define HEAD "pagedcl-tuning 1\n"

static void expect_text(const char *text, const char *wanted) {
    cr_expect(strstr(text, wanted), "no \"%s\" in:\n%s", wanted, text);
}

static void expect_exit(const tool_run *run, int status) {
    cr_assert_eq(run->exit_status, status, "exit status %d\n%s%s", run->exit_status, run->out, run->err);
}

static char *read_file(const char *path) {
    FILE *file = fopen(path, "r");
    cr_assert(file, "%s was not written", path);
    char *text = calloc(1, 1 << 16);
    size_t size = fread(text, 1, (1 << 16) - 1, file);
    text[size] = '\0';
    fclose(file);
    return text;
}

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    cr_assert(file);
    fputs(text, file);
    cr_assert_eq(fclose(file), 0);
}

/* How far a search comes depends on the machine. */
static void end_searches(const char *path) {
    char *text = read_file(path), *at;
    expect_text(text, "\tsearch=");
    FILE *file = fopen(path, "w");
    cr_assert(file);
    char *rest = text;
    for (; (at = strstr(rest, "=part\t")) != NULL; rest = at + 6)
        fprintf(file, "%.*s=whole\t", (int)(at - rest), rest);
    fputs(rest, file);
    cr_assert_eq(fclose(file), 0);
    free(text);
}

Test(tune, keeps_what_it_finds_and_goes_on_there, .timeout = 300) {
    /* As if a search of decode had come to its end. */
    tool_run run = TUNE(TINY, "--kind=decode", "--seconds=3", "--database", paths[0]);
    expect_exit(&run, 0);
    expect_text(run.out, "decode/6x2x40/float32/2x64");
    expect_text(run.out, "1 tuned, ");
    expect_text(run.out, "0 were known, 0 are left");
    tool_run_free(&run);
    end_searches(paths[0]);
    run = TUNE(TINY, "--seconds=20", "--database", paths[0]);
    expect_exit(&run, 0);
    expect_text(run.out, "prefill/6x2x40/float32/2x64");
    expect_text(run.out, "1 tuned, ");
    expect_text(run.out, "1 were known, 0 are left");
    tool_run_free(&run);
    end_searches(paths[0]);
    char *text = read_file(paths[0]);
    expect_text(text, HEAD);
    expect_text(text, "\t" PAGEDCL_VERSION_STRING "\tattn_decode tier=cpu head_dim=40 head_dim_v=40 v_in_k=0 group=3 "
                      "kv_dtype=float32 q_dtype=float32 paged=1\tTUNE_WG=1 TUNE_ROWS=");
    expect_text(text, "\tattn_varlen tier=cpu");
    expect_text(text, "\tbits=");

    run = TUNE(TINY, "--seconds=6", "--database", paths[0]);
    expect_exit(&run, 0);
    expect_text(run.out, "0 tuned, 0 of them faster; 2 were known, 0 are left");
    tool_run_free(&run);
    char *again = read_file(paths[0]);
    cr_expect_str_eq(text, again);
    free(again);

    /* The benchmark takes it in, and runs as it says. */
    char variable[600], json[600], sizes[64];
    const char *rows = strstr(strstr(text, "attn_decode"), "TUNE_ROWS=");
    snprintf(sizes, sizeof sizes, "%.*s", (int)strcspn(rows, " "), rows);
    snprintf(variable, sizeof variable, "PAGEDCL_TUNING=%s", paths[0]);
    snprintf(json, sizeof json, "%s/run.json", folder);
    run = tool_run_with((const char *const[]){"bench", "--flush=1", "--tier=cpu", "--heads=6", "--kv-heads=2",
                                              "--head-dim=40", "--dtype=float32", "--context=64", "--time=0.01",
                                              "--no-baseline", "--json", json, NULL},
                        (const char *const[]){variable, NULL});
    expect_exit(&run, 0);
    tool_run_free(&run);
    char *document = read_file(json);
    expect_text(document, sizes);
    free(document);
    free(text);
}

/* Sums that are wrong with tiles of 64 keys alone: they are not taken, and told. */
Test(tune, a_wrong_trial_is_never_taken, .timeout = 300) {
    char command[2048], variable[600];
    snprintf(command, sizeof command,
             "cp -r '%s' '%s/cl' && sed -i 's/row_sum_of(sum);/row_sum_of(sum) * (TUNE_KEYS == 64 ? 1.5f : 1);/' "
             "'%s/cl/cpu/attn_tile.h' && grep -q 'TUNE_KEYS == 64' '%s/cl/cpu/attn_tile.h'",
             KERNEL_DIR, folder, folder, folder);
    cr_assert_eq(system(command), 0, "the fault could not be planted");
    snprintf(variable, sizeof variable, "PAGEDCL_KERNEL_DIR=%s/cl", folder);
    tool_run run = tool_run_with(
        (const char *const[]){"tune", TINY, "--kind=decode", "--seconds=60", "--database", paths[0], NULL},
        (const char *const[]){variable, NULL});
    expect_exit(&run, 1);
    expect_text(run.out, " WRONG");
    tool_run_free(&run);
    char *text = read_file(paths[0]);
    expect_text(text, "attn_decode");
    cr_expect_null(strstr(text, "TUNE_KEYS=64"), "%s", text);
    free(text);
}

#define LINE(driver, family, keys, us) "p\td\t" driver "\t0.1\t" family "\tTUNE_KEYS=" keys "\tus=" us "\town_us=9\n"

Test(tune, merges_databases) {
    write_file(paths[0], HEAD LINE("1", "f", "16", "5") LINE("1", "h", "16", "5"));
    write_file(paths[1],
               HEAD "# of another\n" LINE("1", "g", "64", "1") LINE("1", "f", "32", "4") LINE("2", "f", "64", "7"));
    write_file(paths[2], HEAD LINE("1", "h", "32", "6") "p\td\t1\t0.1\tg\tTUNE_KEYS=16\n");
    tool_run run = TUNE("--database", paths[0], "--merge", paths[1], paths[2]);
    expect_exit(&run, 0);
    expect_text(run.out, "4 lines in ");
    tool_run_free(&run);
    char *text = read_file(paths[0]);
    /* Of two the faster, one without a time last, and in one order whatever came first. */
    expect_text(text, LINE("1", "f", "32", "4") LINE("1", "g", "64", "1") LINE("1", "h", "16", "5")
                          LINE("2", "f", "64", "7"));
    run = TUNE("--database", paths[2], "--merge", paths[1], paths[0]);
    expect_exit(&run, 0);
    tool_run_free(&run);
    char *other = read_file(paths[2]);
    cr_expect_str_eq(text, other);
    free(text);
    free(other);
}

static void expect_refused(tool_run run, const char *reason) {
    cr_expect_eq(run.exit_status, 2, "exit status %d for \"%s\"\n%s", run.exit_status, reason, run.err);
    cr_expect_eq(tool_lines(run.err), 1, "%s", run.err);
    cr_expect_str_eq(run.out, "");
    expect_text(run.err, reason);
    tool_run_free(&run);
}

Test(tune, wrong_use_is_refused) {
    expect_refused(TUNE("--seconds=0"), "--seconds is \"0\"");
    expect_refused(TUNE("--seconds=x"), "--seconds is \"x\"");
    expect_refused(TUNE("--tier=none"), "--tier is \"none\"");
    expect_refused(TUNE("--dtype=float64"), "--dtype is \"float64\"");
    expect_refused(TUNE("--kind=write"), "--kind is \"write\"; it must be decode or prefill");
    expect_refused(TUNE("--heads=7", "--kv-heads=2"), "7 query heads are no multiple of 2 KV heads");
    expect_refused(TUNE("--head-dim=577"), "--head-dim is \"577\"");
    expect_refused(TUNE("--merge"), "--merge of what?");
    expect_refused(TUNE("file"), "only --merge takes files");
    expect_refused(TUNE("--unknown"), "unrecognized option");
    expect_refused(TUNE("--model=gpt-1", "--database", paths[0]), "no model \"gpt-1\"");
    expect_refused(TUNE("--device=no such device", "--database", paths[0]), "no such device");
    expect_refused(TUNE("--database=/nonexistent/a"), "/nonexistent/a: No such file");
}

Test(tune, the_seed_is_a_database) {
    tool_run run = TUNE("--database", paths[0], "--merge", SEED);
    expect_exit(&run, 0);
    tool_run_free(&run);
    char *text = read_file(paths[0]), *seed = read_file(SEED);
    cr_expect_str_eq(text, seed, "the seed is not as tune writes it");
    expect_text(text, "\t" PAGEDCL_VERSION_STRING "\tattn_decode tier=cpu ");
    free(text);
    free(seed);
}

/* What is no database is neither read nor written over. */
Test(tune, files_are_hostile) {
    static const char *const texts[] = {"", "my diary\n", HEAD "p\td\n", HEAD "p\td\t1\t0.1\tf\tTUNE_KEYS=-1\n",
                                        HEAD "p\td\t1\t0.1\tf\tTUNE_KEYS=16\033c\n"};
    write_file(paths[1], HEAD LINE("1", "f", "16", "5"));
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        write_file(paths[0], texts[i]);
        expect_refused(TUNE(TINY, "--database", paths[0]), paths[0]);
        expect_refused(TUNE("--database", paths[0], "--merge", paths[1]), paths[0]);
        expect_refused(TUNE("--database", paths[1], "--merge", paths[0]), paths[0]);
        char *text = read_file(paths[0]);
        cr_expect_str_eq(text, texts[i]);
        free(text);
    }
    tool_run run = tool_run_with((const char *const[]){"devices", NULL}, (const char *const[]){NULL});
    expect_exit(&run, 0);
    tool_run_free(&run);
}
