/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L

#include "support/expect.h"
#include "support/fixture.h"
#include "support/temp_folder.h"

#include "device_list.h"

#include <pagedcl/program.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEVICES = 32 };

static size_t list(pagedcl_device_info infos[MAX_DEVICES]) {
    for (size_t i = 0; i < MAX_DEVICES; i++)
        infos[i] = (pagedcl_device_info)PAGEDCL_DEVICE_INFO_INIT;
    size_t count = 0;
    expect_ok(pagedcl_device_list(infos, MAX_DEVICES, &count));
    cr_assert(count >= 1 && count <= MAX_DEVICES, "%zu devices", count);
    return count;
}

static pagedcl_device_info info_of(const pagedcl_device *device) {
    pagedcl_device_info info = PAGEDCL_DEVICE_INFO_INIT;
    expect_ok(pagedcl_device_get_info(device, &info));
    return info;
}

static cl_uint context_references(cl_context context) {
    cl_uint count = 0;
    expect_cl(clGetContextInfo(context, CL_CONTEXT_REFERENCE_COUNT, sizeof(count), &count, NULL));
    return count;
}

static cl_uint queue_references(cl_command_queue queue) {
    cl_uint count = 0;
    expect_cl(clGetCommandQueueInfo(queue, CL_QUEUE_REFERENCE_COUNT, sizeof(count), &count, NULL));
    return count;
}

/* ---- list and select ---- */

Test(device, list_describes_every_device) {
    pagedcl_device_info infos[MAX_DEVICES];
    size_t count = list(infos), without_array = 0;
    expect_ok(pagedcl_device_list(NULL, 0, &without_array));
    cr_assert_eq(without_array, count);
    for (size_t i = 0; i < count; i++) {
        cr_assert(infos[i].device_name[0] && infos[i].platform_name[0] && infos[i].tier_reason[0], "device %zu", i);
        cr_assert(infos[i].global_memory > 0 && infos[i].max_allocation > 0 && infos[i].compute_units > 0, "device %zu",
                  i);
        cr_assert(!strncmp(infos[i].device_version, "OpenCL ", 7), "device %zu: %s", i, infos[i].device_version);
        bool same_platform = i > 0 && infos[i].platform_index == infos[i - 1].platform_index;
        cr_assert_eq(infos[i].device_index, same_platform ? infos[i - 1].device_index + 1 : 0, "device %zu", i);
    }
    expect_refused(pagedcl_device_list(infos, 1, NULL), PAGEDCL_INVALID_ARGUMENT, "count");
    expect_refused(pagedcl_device_list(NULL, 1, &count), PAGEDCL_INVALID_ARGUMENT, "infos");
}

Test(device, list_stops_at_the_capacity) {
    pagedcl_device_info infos[2] = {PAGEDCL_DEVICE_INFO_INIT, {.struct_size = 12345, .compute_units = 678}};
    size_t count = 0;
    expect_ok(pagedcl_device_list(infos, 1, &count));
    cr_assert(infos[1].struct_size == 12345 && infos[1].compute_units == 678 && !infos[1].device_name[0]);
}

Test(device, every_listed_device_opens_by_its_indices) {
    pagedcl_device_info infos[MAX_DEVICES];
    size_t count = list(infos);
    for (size_t i = 0; i < count; i++) {
        char selector[32];
        snprintf(selector, sizeof(selector), "%d:%d", infos[i].platform_index, infos[i].device_index);
        pagedcl_device *device = NULL;
        if (!infos[i].usable) {
            expect_refused(pagedcl_device_open(selector, NULL, &device), PAGEDCL_NO_DEVICE, selector);
            continue;
        }
        expect_ok(pagedcl_device_open(selector, NULL, &device));
        pagedcl_device_info info = info_of(device);
        cr_assert_str_eq(info.device_name, infos[i].device_name);
        cr_assert(info.platform_index == infos[i].platform_index && info.device_index == infos[i].device_index);
        cr_assert(pagedcl_device_context(device) && pagedcl_device_id(device) && pagedcl_device_queue(device));
        pagedcl_device_destroy(device);
    }
}

Test(device, opens_by_kind_and_by_part_of_the_name) {
    pagedcl_device *device = fixture_open();
    pagedcl_device_info info = info_of(device);
    pagedcl_device_destroy(device);
    const char *kind = info.kind == PAGEDCL_DEVICE_CPU           ? "CPU"
                       : info.kind == PAGEDCL_DEVICE_ACCELERATOR ? "Accelerator"
                                                                 : "gpu";
    char part[8] = "";
    snprintf(part, sizeof(part), "%.7s", info.device_name + 1);
    for (char *at = part; *at; at++)
        *at = *at >= 'a' && *at <= 'z' ? (char)(*at - 'a' + 'A') : *at;
    const char *selectors[] = {kind, part, info.device_name, info.platform_name};
    for (size_t i = 0; i < sizeof(selectors) / sizeof(selectors[0]); i++) {
        device = NULL;
        expect_ok(pagedcl_device_open(selectors[i], NULL, &device));
        cr_assert_eq(info_of(device).kind, info.kind, "%s", selectors[i]);
        pagedcl_device_destroy(device);
    }
}

Test(device, unknown_selector_is_told_what_there_is) {
    pagedcl_device_info infos[MAX_DEVICES];
    size_t count = list(infos);
    const char *selectors[] = {"no-such-device", "99:0", "0:99", "-1:0", "0:0x"};
    for (size_t s = 0; s < sizeof(selectors) / sizeof(selectors[0]); s++) {
        pagedcl_device *device = NULL;
        expect_refused(pagedcl_device_open(selectors[s], NULL, &device), PAGEDCL_NO_DEVICE, selectors[s]);
        cr_assert_null(device);
        for (size_t i = 0; i < count; i++)
            cr_assert(strstr(pagedcl_last_error(), infos[i].device_name), "%s", pagedcl_last_error());
    }
}

Test(device, the_environment_chooses_where_the_caller_does_not) {
    pagedcl_device *device = fixture_open();
    pagedcl_device_info info = info_of(device);
    pagedcl_device_destroy(device);
    setenv("PAGEDCL_DEVICE", "no-such-device", 1);
    expect_refused(pagedcl_device_open(NULL, NULL, &device), PAGEDCL_NO_DEVICE, "no-such-device");
    expect_refused(pagedcl_device_open("", NULL, &device), PAGEDCL_NO_DEVICE, "no-such-device");
    expect_ok(pagedcl_device_open(info.device_name, NULL, &device));
    pagedcl_device_destroy(device);
}

static pcl_listed_device listed(pagedcl_device_kind kind, const char *platform, const char *name, uint32_t units) {
    pcl_listed_device device = {.info = PAGEDCL_DEVICE_INFO_INIT};
    device.info.kind = kind;
    device.info.compute_units = units;
    device.info.usable = 1;
    snprintf(device.info.platform_name, sizeof(device.info.platform_name), "%s", platform);
    snprintf(device.info.vendor, sizeof(device.info.vendor), "%s", platform);
    snprintf(device.info.device_name, sizeof(device.info.device_name), "%s", name);
    return device;
}

/* B119: the first device of the list is an emulator, and the big card is the last. */
Test(device, the_best_device_is_the_default) {
    pcl_listed_device devices[] = {
        listed(PAGEDCL_DEVICE_ACCELERATOR, "FPGA emulation", "emulator", 512),
        listed(PAGEDCL_DEVICE_CPU, "Portable Computing Language", "pthread-Intel Xeon", 64),
        listed(PAGEDCL_DEVICE_INTEGRATED_GPU, "Intel(R) OpenCL", "UHD Graphics", 24),
        listed(PAGEDCL_DEVICE_DISCRETE_GPU, "NVIDIA CUDA", "small card", 20),
        listed(PAGEDCL_DEVICE_DISCRETE_GPU, "NVIDIA CUDA", "big card", 132),
        listed(PAGEDCL_DEVICE_DISCRETE_GPU, "NVIDIA CUDA", "second big card", 132),
    };
    struct {
        const char *selector;
        size_t want;
    } cases[] = {
        {"", 4},       {"gpu", 4},     {"GPU", 4},  {"cpu", 1}, {"accelerator", 0}, {"intel", 2}, {"pocl", 1},
        {"nvidia", 4}, {"second", 5},  {"xeon", 1}, {"amd", 6}, {"big card", 4},    {"uhd", 2},   {"fpga emulation", 0},
        {"small", 3},  {"nothing", 6},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        cr_expect_eq(pcl_device_select(devices, 6, cases[i].selector), cases[i].want, "\"%s\"", cases[i].selector);
    devices[4].info.usable = 0;
    devices[5].info.usable = 0;
    cr_expect_eq(pcl_device_select(devices, 6, ""), 3u);
    cr_expect_eq(pcl_device_select(devices, 6, "big card"), 6u, "an unusable device was chosen");
}

/* B121. Every Criterion test is a process of its own, so the loader has not looked yet. */
static void expect_no_platform(const char *vendors) {
    setenv("OCL_ICD_VENDORS", vendors, 1);
    pagedcl_device *device = NULL;
    size_t count = 42;
    expect_refused(pagedcl_device_list(NULL, 0, &count), PAGEDCL_NO_PLATFORM, "install");
    cr_assert_eq(count, 42u, "a failed call changed count");
    expect_refused(pagedcl_device_open(NULL, NULL, &device), PAGEDCL_NO_PLATFORM, "install");
    cr_assert_null(device);
}

Test(device, no_driver_in_an_empty_folder) {
    char *folder = temp_folder_create();
    expect_no_platform(folder);
    temp_folder_remove(folder);
}

Test(device, no_driver_in_a_missing_folder) {
    expect_no_platform("/no/such/folder");
}

/* ---- adopt ---- */

static cl_command_queue make_queue(cl_context context, cl_device_id id, cl_command_queue_properties properties) {
    cl_int code;
    cl_command_queue queue = clCreateCommandQueue(context, id, properties, &code);
    expect_cl(code);
    return queue;
}

static cl_context make_context(cl_device_id id) {
    cl_int code;
    cl_context context = clCreateContext(NULL, 1, &id, NULL, NULL, &code);
    expect_cl(code);
    return context;
}

/* Whether programs can be built on the device. */
static void expect_works(pagedcl_device *device) {
    pagedcl_program_desc desc = {"adopted", "kernel void nothing(global int *x) { x[0] = 1; }", NULL};
    cl_program program;
    expect_ok(pagedcl_programs_build(device, &desc, 1, &program));
    expect_cl(clReleaseProgram(program));
}

Test(device, adopts_the_callers_objects) {
    pagedcl_device *opened = fixture_open();
    cl_device_id id = pagedcl_device_id(opened);
    cl_command_queue_properties supported = 0;
    expect_cl(clGetDeviceInfo(id, CL_DEVICE_QUEUE_PROPERTIES, sizeof(supported), &supported, NULL));
    cl_command_queue_properties kinds[] = {0, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, CL_QUEUE_PROFILING_ENABLE};
    for (size_t i = 0; i < 3; i++) {
        if ((kinds[i] & supported) != kinds[i])
            continue;
        cl_context context = make_context(id);
        cl_command_queue queue = make_queue(context, id, kinds[i]);
        pagedcl_device *device;
        expect_ok(pagedcl_device_adopt(context, id, queue, NULL, &device));
        cr_assert(pagedcl_device_context(device) == context && pagedcl_device_id(device) == id &&
                  pagedcl_device_queue(device) == queue);
        cr_assert_str_eq(info_of(device).device_name, info_of(opened).device_name);
        cr_assert_eq(info_of(device).device_index, info_of(opened).device_index);
        /* The caller lets go first. */
        expect_cl(clReleaseCommandQueue(queue));
        expect_cl(clReleaseContext(context));
        expect_works(device);
        pagedcl_device_destroy(device);
    }
    pagedcl_device_destroy(opened);
}

Test(device, adoption_of_strangers_is_refused) {
    pagedcl_device *opened = fixture_open(), *device = NULL;
    cl_device_id id = pagedcl_device_id(opened);
    cl_context context = pagedcl_device_context(opened), other = make_context(id);
    cl_command_queue queue = make_queue(other, id, 0);
    cl_uint references = context_references(context);
    expect_refused(pagedcl_device_adopt(context, id, queue, NULL, &device), PAGEDCL_INVALID_ARGUMENT, "context");
    expect_refused(pagedcl_device_adopt(NULL, id, queue, NULL, &device), PAGEDCL_INVALID_ARGUMENT, "context");
    expect_refused(pagedcl_device_adopt(other, NULL, queue, NULL, &device), PAGEDCL_INVALID_ARGUMENT, "id");
    expect_refused(pagedcl_device_adopt(other, id, NULL, NULL, &device), PAGEDCL_INVALID_ARGUMENT, "queue");
    expect_refused(pagedcl_device_adopt(other, id, queue, NULL, NULL), PAGEDCL_INVALID_ARGUMENT, "device");
    cr_assert_null(device);
    cr_assert_eq(context_references(context), references);

    expect_cl(clReleaseCommandQueue(queue));
    expect_cl(clReleaseContext(other));
    pagedcl_device_destroy(opened);
}

/* B112 */
Test(device, a_hundred_handles_leave_nothing_behind) {
    pagedcl_device *opened = fixture_open();
    cl_context context = pagedcl_device_context(opened);
    cl_command_queue queue = pagedcl_device_queue(opened);
    cl_uint contexts = context_references(context), queues = queue_references(queue);
    for (int i = 0; i < 100; i++) {
        pagedcl_device *own = NULL, *adopted = NULL;
        expect_ok(pagedcl_device_open(NULL, NULL, &own));
        expect_ok(pagedcl_device_adopt(context, pagedcl_device_id(opened), queue, NULL, &adopted));
        if (i % 10 == 0)
            expect_works(adopted);
        pagedcl_device_destroy(own);
        pagedcl_device_destroy(adopted);
    }
    cr_assert_eq(context_references(context), contexts);
    cr_assert_eq(queue_references(queue), queues);
    pagedcl_device_destroy(opened);
    pagedcl_device_destroy(NULL);
}

/* ---- structs of other versions ---- */

Test(device, struct_size_is_checked) {
    pagedcl_device *device = NULL;
    pagedcl_device_options options = {0};
    expect_refused(pagedcl_device_open(NULL, &options, &device), PAGEDCL_INVALID_ARGUMENT, "struct_size");
    options.struct_size = sizeof(size_t);
    expect_refused(pagedcl_device_open(NULL, &options, &device), PAGEDCL_INVALID_ARGUMENT, "struct_size");
    cr_assert_null(device);
    device = fixture_open();
    pagedcl_device_info info = {.struct_size = 0, .compute_units = 7};
    expect_refused(pagedcl_device_get_info(device, &info), PAGEDCL_INVALID_ARGUMENT, "struct_size");
    cr_assert_eq(info.compute_units, 7u);
    pagedcl_build_stats stats = {.struct_size = 8, .compiled = 7};
    expect_refused(pagedcl_device_get_build_stats(device, &stats), PAGEDCL_INVALID_ARGUMENT, "struct_size");
    cr_assert_eq(stats.compiled, 7);
    expect_refused(pagedcl_device_get_info(device, NULL), PAGEDCL_INVALID_ARGUMENT, "NULL");
    pagedcl_device_destroy(device);
}

/* A caller that was built against a later header, whose struct goes on. */
Test(device, a_longer_struct_is_filled_as_far_as_known) {
    struct {
        pagedcl_device_info info;
        char later[64];
    } newer = {.info = {.struct_size = sizeof(newer)}};
    memset(newer.later, 0x5a, sizeof(newer.later));
    pagedcl_device *device = fixture_open();
    expect_ok(pagedcl_device_get_info(device, &newer.info));
    cr_assert_str_eq(newer.info.device_name, info_of(device).device_name);
    cr_assert_eq(newer.info.struct_size, sizeof(newer));
    for (size_t i = 0; i < sizeof(newer.later); i++)
        cr_assert_eq(newer.later[i], 0x5a, "byte %zu behind the known fields was written", i);
    pagedcl_device_destroy(device);
}

/* ---- options ---- */

static void count_log(void *user, pagedcl_log_level level, const char *message) {
    (void)level;
    cr_assert(message[0]);
    ++*(int *)user;
}

Test(device, options_choose_tier_log_and_profiling) {
    int messages = 0;
    pagedcl_device_options options = PAGEDCL_DEVICE_OPTIONS_INIT;
    options.tier = PAGEDCL_TIER_PORTABLE;
    options.log = count_log;
    options.log_user = &messages;
    options.profiling = 1;
    pagedcl_device *device;
    expect_ok(pagedcl_device_open(NULL, &options, &device));
    cr_assert_eq(info_of(device).tier, PAGEDCL_TIER_PORTABLE);
    cr_assert(messages > 0);
    cl_command_queue_properties properties;
    expect_cl(clGetCommandQueueInfo(pagedcl_device_queue(device), CL_QUEUE_PROPERTIES, sizeof(properties), &properties,
                                    NULL));
    cr_assert_eq(properties, (cl_command_queue_properties)CL_QUEUE_PROFILING_ENABLE);
    pagedcl_device_destroy(device);

    setenv("PAGEDCL_TIER", "portable", 1);
    device = fixture_open();
    cr_assert_eq(info_of(device).tier, PAGEDCL_TIER_PORTABLE);
    pagedcl_device_destroy(device);
    setenv("PAGEDCL_TIER", "fastest", 1);
    expect_refused(pagedcl_device_open(NULL, NULL, &device), PAGEDCL_INVALID_ARGUMENT, "fastest");
    options.tier = (pagedcl_tier)77;
    expect_refused(pagedcl_device_open(NULL, &options, &device), PAGEDCL_INVALID_ARGUMENT, "77");
}

Test(device, build_stats_count_programs) {
    char *folder = temp_folder_create();
    pagedcl_device_options options = PAGEDCL_DEVICE_OPTIONS_INIT;
    options.cache_dir = folder;
    pagedcl_device *device;
    expect_ok(pagedcl_device_open(NULL, &options, &device));
    pagedcl_build_stats stats = PAGEDCL_BUILD_STATS_INIT;
    expect_ok(pagedcl_device_get_build_stats(device, &stats));
    cr_assert(stats.compiled == 0 && stats.loaded == 0 && stats.compile_seconds == 0 && stats.load_seconds == 0);
    expect_works(device);
    expect_ok(pagedcl_device_get_build_stats(device, &stats));
    cr_assert(stats.compiled == 1 && stats.loaded == 0 && stats.compile_seconds > 0 && stats.load_seconds == 0);
    pagedcl_device_destroy(device);
    temp_folder_remove(folder);
}
