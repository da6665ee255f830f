/* SPDX-License-Identifier: Apache-2.0 */
#include "html.h"

#include "svg.h"

void html_text(FILE *file, const char *text) {
    for (const char *c = text; *c; c++)
        switch (*c) {
        case '&':
            fputs("&amp;", file);
            break;
        case '<':
            fputs("&lt;", file);
            break;
        case '>':
            fputs("&gt;", file);
            break;
        case '"':
            fputs("&quot;", file);
            break;
        case '\'':
            fputs("&#39;", file);
            break;
        default:
            fputc((unsigned char)*c < 0x20 || *c == 0x7f ? ' ' : *c, file);
        }
}

void html_name(FILE *file, const char *name) {
    for (const char *c = name; *c; c++) {
        const char one[2] = {*c, '\0'};
        html_text(file, one);
        if (*c == '/')
            fputs("<wbr>", file);
    }
}

void html_run(FILE *file, const comparison *c, int run) {
    fputs("<svg class=\"mark\" viewBox=\"0 0 16 16\" aria-hidden=\"true\">", file);
    svg_marker(file, run, false, 8, 8);
    fprintf(file, "</svg> <b>%c</b> ", compare_letter(run));
    html_text(file, c->runs[run].device);
}

void html_table_begin(FILE *file, const char *label) {
    fputs("<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"", file);
    html_text(file, label);
    fputs("\"><table>\n", file);
}

void html_figure_begin(FILE *file, const comparison *c, const html_figure *figure) {
    fprintf(file, "<figure id=\"%s\">\n<figcaption><h3>", figure->id);
    html_text(file, figure->title);
    fprintf(file, "</h3><p>%s</p></figcaption>\n<ul class=\"legend\">", figure->note);
    for (int run = 0; run < c->num_runs; run++) {
        fputs("<li>", file);
        html_run(file, c, run);
        fputs("</li>", file);
    }
    fprintf(file,
            "</ul>\n<svg class=\"chart\" role=\"img\" viewBox=\"0 0 %g %g\" aria-labelledby=\"%s-title\" "
            "aria-describedby=\"%s-desc\">\n<title id=\"%s-title\">",
            figure->width, figure->height, figure->id, figure->id, figure->id);
    html_text(file, figure->title);
    fprintf(file, "</title>\n<desc id=\"%s-desc\">", figure->id);
    html_text(file, figure->description);
    fputs("</desc>\n", file);
}

void html_figure_table(FILE *file, const comparison *c, const html_figure *figure, const char *rows) {
    fputs("</svg>\n<details><summary>The numbers</summary>\n", file);
    html_table_begin(file, figure->title);
    fprintf(file, "<thead><tr><th scope=\"col\">%s</th>", rows);
    for (int run = 0; run < c->num_runs; run++) {
        fprintf(file, "<th scope=\"col\">%c <span class=\"device\">", compare_letter(run));
        html_text(file, c->runs[run].device);
        fputs("</span></th>", file);
    }
    fputs("</tr></thead>\n<tbody>\n", file);
}

void html_figure_end(FILE *file) {
    fputs("</tbody></table></div></details>\n</figure>\n", file);
}
