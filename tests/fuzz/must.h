/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MUST_H
#define MUST_H

#include <pagedcl/status.h>

#include <stdio.h>
#include <stdlib.h>

/* What a fuzz target holds true: otherwise it ends, and libFuzzer keeps the input. */
#define MUST(condition)                                                                               \
    do {                                                                                              \
        if (!(condition)) {                                                                           \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, pagedcl_last_error()); \
            abort();                                                                                  \
        }                                                                                             \
    } while (0)

#endif
