/* SPDX-License-Identifier: Apache-2.0 */
#include "nv_probe.h"

#include "caps.h"
#include "status.h"

#include <stdio.h>

/* Of the extension cl_nv_device_attribute_query. */
enum { COMPUTE_CAPABILITY_MAJOR_NV = 0x4000, COMPUTE_CAPABILITY_MINOR_NV = 0x4001 };

/* A probe: c [rows, columns] of floats, the product of a [rows, SIDE] and the transpose of b [SIDE, SIDE], whose first
   `columns` rows count, both of halves. */
enum { SIDE = 16, MAX_PRODUCT = 64 * SIDE };
typedef struct probe {
    const char *kernel;
    int rows, columns;
    size_t work_group;
} probe;

static const probe mma_probe = {"nv_probe", 16, 8, 32}, wgmma_probe = {"nv_wgmma_probe", 64, 16, 128};

static const probe *probe_of(pagedcl_tier tier) {
    return tier == PAGEDCL_TIER_NV_WGMMA ? &wgmma_probe : &mma_probe;
}

int pcl_nv_capability(cl_device_id id) {
    if (!pcl_has_extension(id, "cl_nv_device_attribute_query"))
        return 0;
    cl_uint major = 0, minor = 0;
    if (clGetDeviceInfo(id, COMPUTE_CAPABILITY_MAJOR_NV, sizeof major, &major, NULL) != CL_SUCCESS ||
        clGetDeviceInfo(id, COMPUTE_CAPABILITY_MINOR_NV, sizeof minor, &minor, NULL) != CL_SUCCESS || major > 99)
        return 0;
    return (int)(major * 10 + minor);
}

/* "Technical specifications per compute capability" of the CUDA programming guide. */
int64_t pcl_nv_local_memory(int capability) {
    const int64_t kib = 1024;
    switch (capability) {
    case 80:
    case 87:
        return 163 * kib;
    case 90:
    case 100:
    case 103:
        return 226 * kib;
    default:
        return 99 * kib;
    }
}

/* Small integers, which a half holds exactly: -4 .. 4. */
static int element(int matrix, int row, int column) {
    return (row * 5 + column * 3 + matrix * 7) % 9 - 4;
}

/* An integer from -4 to 4 as the bits of a half. */
static cl_ushort half_of(int x) {
    const cl_ushort magnitudes[] = {0, 0x3c00, 0x4000, 0x4200, 0x4400};
    return x < 0 ? (cl_ushort)(magnitudes[-x] | 0x8000) : magnitudes[x];
}

/* Launches the kernel over its three buffers and reads the product. */
static cl_int launch(const pagedcl_device *device, const probe *by, cl_kernel kernel, cl_mem buffers[3],
                     cl_float product[MAX_PRODUCT]) {
    cl_int code = CL_SUCCESS;
    for (cl_uint i = 0; i < 3 && code == CL_SUCCESS; i++)
        code = clSetKernelArg(kernel, i, sizeof buffers[i], &buffers[i]);
    if (code == CL_SUCCESS)
        code = clEnqueueNDRangeKernel(device->queue, kernel, 1, NULL, &by->work_group, &by->work_group, 0, NULL, NULL);
    if (code == CL_SUCCESS)
        code = clFinish(device->queue);
    if (code == CL_SUCCESS)
        code = clEnqueueReadBuffer(device->queue, buffers[2], CL_TRUE, 0,
                                   (size_t)(by->rows * by->columns) * sizeof *product, product, 0, NULL, NULL);
    return code;
}

static cl_int run(const pagedcl_device *device, const probe *by, cl_kernel kernel, cl_float product[MAX_PRODUCT]) {
    cl_ushort inputs[2][MAX_PRODUCT];
    for (int m = 0; m < 2; m++)
        for (int i = 0; i < MAX_PRODUCT; i++)
            inputs[m][i] = half_of(element(m, i / SIDE, i % SIDE));
    cl_mem buffers[3] = {NULL};
    cl_int code = CL_SUCCESS;
    for (int i = 0; i < 3 && code == CL_SUCCESS; i++)
        buffers[i] =
            clCreateBuffer(device->context, i < 2 ? CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR : CL_MEM_WRITE_ONLY,
                           i < 2 ? sizeof inputs[i] : MAX_PRODUCT * sizeof *product, i < 2 ? inputs[i] : NULL, &code);
    if (code == CL_SUCCESS)
        code = launch(device, by, kernel, buffers, product);
    for (int i = 0; i < 3; i++)
        if (buffers[i] != NULL)
            clReleaseMemObject(buffers[i]);
    return code;
}

static pagedcl_status check_product(const probe *by, const cl_float *product) {
    for (int row = 0; row < by->rows; row++)
        for (int column = 0; column < by->columns; column++) {
            int sum = 0;
            for (int k = 0; k < SIDE; k++)
                sum += element(0, row, k) * element(1, column, k);
            if (product[row * by->columns + column] != (cl_float)sum)
                return pcl_fail(PAGEDCL_UNSUPPORTED, "a product of matrices has a wrong element");
        }
    return PAGEDCL_SUCCESS;
}

void pcl_nv_probe_variant(pagedcl_tier tier, pcl_variant *variant) {
    pcl_variant_init(variant, probe_of(tier)->kernel);
    pcl_variant_dtype(variant, "KV_DTYPE", PAGEDCL_FLOAT16);
    variant->for_hopper = tier == PAGEDCL_TIER_NV_WGMMA;
}

static pagedcl_status try_instructions(pagedcl_device *device, pagedcl_tier tier) {
    pcl_variant variant;
    pcl_nv_probe_variant(tier, &variant);
    cl_program program = NULL;
    cl_kernel kernel = NULL;
    cl_float product[MAX_PRODUCT];
    PCL_TRY(pcl_variants_build(device, &variant, 1, &program));
    pagedcl_status status = pcl_variant_kernel(&variant, program, &kernel);
    if (status == PAGEDCL_SUCCESS) {
        cl_int code = run(device, probe_of(tier), kernel, product);
        status = code == CL_SUCCESS ? check_product(probe_of(tier), product)
                                    : pcl_fail_opencl(code, "the probe of a tier for NVIDIA's GPUs");
        clReleaseKernel(kernel);
    }
    clReleaseProgram(program);
    return status;
}

void pcl_nv_probe(pagedcl_device *device) {
    pagedcl_device_info *info = &device->info;
    while (pcl_tier_is_nv(info->tier) && try_instructions(device, info->tier) != PAGEDCL_SUCCESS) {
        snprintf(info->tier_reason, sizeof info->tier_reason, "%s failed its probe: %.200s",
                 pagedcl_tier_name(info->tier), pagedcl_last_error());
        pcl_log(device, PAGEDCL_LOG_WARNING, "%s", info->tier_reason);
        info->tier = info->tier == PAGEDCL_TIER_NV_WGMMA ? PAGEDCL_TIER_NV_MMA : PAGEDCL_TIER_PORTABLE;
    }
}
