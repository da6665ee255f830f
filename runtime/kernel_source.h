/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sources of the library's kernels: embedded by the build, or, for those who work on kernels, read from the folder
 * that the environment's PAGEDCL_KERNEL_DIR names (the tree's cl/).
 */
#ifndef PCL_KERNEL_SOURCE_H
#define PCL_KERNEL_SOURCE_H

#include <pagedcl/status.h>

#include <stddef.h>

/*
 * The complete source of cl/<name>.cl, name having `length` characters: what it includes is inside, since OpenCL
 * implementations that keep built programs do not see a change of an included file. *owned is the caller's to free,
 * NULL when the source is embedded. Errors: IO_ERROR, OUT_OF_MEMORY.
 */
pagedcl_status pcl_kernel_source(const char *name, size_t length, const char **source, char **owned);

#endif
