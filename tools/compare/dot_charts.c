/* SPDX-License-Identifier: Apache-2.0 */
#include "charts.h"
#include "figures.h"
#include "html.h"
#include "svg.h"

#include <math.h>
#include <string.h>

enum { LEFT = 30, RIGHT = CHART_WIDTH - 36, TOP = 26, LINE = 38 };

/* What a kind of chart shows of a cell. */
typedef struct measure {
    double (*value)(const compare_cell *cell, int run);
    const char *unit;
    const char *what; /* begins a sentence */
} measure;

static double bandwidth(const compare_cell *cell, int run) {
    return cell->results[run].bytes_per_second;
}

static double operations(const compare_cell *cell, int run) {
    return cell->results[run].operations_per_second;
}

static double roof_share(const compare_cell *cell, int run) {
    return cell->results[run].roof_share;
}

static const measure measures[] = {
    [CHART_BANDWIDTH] = {bandwidth, "B/s", "Bytes a second"},
    [CHART_OPERATIONS] = {operations, "FLOP/s", "Operations a second"},
    [CHART_ROOF_SHARE] = {roof_share, "%", "The share of the nearest roof"},
};

/* Whether some run has a result; a cell that none has is in the table of all alone. */
static bool is_shown(const compare_cell *cell, const measure *m, unsigned kinds, int num_runs) {
    if ((kinds >> cell->kind & 1) == 0)
        return false;
    for (int run = 0; run < num_runs; run++)
        if (isfinite(m->value(cell, run)))
            return true;
    return false;
}

static void write_axis(FILE *file, const svg_axis *axis, const char *unit, int bottom) {
    double ticks[SVG_MAX_TICKS];
    char label[SVG_LABEL_SIZE];
    int count = svg_ticks(axis, 6, ticks);
    for (int i = 0; i < count; i++) {
        double x = svg_at(axis, ticks[i]);
        fprintf(file,
                "<path class=\"grid\" d=\"M%.1f %dV%d\"/><text class=\"tick\" x=\"%.1f\" y=\"%d\" "
                "text-anchor=\"middle\">%s</text>\n",
                x, TOP - 6, bottom, x, TOP - 11, svg_label(label, ticks[i], unit));
    }
}

static void write_line(FILE *file, const comparison *c, const compare_cell *cell, const measure *m,
                       const svg_axis *axis, double top) {
    double low = INFINITY, high = -INFINITY, y = top + 25;
    for (int run = 0; run < c->num_runs; run++) {
        double value = m->value(cell, run);
        low = isfinite(value) ? fmin(low, value) : low;
        high = isfinite(value) ? fmax(high, value) : high;
    }
    fprintf(file, "<text class=\"cell\" x=\"0\" y=\"%.1f\">", top + 12);
    html_text(file, cell->name);
    for (int run = 0; run < c->num_runs; run++)
        if (cell->results[run].state == COMPARE_FAILED)
            fprintf(file, "<tspan class=\"fail\"> %c FAIL</tspan>", compare_letter(run));
    fprintf(file, "</text><path class=\"rail\" d=\"M%d %.1fH%d\"/><path class=\"between\" d=\"M%.1f %.1fH%.1f\"/>\n",
            LEFT, y, RIGHT, axis->is_log ? svg_at(axis, low) : axis->begin, y, svg_at(axis, high));
    for (int run = c->num_runs - 1; run >= 0; run--) {
        char amount[SVG_LABEL_SIZE], text[64];
        double value = m->value(cell, run);
        if (!isfinite(value))
            continue;
        snprintf(text, sizeof text, "%c %s", compare_letter(run), svg_label(amount, value, m->unit));
        /* Runs that are equal lie beside each other. */
        double aside = (run - (c->num_runs - 1) / 2.0) * (c->num_runs > 3 ? 2.0 : 4.0);
        svg_point(file, run, false, svg_at(axis, value), y + aside, cell->name, text);
    }
}

static void write_table(FILE *file, const comparison *c, const measure *m, unsigned kinds) {
    for (size_t i = 0; i < c->num_cells; i++) {
        const compare_cell *cell = &c->cells[i];
        if (!is_shown(cell, m, kinds, c->num_runs))
            continue;
        fputs("<tr><th scope=\"row\">", file);
        html_name(file, cell->name);
        fputs("</th>", file);
        for (int run = 0; run < c->num_runs; run++) {
            char amount[SVG_LABEL_SIZE];
            double value = m->value(cell, run);
            fprintf(file, "<td>%s</td>",
                    isfinite(value) ? svg_label(amount, value, m->unit) : compare_state_name(cell->results[run].state));
        }
        fputs("</tr>\n", file);
    }
}

bool chart_dots(FILE *file, const comparison *c, chart_dots_what what, unsigned kinds, const char *id,
                const char *title) {
    const measure *m = &measures[what];
    int count = 0;
    double low = INFINITY, high = -INFINITY;
    const char *best = "";
    int best_run = 0;
    for (size_t i = 0; i < c->num_cells; i++) {
        count += is_shown(&c->cells[i], m, kinds, c->num_runs);
        for (int run = 0; run < c->num_runs && (kinds >> c->cells[i].kind & 1) != 0; run++) {
            double value = m->value(&c->cells[i], run);
            if (!isfinite(value))
                continue;
            if (value > high) {
                best = c->cells[i].name;
                best_run = run;
            }
            low = fmin(low, value);
            high = fmax(high, value);
        }
    }
    if (count == 0)
        return false;
    bool is_log = what != CHART_ROOF_SHARE && high > 20 * low;
    char description[512], most[SVG_LABEL_SIZE], least[SVG_LABEL_SIZE], note[160];
    snprintf(description, sizeof description, "%s of %d cells, from %s to %s; the most is %c's in %s.", m->what, count,
             svg_label(least, low, m->unit), svg_label(most, high, m->unit), compare_letter(best_run), best);
    snprintf(note, sizeof note, "%s%s.", m->what, is_log ? ", on a logarithmic axis" : "");
    int bottom = TOP + count * LINE;
    const html_figure figure = {
        .id = id, .title = title, .description = description, .note = note, .width = CHART_WIDTH, .height = bottom + 6};
    svg_axis axis = svg_axis_of(low, what == CHART_ROOF_SHARE ? fmax(high, 1) : high, is_log, LEFT, RIGHT);
    html_figure_begin(file, c, &figure);
    write_axis(file, &axis, m->unit, bottom);
    double top = TOP;
    for (size_t i = 0; i < c->num_cells; i++) {
        if (!is_shown(&c->cells[i], m, kinds, c->num_runs))
            continue;
        write_line(file, c, &c->cells[i], m, &axis, top);
        top += LINE;
    }
    html_figure_table(file, c, &figure, "Cell");
    write_table(file, c, m, kinds);
    html_figure_end(file);
    return true;
}
