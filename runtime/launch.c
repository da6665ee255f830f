/* SPDX-License-Identifier: Apache-2.0 */
#include "launch.h"

#include "device.h"
#include "status.h"

enum { ITEMS_PER_GROUP = 64 };

/* The largest power of two of work-items, up to ITEMS_PER_GROUP, that device and kernel allow in a work-group. It is
   not left to the driver: PoCL would compile the kernel anew for each size that it comes upon. */
static pagedcl_status group_size(const pagedcl_device *device, cl_kernel kernel, size_t *size) {
    size_t limit = 1;
    cl_int code = clGetKernelWorkGroupInfo(kernel, device->id, CL_KERNEL_WORK_GROUP_SIZE, sizeof limit, &limit, NULL);
    if (code != CL_SUCCESS)
        return pcl_fail_opencl(code, "clGetKernelWorkGroupInfo");
    if (limit > device->info.max_work_group_size)
        limit = (size_t)device->info.max_work_group_size;
    *size = ITEMS_PER_GROUP;
    while (*size > limit && *size > 1)
        *size /= 2;
    return PAGEDCL_SUCCESS;
}

pagedcl_status pcl_launch_items(pcl_chain *chain, const pcl_arguments *arguments, int64_t rows, int64_t columns) {
    if (arguments->code != CL_SUCCESS)
        return pcl_fail_opencl(arguments->code, "clSetKernelArg");
    size_t local = 1;
    PCL_TRY(group_size(chain->device, arguments->kernel, &local));
    int64_t items = 0;
    if (__builtin_mul_overflow(rows, columns, &items) || (uint64_t)items > SIZE_MAX - local)
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "a launch of more work-items than the machine can count");
    size_t global = items == 0 ? local : ((size_t)items + local - 1) / local * local;
    return pcl_chain_launch(chain, arguments->kernel, 1, &global, &local);
}

pagedcl_status pcl_launch_groups(pcl_chain *chain, const pcl_arguments *arguments, int64_t x, int64_t y, size_t local) {
    if (arguments->code != CL_SUCCESS)
        return pcl_fail_opencl(arguments->code, "clSetKernelArg");
    int64_t items = 0;
    if (__builtin_mul_overflow(x, (int64_t)local, &items) || (uint64_t)items > SIZE_MAX || y > 65535)
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "a launch of more work-groups than a device can take");
    size_t globals[2] = {(size_t)items, (size_t)y}, locals[2] = {local, 1};
    return pcl_chain_launch(chain, arguments->kernel, 2, globals, locals);
}
