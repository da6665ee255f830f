/* SPDX-License-Identifier: Apache-2.0 */
/* The values of options: each is read, or refused by one line that says what it must be. They return 0 or EINVAL, as
   parsers of argp do. */
#ifndef OPTION_H
#define OPTION_H

#include <pagedcl/pagedcl.h>

#include <argp.h>

/* Tells that --option must be `wanted`; returns EINVAL. */
error_t option_bad(const char *option, const char *value, const char *wanted);

error_t option_count(const char *option, const char *value, int32_t least, int32_t most, int32_t *count);
/* A number above 0. */
error_t option_number(const char *option, const char *value, double most, double *number);

error_t option_dtype(const char *option, const char *value, pagedcl_dtype *dtype);
error_t option_tier(const char *option, const char *value, pagedcl_tier *tier);

/* What is left of a parser: its first call, and an argument of a sub-command that takes none. */
error_t option_other(int key, const char *value, struct argp_state *state);

#endif
