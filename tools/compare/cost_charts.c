/* SPDX-License-Identifier: Apache-2.0 */
#include "charts.h"
#include "html.h"
#include "svg.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LEFT = 62, RIGHT = CHART_WIDTH - 22, TOP = 12, BOTTOM = 240, HEIGHT = 290, MAX_CHARTS = 6, MAX_POINTS = 32 };

/* Cells that differ in their context, or in their batch, alone; in its order. */
typedef struct family {
    int num_points;
    const compare_cell *points[MAX_POINTS];
} family;

static int64_t place_of(const compare_cell *cell, chart_cost_over over) {
    return over == CHART_OVER_CONTEXT ? cell->context : cell->batch;
}

/* Everything that a cell is but for what the axis is; the caller's to free. */
static char *key_of(const compare_cell *cell, chart_cost_over over) {
    json_t *shape = json_copy((json_t *)json_object_get(cell->row, "shape"));
    json_object_del(shape, over == CHART_OVER_CONTEXT ? "context" : "batch");
    json_t *key = json_pack("[i, O?, O?, o]", (int)cell->kind, json_object_get(cell->row, "blocks"),
                            json_object_get(cell->row, "cache"), shape);
    char *text = json_dumps(key, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(key);
    return text;
}

/* The seconds that one new token takes. */
static double cost(const compare_cell *cell, int run) {
    return cell->results[run].median / (double)cell->tokens;
}

static bool is_measured(const comparison *c, const compare_cell *cell) {
    for (int run = 0; run < c->num_runs; run++)
        if (cell->results[run].state == COMPARE_PASSED)
            return true;
    return false;
}

static void add_point(family *f, const compare_cell *cell, chart_cost_over over) {
    if (f->num_points == MAX_POINTS)
        return;
    int at = f->num_points++;
    for (; at > 0 && place_of(f->points[at - 1], over) > place_of(cell, over); at--)
        f->points[at] = f->points[at - 1];
    f->points[at] = cell;
}

/* The family of cell `first`, if none before it is of it. `keys`: of all cells, NULL for those that are in none. */
static family take_family(const comparison *c, char **keys, size_t first, chart_cost_over over) {
    family f = {0};
    for (size_t i = 0; i < c->num_cells && keys[first] != NULL; i++) {
        if (keys[i] == NULL || strcmp(keys[i], keys[first]) != 0)
            continue;
        if (i < first)
            return (family){0};
        add_point(&f, &c->cells[i], over);
    }
    return f;
}

static void write_axes(FILE *file, const family *f, chart_cost_over over, const svg_axis *x, const svg_axis *y) {
    double last = -100;
    for (int i = 0; i < f->num_points; i++) {
        int64_t place = place_of(f->points[i], over);
        double at = svg_at(x, (double)place);
        fprintf(file, "<path class=\"grid\" d=\"M%.1f %dV%d\"/>", at, TOP, BOTTOM);
        if (at - last > 34) {
            fprintf(file, "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%" PRId64 "%s</text>\n", at,
                    BOTTOM + 18, place % 1024 == 0 ? place / 1024 : place, place % 1024 == 0 ? "k" : "");
            last = at;
        }
    }
    double ticks[SVG_MAX_TICKS];
    char label[SVG_LABEL_SIZE];
    int count = svg_ticks(y, 9, ticks);
    for (int i = 0; i < count; i++)
        fprintf(file,
                "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text class=\"tick\" x=\"%d\" y=\"%.1f\" "
                "text-anchor=\"end\">%s</text>\n",
                LEFT, svg_at(y, ticks[i]), RIGHT, LEFT - 6, svg_at(y, ticks[i]) + 4, svg_label(label, ticks[i], "s"));
    fprintf(file, "<text class=\"axis\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s, logarithmic</text>\n",
            (LEFT + RIGHT) / 2, HEIGHT - 8,
            over == CHART_OVER_CONTEXT ? "tokens of a sequence (1k: 1024)" : "sequences in the batch");
}

static void write_run(FILE *file, const family *f, int run, chart_cost_over over, const svg_axis *x,
                      const svg_axis *y) {
    const char *step = "M";
    fprintf(file, "<path class=\"s%d line\" d=\"", run);
    for (int i = 0; i < f->num_points; i++)
        if (isfinite(cost(f->points[i], run))) {
            fprintf(file, "%s%.1f %.1f", step, svg_at(x, (double)place_of(f->points[i], over)),
                    svg_at(y, cost(f->points[i], run)));
            step = "L";
        }
    fputs("\"/>\n", file);
    for (int i = 0; i < f->num_points; i++) {
        char amount[SVG_LABEL_SIZE], text[64];
        if (!isfinite(cost(f->points[i], run)))
            continue;
        snprintf(text, sizeof text, "%c %s a token", compare_letter(run),
                 svg_label(amount, cost(f->points[i], run), "s"));
        svg_point(file, run, false, svg_at(x, (double)place_of(f->points[i], over)), svg_at(y, cost(f->points[i], run)),
                  f->points[i]->name, text);
    }
}

static void write_table(FILE *file, const comparison *c, const family *f) {
    for (int i = 0; i < f->num_points; i++) {
        fputs("<tr><th scope=\"row\">", file);
        html_name(file, f->points[i]->name);
        fputs("</th>", file);
        for (int run = 0; run < c->num_runs; run++) {
            char amount[SVG_LABEL_SIZE] = "\xe2\x80\x93";
            if (isfinite(cost(f->points[i], run)))
                svg_label(amount, cost(f->points[i], run), "s");
            fprintf(file, "<td>%s</td>", amount);
        }
        fputs("</tr>\n", file);
    }
}

static const char *shape_text(const compare_cell *cell, const char *key) {
    const char *text = json_string_value(json_object_get(json_object_get(cell->row, "shape"), key));
    return text != NULL ? text : "?";
}

static void write_chart(FILE *file, const comparison *c, const family *f, chart_cost_over over, int number) {
    double low = INFINITY, high = -INFINITY;
    for (int i = 0; i < f->num_points; i++)
        for (int run = 0; run < c->num_runs; run++)
            if (isfinite(cost(f->points[i], run))) {
                low = fmin(low, cost(f->points[i], run));
                high = fmax(high, cost(f->points[i], run));
            }
    const compare_cell *first = f->points[0], *last = f->points[f->num_points - 1];
    bool of_context = over == CHART_OVER_CONTEXT;
    char id[32], title[256], description[512], least[SVG_LABEL_SIZE], most[SVG_LABEL_SIZE];
    snprintf(id, sizeof id, "%s-%d", of_context ? "context" : "batch", number);
    snprintf(title, sizeof title, "%s, %.60s, %.20s, %s %" PRId64, bench_kind_name(first->kind),
             shape_text(first, "model"), shape_text(first, "dtype"), of_context ? "batch" : "context",
             of_context ? first->batch : first->context);
    snprintf(description, sizeof description,
             "The time that a new token takes, with %s from %" PRId64 " to %" PRId64 ": from %s to %s.",
             of_context ? "contexts" : "batches", place_of(first, over), place_of(last, over),
             svg_label(least, low, "s"), svg_label(most, high, "s"));
    const html_figure figure = {.id = id,
                                .title = title,
                                .description = description,
                                .note = "Time for each new token, on a logarithmic axis.",
                                .width = CHART_WIDTH,
                                .height = HEIGHT};
    svg_axis y = svg_axis_of(low, high, true, BOTTOM, TOP);
    svg_axis x = {.low = (double)place_of(first, over),
                  .high = (double)place_of(last, over),
                  .is_log = true,
                  .begin = LEFT + 10,
                  .end = RIGHT};
    html_figure_begin(file, c, &figure);
    write_axes(file, f, over, &x, &y);
    for (int run = 0; run < c->num_runs; run++)
        write_run(file, f, run, over, &x, &y);
    html_figure_table(file, c, &figure, "Cell");
    write_table(file, c, f);
    html_figure_end(file);
}

/* Families of many points first: two tell little. */
int chart_costs(FILE *file, const comparison *c, chart_cost_over over) {
    char **keys = calloc(c->num_cells + 1, sizeof *keys);
    int written = 0;
    for (size_t i = 0; i < c->num_cells && keys != NULL; i++) {
        const compare_cell *cell = &c->cells[i];
        bool has_tokens = cell->kind <= BENCH_KIND_STEP && !cell->ragged;
        if (has_tokens && is_measured(c, cell))
            keys[i] = key_of(cell, over);
    }
    for (int points = MAX_POINTS; points >= 2 && keys != NULL; points--)
        for (size_t i = 0; i < c->num_cells && written < MAX_CHARTS; i++) {
            family f = take_family(c, keys, i, over);
            bool wanted = f.num_points == points && (points > 2 || written == 0);
            if (wanted && place_of(f.points[0], over) < place_of(f.points[f.num_points - 1], over))
                write_chart(file, c, &f, over, written++);
        }
    for (size_t i = 0; i < c->num_cells && keys != NULL; i++)
        free(keys[i]);
    free(keys);
    return written;
}
