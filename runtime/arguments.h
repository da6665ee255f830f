/* SPDX-License-Identifier: Apache-2.0 */
/* Setting a kernel's arguments one behind the other; the first error is kept until the end. */
#ifndef PCL_ARGUMENTS_H
#define PCL_ARGUMENTS_H

#include <pagedcl/cache.h>

#include <stddef.h>
#include <stdint.h>

typedef struct pcl_arguments {
    cl_kernel kernel;
    cl_uint next;
    cl_int code;
} pcl_arguments;

static inline pcl_arguments pcl_arguments_of(cl_kernel kernel) {
    return (pcl_arguments){.kernel = kernel, .code = CL_SUCCESS};
}

static inline void pcl_argument(pcl_arguments *arguments, size_t size, const void *value) {
    cl_int code = clSetKernelArg(arguments->kernel, arguments->next++, size, value);
    if (arguments->code == CL_SUCCESS)
        arguments->code = code;
}

static inline void pcl_argument_mem(pcl_arguments *arguments, cl_mem mem) {
    pcl_argument(arguments, sizeof mem, &mem);
}
static inline void pcl_argument_int(pcl_arguments *arguments, int32_t value) {
    cl_int own = value;
    pcl_argument(arguments, sizeof own, &own);
}
static inline void pcl_argument_long(pcl_arguments *arguments, int64_t value) {
    cl_long own = value;
    pcl_argument(arguments, sizeof own, &own);
}
static inline void pcl_argument_float(pcl_arguments *arguments, float value) {
    cl_float own = value;
    pcl_argument(arguments, sizeof own, &own);
}
static inline void pcl_argument_int4(pcl_arguments *arguments, int32_t x, int32_t y, int32_t z, int32_t w) {
    cl_int4 own = {{x, y, z, w}};
    pcl_argument(arguments, sizeof own, &own);
}
/* mem, then its layout as a long4: offset, token stride, head stride. */
static inline void pcl_argument_tensor(pcl_arguments *arguments, const pagedcl_tensor *tensor) {
    pcl_argument_mem(arguments, tensor->mem);
    cl_long4 own = {{tensor->offset, tensor->token_stride, tensor->head_stride, 0}};
    pcl_argument(arguments, sizeof own, &own);
}

#endif
