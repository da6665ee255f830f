/* SPDX-License-Identifier: Apache-2.0 */
/* The sub-commands of the program, and what they share. */
#ifndef COMMAND_H
#define COMMAND_H

#include <pagedcl/pagedcl.h>

#include <stdbool.h>

/* Exit statuses of every sub-command. */
enum {
    EXIT_OK = 0,
    EXIT_FAILED = 1, /* the work was done and something of it failed: a case, a check */
    EXIT_USAGE = 2,  /* the work could not be done: bad option, bad file, no device */
};

typedef struct command {
    const char *name;
    const char *summary;               /* one line for `pagedcl --help` */
    int (*run)(int argc, char **argv); /* argv[0] is "pagedcl NAME"; returns an exit status */
} command;

extern const command command_bench;
extern const command command_bench_blocks;
extern const command command_compare;
extern const command command_devices;
extern const command command_generate;
extern const command command_replay;
extern const command command_simulate;
extern const command command_tune;

/* Prints "pagedcl: " and one line to stderr; returns EXIT_USAGE. */
__attribute__((format(printf, 1, 2))) int command_fail(const char *format, ...);

/*
 * Opens the device of a --device option (NULL: the default) for a sub-command; warnings of the library go to stderr,
 * with `verbose` everything that it logs. NULL after a message on failure.
 */
pagedcl_device *command_open_device(const char *selector, int verbose);

#endif
