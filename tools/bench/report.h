/* SPDX-License-Identifier: Apache-2.0 */
/* What `pagedcl bench` tells: a table, and one JSON document, whose schema docs/bench.md has. */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include "row.h"

#include <pagedcl/version.h>

#include <jansson.h>
#include <stdio.h>

/* To stdout. */
void bench_print_head(const bench_rig *rig, const bench_roofs *roofs);
void bench_print_row(const bench_row *row);

/* NULL when out of memory. */
json_t *bench_to_json(const bench_rig *rig, const bench_roofs *roofs, const bench_row *rows, int32_t num_rows,
                      const char *started);

/* The version and the commit that the program was built from. */
const char *bench_commit(void);

#endif
