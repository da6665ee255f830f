/* SPDX-License-Identifier: Apache-2.0 */
#include "comparison.h"

#include "stored.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CELLS = 4096, MAX_NAME = 192 };

static const json_t *at(const json_t *object, const char *key) {
    return json_object_get(object, key);
}

static const char *text_at(const json_t *object, const char *key) {
    const char *text = json_string_value(at(object, key));
    return text != NULL ? text : "?";
}

/* A number above 0, or NaN for null; anything else is false. */
static bool take_rate(const json_t *object, const char *key, double *value) {
    const json_t *number = at(object, key);
    *value = json_is_number(number) ? json_number_value(number) : NAN;
    return json_is_null(number) || *value > 0;
}

static bool read_roofs(compare_run *run, const file_error *error) {
    const struct {
        const char *key;
        double *to;
    } roofs[] = {{"read_bytes_per_second", &run->read},       {"write_bytes_per_second", &run->write},
                 {"copy_bytes_per_second", &run->copy},       {"multiply_add_float32_per_second", &run->multiply_add},
                 {"matrix_float16_per_second", &run->matrix}, {"launch_us", &run->launch}};
    for (size_t i = 0; i < sizeof roofs / sizeof roofs[0]; i++)
        if (!take_rate(at(at(run->document, "context"), "roofs"), roofs[i].key, roofs[i].to))
            return file_fail(error, "context.roofs has no rate \"%s\"", roofs[i].key);
    run->launch *= 1e-6;
    return true;
}

static bool open_run(const char *path, file_error *error, compare_run *run) {
    error->path = path;
    *run = (compare_run){.path = path, .document = bench_stored_open(error)};
    if (run->document == NULL)
        return false;
    const json_t *context = at(run->document, "context"), *device = at(context, "device");
    if (!json_is_integer(at(context, "contract")))
        return file_fail(error, "context has no number \"contract\": run pagedcl bench of this version again");
    run->device = text_at(device, "name");
    run->platform = text_at(device, "platform");
    run->driver = text_at(device, "driver_version");
    run->tier = text_at(device, "tier");
    run->version = text_at(context, "version");
    run->commit = text_at(context, "commit");
    run->date = text_at(context, "date");
    if (json_array_size(at(run->document, "benchmarks")) > MAX_CELLS)
        return file_fail(error, "it has more than %d cells", MAX_CELLS);
    return read_roofs(run, error);
}

static bool read_kind(const json_t *row, bench_kind *kind) {
    for (int i = 0; i < BENCH_NUM_KINDS; i++)
        if (strcmp(text_at(row, "kind"), bench_kind_name((bench_kind)i)) == 0) {
            *kind = (bench_kind)i;
            return true;
        }
    return false;
}

/* A whole number from 1 to 2^31 - 1. */
static bool read_count(const json_t *shape, const char *key, int64_t *count) {
    *count = json_integer_value(at(shape, key));
    return *count >= 1 && *count <= INT32_MAX;
}

static bool read_cell(const json_t *row, size_t index, const file_error *error, compare_cell *cell) {
    const json_t *shape = at(row, "shape");
    int64_t query = 1, layers;
    *cell = (compare_cell){.name = text_at(row, "name"), .row = row, .ragged = json_is_true(at(shape, "ragged"))};
    if (strlen(cell->name) >= MAX_NAME)
        return file_fail(error, "benchmarks[%zu] has a name of %zu bytes", index, strlen(cell->name));
    if (!read_kind(row, &cell->kind))
        return file_fail(error, "benchmarks[%zu] has no known kind", index);
    if (!read_count(shape, "batch", &cell->batch) || !read_count(shape, "context", &cell->context) ||
        !read_count(shape, "layers", &layers))
        return file_fail(error, "benchmarks[%zu].shape has no batch, context or layers", index);
    if (json_is_null(at(shape, "query")))
        query = cell->kind == BENCH_KIND_PREFILL ? cell->context : 1;
    else if (!read_count(shape, "query", &query))
        return file_fail(error, "benchmarks[%zu].shape has no query", index);
    cell->tokens = cell->batch * query;
    /* A cell that could not begin counts nothing. */
    if (!json_is_number(at(row, "bytes")) || !(json_number_value(at(row, "bytes")) >= 0) ||
        !take_rate(row, "operations", &cell->operations))
        return file_fail(error, "benchmarks[%zu] has no bytes or operations", index);
    cell->bytes = json_number_value(at(row, "bytes"));
    return true;
}

/* Whether a number is what others of the file give. */
static bool agree(double told, double computed) {
    return fabs(told - computed) <= 1e-3 * computed;
}

static double roof_rate(const compare_run *run, const char *name) {
    return strcmp(name, "read") == 0           ? run->read
           : strcmp(name, "copy") == 0         ? run->copy
           : strcmp(name, "matrix") == 0       ? run->matrix
           : strcmp(name, "multiply-add") == 0 ? run->multiply_add
                                               : NAN;
}

static bool read_times(const compare_run *run, const json_t *row, const compare_cell *cell, size_t index,
                       const file_error *error, compare_result *r) {
    const json_t *spread = at(row, "device_us");
    r->median = json_number_value(at(spread, "median")) * 1e-6;
    r->low = json_number_value(at(spread, "low")) * 1e-6;
    r->high = json_number_value(at(spread, "high")) * 1e-6;
    r->bytes_per_second = cell->bytes / r->median;
    r->operations_per_second = cell->operations / r->median;
    if (!(cell->bytes > 0) || !agree(json_number_value(at(row, "bytes_per_second")), r->bytes_per_second) ||
        (isfinite(cell->operations) &&
         !agree(json_number_value(at(row, "operations_per_second")), r->operations_per_second)))
        return file_fail(error, "benchmarks[%zu]: its rates are not its bytes and operations by its time", index);
    r->roof = json_string_value(at(row, "roof"));
    r->roof_share = json_number_value(at(row, "roof_share"));
    if (r->roof == NULL) {
        r->roof_share = NAN;
        return true;
    }
    bool memory = strcmp(r->roof, "read") == 0 || strcmp(r->roof, "copy") == 0;
    double share = (memory ? r->bytes_per_second : r->operations_per_second) / roof_rate(run, r->roof);
    return agree(r->roof_share, share) ||
           file_fail(error, "benchmarks[%zu]: its roof_share is not that of its roof", index);
}

static bool read_result(const compare_run *run, const json_t *row, const compare_cell *cell, size_t index,
                        const file_error *error, compare_result *r) {
    const char *result = text_at(row, "result");
    *r = (compare_result){COMPARE_SKIPPED, text_at(row, "message"), NAN, NAN, NAN, NAN, NAN, NULL, NAN};
    if (strcmp(result, "pass") == 0) {
        r->state = COMPARE_PASSED;
        return read_times(run, row, cell, index, error, r);
    }
    if (strcmp(result, "fail") == 0)
        r->state = COMPARE_FAILED;
    else if (strcmp(result, "skip") != 0 && strcmp(result, "n/a") != 0)
        return file_fail(error, "benchmarks[%zu] has the unknown result \"%s\"", index, result);
    return true;
}

static compare_cell *find(comparison *c, const char *name) {
    for (size_t i = 0; i < c->num_cells; i++)
        if (strcmp(c->cells[i].name, name) == 0)
            return &c->cells[i];
    return NULL;
}

/* The text of a key, or `absent` where there is no such key. */
static const char *text_or(const json_t *row, const char *key, const char *absent) {
    return at(row, key) == NULL ? absent : text_at(row, key);
}

/* Whether two rows of a name are of the same work. What could not begin does not know its bytes. */
static bool same_work(const compare_cell *a, const compare_cell *b) {
    static const char *const keys[] = {"kind", "shape", "blocks", "cache"};
    static const char *const later[][2] = {{"layout", "NHD"}, {"splits", "fixed"}}; /* with what older files mean */
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (!json_equal(at(a->row, keys[i]), at(b->row, keys[i])))
            return false;
    for (size_t i = 0; i < sizeof later / sizeof later[0]; i++)
        if (strcmp(text_or(a->row, later[i][0], later[i][1]), text_or(b->row, later[i][0], later[i][1])) != 0)
            return false;
    bool known = a->bytes > 0 && b->bytes > 0;
    return !known ||
           (a->bytes == b->bytes && (a->operations == b->operations || (isnan(a->operations) && isnan(b->operations))));
}

static bool add_row(comparison *c, int run, const json_t *row, size_t index, const file_error *error) {
    compare_cell cell, *to;
    if (!read_cell(row, index, error, &cell))
        return false;
    to = find(c, cell.name);
    if (to == NULL) {
        to = &c->cells[c->num_cells++];
        *to = cell;
        for (int i = 0; i < COMPARE_MAX_RUNS; i++)
            to->results[i] = (compare_result){COMPARE_MISSING, "", NAN, NAN, NAN, NAN, NAN, NULL, NAN};
    } else if (to->results[run].state != COMPARE_MISSING) {
        return file_fail(error, "%s is there twice", cell.name);
    } else if (!same_work(to, &cell)) {
        return file_fail(error, "%s has another shape, layout or splits, or counts other bytes, than in a file before",
                         cell.name);
    } else if (!(to->bytes > 0)) {
        to->bytes = cell.bytes;
        to->operations = cell.operations;
    }
    return read_result(&c->runs[run], row, &cell, index, error, &to->results[run]);
}

static bool add_run(comparison *c, int run, const file_error *error) {
    const compare_run *first = &c->runs[0], *own = &c->runs[run];
    int64_t contract = json_integer_value(at(at(own->document, "context"), "contract"));
    int64_t wanted = json_integer_value(at(at(first->document, "context"), "contract"));
    if (contract != wanted)
        return file_fail(error, "it keeps contract %" PRId64 ", and %s contract %" PRId64, contract, first->path,
                         wanted);
    const json_t *row;
    size_t i;
    json_array_foreach(at(own->document, "benchmarks"), i, row) {
        if (!add_row(c, run, row, i, error))
            return false;
    }
    return true;
}

/* By kind, in the order in which they were found. */
static bool sort_cells(comparison *c, const file_error *error) {
    compare_cell *sorted = malloc((c->num_cells + 1) * sizeof *sorted);
    if (sorted == NULL)
        return file_fail(error, "out of memory");
    size_t count = 0;
    for (int kind = 0; kind < BENCH_NUM_KINDS; kind++)
        for (size_t i = 0; i < c->num_cells; i++)
            if (c->cells[i].kind == (bench_kind)kind)
                sorted[count++] = c->cells[i];
    free(c->cells);
    c->cells = sorted;
    return true;
}

/* Whether a run has a cell that another has too. */
static bool shares_a_cell(const comparison *c, int run) {
    for (size_t i = 0; i < c->num_cells; i++)
        for (int other = 0; other < c->num_runs; other++)
            if (other != run && c->cells[i].results[run].state != COMPARE_MISSING &&
                c->cells[i].results[other].state != COMPARE_MISSING)
                return true;
    return c->num_runs == 1;
}

static bool read_all(const char *const *paths, int count, file_error *error, comparison *c) {
    size_t rows = 0;
    for (int i = 0; i < count; i++) {
        c->num_runs = i + 1;
        if (!open_run(paths[i], error, &c->runs[i]))
            return false;
        rows += json_array_size(at(c->runs[i].document, "benchmarks"));
    }
    c->cells = malloc((rows + 1) * sizeof *c->cells);
    if (c->cells == NULL)
        return file_fail(error, "out of memory");
    for (int i = 0; i < count; i++) {
        error->path = paths[i];
        if (!add_run(c, i, error))
            return false;
    }
    for (int i = 0; i < count; i++) {
        error->path = paths[i];
        if (!shares_a_cell(c, i))
            return file_fail(error, "it has no cell that another run has; `pagedcl bench --set` chooses what is run");
    }
    return sort_cells(c, error);
}

bool comparison_open(const char *const *paths, int count, file_error *error, comparison *c) {
    *c = (comparison){0};
    if (read_all(paths, count, error, c))
        return true;
    comparison_close(c);
    return false;
}

void comparison_close(comparison *c) {
    for (int i = 0; i < c->num_runs; i++)
        json_decref(c->runs[i].document);
    free(c->cells);
    *c = (comparison){0};
}

double compare_ratio(const compare_cell *cell, int run) {
    return cell->results[0].median / cell->results[run].median;
}

double compare_mean_ratio(const comparison *c, bench_kind kind, int run, int *count) {
    double sum = 0;
    *count = 0;
    for (size_t i = 0; i < c->num_cells; i++) {
        double ratio = compare_ratio(&c->cells[i], run);
        if (c->cells[i].kind != kind || !isfinite(ratio))
            continue;
        sum += log(ratio);
        (*count)++;
    }
    return *count > 0 ? exp(sum / *count) : NAN;
}

char compare_letter(int run) {
    return (char)('A' + run);
}
