/* SPDX-License-Identifier: Apache-2.0 */
/* How the engine's calls fail: they return false or NULL and leave one line for the user. */
#ifndef ENGINE_ERROR_H
#define ENGINE_ERROR_H

#include <pagedcl/opencl.h>

#include <stdbool.h>

typedef struct engine_error {
    char text[1024];
} engine_error;

/* Sets the text, control characters replaced: it may quote a hostile file. Returns false. */
__attribute__((format(printf, 2, 3))) bool engine_fail(engine_error *error, const char *format, ...);

/* The same after a call of the library failed: "<what>: <first line of pagedcl_last_error()>". */
bool engine_fail_library(engine_error *error, const char *what);

/* The same after an OpenCL call returned code. */
bool engine_fail_opencl(engine_error *error, const char *call, cl_int code);

#endif
