/* SPDX-License-Identifier: Apache-2.0 */
/* The TUNE_ values of the attention kernels on a device. */
#ifndef PCL_ATTN_TUNING_H
#define PCL_ATTN_TUNING_H

#include <pagedcl/attn.h>

#include <stdbool.h>

/* All but stages are powers of two. */
typedef struct pcl_attn_tuning {
    int32_t work_group; /* TUNE_WG */
    int32_t rows;       /* TUNE_ROWS, query rows of a tile: at most work_group in the portable tier */
    int32_t keys;       /* TUNE_KEYS of a tile: likewise */
    int32_t few_rows;   /* TUNE_FEW_ROWS: rows that a tile of one sequence has; at most `rows` */
    int32_t lanes;      /* TUNE_LANES of tier cpu: floats in a vector, 8 or 16 */
    int32_t warp_rows;  /* TUNE_WARP_ROWS of tier nv_mma: rows of a warp */
    int32_t stages;     /* TUNE_STAGES of tier nv_mma: tiles in local memory, of a warp or a work-group */
} pcl_attn_tuning;

/* Keys of one split of decode attention. Fixed, so that a sequence is cut in the same places in every batch. Tiles of
   PCL_WARPGROUP_ROWS rows have longer ones: their partial results take as long as many keys. */
enum { PCL_SPLIT_KEYS = 512, PCL_WARPGROUP_SPLIT_KEYS = 2048, PCL_WARPGROUP_ROWS = 64 };

static inline int32_t pcl_attn_split_keys(const pcl_attn_tuning *decode) {
    return decode->rows == PCL_WARPGROUP_ROWS ? PCL_WARPGROUP_SPLIT_KEYS : PCL_SPLIT_KEYS;
}

enum { PCL_MAX_WORK_GROUP = 128, PCL_MAX_ROWS = 16, PCL_MAX_CPU_ROWS = 64 };

/*
 * The largest tile of the portable tier that the device's local memory holds, for problems of about `rows` rows of an
 * operator whose shape is complete. work_group: a power of two up to PCL_MAX_WORK_GROUP.
 * most_rows: a tile may have up to that many, for several sequences, where they cost no keys of it, and no more than a
 * quarter more local memory: less of a compute unit's means fewer work-groups on it, whose tiles are mostly of one.
 */
pcl_attn_tuning pcl_attn_tune(const pagedcl_device_info *info, const pagedcl_attn_desc *desc, int32_t rows,
                              int32_t most_rows, int32_t work_group);

/*
 * The same for decode of few rows, where cl/lib/attn_team.h serves the operator; else rows is 0. Tiles have rows for
 * several sequences where a row costs little: where one sequence has fewer than 4.
 */
pcl_attn_tuning pcl_attn_tune_team(const pagedcl_device_info *info, const pagedcl_attn_desc *desc, int32_t rows,
                                   int32_t work_group);

/* TUNE_TEAM of decode with these values: the work-items that read a row together; 0: cl/lib/attn_tile.h runs it. */
int32_t pcl_attn_team(const pagedcl_device_info *info, const pagedcl_attn_desc *desc, const pcl_attn_tuning *tuning);

/* Registers of 32 bits that a work-item of a team needs at most: as few as allow many of them. */
int32_t pcl_attn_team_registers(const pcl_attn_tuning *tuning);

/* The same for tier cpu. float_lanes: as pcl_float_lanes; rows and most_rows: at most PCL_MAX_CPU_ROWS. */
pcl_attn_tuning pcl_attn_tune_cpu(int float_lanes, const pagedcl_attn_desc *desc, int32_t rows, int32_t most_rows);

/*
 * The same for tier nv_mma. local_memory: bytes that a work-group may declare. many_rows: varlen; otherwise decode.
 * stages is 0 when nothing fits.
 */
pcl_attn_tuning pcl_attn_tune_nv(int64_t local_memory, const pagedcl_attn_desc *desc, bool many_rows);

/* The same for cl/attn_decode_stream.cl, and how many of its work-groups a compute unit has local memory for at once. */
pcl_attn_tuning pcl_attn_tune_stream(int64_t local_memory, const pagedcl_attn_desc *desc);
int32_t pcl_attn_stream_groups(int64_t local_memory, const pagedcl_attn_desc *desc, const pcl_attn_tuning *tuning);

/* The same for the varlen kernel of tier nv_wgmma. */
pcl_attn_tuning pcl_attn_tune_wgmma(int64_t local_memory, const pagedcl_attn_desc *desc);

/*
 * Whether an operator's kernel, of decode or else of varlen, can run with these values on the device. local_memory: of
 * pcl_nv_local_memory, for tier nv_mma.
 */
bool pcl_attn_tuning_fits(const pagedcl_device_info *info, int64_t local_memory, const pagedcl_attn_desc *desc,
                          const pcl_attn_tuning *tuning, bool decode);

#endif
