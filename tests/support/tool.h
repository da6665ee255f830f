/* SPDX-License-Identifier: Apache-2.0 */
/* Running the program pagedcl as a person would. */
#ifndef TOOL_H
#define TOOL_H

typedef struct tool_run {
    int exit_status; /* -1: a signal ended it */
    char *out;       /* all of stdout */
    char *err;
} tool_run;

/* args: what comes behind "pagedcl"; env: "NAME=value", over the environment of the test. Both end with NULL. */
tool_run tool_run_with(const char *const *args, const char *const *env);

void tool_run_free(tool_run *run);

/* Lines in a text. */
int tool_lines(const char *text);

#endif
