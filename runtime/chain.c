/* SPDX-License-Identifier: Apache-2.0 */
#include "chain.h"

#include "device.h"
#include "status.h"

pagedcl_status pcl_chain_begin(pcl_chain *chain, const pagedcl_device *device, cl_command_queue queue,
                               cl_uint num_events, const cl_event *events) {
    if ((num_events > 0) != (events != NULL))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "num_events is %u but events is %s", (unsigned)num_events,
                        events != NULL ? "not NULL" : "NULL");
    for (cl_uint i = 0; i < num_events; i++)
        if (events[i] == NULL)
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "events[%u] is NULL", (unsigned)i);
    *chain = (pcl_chain){
        .device = device,
        .queue = queue != NULL ? queue : device->queue,
        .num_wait = num_events,
        .wait = events,
    };
    cl_command_queue_properties properties = 0;
    cl_int code = clGetCommandQueueInfo(chain->queue, CL_QUEUE_PROPERTIES, sizeof properties, &properties, NULL);
    if (code != CL_SUCCESS)
        return pcl_fail_opencl(code, "clGetCommandQueueInfo");
    chain->out_of_order = (properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) != 0;
    return PAGEDCL_SUCCESS;
}

/* After each enqueue. */
static pagedcl_status step(pcl_chain *chain, cl_int code, const char *call, cl_event event) {
    if (code != CL_SUCCESS)
        return pcl_fail_opencl(code, call);
    if (chain->last != NULL)
        clReleaseEvent(chain->last);
    chain->last = event;
    chain->num_wait = chain->out_of_order ? 1 : 0;
    chain->wait = chain->out_of_order ? &chain->last : NULL;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pcl_chain_launch(pcl_chain *chain, cl_kernel kernel, cl_uint dimensions, const size_t *global,
                                const size_t *local) {
    PCL_TRY(chain->status);
    cl_event event = NULL;
    cl_int code = clEnqueueNDRangeKernel(chain->queue, kernel, dimensions, NULL, global, local, chain->num_wait,
                                         chain->wait, &event);
    return step(chain, code, "clEnqueueNDRangeKernel", event);
}

pagedcl_status pcl_chain_write(pcl_chain *chain, cl_mem buffer, size_t offset, size_t size, const void *from) {
    PCL_TRY(chain->status);
    cl_event event = NULL;
    cl_int code =
        clEnqueueWriteBuffer(chain->queue, buffer, CL_FALSE, offset, size, from, chain->num_wait, chain->wait, &event);
    return step(chain, code, "clEnqueueWriteBuffer", event);
}

pagedcl_status pcl_chain_read(pcl_chain *chain, cl_mem buffer, size_t offset, size_t size, void *to) {
    PCL_TRY(chain->status);
    cl_event event = NULL;
    cl_int code =
        clEnqueueReadBuffer(chain->queue, buffer, CL_FALSE, offset, size, to, chain->num_wait, chain->wait, &event);
    return step(chain, code, "clEnqueueReadBuffer", event);
}

static pagedcl_status barrier(pcl_chain *chain, cl_uint num_events, const cl_event *events) {
    PCL_TRY(chain->status);
    cl_event event = NULL;
    cl_int code = clEnqueueBarrierWithWaitList(chain->queue, num_events, events, &event);
    return step(chain, code, "clEnqueueBarrierWithWaitList", event);
}

pagedcl_status pcl_chain_wait(pcl_chain *chain, cl_event event) {
    if (event == NULL)
        return PAGEDCL_SUCCESS;
    /* The list so far first, so that it need not be copied to add one event to it. */
    if (chain->num_wait > 0)
        PCL_TRY(barrier(chain, chain->num_wait, chain->wait));
    /* Behind two barriers PoCL makes commands wait for the second one alone, so that must wait for the first. */
    const cl_event both[2] = {event, chain->last};
    return barrier(chain, chain->last != NULL ? 2 : 1, both);
}

cl_event pcl_chain_last(pcl_chain *chain) {
    cl_event event = chain->last;
    cl_int code = event != NULL ? clRetainEvent(event) : CL_SUCCESS;
    if (code != CL_SUCCESS) {
        chain->last = NULL;
        chain->status = pcl_fail_opencl(code, "clRetainEvent");
    }
    return event;
}

pagedcl_status pcl_chain_end(pcl_chain *chain, pagedcl_status status, cl_event *event) {
    if (status == PAGEDCL_SUCCESS)
        status = chain->status;
    if (event != NULL && status == PAGEDCL_SUCCESS && chain->last == NULL)
        status = barrier(chain, chain->num_wait, chain->wait);
    if (event != NULL && status == PAGEDCL_SUCCESS) {
        cl_int code = clFlush(chain->queue);
        if (code != CL_SUCCESS)
            status = pcl_fail_opencl(code, "clFlush");
    }
    if (event != NULL && status == PAGEDCL_SUCCESS) {
        *event = chain->last;
        chain->last = NULL;
    }
    if (chain->last != NULL)
        clReleaseEvent(chain->last);
    chain->last = NULL;
    return status;
}

pagedcl_status pcl_event_state(cl_event event, cl_int *state) {
    cl_int code = clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof *state, state, NULL);
    return code == CL_SUCCESS ? PAGEDCL_SUCCESS : pcl_fail_opencl(code, "clGetEventInfo");
}

pagedcl_status pcl_fence_wait(const pcl_fence *fence, pcl_chain *chain) {
    if (fence->last == NULL || (fence->queue == chain->queue && !chain->out_of_order))
        return PAGEDCL_SUCCESS;
    cl_int state = CL_QUEUED;
    PCL_TRY(pcl_event_state(fence->last, &state));
    /* A command that failed has ended, and PoCL never ends what is then made to wait for it. */
    return state < 0 ? PAGEDCL_SUCCESS : pcl_chain_wait(chain, fence->last);
}

void pcl_fence_set(pcl_fence *fence, pcl_chain *chain) {
    cl_event last = pcl_chain_last(chain);
    if (last == NULL)
        return;
    pcl_fence_release(fence);
    fence->last = last;
    /* Without its queue the fence is heeded on every queue. */
    if (clRetainCommandQueue(chain->queue) == CL_SUCCESS)
        fence->queue = chain->queue;
}

void pcl_fence_release(pcl_fence *fence) {
    if (fence->last != NULL)
        clReleaseEvent(fence->last);
    if (fence->queue != NULL)
        clReleaseCommandQueue(fence->queue);
    *fence = (pcl_fence){0};
}
