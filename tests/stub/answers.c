/* SPDX-License-Identifier: Apache-2.0 */
/* What the stub says instead of OpenCL. */
#include "inside.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ANSWERS = 32 };

static struct answer {
    cl_uint name;
    size_t size;
    void *value;
} answers[MAX_ANSWERS];
static size_t num_answers;

static const stub_device *fakes;
static size_t num_fakes;

/* As every clGet...Info returns a value. */
static cl_int give(const void *from, size_t from_size, size_t size, void *value, size_t *size_out) {
    if (value != NULL && size < from_size)
        return CL_INVALID_VALUE;
    if (value != NULL)
        memcpy(value, from, from_size);
    if (size_out != NULL)
        *size_out = from_size;
    return CL_SUCCESS;
}

static const struct answer *find(cl_uint name) {
    for (size_t i = 0; i < num_answers; i++)
        if (answers[i].name == name)
            return &answers[i];
    return NULL;
}

void stub_answer(cl_uint name, const void *value, size_t size) {
    struct answer *answer = (struct answer *)find(name);
    if (answer == NULL && num_answers == MAX_ANSWERS)
        abort();
    if (answer == NULL)
        answer = &answers[num_answers++];
    free(answer->value);
    *answer = (struct answer){name, size, malloc(size)};
    if (answer->value == NULL)
        abort();
    memcpy(answer->value, value, size);
}

void stub_answer_text(cl_uint name, const char *text) {
    stub_answer(name, text, strlen(text) + 1);
}

bool stub_answers(cl_uint name, size_t size, void *value, size_t *size_out, cl_int *code) {
    const struct answer *answer = find(name);
    if (answer != NULL)
        *code = give(answer->value, answer->size, size, value, size_out);
    return answer != NULL;
}

size_t stub_answered_size(cl_uint name, size_t otherwise) {
    const struct answer *answer = find(name);
    size_t size = 0;
    if (answer != NULL)
        memcpy(&size, answer->value, sizeof(size));
    return answer != NULL ? size : otherwise;
}

void stub_forget_answers(void) {
    for (size_t i = 0; i < num_answers; i++)
        free(answers[i].value);
    memset(answers, 0, sizeof(answers));
    num_answers = num_fakes = 0;
    fakes = NULL;
}

/* ---- fake devices ---- */

void stub_devices(const stub_device *devices, size_t count) {
    fakes = devices;
    num_fakes = count;
}

bool stub_has_fakes(void) {
    return fakes != NULL;
}

const stub_device *stub_fake(const void *id) {
    for (size_t i = 0; i < num_fakes; i++)
        if (id == &fakes[i])
            return &fakes[i];
    return NULL;
}

static bool begins_platform(size_t i) {
    return i == 0 || strcmp(fakes[i].platform, fakes[i - 1].platform) != 0;
}

/* A platform's id is its first device. */
cl_int stub_fake_platforms(cl_uint capacity, cl_platform_id *ids, cl_uint *count) {
    cl_uint length = 0;
    for (size_t i = 0; i < num_fakes; i++)
        if (begins_platform(i)) {
            if (ids != NULL && length < capacity)
                ids[length] = (cl_platform_id)(void *)&fakes[i];
            length++;
        }
    if (count != NULL)
        *count = length;
    return CL_SUCCESS;
}

cl_int stub_fake_devices(const stub_device *platform, cl_uint capacity, cl_device_id *ids, cl_uint *count) {
    if (platform->type == 0)
        return CL_OUT_OF_HOST_MEMORY;
    cl_uint length = 0;
    for (size_t i = (size_t)(platform - fakes); i < num_fakes && (length == 0 || !begins_platform(i)); i++, length++)
        if (ids != NULL && length < capacity)
            ids[length] = (cl_device_id)(void *)&fakes[i];
    if (count != NULL)
        *count = length;
    return CL_SUCCESS;
}

static cl_int give_text(const char *text, size_t size, void *value, size_t *size_out) {
    return give(text, strlen(text) + 1, size, value, size_out);
}

cl_int stub_fake_platform_info(const stub_device *platform, cl_uint name, size_t size, void *value, size_t *size_out) {
    return give_text(name == CL_PLATFORM_NAME ? platform->platform : "OpenCL 1.2 stub", size, value, size_out);
}

cl_int stub_fake_device_info(const stub_device *device, cl_uint name, size_t size, void *value, size_t *size_out) {
    const cl_bool truths[] = {!device->unavailable, !device->without_compiler, !device->big_endian};
    const cl_ulong bytes = 1 << 30;
    const size_t items[3] = {256, 256, 256};
    switch (name) {
    case CL_DEVICE_TYPE:
        return give(&device->type, sizeof(device->type), size, value, size_out);
    case CL_DEVICE_HOST_UNIFIED_MEMORY:
        return give(&device->unified_memory, sizeof(cl_bool), size, value, size_out);
    case CL_DEVICE_MAX_COMPUTE_UNITS:
        return give(&device->compute_units, sizeof(cl_uint), size, value, size_out);
    case CL_DEVICE_AVAILABLE:
        return give(&truths[0], sizeof(cl_bool), size, value, size_out);
    case CL_DEVICE_COMPILER_AVAILABLE:
        return give(&truths[1], sizeof(cl_bool), size, value, size_out);
    case CL_DEVICE_ENDIAN_LITTLE:
        return give(&truths[2], sizeof(cl_bool), size, value, size_out);
    case CL_DEVICE_GLOBAL_MEM_SIZE:
    case CL_DEVICE_MAX_MEM_ALLOC_SIZE:
    case CL_DEVICE_LOCAL_MEM_SIZE:
        return give(&bytes, sizeof(bytes), size, value, size_out);
    case CL_DEVICE_MAX_WORK_GROUP_SIZE:
        return give(&items[0], sizeof(items[0]), size, value, size_out);
    case CL_DEVICE_MAX_WORK_ITEM_SIZES:
        return give(items, sizeof(items), size, value, size_out);
    case CL_DEVICE_VERSION:
        return give_text(device->version != NULL ? device->version : "OpenCL 1.2 stub", size, value, size_out);
    case CL_DEVICE_NAME:
        return give_text(device->name, size, value, size_out);
    default:
        return give_text("", size, value, size_out);
    }
}
