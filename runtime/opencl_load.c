/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OpenCL without linking it: the functions that the library calls, each of which calls the one of the same name in the
 * loader, which is opened at the first call. Without a loader each fails as one without a driver does. What links the
 * static library calls OpenCL through these, too.
 */
#ifndef PCL_OPENCL_LOAD
#define PCL_OPENCL_LOAD
#endif
#include "opencl_load.h"

#include "thread.h"

#include <stdio.h>
#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#if defined(_WIN32)
#define LOADER "OpenCL.dll"
#elif defined(__APPLE__)
#define LOADER "/System/Library/Frameworks/OpenCL.framework/OpenCL"
#else
#define LOADER "libOpenCL.so.1"
#endif

/* cl_khr_icd's CL_PLATFORM_NOT_FOUND_KHR */
enum { NO_OPENCL = -1001 };

#define CALLS(X)                    \
    X(clBuildProgram)               \
    X(clCreateBuffer)               \
    X(clCreateCommandQueue)         \
    X(clCreateContext)              \
    X(clCreateKernel)               \
    X(clCreateKernelsInProgram)     \
    X(clCreateProgramWithBinary)    \
    X(clCreateProgramWithSource)    \
    X(clEnqueueBarrierWithWaitList) \
    X(clEnqueueMapBuffer)           \
    X(clEnqueueNDRangeKernel)       \
    X(clEnqueueReadBuffer)          \
    X(clEnqueueUnmapMemObject)      \
    X(clEnqueueWriteBuffer)         \
    X(clFinish)                     \
    X(clFlush)                      \
    X(clGetCommandQueueInfo)        \
    X(clGetDeviceIDs)               \
    X(clGetDeviceInfo)              \
    X(clGetEventInfo)               \
    X(clGetKernelWorkGroupInfo)     \
    X(clGetMemObjectInfo)           \
    X(clGetPlatformIDs)             \
    X(clGetPlatformInfo)            \
    X(clGetProgramBuildInfo)        \
    X(clGetProgramInfo)             \
    X(clReleaseCommandQueue)        \
    X(clReleaseContext)             \
    X(clReleaseEvent)               \
    X(clReleaseKernel)              \
    X(clReleaseMemObject)           \
    X(clReleaseProgram)             \
    X(clRetainCommandQueue)         \
    X(clRetainContext)              \
    X(clRetainEvent)                \
    X(clRetainMemObject)            \
    X(clSetKernelArg)               \
    X(clWaitForEvents)

typedef struct loaded {
#define MEMBER(call) void *call;
    CALLS(MEMBER)
#undef MEMBER
    char missing[512]; /* why there is none of them; "": they are there */
} loaded;

static loaded opencl;
static pcl_once once = PCL_ONCE_INIT;

/* NULL: opencl.missing says why. */
static void *open_loader(void) {
#ifdef _WIN32
    void *loader = LoadLibraryA(LOADER);
    if (loader == NULL)
        snprintf(opencl.missing, sizeof opencl.missing, LOADER " cannot be opened: error %lu of Windows",
                 (unsigned long)GetLastError());
#else
    void *loader = dlopen(LOADER, RTLD_NOW | RTLD_LOCAL);
    if (loader == NULL) {
        const char *reason = dlerror();
        snprintf(opencl.missing, sizeof opencl.missing, "%s", reason != NULL ? reason : LOADER " cannot be opened");
    }
#endif
    return loader;
}

static void *find(void *loader, const char *name) {
#ifdef _WIN32
    return (void *)GetProcAddress(loader, name);
#else
    return dlsym(loader, name);
#endif
}

static void load(void) {
    void *loader = open_loader();
    if (loader == NULL)
        return;
    static const struct {
        const char *name;
        void **address;
    } calls[] = {
#define ROW(call) {#call, &opencl.call},
        CALLS(ROW)
#undef ROW
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        *calls[i].address = find(loader, calls[i].name);
        if (*calls[i].address == NULL) {
            snprintf(opencl.missing, sizeof opencl.missing, LOADER " has no %s: it is older than OpenCL 1.2",
                     calls[i].name);
            return;
        }
    }
    /* It stays open: what it gave is in use until the process ends. */
}

const char *pcl_opencl_missing(void) {
    pcl_call_once(&once, load);
    return opencl.missing[0] != '\0' ? opencl.missing : NULL;
}

/* The loader's function, by its type in the header. */
#define LOADED(call) (*(__typeof__(call) **)&(void *){opencl.call})

/* A program's own function of the name comes first. Windows' linkers know no such thing. */
#ifdef _WIN32
#define OWN
#else
#define OWN __attribute__((weak))
#endif

/* X(function, parameters, arguments): a function that returns a code. */
#define CODE(call, parameters, arguments)                                                 \
    OWN cl_int CL_API_CALL call parameters {                                              \
        return pcl_opencl_missing() != NULL ? (cl_int)NO_OPENCL : LOADED(call) arguments; \
    }

CODE(clBuildProgram,
     (cl_program program, cl_uint num_devices, const cl_device_id *device_list, const char *options,
      void(CL_CALLBACK *pfn_notify)(cl_program program, void *user_data), void *user_data),
     (program, num_devices, device_list, options, pfn_notify, user_data))
CODE(clCreateKernelsInProgram, (cl_program program, cl_uint num_kernels, cl_kernel *kernels, cl_uint *num_kernels_ret),
     (program, num_kernels, kernels, num_kernels_ret))
CODE(clEnqueueBarrierWithWaitList,
     (cl_command_queue command_queue, cl_uint num_events_in_wait_list, const cl_event *event_wait_list,
      cl_event *event),
     (command_queue, num_events_in_wait_list, event_wait_list, event))
CODE(clEnqueueNDRangeKernel,
     (cl_command_queue command_queue, cl_kernel kernel, cl_uint work_dim, const size_t *global_work_offset,
      const size_t *global_work_size, const size_t *local_work_size, cl_uint num_events_in_wait_list,
      const cl_event *event_wait_list, cl_event *event),
     (command_queue, kernel, work_dim, global_work_offset, global_work_size, local_work_size, num_events_in_wait_list,
      event_wait_list, event))
CODE(clEnqueueReadBuffer,
     (cl_command_queue command_queue, cl_mem buffer, cl_bool blocking_read, size_t offset, size_t size, void *ptr,
      cl_uint num_events_in_wait_list, const cl_event *event_wait_list, cl_event *event),
     (command_queue, buffer, blocking_read, offset, size, ptr, num_events_in_wait_list, event_wait_list, event))
CODE(clEnqueueUnmapMemObject,
     (cl_command_queue command_queue, cl_mem memobj, void *mapped_ptr, cl_uint num_events_in_wait_list,
      const cl_event *event_wait_list, cl_event *event),
     (command_queue, memobj, mapped_ptr, num_events_in_wait_list, event_wait_list, event))
CODE(clEnqueueWriteBuffer,
     (cl_command_queue command_queue, cl_mem buffer, cl_bool blocking_write, size_t offset, size_t size,
      const void *ptr, cl_uint num_events_in_wait_list, const cl_event *event_wait_list, cl_event *event),
     (command_queue, buffer, blocking_write, offset, size, ptr, num_events_in_wait_list, event_wait_list, event))
CODE(clFinish, (cl_command_queue command_queue), (command_queue))
CODE(clFlush, (cl_command_queue command_queue), (command_queue))
CODE(clGetCommandQueueInfo,
     (cl_command_queue command_queue, cl_command_queue_info param_name, size_t param_value_size, void *param_value,
      size_t *param_value_size_ret),
     (command_queue, param_name, param_value_size, param_value, param_value_size_ret))
CODE(clGetDeviceIDs,
     (cl_platform_id platform, cl_device_type device_type, cl_uint num_entries, cl_device_id *devices,
      cl_uint *num_devices),
     (platform, device_type, num_entries, devices, num_devices))
CODE(clGetDeviceInfo,
     (cl_device_id device, cl_device_info param_name, size_t param_value_size, void *param_value,
      size_t *param_value_size_ret),
     (device, param_name, param_value_size, param_value, param_value_size_ret))
CODE(clGetEventInfo,
     (cl_event event, cl_event_info param_name, size_t param_value_size, void *param_value,
      size_t *param_value_size_ret),
     (event, param_name, param_value_size, param_value, param_value_size_ret))
CODE(clGetKernelWorkGroupInfo,
     (cl_kernel kernel, cl_device_id device, cl_kernel_work_group_info param_name, size_t param_value_size,
      void *param_value, size_t *param_value_size_ret),
     (kernel, device, param_name, param_value_size, param_value, param_value_size_ret))
CODE(clGetMemObjectInfo,
     (cl_mem memobj, cl_mem_info param_name, size_t param_value_size, void *param_value, size_t *param_value_size_ret),
     (memobj, param_name, param_value_size, param_value, param_value_size_ret))
CODE(clGetPlatformIDs, (cl_uint num_entries, cl_platform_id *platforms, cl_uint *num_platforms),
     (num_entries, platforms, num_platforms))
CODE(clGetPlatformInfo,
     (cl_platform_id platform, cl_platform_info param_name, size_t param_value_size, void *param_value,
      size_t *param_value_size_ret),
     (platform, param_name, param_value_size, param_value, param_value_size_ret))
CODE(clGetProgramBuildInfo,
     (cl_program program, cl_device_id device, cl_program_build_info param_name, size_t param_value_size,
      void *param_value, size_t *param_value_size_ret),
     (program, device, param_name, param_value_size, param_value, param_value_size_ret))
CODE(clGetProgramInfo,
     (cl_program program, cl_program_info param_name, size_t param_value_size, void *param_value,
      size_t *param_value_size_ret),
     (program, param_name, param_value_size, param_value, param_value_size_ret))
CODE(clReleaseCommandQueue, (cl_command_queue command_queue), (command_queue))
CODE(clReleaseContext, (cl_context context), (context))
CODE(clReleaseEvent, (cl_event event), (event))
CODE(clReleaseKernel, (cl_kernel kernel), (kernel))
CODE(clReleaseMemObject, (cl_mem memobj), (memobj))
CODE(clReleaseProgram, (cl_program program), (program))
CODE(clRetainCommandQueue, (cl_command_queue command_queue), (command_queue))
CODE(clRetainContext, (cl_context context), (context))
CODE(clRetainEvent, (cl_event event), (event))
CODE(clRetainMemObject, (cl_mem memobj), (memobj))
CODE(clSetKernelArg, (cl_kernel kernel, cl_uint arg_index, size_t arg_size, const void *arg_value),
     (kernel, arg_index, arg_size, arg_value))
CODE(clWaitForEvents, (cl_uint num_events, const cl_event *event_list), (num_events, event_list))

/* X(type, function, parameters, arguments): a function that returns an object, and tells a code. */
#define OBJECT(type, call, parameters, arguments) \
    OWN type CL_API_CALL call parameters {        \
        if (pcl_opencl_missing() == NULL)         \
            return LOADED(call) arguments;        \
        if (errcode_ret != NULL)                  \
            *errcode_ret = NO_OPENCL;             \
        return NULL;                              \
    }

OBJECT(cl_mem, clCreateBuffer,
       (cl_context context, cl_mem_flags flags, size_t size, void *host_ptr, cl_int *errcode_ret),
       (context, flags, size, host_ptr, errcode_ret))
OBJECT(cl_command_queue, clCreateCommandQueue,
       (cl_context context, cl_device_id device, cl_command_queue_properties properties, cl_int *errcode_ret),
       (context, device, properties, errcode_ret))
OBJECT(cl_context, clCreateContext,
       (const cl_context_properties *properties, cl_uint num_devices, const cl_device_id *devices,
        void(CL_CALLBACK *pfn_notify)(const char *errinfo, const void *private_info, size_t cb, void *user_data),
        void *user_data, cl_int *errcode_ret),
       (properties, num_devices, devices, pfn_notify, user_data, errcode_ret))
OBJECT(cl_kernel, clCreateKernel, (cl_program program, const char *kernel_name, cl_int *errcode_ret),
       (program, kernel_name, errcode_ret))
OBJECT(cl_program, clCreateProgramWithBinary,
       (cl_context context, cl_uint num_devices, const cl_device_id *device_list, const size_t *lengths,
        const unsigned char **binaries, cl_int *binary_status, cl_int *errcode_ret),
       (context, num_devices, device_list, lengths, binaries, binary_status, errcode_ret))
OBJECT(cl_program, clCreateProgramWithSource,
       (cl_context context, cl_uint count, const char **strings, const size_t *lengths, cl_int *errcode_ret),
       (context, count, strings, lengths, errcode_ret))
OBJECT(void *, clEnqueueMapBuffer,
       (cl_command_queue command_queue, cl_mem buffer, cl_bool blocking_map, cl_map_flags map_flags, size_t offset,
        size_t size, cl_uint num_events_in_wait_list, const cl_event *event_wait_list, cl_event *event,
        cl_int *errcode_ret),
       (command_queue, buffer, blocking_map, map_flags, offset, size, num_events_in_wait_list, event_wait_list, event,
        errcode_ret))
