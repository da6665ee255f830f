/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { FIELD = 24 };

/* Three digits and a unit, "n/a" for what is no number. */
static const char *with_unit(char text[FIELD], double value, const char *const units[3]) {
    if (!isfinite(value))
        snprintf(text, FIELD, "n/a");
    else {
        int unit = 0;
        while (unit < 2 && fabs(value) >= 999.5) {
            value /= 1000;
            unit++;
        }
        int digits = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
        snprintf(text, FIELD, "%.*f %s", digits, value, units[unit]);
    }
    return text;
}

static const char *time_text(char text[FIELD], double seconds) {
    static const char *const units[3] = {"us", "ms", "s"};
    return with_unit(text, seconds * 1e6, units);
}

static const char *bytes_text(char text[FIELD], double bytes_per_second) {
    static const char *const units[3] = {"MB/s", "GB/s", "TB/s"};
    return with_unit(text, bytes_per_second * 1e-6, units);
}

static const char *operations_text(char text[FIELD], double operations_per_second) {
    static const char *const units[3] = {"MFLOP/s", "GFLOP/s", "TFLOP/s"};
    return with_unit(text, operations_per_second * 1e-6, units);
}

void bench_print_head(const bench_rig *rig, const bench_roofs *roofs) {
    char a[FIELD], b[FIELD], c[FIELD];
    printf("%s, driver %s, %" PRIu32 " compute units; pagedcl %s (%s), tier %s\n", rig->info.device_name,
           rig->info.driver_version, rig->info.compute_units, pagedcl_version(), bench_commit(),
           pagedcl_tier_name(rig->info.tier));
    printf("memory       read %s, write %s, copy %s\n", bytes_text(a, roofs->read), bytes_text(b, roofs->write),
           bytes_text(c, roofs->copy));
    printf("arithmetic   float32 multiply-add %s", operations_text(a, roofs->multiply_add));
    if (isfinite(roofs->multiply_add_half))
        printf(", float16 %s", operations_text(a, roofs->multiply_add_half));
    if (isfinite(roofs->matrix))
        printf(", float16 matrices %s", operations_text(a, roofs->matrix));
    printf("\nlaunch       %s one behind the other, %s with a wait\n\n", time_text(a, roofs->launch),
           time_text(b, roofs->launch_and_wait));
    printf("%-46s %9s  %-21s %9s  %10s  %13s  %-19s %-4s %-10s\n", "cell", "device", "  quartiles", "host", "bytes",
           "operations", "of roof", "from", "blocks");
}

static void print_baseline(const bench_row *row) {
    char text[FIELD];
    if (row->has_baseline && row->baseline.result == BENCH_PASSED)
        printf("  gather baseline %s, %.1f times as long", time_text(text, row->baseline.timing.device.median),
               row->baseline.timing.device.median / row->outcome.timing.device.median);
    else if (row->has_baseline)
        printf("  gather baseline %s: %s", row->baseline.result == BENCH_FAILED ? "FAIL" : "n/a",
               row->baseline.message);
}

void bench_print_row(const bench_row *row) {
    const bench_timing *t = &row->outcome.timing;
    char device[FIELD], low[FIELD], high[FIELD], host[FIELD], bytes[FIELD], operations[FIELD] = "", roof[FIELD] = "n/a";
    printf("%-46s ", row->name);
    if (row->outcome.result == BENCH_FAILED || row->outcome.result == BENCH_SKIPPED) {
        printf("%9s  %s\n", row->outcome.result == BENCH_FAILED ? "FAIL" : "skipped", row->outcome.message);
        fflush(stdout);
        return;
    }
    if (row->operations > 0)
        operations_text(operations, row->operations_per_second);
    if (row->roof != NULL)
        snprintf(roof, sizeof roof, "%3.0f %% %s", 100 * row->roof_share, row->roof);
    char quartiles[2 * FIELD + 4];
    snprintf(quartiles, sizeof quartiles, "%s - %s", time_text(low, t->device.low), time_text(high, t->device.high));
    printf("%9s  %-21s %9s  %10s  %13s  %-19s %-4s %-10s", time_text(device, t->device.median), quartiles,
           time_text(host, t->host.median), bytes_text(bytes, row->bytes_per_second), operations, roof,
           row->cell.warm ? "warm" : "cold",
           row->cell.kind == BENCH_KIND_MERGE ? "-"
           : row->cell.sequential             ? "sequential"
                                              : "shuffled");
    print_baseline(row);
    putchar('\n');
    fflush(stdout); /* a cell may be slow, and the next may end the process in the driver */
}
