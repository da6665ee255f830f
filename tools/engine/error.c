/* SPDX-License-Identifier: Apache-2.0 */
#include "error.h"

#include <pagedcl/status.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool engine_fail(engine_error *error, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    for (char *c = error->text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    return false;
}

bool engine_fail_library(engine_error *error, const char *what) {
    const char *reason = pagedcl_last_error();
    return engine_fail(error, "%s: %.*s", what, (int)strcspn(reason, "\n"), reason);
}

bool engine_fail_opencl(engine_error *error, const char *call, cl_int code) {
    return engine_fail(error, "%s failed with OpenCL error %d", call, (int)code);
}
