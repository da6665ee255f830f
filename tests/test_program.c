/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L

#include "support/expect.h"
#include "support/fixture.h"
#include "support/temp_folder.h"

#include "device.h"
#include "kernel_source.h"
#include "program.h"
#include "program_disk.h"
#include "thread.h"

#include <pagedcl/version.h>

#include <glob.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char constant_source[] = "kernel void constant_value(global int *x) { x[get_global_id(0)] = VALUE; }\n";

/* What the kernel of the program stores. */
static cl_int run_constant(pagedcl_device *device, cl_program program) {
    cl_int code, value = -1;
    cl_mem mem = clCreateBuffer(pagedcl_device_context(device), CL_MEM_READ_WRITE, sizeof(value), NULL, &code);
    expect_cl(code);
    cl_kernel kernel = clCreateKernel(program, "constant_value", &code);
    expect_cl(code);
    expect_cl(clSetKernelArg(kernel, 0, sizeof(mem), &mem));
    cl_command_queue queue = pagedcl_device_queue(device);
    size_t one = 1;
    expect_cl(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &one, &one, 0, NULL, NULL));
    expect_cl(clEnqueueReadBuffer(queue, mem, CL_TRUE, 0, sizeof(value), &value, 0, NULL, NULL));
    expect_cl(clReleaseKernel(kernel));
    expect_cl(clReleaseMemObject(mem));
    return value;
}

/* ---- building ---- */

/* A binary that is not PTX, or PTX without a marked instruction, is not for Hopper; programs beside it do not survive
   either. */
Test(program, one_for_hopper_needs_marked_ptx) {
    pagedcl_device *device = fixture_open();
    const pagedcl_program_desc descs[] = {{.name = "plain", .source = constant_source, .options = "-DVALUE=1"},
                                          {.name = "hopper", .source = constant_source, .options = "-DVALUE=2"}};
    const bool for_hopper[] = {false, true};
    cl_program programs[2] = {NULL};
    expect_refused(pcl_programs_build(device, descs, for_hopper, 2, programs), PAGEDCL_UNSUPPORTED, "not PTX");
    cr_assert(programs[0] == NULL && programs[1] == NULL);
    expect_ok(pcl_programs_build(device, descs, NULL, 2, programs));
    cr_assert_eq(run_constant(device, programs[1]), 2);
    for (int i = 0; i < 2; i++)
        expect_cl(clReleaseProgram(programs[i]));
    pagedcl_device_destroy(device);
}

/* B110: the same source text with other options is another program. */
Test(program, several_at_once_keep_their_own_options) {
    enum { COUNT = 9 };
    pagedcl_program_desc descs[COUNT];
    char options[COUNT][32];
    cl_program programs[COUNT];
    for (int i = 0; i < COUNT; i++) {
        snprintf(options[i], sizeof(options[i]), "-DVALUE=%d", 1000 + i);
        descs[i] = (pagedcl_program_desc){"constant", constant_source, options[i]};
    }
    pagedcl_device *device = fixture_open();
    for (int turn = 0; turn < 2; turn++) {
        expect_ok(pagedcl_programs_build(device, descs, COUNT, programs));
        for (int i = 0; i < COUNT; i++) {
            cr_assert_eq(run_constant(device, programs[i]), 1000 + i, "turn %d, program %d", turn, i);
            expect_cl(clReleaseProgram(programs[i]));
        }
    }
    expect_ok(pagedcl_programs_build(device, NULL, 0, NULL));
    pagedcl_device_destroy(device);
}

static void keep_last_error(void *user, pagedcl_log_level level, const char *message) {
    if (level == PAGEDCL_LOG_ERROR)
        snprintf(user, 4096, "%s", message);
}

Test(program, failure_says_name_device_options_and_log) {
    char logged[4096] = "";
    pagedcl_device_options device_options = PAGEDCL_DEVICE_OPTIONS_INIT;
    device_options.log = keep_last_error;
    device_options.log_user = logged;
    pagedcl_device *device;
    expect_ok(pagedcl_device_open(NULL, &device_options, &device));
    pagedcl_device_info info = PAGEDCL_DEVICE_INFO_INIT;
    expect_ok(pagedcl_device_get_info(device, &info));
    pagedcl_program_desc descs[3] = {
        {"good one", constant_source, "-DVALUE=1"},
        {"bad one", "kernel void f(global int *x) { x[0] = undeclared_thing; }", "-DSOME_OPTION=7"},
        {"another good one", constant_source, "-DVALUE=2"},
    };
    cl_program untouched = (cl_program)(void *)logged;
    cl_program programs[3] = {untouched, untouched, untouched};
    expect_refused(pagedcl_programs_build(device, descs, 3, programs), PAGEDCL_BUILD_FAILED, "bad one");
    const char *parts[] = {"-DSOME_OPTION=7", "undeclared_thing", info.device_name, "CL_BUILD_PROGRAM_FAILURE"};
    for (size_t i = 0; i < 4; i++)
        cr_assert(strstr(pagedcl_last_error(), parts[i]), "no %s in: %s", parts[i], pagedcl_last_error());
    cr_assert(strstr(logged, "bad one") && strstr(logged, "undeclared_thing"), "logged: %s", logged);
    for (int i = 0; i < 3; i++)
        cr_assert(programs[i] == untouched, "a failed build left program %d behind", i);
    pagedcl_device_destroy(device);
}

Test(program, missing_arguments_are_refused) {
    pagedcl_device *device = fixture_open();
    cl_program program;
    pagedcl_program_desc nameless = {NULL, constant_source, NULL}, sourceless = {"x", NULL, NULL};
    pagedcl_program_desc good = {"constant", constant_source, "-DVALUE=1"};
    expect_refused(pagedcl_programs_build(device, &nameless, 1, &program), PAGEDCL_INVALID_ARGUMENT, "name");
    expect_refused(pagedcl_programs_build(device, &sourceless, 1, &program), PAGEDCL_INVALID_ARGUMENT, "source");
    expect_refused(pagedcl_programs_build(NULL, &good, 1, &program), PAGEDCL_INVALID_ARGUMENT, "device");
    expect_refused(pagedcl_programs_build(device, NULL, 1, &program), PAGEDCL_INVALID_ARGUMENT, "descs");
    expect_refused(pagedcl_programs_build(device, &good, 1, NULL), PAGEDCL_INVALID_ARGUMENT, "programs");
    pagedcl_device_destroy(device);
}

/* ---- the key ---- */

/* B107: whatever may change the compiled program changes the key. */
Test(program, key_names_everything_a_program_depends_on) {
    pagedcl_device_info info = PAGEDCL_DEVICE_INFO_INIT;
    strcpy(info.platform_name, "platform");
    strcpy(info.platform_version, "OpenCL 1.2");
    strcpy(info.device_name, "device");
    strcpy(info.vendor, "vendor");
    strcpy(info.device_version, "OpenCL 1.2");
    strcpy(info.driver_version, "A");
    pagedcl_program_desc desc = {"name", "source", "-DX=1"};
    char *key = pcl_disk_key(&info, &desc, false);
    cr_assert(key && strstr(key, PAGEDCL_VERSION_STRING), "%s", key);
    char *again = pcl_disk_key(&info, &desc, false);
    cr_assert_str_eq(key, again);
    free(again);

    char *fields[] = {info.platform_name, info.platform_version, info.device_name,
                      info.vendor,        info.device_version,   info.driver_version};
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        char first = fields[i][0];
        fields[i][0] = 'B';
        char *other = pcl_disk_key(&info, &desc, false);
        cr_assert_str_neq(key, other, "field %zu does not reach the key", i);
        free(other);
        fields[i][0] = first;
    }
    pagedcl_program_desc descs[] = {{"name", "source", "-DX=2"}, {"name", "sourcf", "-DX=1"}, {"name", "source", NULL}};
    for (size_t i = 0; i < 3; i++) {
        char *other = pcl_disk_key(&info, &descs[i], false);
        cr_assert_str_neq(key, other, "program %zu", i);
        free(other);
    }
    char *hopper = pcl_disk_key(&info, &desc, true);
    cr_assert_str_neq(key, hopper);
    free(hopper);
    free(key);
}

/* ---- entries on disk ---- */

static const unsigned char binary[] = "not really a program, but it has\0zeros and \xff in it";
static const char entry_key[] = "the key\nof several lines\n";

/* The path of the one entry in the folder. */
static char *entry_file(const char *folder) {
    char pattern[512];
    snprintf(pattern, sizeof(pattern), "%s/*.bin", folder);
    glob_t found;
    cr_assert_eq(glob(pattern, 0, NULL, &found), 0, "no entry in %s", folder);
    cr_assert_eq(found.gl_pathc, 1u, "%zu entries in %s", (size_t)found.gl_pathc, folder);
    char *path = strcpy(fixture_alloc(strlen(found.gl_pathv[0]) + 1), found.gl_pathv[0]);
    globfree(&found);
    return path;
}

static size_t read_file(const char *path, unsigned char *bytes, size_t capacity) {
    FILE *file = fopen(path, "rb");
    cr_assert(file, "%s", path);
    size_t size = fread(bytes, 1, capacity, file);
    fclose(file);
    return size;
}

static void write_file(const char *path, const unsigned char *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    cr_assert(file && fwrite(bytes, 1, size, file) == size, "%s", path);
    cr_assert_eq(fclose(file), 0);
}

static pcl_disk_result load(const char *folder, const char *key) {
    unsigned char *bytes = NULL;
    size_t size = 0;
    pcl_disk_result result = pcl_disk_load(folder, key, &bytes, &size);
    if (result == PCL_DISK_HIT) {
        cr_assert_eq(size, sizeof(binary));
        expect_same_bytes(key, "binary", bytes, binary, size);
        free(bytes);
    }
    return result;
}

Test(program_disk, entry_comes_back_for_its_key_alone) {
    char *folder = temp_folder_create();
    cr_assert_eq(load(folder, entry_key), PCL_DISK_MISS);
    expect_ok(pcl_disk_store(folder, entry_key, binary, sizeof(binary)));
    cr_assert_eq(load(folder, entry_key), PCL_DISK_HIT);
    cr_assert_eq(load(folder, "another key"), PCL_DISK_MISS);
    expect_ok(pcl_disk_store(folder, entry_key, binary, sizeof(binary)));
    cr_assert_eq(load(folder, entry_key), PCL_DISK_HIT);
    cr_assert_eq(load("/no/such/folder", entry_key), PCL_DISK_MISS);

    /* The hash that names the file does not decide alone: under this name lies another key's entry. */
    char *path = entry_file(folder);
    unsigned char bytes[512];
    size_t size = read_file(path, bytes, sizeof(bytes));
    cr_assert_eq(remove(path), 0);
    expect_ok(pcl_disk_store(folder, "another key", binary, sizeof(binary)));
    char *other = entry_file(folder);
    write_file(other, bytes, size);
    cr_assert_eq(load(folder, "another key"), PCL_DISK_MISS);
    free(other);
    free(path);
    temp_folder_remove(folder);
}

Test(program_disk, folder_is_made_and_is_the_users_alone) {
    char *folder = temp_folder_create();
    char inner[512];
    snprintf(inner, sizeof(inner), "%s/a", folder);
    expect_ok(pcl_disk_store(inner, entry_key, binary, sizeof(binary)));
    cr_assert_eq(load(inner, entry_key), PCL_DISK_HIT);
    struct stat status;
    cr_assert_eq(stat(inner, &status), 0);
    cr_assert_eq(status.st_mode & 0777, 0700u);
    temp_folder_remove(strcpy(fixture_alloc(strlen(inner) + 1), inner));
    temp_folder_remove(folder);
}

Test(program_disk, every_truncation_and_every_flipped_byte_is_a_miss) {
    char *folder = temp_folder_create();
    expect_ok(pcl_disk_store(folder, entry_key, binary, sizeof(binary)));
    char *path = entry_file(folder);
    unsigned char bytes[512];
    size_t size = read_file(path, bytes, sizeof(bytes));
    cr_assert(size > sizeof(binary) && size < sizeof(bytes));
    for (size_t i = 0; i < size; i++) {
        write_file(path, bytes, i);
        cr_assert_eq(load(folder, entry_key), PCL_DISK_DAMAGED, "cut to %zu bytes", i);
        unsigned char flips[] = {0x01, 0x80, 0xff};
        for (size_t f = 0; f < sizeof(flips); f++) {
            bytes[i] ^= flips[f];
            write_file(path, bytes, size);
            cr_assert_neq(load(folder, entry_key), PCL_DISK_HIT, "byte %zu flipped", i);
            bytes[i] ^= flips[f];
        }
    }
    bytes[size] = 0;
    write_file(path, bytes, size + 1);
    cr_assert_eq(load(folder, entry_key), PCL_DISK_DAMAGED, "one byte too many");
    write_file(path, bytes, size);
    cr_assert_eq(load(folder, entry_key), PCL_DISK_HIT);
    free(path);
    temp_folder_remove(folder);
}

Test(program_disk, folder_that_cannot_be_written_is_an_error) {
    expect_refused(pcl_disk_store("/dev/null/cache", entry_key, binary, sizeof(binary)), PAGEDCL_IO_ERROR, "/dev/null");
}

typedef struct shared_folder {
    const char *path;
    atomic_int failures; /* counted, since an assertion may not leave a thread */
} shared_folder;

static void store_and_load(void *arg, size_t index) {
    (void)index;
    shared_folder *folder = arg;
    for (int i = 0; i < 200; i++) {
        unsigned char *bytes = NULL;
        size_t size = 0;
        bool good = pcl_disk_store(folder->path, entry_key, binary, sizeof(binary)) == PAGEDCL_SUCCESS &&
                    pcl_disk_load(folder->path, entry_key, &bytes, &size) == PCL_DISK_HIT && size == sizeof(binary) &&
                    !memcmp(bytes, binary, size);
        if (!good)
            atomic_fetch_add(&folder->failures, 1);
        free(bytes);
    }
}

/* Others see a whole entry or none. */
Test(program_disk, writers_at_once_do_not_disturb_readers) {
    char *path = temp_folder_create();
    shared_folder folder = {.path = path};
    pcl_parallel(4, store_and_load, &folder);
    cr_assert_eq(atomic_load(&folder.failures), 0);
    temp_folder_remove(path);
}

/* ---- the cache as a whole ---- */

static void count_warnings(void *user, pagedcl_log_level level, const char *message) {
    (void)message;
    if (level == PAGEDCL_LOG_WARNING)
        ++*(int *)user;
}

/* Builds and runs the constant's program on a fresh handle that keeps programs in `folder`. */
static pagedcl_build_stats build_afresh(const char *folder, int *warnings) {
    pagedcl_device_options options = PAGEDCL_DEVICE_OPTIONS_INIT;
    options.cache_dir = folder;
    options.log = count_warnings;
    options.log_user = warnings;
    pagedcl_device *device;
    expect_ok(pagedcl_device_open(NULL, &options, &device));
    /* The cache on disk is used on every implementation here, those too that could be left to themselves. */
    device->quirks.keeps_programs = false;
    pagedcl_program_desc desc = {"constant", constant_source, "-DVALUE=4711"};
    cl_program program;
    expect_ok(pagedcl_programs_build(device, &desc, 1, &program));
    cr_assert_eq(run_constant(device, program), 4711);
    expect_cl(clReleaseProgram(program));
    pagedcl_build_stats stats = PAGEDCL_BUILD_STATS_INIT;
    expect_ok(pagedcl_device_get_build_stats(device, &stats));
    pagedcl_device_destroy(device);
    return stats;
}

/* B139: compiled, from the cache, and compiled over a damaged entry give the same. */
Test(program_disk, second_build_is_loaded_and_a_damaged_entry_is_built_anew) {
    char *folder = temp_folder_create();
    int warnings = 0;
    pagedcl_build_stats stats = build_afresh(folder, &warnings);
    cr_assert(stats.compiled == 1 && stats.loaded == 0, "cold: %lld compiled", (long long)stats.compiled);
    stats = build_afresh(folder, &warnings);
    cr_assert(stats.compiled == 0 && stats.loaded == 1, "warm: %lld compiled", (long long)stats.compiled);
    cr_assert_eq(warnings, 0);

    char *path = entry_file(folder);
    struct stat status;
    cr_assert_eq(stat(path, &status), 0);
    size_t size = (size_t)status.st_size;
    unsigned char *bytes = fixture_alloc(size);
    read_file(path, bytes, size);
    bytes[size / 2] ^= 0x10;
    write_file(path, bytes, size);
    stats = build_afresh(folder, &warnings);
    cr_assert(stats.compiled == 1 && stats.loaded == 0, "damaged: %lld compiled", (long long)stats.compiled);
    cr_assert_eq(warnings, 1, "the damage was logged %d times", warnings);
    stats = build_afresh(folder, &warnings);
    cr_assert(stats.compiled == 0 && stats.loaded == 1, "mended: %lld compiled", (long long)stats.compiled);
    free(bytes);
    free(path);
    temp_folder_remove(folder);
}

/* ---- the kernels' sources ---- */

static void write_text(const char *folder, const char *name, const char *text) {
    char path[1024];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    cr_assert(file && fputs(text, file) >= 0 && fclose(file) == 0, "%s", path);
}

Test(program, kernels_are_read_from_a_folder_with_what_they_include) {
    char *folder = temp_folder_create(), lib[1024];
    snprintf(lib, sizeof(lib), "%s/lib", folder);
    cr_assert_eq(mkdir(lib, 0700), 0);
    write_text(folder, "one.cl", "first\n#include \"lib/two.h\"\nlast\n");
    write_text(folder, "lib/two.h", "second\n");
    write_text(folder, "missing.cl", "#include \"lib/three.h\"\n");
    write_text(folder, "endless.cl", "#include \"endless.cl\"\n");
    cr_assert_eq(setenv("PAGEDCL_KERNEL_DIR", folder, 1), 0);
    const char *source = NULL;
    char *owned = NULL;
    expect_ok(pcl_kernel_source("one KEY=1", 3, &source, &owned));
    cr_expect_str_eq(source, "#line 1 \"one.cl\"\nfirst\n#line 1 \"lib/two.h\"\nsecond\n#line 3 \"one.cl\"\nlast\n");
    free(owned);
    expect_refused(pcl_kernel_source("missing", 7, &source, &owned), PAGEDCL_IO_ERROR, "lib/three.h");
    expect_refused(pcl_kernel_source("endless", 7, &source, &owned), PAGEDCL_IO_ERROR, "endless.cl");
    expect_refused(pcl_kernel_source("nowhere", 7, &source, &owned), PAGEDCL_IO_ERROR, "nowhere.cl");
    cr_assert_eq(unsetenv("PAGEDCL_KERNEL_DIR"), 0);
    expect_ok(pcl_kernel_source("cache X=1", 5, &source, &owned));
    cr_expect_null(owned);
    cr_expect_not_null(strstr(source, "__kernel void cache_copy("));
    expect_refused(pcl_kernel_source("nowhere", 7, &source, &owned), PAGEDCL_INVALID_ARGUMENT, "nowhere");
    char two[1100];
    snprintf(two, sizeof(two), "%s/two.h", lib);
    cr_expect(remove(two) == 0 && rmdir(lib) == 0);
    temp_folder_remove(folder);
}
