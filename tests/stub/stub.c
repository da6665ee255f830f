/* SPDX-License-Identifier: Apache-2.0 */
/* Records, failures and the count of objects. */
#include "inside.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_RECORDS = 1 << 14, MAX_OBJECTS = 1 << 12 };

/* Programs are built by several threads. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool watching;
static stub_record records[MAX_RECORDS];
static size_t num_records;

static struct failure {
    stub_call call;
    size_t n;    /* calls until then; 0: each */
    cl_int code; /* CL_SUCCESS: none */
} failure;
static stub_call failed = STUB_ANY_CALL;

static struct later {
    size_t n; /* commands until then; 0: none */
    cl_int code;
} later;

static struct object {
    void *pointer;
    stub_kind kind;
    size_t references;
} objects[MAX_OBJECTS];
static size_t num_objects, strays;

const char *stub_call_name(stub_call call) {
    static const char *const names[] = {
#define NAME(call) #call,
        STUB_CALLS(NAME)
#undef NAME
            "none"};
    return names[call];
}

/* ---- calls ---- */

void stub_watch(void) {
    pthread_mutex_lock(&lock);
    num_records = 0;
    failed = STUB_ANY_CALL;
    watching = true;
    pthread_mutex_unlock(&lock);
}

void stub_unwatch(void) {
    pthread_mutex_lock(&lock);
    watching = false;
    failure = (struct failure){0};
    later = (struct later){0};
    pthread_mutex_unlock(&lock);
}

const stub_record *stub_records(size_t *count) {
    *count = num_records;
    return records;
}

size_t stub_count(stub_call call) {
    size_t count = 0;
    for (size_t i = 0; i < num_records; i++)
        count += records[i].call == call;
    return count;
}

size_t stub_count_commands(void) {
    size_t count = 0;
    for (size_t i = 0; i < num_records; i++) {
        stub_call call = records[i].call;
        bool command = call == STUB_clEnqueueNDRangeKernel || call == STUB_clEnqueueReadBuffer ||
                       call == STUB_clEnqueueWriteBuffer;
        count += command && records[i].code == CL_SUCCESS;
    }
    return count;
}

/* ---- failures ---- */

void stub_fail(stub_call call, size_t n, cl_int code) {
    failure = (struct failure){call, n, code};
}

stub_call stub_failed(void) {
    return failed;
}

void stub_fail_later(size_t n, cl_int code) {
    later = (struct later){n, code};
}

void stub_reset(void) {
    stub_unwatch();
    stub_forget_answers();
}

/* Whether this call is the one; a single failure is then spent. */
static bool is_to_fail(stub_call call, cl_int *code) {
    if (failure.code == CL_SUCCESS || (failure.call != STUB_ANY_CALL && failure.call != call))
        return false;
    if (failure.n > 1) {
        failure.n--;
        return false;
    }
    *code = failure.code;
    if (failure.n == 1)
        failure.code = CL_SUCCESS;
    failed = call;
    return true;
}

stub_entry stub_enter(stub_call call, long long size, bool blocking, const char *text) {
    stub_entry entry = {-1, CL_SUCCESS};
    pthread_mutex_lock(&lock);
    if (watching) {
        is_to_fail(call, &entry.code);
        if (num_records == MAX_RECORDS)
            abort();
        entry.record = (ptrdiff_t)num_records;
        stub_record *record = &records[num_records++];
        record->call = call;
        record->size = size;
        record->blocking = blocking;
        record->code = entry.code;
        snprintf(record->text, sizeof(record->text), "%s", text != NULL ? text : "");
    }
    pthread_mutex_unlock(&lock);
    return entry;
}

cl_int stub_leave(stub_entry entry, cl_int code) {
    pthread_mutex_lock(&lock);
    if (entry.record >= 0)
        records[entry.record].code = code;
    pthread_mutex_unlock(&lock);
    return code;
}

bool stub_is_to_fail_later(cl_int *code) {
    pthread_mutex_lock(&lock);
    bool now = watching && later.n > 0 && --later.n == 0;
    if (now)
        *code = later.code;
    pthread_mutex_unlock(&lock);
    return now;
}

/* ---- objects ---- */

/* Where the object is, or num_objects. */
static size_t find(const void *pointer) {
    size_t i = 0;
    while (i < num_objects && objects[i].pointer != pointer)
        i++;
    return i;
}

void *stub_born(stub_kind kind, void *pointer) {
    if (pointer == NULL)
        return NULL;
    pthread_mutex_lock(&lock);
    size_t i = find(pointer);
    if (i == MAX_OBJECTS)
        abort();
    if (i == num_objects)
        objects[num_objects++] = (struct object){pointer, kind, 0};
    objects[i].references++;
    pthread_mutex_unlock(&lock);
    return pointer;
}

void stub_retained(void *pointer) {
    pthread_mutex_lock(&lock);
    size_t i = find(pointer);
    if (i == num_objects)
        strays++;
    else
        objects[i].references++;
    pthread_mutex_unlock(&lock);
}

void stub_released(void *pointer) {
    pthread_mutex_lock(&lock);
    size_t i = find(pointer);
    if (i == num_objects)
        strays++;
    else if (--objects[i].references == 0)
        objects[i] = objects[--num_objects];
    pthread_mutex_unlock(&lock);
}

stub_objects stub_live(void) {
    stub_objects live = {.strays = strays};
    for (size_t i = 0; i < num_objects; i++)
        live.references[objects[i].kind] += objects[i].references;
    return live;
}

const char *stub_objects_text(const stub_objects *live) {
    static char texts[2][256];
    static int next;
    next = 1 - next;
    const size_t *r = live->references;
    snprintf(texts[next], sizeof(texts[next]),
             "contexts %zu, queues %zu, buffers %zu, programs %zu, kernels %zu, events %zu, strays %zu",
             r[STUB_CONTEXT], r[STUB_QUEUE], r[STUB_BUFFER], r[STUB_PROGRAM], r[STUB_KERNEL], r[STUB_EVENT],
             live->strays);
    return texts[next];
}
