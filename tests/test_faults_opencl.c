/* SPDX-License-Identifier: Apache-2.0 */
/* Faults that users have met in OpenCL implementations, each shown through the stub. */
#define _POSIX_C_SOURCE 200809L

#include "stub/stub.h"
#include "support/attn_rig.h"
#include "support/expect.h"
#include "support/fixture.h"
#include "support/temp_folder.h"

#include "device.h"

#include <pagedcl/blocks.h>
#include <pagedcl/merge.h>
#include <pagedcl/program.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int32_t long_seqlens[] = {330, 1, 150};

static const attn_case small_varlen = {.name = "varlen", .path = VARLEN_PAGED, .head_dim = 8, .causal = 1, .append = 1};
static const attn_case small_decode = {.name = "decode",
                                       .path = DECODE,
                                       .head_dim = 8,
                                       .causal = 1,
                                       .append = 1,
                                       .seqlens_k = long_seqlens,
                                       .num_splits = 3};

static void check_case(const attn_case *c) {
    attn_check_cases(c, 1);
}

static pagedcl_device_info info_of(const pagedcl_device *device) {
    pagedcl_device_info info = PAGEDCL_DEVICE_INFO_INIT;
    expect_ok(pagedcl_device_get_info(device, &info));
    return info;
}

/* ---- which device ---- */

static const stub_device fakes[] = {
    {"FPGA emulation", "emulator", CL_DEVICE_TYPE_ACCELERATOR, .compute_units = 512},
    {"Broken driver", "nothing", 0, .compute_units = 1},
    {"CPU runtime", "big-endian processor", CL_DEVICE_TYPE_CPU, .compute_units = 4, .big_endian = CL_TRUE},
    {"CPU runtime", "processor", CL_DEVICE_TYPE_CPU, .compute_units = 64},
    {"Graphics", "integrated", CL_DEVICE_TYPE_GPU, .unified_memory = CL_TRUE, .compute_units = 96},
    {"Graphics", "old card", CL_DEVICE_TYPE_GPU, .compute_units = 900, .version = "OpenCL 1.1 old"},
    {"Graphics", "dead card", CL_DEVICE_TYPE_GPU, .compute_units = 900, .unavailable = CL_TRUE},
    {"Graphics", "mute card", CL_DEVICE_TYPE_GPU, .compute_units = 900, .without_compiler = CL_TRUE},
    {"Graphics", "card", CL_DEVICE_TYPE_GPU, .compute_units = 80},
};
enum { NUM_FAKES = sizeof(fakes) / sizeof(fakes[0]), NUM_LISTED = NUM_FAKES - 1 };

/* The device on which the context was to be made. */
static const char *opened(const char *selector) {
    pagedcl_device *device = NULL;
    stub_watch();
    pagedcl_status status = pagedcl_device_open(selector, NULL, &device);
    stub_unwatch();
    cr_assert_eq(status, PAGEDCL_OPENCL_ERROR, "%s: %s", selector, pagedcl_status_name(status));
    cr_assert_null(device);
    size_t count = 0;
    const stub_record *records = stub_records(&count);
    for (size_t i = 0; i < count; i++)
        if (records[i].call == STUB_clCreateContext)
            return records[i].text;
    return "no device";
}

/* B119 */
Test(faults_opencl, the_big_card_is_the_default_wherever_it_stands) {
    stub_devices(fakes, NUM_FAKES);
    const struct {
        const char *selector, *want;
    } cases[] = {{"", "card"},         {"gpu", "card"},       {"cpu", "processor"},         {"accelerator", "emulator"},
                 {"emul", "emulator"}, {"3:0", "integrated"}, {"integrated", "integrated"}, {"2:1", "processor"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        cr_expect_str_eq(opened(cases[i].selector), cases[i].want, "\"%s\": %s", cases[i].selector,
                         opened(cases[i].selector));
    pagedcl_device *device = NULL;
    expect_refused(pagedcl_device_open("dead card", NULL, &device), PAGEDCL_NO_DEVICE, "dead card (not usable)");
}

Test(faults_opencl, listing_is_whole_stable_and_says_why) {
    stub_devices(fakes, NUM_FAKES);
    const struct {
        const char *name, *reason;
        int32_t platform, device, usable;
        pagedcl_device_kind kind;
        pagedcl_tier tier;
    } want[NUM_LISTED] = {
        {"emulator", "every device", 0, 0, 1, PAGEDCL_DEVICE_ACCELERATOR, PAGEDCL_TIER_PORTABLE},
        {"big-endian processor", "big-endian", 2, 0, 0, PAGEDCL_DEVICE_CPU, PAGEDCL_TIER_CPU},
        {"processor", "CPU", 2, 1, 1, PAGEDCL_DEVICE_CPU, PAGEDCL_TIER_CPU},
        {"integrated", "every device", 3, 0, 1, PAGEDCL_DEVICE_INTEGRATED_GPU, PAGEDCL_TIER_PORTABLE},
        {"old card", "1.2", 3, 1, 0, PAGEDCL_DEVICE_DISCRETE_GPU, PAGEDCL_TIER_PORTABLE},
        {"dead card", "not available", 3, 2, 0, PAGEDCL_DEVICE_DISCRETE_GPU, PAGEDCL_TIER_PORTABLE},
        {"mute card", "compiler", 3, 3, 0, PAGEDCL_DEVICE_DISCRETE_GPU, PAGEDCL_TIER_PORTABLE},
        {"card", "every device", 3, 4, 1, PAGEDCL_DEVICE_DISCRETE_GPU, PAGEDCL_TIER_PORTABLE},
    };
    for (int turn = 0; turn < 2; turn++) {
        pagedcl_device_info infos[NUM_FAKES];
        for (int i = 0; i < NUM_FAKES; i++)
            infos[i] = (pagedcl_device_info)PAGEDCL_DEVICE_INFO_INIT;
        size_t count = 0;
        expect_ok(pagedcl_device_list(infos, NUM_FAKES, &count));
        cr_assert_eq(count, (size_t)NUM_LISTED);
        for (int i = 0; i < NUM_LISTED; i++) {
            cr_assert_str_eq(infos[i].device_name, want[i].name);
            cr_assert(strstr(infos[i].tier_reason, want[i].reason), "%s: %s", want[i].name, infos[i].tier_reason);
            cr_assert(infos[i].platform_index == want[i].platform && infos[i].device_index == want[i].device &&
                          infos[i].usable == want[i].usable && infos[i].kind == want[i].kind &&
                          infos[i].tier == want[i].tier,
                      "%s", want[i].name);
        }
    }
}

static void expect_no_platform(void) {
    pagedcl_device *device = NULL;
    size_t count = 4711;
    stub_watch();
    expect_refused(pagedcl_device_list(NULL, 0, &count), PAGEDCL_NO_PLATFORM, "install");
    expect_refused(pagedcl_device_open(NULL, NULL, &device), PAGEDCL_NO_PLATFORM, "install");
    stub_unwatch();
    cr_assert(device == NULL && count == 4711);
    /* What needs no device works all the same. */
    pagedcl_blocks_desc desc = PAGEDCL_BLOCKS_DESC_INIT;
    desc.num_blocks = desc.block_size = 4;
    pagedcl_blocks *blocks;
    expect_ok(pagedcl_blocks_create(&desc, &blocks));
    pagedcl_blocks_destroy(blocks);
}

/* B121: the loader's own code for "no driver", and loaders that give an empty list instead. */
Test(faults_opencl, loader_without_a_driver) {
    stub_fail(STUB_clGetPlatformIDs, 0, -1001);
    expect_no_platform();
    stub_devices(fakes, 0);
    expect_no_platform();
}

/* The caller's device, too, is looked at before it is used. */
Test(faults_opencl, unusable_device_is_not_adopted) {
    const struct {
        cl_device_info name;
        const char *words;
    } cases[] = {{CL_DEVICE_AVAILABLE, "not available"},
                 {CL_DEVICE_COMPILER_AVAILABLE, "compiler"},
                 {CL_DEVICE_ENDIAN_LITTLE, "big-endian"}};
    pagedcl_device *device = fixture_open(), *adopted = NULL;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cl_bool no = CL_FALSE;
        stub_answer(cases[i].name, &no, sizeof(no));
        expect_refused(pagedcl_device_adopt(pagedcl_device_context(device), pagedcl_device_id(device),
                                            pagedcl_device_queue(device), NULL, &adopted),
                       PAGEDCL_UNSUPPORTED, cases[i].words);
        expect_refused(pagedcl_device_open(NULL, NULL, &adopted), PAGEDCL_NO_DEVICE, "usable");
        stub_reset();
    }
    cr_assert_null(adopted);
    pagedcl_device_destroy(device);
}

/* ---- limits ---- */

/* B67: what the compiled kernel allows, and what the device allows in the first dimension. */
Test(faults_opencl, small_work_groups) {
    const size_t limits[] = {128, 64, 48, 1};
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        stub_answer(CL_KERNEL_WORK_GROUP_SIZE, &limits[i], sizeof(limits[i]));
        check_case(&small_varlen);
        check_case(&small_decode);
        stub_reset();
        const size_t items[3] = {limits[i], 1, 1};
        stub_answer(CL_DEVICE_MAX_WORK_ITEM_SIZES, items, sizeof(items));
        check_case(&small_decode);
        stub_reset();
    }
}

Test(faults_opencl, no_work_group_at_all) {
    pagedcl_device *device = fixture_open();
    pagedcl_attn_desc desc = PAGEDCL_ATTN_DESC_INIT;
    desc.num_heads = desc.num_kv_heads = 1;
    desc.head_dim = 8;
    const size_t none = 0;
    stub_answer(CL_KERNEL_WORK_GROUP_SIZE, &none, sizeof(none));
    pagedcl_attn *attn = NULL;
    expect_refused(pagedcl_attn_create(device, &desc, &attn), PAGEDCL_UNSUPPORTED, "work-group");
    cr_assert_null(attn);
    pagedcl_device_destroy(device);
}

Test(faults_opencl, little_local_memory) {
    const cl_ulong bytes = 4096;
    stub_answer(CL_DEVICE_LOCAL_MEM_SIZE, &bytes, sizeof(bytes));
    check_case(&small_varlen);
    check_case(&small_decode);
}

/* B126: K of a layer is 35 blocks of 1 KiB. */
Test(faults_opencl, pool_larger_than_the_largest_buffer) {
    const cl_ulong bytes = 20 * 1024;
    stub_answer(CL_DEVICE_MAX_MEM_ALLOC_SIZE, &bytes, sizeof(bytes));
    check_case(&small_decode);

    const cl_ulong few = 8 * 1024;
    stub_answer(CL_DEVICE_MAX_MEM_ALLOC_SIZE, &few, sizeof(few));
    pagedcl_device *device = fixture_open();
    pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT;
    desc.num_blocks = 4;
    desc.block_size = 512;
    desc.num_kv_heads = 2;
    desc.head_dim = 8;
    pagedcl_cache *cache = NULL;
    expect_refused(pagedcl_cache_create(device, &desc, &cache), PAGEDCL_POOL_TOO_LARGE, "8192");
    cr_assert_null(cache);
    pagedcl_device_destroy(device);
}

/* ---- optional features, build options ---- */

/* B129 */
Test(faults_opencl, float16_without_half_arithmetic) {
    stub_answer_text(CL_DEVICE_EXTENSIONS, "cl_khr_byte_addressable_store");
    pagedcl_device *device = fixture_open();
    cr_assert_eq(info_of(device).has_fp16, 0);
    pagedcl_device_destroy(device);
    attn_case cases[] = {small_varlen, small_decode};
    for (int i = 0; i < 2; i++) {
        cases[i].q_dtype = cases[i].kv_dtype = cases[i].out_dtype = PAGEDCL_FLOAT16;
        check_case(&cases[i]);
    }
}

/* What a merge gives where both sides are empty is test_merge's business. */
static void build_merge(void) {
    pagedcl_device *device = fixture_open();
    pagedcl_merge_desc desc = PAGEDCL_MERGE_DESC_INIT;
    desc.num_heads = 1;
    desc.head_dim = 8;
    pagedcl_merge *merge;
    expect_ok(pagedcl_merge_create(device, &desc, &merge));
    pagedcl_merge_destroy(merge);
    pagedcl_device_destroy(device);
}

/* B133 */
Test(faults_opencl, no_option_lets_infinities_go) {
    static const char *const forbidden[] = {"fast-relaxed-math", "finite-math-only", "unsafe-math-optimizations"};
    static const int32_t five[] = {5}, two[] = {2};
    const attn_case cases[] = {
        {.name = "packed", .path = VARLEN_PACKED, .num_seqs = 1, .seqlens_q = five, .seqlens_k = two, .causal = 1},
        {.name = "paged", .path = VARLEN_PAGED, .num_seqs = 1, .seqlens_q = five, .seqlens_k = two, .causal = 1},
        {.name = "decode", .path = DECODE, .num_seqs = 1, .seqlen_q = 5, .seqlens_k = two, .causal = 1},
    };
    size_t builds = 0;
    for (size_t i = 0; i <= sizeof(cases) / sizeof(cases[0]); i++) {
        stub_watch();
        if (i < sizeof(cases) / sizeof(cases[0]))
            check_case(&cases[i]);
        else
            build_merge();
        stub_unwatch();
        size_t count = 0;
        const stub_record *records = stub_records(&count);
        for (size_t r = 0; r < count; r++) {
            if (records[r].call != STUB_clBuildProgram)
                continue;
            builds++;
            for (size_t f = 0; f < sizeof(forbidden) / sizeof(forbidden[0]); f++)
                cr_assert(!strstr(records[r].text, forbidden[f]), "%s", records[r].text);
        }
    }
    cr_assert_gt(builds, 0u);
}

/* ---- builds that fail ---- */

enum { LOG_BYTES = 1 << 20 };

static const pagedcl_program_desc two_programs[] = {
    {"first one", "kernel void f(global int *x) { x[0] = VALUE; }", "-DVALUE=1"},
    {"second one", "kernel void f(global int *x) { x[0] = VALUE; }", "-DVALUE=2"},
};

static void keep_longest(void *user, pagedcl_log_level level, const char *message) {
    if (level == PAGEDCL_LOG_ERROR && strlen(message) > *(size_t *)user)
        *(size_t *)user = strlen(message);
}

static void expect_build_fails(pagedcl_device *device, cl_int code) {
    cl_program programs[2] = {NULL, NULL};
    stub_objects before = stub_live(), after;
    stub_fail(STUB_clBuildProgram, 0, code);
    stub_watch();
    pagedcl_status status = pagedcl_programs_build(device, two_programs, 2, programs);
    stub_unwatch();
    cr_assert_eq(status, PAGEDCL_BUILD_FAILED);
    char number[16];
    snprintf(number, sizeof(number), "%d", (int)code);
    const char *parts[] = {"first one", "-DVALUE=1", number, info_of(device).device_name};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        cr_assert(strstr(pagedcl_last_error(), parts[i]), "no \"%s\" in: %.200s", parts[i], pagedcl_last_error());
    after = stub_live();
    cr_assert(programs[0] == NULL && programs[1] == NULL);
    cr_assert(memcmp(&before, &after, sizeof(after)) == 0, "left %s", stub_objects_text(&after));
}

/* B136 */
Test(faults_opencl, failed_builds_say_what_there_is_to_say) {
    size_t longest = 0;
    pagedcl_device_options options = PAGEDCL_DEVICE_OPTIONS_INIT;
    options.log = keep_longest;
    options.log_user = &longest;
    pagedcl_device *device;
    expect_ok(pagedcl_device_open(NULL, &options, &device));
    char *log = fixture_alloc(LOG_BYTES + 1);
    memset(log, 'x', LOG_BYTES);
    log[LOG_BYTES] = '\0';
    const cl_int codes[] = {CL_OUT_OF_HOST_MEMORY, CL_BUILD_PROGRAM_FAILURE};
    for (int i = 0; i < 2; i++) {
        stub_answer_text(CL_PROGRAM_BUILD_LOG, "");
        expect_build_fails(device, codes[i]);
        cr_assert(strstr(pagedcl_last_error(), "no log"), "%s", pagedcl_last_error());
        stub_answer_text(CL_PROGRAM_BUILD_LOG, log);
        longest = 0;
        expect_build_fails(device, codes[i]);
        cr_assert(strstr(pagedcl_last_error(), "xxxx"), "%.200s", pagedcl_last_error());
        cr_assert_gt(longest, (size_t)LOG_BYTES, "%zu bytes were logged", longest);
    }
    free(log);
    pagedcl_device_destroy(device);
}

/* A compiler that ran out of memory beside another one gets a second try alone; one that found an error does not. */
Test(faults_opencl, builds_out_of_memory_are_tried_again) {
    pagedcl_device *device = fixture_open();
    cl_program programs[2];
    stub_fail(STUB_clBuildProgram, 2, CL_OUT_OF_HOST_MEMORY);
    stub_watch();
    expect_ok(pagedcl_programs_build(device, two_programs, 2, programs));
    stub_unwatch();
    cr_assert_eq(stub_count(STUB_clBuildProgram), 3u);
    for (int i = 0; i < 2; i++)
        expect_cl(clReleaseProgram(programs[i]));
    stub_fail(STUB_clBuildProgram, 2, CL_BUILD_PROGRAM_FAILURE);
    stub_watch();
    cr_assert_eq(pagedcl_programs_build(device, two_programs, 2, programs), PAGEDCL_BUILD_FAILED);
    stub_unwatch();
    cr_assert_eq(stub_count(STUB_clBuildProgram), 2u);
    pagedcl_device_destroy(device);
}

/* ---- programs on disk ---- */

/* A device whose programs the library must keep itself. */
static pagedcl_device *open_with_folder(const char *folder) {
    pagedcl_device_options options = PAGEDCL_DEVICE_OPTIONS_INIT;
    options.cache_dir = folder;
    pagedcl_device *device;
    expect_ok(pagedcl_device_open(NULL, &options, &device));
    device->quirks.keeps_programs = false;
    return device;
}

static pagedcl_build_stats build_with_driver(const char *folder, const char *driver) {
    stub_answer_text(CL_DRIVER_VERSION, driver);
    pagedcl_device *device = open_with_folder(folder);
    cl_program programs[2];
    expect_ok(pagedcl_programs_build(device, two_programs, 2, programs));
    for (int i = 0; i < 2; i++)
        expect_cl(clReleaseProgram(programs[i]));
    pagedcl_build_stats stats = PAGEDCL_BUILD_STATS_INIT;
    expect_ok(pagedcl_device_get_build_stats(device, &stats));
    pagedcl_device_destroy(device);
    return stats;
}

/* B107 */
Test(faults_opencl, driver_update_rebuilds) {
    char *folder = temp_folder_create();
    const struct {
        const char *driver;
        int64_t compiled, loaded;
    } turns[] = {{"A", 2, 0}, {"A", 0, 2}, {"B", 2, 0}, {"A", 0, 2}, {"B", 0, 2}};
    for (size_t i = 0; i < sizeof(turns) / sizeof(turns[0]); i++) {
        pagedcl_build_stats stats = build_with_driver(folder, turns[i].driver);
        cr_assert(stats.compiled == turns[i].compiled && stats.loaded == turns[i].loaded,
                  "turn %zu: %lld compiled, %lld loaded", i, (long long)stats.compiled, (long long)stats.loaded);
    }
    temp_folder_remove(folder);
}

/* B139: write, pool and attention alike, compiled, from the driver, and from the binary. */
Test(faults_opencl, cold_warm_and_loaded_programs_agree) {
    char *folder = temp_folder_create();
    attn_problem problem = attn_problem_create(&small_decode, 1);
    attn_result first = {0};
    for (int turn = 0; turn < 3; turn++) {
        pagedcl_device *device = turn == 1 ? fixture_open() : open_with_folder(folder);
        attn_result result = attn_solve(device, PAGEDCL_TIER_AUTO, &problem);
        attn_expect_reference(&problem, &result, "a turn");
        pagedcl_build_stats stats = PAGEDCL_BUILD_STATS_INIT;
        expect_ok(pagedcl_device_get_build_stats(device, &stats));
        cr_assert(turn == 2 ? stats.compiled == 0 && stats.loaded > 0 : stats.loaded == 0, "turn %d", turn);
        pagedcl_device_destroy(device);
        if (turn == 0) {
            first = result;
            continue;
        }
        size_t rows = (size_t)attn_total_q(&problem) * (size_t)problem.num_heads;
        expect_same_bytes("a later turn", "out", result.out, first.out, rows * 8 * sizeof(float));
        expect_same_bytes("a later turn", "lse", result.lse, first.lse, rows * sizeof(float));
        attn_result_destroy(&result);
    }
    attn_result_destroy(&first);
    attn_problem_destroy(&problem);
    temp_folder_remove(folder);
}
