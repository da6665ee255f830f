/* SPDX-License-Identifier: Apache-2.0 */
#include "stored.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static bool has_spread(const json_t *row) {
    const json_t *spread = json_object_get(row, "device_us");
    const char *const keys[] = {"median", "low", "high"};
    double values[3];
    for (size_t i = 0; i < 3; i++)
        values[i] = json_number_value(json_object_get(spread, keys[i]));
    return values[1] > 0 && values[1] <= values[0] && values[0] <= values[2];
}

static bool check_document(const json_t *document, const file_error *error) {
    const json_t *rows = json_object_get(document, "benchmarks"), *row;
    const char *schema = json_string_value(json_object_get(json_object_get(document, "context"), "schema"));
    if (schema == NULL || strcmp(schema, "pagedcl-bench-1") != 0)
        return file_fail(error, "it is no run of pagedcl bench");
    if (bench_stored_device(document) == NULL)
        return file_fail(error, "context.device has no name");
    if (!json_is_array(rows))
        return file_fail(error, "it has no list \"benchmarks\"");
    size_t i;
    json_array_foreach(rows, i, row) {
        const char *result = json_string_value(json_object_get(row, "result"));
        if (json_string_value(json_object_get(row, "name")) == NULL || result == NULL)
            return file_fail(error, "benchmarks[%zu] has no name or no result", i);
        if (strcmp(result, "pass") == 0 && !has_spread(row))
            return file_fail(error, "benchmarks[%zu] passed, but has no device_us with median, low and high", i);
    }
    return true;
}

json_t *bench_stored_open(const file_error *error) {
    json_error_t reason;
    FILE *file = fopen(error->path, "rb");
    if (file == NULL) {
        file_fail(error, "%s", strerror(errno));
        return NULL;
    }
    json_t *document = json_loadf(file, JSON_REJECT_DUPLICATES, &reason);
    fclose(file);
    if (document == NULL) {
        file_fail(error, "line %d: %s", reason.line, reason.text);
        return NULL;
    }
    if (check_document(document, error))
        return document;
    json_decref(document);
    return NULL;
}

const char *bench_stored_device(const json_t *document) {
    const json_t *device = json_object_get(json_object_get(document, "context"), "device");
    return json_string_value(json_object_get(device, "name"));
}

static const json_t *find_row(const json_t *document, const char *name) {
    const json_t *rows = json_object_get(document, "benchmarks"), *row;
    size_t i;
    json_array_foreach(rows, i,
                       row) if (strcmp(json_string_value(json_object_get(row, "name")), name) == 0 &&
                                strcmp(json_string_value(json_object_get(row, "result")), "pass") == 0) return row;
    return NULL;
}

static double stored_seconds(const json_t *row, const char *key) {
    return json_number_value(json_object_get(json_object_get(row, "device_us"), key)) * 1e-6;
}

bench_verdict bench_stored_compare(const json_t *document, const bench_row *row, double *before) {
    const json_t *stored = find_row(document, row->name);
    if (stored == NULL)
        return BENCH_NOT_STORED;
    const bench_spread *now = &row->outcome.timing.device;
    *before = stored_seconds(stored, "median");
    if (now->low > stored_seconds(stored, "high") && now->median > *before * (1 + BENCH_STORED_SLACK))
        return BENCH_SLOWER;
    if (now->high < stored_seconds(stored, "low") && now->median < *before * (1 - BENCH_STORED_SLACK))
        return BENCH_FASTER;
    return BENCH_AS_BEFORE;
}
