/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include "quantity.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

void bench_print_head(const bench_rig *rig, const bench_roofs *roofs) {
    char a[QUANTITY_SIZE], b[QUANTITY_SIZE], c[QUANTITY_SIZE];
    printf("%s, driver %s, %" PRIu32 " compute units; pagedcl %s (%s), tier %s\n", rig->info.device_name,
           rig->info.driver_version, rig->info.compute_units, pagedcl_version(), bench_commit(),
           pagedcl_tier_name(rig->info.tier));
    printf("memory       read %s, write %s, copy %s\n", quantity_bytes(a, roofs->read), quantity_bytes(b, roofs->write),
           quantity_bytes(c, roofs->copy));
    printf("arithmetic   float32 multiply-add %s", quantity_operations(a, roofs->multiply_add));
    if (isfinite(roofs->multiply_add_half))
        printf(", float16 %s", quantity_operations(a, roofs->multiply_add_half));
    if (isfinite(roofs->matrix))
        printf(", float16 matrices %s", quantity_operations(a, roofs->matrix));
    printf("\nlaunch       %s one behind the other, %s with a wait\n\n", quantity_time(a, roofs->launch),
           quantity_time(b, roofs->launch_and_wait));
    printf("%-46s %9s  %-21s %9s  %10s  %13s  %-19s %-4s %-10s %-6s %-6s\n", "cell", "device", "  quartiles", "host",
           "bytes", "operations", "of roof", "from", "blocks", "layout", "splits");
}

static void print_baseline(const bench_row *row) {
    char text[QUANTITY_SIZE];
    if (row->has_baseline && row->baseline.result == BENCH_PASSED)
        printf("  gather baseline %s, %.1f times as long", quantity_time(text, row->baseline.timing.device.median),
               row->baseline.timing.device.median / row->outcome.timing.device.median);
    else if (row->has_baseline)
        printf("  gather baseline %s: %s", row->baseline.result == BENCH_FAILED ? "FAIL" : "n/a",
               row->baseline.message);
}

void bench_print_row(const bench_row *row) {
    const bench_timing *t = &row->outcome.timing;
    char device[QUANTITY_SIZE], low[QUANTITY_SIZE], high[QUANTITY_SIZE], host[QUANTITY_SIZE], bytes[QUANTITY_SIZE],
        operations[QUANTITY_SIZE] = "", roof[QUANTITY_SIZE] = "n/a";
    printf("%-46s ", row->name);
    if (row->outcome.result == BENCH_FAILED || row->outcome.result == BENCH_SKIPPED) {
        printf("%9s  %s\n", row->outcome.result == BENCH_FAILED ? "FAIL" : "skipped", row->outcome.message);
        fflush(stdout);
        return;
    }
    if (row->operations > 0)
        quantity_operations(operations, row->operations_per_second);
    if (row->roof != NULL)
        snprintf(roof, sizeof roof, "%3.0f %% %s", 100 * row->roof_share, row->roof);
    const bool has_pool = bench_kind_has_pool(row->cell.kind);
    char quartiles[2 * QUANTITY_SIZE + 4];
    snprintf(quartiles, sizeof quartiles, "%s - %s", quantity_time(low, t->device.low),
             quantity_time(high, t->device.high));
    printf("%9s  %-21s %9s  %10s  %13s  %-19s %-4s %-10s %-6s %-6s", quantity_time(device, t->device.median), quartiles,
           quantity_time(host, t->host.median), quantity_bytes(bytes, row->bytes_per_second), operations, roof,
           row->cell.warm ? "warm" : "cold",
           !has_pool              ? "-"
           : row->cell.sequential ? "sequential"
                                  : "shuffled",
           has_pool ? bench_cell_layout_name(&row->cell) : "-",
           bench_kind_has_splits(row->cell.kind) ? bench_cell_splits_name(&row->cell) : "-");
    print_baseline(row);
    putchar('\n');
    fflush(stdout); /* a cell may be slow, and the next may end the process in the driver */
}
