/* SPDX-License-Identifier: Apache-2.0 */
/* What the stub's parts tell each other. */
#ifndef STUB_INSIDE_H
#define STUB_INSIDE_H

#include "stub.h"

/* A call on its way through the stub. */
typedef struct stub_entry {
    ptrdiff_t record; /* where it is recorded, or -1 */
    cl_int code;      /* what it is to fail with, or CL_SUCCESS */
} stub_entry;

/* The first thing in each wrapped function. */
stub_entry stub_enter(stub_call call, long long size, bool blocking, const char *text);

/* The last: records and returns the code of the call. */
cl_int stub_leave(stub_entry entry, cl_int code);

/* Whether the command that is being enqueued is to end with *code instead. */
bool stub_is_to_fail_later(cl_int *code);

/* The object, for which there is one more reference; NULL is left alone. */
void *stub_born(stub_kind kind, void *pointer);
void stub_retained(void *pointer);
void stub_released(void *pointer);

/* ---- answers ---- */

/* Whether the query is answered by the stub; then *code is what it returns. */
bool stub_answers(cl_uint name, size_t size, void *value, size_t *size_out, cl_int *code);

/* An answered size, or `otherwise`. */
size_t stub_answered_size(cl_uint name, size_t otherwise);

/* The fake device or platform behind an id, NULL for a real one. */
const stub_device *stub_fake(const void *id);
bool stub_has_fakes(void);

cl_int stub_fake_platforms(cl_uint capacity, cl_platform_id *ids, cl_uint *count);
cl_int stub_fake_devices(const stub_device *platform, cl_uint capacity, cl_device_id *ids, cl_uint *count);
cl_int stub_fake_platform_info(const stub_device *platform, cl_uint name, size_t size, void *value, size_t *size_out);
cl_int stub_fake_device_info(const stub_device *device, cl_uint name, size_t size, void *value, size_t *size_out);

void stub_forget_answers(void);

#endif
