/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L

#include "safetensors.h"

#include "file_error.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH_BYTES = 8 };
static const uint64_t MAX_HEADER_BYTES = 100000000; /* what the format's own implementation accepts */
static const int64_t MAX_ELEMENTS = INT64_C(1) << 62;

struct safetensors {
    const unsigned char *bytes; /* the mapped file */
    size_t size;
    const unsigned char *data; /* behind the header */
    size_t data_size;
    json_t *header; /* owns the names */
    const json_t *metadata;
    safetensors_tensor *tensors;
    size_t count;
};

/* An open in progress: the file so far, and where its failure goes. */
typedef struct reader {
    safetensors *file;
    file_error error;
} reader;

static bool map_file(const reader *r) {
    int fd = open(r->error.path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block */
    if (fd < 0)
        return file_fail(&r->error, "%s", strerror(errno));
    struct stat status;
    bool ok = false;
    if (fstat(fd, &status) != 0)
        file_fail(&r->error, "%s", strerror(errno));
    else if (!S_ISREG(status.st_mode))
        file_fail(&r->error, "is not a regular file");
    else if (status.st_size < LENGTH_BYTES)
        file_fail(&r->error, "is too short for a safetensors file (%lld bytes)", (long long)status.st_size);
    else if ((uintmax_t)status.st_size > SIZE_MAX)
        file_fail(&r->error, "does not fit the address space");
    else {
        void *bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED) {
            file_fail(&r->error, "cannot be mapped: %s", strerror(errno));
        } else {
            r->file->bytes = bytes;
            r->file->size = (size_t)status.st_size;
            ok = true;
        }
    }
    close(fd);
    return ok;
}

static bool parse_header(const reader *r) {
    safetensors *file = r->file;
    uint64_t length = 0;
    for (int i = 0; i < LENGTH_BYTES; i++)
        length |= (uint64_t)file->bytes[i] << 8 * i;
    uint64_t behind_length = file->size - LENGTH_BYTES;
    if (length > behind_length)
        return file_fail(&r->error,
                         "is truncated or no safetensors file: a header of %" PRIu64 " bytes, %" PRIu64 " bytes in all",
                         length, (uint64_t)file->size);
    if (length > MAX_HEADER_BYTES)
        return file_fail(&r->error, "has a header of %" PRIu64 " bytes; at most %" PRIu64 " are accepted", length,
                         MAX_HEADER_BYTES);

    json_error_t json_error;
    file->header =
        json_loadb((const char *)file->bytes + LENGTH_BYTES, (size_t)length, JSON_REJECT_DUPLICATES, &json_error);
    if (!file->header)
        return file_fail(&r->error, "the header is not JSON: %.120s, at byte %d", json_error.text, json_error.position);
    if (!json_is_object(file->header))
        return file_fail(&r->error, "the header is not a JSON object");
    file->data = file->bytes + LENGTH_BYTES + length;
    file->data_size = (size_t)(behind_length - length);
    return true;
}

static bool parse_metadata(const reader *r) {
    json_t *metadata = json_object_get(r->file->header, "__metadata__");
    if (!metadata)
        return true;
    if (!json_is_object(metadata))
        return file_fail(&r->error, "__metadata__ is not a JSON object");
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return file_fail(&r->error, "__metadata__ \"%.80s\" is not a string", key);
    }
    r->file->metadata = metadata;
    return true;
}

/* Sets the dtype and returns the bytes of one element, 0 if the name is no dtype of the format. */
static size_t parse_dtype(const char *name, safetensors_dtype *dtype) {
    static const struct {
        const char *name;
        safetensors_dtype dtype;
        size_t size;
    } dtypes[] = {
        {"F32", SAFETENSORS_F32, 4},    {"F16", SAFETENSORS_F16, 2},       {"BF16", SAFETENSORS_BF16, 2},
        {"I64", SAFETENSORS_I64, 8},    {"I32", SAFETENSORS_I32, 4},       {"F64", SAFETENSORS_OTHER, 8},
        {"I16", SAFETENSORS_OTHER, 2},  {"I8", SAFETENSORS_OTHER, 1},      {"U8", SAFETENSORS_OTHER, 1},
        {"U16", SAFETENSORS_OTHER, 2},  {"U32", SAFETENSORS_OTHER, 4},     {"U64", SAFETENSORS_OTHER, 8},
        {"BOOL", SAFETENSORS_OTHER, 1}, {"F8_E4M3", SAFETENSORS_OTHER, 1}, {"F8_E5M2", SAFETENSORS_OTHER, 1},
    };
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(name, dtypes[i].name) == 0) {
            *dtype = dtypes[i].dtype;
            return dtypes[i].size;
        }
    }
    return 0;
}

static bool parse_shape(const reader *r, const json_t *shape, safetensors_tensor *tensor) {
    if (!json_is_array(shape))
        return file_fail(&r->error, "tensor \"%.80s\" has no shape", tensor->name);
    size_t num_dims = json_array_size(shape);
    if (num_dims > SAFETENSORS_MAX_DIMS)
        return file_fail(&r->error, "tensor \"%.80s\" has %zu dimensions; at most %d are accepted", tensor->name,
                         num_dims, SAFETENSORS_MAX_DIMS);
    tensor->num_dims = (int)num_dims;
    tensor->num_elements = 1;
    for (size_t i = 0; i < num_dims; i++) {
        const json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return file_fail(&r->error, "tensor \"%.80s\": dimension %zu is not a size", tensor->name, i);
        tensor->shape[i] = json_integer_value(dim);
        if (__builtin_mul_overflow(tensor->num_elements, tensor->shape[i], &tensor->num_elements) ||
            tensor->num_elements > MAX_ELEMENTS)
            return file_fail(&r->error, "tensor \"%.80s\": the product of its shape is beyond 2^62", tensor->name);
    }
    return true;
}

static bool parse_tensor(const reader *r, const char *name, const json_t *info, safetensors_tensor *tensor) {
    tensor->name = name;
    if (!json_is_object(info))
        return file_fail(&r->error, "tensor \"%.80s\" is not described by a JSON object", name);

    tensor->dtype_name = json_string_value(json_object_get(info, "dtype"));
    if (!tensor->dtype_name)
        return file_fail(&r->error, "tensor \"%.80s\" has no dtype", name);
    size_t element_size = parse_dtype(tensor->dtype_name, &tensor->dtype);
    if (element_size == 0)
        return file_fail(&r->error, "tensor \"%.80s\" has the unknown dtype \"%.20s\"", name, tensor->dtype_name);
    if (!parse_shape(r, json_object_get(info, "shape"), tensor))
        return false;

    const json_t *offsets = json_object_get(info, "data_offsets");
    const json_t *begin_json = json_array_get(offsets, 0);
    const json_t *end_json = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin_json) || !json_is_integer(end_json))
        return file_fail(&r->error, "tensor \"%.80s\" has no data_offsets of two integers", name);
    int64_t begin = json_integer_value(begin_json);
    int64_t end = json_integer_value(end_json);
    if (begin < 0 || end < begin || (uint64_t)end > r->file->data_size)
        return file_fail(&r->error,
                         "tensor \"%.80s\": bytes %" PRId64 " to %" PRId64 " are not within the %" PRIu64
                         " bytes of data; is the file truncated?",
                         name, begin, end, (uint64_t)r->file->data_size);
    uint64_t needed;
    if (__builtin_mul_overflow((uint64_t)tensor->num_elements, element_size, &needed) ||
        needed != (uint64_t)(end - begin))
        return file_fail(&r->error, "tensor \"%.80s\": its shape and dtype do not make the %" PRId64 " bytes it has",
                         name, end - begin);
    tensor->data = r->file->data + begin;
    tensor->num_bytes = (size_t)needed;
    return true;
}

/* By place in the file; of two at one place the empty one comes first. */
static int compare_place(const void *a, const void *b) {
    const safetensors_tensor *x = *(const safetensors_tensor *const *)a;
    const safetensors_tensor *y = *(const safetensors_tensor *const *)b;
    uintptr_t place_x = (uintptr_t)x->data;
    uintptr_t place_y = (uintptr_t)y->data;
    if (place_x != place_y)
        return place_x < place_y ? -1 : 1;
    return (x->num_bytes > y->num_bytes) - (x->num_bytes < y->num_bytes);
}

/* The tensors must cover the data without overlap, gap or rest: the format wants it, and nothing can hide there. */
static bool check_coverage(const reader *r) {
    const safetensors *file = r->file;
    const safetensors_tensor **order = malloc((file->count + 1) * sizeof *order);
    if (!order)
        return file_fail(&r->error, "out of memory");
    for (size_t i = 0; i < file->count; i++)
        order[i] = &file->tensors[i];
    qsort(order, file->count, sizeof *order, compare_place);

    const unsigned char *next = file->data;
    const unsigned char *end = file->data + file->data_size;
    size_t i = 0;
    while (i < file->count && order[i]->data == next)
        next += order[i++]->num_bytes;
    bool ok = i == file->count && next == end;
    if (i < file->count)
        file_fail(&r->error, "tensor \"%.80s\" does not begin where the tensor before it ends", order[i]->name);
    else if (!ok)
        file_fail(&r->error, "%" PRIu64 " bytes at the end belong to no tensor", (uint64_t)(end - next));
    free(order);
    return ok;
}

static bool read_file(const reader *r) {
    safetensors *file = r->file;
    if (!map_file(r) || !parse_header(r) || !parse_metadata(r))
        return false;
    file->tensors = calloc(json_object_size(file->header) + 1, sizeof *file->tensors);
    if (!file->tensors)
        return file_fail(&r->error, "out of memory");
    const char *name;
    json_t *info;
    json_object_foreach(file->header, name, info) {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        if (!parse_tensor(r, name, info, &file->tensors[file->count]))
            return false;
        file->count++;
    }
    return check_coverage(r);
}

safetensors *safetensors_open(const char *path, char *error, size_t error_size) {
    reader r = {.file = calloc(1, sizeof(safetensors)), .error = {path, error, error_size}};
    if (!r.file) {
        file_fail(&r.error, "out of memory");
        return NULL;
    }
    if (!read_file(&r)) {
        safetensors_close(r.file);
        return NULL;
    }
    return r.file;
}

void safetensors_close(safetensors *file) {
    if (!file)
        return;
    free(file->tensors);
    json_decref(file->header);
    if (file->bytes)
        munmap((void *)(uintptr_t)file->bytes, file->size);
    free(file);
}

const safetensors_tensor *safetensors_find(const safetensors *file, const char *name) {
    for (size_t i = 0; i < file->count; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    return NULL;
}

size_t safetensors_count(const safetensors *file) {
    return file->count;
}

const safetensors_tensor *safetensors_at(const safetensors *file, size_t index) {
    return &file->tensors[index];
}

const char *safetensors_metadata(const safetensors *file, const char *key) {
    return json_string_value(json_object_get(file->metadata, key));
}

size_t safetensors_dtype_size(safetensors_dtype dtype) {
    switch (dtype) {
    case SAFETENSORS_F32:
    case SAFETENSORS_I32:
        return 4;
    case SAFETENSORS_F16:
    case SAFETENSORS_BF16:
        return 2;
    case SAFETENSORS_I64:
        return 8;
    case SAFETENSORS_OTHER:
        break;
    }
    return 0;
}
