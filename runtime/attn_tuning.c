/* SPDX-License-Identifier: Apache-2.0 */
#include "attn_tuning.h"

#include "attn_maps.h"
#include "cache.h"
#include "dtype.h"
#include "nv_probe.h"
#include "quirks.h"

#include <stdbool.h>

/* The library's own choice, and what a tuning database may ask for. */
enum { MAX_KEYS = 32, MOST_KEYS = 128 };

/* Two work-groups of this much fit a compute unit of most GPUs; 32 KiB is what every full-profile device has. */
enum { LOCAL_MEMORY = 48 * 1024 };

static int32_t power_of_two_from(int32_t value) {
    int32_t power = 1;
    while (power < value)
        power *= 2;
    return power;
}

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static int32_t padded(int32_t head_dim) {
    return (head_dim + 7) / 8 * 8;
}

/* What TILE_MEMORY of cl/lib/attn_tile.h declares, in bytes. */
static int64_t tile_memory(const pcl_attn_tuning *tuning, const pagedcl_attn_desc *desc) {
    int32_t k = padded(desc->head_dim), v = padded(desc->head_dim_v);
    int64_t floats = (int64_t)tuning->rows * k + (int64_t)tuning->keys * ((k > v ? k : v) + 1) +
                     (int64_t)tuning->rows * (tuning->keys + 1) + tuning->work_group + tuning->rows;
    return floats * 4;
}

static pcl_attn_tuning tune(const pagedcl_device_info *info, const pagedcl_attn_desc *desc, int32_t rows,
                            int32_t work_group) {
    pcl_attn_tuning tuning = {.rows = least(power_of_two_from(rows), PCL_MAX_ROWS), .keys = MAX_KEYS};
    tuning.work_group = work_group;
    tuning.rows = least(tuning.rows, tuning.work_group);
    tuning.keys = least(tuning.keys, tuning.work_group);
    int64_t budget = info->local_memory < LOCAL_MEMORY ? (int64_t)info->local_memory : LOCAL_MEMORY;
    while (tile_memory(&tuning, desc) > budget && (tuning.keys > 1 || tuning.rows > 1)) {
        /* Keys down to half a full tile, then rows, then what is left. */
        if (tuning.keys > MAX_KEYS / 2 || tuning.rows == 1)
            tuning.keys /= 2;
        else
            tuning.rows /= 2;
    }
    /* No work-item without a score. */
    tuning.work_group = least(tuning.work_group, tuning.rows * tuning.keys);
    return tuning;
}

pcl_attn_tuning pcl_attn_tune(const pagedcl_device_info *info, const pagedcl_attn_desc *desc, int32_t rows,
                              int32_t most_rows, int32_t work_group) {
    pcl_attn_tuning alone = tune(info, desc, rows, work_group), tuning = alone;
    for (int32_t more = most_rows; more > alone.rows && tuning.rows == alone.rows; more /= 2) {
        pcl_attn_tuning shared = tune(info, desc, more, work_group);
        bool is_cheap = tile_memory(&shared, desc) * 4 <= tile_memory(&alone, desc) * 5;
        if (shared.rows == more && shared.keys == alone.keys && is_cheap)
            tuning = shared;
    }
    tuning.few_rows = alone.rows;
    return tuning;
}

/* Rows of a tile and keys of a team beyond which the registers of GPUs do not hold what a work-item has of them; rows
   where it has the scales of rows, too. */
enum { MOST_TEAM_ROWS = 8, MOST_SCALED_TEAM_ROWS = 4, MOST_TEAM_KEYS = 8 };

/* Of which two fit the local memory of most GPUs' compute units. */
enum { TEAM_LOCAL_MEMORY = 32 * 1024 };

/* Work-items that read a row, 8 elements each; 0: none do. */
static int32_t team_of(const pagedcl_device_info *info, const pagedcl_attn_desc *desc) {
    const int32_t widest = desc->head_dim > desc->head_dim_v ? desc->head_dim : desc->head_dim_v;
    const bool whole = desc->head_dim % 8 == 0 && desc->head_dim_v % 8 == 0;
    /* The registers of Intel's GPUs hold no accumulators beside what is on its way. */
    if (desc->cache == NULL || !whole || widest > 256 || pcl_quirks_of(info).registers_on_request)
        return 0;
    return widest > 128 ? 32 : widest > 64 ? 16 : 8;
}

int32_t pcl_attn_team(const pagedcl_device_info *info, const pagedcl_attn_desc *desc, const pcl_attn_tuning *tuning) {
    const int32_t team = team_of(info, desc), teams = team > 0 ? tuning->work_group / team : 0;
    if (teams < 2)
        return 0;
    const bool scaled = desc->kv_dtype == PAGEDCL_INT4 || desc->cache->desc.scale_per_row != 0;
    const bool serves = tuning->rows <= (scaled ? MOST_SCALED_TEAM_ROWS : MOST_TEAM_ROWS) && tuning->keys >= teams &&
                        tuning->keys <= teams * MOST_TEAM_KEYS;
    return serves ? team : 0;
}

int32_t pcl_attn_team_registers(const pcl_attn_tuning *tuning) {
    /* A multiprocessor has 65,536: for four work-groups of 128, or three where the accumulators take 64 each. */
    return tuning->rows > 4 ? 168 : 128;
}

/* What TILE_MEMORY of cl/lib/attn_team.h declares, in bytes. */
static int64_t team_memory(const pcl_attn_tuning *tuning, int32_t team) {
    const int64_t teams = tuning->work_group / team, scores = tuning->keys / teams * tuning->rows;
    const int64_t parts = teams * ((scores * (team + 4) + 31) / 32 * 32 + team % 32);
    const int64_t ends = INT64_C(16) * tuning->work_group;
    const int64_t team_scores = (teams * scores + 3) / 4 * 4;
    return (INT64_C(8) * tuning->rows * team + (parts > ends ? parts : ends) + 2 * team_scores + tuning->work_group) *
           4;
}

pcl_attn_tuning pcl_attn_tune_team(const pagedcl_device_info *info, const pagedcl_attn_desc *desc, int32_t rows,
                                   int32_t work_group) {
    const int64_t budget =
        info->local_memory < TEAM_LOCAL_MEMORY ? (int64_t)info->local_memory : (int64_t)TEAM_LOCAL_MEMORY;
    const int32_t few_rows = power_of_two_from(rows);
    pcl_attn_tuning tuning = {.work_group = work_group, .rows = few_rows > 4 ? few_rows : 4, .few_rows = few_rows};
    /* A work-item has about as many bytes on their way whatever the dtype, but no more keys than registers for them. */
    const int32_t size = desc->kv_dtype == PAGEDCL_INT4 ? 1 : (int32_t)pagedcl_dtype_size(desc->kv_dtype);
    const int32_t team = team_of(info, desc);
    const int32_t bytes = tuning.rows > 4 ? 4 : 8;
    for (int32_t team_keys = bytes / (size == 1 ? 2 : size); team > 0 && team_keys > 0; team_keys /= 2) {
        tuning.keys = work_group / team * team_keys;
        if (pcl_attn_team(info, desc, &tuning) > 0 && team_memory(&tuning, team) <= budget)
            return tuning;
    }
    return (pcl_attn_tuning){0};
}

pcl_attn_tuning pcl_attn_tune_cpu(int float_lanes, const pagedcl_attn_desc *desc, int32_t rows, int32_t most_rows) {
    /* Rows of q and of the result together, in elements: a part of a core's second-level cache. */
    enum { TILE_ELEMENTS = 16384 };
    int32_t row = padded(desc->head_dim) + padded(desc->head_dim_v);
    pcl_attn_tuning tuning = {.work_group = 1, .keys = MAX_KEYS, .lanes = float_lanes >= 16 ? 16 : 8};
    /* Decode: a tile of several KV heads, and what is fetched of the next, in the second-level cache. */
    if (rows < PCL_MAX_CPU_ROWS && desc->kv_dtype != PAGEDCL_FLOAT32 && row <= 256)
        tuning.keys = 2 * MAX_KEYS;
    tuning.few_rows = least(power_of_two_from(rows), most_rows);
    while (tuning.few_rows > PCL_MAX_ROWS && tuning.few_rows * row > TILE_ELEMENTS)
        tuning.few_rows /= 2;
    tuning.rows = most_rows > rows ? most_rows : tuning.few_rows;
    return tuning;
}

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Rows in local memory as tier nv_mma has them there. Pitches, from row to row, are in units of 16 bits. */
typedef struct nv_rows {
    int64_t q_pitch, k_pitch, v_pitch; /* v_pitch 0: values are in the keys' rows */
    int64_t q_parts;
    int64_t result_bytes; /* of a row of results */
    bool scaled;          /* keys have scales of their own */
} nv_rows;

static bool is_v_in_k(const pagedcl_attn_desc *desc) {
    return desc->cache != NULL && desc->cache->desc.v_in_k;
}

static nv_rows nv_rows_of(const pagedcl_attn_desc *desc) {
    const int64_t k_steps = (desc->head_dim + 15) / 16, v_steps = (desc->head_dim_v + 15) / 16;
    const bool codes = pcl_dtype_is_quantized(desc->kv_dtype);
    return (nv_rows){
        .q_pitch = (2 * k_steps + 1) * 8,
        .k_pitch = codes ? (k_steps | 1) * 8 : (2 * k_steps + 1) * 8,
        .v_pitch = is_v_in_k(desc) ? 0
                   : codes         ? (v_steps | 1) * 8
                                   : (2 * v_steps + 1) * 8,
        .q_parts = desc->out_dtype == PAGEDCL_FLOAT32 && desc->rotary_dim > 0 ? 2 : 1,
        .result_bytes = (v_steps * 2 + 7) / 8 * 256,
        .scaled = codes && desc->cache->desc.scale_per_row,
    };
}

/* What TILE_MEMORY of cl/nv/attn_tile.h declares, in bytes. */
static int64_t nv_tile_memory(const pcl_attn_tuning *tuning, const pagedcl_attn_desc *desc) {
    const nv_rows r = nv_rows_of(desc);
    const int64_t rows = tuning->rows, keys = tuning->keys;
    const int64_t key_warps = tuning->work_group / 32 / (rows / tuning->warp_rows);
    int64_t ring = tuning->stages * keys * (r.k_pitch + r.v_pitch) * 2;
    /* Of each row its address, and where it has a scale of its own that one's, and the scale. */
    int64_t row = r.scaled ? 20 : 8;
    return most(ring, key_warps * rows * r.result_bytes) + r.q_parts * rows * r.q_pitch * 2 +
           tuning->stages * keys * 2 * row + 4 + key_warps * 8 * rows + 8;
}

/* HELPERS of cl/nv/stream.h; and what the tiles of a stream by warpgroups are (cl/nv/stream_warpgroups.h). */
enum { STREAM_HELPERS = 128, WARPGROUPS_KEYS = 64, WARPGROUPS_WORKERS = 256 };

/* What cl/attn_decode_stream.cl declares, in bytes. */
static int64_t stream_memory(const pcl_attn_tuning *tuning, const pagedcl_attn_desc *desc) {
    const nv_rows r = nv_rows_of(desc);
    const int64_t rows = tuning->rows, warps = (tuning->work_group - STREAM_HELPERS) / 32, stages = tuning->stages;
    const int64_t panel_row = 128, barrier = 8, problem = 68 + barrier, panels_end = 1024;
    const int64_t merge = 2 * (rows * 8 + 8);
    const int64_t q = r.q_parts * rows * r.q_pitch * 2 + barrier;
    const int64_t size = (int64_t)pagedcl_dtype_size(desc->kv_dtype);
    const int64_t k_panels = (desc->head_dim * size + panel_row - 1) / panel_row;
    const int64_t v_panels = is_v_in_k(desc) ? 0 : (desc->head_dim_v * size + panel_row - 1) / panel_row;
    if (rows == PCL_WARPGROUP_ROWS)
        return (rows + stages * tuning->keys) * k_panels * panel_row + rows * panel_row + rows * 4 +
               (stages + 4) * problem + (2 * stages + 6) * barrier + merge;
    const int64_t panels = k_panels + v_panels, scales = r.scaled ? tuning->keys * (v_panels > 0 ? 8 : 4) : 0;
    const int64_t filled = most(tuning->keys / warps * panels * panel_row, rows * r.result_bytes);
    const int64_t stage = warps * ((filled + panels_end - 1) / panels_end * panels_end) + 2 * barrier;
    return stages * (stage + scales) + (stages + 2) * q + (stages + 4) * problem + 5 * barrier + 2 * warps * rows * 8 +
           merge;
}

int32_t pcl_attn_stream_groups(int64_t local_memory, const pagedcl_attn_desc *desc, const pcl_attn_tuning *tuning) {
    /* A compute unit has what a work-group may have and what the driver takes for one, which it takes for each; and registers
       for 8 warps of 255. */
    enum { OF_DRIVER = 1024, MOST_WARPS = 8 };
    int64_t groups = (local_memory + OF_DRIVER) / (stream_memory(tuning, desc) + OF_DRIVER);
    int64_t most_groups = MOST_WARPS * 32 / tuning->work_group;
    return (int32_t)(groups < 1 || most_groups < 1 ? 1 : groups < most_groups ? groups : most_groups);
}

pcl_attn_tuning pcl_attn_tune_nv(int64_t local_memory, const pagedcl_attn_desc *desc, bool many_rows) {
    pcl_attn_tuning tuning = {.work_group = 128, .rows = 16, .warp_rows = 16, .keys = 64, .stages = 3};
    if (pcl_dtype_is_quantized(desc->kv_dtype)) {
        /* As many bytes, at half as many rounds. */
        tuning.keys = 128;
        tuning.stages = 2;
    }
    if (many_rows) {
        /* The accumulators of wider rows fill the registers with 16 of them. */
        bool wide = desc->head_dim > 128 || desc->head_dim_v > 128;
        tuning = (pcl_attn_tuning){
            .work_group = 128, .rows = wide ? 64 : 128, .warp_rows = wide ? 16 : 32, .keys = 32, .stages = 3};
    }
    const int32_t least_keys = many_rows ? 16 : 64; /* 16 for each warp */
    while (tuning.stages > 0 && nv_tile_memory(&tuning, desc) > local_memory) {
        if (tuning.stages > 2)
            tuning.stages--;
        else if (tuning.keys > least_keys)
            tuning.keys /= 2;
        else if (many_rows && tuning.work_group > 32)
            tuning.rows /= 2, tuning.work_group /= 2;
        else
            tuning.stages = 0;
    }
    tuning.few_rows = tuning.rows;
    return tuning;
}

/* Whether warpgroups can be a stream's workers: latent attention. */
static bool is_for_warpgroups(const pagedcl_attn_desc *desc) {
    return is_v_in_k(desc) && !pcl_dtype_is_quantized(desc->kv_dtype) && desc->out_dtype == desc->kv_dtype &&
           desc->head_dim_v > 256 && desc->head_dim_v <= 512;
}

static pcl_attn_tuning tune_stream_warpgroups(void) {
    return (pcl_attn_tuning){.work_group = WARPGROUPS_WORKERS + STREAM_HELPERS,
                             .rows = PCL_WARPGROUP_ROWS,
                             .few_rows = PCL_WARPGROUP_ROWS,
                             .warp_rows = PCL_WARPGROUP_ROWS,
                             .keys = WARPGROUPS_KEYS,
                             .stages = 2};
}

pcl_attn_tuning pcl_attn_tune_stream(int64_t local_memory, const pagedcl_attn_desc *desc) {
    enum { MOST_STAGES = 6, WANTED_STAGES = 3, MOST_ELEMENTS = 128 };
    pcl_attn_tuning tuning = tune_stream_warpgroups();
    if (is_for_warpgroups(desc) && stream_memory(&tuning, desc) <= local_memory)
        return tuning;
    /* Codes are converted: where the registers allow it, two warps that work share a scheduler. */
    const bool more =
        pcl_dtype_is_quantized(desc->kv_dtype) && desc->head_dim <= MOST_ELEMENTS && desc->head_dim_v <= MOST_ELEMENTS;
    const int32_t workers = more ? 256 : 128;
    /* The accumulators of wider rows fill the registers with 8 of them; codes take more than elements. */
    const int32_t rows = desc->head_dim_v > (pcl_dtype_is_quantized(desc->kv_dtype) ? 128 : 256) ? 8 : 16;
    tuning =
        (pcl_attn_tuning){.work_group = workers + STREAM_HELPERS, .rows = rows, .few_rows = rows, .warp_rows = rows};
    /* As long tiles as leave room for some. */
    for (int32_t keys = workers; keys >= 64 && tuning.stages < WANTED_STAGES; keys /= 2) {
        tuning.keys = keys;
        tuning.stages = MOST_STAGES;
        while (tuning.stages > 0 && stream_memory(&tuning, desc) > local_memory)
            tuning.stages--;
    }
    if (tuning.stages < 2)
        tuning.stages = 0;
    return tuning;
}

/* MEMORY_BYTES of cl/attn_varlen_wgmma.cl. */
static int64_t wgmma_memory(const pcl_attn_tuning *tuning, const pagedcl_attn_desc *desc) {
    const int64_t panel_row = 128, k_panels = (desc->head_dim + 63) / 64, v_panels = (desc->head_dim_v + 63) / 64;
    const int64_t rows = tuning->rows, keys = tuning->keys, stages = tuning->stages;
    const int64_t ring = stages * (keys * panel_row * (k_panels + v_panels) + 48), q = rows * panel_row * k_panels;
    const int64_t zeros = 1024, lines = rows / 16 * 1024, fetchers = (keys + 1) * 32;
    const int64_t problems = INT64_C(4) * (16 * 4 + 16);
    return ring + q + zeros + lines + fetchers + problems;
}

pcl_attn_tuning pcl_attn_tune_wgmma(int64_t local_memory, const pagedcl_attn_desc *desc) {
    /* As many rows as the registers allow, since each tile of keys is read once for them: three warpgroups of 64, or two
       where results are wide; another fetches. */
    const int32_t rows = desc->head_dim_v > 128 ? 128 : 192;
    /* Where the results leave registers for more scores, longer products. */
    const int32_t keys = desc->head_dim_v > 64 ? 64 : 96;
    pcl_attn_tuning tuning = {.work_group = rows * 2 + 128, .rows = rows, .few_rows = rows, .keys = keys, .stages = 5};
    while (tuning.stages > 0 && wgmma_memory(&tuning, desc) > local_memory)
        tuning.stages = tuning.stages > 2 ? tuning.stages - 1 : 0;
    return tuning;
}

static bool is_power_of_two(int32_t value, int32_t least, int32_t most) {
    return value >= least && value <= most && power_of_two_from(value) == value;
}

static bool fits_portable(const pagedcl_device_info *info, const pagedcl_attn_desc *desc, const pcl_attn_tuning *t,
                          bool decode) {
    if (!is_power_of_two(t->work_group, 1, MOST_KEYS) || (uint64_t)t->work_group > info->max_work_group_size ||
        !is_power_of_two(t->rows, 1, least(PCL_MAX_ROWS, t->work_group)) ||
        !is_power_of_two(t->keys, 1, least(MOST_KEYS, t->work_group)))
        return false;
    const int32_t team = decode ? pcl_attn_team(info, desc, t) : 0;
    if (team > 0)
        return team_memory(t, team) <= (int64_t)info->local_memory;
    return t->work_group <= t->rows * t->keys && tile_memory(t, desc) <= (int64_t)info->local_memory;
}

static bool is_of_warps(const pcl_attn_tuning *t) {
    return is_power_of_two(t->work_group, 32, 256) && is_power_of_two(t->warp_rows, 16, 32) && t->stages >= 2 &&
           t->stages <= 8;
}

/* The warps divide the rows among them, and what is left of them the keys, 16 for each. */
static bool fits_nv(int64_t local_memory, const pagedcl_attn_desc *desc, const pcl_attn_tuning *t) {
    if (!is_of_warps(t) || !is_power_of_two(t->rows, t->warp_rows, MOST_KEYS))
        return false;
    const int32_t warps = t->work_group / 32, row_warps = t->rows / t->warp_rows;
    return row_warps <= warps && is_power_of_two(t->keys, 16 * (warps / row_warps), MOST_KEYS) &&
           nv_tile_memory(t, desc) <= local_memory;
}

/* The warps that work divide the keys, 16 or 32 for each. */
static bool fits_stream(int64_t local_memory, const pagedcl_attn_desc *desc, const pcl_attn_tuning *t) {
    const int32_t workers = t->work_group - STREAM_HELPERS;
    if (is_for_warpgroups(desc) && t->rows == PCL_WARPGROUP_ROWS)
        return workers == WARPGROUPS_WORKERS && t->keys == WARPGROUPS_KEYS && t->stages == 2 &&
               stream_memory(t, desc) <= local_memory;
    return is_power_of_two(workers, 32, 256) && is_power_of_two(t->rows, 8, 16) && t->stages >= 2 && t->stages <= 8 &&
           is_power_of_two(t->keys, workers / 2, workers) && stream_memory(t, desc) <= local_memory;
}

bool pcl_attn_tuning_fits(const pagedcl_device_info *info, int64_t local_memory, const pagedcl_attn_desc *desc,
                          const pcl_attn_tuning *tuning, bool decode) {
    if (!is_power_of_two(tuning->few_rows, 1, tuning->rows))
        return false;
    if (decode && desc->tier == PAGEDCL_TIER_NV_WGMMA && pcl_pool_has_maps(desc->cache))
        return fits_stream(local_memory, desc, tuning);
    if (pcl_tier_is_nv(desc->tier))
        return fits_nv(local_memory, desc, tuning);
    if (desc->tier == PAGEDCL_TIER_PORTABLE)
        return fits_portable(info, desc, tuning, decode);
    return tuning->work_group == 1 && is_power_of_two(tuning->lanes, 8, 16) &&
           is_power_of_two(tuning->rows, 1, PCL_MAX_CPU_ROWS) && is_power_of_two(tuning->keys, 16, MOST_KEYS);
}
