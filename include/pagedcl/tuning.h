/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tuned sizes of the attention kernels. `pagedcl tune` finds out which are fast on a device and keeps them in a tuning
 * database, a text (docs/tuning.md has its form). A device that has taken one in builds operators with the sizes that
 * were found for their family (kernel, tier, head_dims, dtypes and query heads per KV head) on such a device with its
 * driver and this version of the library. Sizes that an operator cannot have, or with which it does not build, are
 * logged, and the library's own are used. They never make a result wrong, but another order of sums may give other bits:
 * the same for every batch, as always.
 */
#ifndef PAGEDCL_TUNING_H
#define PAGEDCL_TUNING_H

#include <pagedcl/attn.h>
#include <pagedcl/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Whether a text of `size` bytes is a tuning database, from beginning to end.
 * Errors: INVALID_ARGUMENT, whose message names the line; OUT_OF_MEMORY.
 */
PAGEDCL_API pagedcl_status pagedcl_tuning_check(const char *text, size_t size);

/*
 * Takes what the text has for this device, driver and version in place of everything taken before; *count (may be NULL) becomes
 * how many families that is. Operators that exist keep their sizes. An empty text leaves the library's own.
 * pagedcl_device_options.tuning does the same with a file when the device is opened.
 * Errors: as pagedcl_tuning_check; then nothing changes.
 */
PAGEDCL_API pagedcl_status pagedcl_device_tune(pagedcl_device *device, const char *text, size_t size, size_t *count);

/*
 * Writes the line of a tuning database that says what the operator's kernel of a path runs with, without a newline, cut
 * to `size` bytes with its zero byte. path: PAGEDCL_PATH_VARLEN or PAGEDCL_PATH_DECODE, which the operator must have.
 * Errors: INVALID_ARGUMENT.
 */
PAGEDCL_API pagedcl_status pagedcl_attn_get_tuning(const pagedcl_attn *attn, pagedcl_path path, char *line,
                                                   size_t size);

#ifdef __cplusplus
}
#endif
#endif
