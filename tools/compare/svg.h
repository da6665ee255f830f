/* SPDX-License-Identifier: Apache-2.0 */
/* Axes, ticks and markers of charts in SVG. Colours are the page's: class s0, s1, ... for each run. */
#ifndef COMPARE_SVG_H
#define COMPARE_SVG_H

#include <stdbool.h>
#include <stdio.h>

typedef struct svg_axis {
    double low, high; /* of the values; low above 0 if is_log, otherwise 0 */
    bool is_log;
    double begin, end; /* where they are, in units of the picture */
} svg_axis;

enum { SVG_MAX_TICKS = 24, SVG_LABEL_SIZE = 32 };

/* An axis that has all values, from one round number to another. A linear one begins at 0. */
svg_axis svg_axis_of(double low, double high, bool is_log, double begin, double end);

double svg_at(const svg_axis *axis, double value);

/* Round numbers from low to high, about `most` at most; their number. */
int svg_ticks(const svg_axis *axis, int most, double ticks[SVG_MAX_TICKS]);

/* A number with a prefix of the SI and a unit, "4 TB/s"; unit "%" is for shares of 1. */
const char *svg_label(char text[SVG_LABEL_SIZE], double value, const char *unit);

/* The mark of a run, in its colour and its form. hollow: its outline alone. */
void svg_marker(FILE *file, int run, bool hollow, double x, double y);

/* The same, which tells a text when it is pointed at: "CELL: AMOUNT", the first from a file. */
void svg_point(FILE *file, int run, bool hollow, double x, double y, const char *cell, const char *amount);

#endif
