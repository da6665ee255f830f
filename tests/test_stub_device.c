/* SPDX-License-Identifier: Apache-2.0 */
/* Every OpenCL call of the functions on devices and programs fails once. */
#include "stub/exhaust.h"
#include "support/expect.h"
#include "support/fixture.h"
#include "support/temp_folder.h"

#include "device.h"

#include <pagedcl/program.h>

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>

enum { NUM_PROGRAMS = 2 };

typedef struct scene {
    cl_context context;
    cl_device_id id;
    cl_command_queue queue;
    pagedcl_device *device;
    char *folder; /* of built programs */
    cl_program programs[NUM_PROGRAMS];
    pagedcl_device_info info;
    size_t count;
} scene;

static pagedcl_device_options without_cache(void) {
    return (pagedcl_device_options){.struct_size = sizeof(pagedcl_device_options), .cache_dir = ""};
}

/* The device and its OpenCL objects, as a caller of adopt has them. */
static scene scene_open(void) {
    scene s = {.device = fixture_open()};
    s.context = pagedcl_device_context(s.device);
    s.id = pagedcl_device_id(s.device);
    s.queue = pagedcl_device_queue(s.device);
    return s;
}

/* Whether the device takes commands. */
static void expect_alive(pagedcl_device *device) {
    cl_int code, got = 0, want = 4711;
    cl_mem mem = clCreateBuffer(pagedcl_device_context(device), CL_MEM_READ_WRITE, sizeof(got), NULL, &code);
    expect_cl(code);
    cl_command_queue queue = pagedcl_device_queue(device);
    expect_cl(clEnqueueWriteBuffer(queue, mem, CL_TRUE, 0, sizeof(want), &want, 0, NULL, NULL));
    expect_cl(clEnqueueReadBuffer(queue, mem, CL_TRUE, 0, sizeof(got), &got, 0, NULL, NULL));
    expect_cl(clReleaseMemObject(mem));
    cr_assert_eq(got, want);
}

/* The stub's own count: what is left, and what is released once too often. */
Test(stub_device, stub_sees_leaks_and_strays) {
    pagedcl_device *device = fixture_open();
    stub_objects before = stub_live();
    cl_int code;
    cl_event event = clCreateUserEvent(pagedcl_device_context(device), &code);
    expect_cl(code);
    expect_cl(clRetainEvent(event));
    cr_assert_eq(stub_live().references[STUB_EVENT], before.references[STUB_EVENT] + 2);
    expect_cl(clReleaseEvent(event));
    expect_cl(clReleaseEvent(event));
    stub_objects after = stub_live();
    cr_assert(!memcmp(&before, &after, sizeof(after)), "left %s", stub_objects_text(&after));
    cr_assert_neq(clReleaseEvent(NULL), CL_SUCCESS);
    cr_assert_eq(stub_live().strays, before.strays + 1);
    pagedcl_device_destroy(device);
}

/* ---- list ---- */

static void prepare_list(void *at) {
    scene *s = at;
    s->info = (pagedcl_device_info)PAGEDCL_DEVICE_INFO_INIT;
    s->count = 4711;
}

static pagedcl_status call_list(void *at) {
    scene *s = at;
    return pagedcl_device_list(&s->info, 1, &s->count);
}

static void verify_list(void *at) {
    scene *s = at;
    cr_assert_neq(s->count, 4711u);
}

static void untouched_list(void *at) {
    scene *s = at;
    cr_assert_eq(s->count, 4711u);
    cr_assert_eq(s->info.device_name[0], '\0');
}

Test(stub_device, list_survives_every_failure) {
    const operation list = {
        .name = "pagedcl_device_list",
        .prepare = prepare_list,
        .call = call_list,
        .verify = verify_list,
        .untouched = untouched_list,
        .tolerated = {{STUB_clGetDeviceIDs, "a platform that fails is left out"},
                      {STUB_clGetPlatformInfo, "a property that the driver refuses to tell counts as absent"},
                      {STUB_clGetDeviceInfo, "likewise"}},
    };
    scene s = {0};
    exhaust(&list, &s);
}

/* ---- open, adopt, destroy ---- */

static void prepare_none(void *at) {
    scene *s = at;
    s->device = NULL;
}

static void untouched_none(void *at) {
    scene *s = at;
    cr_assert_null(s->device);
}

static void verify_device(void *at) {
    scene *s = at;
    expect_alive(s->device);
    pagedcl_device_destroy(s->device);
}

static pagedcl_status call_open(void *at) {
    scene *s = at;
    pagedcl_device_options options = without_cache();
    return pagedcl_device_open(NULL, &options, &s->device);
}

Test(stub_device, open_survives_every_failure) {
    const operation open = {
        .name = "pagedcl_device_open",
        .prepare = prepare_none,
        .call = call_open,
        .verify = verify_device,
        .untouched = untouched_none,
        .tolerated = {{STUB_clGetPlatformInfo, "a property that the driver refuses to tell counts as absent"},
                      {STUB_clGetDeviceInfo, "likewise"},
                      {STUB_clReleaseCommandQueue, "there is no second try at a release"},
                      {STUB_clReleaseContext, "likewise"}},
    };
    scene s = {0};
    exhaust(&open, &s);
    stub_objects none = {0}, live = stub_live();
    cr_assert(!memcmp(&live, &none, sizeof(none)), "left %s", stub_objects_text(&live));
}

static pagedcl_status call_adopt(void *at) {
    scene *s = at;
    pagedcl_device_options options = without_cache();
    return pagedcl_device_adopt(s->context, s->id, s->queue, &options, &s->device);
}

Test(stub_device, adopt_survives_every_failure) {
    const operation adopt = {
        .name = "pagedcl_device_adopt",
        .prepare = prepare_none,
        .call = call_adopt,
        .verify = verify_device,
        .untouched = untouched_none,
        .tolerated = {{STUB_clGetPlatformIDs, "where the device stands in the list is not needed"},
                      {STUB_clGetDeviceIDs, "likewise"},
                      {STUB_clGetPlatformInfo, "a property that the driver refuses to tell counts as absent"},
                      {STUB_clGetDeviceInfo, "likewise"}},
    };
    scene s = scene_open();
    pagedcl_device *owner = s.device;
    exhaust(&adopt, &s);
    pagedcl_device_destroy(owner);
}

static void prepare_destroy(void *at) {
    scene *s = at;
    pagedcl_device_options options = without_cache();
    expect_ok(pagedcl_device_open(NULL, &options, &s->device));
}

static pagedcl_status call_destroy(void *at) {
    scene *s = at;
    pagedcl_device_destroy(s->device);
    return PAGEDCL_SUCCESS;
}

Test(stub_device, destroy_survives_every_failure) {
    const operation destroy = {
        .name = "pagedcl_device_destroy",
        .prepare = prepare_destroy,
        .call = call_destroy,
        .tolerated = {{STUB_clReleaseCommandQueue, "there is no second try at a release"},
                      {STUB_clReleaseContext, "likewise"}},
    };
    scene s = {0};
    exhaust(&destroy, &s);
}

/* ---- programs ---- */

static const char constant_source[] = "kernel void constant_value(global int *x) { x[get_global_id(0)] = VALUE; }\n";

static pagedcl_status call_build(void *at) {
    scene *s = at;
    const pagedcl_program_desc descs[NUM_PROGRAMS] = {{"one", constant_source, "-DVALUE=1"},
                                                      {"two", constant_source, "-DVALUE=2"}};
    return pagedcl_programs_build(s->device, descs, NUM_PROGRAMS, s->programs);
}

static void forget_programs(void *at) {
    scene *s = at;
    for (int i = 0; i < NUM_PROGRAMS; i++)
        s->programs[i] = NULL;
}

static void verify_programs(void *at) {
    scene *s = at;
    for (int i = 0; i < NUM_PROGRAMS; i++) {
        cl_int code, got = 0;
        cl_kernel kernel = clCreateKernel(s->programs[i], "constant_value", &code);
        expect_cl(code);
        cl_mem mem = clCreateBuffer(s->context, CL_MEM_READ_WRITE, sizeof(got), NULL, &code);
        expect_cl(code);
        expect_cl(clSetKernelArg(kernel, 0, sizeof(mem), &mem));
        size_t one = 1;
        expect_cl(clEnqueueNDRangeKernel(s->queue, kernel, 1, NULL, &one, &one, 0, NULL, NULL));
        expect_cl(clEnqueueReadBuffer(s->queue, mem, CL_TRUE, 0, sizeof(got), &got, 0, NULL, NULL));
        cr_assert_eq(got, i + 1);
        expect_cl(clReleaseMemObject(mem));
        expect_cl(clReleaseKernel(kernel));
        expect_cl(clReleaseProgram(s->programs[i]));
    }
}

static void untouched_programs(void *at) {
    scene *s = at;
    for (int i = 0; i < NUM_PROGRAMS; i++)
        cr_assert_null(s->programs[i]);
}

static void prepare_empty_folder(void *at) {
    scene *s = at;
    forget_programs(s);
    char pattern[512];
    snprintf(pattern, sizeof(pattern), "%s/*", s->folder);
    glob_t found;
    if (glob(pattern, 0, NULL, &found) != 0)
        return;
    for (size_t i = 0; i < found.gl_pathc; i++)
        cr_assert_eq(remove(found.gl_pathv[i]), 0, "%s", found.gl_pathv[i]);
    globfree(&found);
}

static void build_with(const operation *build, bool keeps_programs) {
    scene s = {.folder = temp_folder_create()};
    pagedcl_device_options options = PAGEDCL_DEVICE_OPTIONS_INIT;
    options.cache_dir = s.folder;
    expect_ok(pagedcl_device_open(NULL, &options, &s.device));
    s.context = pagedcl_device_context(s.device);
    s.queue = pagedcl_device_queue(s.device);
    /* One after the other, so that the n-th call is the same each time. */
    s.device->quirks.builds_one_at_a_time = true;
    s.device->quirks.keeps_programs = keeps_programs;
    exhaust(build, &s);
    pagedcl_device_destroy(s.device);
    temp_folder_remove(s.folder);
}

Test(stub_device, build_survives_every_failure) {
    const operation build = {
        .name = "pagedcl_programs_build",
        .prepare = forget_programs,
        .call = call_build,
        .verify = verify_programs,
        .untouched = untouched_programs,
    };
    build_with(&build, true);
}

Test(stub_device, build_into_the_cache_survives_every_failure) {
    const operation build = {
        .name = "pagedcl_programs_build, nothing cached",
        .prepare = prepare_empty_folder,
        .call = call_build,
        .verify = verify_programs,
        .untouched = untouched_programs,
        .tolerated = {{STUB_clGetProgramInfo, "a program whose binary is not to be had is not cached"},
                      {STUB_clReleaseKernel, "there is no second try at a release"}},
    };
    build_with(&build, false);
}

Test(stub_device, build_from_the_cache_survives_every_failure) {
    const operation build = {
        .name = "pagedcl_programs_build, all cached",
        .prepare = forget_programs,
        .call = call_build,
        .verify = verify_programs,
        .untouched = untouched_programs,
        .tolerated = {{STUB_clCreateProgramWithBinary, "a cached program that cannot be used is built anew"},
                      {STUB_clBuildProgram, "likewise"},
                      {STUB_clCreateKernelsInProgram, "likewise"},
                      {STUB_clReleaseKernel, "there is no second try at a release"}},
    };
    build_with(&build, false);
}
