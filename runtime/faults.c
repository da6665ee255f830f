/* SPDX-License-Identifier: Apache-2.0 */
#include "faults.h"

#include "device.h"
#include "status.h"

pagedcl_status pcl_faults_create(const pagedcl_device *device, pcl_faults *faults) {
    *faults = (pcl_faults){.device = device};
    pagedcl_faults none = {0};
    cl_int code = CL_SUCCESS;
    cl_mem counters =
        clCreateBuffer(device->context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof none, &none, &code);
    if (code != CL_SUCCESS)
        return pcl_fail_opencl(code, "clCreateBuffer of counters");
    faults->counters = counters;
    return PAGEDCL_SUCCESS;
}

void pcl_faults_release(pcl_faults *faults) {
    pcl_fence_release(&faults->last);
    if (faults->counters != NULL)
        clReleaseMemObject(faults->counters);
    faults->counters = NULL;
}

pagedcl_status pcl_faults_use(const pcl_faults *faults, pcl_chain *chain) {
    return pcl_fence_wait(&faults->last, chain);
}

void pcl_faults_used(pcl_faults *faults, pcl_chain *chain) {
    pcl_fence_set(&faults->last, chain);
}

pagedcl_status pcl_faults_read(pcl_faults *faults, cl_command_queue queue, pagedcl_faults *to, cl_uint num_events,
                               const cl_event *events, cl_event *event) {
    if (to == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "faults is NULL");
    pcl_chain chain;
    PCL_TRY(pcl_chain_begin(&chain, faults->device, queue, num_events, events));
    pagedcl_status status = pcl_faults_use(faults, &chain);
    if (status == PAGEDCL_SUCCESS)
        status = pcl_chain_read(&chain, faults->counters, 0, sizeof *to, to);
    if (status == PAGEDCL_SUCCESS)
        pcl_faults_used(faults, &chain);
    return pcl_chain_end(&chain, status, event);
}
