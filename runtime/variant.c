/* SPDX-License-Identifier: Apache-2.0 */
#include "variant.h"

#include "device.h"
#include "status.h"

#include <pagedcl/program.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* X(kernel): the kernels that the build embeds. */
#define KERNELS(X)  \
    X(attn_append)  \
    X(attn_decode)  \
    X(attn_merge)   \
    X(attn_varlen)  \
    X(cache_copy)   \
    X(cache_gather) \
    X(cache_write)  \
    X(merge)

#define DECLARE_SOURCE(kernel) extern const char pcl_source_##kernel[];
KERNELS(DECLARE_SOURCE)
#undef DECLARE_SOURCE

static const struct embedded {
    const char *kernel, *source;
} embedded[] = {
#define EMBEDDED(kernel) {#kernel, pcl_source_##kernel},
    KERNELS(EMBEDDED)
#undef EMBEDDED
};

enum { MAX_VARIANTS = 8, OPTIONS_SIZE = 4096 };

/* Keys are made of the library's own words and numbers: they fit, or a test that builds the variant fails. */
static void append(pcl_variant *variant, const char *text) {
    size_t used = strlen(variant->key);
    snprintf(variant->key + used, sizeof variant->key - used, "%s", text);
}

void pcl_variant_init(pcl_variant *variant, const char *kernel) {
    variant->key[0] = '\0';
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
static void options_of(const pcl_variant *variant, const char *kernel_dir, char *options, size_t size) {
    size_t used = (size_t)snprintf(options, size, "-cl-std=CL1.2");
    if (kernel_dir != NULL && used < size)
        used += (size_t)snprintf(options + used, size - used, " -I %s", kernel_dir);
    for (const char *at = variant->key + kernel_length(variant); *at == ' ' && used < size;) {
        size_t length = strcspn(at + 1, " ");
        used += (size_t)snprintf(options + used, size - used, " -D%.*s", (int)length, at + 1);
        at += 1 + length;
    }
}

/* The whole file, the caller's to free. */
static pagedcl_status read_source(const char *dir, const pcl_variant *variant, char **source) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%.*s.cl", dir, (int)kernel_length(variant), variant->key);
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return pcl_fail(PAGEDCL_IO_ERROR, "cannot read %s, in the folder that PAGEDCL_KERNEL_DIR names", path);
    char *text = NULL;
    size_t used = 0, capacity = 0, got = 0;
    do {
        if (capacity - used < 4096) {
            capacity += 65536;
            char *longer = realloc(text, capacity);
            if (longer == NULL) {
                free(text);
                fclose(file);
                return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for %s", path);
            }
            text = longer;
        }
        got = fread(text + used, 1, capacity - used - 1, file);
        used += got;
    } while (got > 0);
    fclose(file);
    text[used] = '\0';
    *source = text;
    return PAGEDCL_SUCCESS;
}

static const char *embedded_source(const pcl_variant *variant) {
    size_t length = kernel_length(variant);
    for (size_t i = 0; i < sizeof embedded / sizeof embedded[0]; i++)
        if (strlen(embedded[i].kernel) == length && memcmp(embedded[i].kernel, variant->key, length) == 0)
            return embedded[i].source;
    return NULL;
}

pagedcl_status pcl_variants_build(pagedcl_device *device, const pcl_variant *variants, size_t count,
                                  cl_program *programs) {
    if (count > MAX_VARIANTS)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "more than %d variants at once", MAX_VARIANTS);
    const char *dir = getenv("PAGEDCL_KERNEL_DIR");
    char options[MAX_VARIANTS][OPTIONS_SIZE];
    char *read[MAX_VARIANTS] = {NULL};
    pagedcl_program_desc descs[MAX_VARIANTS];
    pagedcl_status status = PAGEDCL_SUCCESS;
    for (size_t i = 0; i < count && status == PAGEDCL_SUCCESS; i++) {
        options_of(&variants[i], dir, options[i], sizeof options[i]);
        if (dir != NULL)
            status = read_source(dir, &variants[i], &read[i]);
        descs[i] = (pagedcl_program_desc){
            .name = variants[i].key,
            .source = dir != NULL ? read[i] : embedded_source(&variants[i]),
            .options = options[i],
        };
    }
    if (status == PAGEDCL_SUCCESS)
        status = pagedcl_programs_build(device, descs, count, programs);
    for (size_t i = 0; i < count; i++)
        free(read[i]);
    return status;
}

pagedcl_status pcl_variant_kernel(const pcl_variant *variant, cl_program program, cl_kernel *kernel) {
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)kernel_length(variant), variant->key);
    cl_int code = CL_SUCCESS;
    *kernel = clCreateKernel(program, name, &code);
    if (code != CL_SUCCESS) {
        *kernel = NULL;
        return pcl_fail(PAGEDCL_BUILD_FAILED, "clCreateKernel of %s returned %d (%s)", variant->key, (int)code,
                        pcl_opencl_error_name(code));
    }
    return PAGEDCL_SUCCESS;
}
