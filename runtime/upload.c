/* SPDX-License-Identifier: Apache-2.0 */
#include "upload.h"

#include "status.h"

#include <stdlib.h>

/* Buffers grow in whole steps of this many bytes, so that a batch that grows by a token does not make a new one. */
enum { GROWTH = 16384 };

void pcl_upload_init(pcl_upload *upload, cl_context context, cl_mem_flags flags) {
    *upload = (pcl_upload){.context = context, .flags = flags, .current = PCL_NO_SLOT};
}

static void drop_event(cl_event *event) {
    if (*event != NULL)
        clReleaseEvent(*event);
    *event = NULL;
}

static void release_slot(pcl_upload_slot *slot) {
    /* The write still reads the staging buffer. A failed wait means that the queue is dead and nothing runs. */
    if (slot->written != NULL)
        clWaitForEvents(1, &slot->written);
    drop_event(&slot->written);
    pcl_fence_release(&slot->last);
    if (slot->buffer != NULL)
        clReleaseMemObject(slot->buffer);
    free(slot->staging);
    *slot = (pcl_upload_slot){0};
}

void pcl_upload_release(pcl_upload *upload) {
    for (size_t i = 0; i < upload->count; i++)
        release_slot(&upload->slots[i]);
    free(upload->slots);
}

/* New buffers; the old device buffer lives on until the commands that use it are done. */
static pagedcl_status grow(const pcl_upload *upload, pcl_upload_slot *slot, size_t size) {
    if (size > SIZE_MAX - 2 * (size_t)GROWTH || size > SIZE_MAX / 2)
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "an upload of %zu bytes", size);
    size_t capacity = slot->capacity * 2 > size ? slot->capacity * 2 : size;
    capacity = (capacity + GROWTH - 1) / GROWTH * GROWTH;
    void *staging = malloc(capacity);
    if (staging == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for %zu bytes of staging", capacity);
    cl_int code = CL_SUCCESS;
    cl_mem buffer = clCreateBuffer(upload->context, upload->flags, capacity, NULL, &code);
    if (code != CL_SUCCESS) {
        free(staging);
        return pcl_fail_opencl(code, "clCreateBuffer");
    }
    release_slot(slot);
    *slot = (pcl_upload_slot){.staging = staging, .buffer = buffer, .capacity = capacity};
    return PAGEDCL_SUCCESS;
}

/* Whether the staging buffer may be written: the write that read it last has ended, well or badly. */
static pagedcl_status check_free(pcl_upload_slot *slot, bool *is_free) {
    *is_free = slot->written == NULL;
    if (*is_free)
        return PAGEDCL_SUCCESS;
    cl_int state = CL_COMPLETE;
    PCL_TRY(pcl_event_state(slot->written, &state));
    *is_free = state <= CL_COMPLETE;
    if (*is_free)
        drop_event(&slot->written);
    return PAGEDCL_SUCCESS;
}

/* Chooses a slot other than the current one, a new one when all are busy. */
static pagedcl_status choose_next(pcl_upload *upload) {
    for (size_t i = 0; i < upload->count; i++) {
        bool is_free = false;
        upload->next = i;
        if (i != upload->current)
            PCL_TRY(check_free(&upload->slots[i], &is_free));
        if (is_free)
            return PAGEDCL_SUCCESS;
    }
    pcl_upload_slot *slots = realloc(upload->slots, (upload->count + 1) * sizeof *slots);
    if (slots == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for an upload beside %zu that wait", upload->count);
    upload->slots = slots;
    upload->next = upload->count++;
    upload->slots[upload->next] = (pcl_upload_slot){0};
    return PAGEDCL_SUCCESS;
}

pagedcl_status pcl_upload_begin(pcl_upload *upload, size_t size, void **staging) {
    PCL_TRY(choose_next(upload));
    pcl_upload_slot *slot = &upload->slots[upload->next];
    if (slot->capacity < size)
        PCL_TRY(grow(upload, slot, size));
    *staging = slot->staging;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pcl_upload_write(pcl_upload *upload, pcl_chain *chain, size_t size) {
    pcl_upload_slot *slot = &upload->slots[upload->next];
    PCL_TRY(pcl_fence_wait(&slot->last, chain));
    PCL_TRY(pcl_chain_write(chain, slot->buffer, 0, size, slot->staging));
    slot->written = pcl_chain_last(chain);
    pcl_fence_set(&slot->last, chain);
    return chain->status;
}

cl_mem pcl_upload_next(const pcl_upload *upload) {
    return upload->slots[upload->next].buffer;
}

pagedcl_status pcl_upload_accept(pcl_upload *upload, pcl_chain *chain) {
    pcl_fence_set(&upload->slots[upload->next].last, chain);
    PCL_TRY(chain->status);
    upload->current = upload->next;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pcl_upload_send(pcl_upload *upload, pcl_chain *chain, size_t size) {
    PCL_TRY(pcl_upload_write(upload, chain, size));
    upload->current = upload->next;
    return PAGEDCL_SUCCESS;
}

cl_mem pcl_upload_buffer(const pcl_upload *upload) {
    return upload->slots[upload->current].buffer;
}

pagedcl_status pcl_upload_use(const pcl_upload *upload, pcl_chain *chain) {
    const pcl_upload_slot *slot = &upload->slots[upload->current];
    cl_int state = CL_COMPLETE;
    if (slot->written != NULL)
        PCL_TRY(pcl_event_state(slot->written, &state));
    if (state < 0)
        return pcl_fail_opencl(state, "the upload that this call reads");
    return pcl_fence_wait(&slot->last, chain);
}

void pcl_upload_used(pcl_upload *upload, pcl_chain *chain) {
    pcl_fence_set(&upload->slots[upload->current].last, chain);
}
