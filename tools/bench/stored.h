/* SPDX-License-Identifier: Apache-2.0 */
/* A run that was stored as JSON, to compare with. */
#ifndef BENCH_STORED_H
#define BENCH_STORED_H

#include "file_error.h"
#include "row.h"

#include <jansson.h>

/* Slower by more than this share of the stored median, and beyond both spreads: a regression. */
#define BENCH_STORED_SLACK 0.02

/* The document, checked; NULL on failure. */
json_t *bench_stored_open(const file_error *error);

/* The name of the device that it was stored on. */
const char *bench_stored_device(const json_t *document);

typedef enum bench_verdict {
    BENCH_NOT_STORED, /* the file has no times of it */
    BENCH_AS_BEFORE,
    BENCH_FASTER,
    BENCH_SLOWER,
} bench_verdict;

/* The row's times by the device's clock against the stored ones; *before becomes the stored median in seconds. */
bench_verdict bench_stored_compare(const json_t *document, const bench_row *row, double *before);

#endif
