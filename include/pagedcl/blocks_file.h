/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences in a file: saved by one process, loaded by another one, on another device, into blocks of another size. A
 * prefix is saved by the sequence that holds it (pagedcl_prefix_seq_create), and freeing a loaded sequence leaves its
 * blocks in the prefix cache.
 *
 * The file has the geometry and the element type, each sequence's tokens, extra keys and length, and the keys and values
 * of each token with their scales, bit for bit; what sequences share is in it once. It is written under another name,
 * ends in a manifest of checksums, and takes its name when it is whole. Loading checks all of it before anything changes,
 * stored scales too. Little-endian; groups with a window load into groups with the same block size and window.
 */
#ifndef PAGEDCL_BLOCKS_FILE_H
#define PAGEDCL_BLOCKS_FILE_H

#include <pagedcl/blocks.h>
#include <pagedcl/dtype.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * What the pool of a cache group holds for a token; fields are as in its pagedcl_cache_desc, where 0 stands for the same
 * default. A file loads into the geometry that it was saved from. That is so for k_scale and v_scale too: elements of
 * another scale would have to be rounded again.
 */
typedef struct pagedcl_kv_geometry {
    int32_t num_layers;
    int32_t num_kv_heads;
    int32_t head_dim;
    pagedcl_dtype dtype;
    int32_t head_dim_v; /* 0: head_dim */
    int32_t v_in_k;
    int32_t scale_per_row;  /* of an 8-bit dtype */
    float k_scale, v_scale; /* of an 8-bit dtype without scale_per_row. 0: 1 */
} pagedcl_kv_geometry;

/*
 * The caller's transfer of slots first_slot .. first_slot + num_slots - 1 of a block, in all layers of the group: from
 * the device into kv when saving, from kv to the device when loading; done when it returns (cache_file.h has both for the
 * library's pools). kv is [num_slots, num_layers, 2 (keys, values), num_kv_heads] rows, one behind the other without
 * padding, or with v_in_k [num_slots, num_layers, num_kv_heads] rows of keys. A row is its head_dim (head_dim_v) elements,
 * for int4 ceil(head_dim / 2) bytes, and behind them the scales that are stored for it: with scale_per_row a float32,
 * for int4 ceil(head_dim / PAGEDCL_INT4_GROUP) float16. What it returns, if not SUCCESS, ends the call that called it. It
 * must not call the manager.
 */
typedef pagedcl_status (*pagedcl_kv_transfer)(void *user, int32_t group, int32_t block, int32_t first_slot,
                                              int32_t num_slots, void *kv);

/*
 * Saves sequences. geometry: one for each group. The commands that write their blocks must be complete, and must have
 * written every token up to the length: a stored scale that is not finite, or below 0, says that one was not.
 * Errors: INVALID_ARGUMENT (also: such a scale), INVALID_HANDLE, NOT_READY (a sequence is swapped out, or in the open
 * step), SIZE_OVERFLOW, OUT_OF_MEMORY, IO_ERROR; the transfer's. A file that had the name stays as it was.
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_save(pagedcl_blocks *blocks, const char *path,
                                               const pagedcl_kv_geometry *geometry, const pagedcl_seq *seqs,
                                               int64_t num_seqs, pagedcl_kv_transfer transfer, void *user);

/*
 * Loads all sequences of a file, in the order in which they were saved, into seqs[0 .. capacity); *num_seqs says how
 * many there are. Errors: INVALID_ARGUMENT (also: a step is open), CAPACITY, IO_ERROR, BAD_FILE (damaged, or no such
 * file at all, or a scale in it is not finite or below 0), UNSUPPORTED (another geometry, which the message names, or
 * another version of the format), OUT_OF_BLOCKS, NEVER_FITS, OUT_OF_MEMORY; the transfer's. A transfer
 * that fails may have cost cached blocks; nothing else changes then, nor with any other error.
 */
PAGEDCL_API pagedcl_status pagedcl_blocks_load(pagedcl_blocks *blocks, const char *path,
                                               const pagedcl_kv_geometry *geometry, pagedcl_kv_transfer transfer,
                                               void *user, pagedcl_seq *seqs, int64_t capacity, int64_t *num_seqs);

#ifdef __cplusplus
}
#endif
#endif
