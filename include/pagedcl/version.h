/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PAGEDCL_VERSION_H
#define PAGEDCL_VERSION_H

#include <pagedcl/export.h>

#define PAGEDCL_VERSION_MAJOR 0
#define PAGEDCL_VERSION_MINOR 1
#define PAGEDCL_VERSION_PATCH 0
#define PAGEDCL_VERSION_STRING "0.1.0"

/* Of what attn.h and cache.h promise of results. Another one: measurements are of something else. */
#define PAGEDCL_CONTRACT_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library that is loaded, "major.minor.patch"; compare with PAGEDCL_VERSION_STRING. */
PAGEDCL_API const char *pagedcl_version(void);

#ifdef __cplusplus
}
#endif
#endif
