/* SPDX-License-Identifier: Apache-2.0 */
/* How calls of the program's parts fail: they return false or NULL and leave one line for the user. */
#ifndef TOOL_ERROR_H
#define TOOL_ERROR_H

#include <pagedcl/opencl.h>
#include <pagedcl/status.h>

#include <stdbool.h>

typedef struct tool_error {
    pagedcl_status status; /* of the library's call that failed; SUCCESS when it was none */
    char text[1024];
} tool_error;

/* Sets the text, control characters replaced: it may quote a hostile file. Returns false. */
__attribute__((format(printf, 2, 3))) bool tool_fail(tool_error *error, const char *format, ...);

/* Whether a call of the library succeeded; if not, the text is "<what>: <first line of pagedcl_last_error()>". */
bool tool_try(tool_error *error, pagedcl_status status, const char *what);

/* Likewise of an OpenCL call. */
bool tool_try_opencl(tool_error *error, cl_int code, const char *call);

/* Replaces the control characters of a text, so that it is one line. */
void tool_make_line(char *text);

#endif
