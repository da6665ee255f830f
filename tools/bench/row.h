/* SPDX-License-Identifier: Apache-2.0 */
/* A cell measured: a row of the table. */
#ifndef BENCH_ROW_H
#define BENCH_ROW_H

#include "cell.h"
#include "expected.h"
#include "measure.h"
#include "roofs.h"

typedef enum bench_result {
    BENCH_PASSED,   /* the result was right, and there are times */
    BENCH_FAILED,   /* it was not, or a call failed: there are no times */
    BENCH_SKIPPED,  /* the library or the device's memory cannot do it */
    BENCH_NO_TIMES, /* the result was right, but the clocks gave nothing to tell */
} bench_result;

typedef struct bench_outcome {
    bench_result result;
    char message[1024];
    bench_timing timing;
} bench_outcome;

typedef struct bench_row {
    bench_cell cell;
    char name[192];
    bench_outcome outcome;
    bool has_baseline;
    bench_outcome baseline; /* without has_baseline its message tells why, if there is something to tell */
    pagedcl_tier tier;      /* AUTO: the cell has no attention */
    double bytes, operations;
    bench_check check;
    char *variants; /* owned; a line for each kernel */
    /* What follows is NaN or NULL without times. */
    double bytes_per_second;      /* by the device's clock */
    double operations_per_second; /* likewise; NaN where only memory matters */
    const char *roof;             /* the roof that it is nearest to: "read", "copy", "matrix", "multiply-add" */
    double roof_share;
} bench_row;

/* effort: of the check, as in bench_expected_create. The row is the caller's to free, whatever came out. */
void bench_row_run(bench_rig *rig, const bench_roofs *roofs, const bench_rules *rules, double effort,
                   const bench_cell *cell, bench_row *row);
void bench_row_free(bench_row *row);

/* "pass", "fail", "skip", "n/a" */
const char *bench_result_name(bench_result result);

#endif
