/* SPDX-License-Identifier: Apache-2.0 */
#include "charts.h"
#include "html.h"
#include "svg.h"

#include <math.h>

enum { LEFT = 88, RIGHT = CHART_WIDTH - 12, TOP = 12, BOTTOM = 300, HEIGHT = 350 };

static double peak_of(const compare_run *run) {
    return isfinite(run->matrix) ? run->matrix : run->multiply_add;
}

/* What is shown: attention of one launch or more, each byte of which is used in operations. */
static bool is_shown(const compare_cell *cell, int run) {
    return isfinite(cell->results[run].operations_per_second);
}

typedef struct range {
    double low, high;
} range;

static void widen(range *r, double value) {
    if (!isfinite(value))
        return;
    r->low = fmin(r->low, value);
    r->high = fmax(r->high, value);
}

static void write_axes(FILE *file, const svg_axis *x, const svg_axis *y) {
    double ticks[SVG_MAX_TICKS];
    char label[SVG_LABEL_SIZE];
    int count = svg_ticks(x, 9, ticks);
    for (int i = 0; i < count; i++)
        fprintf(file,
                "<path class=\"grid\" d=\"M%.1f %dV%d\"/><text class=\"tick\" x=\"%.1f\" y=\"%d\" "
                "text-anchor=\"middle\">%s</text>\n",
                svg_at(x, ticks[i]), TOP, BOTTOM, svg_at(x, ticks[i]), BOTTOM + 18, svg_label(label, ticks[i], ""));
    count = svg_ticks(y, 9, ticks);
    for (int i = 0; i < count; i++)
        fprintf(file,
                "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text class=\"tick\" x=\"%d\" y=\"%.1f\" "
                "text-anchor=\"end\">%s</text>\n",
                LEFT, svg_at(y, ticks[i]), RIGHT, LEFT - 6, svg_at(y, ticks[i]) + 4,
                svg_label(label, ticks[i], "FLOP/s"));
    fprintf(
        file,
        "<text class=\"axis\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">operations for each byte, logarithmic</text>\n",
        (LEFT + RIGHT) / 2, HEIGHT - 10);
}

/* Bandwidth times intensity, up to the peak. */
static void write_roof(FILE *file, const compare_run *run, int number, const svg_axis *x, const svg_axis *y) {
    double peak = peak_of(run), ridge = peak / run->read;
    if (!isfinite(ridge))
        return;
    double first = fmax(x->low, y->low / run->read);
    fprintf(file, "<path class=\"s%d line\" d=\"", number);
    if (ridge > first)
        fprintf(file, "M%.1f %.1f", svg_at(x, first), svg_at(y, run->read * first));
    fprintf(file, "%s%.1f %.1fH%d\"/>\n", ridge > first ? "L" : "M", svg_at(x, fmax(ridge, first)), svg_at(y, peak),
            RIGHT);
    if (isfinite(run->matrix) && isfinite(run->multiply_add))
        fprintf(file, "<path class=\"s%d line dashed\" d=\"M%.1f %.1fH%d\"/>\n", number,
                svg_at(x, fmax(run->multiply_add / run->read, first)), svg_at(y, run->multiply_add), RIGHT);
}

static void write_points(FILE *file, const comparison *c, const svg_axis *x, const svg_axis *y) {
    for (size_t i = 0; i < c->num_cells; i++)
        for (int run = 0; run < c->num_runs; run++) {
            const compare_cell *cell = &c->cells[i];
            if (!is_shown(cell, run))
                continue;
            char rate[SVG_LABEL_SIZE], text[64];
            snprintf(text, sizeof text, "%c %s", compare_letter(run),
                     svg_label(rate, cell->results[run].operations_per_second, "FLOP/s"));
            svg_point(file, run, cell->kind == BENCH_KIND_PREFILL, svg_at(x, cell->operations / cell->bytes),
                      svg_at(y, cell->results[run].operations_per_second), cell->name, text);
        }
}

static void write_table(FILE *file, const comparison *c) {
    for (size_t i = 0; i < c->num_cells; i++) {
        const compare_cell *cell = &c->cells[i];
        if (!isfinite(cell->operations) || !(cell->bytes > 0))
            continue;
        fputs("<tr><th scope=\"row\">", file);
        html_name(file, cell->name);
        fprintf(file, " <span class=\"device\">%.3g a byte</span></th>", cell->operations / cell->bytes);
        for (int run = 0; run < c->num_runs; run++) {
            char rate[SVG_LABEL_SIZE] = "\xe2\x80\x93";
            if (is_shown(cell, run))
                svg_label(rate, cell->results[run].operations_per_second, "FLOP/s");
            fprintf(file, "<td>%s</td>", rate);
        }
        fputs("</tr>\n", file);
    }
}

bool chart_roofline(FILE *file, const comparison *c) {
    range intensity = {INFINITY, -INFINITY}, rate = {INFINITY, -INFINITY};
    for (size_t i = 0; i < c->num_cells; i++)
        for (int run = 0; run < c->num_runs; run++)
            if (is_shown(&c->cells[i], run)) {
                widen(&intensity, c->cells[i].operations / c->cells[i].bytes);
                widen(&rate, c->cells[i].results[run].operations_per_second);
            }
    if (!isfinite(intensity.low) || !isfinite(rate.low))
        return false;
    char description[512];
    int used = snprintf(description, sizeof description, "Operations a second over operations for each byte.");
    for (int run = 0; run < c->num_runs; run++) {
        char read[SVG_LABEL_SIZE], peak[SVG_LABEL_SIZE];
        widen(&rate, peak_of(&c->runs[run]));
        widen(&intensity, 1.5 * peak_of(&c->runs[run]) / c->runs[run].read);
        if (used > 0 && (size_t)used < sizeof description && isfinite(peak_of(&c->runs[run]) / c->runs[run].read))
            used +=
                snprintf(description + used, sizeof description - (size_t)used, " The roof of %c rises with %s to %s.",
                         compare_letter(run), svg_label(read, c->runs[run].read, "B/s"),
                         svg_label(peak, peak_of(&c->runs[run]), "FLOP/s"));
    }
    const html_figure figure = {
        .id = "roofline",
        .title = "Roofline",
        .description = description,
        .note = "A line is what a run measured with kernels that do nothing else: memory while it rises, then "
                "arithmetic (of matrix units where they were measured; the dashed line is float32 without them). "
                "Marks are cells, hollow ones prefill.",
        .width = CHART_WIDTH,
        .height = HEIGHT};
    svg_axis x = svg_axis_of(intensity.low, intensity.high, true, LEFT, RIGHT);
    svg_axis y = svg_axis_of(rate.low, rate.high, true, BOTTOM, TOP);
    html_figure_begin(file, c, &figure);
    write_axes(file, &x, &y);
    for (int run = 0; run < c->num_runs; run++)
        write_roof(file, &c->runs[run], run, &x, &y);
    write_points(file, c, &x, &y);
    html_figure_table(file, c, &figure, "Cell, operations for each byte");
    write_table(file, c);
    html_figure_end(file);
    return true;
}
