/* SPDX-License-Identifier: Apache-2.0 */
#include "attn.h"

#include "attn_maps.h"
#include "cache.h"
#include "device.h"
#include "dtype.h"
#include "nv_probe.h"
#include "status.h"
#include "struct_size.h"
#include "tuning.h"
#include "warm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_HEAD_DIM = 576, SMALL_WORK_GROUP = 64, WORK_ITEMS_OF_A_THREAD = 16 };

static const char *const kernel_names[PCL_ATTN_KERNELS] = {
    [PCL_ATTN_VARLEN] = "attn_varlen", [PCL_ATTN_DECODE] = "attn_decode", [PCL_ATTN_MERGE] = "attn_merge",
    [PCL_ATTN_APPEND] = "attn_append", [PCL_ATTN_TABLES] = "attn_tables", [PCL_ATTN_MAPS] = "attn_maps",
};

/* A field that the cache gives: 0 or the same. */
static pagedcl_status take(const char *name, int32_t *field, int32_t of_cache) {
    if (*field != 0 && *field != of_cache)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s is %d, the cache's is %d", name, *field, of_cache);
    *field = of_cache;
    return PAGEDCL_SUCCESS;
}

static pagedcl_status take_from_cache(pagedcl_attn_desc *own) {
    const pagedcl_cache_desc *cache = &own->cache->desc;
    PCL_TRY(take("num_kv_heads", &own->num_kv_heads, cache->num_kv_heads));
    PCL_TRY(take("head_dim", &own->head_dim, cache->head_dim));
    PCL_TRY(take("head_dim_v", &own->head_dim_v, cache->head_dim_v));
    int32_t kv_dtype = (int32_t)own->kv_dtype;
    PCL_TRY(take("kv_dtype", &kv_dtype, (int32_t)cache->dtype));
    own->kv_dtype = cache->dtype;
    return PAGEDCL_SUCCESS;
}

static pagedcl_status check_dtype(const char *name, pagedcl_dtype dtype) {
    if (pagedcl_dtype_size(dtype) == 0 || pcl_dtype_is_quantized(dtype))
        return pcl_fail(PAGEDCL_UNSUPPORTED, "%s %d (%s) is not float32, float16 or bfloat16", name, (int)dtype,
                        pagedcl_dtype_name(dtype));
    return PAGEDCL_SUCCESS;
}

static pagedcl_status check_flag(const char *name, int32_t value) {
    if (value != 0 && value != 1)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s is %d, not 0 or 1", name, value);
    return PAGEDCL_SUCCESS;
}

static pagedcl_status read_shape(pagedcl_attn_desc *own) {
    if (own->num_heads < 1 || own->num_kv_heads < 1 || own->num_heads % own->num_kv_heads != 0)
        return pcl_fail(PAGEDCL_INVALID_HEADS, "num_heads %d is not a positive multiple of num_kv_heads %d",
                        own->num_heads, own->num_kv_heads);
    if (own->num_kv_heads > 65535)
        return pcl_fail(PAGEDCL_UNSUPPORTED, "num_kv_heads %d is more than 65535", own->num_kv_heads);
    if (own->head_dim_v == 0)
        own->head_dim_v = own->head_dim;
    if (own->head_dim < 1 || own->head_dim > MAX_HEAD_DIM || own->head_dim_v < 1 || own->head_dim_v > MAX_HEAD_DIM)
        return pcl_fail(PAGEDCL_UNSUPPORTED, "head_dim %d and head_dim_v %d must be 1 to %d", own->head_dim,
                        own->head_dim_v, MAX_HEAD_DIM);
    bool plain = own->kv_dtype != PAGEDCL_DTYPE_DEFAULT && !pcl_dtype_is_quantized(own->kv_dtype);
    if (own->q_dtype == PAGEDCL_DTYPE_DEFAULT)
        own->q_dtype = plain ? own->kv_dtype : PAGEDCL_FLOAT16;
    if (own->kv_dtype == PAGEDCL_DTYPE_DEFAULT)
        own->kv_dtype = own->q_dtype;
    if (own->out_dtype == PAGEDCL_DTYPE_DEFAULT)
        own->out_dtype = own->q_dtype;
    PCL_TRY(check_dtype("q_dtype", own->q_dtype));
    if (own->cache == NULL)
        PCL_TRY(check_dtype("kv_dtype", own->kv_dtype));
    return check_dtype("out_dtype", own->out_dtype);
}

static pagedcl_status read_scores(pagedcl_attn_desc *own) {
    if (own->softmax_scale == 0)
        own->softmax_scale = 1.0f / sqrtf((float)own->head_dim);
    if (!isfinite(own->softmax_scale))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "softmax_scale is not finite");
    if (!isfinite(own->softcap) || own->softcap < 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "softcap %g is not a number from 0 up", (double)own->softcap);
    PCL_TRY(check_flag("causal", own->causal));
    PCL_TRY(check_flag("has_window", own->has_window));
    PCL_TRY(check_flag("has_alibi", own->has_alibi));
    PCL_TRY(check_flag("has_sinks", own->has_sinks));
    PCL_TRY(check_flag("has_tree", own->has_tree));
    PCL_TRY(check_flag("rotary_interleaved", own->rotary_interleaved));
    if (!own->has_window) {
        /* -1 is what a description reads back as. */
        bool none =
            (own->window_left == 0 || own->window_left == -1) && (own->window_right == 0 || own->window_right == -1);
        if (!none)
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                            "window_left %d and window_right %d are set, but has_window is not", own->window_left,
                            own->window_right);
        own->window_left = own->window_right = -1;
    }
    if (own->window_left < -1 || own->window_right < -1)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "window_left %d and window_right %d must be at least -1",
                        own->window_left, own->window_right);
    if (own->causal)
        own->window_right = 0;
    if (own->rotary_dim < 0 || own->rotary_dim % 2 != 0 || own->rotary_dim > own->head_dim)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "rotary_dim %d is not an even number up to head_dim %d",
                        own->rotary_dim, own->head_dim);
    if (own->rotary_interleaved && own->rotary_dim == 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "rotary_interleaved is set, but rotary_dim is 0");
    return PAGEDCL_SUCCESS;
}

/* Why a tier for NVIDIA's GPUs does not serve an operator; NULL when it does. The first part: by its dtypes. */
static const char *nv_dtype_refusal(const pagedcl_device *device, const pagedcl_attn_desc *desc) {
    if (device->nv_capability < PCL_NV_MMA_CAPABILITY)
        return "it needs an NVIDIA GPU of compute capability 8.0";
    const bool codes = pcl_dtype_is_quantized(desc->kv_dtype);
    if (desc->q_dtype != PAGEDCL_FLOAT16 && desc->q_dtype != PAGEDCL_BFLOAT16)
        return "it needs q of float16 or bfloat16";
    if ((desc->kv_dtype != desc->q_dtype && !codes) || desc->kv_dtype == PAGEDCL_INT4)
        return "it needs keys of q's dtype or of 8 bits";
    if (desc->kv_dtype == PAGEDCL_FLOAT8_E4M3 && device->nv_capability < PCL_NV_E4M3_CAPABILITY)
        return "it needs an NVIDIA GPU of compute capability 8.9 for float8_e4m3";
    return NULL;
}

static const char *nv_mma_refusal(const pagedcl_device *device, const pagedcl_attn_desc *desc) {
    int64_t local_memory = pcl_nv_local_memory(device->nv_capability);
    const bool codes = pcl_dtype_is_quantized(desc->kv_dtype);
    const char *refusal = nv_dtype_refusal(device, desc);
    if (refusal != NULL)
        return refusal;
    /* Rows of whole 16-byte pieces; codes of longer ones, which are converted, take more registers than there are. */
    const int32_t piece = codes ? 16 : 8, most = codes ? 128 : 256;
    if (desc->head_dim % piece != 0 || desc->head_dim_v % piece != 0 || desc->head_dim > most ||
        desc->head_dim_v > most)
        return codes ? "it needs head_dim and head_dim_v of multiples of 16, up to 128, for keys of 8 bits"
                     : "it needs head_dim and head_dim_v of multiples of 8, up to 256";
    if (pcl_attn_tune_nv(local_memory, desc, true).stages == 0 ||
        pcl_attn_tune_nv(local_memory, desc, false).stages == 0)
        return "the device has too little local memory for it";
    return NULL;
}

/* The same of attn_decode_stream, whatever the other path. */
static const char *stream_refusal(const pagedcl_device *device, const pagedcl_attn_desc *desc) {
    /* Up to latent attention, whose results fill the registers. */
    enum { MOST_K = 576, MOST_V = 512 };
    const int32_t piece = pcl_dtype_is_quantized(desc->kv_dtype) ? 16 : 8;
    if (desc->head_dim % piece != 0 || desc->head_dim_v % piece != 0 || desc->head_dim > MOST_K ||
        desc->head_dim_v > MOST_V)
        return "decode needs head_dims of whole 16 bytes, up to 576 in head_dim and 512 in head_dim_v";
    if (!pcl_pool_has_maps(desc->cache) ||
        pcl_attn_tune_stream(pcl_nv_local_memory(device->nv_capability), desc).stages == 0)
        return "decode needs blocks of 8 tokens or a multiple, and strides of whole 16 bytes";
    return nv_dtype_refusal(device, desc);
}

/* Whether both paths of an operator of tier nv_wgmma may stream: latent attention, by warpgroups. */
static bool both_stream(const pagedcl_device *device, const pagedcl_attn_desc *desc) {
    return stream_refusal(device, desc) == NULL &&
           pcl_attn_tune_stream(pcl_nv_local_memory(device->nv_capability), desc).rows == PCL_WARPGROUP_ROWS;
}

/* The same of attn_varlen_wgmma. */
static const char *warpgroup_refusal(const pagedcl_device *device, const pagedcl_attn_desc *desc) {
    if (desc->kv_dtype != desc->q_dtype || desc->out_dtype != desc->q_dtype)
        return "it needs q, keys and the output of one dtype";
    if (desc->cache != NULL && desc->cache->desc.v_in_k)
        return "it needs values that are not a part of the keys";
    if (pcl_attn_tune_wgmma(pcl_nv_local_memory(device->nv_capability), desc).stages == 0)
        return "the device has too little local memory for it";
    return nv_mma_refusal(device, desc);
}

/* One of an operator's paths is to have a kernel of the tier; another may be that of nv_mma. */
static const char *nv_wgmma_refusal(const pagedcl_device *device, const pagedcl_attn_desc *desc) {
    if (device->nv_capability != PCL_NV_WGMMA_CAPABILITY)
        return "it needs an NVIDIA GPU of compute capability 9.0";
    if (desc->paths == PAGEDCL_PATH_DECODE)
        return stream_refusal(device, desc);
    if (both_stream(device, desc))
        return NULL;
    const char *refusal = warpgroup_refusal(device, desc);
    const bool streams = desc->paths == PAGEDCL_PATH_ALL && stream_refusal(device, desc) == NULL;
    return streams && nv_mma_refusal(device, desc) == NULL ? NULL : refusal;
}

/* The next simpler tier. */
static pagedcl_tier simpler(pagedcl_tier tier) {
    return tier == PAGEDCL_TIER_NV_WGMMA ? PAGEDCL_TIER_NV_MMA : PAGEDCL_TIER_PORTABLE;
}

/* What a tier for NVIDIA's GPUs does not serve runs in a simpler one, unless it was asked for by name. */
static pagedcl_status choose_nv_tier(const pagedcl_device *device, bool asked, pagedcl_attn_desc *own) {
    while (pcl_tier_is_nv(own->tier)) {
        const char *refusal =
            own->tier == PAGEDCL_TIER_NV_WGMMA ? nv_wgmma_refusal(device, own) : nv_mma_refusal(device, own);
        if (refusal == NULL)
            break;
        if (asked)
            return pcl_fail(PAGEDCL_UNSUPPORTED, "tier %s does not serve this operator: %s",
                            pagedcl_tier_name(own->tier), refusal);
        own->tier = simpler(own->tier);
    }
    return PAGEDCL_SUCCESS;
}

/* Checks a description and fills in its defaults. */
static pagedcl_status read_desc(const pagedcl_device *device, const pagedcl_attn_desc *desc, pagedcl_attn_desc *own) {
    PCL_TRY(PCL_READ_STRUCT(own, desc, tier));
    if (own->cache != NULL) {
        if (own->cache->device != device)
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "the cache is on another pagedcl_device");
        PCL_TRY(take_from_cache(own));
    }
    PCL_TRY(check_flag("device_tables", own->device_tables));
    if (own->device_tables && own->cache == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "device_tables needs a cache");
    PCL_TRY(read_shape(own));
    PCL_TRY(read_scores(own));
    if (own->paths < PAGEDCL_PATH_ALL || own->paths > PAGEDCL_PATH_DECODE ||
        (own->paths == PAGEDCL_PATH_DECODE && own->cache == NULL))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "paths %d is not one of pagedcl_path, or decode without a cache",
                        (int)own->paths);
    if (own->tier == PAGEDCL_TIER_AUTO)
        own->tier = device->info.tier;
    if (own->tier < PAGEDCL_TIER_PORTABLE || own->tier > PAGEDCL_TIER_NV_WGMMA)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "tier %d is not one of pagedcl_tier", (int)own->tier);
    return choose_nv_tier(device, pcl_tier_is_nv(desc->tier), own);
}

static bool is_wgmma(const pagedcl_attn *attn, pcl_attn_kernel which) {
    return which == PCL_ATTN_VARLEN && attn->warpgroups;
}

static bool is_stream(const pagedcl_attn *attn, pcl_attn_kernel which) {
    return (which == PCL_ATTN_VARLEN && attn->varlen_streams) || (which == PCL_ATTN_DECODE && attn->streams);
}

/* The kernel of an operator that stands for `which`. */
static const char *kernel_name(const pagedcl_attn *attn, pcl_attn_kernel which) {
    if (is_wgmma(attn, which))
        return "attn_varlen_wgmma";
    if (is_stream(attn, which))
        return which == PCL_ATTN_DECODE ? "attn_decode_stream" : "attn_varlen_stream";
    return kernel_names[which];
}

/* The macros that all kernels of the operator share. */
static void name_shape(pagedcl_attn *attn, pcl_attn_kernel which) {
    const pagedcl_attn_desc *desc = &attn->desc;
    pcl_variant *variant = &attn->variants[which];
    pcl_variant_init(variant, kernel_name(attn, which));
    pcl_variant_int(variant, "NUM_HEADS", desc->num_heads);
    if (desc->cache != NULL && which != PCL_ATTN_MERGE) {
        pcl_cache_macros(desc->cache, variant);
    } else {
        pcl_variant_int(variant, "NUM_KV_HEADS", desc->num_kv_heads);
        pcl_variant_int(variant, "HEAD_DIM", desc->head_dim);
        pcl_variant_int(variant, "HEAD_DIM_V", desc->head_dim_v);
        pcl_variant_dtype(variant, "KV_DTYPE", desc->kv_dtype);
    }
    pcl_variant_dtype(variant, "Q_DTYPE", desc->q_dtype);
    pcl_variant_dtype(variant, "OUT_DTYPE", desc->out_dtype);
    pcl_variant_int(variant, "TUNE_WG", attn->tuning[which].work_group);
}

static void name_rotary(pagedcl_attn *attn, pcl_attn_kernel which) {
    pcl_variant_int(&attn->variants[which], "ROTARY_DIM", attn->desc.rotary_dim);
    pcl_variant_int(&attn->variants[which], "ROTARY_INTERLEAVED", attn->desc.rotary_interleaved);
}

static void name_attention(pagedcl_attn *attn, pcl_attn_kernel which) {
    const pagedcl_attn_desc *desc = &attn->desc;
    pcl_variant *variant = &attn->variants[which];
    name_shape(attn, which);
    name_rotary(attn, which);
    variant->many_registers = true;
    pcl_variant_int(variant, "TIER_CPU", desc->tier == PAGEDCL_TIER_CPU);
    pcl_variant_int(variant, "TIER_NV_MMA", pcl_tier_is_nv(desc->tier));
    if (which == PCL_ATTN_VARLEN)
        pcl_variant_int(variant, "WITH_PAGED", desc->cache != NULL);
    pcl_variant_int(variant, "WITH_SOFTCAP", desc->softcap != 0);
    pcl_variant_int(variant, "WITH_ALIBI", desc->has_alibi);
    pcl_variant_int(variant, "WITH_SINKS", desc->has_sinks);
    pcl_variant_int(variant, "WITH_TREE", desc->has_tree);
    pcl_variant_int(variant, "WITH_GUARD", desc->device_tables);
    pcl_variant_int(variant, "TUNE_ROWS", attn->tuning[which].rows);
    pcl_variant_int(variant, "TUNE_KEYS", attn->tuning[which].keys);
    pcl_variant_int(variant, "TUNE_FEW_ROWS", attn->tuning[which].few_rows);
    if (desc->tier == PAGEDCL_TIER_PORTABLE && which == PCL_ATTN_DECODE) {
        int32_t team = pcl_attn_team(&attn->device->info, desc, &attn->tuning[which]);
        pcl_variant_int(variant, "TUNE_TEAM", team);
        variant->most_registers = team > 0 ? pcl_attn_team_registers(&attn->tuning[which]) : 0;
    }
    if (desc->tier == PAGEDCL_TIER_CPU)
        pcl_variant_int(variant, "TUNE_LANES", attn->tuning[which].lanes);
    if (pcl_tier_is_nv(desc->tier)) {
        pcl_variant_int(variant, "TUNE_WARP_ROWS", attn->tuning[which].warp_rows);
        pcl_variant_int(variant, "TUNE_STAGES", attn->tuning[which].stages);
    }
    if (is_wgmma(attn, which)) {
        variant->for_hopper = true;
        pcl_variant_int(variant, "WITH_MAPS", pcl_attn_has_maps(attn));
    } else if (is_stream(attn, which)) {
        variant->for_hopper = true;
    }
    bool small_thread =
        attn->device->quirks.registers_on_request && attn->tuning[which].work_group >= WORK_ITEMS_OF_A_THREAD;
    pcl_variant_int(variant, "TUNE_SUB_GROUP", small_thread ? WORK_ITEMS_OF_A_THREAD : 0);
}

static bool is_path(pcl_attn_kernel which) {
    return which == PCL_ATTN_VARLEN || which == PCL_ATTN_DECODE;
}

/* Puts what the device's tuning database has of the operator's kernels in place of its own sizes; false: nothing. */
static bool take_tuning(pagedcl_attn *attn) {
    pagedcl_device *device = attn->device;
    bool taken = false;
    for (int i = 0; i < PCL_ATTN_KERNELS; i++) {
        char family[PCL_FAMILY_SIZE];
        pcl_attn_tuning tuning = attn->tuning[i];
        if (!is_path((pcl_attn_kernel)i) || is_wgmma(attn, (pcl_attn_kernel)i) ||
            (i == PCL_ATTN_VARLEN && attn->varlen_streams))
            continue;
        pcl_tuning_family(&attn->desc, kernel_names[i], family);
        pcl_mutex_lock(&device->lock);
        bool found = pcl_tuning_find(&device->tuned, family, &tuning);
        pcl_mutex_unlock(&device->lock);
        if (!found)
            continue;
        bool fits = pcl_attn_tuning_fits(&device->info, pcl_nv_local_memory(device->nv_capability), &attn->desc,
                                         &tuning, i == PCL_ATTN_DECODE);
        if (!fits)
            pcl_log(device, PAGEDCL_LOG_WARNING, "an operator cannot have the tuned sizes of %s", family);
        else
            attn->tuning[i] = tuning;
        taken = taken || fits;
    }
    return taken;
}

/* The variants with work-groups of that size, or as the device's tuning database has them; false: it has nothing. */
static bool name_variants(pagedcl_attn *attn, int32_t work_group, bool tuned) {
    const pagedcl_attn_desc *desc = &attn->desc;
    const pagedcl_device_info *info = &attn->device->info;
    const bool is_wgmma_tier = desc->tier == PAGEDCL_TIER_NV_WGMMA;
    attn->streams = is_wgmma_tier && stream_refusal(attn->device, desc) == NULL;
    attn->varlen_streams = is_wgmma_tier && both_stream(attn->device, desc);
    attn->warpgroups = is_wgmma_tier && warpgroup_refusal(attn->device, desc) == NULL;
    int32_t group = desc->num_heads / desc->num_kv_heads;
    int32_t small = work_group < SMALL_WORK_GROUP ? work_group : SMALL_WORK_GROUP;
    /* Accumulators of more rows than that do not fit the registers of Intel's GPUs. */
    int32_t rows = attn->device->quirks.registers_on_request ? PCL_MAX_ROWS / 2 : PCL_MAX_ROWS;
    if (pcl_tier_is_nv(desc->tier)) {
        int64_t local_memory = pcl_nv_local_memory(attn->device->nv_capability);
        attn->tuning[PCL_ATTN_VARLEN] = attn->varlen_streams ? pcl_attn_tune_stream(local_memory, desc)
                                        : attn->warpgroups   ? pcl_attn_tune_wgmma(local_memory, desc)
                                                             : pcl_attn_tune_nv(local_memory, desc, true);
        attn->tuning[PCL_ATTN_DECODE] =
            attn->streams ? pcl_attn_tune_stream(local_memory, desc) : pcl_attn_tune_nv(local_memory, desc, false);
    } else if (desc->tier == PAGEDCL_TIER_CPU) {
        int lanes = attn->device->float_lanes;
        attn->tuning[PCL_ATTN_VARLEN] = pcl_attn_tune_cpu(lanes, desc, PCL_MAX_CPU_ROWS, PCL_MAX_CPU_ROWS);
        attn->tuning[PCL_ATTN_DECODE] = pcl_attn_tune_cpu(lanes, desc, group < rows ? group : rows, rows);
    } else {
        attn->tuning[PCL_ATTN_VARLEN] = pcl_attn_tune(info, desc, rows, rows, work_group);
        attn->tuning[PCL_ATTN_DECODE] = pcl_attn_tune_team(info, desc, group, work_group);
        if (attn->tuning[PCL_ATTN_DECODE].rows == 0)
            attn->tuning[PCL_ATTN_DECODE] = pcl_attn_tune(info, desc, group < rows ? group : rows, rows, work_group);
    }
    attn->tuning[PCL_ATTN_MERGE] = (pcl_attn_tuning){.work_group = desc->tier == PAGEDCL_TIER_CPU ? 1 : small};
    attn->tuning[PCL_ATTN_APPEND] = attn->tuning[PCL_ATTN_TABLES] = attn->tuning[PCL_ATTN_MERGE];
    if (tuned && !take_tuning(attn))
        return false;
    name_attention(attn, PCL_ATTN_VARLEN);
    name_attention(attn, PCL_ATTN_DECODE);
    name_shape(attn, PCL_ATTN_MERGE);
    pcl_variant_int(&attn->variants[PCL_ATTN_MERGE], "WITH_SINKS", desc->has_sinks);
    name_shape(attn, PCL_ATTN_APPEND);
    name_rotary(attn, PCL_ATTN_APPEND);
    pcl_variant_int(&attn->variants[PCL_ATTN_APPEND], "WITH_GUARD", desc->device_tables);
    if (desc->device_tables)
        name_shape(attn, PCL_ATTN_TABLES);
    if (pcl_attn_has_maps(attn))
        pcl_attn_maps_variant(attn, &attn->variants[PCL_ATTN_MAPS]);
    return true;
}

/* Whether the operator's plans launch the kernel. */
static bool is_used(const pagedcl_attn *attn, pcl_attn_kernel which) {
    bool paged = attn->desc.cache != NULL;
    bool varlen = attn->desc.paths != PAGEDCL_PATH_DECODE, decode = attn->desc.paths != PAGEDCL_PATH_VARLEN;
    switch (which) {
    case PCL_ATTN_VARLEN:
        return varlen;
    case PCL_ATTN_APPEND:
        return varlen && paged;
    case PCL_ATTN_TABLES:
        return attn->desc.device_tables != 0;
    case PCL_ATTN_MAPS:
        return pcl_attn_has_maps(attn);
    case PCL_ATTN_MERGE:
        return decode && paged && !pcl_tier_is_nv(attn->desc.tier);
    default:
        return decode && paged;
    }
}

/* Builds the programs of the kernels that are used, at once. */
static pagedcl_status build_programs(pagedcl_attn *attn) {
    pcl_variant variants[PCL_ATTN_KERNELS];
    cl_program programs[PCL_ATTN_KERNELS] = {NULL};
    size_t count = 0;
    for (int i = 0; i < PCL_ATTN_KERNELS; i++)
        if (is_used(attn, (pcl_attn_kernel)i))
            variants[count++] = attn->variants[i];
    PCL_TRY(pcl_variants_build(attn->device, variants, count, programs));
    count = 0;
    for (int i = 0; i < PCL_ATTN_KERNELS; i++)
        if (is_used(attn, (pcl_attn_kernel)i))
            attn->programs[i] = programs[count++];
    return PAGEDCL_SUCCESS;
}

static void release_programs(pagedcl_attn *attn) {
    for (int i = 0; i < PCL_ATTN_KERNELS; i++) {
        if (attn->programs[i] != NULL)
            clReleaseProgram(attn->programs[i]);
        attn->programs[i] = NULL;
    }
}

/* Whether the device runs every kernel with its work-group: registers may allow less than the device's limit. */
static pagedcl_status fits_work_group(const pagedcl_attn *attn, bool *fits) {
    *fits = true;
    for (int i = 0; i < PCL_ATTN_KERNELS; i++) {
        /* Of a kernel whose work-items trade registers the driver counts those of the ones that have most. */
        if (attn->programs[i] == NULL || is_wgmma(attn, (pcl_attn_kernel)i) || is_stream(attn, (pcl_attn_kernel)i))
            continue;
        cl_kernel kernel = NULL;
        PCL_TRY(pcl_variant_kernel(&attn->variants[i], attn->programs[i], &kernel));
        size_t limit = 0;
        cl_int code =
            clGetKernelWorkGroupInfo(kernel, attn->device->id, CL_KERNEL_WORK_GROUP_SIZE, sizeof limit, &limit, NULL);
        clReleaseKernel(kernel);
        if (code != CL_SUCCESS)
            return pcl_fail_opencl(code, "clGetKernelWorkGroupInfo");
        *fits = *fits && limit >= (size_t)attn->tuning[i].work_group;
    }
    return PAGEDCL_SUCCESS;
}

/* The largest work-group of the portable tier that the device has. */
static int32_t largest_work_group(const pagedcl_attn *attn) {
    int32_t work_group = PCL_MAX_WORK_GROUP;
    while ((uint64_t)work_group > attn->device->info.max_work_group_size && work_group > 1)
        work_group /= 2;
    return work_group;
}

/* Builds the kernels as they are named. False when they do not build or run: the log says why the operator has `loss`. */
static bool try_programs(pagedcl_attn *attn, const char *loss) {
    bool fits = false;
    pagedcl_status status = build_programs(attn);
    if (status == PAGEDCL_SUCCESS)
        status = fits_work_group(attn, &fits);
    if (status == PAGEDCL_SUCCESS && fits)
        return true;
    pcl_log(attn->device, PAGEDCL_LOG_WARNING, "an operator %s: %s", loss,
            status != PAGEDCL_SUCCESS ? pagedcl_last_error() : "its kernels have too many registers");
    release_programs(attn);
    return false;
}

/* Whether the kernels of the operator's tier for NVIDIA's GPUs build and run. */
static bool try_nv_tier(pagedcl_attn *attn) {
    char loss[64];
    snprintf(loss, sizeof loss, "runs as %s, not %s", pagedcl_tier_name(simpler(attn->desc.tier)),
             pagedcl_tier_name(attn->desc.tier));
    name_variants(attn, PCL_MAX_WORK_GROUP, false);
    return try_programs(attn, loss);
}

/* Builds with the largest work-group that the device and then the kernels allow. */
static pagedcl_status build(pagedcl_attn *attn, bool tier_asked) {
    if (name_variants(attn, largest_work_group(attn), true) && try_programs(attn, "cannot have its tuned sizes"))
        return PAGEDCL_SUCCESS;
    for (; pcl_tier_is_nv(attn->desc.tier); attn->desc.tier = simpler(attn->desc.tier)) {
        if (try_nv_tier(attn))
            return PAGEDCL_SUCCESS;
        if (tier_asked)
            return pcl_fail(PAGEDCL_BUILD_FAILED, "tier %s was asked for and cannot be built: the log says why",
                            pagedcl_tier_name(attn->desc.tier));
    }
    for (int32_t work_group = largest_work_group(attn); work_group > 0; work_group /= 2) {
        name_variants(attn, work_group, false);
        release_programs(attn);
        PCL_TRY(build_programs(attn));
        bool fits = false;
        PCL_TRY(fits_work_group(attn, &fits));
        if (fits)
            return PAGEDCL_SUCCESS;
    }
    return pcl_fail(PAGEDCL_UNSUPPORTED, "%s runs the attention kernels in no work-group, not even of 1",
                    attn->device->info.device_name);
}

pagedcl_status pagedcl_attn_create(pagedcl_device *device, const pagedcl_attn_desc *desc, pagedcl_attn **out) {
    if (device == NULL || out == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "device and attn must not be NULL");
    pagedcl_attn_desc own;
    PCL_TRY(read_desc(device, desc, &own));
    pagedcl_attn *attn = calloc(1, sizeof *attn);
    if (attn == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for an operator");
    atomic_init(&attn->references, 1);
    attn->device = pcl_device_retain(device);
    attn->desc = own;
    if (own.cache != NULL)
        pcl_cache_retain(own.cache);
    pagedcl_status status = build(attn, pcl_tier_is_nv(desc->tier));
    if (status == PAGEDCL_SUCCESS && attn->programs[PCL_ATTN_MAPS] != NULL)
        status = pcl_attn_maps_make(attn);
    if (status == PAGEDCL_SUCCESS)
        status = pcl_warm_attn(attn);
    if (status != PAGEDCL_SUCCESS) {
        pagedcl_attn_destroy(attn);
        return status;
    }
    *out = attn;
    return PAGEDCL_SUCCESS;
}

pagedcl_attn *pcl_attn_retain(pagedcl_attn *attn) {
    atomic_fetch_add(&attn->references, 1);
    return attn;
}

void pagedcl_attn_destroy(pagedcl_attn *attn) {
    if (attn == NULL || atomic_fetch_sub(&attn->references, 1) > 1)
        return;
    release_programs(attn);
    if (attn->maps != NULL)
        clReleaseMemObject(attn->maps);
    pagedcl_cache_destroy(attn->desc.cache);
    pagedcl_device_destroy(attn->device);
    free(attn);
}

pagedcl_status pagedcl_attn_get_desc(const pagedcl_attn *attn, pagedcl_attn_desc *desc) {
    if (attn == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "attn is NULL");
    return PCL_FILL_STRUCT(desc, &attn->desc, tier);
}

pagedcl_status pagedcl_attn_get_tuning(const pagedcl_attn *attn, pagedcl_path path, char *line, size_t size) {
    if (attn == NULL || line == NULL || size == 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "attn and line must not be NULL, nor size 0");
    if (path != PAGEDCL_PATH_VARLEN && path != PAGEDCL_PATH_DECODE)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "path %d is neither varlen nor decode", (int)path);
    pcl_attn_kernel which = path == PAGEDCL_PATH_VARLEN ? PCL_ATTN_VARLEN : PCL_ATTN_DECODE;
    if (attn->programs[which] == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "the operator does not have that path");
    pcl_tuning_entry entry = {.tuning = attn->tuning[which]};
    pcl_tuning_family(&attn->desc, kernel_names[which], entry.family);
    pcl_tuning_line(&attn->device->info, &entry, line, size);
    return PAGEDCL_SUCCESS;
}
