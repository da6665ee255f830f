/* SPDX-License-Identifier: Apache-2.0 */
/*
 * X(function): every OpenCL function that stands behind the stub. CMake wraps these at link time, one a line; the test
 * `stub_complete` fails when the library calls one that is not here.
 */
#ifndef STUB_CALLS_H
#define STUB_CALLS_H

#define STUB_CALLS(X)               \
    X(clBuildProgram)               \
    X(clCreateBuffer)               \
    X(clCreateCommandQueue)         \
    X(clCreateContext)              \
    X(clCreateKernel)               \
    X(clCreateKernelsInProgram)     \
    X(clCreateProgramWithBinary)    \
    X(clCreateProgramWithSource)    \
    X(clCreateSubBuffer)            \
    X(clCreateUserEvent)            \
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

#endif
