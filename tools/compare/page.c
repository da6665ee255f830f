/* SPDX-License-Identifier: Apache-2.0 */
#include "page.h"

#include "charts.h"
#include "figures.h"
#include "html.h"
#include "svg.h"

#include <math.h>

extern const char pcl_source_page_css[];

static const unsigned attention = 1u << BENCH_KIND_DECODE | 1u << BENCH_KIND_PREFILL | 1u << BENCH_KIND_STEP;

static void write_amount(FILE *file, double value, const char *unit) {
    char text[SVG_LABEL_SIZE];
    fprintf(file, "<td>%s</td>", isfinite(value) ? svg_label(text, value, unit) : "\xe2\x80\x93");
}

static void write_software(FILE *file, const comparison *c) {
    fputs("<ul class=\"messages\">\n", file);
    for (int i = 0; i < c->num_runs; i++) {
        const compare_run *run = &c->runs[i];
        const char *const parts[] = {"<span class=\"device\">: ",
                                     run->platform,
                                     ", driver ",
                                     run->driver,
                                     ", tier ",
                                     run->tier,
                                     "; pagedcl ",
                                     run->version,
                                     " (",
                                     run->commit,
                                     "), ",
                                     run->date,
                                     "</span></li>\n"};
        fputs("<li>", file);
        html_run(file, c, i);
        for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k += 2) {
            fputs(parts[k], file);
            if (k + 1 < sizeof parts / sizeof parts[0])
                html_text(file, parts[k + 1]);
        }
    }
    fputs("</ul>\n", file);
}

static void write_run(FILE *file, const comparison *c, int number) {
    const compare_run *run = &c->runs[number];
    fputs("<tr><th scope=\"row\">", file);
    html_run(file, c, number);
    fputs("</th>", file);
    write_amount(file, run->read, "B/s");
    write_amount(file, run->write, "B/s");
    write_amount(file, run->copy, "B/s");
    write_amount(file, run->multiply_add, "FLOP/s");
    write_amount(file, run->matrix, "FLOP/s");
    write_amount(file, run->launch, "s");
    fputs("</tr>\n", file);
}

/* A row for each run but the first, a column for each kind that is there. */
static void write_means(FILE *file, const comparison *c) {
    bool has_kind[BENCH_NUM_KINDS] = {false};
    for (size_t i = 0; i < c->num_cells; i++)
        has_kind[c->cells[i].kind] = true;
    fputs("<h3>How many times as fast as A</h3>\n", file);
    html_table_begin(file, "How many times as fast as A");
    fputs("<thead><tr><th scope=\"col\">Device</th>", file);
    for (int kind = 0; kind < BENCH_NUM_KINDS; kind++)
        if (has_kind[kind])
            fprintf(file, "<th scope=\"col\">%s</th>", bench_kind_name((bench_kind)kind));
    fputs("</tr></thead>\n<tbody>\n", file);
    for (int run = 1; run < c->num_runs; run++) {
        fputs("<tr><th scope=\"row\">", file);
        html_run(file, c, run);
        fputs("</th>", file);
        for (int kind = 0; kind < BENCH_NUM_KINDS; kind++) {
            int count;
            char ratio[QUANTITY_SIZE];
            double mean = compare_mean_ratio(c, (bench_kind)kind, run, &count);
            if (has_kind[kind] && count > 0)
                fprintf(file, "<td><b>%s\xc3\x97</b> <span class=\"device\">of %d</span></td>",
                        compare_ratio_text(ratio, mean), count);
            else if (has_kind[kind])
                fputs("<td>\xe2\x80\x93</td>", file);
        }
        fputs("</tr>\n", file);
    }
    fputs("</tbody></table></div>\n<p>The geometric mean of the cells that both runs have; of how many.</p>\n", file);
}

static void write_runs(FILE *file, const comparison *c) {
    fputs("<section aria-labelledby=\"runs\">\n<h2 id=\"runs\">Runs</h2>\n", file);
    write_software(file, c);
    html_table_begin(file, "Runs");
    fputs("<thead><tr><th scope=\"col\">Device</th><th scope=\"col\">read</th><th scope=\"col\">write</th>"
          "<th scope=\"col\">copy</th><th scope=\"col\">float32</th><th scope=\"col\">matrices</th>"
          "<th scope=\"col\">launch</th></tr></thead>\n<tbody>\n",
          file);
    for (int i = 0; i < c->num_runs; i++)
        write_run(file, c, i);
    fputs("</tbody></table></div>\n<p>What each run measured with kernels that do nothing else: memory, float32 "
          "multiply-adds, products of float16 matrices where the device has units for them that PagedCL uses, and a "
          "launch.</p>\n",
          file);
    if (c->num_runs > 1)
        write_means(file, c);
    fputs("</section>\n", file);
}

static void begin_section(FILE *file, const char *id, const char *title) {
    fprintf(file, "<section aria-labelledby=\"%s\">\n<h2 id=\"%s\">%s</h2>\n<div class=\"charts\">\n", id, id, title);
}

static void end_section(FILE *file) {
    fputs("</div>\n</section>\n", file);
}

static void write_charts(FILE *file, const comparison *c) {
    begin_section(file, "shapes", "By shape, and how near to the roofs");
    chart_roofline(file, c);
    chart_dots(file, c, CHART_BANDWIDTH, 1u << BENCH_KIND_DECODE | 1u << BENCH_KIND_STEP, "bandwidth",
               "Bandwidth of decode");
    chart_dots(file, c, CHART_OPERATIONS, 1u << BENCH_KIND_PREFILL, "operations", "FLOP/s of prefill");
    chart_dots(file, c, CHART_BANDWIDTH, ~attention, "moving", "Bandwidth of what moves and merges");
    chart_dots(file, c, CHART_ROOF_SHARE, attention, "share", "Share of the nearest roof, attention");
    end_section(file);
    begin_section(file, "context", "Cost over the context length");
    int charts = chart_costs(file, c, CHART_OVER_CONTEXT);
    if (charts == 0)
        fputs("<p>No cells differ in their context alone.</p>\n", file);
    end_section(file);
    begin_section(file, "batch", "Cost over the batch");
    charts = chart_costs(file, c, CHART_OVER_BATCH);
    if (charts == 0)
        fputs("<p>No cells differ in their batch alone.</p>\n", file);
    end_section(file);
}

static void write_result(FILE *file, const compare_cell *cell, int run) {
    const compare_result *r = &cell->results[run];
    char low[SVG_LABEL_SIZE], high[SVG_LABEL_SIZE], time[SVG_LABEL_SIZE], rate[QUANTITY_SIZE];
    if (r->state != COMPARE_PASSED) {
        fprintf(file, "<td class=\"first%s\" colspan=\"%d\">%s</td>", r->state == COMPARE_FAILED ? " fail" : "",
                run > 0 ? 4 : 3, r->state == COMPARE_MISSING ? "\xe2\x80\x93" : compare_state_name(r->state));
        return;
    }
    fprintf(file, "<td class=\"first\" title=\"quartiles %s to %s\">%s</td><td>%s</td>", svg_label(low, r->low, "s"),
            svg_label(high, r->high, "s"), svg_label(time, r->median, "s"), compare_rate_text(rate, r));
    if (isfinite(r->roof_share))
        fprintf(file, "<td>%.0f %%</td>", 100 * r->roof_share);
    else
        fputs("<td>\xe2\x80\x93</td>", file);
    if (run > 0 && isfinite(compare_ratio(cell, run)))
        fprintf(file, "<td><b>%s\xc3\x97</b></td>", compare_ratio_text(rate, compare_ratio(cell, run)));
    else if (run > 0)
        fputs("<td>\xe2\x80\x93</td>", file);
}

static void write_table(FILE *file, const comparison *c) {
    fputs("<section aria-labelledby=\"all\">\n<h2 id=\"all\">All cells</h2>\n", file);
    html_table_begin(file, "All cells");
    fputs("<thead><tr><th scope=\"col\" rowspan=\"2\">Cell</th>", file);
    for (int run = 0; run < c->num_runs; run++) {
        fprintf(file, "<th scope=\"colgroup\" class=\"first\" colspan=\"%d\">", run > 0 ? 4 : 3);
        html_run(file, c, run);
        fputs("</th>", file);
    }
    fputs("</tr>\n<tr>", file);
    for (int run = 0; run < c->num_runs; run++)
        fprintf(file,
                "<th scope=\"col\" class=\"first\">device time</th><th scope=\"col\">rate</th><th scope=\"col\">of "
                "roof</th>%s",
                run > 0 ? "<th scope=\"col\">than A</th>" : "");
    fputs("</tr></thead>\n<tbody>\n", file);
    for (size_t i = 0; i < c->num_cells; i++) {
        fputs("<tr><th scope=\"row\">", file);
        html_name(file, c->cells[i].name);
        fputs("</th>", file);
        for (int run = 0; run < c->num_runs; run++)
            write_result(file, &c->cells[i], run);
        fputs("</tr>\n", file);
    }
    fputs("</tbody></table></div>\n", file);
}

static void write_messages(FILE *file, const comparison *c) {
    bool begun = false;
    for (size_t i = 0; i < c->num_cells; i++)
        for (int run = 0; run < c->num_runs; run++) {
            const compare_result *r = &c->cells[i].results[run];
            if (r->state != COMPARE_FAILED && r->state != COMPARE_SKIPPED)
                continue;
            if (!begun)
                fputs("<h3>Failed or skipped</h3>\n<ul class=\"messages\">\n", file);
            begun = true;
            fprintf(file, "<li><b%s>%c %s</b> ", r->state == COMPARE_FAILED ? " class=\"fail\"" : "",
                    compare_letter(run), compare_state_name(r->state));
            html_name(file, c->cells[i].name);
            fputs(": ", file);
            html_text(file, r->message);
            fputs("</li>\n", file);
        }
    fputs(begun ? "</ul>\n</section>\n" : "</section>\n", file);
}

void compare_page_write(const comparison *c, FILE *file) {
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta name=\"color-scheme\" content=\"light dark\">\n<title>PagedCL: ",
          file);
    for (int run = 0; run < c->num_runs; run++) {
        fputs(run > 0 ? ", " : "", file);
        html_text(file, c->runs[run].device);
    }
    fprintf(file,
            "</title>\n<style>\n%s</style>\n</head>\n<body>\n<header><h1>Paged attention, %s</h1>\n<p>Runs of "
            "<code>pagedcl bench</code>: every result was compared with a reference before it was timed. A cell is "
            "<code>KIND/MODEL/DTYPE/BATCHxCONTEXT</code>; bytes and operations are those that its result needs, each "
            "once; times are medians by the device's clock.</p></header>\n<main>\n",
            pcl_source_page_css, c->num_runs > 1 ? "side by side" : "measured");
    write_runs(file, c);
    write_charts(file, c);
    write_table(file, c);
    write_messages(file, c);
    fputs("</main>\n</body>\n</html>\n", file);
}
