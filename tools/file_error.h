/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_ERROR_H
#define FILE_ERROR_H

#include <stdbool.h>
#include <stddef.h>

/* Where the failure of reading a file is told. */
typedef struct file_error {
    const char *path;
    char *text; /* [size] */
    size_t size;
} file_error;

/*
 * Writes "PATH: message", cut to the room there is: one line without control characters, whatever the message quotes
 * from the file. Returns false, so that a check can end with it.
 */
__attribute__((format(printf, 2, 3))) bool file_fail(const file_error *error, const char *format, ...);

#endif
