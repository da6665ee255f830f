/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"

#include "expect.h"

#include <stdlib.h>
#include <string.h>

pagedcl_device *fixture_open(void) {
    pagedcl_device *device;
    expect_ok(pagedcl_device_open(NULL, NULL, &device));
    return device;
}

int fixture_tiers(const pagedcl_device *device, pagedcl_tier tiers[FIXTURE_MAX_TIERS]) {
    pagedcl_device_info info = PAGEDCL_DEVICE_INFO_INIT;
    expect_ok(pagedcl_device_get_info(device, &info));
    int count = 0;
    tiers[count++] = PAGEDCL_TIER_PORTABLE;
    if (info.kind == PAGEDCL_DEVICE_CPU)
        tiers[count++] = PAGEDCL_TIER_CPU;
    if (info.tier == PAGEDCL_TIER_NV_MMA || info.tier == PAGEDCL_TIER_NV_WGMMA)
        tiers[count++] = PAGEDCL_TIER_NV_MMA;
    if (info.tier == PAGEDCL_TIER_NV_WGMMA)
        tiers[count++] = PAGEDCL_TIER_NV_WGMMA;
    return count;
}

pagedcl_status fixture_attn_create(pagedcl_device *device, pagedcl_attn_desc *desc, pagedcl_tier tier,
                                   pagedcl_attn **attn) {
    desc->tier = tier;
    pagedcl_status status = pagedcl_attn_create(device, desc, attn);
    while (status == PAGEDCL_UNSUPPORTED && desc->tier >= PAGEDCL_TIER_NV_MMA) {
        desc->tier = desc->tier == PAGEDCL_TIER_NV_WGMMA ? PAGEDCL_TIER_NV_MMA : PAGEDCL_TIER_PORTABLE;
        status = pagedcl_attn_create(device, desc, attn);
    }
    return status;
}

void *fixture_alloc(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    cr_assert(memory, "no memory for %zu bytes", bytes);
    return memory;
}

void *fixture_poisoned(size_t bytes) {
    return memset(fixture_alloc(bytes), POISON, bytes);
}

guarded guarded_create(const pagedcl_device *device, size_t bytes, const void *initial) {
    /* A multiple of every device's CL_DEVICE_MEM_BASE_ADDR_ALIGN, where a sub-buffer must begin. */
    guarded buffer = {.bytes = bytes, .guard = 4096};
    if (bytes == 0)
        return buffer;
    size_t total = bytes + 2 * buffer.guard;
    char *content = fixture_poisoned(total);
    if (initial)
        memcpy(content + buffer.guard, initial, bytes);
    cl_int code;
    buffer.whole =
        clCreateBuffer(pagedcl_device_context(device), CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, total, content, &code);
    expect_cl(code);
    cl_buffer_region region = {.origin = buffer.guard, .size = bytes};
    buffer.mem = clCreateSubBuffer(buffer.whole, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
    expect_cl(code);
    free(content);
    return buffer;
}

void *guarded_read(const pagedcl_device *device, const guarded *buffer, const char *name) {
    if (buffer->bytes == 0)
        return fixture_alloc(0);
    size_t total = buffer->bytes + 2 * buffer->guard;
    char *content = fixture_alloc(total);
    char *poison = fixture_poisoned(buffer->guard);
    cl_command_queue queue = pagedcl_device_queue(device);
    expect_cl(clFinish(queue));
    expect_cl(clEnqueueReadBuffer(queue, buffer->whole, CL_TRUE, 0, total, content, 0, NULL, NULL));
    expect_same_bytes(name, "guard before the buffer", content, poison, buffer->guard);
    expect_same_bytes(name, "guard behind the buffer", content + buffer->guard + buffer->bytes, poison, buffer->guard);
    memmove(content, content + buffer->guard, buffer->bytes);
    free(poison);
    return content;
}

void guarded_destroy(guarded *buffer) {
    if (buffer->mem)
        clReleaseMemObject(buffer->mem);
    if (buffer->whole)
        clReleaseMemObject(buffer->whole);
    *buffer = (guarded){0};
}
