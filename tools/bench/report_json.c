/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "report.h"

#include "json_text.h"
#include "bench_commit.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

const char *bench_commit(void) {
    return BENCH_COMMIT;
}

/* JSON knows no NaN. */
static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *spread_to_json(const bench_spread *s) {
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "median", number(s->median * 1e6), "low", number(s->low * 1e6),
                     "high", number(s->high * 1e6), "min", number(s->min * 1e6), "max", number(s->max * 1e6));
}

static json_t *roofs_to_json(const bench_roofs *r) {
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "read_bytes_per_second", number(r->read),
                     "write_bytes_per_second", number(r->write), "copy_bytes_per_second", number(r->copy),
                     "multiply_add_float32_per_second", number(r->multiply_add), "multiply_add_float16_per_second",
                     number(r->multiply_add_half), "matrix_float16_per_second", number(r->matrix), "launch_us",
                     number(r->launch * 1e6), "launch_and_wait_us", number(r->launch_and_wait * 1e6));
}

static json_t *device_to_json(const bench_rig *rig) {
    const pagedcl_device_info *i = &rig->info;
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:s, s:i, s:I, s:I, s:i, s:s, s:o}", "name", json_text(i->device_name),
                     "vendor", json_text(i->vendor), "platform", json_text(i->platform_name), "platform_version",
                     json_text(i->platform_version), "driver_version", json_text(i->driver_version), "kind",
                     pagedcl_device_kind_name(i->kind), "compute_units", (int)i->compute_units, "global_memory",
                     (json_int_t)i->global_memory, "reported_cache_bytes", (json_int_t)rig->cache_bytes,
                     "max_clock_mhz", (int)rig->clock_mhz, "tier", pagedcl_tier_name(i->tier), "tier_reason",
                     json_text(i->tier_reason));
}

/* The first keys are those that Google Benchmark's tools know. */
static json_t *context_to_json(const bench_rig *rig, const bench_roofs *roofs, const char *started) {
    return json_pack("{s:s, s:s, s:o, s:i, s:s, s:s, s:i, s:s, s:s, s:o, s:o, s:I}", "date", started, "executable",
                     "pagedcl bench", "host_name", json_text(rig->info.device_name), "num_cpus",
                     (int)sysconf(_SC_NPROCESSORS_ONLN), "library_build_type", BENCH_BUILD_TYPE, "schema",
                     "pagedcl-bench-1", "contract", PAGEDCL_CONTRACT_VERSION, "version", pagedcl_version(), "commit",
                     bench_commit(), "device", device_to_json(rig), "roofs", roofs_to_json(roofs), "flush_bytes",
                     (json_int_t)rig->flush_bytes);
}

static json_t *shape_to_json(const bench_cell *c) {
    const bench_model *m = &c->model;
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:b, s:o, s:o, s:b, s:s, s:s, s:i, s:i, s:b, s:o, s:i, s:i}", "model",
                     m->name, "heads", (int)m->num_heads, "kv_heads", (int)m->num_kv_heads, "head_dim",
                     (int)m->head_dim, "head_dim_v", (int)m->head_dim_v, "v_in_k", (int)m->v_in_k, "window",
                     m->window > 0 ? json_integer(m->window) : json_null(), "softcap",
                     m->softcap > 0 ? json_real((double)m->softcap) : json_null(), "sinks", (int)m->has_sinks, "dtype",
                     pagedcl_dtype_name(c->dtype), "q_dtype", pagedcl_dtype_name(bench_cell_q_dtype(c)), "batch",
                     (int)c->batch, "context", (int)c->context, "ragged", (int)c->ragged, "query",
                     c->query > 0 ? json_integer(c->query) : json_null(), "layers", (int)c->layers, "block_size",
                     (int)c->block_size);
}

static json_t *variants_to_json(const char *variants) {
    json_t *list = json_array();
    while (variants != NULL && *variants) {
        size_t length = strcspn(variants, "\n");
        json_array_append_new(list, json_stringn(variants, length));
        variants += length + (variants[length] == '\n');
    }
    return list;
}

static json_t *baseline_to_json(const bench_row *row) {
    if (!row->has_baseline)
        return json_null();
    return json_pack("{s:s, s:o, s:o, s:o, s:i}", "result", bench_result_name(row->baseline.result), "message",
                     json_text(row->baseline.message), "device_us", spread_to_json(&row->baseline.timing.device),
                     "host_us", spread_to_json(&row->baseline.timing.host), "samples", (int)row->baseline.timing.count);
}

/* What Google Benchmark's tools compare, where there is something to compare. */
static int set_times(json_t *json, const bench_outcome *outcome) {
    if (outcome->result != BENCH_PASSED)
        return json_object_set_new(json, "error_occurred", json_true()) |
               json_object_set_new(json, "error_message", json_text(outcome->message));
    return json_object_set_new(json, "real_time", json_real(outcome->timing.host.median * 1e6)) |
           json_object_set_new(json, "cpu_time", json_real(outcome->timing.device.median * 1e6)) |
           json_object_set_new(json, "time_unit", json_string("us"));
}

static json_t *row_to_json(const bench_row *row) {
    const bench_timing *t = &row->outcome.timing;
    json_t *json = json_pack("{s:s, s:s, s:s, s:i, s:s, s:s, s:o, s:s, s:o, s:s, s:s, s:s, s:s}", "name", row->name,
                             "run_name", row->name, "run_type", "iteration", "iterations", (int)(t->count * t->repeats),
                             "kind", bench_kind_name(row->cell.kind), "result", bench_result_name(row->outcome.result),
                             "message", json_text(row->outcome.message), "tier", pagedcl_tier_name(row->tier), "shape",
                             shape_to_json(&row->cell), "blocks", row->cell.sequential ? "sequential" : "shuffled",
                             "layout", bench_cell_layout_name(&row->cell), "splits", bench_cell_splits_name(&row->cell),
                             "cache", row->cell.warm ? "warm" : "cold");
    if (json == NULL)
        return NULL;
    int failed = set_times(json, &row->outcome);
#define SET(key, value) failed |= json_object_set_new(json, key, value)
    SET("samples", json_integer(t->count));
    SET("repeats", json_integer(t->repeats));
    SET("device_us", spread_to_json(&t->device));
    SET("last_command_us", spread_to_json(&t->last));
    SET("host_us", spread_to_json(&t->host));
    SET("bytes", number(row->bytes));
    SET("operations", row->operations > 0 ? json_real(row->operations) : json_null());
    SET("bytes_per_second", number(row->bytes_per_second));
    SET("operations_per_second", number(row->operations_per_second));
    SET("roof", row->roof != NULL ? json_string(row->roof) : json_null());
    SET("roof_share", number(row->roof_share));
    SET("checked_rows", json_integer(row->check.rows));
    SET("all_rows", json_integer(row->check.all_rows));
    SET("error_of_allowed", number(row->check.max_error));
    SET("variants", variants_to_json(row->variants));
    SET("baseline", baseline_to_json(row));
#undef SET
    if (failed != 0) {
        json_decref(json);
        return NULL;
    }
    return json;
}

json_t *bench_to_json(const bench_rig *rig, const bench_roofs *roofs, const bench_row *rows, int32_t num_rows,
                      const char *started) {
    json_t *list = json_array();
    for (int32_t i = 0; i < num_rows; i++)
        json_array_append_new(list, row_to_json(&rows[i]));
    bool complete = json_array_size(list) == (size_t)num_rows;
    json_t *document = json_pack("{s:o, s:o}", "context", context_to_json(rig, roofs, started), "benchmarks", list);
    if (!complete) {
        json_decref(document);
        return NULL;
    }
    return document;
}
