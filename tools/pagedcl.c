/* SPDX-License-Identifier: Apache-2.0 */
/* The program: finds the sub-command and runs it. */
#include "command.h"

#include <argp.h>
#include <stdio.h>
#include <string.h>

static const command *const commands[] = {
    &command_bench,    &command_bench_blocks, &command_compare,  &command_devices,
    &command_generate, &command_replay,       &command_simulate, &command_tune,
};
enum { NUM_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(FILE *stream) {
    fputs("Usage: pagedcl COMMAND [OPTION...]\n"
          "Paged attention for LLM inference on any OpenCL device.\n\n",
          stream);
    for (int i = 0; i < NUM_COMMANDS; i++)
        fprintf(stream, "  %-13s %s\n", commands[i]->name, commands[i]->summary);
    fputs("\n`pagedcl COMMAND --help` explains a command; `pagedcl --version` prints the version.\n"
          "The environment's PAGEDCL_DEVICE names the default device.\n",
          stream);
}

/* Letters to insert, drop or replace to turn a into b (Levenshtein); b is a command's name. */
static size_t edit_distance(const char *a, const char *b) {
    enum { MAX_NAME = 32 };
    size_t row[MAX_NAME + 1];
    size_t length = strlen(b);
    if (length > MAX_NAME)
        return SIZE_MAX;
    for (size_t j = 0; j <= length; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= length; j++) {
            size_t least = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < least)
                least = row[j] + 1;
            if (row[j - 1] + 1 < least)
                least = row[j - 1] + 1;
            row[j] = least;
        }
    }
    return row[length];
}

static int unknown_command(const char *name) {
    const command *nearest = NULL;
    size_t least = 3; /* of more than two wrong letters nothing can be guessed */
    for (int i = 0; i < NUM_COMMANDS; i++) {
        size_t distance = edit_distance(name, commands[i]->name);
        if (distance < least) {
            least = distance;
            nearest = commands[i];
        }
    }
    if (nearest)
        return command_fail("no command \"%s\"; did you mean \"%s\"?", name, nearest->name);
    return command_fail("no command \"%s\"; `pagedcl --help` lists them", name);
}

static int run_command(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_help(stdout);
        return EXIT_OK;
    }
    if (strcmp(name, "--version") == 0) {
        printf("pagedcl %s\n", pagedcl_version());
        return EXIT_OK;
    }
    if (name[0] == '-')
        return command_fail("no option \"%s\" before a command; `pagedcl --help` lists the commands", name);
    for (int i = 0; i < NUM_COMMANDS; i++) {
        if (strcmp(name, commands[i]->name) != 0)
            continue;
        char full_name[64];
        snprintf(full_name, sizeof full_name, "pagedcl %s", name);
        argv[1] = full_name;
        return commands[i]->run(argc - 1, argv + 1);
    }
    return unknown_command(name);
}

int main(int argc, char **argv) {
    argp_err_exit_status = EXIT_USAGE;
    int status = run_command(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout))
        return command_fail("the output could not be written");
    return status;
}
