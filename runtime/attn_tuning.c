/* SPDX-License-Identifier: Apache-2.0 */
#include "attn_tuning.h"

#include <stdbool.h>

enum { MAX_KEYS = 32 };

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
    if (desc->tier == PAGEDCL_TIER_CPU) {
        tuning.work_group = 1;
        return tuning;
    }
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
        bool is_cheap =
            desc->tier == PAGEDCL_TIER_CPU || tile_memory(&shared, desc) * 4 <= tile_memory(&alone, desc) * 5;
        if (shared.rows == more && shared.keys == alone.keys && is_cheap)
            tuning = shared;
    }
    tuning.few_rows = alone.rows;
    return tuning;
}
