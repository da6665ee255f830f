/* SPDX-License-Identifier: Apache-2.0 */
#include "file_error.h"

#include "tool_error.h"

#include <stdarg.h>
#include <stdio.h>

bool file_fail(const file_error *error, const char *format, ...) {
    if (error->size == 0)
        return false;
    int used = snprintf(error->text, error->size, "%s: ", error->path);
    if (used >= 0 && (size_t)used < error->size) {
        va_list args;
        va_start(args, format);
        vsnprintf(error->text + used, error->size - (size_t)used, format, args);
        va_end(args);
    }
    tool_make_line(error->text);
    return false;
}
