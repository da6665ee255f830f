/* SPDX-License-Identifier: Apache-2.0 */
/* pagedcl replay: runs case files and compares what comes out with what each says. */
#include "case_run.h"
#include "command.h"
#include "option.h"
#include "json_text.h"

#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct arguments {
    const char *device;
    pagedcl_tier tier;
    bool verbose;
    bool json;
    char **paths;
    int num_paths;
} arguments;

typedef struct tally {
    int passed;
    int failed;
    int unsupported;
    int unreadable;
} tally;

static error_t parse_option(int key, char *value, struct argp_state *state) {
    arguments *args = state->input;
    switch (key) {
    case 'd':
        args->device = value;
        return 0;
    case 't':
        return option_tier("tier", value, &args->tier);
    case 'v':
        args->verbose = true;
        return 0;
    case 'j':
        args->json = true;
        return 0;
    case ARGP_KEY_ARG:
        return ARGP_ERR_UNKNOWN; /* all of them come at once */
    case ARGP_KEY_ARGS:
        args->paths = state->argv + state->next;
        args->num_paths = state->argc - state->next;
        return 0;
    case ARGP_KEY_NO_ARGS:
        command_fail("replay needs case files; `pagedcl replay --help` explains them");
        return EINVAL;
    default:
        return option_other(key, value, state);
    }
}

static const struct argp_option options[] = {
    {"device", 'd', "SELECTOR", 0, "Run on this device: P:D, gpu, cpu, a vendor, or a part of its name", 0},
    {"tier", 't', "TIER", 0, "Use these kernels: portable, cpu, nv_mma or nv_wgmma", 0},
    {"verbose", 'v', NULL, 0, "Say how calls were refused, and what the library logs", 0},
    {"json", 'j', NULL, 0, "Print one JSON document", 0},
    {0},
};

static const struct argp argp = {
    options,
    parse_option,
    "FILE...",
    "Runs case files on a device, and compares what comes out with the answer that each holds.\v"
    "The exit status is 0 when no case failed, 1 when one did, 2 when a file is no case or there is no device.",
    NULL,
    NULL,
    NULL,
};

/* The file's name without folder and ending. */
static void name_of(const char *path, char *name, size_t size) {
    const char *slash = strrchr(path, '/');
    snprintf(name, size, "%s", slash ? slash + 1 : path);
    char *ending = strstr(name, ".safetensors");
    if (ending && ending != name)
        *ending = '\0';
}

static const char *result_name(case_result result) {
    switch (result) {
    case CASE_PASSED:
        return "pass";
    case CASE_FAILED:
        return "fail";
    case CASE_UNSUPPORTED:
        return "unsupported";
    }
    return "";
}

static void print_outcome(const char *name, const case_outcome *outcome, bool verbose) {
    printf("%-32s %-11s", name, result_name(outcome->result));
    if (outcome->result != CASE_UNSUPPORTED) {
        char error[16] = "-";
        if (outcome->max_error >= 0)
            snprintf(error, sizeof error, "%.2g", outcome->max_error);
        printf("  %-8s  %s", error, outcome->tier == PAGEDCL_TIER_AUTO ? "-" : pagedcl_tier_name(outcome->tier));
    }
    bool explain = outcome->result != CASE_PASSED || verbose;
    if (explain && outcome->message[0]) /* of a build log one line: the library has logged the rest */
        printf("  %.*s", (int)strcspn(outcome->message, "\n"), outcome->message);
    putchar('\n');
    fflush(stdout); /* a case may be slow, and the next may end the process in the driver */
}

static json_t *outcome_to_json(const char *path, const char *name, const case_outcome *outcome) {
    bool has_error = outcome->max_error >= 0 && isfinite(outcome->max_error);
    json_t *error = has_error ? json_real(outcome->max_error) : json_null();
    const char *tier = outcome->tier == PAGEDCL_TIER_AUTO ? NULL : pagedcl_tier_name(outcome->tier);
    return json_pack("{s:o, s:o, s:s, s:o, s:s?, s:o}", "file", json_text(path), "name", json_text(name), "result",
                     result_name(outcome->result), "max_error", error, "tier", tier, "message",
                     json_text(outcome->message));
}

/* Runs one file; its outcome goes to stdout, or to the end of `cases` when that is not NULL. */
static void replay(pagedcl_device *device, const char *path, const arguments *args, tally *counts, json_t *cases) {
    char error[512];
    case_file *file = case_open(path, error, sizeof error);
    if (!file) {
        counts->unreadable++;
        command_fail("%s", error);
        if (cases)
            json_array_append_new(cases, json_pack("{s:o, s:s, s:o}", "file", json_text(path), "result", "unreadable",
                                                   "message", json_text(error)));
        return;
    }
    case_outcome outcome;
    case_run(device, file, args->tier, &outcome);
    case_close(file);
    counts->passed += outcome.result == CASE_PASSED;
    counts->failed += outcome.result == CASE_FAILED;
    counts->unsupported += outcome.result == CASE_UNSUPPORTED;

    char name[256];
    name_of(path, name, sizeof name);
    if (cases)
        json_array_append_new(cases, outcome_to_json(path, name, &outcome));
    else
        print_outcome(name, &outcome, args->verbose);
}

static void print_summary(const tally *counts) {
    printf("%d passed, %d failed, %d unsupported", counts->passed, counts->failed, counts->unsupported);
    if (counts->unreadable > 0)
        printf(", %d unreadable", counts->unreadable);
    putchar('\n');
}

/* Takes `cases` over. */
static int print_json(pagedcl_device *device, const tally *counts, json_t *cases) {
    pagedcl_device_info info = PAGEDCL_DEVICE_INFO_INIT;
    if (pagedcl_device_get_info(device, &info) != PAGEDCL_SUCCESS) {
        json_decref(cases);
        return command_fail("%s", pagedcl_last_error());
    }
    json_t *document =
        json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:o}", "version", pagedcl_version(), "device", info.device_name,
                  "driver_version", info.driver_version, "passed", counts->passed, "failed", counts->failed,
                  "unsupported", counts->unsupported, "unreadable", counts->unreadable, "cases", cases);
    int num_cases = counts->passed + counts->failed + counts->unsupported + counts->unreadable;
    if (!document || (int)json_array_size(cases) != num_cases || json_dumpf(document, stdout, JSON_INDENT(2)) != 0) {
        json_decref(document);
        return command_fail("the JSON document could not be made");
    }
    putchar('\n');
    json_decref(document);
    return EXIT_OK;
}

static int run(int argc, char **argv) {
    arguments args = {0};
    if (argp_parse(&argp, argc, argv, 0, NULL, &args) != 0)
        return EXIT_USAGE;
    pagedcl_device *device = command_open_device(args.device, args.verbose);
    if (!device)
        return EXIT_USAGE;

    tally counts = {0};
    json_t *cases = args.json ? json_array() : NULL;
    for (int i = 0; i < args.num_paths; i++)
        replay(device, args.paths[i], &args, &counts, cases);
    int status = EXIT_OK;
    if (args.json)
        status = print_json(device, &counts, cases);
    else
        print_summary(&counts);
    pagedcl_device_destroy(device);
    if (status != EXIT_OK || counts.unreadable > 0)
        return EXIT_USAGE;
    return counts.failed > 0 ? EXIT_FAILED : EXIT_OK;
}

const command command_replay = {"replay", "run case files, and compare with the answers that they hold", run};
