/* SPDX-License-Identifier: Apache-2.0 */
/* Letting every OpenCL call of an operation fail once. */
#ifndef EXHAUST_H
#define EXHAUST_H

#include "stub.h"

#include <pagedcl/status.h>

/* A call whose failure the operation may survive, and why that is right. */
typedef struct stub_tolerance {
    stub_call call;
    const char *reason; /* NULL: no such row */
} stub_tolerance;

enum { MAX_TOLERANCES = 12 };

/* A use of the library; each function gets the test's scene. NULL: nothing to do. */
typedef struct operation {
    const char *name;
    void (*prepare)(void *scene); /* puts everything as it was before the first time */
    pagedcl_status (*call)(void *scene);
    void (*verify)(void *scene);    /* after success: asserts the result, then gives back what the call made */
    void (*untouched)(void *scene); /* after a failure before any command: asserts that nothing changed */
    void (*failed)(void *scene);    /* after any failure */
    stub_tolerance tolerated[MAX_TOLERANCES];
} operation;

/*
 * Counts the operation's OpenCL calls, then does it once for each of them with that one failing. Asserts each time that
 * the operation fails (or that the table says why not, and the result is right), that no object or memory is leaked or
 * released twice, and that the same operation then succeeds. A row of the table that no call needs fails the test too.
 */
void exhaust(const operation *op, void *scene);

#endif
