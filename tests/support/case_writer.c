/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L

#include "case_writer.h"

#include <criterion/criterion.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void case_writer_bytes(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file, "%s cannot be written", path);
    cr_assert_eq(fwrite(bytes, 1, size, file), size);
    cr_assert_eq(fclose(file), 0);
}

static size_t dtype_size(const char *dtype) {
    if (strcmp(dtype, "I64") == 0)
        return 8;
    return strcmp(dtype, "F16") == 0 || strcmp(dtype, "BF16") == 0 ? 2 : 4;
}

void case_writer_zeros(const char *path, const char *metadata, const char *tensors) {
    char header[8192];
    size_t used = (size_t)snprintf(header, sizeof header, "{");
    if (metadata)
        used += (size_t)snprintf(header + used, sizeof header - used, "\"__metadata__\":%s", metadata);
    char *copy = strdup(tensors);
    cr_assert_not_null(copy);
    char *rest;
    size_t begin = 0;
    for (char *tensor = strtok_r(copy, ";", &rest); tensor; tensor = strtok_r(NULL, ";", &rest)) {
        char name[64];
        char dtype[16];
        char dims[64];
        cr_assert_eq(sscanf(tensor, "%63s %15s %63s", name, dtype, dims), 3, "\"%s\"", tensor);
        if (strcmp(dims, "-") == 0)
            dims[0] = '\0';
        size_t bytes = dtype_size(dtype);
        for (const char *dim = dims; dim && *dim; dim = strchr(dim, ',') ? strchr(dim, ',') + 1 : NULL)
            bytes *= strtoull(dim, NULL, 10);
        used += (size_t)snprintf(header + used, sizeof header - used,
                                 "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                                 used > 1 ? "," : "", name, dtype, dims, begin, begin + bytes);
        cr_assert_lt(used, sizeof header);
        begin += bytes;
    }
    free(copy);
    used += (size_t)snprintf(header + used, sizeof header - used, "}");
    cr_assert_lt(used, sizeof header);

    unsigned char *file = calloc(1, 8 + used + begin);
    cr_assert_not_null(file);
    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)((uint64_t)used >> 8 * i);
    memcpy(file + 8, header, used);
    case_writer_bytes(path, file, 8 + used + begin);
    free(file);
}

void case_writer_tensors(const char *path, const char *metadata, const case_tensor *tensors, size_t count) {
    char header[8192];
    size_t begin = 0, used = (size_t)snprintf(header, sizeof header, "{\"__metadata__\":%s", metadata);
    for (size_t i = 0; i < count; i++) {
        used += (size_t)snprintf(header + used, sizeof header - used,
                                 ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                                 tensors[i].name, tensors[i].dtype, tensors[i].dims, begin, begin + tensors[i].bytes);
        cr_assert_lt(used, sizeof header);
        begin += tensors[i].bytes;
    }
    used += (size_t)snprintf(header + used, sizeof header - used, "}");
    cr_assert_lt(used, sizeof header);

    unsigned char *file = malloc(8 + used + begin), *at = file + 8 + used;
    cr_assert_not_null(file);
    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)((uint64_t)used >> 8 * i);
    memcpy(file + 8, header, used);
    for (size_t i = 0; i < count; at += tensors[i].bytes, i++)
        if (tensors[i].bytes > 0)
            memcpy(at, tensors[i].data, tensors[i].bytes);
    case_writer_bytes(path, file, 8 + used + begin);
    free(file);
}
