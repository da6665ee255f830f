/* SPDX-License-Identifier: Apache-2.0 */
#include "figures.h"

#include <stdio.h>
#include <string.h>

const char *compare_state_name(compare_state state) {
    return state == COMPARE_FAILED    ? "FAIL"
           : state == COMPARE_SKIPPED ? "skipped"
           : state == COMPARE_MISSING ? "-"
                                      : "";
}

static bool counts_operations(const compare_result *r) {
    return r->roof != NULL && (strcmp(r->roof, "matrix") == 0 || strcmp(r->roof, "multiply-add") == 0);
}

const char *compare_rate_text(char text[QUANTITY_SIZE], const compare_result *r) {
    return counts_operations(r) ? quantity_operations(text, r->operations_per_second)
                                : quantity_bytes(text, r->bytes_per_second);
}

const char *compare_ratio_text(char text[QUANTITY_SIZE], double ratio) {
    snprintf(text, QUANTITY_SIZE, "%.*f", ratio >= 99.95 ? 0 : ratio >= 9.995 ? 1 : 2, ratio);
    return text;
}
