/* SPDX-License-Identifier: Apache-2.0 */
/* Runs that `pagedcl bench --json` wrote, side by side. */
#ifndef COMPARISON_H
#define COMPARISON_H

#include "cell.h"
#include "file_error.h"

#include <jansson.h>

enum { COMPARE_MAX_RUNS = 8 };

/* Strings belong to the run's document. Rates are in bytes or operations a second; NaN where not measured. */
typedef struct compare_run {
    json_t *document;
    const char *path;
    const char *device, *platform, *driver, *tier, *version, *commit, *date;
    double read, write, copy, multiply_add, matrix;
    double launch; /* seconds */
} compare_run;

typedef enum compare_state {
    COMPARE_MISSING, /* the run has no such cell */
    COMPARE_PASSED,
    COMPARE_FAILED,
    COMPARE_SKIPPED, /* or there were no times */
} compare_state;

/* What came of a cell in a run. Without COMPARE_PASSED numbers are NaN and roof is NULL. */
typedef struct compare_result {
    compare_state state;
    const char *message;
    double median, low, high; /* seconds, by the device's clock */
    double bytes_per_second;
    double operations_per_second; /* NaN where only memory matters */
    const char *roof;
    double roof_share;
} compare_result;

typedef struct compare_cell {
    const char *name;
    bench_kind kind;
    const json_t *row;              /* of the first run that has it */
    int64_t batch, context, tokens; /* tokens: new ones of a decode, all of a prefill; of all sequences */
    bool ragged;
    double bytes, operations; /* operations: NaN where only memory matters */
    compare_result results[COMPARE_MAX_RUNS];
} compare_cell;

typedef struct comparison {
    int num_runs;
    compare_run runs[COMPARE_MAX_RUNS];
    size_t num_cells;
    compare_cell *cells; /* by kind, otherwise as the first run that has them */
} comparison;

/*
 * Reads `count` runs (1 to COMPARE_MAX_RUNS); error->path is set to the file that is wrong. False, with nothing left, when a
 * file is damaged, when contracts or shapes of the same cell differ, or when no cell is in two of them.
 */
bool comparison_open(const char *const *paths, int count, file_error *error, comparison *c);
void comparison_close(comparison *c);

/* How many times as fast as the first run; NaN when one of the two has no time. */
double compare_ratio(const compare_cell *cell, int run);

/* The geometric mean of the ratios of a kind, of those cells that both have; NaN without any. */
double compare_mean_ratio(const comparison *c, bench_kind kind, int run, int *count);

/* "A", "B", ... */
char compare_letter(int run);

#endif
