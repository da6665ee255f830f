/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the page are made of. Texts from files are escaped here, and nowhere else. */
#ifndef COMPARE_HTML_H
#define COMPARE_HTML_H

#include "comparison.h"

#include <stdio.h>

/* A text as text or as the value of an attribute, whatever is in it. */
void html_text(FILE *file, const char *text);

/* The same of a cell's name, which may break behind each part. */
void html_name(FILE *file, const char *name);

/* A picture with its heading, what it tells, and which mark is which run. Then the caller writes into the SVG. */
typedef struct html_figure {
    const char *id;          /* unique in the page */
    const char *title;       /* from a file, perhaps */
    const char *description; /* likewise */
    const char *note;        /* below the heading; HTML */
    double width, height;
} html_figure;
void html_figure_begin(FILE *file, const comparison *c, const html_figure *figure);

/* Ends the SVG; then the caller writes the rows of a table, each with a name and a cell for each run. */
void html_figure_table(FILE *file, const comparison *c, const html_figure *figure, const char *rows);
void html_figure_end(FILE *file);

/* A region that scrolls sideways, also by the keyboard; ended by </table></div>. */
void html_table_begin(FILE *file, const char *label);

/* "<b>A</b> DEVICE" with its mark. */
void html_run(FILE *file, const comparison *c, int run);

#endif
