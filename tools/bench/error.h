/* SPDX-License-Identifier: Apache-2.0 */
/* How the benchmark's calls fail: they return false or NULL and leave one line for the user. */
#ifndef BENCH_ERROR_H
#define BENCH_ERROR_H

#include <pagedcl/opencl.h>
#include <pagedcl/status.h>

#include <stdbool.h>

typedef struct bench_error {
    pagedcl_status status; /* of the library's call that failed; SUCCESS when it was none */
    char text[512];
} bench_error;

/* Sets the text, control characters replaced. Returns false. */
__attribute__((format(printf, 2, 3))) bool bench_fail(bench_error *error, const char *format, ...);

/* Whether a call of the library succeeded; if not, the text is "<what>: <first line of pagedcl_last_error()>". */
bool bench_try(bench_error *error, pagedcl_status status, const char *what);

/* Likewise of an OpenCL call. */
bool bench_try_opencl(bench_error *error, cl_int code, const char *call);

#endif
