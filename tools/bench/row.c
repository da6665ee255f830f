/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "row.h"

#include "subject.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *bench_result_name(bench_result result) {
    static const char *const names[] = {"pass", "fail", "skip", "n/a"};
    return names[result];
}

static bool make_subject(const bench_rig *rig, const bench_cell *cell, double effort, bench_subject *subject,
                         tool_error *error) {
    switch (cell->kind) {
    case BENCH_KIND_DECODE:
    case BENCH_KIND_PREFILL:
    case BENCH_KIND_STEP:
        return bench_attn_subject(rig, cell, effort, subject, error);
    case BENCH_KIND_MERGE:
        return bench_merge_subject(rig, cell, effort, subject, error);
    default:
        return bench_cache_subject(rig, cell, effort, subject, error);
    }
}

static void tell_failure(bench_outcome *outcome, const tool_error *error) {
    bool cannot = error->status == PAGEDCL_UNSUPPORTED || error->status == PAGEDCL_POOL_TOO_LARGE ||
                  error->status == PAGEDCL_OUT_OF_DEVICE_MEMORY;
    outcome->result = cannot ? BENCH_SKIPPED : BENCH_FAILED;
    outcome->timing = bench_timing_none();
    snprintf(outcome->message, sizeof outcome->message, "%s", error->text);
}

/* Checked, measured, and checked again, since what was timed must have been right as well. */
static void measure(const bench_rig *rig, const bench_rules *rules, const bench_subject *subject,
                    const bench_work *work, bench_check *check, bench_outcome *outcome) {
    tool_error error = {0};
    if (!subject->check(subject->user, work, check, &error) ||
        !bench_measure(rig, rules, work, &outcome->timing, &error) ||
        !subject->check(subject->user, work, check, &error)) {
        tell_failure(outcome, &error);
        return;
    }
    bool timed = isfinite(outcome->timing.device.median) && isfinite(outcome->timing.host.median);
    outcome->result = timed ? BENCH_PASSED : BENCH_NO_TIMES;
    if (!timed)
        snprintf(outcome->message, sizeof outcome->message, "the clocks gave no times");
}

static void near_roof(bench_row *row, const char *name, double rate, double roof) {
    double share = rate / roof;
    if (isfinite(share) && !(share <= row->roof_share)) {
        row->roof_share = share;
        row->roof = name;
    }
}

static void rate(const bench_roofs *roofs, bool copies, bench_row *row) {
    double seconds = row->outcome.timing.device.median;
    if (row->outcome.result != BENCH_PASSED)
        return;
    row->bytes_per_second = row->bytes / seconds;
    near_roof(row, copies ? "copy" : "read", row->bytes_per_second, copies ? roofs->copy : roofs->read);
    if (!(row->operations > 0))
        return;
    row->operations_per_second = row->operations / seconds;
    if (isfinite(roofs->matrix) && row->cell.dtype != PAGEDCL_FLOAT32)
        near_roof(row, "matrix", row->operations_per_second, roofs->matrix);
    else
        near_roof(row, "multiply-add", row->operations_per_second, roofs->multiply_add);
}

void bench_row_run(bench_rig *rig, const bench_roofs *roofs, const bench_rules *rules, double effort,
                   const bench_cell *cell, bench_row *row) {
    *row = (bench_row){.cell = *cell, .bytes_per_second = NAN, .operations_per_second = NAN, .roof_share = NAN};
    row->outcome.timing = row->baseline.timing = bench_timing_none();
    bench_cell_name(cell, row->name, sizeof row->name);
    rig->variants[0] = '\0';
    bench_subject subject = {0};
    tool_error error = {0};
    if (!make_subject(rig, &row->cell, effort, &subject, &error)) {
        tell_failure(&row->outcome, &error);
        return;
    }
    row->tier = subject.tier;
    row->bytes = subject.bytes;
    row->operations = subject.operations;
    row->variants = strndup(rig->variants, subject.variants_size);
    row->has_baseline = subject.baseline.enqueue != NULL;
    snprintf(row->baseline.message, sizeof row->baseline.message, "%s", subject.no_baseline);
    bench_rules own = *rules;
    own.cold = !cell->warm;
    measure(rig, &own, &subject, &subject.work, &row->check, &row->outcome);
    rate(roofs, subject.copies, row);
    if (row->has_baseline && row->outcome.result == BENCH_PASSED) {
        bench_check ignored = {0};
        own.min_samples = 1; /* it may take seconds */
        measure(rig, &own, &subject, &subject.baseline, &ignored, &row->baseline);
    } else {
        row->has_baseline = false;
    }
    subject.release(subject.user);
}

void bench_row_free(bench_row *row) {
    free(row->variants);
    row->variants = NULL;
}
