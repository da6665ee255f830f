/* SPDX-License-Identifier: Apache-2.0 */
/* The charts of the page: SVG with a description for those who do not see it, and a table behind it. */
#ifndef COMPARE_CHARTS_H
#define COMPARE_CHARTS_H

#include "comparison.h"

#include <stdbool.h>
#include <stdio.h>

/* Units of a picture; a narrow screen shows it at 80 %. */
enum { CHART_WIDTH = 480 };

/* Operations a second over operations for each byte, below each run's roofs. False, and nothing written, without a cell. */
bool chart_roofline(FILE *file, const comparison *c);

/* A dot for each run in a line for each cell. */
typedef enum chart_dots_what {
    CHART_BANDWIDTH,
    CHART_OPERATIONS,
    CHART_ROOF_SHARE,
} chart_dots_what;
bool chart_dots(FILE *file, const comparison *c, chart_dots_what what, unsigned kinds, const char *id,
                const char *title);

/* The time that a token costs over the context length or the batch: a chart for each family of cells that differ in that alone. */
typedef enum chart_cost_over { CHART_OVER_CONTEXT, CHART_OVER_BATCH } chart_cost_over;
int chart_costs(FILE *file, const comparison *c, chart_cost_over over);

#endif
