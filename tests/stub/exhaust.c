/* SPDX-License-Identifier: Apache-2.0 */
#include "exhaust.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* A code to which the library gives no meaning of its own. */
enum { INJECTED = CL_INVALID_OPERATION };

static void take(void (*step)(void *), void *scene) {
    if (step != NULL)
        step(scene);
}

static void succeed(const operation *op, void *scene, const char *when) {
    take(op->prepare, scene);
    stub_watch();
    pagedcl_status status = op->call(scene);
    stub_unwatch();
    cr_assert_eq(status, PAGEDCL_SUCCESS, "%s, %s: %s: %s", op->name, when, pagedcl_status_name(status),
                 pagedcl_last_error());
    take(op->verify, scene);
}

static size_t find_tolerance(const operation *op, stub_call call) {
    size_t i = 0;
    while (i < MAX_TOLERANCES && (op->tolerated[i].reason == NULL || op->tolerated[i].call != call))
        i++;
    return i;
}

static void expect_no_more(const operation *op, const char *when, stub_objects before, size_t memory) {
    stub_objects live = stub_live();
    for (int kind = 0; kind < STUB_KINDS; kind++)
        cr_assert_leq(live.references[kind], before.references[kind], "%s, %s: left %s; before: %s", op->name, when,
                      stub_objects_text(&live), stub_objects_text(&before));
    cr_assert_eq(live.strays, before.strays, "%s, %s: %s", op->name, when, stub_objects_text(&live));
    cr_assert_leq(stub_memory(), memory, "%s, %s: %zu allocations are left; before: %zu", op->name, when, stub_memory(),
                  memory);
}

static bool is_as_many(stub_objects before, size_t memory) {
    stub_objects live = stub_live();
    return memcmp(&live, &before, sizeof(live)) == 0 && stub_memory() == memory;
}

/* The operation succeeds and its objects are as before; buffers come in pairs, so the second time at the latest. */
static void recover(const operation *op, void *scene, const char *when, stub_objects before, size_t memory) {
    succeed(op, scene, when);
    if (!is_as_many(before, memory))
        succeed(op, scene, when);
    stub_objects live = stub_live();
    cr_assert(is_as_many(before, memory), "%s, after %s: left %s, allocations %zu; before: %s, %zu", op->name, when,
              stub_objects_text(&live), stub_memory(), stub_objects_text(&before), memory);
}

void exhaust(const operation *op, void *scene) {
    bool needed[MAX_TOLERANCES] = {false};
    /* The third time finds both buffers of a pair. */
    for (int i = 0; i < 3; i++)
        succeed(op, scene, "without a failure");
    size_t count = 0;
    stub_records(&count);
    stub_objects steady = stub_live();
    size_t memory = stub_memory();
    cr_assert(count > 0, "%s calls nothing", op->name);
    for (size_t n = 1; n <= count; n++) {
        take(op->prepare, scene);
        stub_fail(STUB_ANY_CALL, n, INJECTED);
        stub_watch();
        pagedcl_status status = op->call(scene);
        stub_unwatch();
        stub_call failed = stub_failed();
        char when[96];
        snprintf(when, sizeof(when), "call %zu of %zu, %s, failing", n, count, stub_call_name(failed));
        cr_assert_neq(failed, STUB_ANY_CALL, "%s: no call %zu the second time", op->name, n);
        size_t row = find_tolerance(op, failed);
        if (status == PAGEDCL_SUCCESS) {
            cr_assert(row < MAX_TOLERANCES, "%s, %s, succeeded", op->name, when);
            needed[row] = true;
            take(op->verify, scene);
        } else {
            cr_assert(pagedcl_last_error()[0], "%s, %s: no message", op->name, when);
            if (stub_count_commands() == 0)
                take(op->untouched, scene);
            take(op->failed, scene);
        }
        expect_no_more(op, when, steady, memory);
        recover(op, scene, when, steady, memory);
    }
    for (size_t i = 0; i < MAX_TOLERANCES; i++)
        cr_assert(op->tolerated[i].reason == NULL || needed[i], "%s never survives a failing %s", op->name,
                  stub_call_name(op->tolerated[i].call));
}
