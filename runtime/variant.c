/* SPDX-License-Identifier: Apache-2.0 */
#include "variant.h"

#include "device.h"
#include "kernel_source.h"
#include "program.h"
#include "status.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VARIANTS = 8, OPTIONS_SIZE = 4096 };

/* Keys are made of the library's own words and numbers: they fit, or a test that builds the variant fails. */
static void append(pcl_variant *variant, const char *text) {
    size_t used = strlen(variant->key);
    snprintf(variant->key + used, sizeof variant->key - used, "%s", text);
}

void pcl_variant_init(pcl_variant *variant, const char *kernel) {
    variant->key[0] = '\0';
    variant->many_registers = false;
    variant->most_registers = 0;
    variant->for_hopper = false;
    append(variant, kernel);
}

void pcl_variant_int(pcl_variant *variant, const char *macro, int64_t value) {
    char text[96];
    snprintf(text, sizeof text, " %s=%" PRId64, macro, value);
    append(variant, text);
}

void pcl_variant_dtype(pcl_variant *variant, const char *macro, pagedcl_dtype dtype) {
    char text[96];
    snprintf(text, sizeof text, " %s=%s", macro, pagedcl_dtype_name(dtype));
    append(variant, text);
}

static size_t kernel_length(const pcl_variant *variant) {
    return strcspn(variant->key, " ");
}

/* The macros of the key as compiler options. */
static void options_of(const pagedcl_device *device, const pcl_variant *variant, char *options, size_t size) {
    bool registers = variant->many_registers && device->quirks.registers_on_request;
    size_t used = (size_t)snprintf(options, size, "-cl-std=CL1.2%s", registers ? " -cl-intel-256-GRF-per-thread" : "");
    if (variant->most_registers > 0 && device->quirks.registers_by_limit && used < size)
        used += (size_t)snprintf(options + used, size - used, " -cl-nv-maxrregcount=%d", (int)variant->most_registers);
    for (const char *at = variant->key + kernel_length(variant); *at == ' ' && used < size;) {
        size_t length = strcspn(at + 1, " ");
        used += (size_t)snprintf(options + used, size - used, " -D%.*s", (int)length, at + 1);
        at += 1 + length;
    }
}

pagedcl_status pcl_variants_build(pagedcl_device *device, const pcl_variant *variants, size_t count,
                                  cl_program *programs) {
    if (count > MAX_VARIANTS)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "more than %d variants at once", MAX_VARIANTS);
    char options[MAX_VARIANTS][OPTIONS_SIZE];
    char *owned[MAX_VARIANTS] = {NULL};
    pagedcl_program_desc descs[MAX_VARIANTS] = {{0}};
    bool for_hopper[MAX_VARIANTS] = {false};
    pagedcl_status status = PAGEDCL_SUCCESS;
    for (size_t i = 0; i < count && status == PAGEDCL_SUCCESS; i++) {
        options_of(device, &variants[i], options[i], sizeof options[i]);
        descs[i] = (pagedcl_program_desc){.name = variants[i].key, .options = options[i]};
        for_hopper[i] = variants[i].for_hopper;
        status = pcl_kernel_source(variants[i].key, kernel_length(&variants[i]), &descs[i].source, &owned[i]);
    }
    if (status == PAGEDCL_SUCCESS)
        status = pcl_programs_build(device, descs, for_hopper, count, programs);
    for (size_t i = 0; i < count; i++)
        free(owned[i]);
    return status;
}

pagedcl_status pcl_program_kernel(const pcl_variant *variant, cl_program program, const char *name, cl_kernel *kernel) {
    cl_int code = CL_SUCCESS;
    *kernel = clCreateKernel(program, name, &code);
    if (code != CL_SUCCESS) {
        *kernel = NULL;
        return pcl_fail(PAGEDCL_BUILD_FAILED, "clCreateKernel of %s of %s returned %d (%s)", name, variant->key,
                        (int)code, pcl_opencl_error_name(code));
    }
    return PAGEDCL_SUCCESS;
}

pagedcl_status pcl_variant_kernel(const pcl_variant *variant, cl_program program, cl_kernel *kernel) {
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)kernel_length(variant), variant->key);
    return pcl_program_kernel(variant, program, name, kernel);
}
