/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements of a pool's rows as they are stored.
 */
#ifndef CACHE_RAW_ROW_H
#define CACHE_RAW_ROW_H

#include "lib/pool.h"

/* 8 of a row, where it has any at d. */
static RAW8(KV) raw_load8(pool_row from, int d, int dim, bool aligned) {
    return d < dim ? ROW_LOAD_RAW8(KV, from.base, from.at, d, dim, aligned) : (RAW8(KV))0;
}

#endif
