/* SPDX-License-Identifier: Apache-2.0 */
#include "quantity.h"

#include <math.h>
#include <stdio.h>

static const char *with_unit(char text[QUANTITY_SIZE], double value, const char *const units[3]) {
    if (!isfinite(value))
        snprintf(text, QUANTITY_SIZE, "n/a");
    else {
        int unit = 0;
        while (unit < 2 && fabs(value) >= 999.5) {
            value /= 1000;
            unit++;
        }
        int digits = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
        snprintf(text, QUANTITY_SIZE, "%.*f %s", digits, value, units[unit]);
    }
    return text;
}

const char *quantity_time(char text[QUANTITY_SIZE], double seconds) {
    static const char *const units[3] = {"us", "ms", "s"};
    return with_unit(text, seconds * 1e6, units);
}

const char *quantity_bytes(char text[QUANTITY_SIZE], double bytes_per_second) {
    static const char *const units[3] = {"MB/s", "GB/s", "TB/s"};
    return with_unit(text, bytes_per_second * 1e-6, units);
}

const char *quantity_operations(char text[QUANTITY_SIZE], double operations_per_second) {
    static const char *const units[3] = {"MFLOP/s", "GFLOP/s", "TFLOP/s"};
    return with_unit(text, operations_per_second * 1e-6, units);
}
