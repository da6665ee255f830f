/* SPDX-License-Identifier: Apache-2.0 */
#include "svg.h"

#include "html.h"

#include <math.h>
#include <string.h>

/* The largest of 1, 2 and 5 times a power of ten that is not above the value. */
static double round_down(double value) {
    double power = pow(10, floor(log10(value) + 1e-9)), digits = value / power;
    return (digits >= 5 - 1e-9 ? 5 : digits >= 2 - 1e-9 ? 2 : 1) * power;
}

static double round_up(double value) {
    double below = round_down(value), power = pow(10, floor(log10(below) + 1e-9));
    if (value <= below * (1 + 1e-9))
        return below;
    return below < 1.5 * power ? 2 * power : below < 3 * power ? 5 * power : 10 * power;
}

/* Four steps or so. */
static double step_of(double high) {
    double wanted = high / 4, power = pow(10, floor(log10(wanted) + 1e-9));
    static const double digits[] = {1, 2, 2.5, 5};
    for (int i = 0; i < 4; i++)
        if (digits[i] * power >= wanted * (1 - 1e-9))
            return digits[i] * power;
    return 10 * power;
}

svg_axis svg_axis_of(double low, double high, bool is_log, double begin, double end) {
    svg_axis axis = {.is_log = is_log, .begin = begin, .end = end};
    if (is_log) {
        axis.low = round_down(low);
        axis.high = round_up(high);
        if (axis.high <= axis.low * 1.5)
            axis.high = round_up(axis.low * 1.9);
    } else {
        axis.high = ceil(high / step_of(high) - 1e-9) * step_of(high);
    }
    return axis;
}

double svg_at(const svg_axis *axis, double value) {
    double share = axis->is_log ? log(value / axis->low) / log(axis->high / axis->low) : value / axis->high;
    return axis->begin + (axis->end - axis->begin) * share;
}

/* Of a logarithmic axis: powers of ten, and with all_digits 2 and 5 times those. */
static int log_ticks(const svg_axis *axis, bool all_digits, int decades, double ticks[SVG_MAX_TICKS]) {
    static const double digits[] = {1, 2, 5};
    int count = 0, first = (int)floor(log10(axis->low) + 1e-9);
    for (int exponent = first; count < SVG_MAX_TICKS && exponent <= first + 40; exponent++)
        for (int i = 0; i < (all_digits ? 3 : 1) && count < SVG_MAX_TICKS; i++) {
            double tick = digits[i] * pow(10, exponent);
            bool wanted = exponent % decades == 0 && tick >= axis->low * (1 - 1e-9) && tick <= axis->high * (1 + 1e-9);
            if (wanted)
                ticks[count++] = tick;
        }
    return count;
}

int svg_ticks(const svg_axis *axis, int most, double ticks[SVG_MAX_TICKS]) {
    int count = 0;
    if (axis->is_log) {
        count = log_ticks(axis, true, 1, ticks);
        for (int decades = 1; count > most && decades < 8; decades++)
            count = log_ticks(axis, false, decades, ticks);
        return count;
    }
    double step = step_of(axis->high);
    for (; count < SVG_MAX_TICKS && count * step <= axis->high * (1 + 1e-9); count++)
        ticks[count] = count * step;
    return count;
}

const char *svg_label(char text[SVG_LABEL_SIZE], double value, const char *unit) {
    static const struct {
        double size;
        const char *prefix;
    } prefixes[] = {{1e15, "P"}, {1e12, "T"}, {1e9, "G"},  {1e6, "M"},
                    {1e3, "k"},  {1, ""},     {1e-3, "m"}, {1e-6, "\xc2\xb5"}};
    if (strcmp(unit, "%") == 0) {
        snprintf(text, SVG_LABEL_SIZE, "%.3g %%", 100 * value);
    } else if (!(value > 0)) {
        snprintf(text, SVG_LABEL_SIZE, "0");
    } else {
        int i = 0;
        while (i < 7 && value < prefixes[i].size * (1 - 1e-9))
            i++;
        if (i == 7 && value < 0.999e-6)
            snprintf(text, SVG_LABEL_SIZE, "%.3g n%s", value * 1e9, unit);
        else
            snprintf(text, SVG_LABEL_SIZE, unit[0] ? "%.3g %s%s" : "%.3g%s%s", value / prefixes[i].size,
                     prefixes[i].prefix, unit);
    }
    return text;
}

/* Eight forms, so that runs are told apart without colours. */
static void write_form(FILE *file, int run, double x, double y) {
    static const char *const forms[] = {
        "m-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",                             /* circle */
        "m-4.4-4.4h8.8v8.8h-8.8z",                                          /* square */
        "m0-6l5.6 10h-11.2z",                                               /* triangle */
        "m0-6l6 6l-6 6l-6-6z",                                              /* diamond */
        "m0 6l5.6-10h-11.2z",                                               /* triangle, upside down */
        "m-2-6h4v4h4v4h-4v4h-4v-4h-4v-4h4z",                                /* cross */
        "m0-6l1.8 3.7l4.1.5l-3 2.8l.8 4l-3.7-2l-3.7 2l.8-4l-3-2.8l4.1-.5z", /* star */
        "m-3-5.2h6l3 5.2l-3 5.2h-6l-3-5.2z",                                /* hexagon */
    };
    fprintf(file, "d=\"M%.1f %.1f%s\"", x, y, forms[run % 8]);
}

void svg_marker(FILE *file, int run, bool hollow, double x, double y) {
    fprintf(file, "<path class=\"s%d %s\" ", run % 8, hollow ? "hollow" : "full");
    write_form(file, run, x, y);
    fputs("/>", file);
}

void svg_point(FILE *file, int run, bool hollow, double x, double y, const char *cell, const char *amount) {
    fprintf(file, "<path class=\"s%d %s\" ", run % 8, hollow ? "hollow" : "full");
    write_form(file, run, x, y);
    fputs("><title>", file);
    html_text(file, cell);
    fprintf(file, ": %s</title></path>\n", amount);
}
