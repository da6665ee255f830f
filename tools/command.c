/* SPDX-License-Identifier: Apache-2.0 */
#include "command.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int command_fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("pagedcl: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return EXIT_USAGE;
}

static void log_to_stderr(void *user, pagedcl_log_level level, const char *message) {
    const int *verbose = user;
    /* An error's text is in the message of the call that failed. */
    if (*verbose || level == PAGEDCL_LOG_WARNING)
        fprintf(stderr, "pagedcl: %s%s\n", level == PAGEDCL_LOG_WARNING ? "warning: " : "", message);
}

pagedcl_device *command_open_device(const char *selector, int verbose) {
    static const int quiet_or_verbose[2] = {0, 1}; /* the device may outlive this call */
    pagedcl_device_options options = PAGEDCL_DEVICE_OPTIONS_INIT;
    options.log = log_to_stderr;
    options.log_user = (void *)(uintptr_t)&quiet_or_verbose[verbose != 0];
    pagedcl_device *device;
    if (pagedcl_device_open(selector, &options, &device) != PAGEDCL_SUCCESS) {
        command_fail("%s", pagedcl_last_error());
        return NULL;
    }
    return device;
}
