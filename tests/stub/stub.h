/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stub between a test program and OpenCL: it passes every call on, and on the way it keeps count of the objects that
 * live, records calls, lets one fail, and changes what OpenCL says about itself. It counts host memory too.
 *
 * The program's own calls go through it like the library's. Only what happens between stub_watch and stub_unwatch is
 * recorded and can fail.
 */
#ifndef STUB_H
#define STUB_H

#include "calls.h"

#include <pagedcl/opencl.h>

#include <stdbool.h>
#include <stddef.h>

/* STUB_clFinish and so on. */
typedef enum stub_call {
#define STUB_CALL(call) STUB_##call,
    STUB_CALLS(STUB_CALL)
#undef STUB_CALL
        STUB_ANY_CALL
} stub_call;

const char *stub_call_name(stub_call call);

/* ---- calls ---- */

enum { STUB_NO_SIZE = -1, STUB_TEXT = 2048 };

typedef struct stub_record {
    stub_call call;
    long long size; /* bytes of a buffer or a transfer, work-items of a launch, entries of a list; or STUB_NO_SIZE */
    bool blocking;  /* a transfer that waits */
    cl_int code;    /* what the call returned */
    char text[STUB_TEXT]; /* options of a build, name of a kernel or of a fake device; or empty */
} stub_record;

/* Forgets the records and begins to record. */
void stub_watch(void);

/* Ends recording; a failure that has not happened yet will not. The records stay until the next stub_watch. */
void stub_unwatch(void);

const stub_record *stub_records(size_t *count);

/* How many records there are of a function. */
size_t stub_count(stub_call call);

/* How many commands were enqueued, barriers left out. */
size_t stub_count_commands(void);

/* ---- failures ---- */

/*
 * The n-th call of a function, or of any with STUB_ANY_CALL, returns `code` and does nothing; n counts from 1 at the
 * next stub_watch, and 0 means each. A release, an unmap, a wait and a flush are done all the same: the caller has no second
 * try, and memory that a command still uses must not be freed under it.
 */
void stub_fail(stub_call call, size_t n, cl_int code);

/* The function whose call failed so since stub_watch, or STUB_ANY_CALL. */
stub_call stub_failed(void);

/* The n-th command from the next stub_watch on is enqueued with success and ends with `code`, having done nothing. */
void stub_fail_later(size_t n, cl_int code);

/* ---- objects ---- */

typedef enum stub_kind {
    STUB_CONTEXT,
    STUB_QUEUE,
    STUB_BUFFER,
    STUB_PROGRAM,
    STUB_KERNEL,
    STUB_EVENT,
    STUB_KINDS,
} stub_kind;

/* References that were taken and not given back. */
typedef struct stub_objects {
    size_t references[STUB_KINDS];
    size_t strays; /* retains and releases of what did not live */
} stub_objects;

stub_objects stub_live(void);

/* "contexts 1, queues 2, ..."; the text holds until the next call but one. */
const char *stub_objects_text(const stub_objects *live);

/* ---- host memory ---- */

/* Allocations that the program and the library, but not other libraries, made so far, and those not freed yet. */
size_t stub_allocations(void);
size_t stub_memory(void);

/* ---- answers ---- */

/*
 * From now on every query of that name, of platform, device, kernel or build, is answered so. The stub keeps to
 * what it says: a launch or a buffer larger than an answered limit is refused as a device would. Copied.
 */
void stub_answer(cl_uint name, const void *value, size_t size);
void stub_answer_text(cl_uint name, const char *text);

/* Devices that exist in listings only: a context on one is refused. */
typedef struct stub_device {
    const char *platform; /* devices of one platform stand together */
    const char *name;
    cl_device_type type; /* 0: asking the platform for its devices fails */
    cl_bool unified_memory;
    cl_uint compute_units;
    cl_bool unavailable;
    cl_bool without_compiler;
    cl_bool big_endian;
    const char *version; /* NULL: "OpenCL 1.2 stub" */
} stub_device;

/* These are all the devices there are from now on; the array must last. */
void stub_devices(const stub_device *devices, size_t count);

/* Real devices and true answers again, and no failure. */
void stub_reset(void);

#endif
