/* SPDX-License-Identifier: Apache-2.0 */
#include "tool_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void tool_make_line(char *text) {
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
}

bool tool_fail(tool_error *error, const char *format, ...) {
    error->status = PAGEDCL_SUCCESS;
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    tool_make_line(error->text);
    return false;
}

bool tool_try(tool_error *error, pagedcl_status status, const char *what) {
    if (status == PAGEDCL_SUCCESS)
        return true;
    const char *reason = pagedcl_last_error();
    tool_fail(error, "%s: %.*s", what, (int)strcspn(reason, "\n"), reason);
    error->status = status;
    return false;
}

bool tool_try_opencl(tool_error *error, cl_int code, const char *call) {
    return code == CL_SUCCESS || tool_fail(error, "%s failed with OpenCL error %d", call, (int)code);
}
