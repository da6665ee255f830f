/* SPDX-License-Identifier: Apache-2.0 */
/* The wrapped functions: the linker turns every call of clFoo into one of __wrap_clFoo, and __real_clFoo into clFoo. */
#include "inside.h"

#include <stdlib.h>

#define DECLARE(call) __typeof__(call) __wrap_##call, __real_##call;
STUB_CALLS(DECLARE)
#undef DECLARE

static stub_entry enter(stub_call call) {
    return stub_enter(call, STUB_NO_SIZE, false, NULL);
}

/* What a function that returns an object ends with. */
static void *leave_with(stub_entry entry, stub_kind kind, void *object, cl_int code, cl_int *code_out) {
    stub_leave(entry, code);
    if (code_out != NULL)
        *code_out = code;
    return code == CL_SUCCESS ? stub_born(kind, object) : NULL;
}

/* ---- platforms, devices, contexts, queues ---- */

cl_int __wrap_clGetPlatformIDs(cl_uint capacity, cl_platform_id *ids, cl_uint *count) {
    stub_entry entry = enter(STUB_clGetPlatformIDs);
    cl_int code = entry.code;
    if (code == CL_SUCCESS)
        code = stub_has_fakes() ? stub_fake_platforms(capacity, ids, count)
                                : __real_clGetPlatformIDs(capacity, ids, count);
    return stub_leave(entry, code);
}

cl_int __wrap_clGetDeviceIDs(cl_platform_id platform, cl_device_type type, cl_uint capacity, cl_device_id *ids,
                             cl_uint *count) {
    stub_entry entry = enter(STUB_clGetDeviceIDs);
    cl_int code = entry.code;
    const stub_device *fake = stub_fake(platform);
    if (code == CL_SUCCESS)
        code = fake != NULL ? stub_fake_devices(fake, capacity, ids, count)
                            : __real_clGetDeviceIDs(platform, type, capacity, ids, count);
    return stub_leave(entry, code);
}

cl_int __wrap_clGetPlatformInfo(cl_platform_id platform, cl_platform_info name, size_t size, void *value,
                                size_t *size_out) {
    stub_entry entry = enter(STUB_clGetPlatformInfo);
    cl_int code = entry.code;
    const stub_device *fake = stub_fake(platform);
    if (code == CL_SUCCESS && fake != NULL)
        code = stub_fake_platform_info(fake, name, size, value, size_out);
    else if (code == CL_SUCCESS && !stub_answers(name, size, value, size_out, &code))
        code = __real_clGetPlatformInfo(platform, name, size, value, size_out);
    return stub_leave(entry, code);
}

cl_int __wrap_clGetDeviceInfo(cl_device_id device, cl_device_info name, size_t size, void *value, size_t *size_out) {
    stub_entry entry = enter(STUB_clGetDeviceInfo);
    cl_int code = entry.code;
    const stub_device *fake = stub_fake(device);
    if (code == CL_SUCCESS && fake != NULL)
        code = stub_fake_device_info(fake, name, size, value, size_out);
    else if (code == CL_SUCCESS && !stub_answers(name, size, value, size_out, &code))
        code = __real_clGetDeviceInfo(device, name, size, value, size_out);
    return stub_leave(entry, code);
}

cl_context __wrap_clCreateContext(const cl_context_properties *properties, cl_uint count, const cl_device_id *devices,
                                  void(CL_CALLBACK *notify)(const char *, const void *, size_t, void *), void *user,
                                  cl_int *code_out) {
    const stub_device *fake = count > 0 ? stub_fake(devices[0]) : NULL;
    stub_entry entry = stub_enter(STUB_clCreateContext, count, false, fake != NULL ? fake->name : NULL);
    cl_int code = entry.code != CL_SUCCESS ? entry.code : fake != NULL ? CL_DEVICE_NOT_AVAILABLE : CL_SUCCESS;
    cl_context context = NULL;
    if (code == CL_SUCCESS)
        context = __real_clCreateContext(properties, count, devices, notify, user, &code);
    return leave_with(entry, STUB_CONTEXT, context, code, code_out);
}

cl_command_queue __wrap_clCreateCommandQueue(cl_context context, cl_device_id device,
                                             cl_command_queue_properties properties, cl_int *code_out) {
    stub_entry entry = enter(STUB_clCreateCommandQueue);
    cl_int code = entry.code;
    cl_command_queue queue = NULL;
    if (code == CL_SUCCESS)
        queue = __real_clCreateCommandQueue(context, device, properties, &code);
    return leave_with(entry, STUB_QUEUE, queue, code, code_out);
}

cl_int __wrap_clGetCommandQueueInfo(cl_command_queue queue, cl_command_queue_info name, size_t size, void *value,
                                    size_t *size_out) {
    stub_entry entry = enter(STUB_clGetCommandQueueInfo);
    cl_int code = entry.code;
    if (code == CL_SUCCESS)
        code = __real_clGetCommandQueueInfo(queue, name, size, value, size_out);
    return stub_leave(entry, code);
}

/* ---- references ---- */

#define RETAIN(call, type)                     \
    cl_int __wrap_##call(type object) {        \
        stub_entry entry = enter(STUB_##call); \
        cl_int code = entry.code;              \
        if (code == CL_SUCCESS)                \
            code = __real_##call(object);      \
        if (code == CL_SUCCESS)                \
            stub_retained(object);             \
        return stub_leave(entry, code);        \
    }
RETAIN(clRetainCommandQueue, cl_command_queue)
RETAIN(clRetainContext, cl_context)
RETAIN(clRetainEvent, cl_event)
RETAIN(clRetainMemObject, cl_mem)

#define RELEASE(call, type)                                                     \
    cl_int __wrap_##call(type object) {                                         \
        stub_entry entry = enter(STUB_##call);                                  \
        stub_released(object);                                                  \
        cl_int code = __real_##call(object);                                    \
        return stub_leave(entry, entry.code != CL_SUCCESS ? entry.code : code); \
    }
RELEASE(clReleaseCommandQueue, cl_command_queue)
RELEASE(clReleaseContext, cl_context)
RELEASE(clReleaseEvent, cl_event)
RELEASE(clReleaseKernel, cl_kernel)
RELEASE(clReleaseMemObject, cl_mem)
RELEASE(clReleaseProgram, cl_program)

/* ---- buffers ---- */

cl_mem __wrap_clCreateBuffer(cl_context context, cl_mem_flags flags, size_t size, void *host, cl_int *code_out) {
    stub_entry entry = stub_enter(STUB_clCreateBuffer, (long long)size, false, NULL);
    cl_int code = entry.code;
    if (code == CL_SUCCESS && size > stub_answered_size(CL_DEVICE_MAX_MEM_ALLOC_SIZE, SIZE_MAX))
        code = CL_INVALID_BUFFER_SIZE;
    cl_mem buffer = NULL;
    if (code == CL_SUCCESS)
        buffer = __real_clCreateBuffer(context, flags, size, host, &code);
    return leave_with(entry, STUB_BUFFER, buffer, code, code_out);
}

cl_mem __wrap_clCreateSubBuffer(cl_mem whole, cl_mem_flags flags, cl_buffer_create_type type, const void *region,
                                cl_int *code_out) {
    stub_entry entry = enter(STUB_clCreateSubBuffer);
    cl_int code = entry.code;
    cl_mem buffer = NULL;
    if (code == CL_SUCCESS)
        buffer = __real_clCreateSubBuffer(whole, flags, type, region, &code);
    return leave_with(entry, STUB_BUFFER, buffer, code, code_out);
}

cl_int __wrap_clGetMemObjectInfo(cl_mem buffer, cl_mem_info name, size_t size, void *value, size_t *size_out) {
    stub_entry entry = enter(STUB_clGetMemObjectInfo);
    cl_int code = entry.code;
    if (code == CL_SUCCESS)
        code = __real_clGetMemObjectInfo(buffer, name, size, value, size_out);
    return stub_leave(entry, code);
}

/* ---- programs and kernels ---- */

cl_program __wrap_clCreateProgramWithSource(cl_context context, cl_uint count, const char **strings,
                                            const size_t *lengths, cl_int *code_out) {
    stub_entry entry = stub_enter(STUB_clCreateProgramWithSource, count, false, NULL);
    cl_int code = entry.code;
    cl_program program = NULL;
    if (code == CL_SUCCESS)
        program = __real_clCreateProgramWithSource(context, count, strings, lengths, &code);
    return leave_with(entry, STUB_PROGRAM, program, code, code_out);
}

cl_program __wrap_clCreateProgramWithBinary(cl_context context, cl_uint count, const cl_device_id *devices,
                                            const size_t *lengths, const unsigned char **binaries, cl_int *statuses,
                                            cl_int *code_out) {
    stub_entry entry = stub_enter(STUB_clCreateProgramWithBinary, count, false, NULL);
    cl_int code = entry.code;
    cl_program program = NULL;
    if (code == CL_SUCCESS)
        program = __real_clCreateProgramWithBinary(context, count, devices, lengths, binaries, statuses, &code);
    return leave_with(entry, STUB_PROGRAM, program, code, code_out);
}

cl_int __wrap_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                             void(CL_CALLBACK *notify)(cl_program, void *), void *user) {
    stub_entry entry = stub_enter(STUB_clBuildProgram, count, false, options);
    cl_int code = entry.code;
    if (code == CL_SUCCESS)
        code = __real_clBuildProgram(program, count, devices, options, notify, user);
    return stub_leave(entry, code);
}

cl_int __wrap_clGetProgramBuildInfo(cl_program program, cl_device_id device, cl_program_build_info name, size_t size,
                                    void *value, size_t *size_out) {
    stub_entry entry = enter(STUB_clGetProgramBuildInfo);
    cl_int code = entry.code;
    if (code == CL_SUCCESS && !stub_answers(name, size, value, size_out, &code))
        code = __real_clGetProgramBuildInfo(program, device, name, size, value, size_out);
    return stub_leave(entry, code);
}

cl_int __wrap_clGetProgramInfo(cl_program program, cl_program_info name, size_t size, void *value, size_t *size_out) {
    stub_entry entry = enter(STUB_clGetProgramInfo);
    cl_int code = entry.code;
    if (code == CL_SUCCESS)
        code = __real_clGetProgramInfo(program, name, size, value, size_out);
    return stub_leave(entry, code);
}

cl_kernel __wrap_clCreateKernel(cl_program program, const char *name, cl_int *code_out) {
    stub_entry entry = stub_enter(STUB_clCreateKernel, STUB_NO_SIZE, false, name);
    cl_int code = entry.code;
    cl_kernel kernel = NULL;
    if (code == CL_SUCCESS)
        kernel = __real_clCreateKernel(program, name, &code);
    return leave_with(entry, STUB_KERNEL, kernel, code, code_out);
}

cl_int __wrap_clCreateKernelsInProgram(cl_program program, cl_uint capacity, cl_kernel *kernels, cl_uint *count) {
    stub_entry entry = enter(STUB_clCreateKernelsInProgram);
    cl_int code = entry.code;
    cl_uint made = 0;
    if (code == CL_SUCCESS)
        code = __real_clCreateKernelsInProgram(program, capacity, kernels, &made);
    for (cl_uint i = 0; i < made && code == CL_SUCCESS && kernels != NULL; i++)
        stub_born(STUB_KERNEL, kernels[i]);
    if (count != NULL)
        *count = made;
    return stub_leave(entry, code);
}

cl_int __wrap_clSetKernelArg(cl_kernel kernel, cl_uint index, size_t size, const void *value) {
    stub_entry entry = stub_enter(STUB_clSetKernelArg, (long long)size, false, NULL);
    cl_int code = entry.code;
    if (code == CL_SUCCESS)
        code = __real_clSetKernelArg(kernel, index, size, value);
    return stub_leave(entry, code);
}

cl_int __wrap_clGetKernelWorkGroupInfo(cl_kernel kernel, cl_device_id device, cl_kernel_work_group_info name,
                                       size_t size, void *value, size_t *size_out) {
    stub_entry entry = enter(STUB_clGetKernelWorkGroupInfo);
    cl_int code = entry.code;
    if (code == CL_SUCCESS && !stub_answers(name, size, value, size_out, &code))
        code = __real_clGetKernelWorkGroupInfo(kernel, device, name, size, value, size_out);
    return stub_leave(entry, code);
}

/* ---- commands ---- */

/* What an enqueue ends with; *own is where the driver put the event. */
static cl_int leave_command(stub_entry entry, cl_int code, const cl_event *own, cl_event *event) {
    if (code == CL_SUCCESS && event != NULL)
        *event = stub_born(STUB_EVENT, *own);
    return stub_leave(entry, code);
}

/* Makes the event of a command that ends with `end` without having run. */
static cl_int fail_later(cl_command_queue queue, cl_int end, cl_event *event) {
    if (event == NULL)
        return CL_SUCCESS;
    cl_context context = NULL;
    cl_int code = __real_clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof(context), &context, NULL);
    if (code == CL_SUCCESS)
        *event = __real_clCreateUserEvent(context, &code);
    return code == CL_SUCCESS ? clSetUserEventStatus(*event, end) : code;
}

/* As a device with the answered limits would see the work-group. */
static cl_int check_work_group(cl_uint dimensions, const size_t *local) {
    size_t items = 1;
    for (cl_uint d = 0; d < dimensions && local != NULL; d++)
        items *= local[d];
    if (items > stub_answered_size(CL_KERNEL_WORK_GROUP_SIZE, SIZE_MAX) ||
        items > stub_answered_size(CL_DEVICE_MAX_WORK_GROUP_SIZE, SIZE_MAX))
        return CL_INVALID_WORK_GROUP_SIZE;
    if (local != NULL && local[0] > stub_answered_size(CL_DEVICE_MAX_WORK_ITEM_SIZES, SIZE_MAX))
        return CL_INVALID_WORK_ITEM_SIZE;
    return CL_SUCCESS;
}

cl_int __wrap_clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions, const size_t *offset,
                                     const size_t *global, const size_t *local, cl_uint num_wait, const cl_event *wait,
                                     cl_event *event) {
    size_t items = 1;
    for (cl_uint d = 0; d < dimensions; d++)
        items *= global[d];
    stub_entry entry = stub_enter(STUB_clEnqueueNDRangeKernel, (long long)items, false, NULL);
    cl_event own = NULL;
    cl_int code = entry.code != CL_SUCCESS ? entry.code : check_work_group(dimensions, local), end;
    if (code == CL_SUCCESS && stub_is_to_fail_later(&end))
        code = fail_later(queue, end, event != NULL ? &own : NULL);
    else if (code == CL_SUCCESS)
        code = __real_clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, global, local, num_wait, wait,
                                             event != NULL ? &own : NULL);
    return leave_command(entry, code, &own, event);
}

cl_int __wrap_clEnqueueReadBuffer(cl_command_queue queue, cl_mem buffer, cl_bool blocking, size_t offset, size_t size,
                                  void *to, cl_uint num_wait, const cl_event *wait, cl_event *event) {
    stub_entry entry = stub_enter(STUB_clEnqueueReadBuffer, (long long)size, blocking, NULL);
    cl_event own = NULL;
    cl_int code = entry.code, end;
    if (code == CL_SUCCESS && stub_is_to_fail_later(&end))
        code = fail_later(queue, end, event != NULL ? &own : NULL);
    else if (code == CL_SUCCESS)
        code = __real_clEnqueueReadBuffer(queue, buffer, blocking, offset, size, to, num_wait, wait,
                                          event != NULL ? &own : NULL);
    return leave_command(entry, code, &own, event);
}

cl_int __wrap_clEnqueueWriteBuffer(cl_command_queue queue, cl_mem buffer, cl_bool blocking, size_t offset, size_t size,
                                   const void *from, cl_uint num_wait, const cl_event *wait, cl_event *event) {
    stub_entry entry = stub_enter(STUB_clEnqueueWriteBuffer, (long long)size, blocking, NULL);
    cl_event own = NULL;
    cl_int code = entry.code, end;
    if (code == CL_SUCCESS && stub_is_to_fail_later(&end))
        code = fail_later(queue, end, event != NULL ? &own : NULL);
    else if (code == CL_SUCCESS)
        code = __real_clEnqueueWriteBuffer(queue, buffer, blocking, offset, size, from, num_wait, wait,
                                           event != NULL ? &own : NULL);
    return leave_command(entry, code, &own, event);
}

void *__wrap_clEnqueueMapBuffer(cl_command_queue queue, cl_mem buffer, cl_bool blocking, cl_map_flags flags,
                                size_t offset, size_t size, cl_uint num_wait, const cl_event *wait, cl_event *event,
                                cl_int *code_out) {
    stub_entry entry = stub_enter(STUB_clEnqueueMapBuffer, (long long)size, blocking, NULL);
    cl_event own = NULL;
    cl_int code = entry.code;
    void *memory = NULL;
    if (code == CL_SUCCESS)
        memory = __real_clEnqueueMapBuffer(queue, buffer, blocking, flags, offset, size, num_wait, wait,
                                           event != NULL ? &own : NULL, &code);
    code = leave_command(entry, code, &own, event);
    if (code_out != NULL)
        *code_out = code;
    return memory;
}

/* Done all the same: the caller has no second try. */
cl_int __wrap_clEnqueueUnmapMemObject(cl_command_queue queue, cl_mem buffer, void *memory, cl_uint num_wait,
                                      const cl_event *wait, cl_event *event) {
    stub_entry entry = enter(STUB_clEnqueueUnmapMemObject);
    cl_event own = NULL;
    cl_int code = __real_clEnqueueUnmapMemObject(queue, buffer, memory, num_wait, wait, event != NULL ? &own : NULL);
    return leave_command(entry, entry.code != CL_SUCCESS ? entry.code : code, &own, event);
}

cl_int __wrap_clEnqueueBarrierWithWaitList(cl_command_queue queue, cl_uint num_wait, const cl_event *wait,
                                           cl_event *event) {
    stub_entry entry = enter(STUB_clEnqueueBarrierWithWaitList);
    cl_event own = NULL;
    cl_int code = entry.code;
    if (code == CL_SUCCESS)
        code = __real_clEnqueueBarrierWithWaitList(queue, num_wait, wait, event != NULL ? &own : NULL);
    return leave_command(entry, code, &own, event);
}

cl_event __wrap_clCreateUserEvent(cl_context context, cl_int *code_out) {
    stub_entry entry = enter(STUB_clCreateUserEvent);
    cl_int code = entry.code;
    cl_event event = NULL;
    if (code == CL_SUCCESS)
        event = __real_clCreateUserEvent(context, &code);
    return leave_with(entry, STUB_EVENT, event, code, code_out);
}

cl_int __wrap_clGetEventInfo(cl_event event, cl_event_info name, size_t size, void *value, size_t *size_out) {
    stub_entry entry = enter(STUB_clGetEventInfo);
    cl_int code = entry.code;
    if (code == CL_SUCCESS)
        code = __real_clGetEventInfo(event, name, size, value, size_out);
    return stub_leave(entry, code);
}

cl_int __wrap_clWaitForEvents(cl_uint count, const cl_event *events) {
    stub_entry entry = stub_enter(STUB_clWaitForEvents, count, false, NULL);
    cl_int code = __real_clWaitForEvents(count, events);
    return stub_leave(entry, entry.code != CL_SUCCESS ? entry.code : code);
}

cl_int __wrap_clFlush(cl_command_queue queue) {
    stub_entry entry = enter(STUB_clFlush);
    cl_int code = __real_clFlush(queue);
    return stub_leave(entry, entry.code != CL_SUCCESS ? entry.code : code);
}

cl_int __wrap_clFinish(cl_command_queue queue) {
    stub_entry entry = enter(STUB_clFinish);
    cl_int code = __real_clFinish(queue);
    return stub_leave(entry, entry.code != CL_SUCCESS ? entry.code : code);
}
