/* SPDX-License-Identifier: Apache-2.0 */
#include "layers.h"

#include <pagedcl/program.h>

#include <stdio.h>

extern const char pcl_source_layers[];

typedef struct argument {
    size_t size;
    const void *value;
} argument;

#define ARGUMENT(variable) \
    { sizeof(variable), &(variable) }
#define NUM_ARGUMENTS(arguments) (cl_uint)(sizeof(arguments) / sizeof *(arguments))

static bool make_kernel(const layers *l, const char *name, cl_kernel *kernel, tool_error *error) {
    cl_int code;
    *kernel = clCreateKernel(l->program, name, &code);
    return tool_try_opencl(error, code, "clCreateKernel");
}

bool layers_create(pagedcl_device *device, layers *l, tool_error *error) {
    *l = (layers){.queue = pagedcl_device_queue(device), .group = 64};
    pagedcl_device_info info = PAGEDCL_DEVICE_INFO_INIT;
    if (!tool_try(error, pagedcl_device_get_info(device, &info), "device"))
        return false;
    while (l->group > info.max_work_group_size)
        l->group /= 2;
    char options[32];
    snprintf(options, sizeof options, "-DGROUP=%zu", l->group);
    pagedcl_program_desc desc = {.name = "layers", .source = pcl_source_layers, .options = options};
    if (!tool_try(error, pagedcl_programs_build(device, &desc, 1, &l->program), "layer kernels"))
        return false;
    return make_kernel(l, "take_rows", &l->take_rows, error) && make_kernel(l, "rms_norm", &l->rms_norm, error) &&
           make_kernel(l, "norm_rotate", &l->norm_rotate, error) &&
           make_kernel(l, "silu_multiply", &l->silu_multiply, error);
}

void layers_destroy(layers *l) {
    cl_kernel kernels[] = {l->take_rows, l->rms_norm, l->norm_rotate, l->silu_multiply};
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (kernels[i] != NULL)
            clReleaseKernel(kernels[i]);
    if (l->program != NULL)
        clReleaseProgram(l->program);
    *l = (layers){0};
}

/* Enqueues x by y work-items, in work-groups of `group` by 1, or as the implementation likes when group is 0. */
static bool enqueue(const layers *l, cl_kernel kernel, const argument *arguments, cl_uint num_arguments, size_t x,
                    size_t y, size_t group, tool_error *error) {
    for (cl_uint i = 0; i < num_arguments; i++) {
        cl_int code = clSetKernelArg(kernel, i, arguments[i].size, arguments[i].value);
        if (code != CL_SUCCESS)
            return tool_try_opencl(error, code, "clSetKernelArg");
    }
    const size_t global[2] = {x, y};
    const size_t local[2] = {group, 1};
    cl_int code = clEnqueueNDRangeKernel(l->queue, kernel, 2, NULL, global, group == 0 ? NULL : local, 0, NULL, NULL);
    return tool_try_opencl(error, code, "clEnqueueNDRangeKernel");
}

bool layers_take_rows(const layers *l, cl_mem table, cl_mem rows, cl_mem out, int32_t num_rows, int32_t width,
                      tool_error *error) {
    const argument arguments[] = {ARGUMENT(table), ARGUMENT(rows), ARGUMENT(out)};
    return enqueue(l, l->take_rows, arguments, NUM_ARGUMENTS(arguments), (size_t)width, (size_t)num_rows, 0, error);
}

bool layers_rms_norm(const layers *l, cl_mem in, cl_mem weight, cl_mem out, int32_t num_rows, int32_t width, float eps,
                     tool_error *error) {
    const argument arguments[] = {ARGUMENT(in), ARGUMENT(weight), ARGUMENT(out), ARGUMENT(width), ARGUMENT(eps)};
    return enqueue(l, l->rms_norm, arguments, NUM_ARGUMENTS(arguments), (size_t)num_rows * l->group, 1, l->group,
                   error);
}

bool layers_norm_rotate(const layers *l, cl_mem qkv, cl_mem q_norm, cl_mem k_norm, cl_mem frequencies, cl_mem positions,
                        int32_t num_rows, const model_config *config, tool_error *error) {
    const argument arguments[] = {ARGUMENT(qkv),
                                  ARGUMENT(q_norm),
                                  ARGUMENT(k_norm),
                                  ARGUMENT(frequencies),
                                  ARGUMENT(positions),
                                  ARGUMENT(config->num_heads),
                                  ARGUMENT(config->num_kv_heads),
                                  ARGUMENT(config->head_dim),
                                  ARGUMENT(config->rms_norm_eps)};
    size_t num_groups = (size_t)config->num_heads + (size_t)config->num_kv_heads;
    return enqueue(l, l->norm_rotate, arguments, NUM_ARGUMENTS(arguments), num_groups * l->group, (size_t)num_rows,
                   l->group, error);
}

bool layers_silu_multiply(const layers *l, cl_mem gate_up, cl_mem out, int32_t num_rows, int32_t width,
                          tool_error *error) {
    const argument arguments[] = {ARGUMENT(gate_up), ARGUMENT(out)};
    return enqueue(l, l->silu_multiply, arguments, NUM_ARGUMENTS(arguments), (size_t)width, (size_t)num_rows, 0, error);
}
