/* SPDX-License-Identifier: Apache-2.0 */
/* Assertions of the tests. Each ends the test when it fails and says which call, or which case, it was. */
#ifndef EXPECT_H
#define EXPECT_H

#include "compare.h"

#include <pagedcl/opencl.h>
#include <pagedcl/status.h>

#include <criterion/criterion.h>
#include <string.h>

#define expect_ok(call)                                                                                        \
    do {                                                                                                       \
        pagedcl_status expect_status_ = (call);                                                                \
        cr_assert(expect_status_ == PAGEDCL_SUCCESS, "%s: %s: %s", #call, pagedcl_status_name(expect_status_), \
                  pagedcl_last_error());                                                                       \
    } while (0)

/* The call fails with that status, and its message contains `words`: it names the thing. */
#define expect_refused(call, status, words)                                                                      \
    do {                                                                                                         \
        pagedcl_status expect_status_ = (call);                                                                  \
        cr_assert(expect_status_ == (status), "%s: got %s, want %s", #call, pagedcl_status_name(expect_status_), \
                  pagedcl_status_name(status));                                                                  \
        cr_assert(strstr(pagedcl_last_error(), (words)), "%s: the message \"%s\" does not say \"%s\"", #call,    \
                  pagedcl_last_error(), (words));                                                                \
    } while (0)

#define expect_cl(call)                                                       \
    do {                                                                      \
        cl_int expect_code_ = (call);                                         \
        cr_assert(expect_code_ == CL_SUCCESS, "%s: %d", #call, expect_code_); \
    } while (0)

/* `name` is the case. */
#define expect_close(name, what, got, want, count, allowed)                           \
    do {                                                                              \
        const char *expect_text_ = compare_floats((got), (want), (count), (allowed)); \
        cr_assert(!expect_text_, "%s: %s: %s", (name), (what), expect_text_);         \
    } while (0)

#define expect_same_bytes(name, what, got, want, count)                       \
    do {                                                                      \
        const char *expect_text_ = compare_bytes((got), (want), (count));     \
        cr_assert(!expect_text_, "%s: %s: %s", (name), (what), expect_text_); \
    } while (0)

#endif
