/* SPDX-License-Identifier: Apache-2.0 */
#include "status.h"

#include <pagedcl/version.h>

#include <stdarg.h>
#include <stdio.h>

/* Room for the head of a build log. */
static _Thread_local char last_error[8192];

const char *pagedcl_status_name(pagedcl_status status) {
    switch (status) {
#define STATUS_NAME(name, value, text) \
    case PAGEDCL_##name:               \
        return "PAGEDCL_" #name;
        PAGEDCL_STATUS_LIST(STATUS_NAME)
#undef STATUS_NAME
    }
    return "PAGEDCL_UNKNOWN";
}

const char *pagedcl_status_text(pagedcl_status status) {
    switch (status) {
#define STATUS_TEXT(name, value, text) \
    case PAGEDCL_##name:               \
        return text;
        PAGEDCL_STATUS_LIST(STATUS_TEXT)
#undef STATUS_TEXT
    }
    return "unknown status";
}

const char *pagedcl_last_error(void) {
    return last_error;
}

const char *pagedcl_version(void) {
    return PAGEDCL_VERSION_STRING;
}

pagedcl_status pcl_fail(pagedcl_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    return status;
}

/* X(name): the codes of OpenCL 1.2 and of the ICD loader. */
#define OPENCL_ERRORS(X)                            \
    X(CL_DEVICE_NOT_FOUND)                          \
    X(CL_DEVICE_NOT_AVAILABLE)                      \
    X(CL_COMPILER_NOT_AVAILABLE)                    \
    X(CL_MEM_OBJECT_ALLOCATION_FAILURE)             \
    X(CL_OUT_OF_RESOURCES)                          \
    X(CL_OUT_OF_HOST_MEMORY)                        \
    X(CL_PROFILING_INFO_NOT_AVAILABLE)              \
    X(CL_MEM_COPY_OVERLAP)                          \
    X(CL_BUILD_PROGRAM_FAILURE)                     \
    X(CL_MAP_FAILURE)                               \
    X(CL_MISALIGNED_SUB_BUFFER_OFFSET)              \
    X(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST) \
    X(CL_COMPILE_PROGRAM_FAILURE)                   \
    X(CL_LINKER_NOT_AVAILABLE)                      \
    X(CL_LINK_PROGRAM_FAILURE)                      \
    X(CL_KERNEL_ARG_INFO_NOT_AVAILABLE)             \
    X(CL_INVALID_VALUE)                             \
    X(CL_INVALID_DEVICE_TYPE)                       \
    X(CL_INVALID_PLATFORM)                          \
    X(CL_INVALID_DEVICE)                            \
    X(CL_INVALID_CONTEXT)                           \
    X(CL_INVALID_QUEUE_PROPERTIES)                  \
    X(CL_INVALID_COMMAND_QUEUE)                     \
    X(CL_INVALID_HOST_PTR)                          \
    X(CL_INVALID_MEM_OBJECT)                        \
    X(CL_INVALID_BINARY)                            \
    X(CL_INVALID_BUILD_OPTIONS)                     \
    X(CL_INVALID_PROGRAM)                           \
    X(CL_INVALID_PROGRAM_EXECUTABLE)                \
    X(CL_INVALID_KERNEL_NAME)                       \
    X(CL_INVALID_KERNEL_DEFINITION)                 \
    X(CL_INVALID_KERNEL)                            \
    X(CL_INVALID_ARG_INDEX)                         \
    X(CL_INVALID_ARG_VALUE)                         \
    X(CL_INVALID_ARG_SIZE)                          \
    X(CL_INVALID_KERNEL_ARGS)                       \
    X(CL_INVALID_WORK_DIMENSION)                    \
    X(CL_INVALID_WORK_GROUP_SIZE)                   \
    X(CL_INVALID_WORK_ITEM_SIZE)                    \
    X(CL_INVALID_GLOBAL_OFFSET)                     \
    X(CL_INVALID_EVENT_WAIT_LIST)                   \
    X(CL_INVALID_EVENT)                             \
    X(CL_INVALID_OPERATION)                         \
    X(CL_INVALID_BUFFER_SIZE)                       \
    X(CL_INVALID_GLOBAL_WORK_SIZE)                  \
    X(CL_INVALID_PROPERTY)                          \
    X(CL_INVALID_COMPILER_OPTIONS)                  \
    X(CL_INVALID_LINKER_OPTIONS)

const char *pcl_opencl_error_name(cl_int code) {
    switch (code) {
#define ERROR_NAME(name) \
    case name:           \
        return #name;
        OPENCL_ERRORS(ERROR_NAME)
#undef ERROR_NAME
    case -1001: /* cl_khr_icd */
        return "CL_PLATFORM_NOT_FOUND_KHR";
    default:
        return "unknown OpenCL error";
    }
}

pagedcl_status pcl_fail_opencl(cl_int code, const char *call) {
    pagedcl_status status = PAGEDCL_OPENCL_ERROR;
    const char *hint = "";
    switch (code) {
    case CL_OUT_OF_HOST_MEMORY:
        status = PAGEDCL_OUT_OF_MEMORY;
        break;
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
        status = PAGEDCL_OUT_OF_DEVICE_MEMORY;
        hint = "; use a smaller pool or free device memory";
        break;
    case CL_OUT_OF_RESOURCES:
    case CL_INVALID_COMMAND_QUEUE:
    case -9999: /* NVIDIA: an illegal access in a kernel */
        status = PAGEDCL_DEVICE_LOST;
        hint = "; an earlier kernel may have failed: destroy every object of this context and start anew";
        break;
    default:
        break;
    }
    return pcl_fail(status, "%s returned %d (%s)%s", call, (int)code, pcl_opencl_error_name(code), hint);
}
