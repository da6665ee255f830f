/* SPDX-License-Identifier: Apache-2.0 */
/* pagedcl devices: every OpenCL device, with what matters for attention. */
#include "command.h"
#include "option.h"
#include "json_text.h"

#include <argp.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static error_t parse_option(int key, char *value, struct argp_state *state) {
    bool *json = state->input;
    switch (key) {
    case 'j':
        *json = true;
        return 0;
    default:
        return option_other(key, value, state);
    }
}

static const struct argp_option options[] = {
    {"json", 'j', NULL, 0, "Print one JSON document", 0},
    {0},
};

static const struct argp argp = {
    options, parse_option, NULL, "Lists every OpenCL platform and device with what matters for attention.",
    NULL,    NULL,         NULL,
};

/* The list of all devices, or NULL after a message. */
static pagedcl_device_info *list_devices(size_t *count) {
    if (pagedcl_device_list(NULL, 0, count) != PAGEDCL_SUCCESS) {
        command_fail("%s", pagedcl_last_error());
        return NULL;
    }
    if (*count == 0) {
        command_fail("the installed OpenCL drivers have no device");
        return NULL;
    }
    size_t capacity = *count;
    pagedcl_device_info *infos = calloc(capacity, sizeof *infos);
    if (!infos) {
        command_fail("out of memory");
        return NULL;
    }
    for (size_t i = 0; i < capacity; i++)
        infos[i].struct_size = sizeof infos[i];
    if (pagedcl_device_list(infos, capacity, count) != PAGEDCL_SUCCESS) {
        command_fail("%s", pagedcl_last_error());
        free(infos);
        return NULL;
    }
    if (*count > capacity) /* one was plugged in between the calls */
        *count = capacity;
    return infos;
}

/* The place in the list of the device that commands use when no --device is given; `count` when none can be opened. */
static size_t find_default(const pagedcl_device_info *infos, size_t count) {
    pagedcl_device *device;
    if (pagedcl_device_open(NULL, NULL, &device) != PAGEDCL_SUCCESS)
        return count;
    pagedcl_device_info info = PAGEDCL_DEVICE_INFO_INIT;
    pagedcl_status status = pagedcl_device_get_info(device, &info);
    pagedcl_device_destroy(device);
    size_t i = 0;
    while (i < count && (status != PAGEDCL_SUCCESS || infos[i].platform_index != info.platform_index ||
                         infos[i].device_index != info.device_index))
        i++;
    return i;
}

static void print_bytes(const char *label, uint64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        unit++;
    }
    printf("    %-20s %.4g %s\n", label, value, units[unit]);
}

static void print_text(const char *label, const char *text) {
    printf("    %-20s %s\n", label, text);
}

static void print_device(const pagedcl_device_info *info, bool is_default) {
    printf("%" PRId32 ":%" PRId32 "  %s%s\n", info->platform_index, info->device_index, info->device_name,
           is_default ? "  (default)" : "");
    print_text("type", pagedcl_device_kind_name(info->kind));
    print_text("vendor", info->vendor);
    print_text("platform", info->platform_name);
    print_text("platform version", info->platform_version);
    print_text("device version", info->device_version);
    print_text("OpenCL C version", info->opencl_c_version);
    print_text("driver", info->driver_version);
    print_bytes("memory", info->global_memory);
    print_bytes("largest allocation", info->max_allocation);
    print_bytes("local memory", info->local_memory);
    printf("    %-20s %" PRIu32 "\n", "compute units", info->compute_units);
    printf("    %-20s %" PRIu64 "\n", "largest work-group", info->max_work_group_size);
    print_text("half support", info->has_fp16 ? "storage and arithmetic" : "storage alone");
    print_text("sub-groups", info->has_subgroups ? "yes" : "no");
    print_text("tier", info->usable ? pagedcl_tier_name(info->tier) : "none: not usable");
    print_text("", info->tier_reason);
}

static void print_devices(const pagedcl_device_info *infos, size_t count, size_t default_index) {
    for (size_t i = 0; i < count; i++) {
        print_device(&infos[i], i == default_index);
        putchar('\n');
    }
    if (default_index == count)
        printf("No default device: %s\n", pagedcl_last_error());
    else
        puts("--device P:D (or a kind, a vendor, a part of the name) chooses another than the default.");
}

static json_t *device_to_json(const pagedcl_device_info *info, bool is_default) {
    json_t *json = json_object();
    int failed = 0;
#define SET(key, value) failed |= json_object_set_new(json, key, value)
    SET("platform_index", json_integer(info->platform_index));
    SET("device_index", json_integer(info->device_index));
    SET("default", json_boolean(is_default));
    SET("usable", json_boolean(info->usable));
    SET("kind", json_text(pagedcl_device_kind_name(info->kind)));
    SET("name", json_text(info->device_name));
    SET("vendor", json_text(info->vendor));
    SET("platform", json_text(info->platform_name));
    SET("platform_version", json_text(info->platform_version));
    SET("device_version", json_text(info->device_version));
    SET("opencl_c_version", json_text(info->opencl_c_version));
    SET("driver_version", json_text(info->driver_version));
    SET("global_memory", json_integer((json_int_t)info->global_memory));
    SET("max_allocation", json_integer((json_int_t)info->max_allocation));
    SET("local_memory", json_integer((json_int_t)info->local_memory));
    SET("compute_units", json_integer(info->compute_units));
    SET("max_work_group_size", json_integer((json_int_t)info->max_work_group_size));
    SET("has_fp16", json_boolean(info->has_fp16));
    SET("has_subgroups", json_boolean(info->has_subgroups));
    SET("tier", info->usable ? json_text(pagedcl_tier_name(info->tier)) : json_null());
    SET("tier_reason", json_text(info->tier_reason));
#undef SET
    if (failed) {
        json_decref(json);
        return NULL;
    }
    return json;
}

static int print_json(const pagedcl_device_info *infos, size_t count, size_t default_index) {
    json_t *devices = json_array();
    int failed = 0;
    for (size_t i = 0; i < count; i++)
        failed |= json_array_append_new(devices, device_to_json(&infos[i], i == default_index));
    json_t *document = json_pack("{s:s, s:o}", "version", pagedcl_version(), "devices", devices);
    if (failed || !document || json_dumpf(document, stdout, JSON_INDENT(2)) != 0) {
        json_decref(document);
        return command_fail("the JSON document could not be made");
    }
    putchar('\n');
    json_decref(document);
    return EXIT_OK;
}

static int run(int argc, char **argv) {
    bool json = false;
    if (argp_parse(&argp, argc, argv, 0, NULL, &json) != 0)
        return EXIT_USAGE;
    size_t count;
    pagedcl_device_info *infos = list_devices(&count);
    if (!infos)
        return EXIT_USAGE;
    size_t default_index = find_default(infos, count);
    int status = EXIT_OK;
    if (json)
        status = print_json(infos, count, default_index);
    else
        print_devices(infos, count, default_index);
    free(infos);
    return status;
}

const command command_devices = {"devices", "list every OpenCL device, and what each can do", run};
