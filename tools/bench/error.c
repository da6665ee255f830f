/* SPDX-License-Identifier: Apache-2.0 */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool bench_fail(bench_error *error, const char *format, ...) {
    error->status = PAGEDCL_SUCCESS;
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    for (char *c = error->text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    return false;
}

bool bench_try(bench_error *error, pagedcl_status status, const char *what) {
    if (status == PAGEDCL_SUCCESS)
        return true;
    const char *reason = pagedcl_last_error();
    bench_fail(error, "%s: %.*s", what, (int)strcspn(reason, "\n"), reason);
    error->status = status;
    return false;
}

bool bench_try_opencl(bench_error *error, cl_int code, const char *call) {
    return code == CL_SUCCESS || bench_fail(error, "%s failed with OpenCL error %d", call, (int)code);
}
