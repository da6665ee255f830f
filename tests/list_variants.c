/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the kernel variants that the library builds for a kind of device, for compilers of devices that are not here
 * (tools/compile-offline). It creates operators as an engine would, on a device that has a description and nothing
 * else, and prints what they ask to be built: one line each of key, path of the source, and options, between tabs.
 */
#include "device.h"
#include "layers.h"
#include "nv_probe.h"
#include "rig.h"
#include "status.h"

#include <pagedcl/attn.h>
#include <pagedcl/attn_gather.h>
#include <pagedcl/host_pool.h>
#include <pagedcl/merge.h>
#include <pagedcl/program.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KIB = 1024 };

/* What the kernels' macros depend on. */
static const struct target {
    const char *name, *vendor;
    pagedcl_device_kind kind;
    pagedcl_tier tier;
    uint64_t local_memory, max_work_group_size;
    int has_fp16, has_subgroups, nv_capability, float_lanes;
} targets[] = {
    {"amd", "Advanced Micro Devices, Inc.", PAGEDCL_DEVICE_DISCRETE_GPU, PAGEDCL_TIER_PORTABLE, 64 * KIB, 256, 1, 1, 0,
     0},
    {"intel", "Intel(R) Corporation", PAGEDCL_DEVICE_DISCRETE_GPU, PAGEDCL_TIER_PORTABLE, 64 * KIB, 1024, 1, 1, 0, 0},
    {"nvidia", "NVIDIA Corporation", PAGEDCL_DEVICE_DISCRETE_GPU, PAGEDCL_TIER_PORTABLE, 48 * KIB, 1024, 0, 0, 0, 0},
    {"nvidia-mma", "NVIDIA Corporation", PAGEDCL_DEVICE_DISCRETE_GPU, PAGEDCL_TIER_NV_MMA, 48 * KIB, 1024, 0, 0, 80, 0},
    {"nvidia-wgmma", "NVIDIA Corporation", PAGEDCL_DEVICE_DISCRETE_GPU, PAGEDCL_TIER_NV_WGMMA, 48 * KIB, 1024, 0, 0, 90,
     0},
    {"smallest", "", PAGEDCL_DEVICE_INTEGRATED_GPU, PAGEDCL_TIER_PORTABLE, 32 * KIB, 32, 0, 0, 0, 0},
    {"cpu", "", PAGEDCL_DEVICE_CPU, PAGEDCL_TIER_CPU, 256 * KIB, 4096, 0, 0, 0, 8},
    {"cpu-wide", "", PAGEDCL_DEVICE_CPU, PAGEDCL_TIER_CPU, 256 * KIB, 4096, 0, 0, 0, 16},
};

enum { NUM_TARGETS = sizeof targets / sizeof targets[0] };

static pagedcl_device device;
static const char *folder; /* where sources go */

static void check(pagedcl_status status) {
    if (status == PAGEDCL_SUCCESS)
        return;
    fprintf(stderr, "list_variants: %s: %s\n", pagedcl_status_name(status), pagedcl_last_error());
    exit(1);
}

/* ---- OpenCL, as far as creating an operator needs it: objects without content ---- */

static char object;

cl_mem clCreateBuffer(cl_context context, cl_mem_flags flags, size_t size, void *host, cl_int *code) {
    (void)context, (void)flags, (void)size, (void)host;
    *code = CL_SUCCESS;
    return (cl_mem)(void *)&object;
}

cl_int clRetainMemObject(cl_mem mem) {
    (void)mem;
    return CL_SUCCESS;
}

cl_int clReleaseMemObject(cl_mem mem) {
    (void)mem;
    return CL_SUCCESS;
}

cl_int clReleaseProgram(cl_program program) {
    (void)program;
    return CL_SUCCESS;
}

cl_kernel clCreateKernel(cl_program program, const char *name, cl_int *code) {
    (void)program, (void)name;
    *code = CL_SUCCESS;
    return (cl_kernel)(void *)&object;
}

cl_int clSetKernelArg(cl_kernel kernel, cl_uint index, size_t size, const void *value) {
    (void)kernel, (void)index, (void)size, (void)value;
    return CL_SUCCESS;
}

cl_command_queue clCreateCommandQueue(cl_context context, cl_device_id id, cl_command_queue_properties properties,
                                      cl_int *code) {
    (void)context, (void)id, (void)properties;
    *code = CL_SUCCESS;
    return (cl_command_queue)(void *)&object;
}

cl_int clGetCommandQueueInfo(cl_command_queue queue, cl_command_queue_info name, size_t size, void *value,
                             size_t *size_out) {
    (void)queue, (void)name, (void)size_out;
    memset(value, 0, size);
    return CL_SUCCESS;
}

cl_int clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions, const size_t *offset,
                              const size_t *global, const size_t *local, cl_uint num_events, const cl_event *events,
                              cl_event *event) {
    (void)queue, (void)kernel, (void)dimensions, (void)offset, (void)global, (void)local;
    (void)num_events, (void)events, (void)event;
    return CL_SUCCESS;
}

cl_int clFinish(cl_command_queue queue) {
    (void)queue;
    return CL_SUCCESS;
}

cl_int clReleaseCommandQueue(cl_command_queue queue) {
    (void)queue;
    return CL_SUCCESS;
}

cl_int clReleaseKernel(cl_kernel kernel) {
    (void)kernel;
    return CL_SUCCESS;
}

/* Every kernel may have the device's largest work-group. */
cl_int clGetKernelWorkGroupInfo(cl_kernel kernel, cl_device_id id, cl_kernel_work_group_info name, size_t size,
                                void *value, size_t *size_out) {
    (void)kernel, (void)id, (void)size_out;
    size_t limit = device.info.max_work_group_size;
    if (name != CL_KERNEL_WORK_GROUP_SIZE || size != sizeof limit)
        return CL_INVALID_VALUE;
    memcpy(value, &limit, size);
    return CL_SUCCESS;
}

/* ---- what the library asks to be built ---- */

pagedcl_status __wrap_pcl_programs_build(pagedcl_device *on, const pagedcl_program_desc *descs, const bool *for_hopper,
                                         size_t count, cl_program *programs);

pagedcl_status __wrap_pcl_programs_build(pagedcl_device *on, const pagedcl_program_desc *descs, const bool *for_hopper,
                                         size_t count, cl_program *programs) {
    (void)on, (void)for_hopper;
    for (size_t i = 0; i < count; i++) {
        char path[4096];
        int length = (int)strcspn(descs[i].name, " ");
        snprintf(path, sizeof path, "%s/%.*s.cl", folder, length, descs[i].name);
        FILE *file = fopen(path, "w");
        if (file == NULL || fputs(descs[i].source, file) < 0 || fclose(file) != 0)
            return pcl_fail(PAGEDCL_IO_ERROR, "cannot write %s", path);
        printf("%s\t%s\t%s\n", descs[i].name, path, descs[i].options);
        programs[i] = (cl_program)(void *)&object;
    }
    return PAGEDCL_SUCCESS;
}

pagedcl_status __wrap_pagedcl_programs_build(pagedcl_device *on, const pagedcl_program_desc *descs, size_t count,
                                             cl_program *programs);

pagedcl_status __wrap_pagedcl_programs_build(pagedcl_device *on, const pagedcl_program_desc *descs, size_t count,
                                             cl_program *programs) {
    return __wrap_pcl_programs_build(on, descs, NULL, count, programs);
}

/* ---- operators ---- */

static const struct {
    int32_t head_dim, head_dim_v, v_in_k;
} shapes[] = {{64, 64, 0}, {80, 80, 0}, {128, 128, 0}, {256, 256, 0}, {192, 128, 0}, {576, 512, 1}};

static const struct { int32_t num_heads, num_kv_heads; } heads[] = {{8, 8}, {28, 4}, {64, 4}};

static const struct {
    int32_t block_size, segments;
    pagedcl_layout layout;
} pools[] = {
    {16, 1, PAGEDCL_LAYOUT_NHD}, {1, 4, PAGEDCL_LAYOUT_HND}, {16, 4, PAGEDCL_LAYOUT_NHD}, {1, 1, PAGEDCL_LAYOUT_HND}};

static const struct {
    float softcap;
    int32_t alibi, sinks, tree, rotary, rotary_interleaved;
} features[] = {
    {0}, {.softcap = 30, .alibi = 1, .sinks = 1}, {.tree = 1, .rotary = 1}, {.rotary = 1, .rotary_interleaved = 1}};

static const pagedcl_dtype dtypes[] = {PAGEDCL_FLOAT32, PAGEDCL_FLOAT16, PAGEDCL_BFLOAT16};

/* Those of pools: the three of above first. */
static const struct {
    pagedcl_dtype dtype;
    int32_t scale_per_row;
} pool_dtypes[] = {{PAGEDCL_FLOAT32, 0},     {PAGEDCL_FLOAT16, 0},     {PAGEDCL_BFLOAT16, 0}, {PAGEDCL_INT8, 1},
                   {PAGEDCL_FLOAT8_E4M3, 0}, {PAGEDCL_FLOAT8_E5M2, 1}, {PAGEDCL_INT4, 0}};

#define COUNT(array) (int)(sizeof(array) / sizeof(array)[0])

/* One of each. */
typedef struct choice {
    int shape, kv, q, heads, pool, feature;
} choice;

static pagedcl_attn_desc attn_desc(const choice *c) {
    pagedcl_attn_desc desc = PAGEDCL_ATTN_DESC_INIT;
    desc.num_heads = heads[c->heads].num_heads;
    desc.num_kv_heads = heads[c->heads].num_kv_heads;
    desc.head_dim = shapes[c->shape].head_dim;
    desc.head_dim_v = shapes[c->shape].head_dim_v;
    desc.q_dtype = dtypes[c->q];
    desc.softcap = features[c->feature].softcap;
    desc.has_alibi = features[c->feature].alibi;
    desc.has_sinks = features[c->feature].sinks;
    desc.has_tree = features[c->feature].tree;
    desc.rotary_dim = features[c->feature].rotary ? 64 : 0;
    desc.rotary_interleaved = features[c->feature].rotary_interleaved;
    return desc;
}

static pagedcl_cache_desc cache_desc(const choice *c) {
    pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT;
    desc.num_blocks = pools[c->pool].segments;
    desc.block_size = pools[c->pool].block_size;
    desc.num_kv_heads = heads[c->heads].num_kv_heads;
    desc.head_dim = shapes[c->shape].head_dim;
    desc.head_dim_v = shapes[c->shape].head_dim_v;
    desc.v_in_k = shapes[c->shape].v_in_k;
    desc.layout = pools[c->pool].layout;
    desc.dtype = pool_dtypes[c->kv].dtype;
    desc.scale_per_row = pool_dtypes[c->kv].scale_per_row;
    if (pools[c->pool].segments > 1) {
        /* As much as a block of K takes. */
        pagedcl_cache_desc block = desc;
        block.num_blocks = block.v_in_k = 1;
        check(pagedcl_cache_bytes(&block, &desc.max_segment_bytes));
    }
    return desc;
}

/* Operators on a pool, with tables of the host and of the device, and the pool's host tier; one on packed keys with its
   baseline where there is one; and the merge of their results. */
static void list_choice(const choice *c, bool device_tables) {
    pagedcl_cache_desc pool = cache_desc(c);
    pagedcl_attn_desc desc = attn_desc(c);
    pagedcl_merge_desc merge_desc = PAGEDCL_MERGE_DESC_INIT;
    pagedcl_cache *cache = NULL;
    pagedcl_attn *attn = NULL;
    pagedcl_merge *merge = NULL;
    merge_desc.num_heads = desc.num_heads;
    merge_desc.head_dim = desc.head_dim_v;
    merge_desc.dtype = desc.q_dtype;
    check(pagedcl_merge_create(&device, &merge_desc, &merge));
    pagedcl_merge_destroy(merge);
    desc.kv_dtype = c->kv < COUNT(dtypes) ? dtypes[c->kv] : desc.q_dtype; /* packed keys are not quantised */
    check(pagedcl_attn_create(&device, &desc, &attn));
    if (c->feature == 0 && desc.head_dim == desc.head_dim_v) {
        pagedcl_attn_gather *gather = NULL;
        check(pagedcl_attn_gather_create(&device, attn, &gather));
        pagedcl_attn_gather_destroy(gather);
    }
    pagedcl_attn_destroy(attn);
    check(pagedcl_cache_create(&device, &pool, &cache));
    pagedcl_host_pool_desc host_desc = PAGEDCL_HOST_POOL_DESC_INIT;
    pagedcl_host_pool *host = NULL;
    host_desc.num_blocks = 1;
    host_desc.memory = &object; /* nothing is moved */
    check(pagedcl_host_pool_create(cache, &host_desc, &host));
    pagedcl_host_pool_destroy(host);
    desc.cache = cache;
    desc.kv_dtype = PAGEDCL_DTYPE_DEFAULT;
    for (desc.device_tables = 0; desc.device_tables <= device_tables; desc.device_tables++) {
        check(pagedcl_attn_create(&device, &desc, &attn));
        pagedcl_attn_destroy(attn);
    }
    pagedcl_cache_destroy(cache);
}

/* Every combination; or a sample that has a third of the pairs of shape and pool dtype, and each of the rest; tables on
   the device for about half of it. */
static void list_operators(bool all) {
    choice c;
    for (c.shape = 0; c.shape < COUNT(shapes); c.shape++)
        for (c.kv = 0; c.kv < COUNT(pool_dtypes); c.kv++)
            for (c.q = 0; c.q < COUNT(dtypes); c.q++)
                for (c.heads = 0; c.heads < COUNT(heads); c.heads++)
                    for (c.pool = 0; c.pool < COUNT(pools); c.pool++)
                        for (c.feature = 0; c.feature < COUNT(features); c.feature++) {
                            int at = (c.shape + c.kv) / 3;
                            bool third = (c.shape + c.kv) % 3 == 0;
                            if (all || (third && c.q == at % COUNT(dtypes) && c.heads == (at + c.kv) % COUNT(heads) &&
                                        c.pool == at % COUNT(pools) && c.feature == (at + c.kv) % COUNT(features)))
                                list_choice(&c, all || at % 2 == 0);
                        }
}

/* As tier nv_wgmma streams it: decode alone, or both paths of latent attention. */
static void list_stream(const choice *c, bool device_tables) {
    pagedcl_cache_desc pool = cache_desc(c);
    pagedcl_attn_desc desc = attn_desc(c);
    pagedcl_attn *attn = NULL;
    check(pagedcl_cache_create(&device, &pool, &desc.cache));
    desc.paths = pool.v_in_k && c->kv < COUNT(dtypes) ? PAGEDCL_PATH_ALL : PAGEDCL_PATH_DECODE;
    desc.device_tables = device_tables;
    check(pagedcl_attn_create(&device, &desc, &attn));
    pagedcl_attn_destroy(attn);
    pagedcl_cache_destroy(desc.cache);
}

/* Each shape with two of the features, and elements of 16 bits or codes of 8. */
static void list_streams(void) {
    enum { ELEMENTS = 1, CODES = 3 }; /* in pool_dtypes */
    for (int shape = 0; shape < COUNT(shapes); shape++)
        for (int feature = shape % 2; feature < COUNT(features); feature += 2) {
            const bool is_first = feature < 2;
            const int heads_of = (shape + feature) % COUNT(heads), pool = is_first ? 2 : 0;
            const choice elements = {shape,  is_first ? ELEMENTS : ELEMENTS + 1, is_first ? 1 : 2, heads_of, pool,
                                     feature};
            const choice codes = {shape, CODES + (shape + feature) % 3, is_first ? 2 : 1, heads_of, pool, feature};
            list_stream(&elements, is_first);
            list_stream(&codes, is_first);
        }
}

/* What tries a device's instructions when it is opened. */
static void list_probe(void) {
    pcl_variant variant;
    cl_program program = NULL;
    pcl_nv_probe_variant(device.info.tier, &variant);
    check(pcl_variants_build(&device, &variant, 1, &program));
}

/* The kernels of `pagedcl generate`. */
static void list_engine(void) {
    layers own;
    tool_error error;
    if (!layers_create(&device, &own, &error)) {
        fprintf(stderr, "list_variants: %s\n", error.text);
        exit(1);
    }
    layers_destroy(&own);
}

/* The kernels of `pagedcl bench`. */
static void list_bench(void) {
    bench_rig rig = {.device = &device, .is_cpu = device.info.kind == PAGEDCL_DEVICE_CPU};
    tool_error error;
    cl_program program;
    bool listed = true;
    for (rig.fma_width = 4; listed && rig.fma_width <= (rig.is_cpu ? 16 : 4); rig.fma_width *= 2)
        listed = bench_build(&rig, false, &program, &error);
    rig.fma_width = 4;
    if (listed && device.nv_capability > 0)
        listed = bench_build(&rig, true, &program, &error);
    if (!listed) {
        fprintf(stderr, "list_variants: %s\n", error.text);
        exit(1);
    }
}

int main(int argc, char **argv) {
    bool all = argc > 1 && strcmp(argv[1], "--all") == 0;
    if (argc != 3 + all) {
        fprintf(stderr, "usage: list_variants [--all] TARGET FOLDER\n"
                        "TARGET: one of");
        for (int i = 0; i < NUM_TARGETS; i++)
            fprintf(stderr, " %s", targets[i].name);
        fprintf(stderr, "\nFOLDER: where the sources are written\n");
        return 2;
    }
    const struct target *target = NULL;
    for (int i = 0; i < NUM_TARGETS; i++)
        if (strcmp(targets[i].name, argv[1 + all]) == 0)
            target = &targets[i];
    if (target == NULL) {
        fprintf(stderr, "list_variants: no target %s\n", argv[1 + all]);
        return 2;
    }
    folder = argv[2 + all];
    atomic_init(&device.references, 1);
    device.info = (pagedcl_device_info){
        .struct_size = sizeof device.info,
        .kind = target->kind,
        .tier = target->tier,
        .usable = 1,
        .local_memory = target->local_memory,
        .max_work_group_size = target->max_work_group_size,
        .has_fp16 = target->has_fp16,
        .has_subgroups = target->has_subgroups,
        .global_memory = UINT64_C(1) << 40,
        .max_allocation = UINT64_C(1) << 40,
    };
    snprintf(device.info.vendor, sizeof device.info.vendor, "%s", target->vendor);
    device.quirks = pcl_quirks_of(&device.info);
    device.nv_capability = target->nv_capability;
    device.float_lanes = target->float_lanes;
    list_operators(all);
    if (device.info.tier == PAGEDCL_TIER_NV_WGMMA)
        list_streams();
    list_engine();
    list_bench();
    if (pcl_tier_is_nv(target->tier))
        list_probe();
    return 0;
}
