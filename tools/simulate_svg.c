/* SPDX-License-Identifier: Apache-2.0 */
#include "simulate_svg.h"

#include <inttypes.h>
#include <math.h>

/* Three panels over each other, which share the axis of pool sizes. */
enum {
    WIDTH = 760,
    LEFT = 84,
    RIGHT = 736,
    TOP = 76,
    PANEL = 150, /* height of a panel */
    STRIDE = 196,
    NUM_PANELS = 3,
    BOTTOM = TOP + (NUM_PANELS - 1) * STRIDE + PANEL,
    HEIGHT = BOTTOM + 56,
    LABEL_WIDTH = 44, /* of a pool size below the axis */
    NUM_TICKS = 5,
    MAX_LINES = 3,
};

typedef struct line {
    const char *name;
    const char *colour;
    double (*value)(const simulate_result *pool);
} line;

typedef struct panel {
    const char *title;
    const char *unit;
    double most;       /* of the axis; 0: of the values */
    double least_tick; /* 1 where only whole numbers make sense */
    line lines[MAX_LINES];
    int num_lines;
} panel;

static double first_token(const simulate_result *pool) {
    return pool->mean_first_token;
}

static double preemptions(const simulate_result *pool) {
    return (double)pool->preemptions;
}

static double hit_percent(const simulate_result *pool) {
    return 100 * pool->hit_rate;
}

static double peak_percent(const simulate_result *pool) {
    return 100 * pool->peak_occupancy;
}

static double mean_percent(const simulate_result *pool) {
    return 100 * pool->mean_occupancy;
}

/* Colours that people with any colour vision tell apart (Okabe and Ito). */
static const panel panels[NUM_PANELS] = {
    {"Mean time to first token", "seconds", 0, 0, {{NULL, "#0072b2", first_token}}, 1},
    {"Preemptions", "count", 0, 1, {{NULL, "#d55e00", preemptions}}, 1},
    {"Prefix hits and blocks in use",
     "percent",
     100,
     0,
     {{"prefix hit rate", "#009e73", hit_percent},
      {"peak in use", "#cc79a7", peak_percent},
      {"mean in use", "#0072b2", mean_percent}},
     3},
};

/* The distance of ticks: 1, 2 or 5 times a power of ten, NUM_TICKS times which reach `most`. */
static double tick_distance(double most) {
    double power = pow(10, floor(log10(most / NUM_TICKS)));
    static const double steps[] = {1, 2, 5};
    for (int i = 0; i < 3; i++)
        if (steps[i] * power * NUM_TICKS >= most)
            return steps[i] * power;
    return 10 * power;
}

/* Where a pool size lies: the axis is logarithmic. */
static double x_of(const simulate_curve *curve, int32_t num_blocks) {
    double first = log(curve->pools[0].num_blocks);
    double last = log(curve->pools[curve->num_pools - 1].num_blocks);
    return last > first ? LEFT + 16 + (RIGHT - LEFT - 32) * (log(num_blocks) - first) / (last - first)
                        : (LEFT + RIGHT) / 2.0;
}

static void write_line(const simulate_curve *curve, const line *l, double bottom, double scale, FILE *file) {
    fprintf(file, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", l->colour);
    for (int32_t i = 0; i < curve->num_pools; i++)
        if (curve->pools[i].status == PAGEDCL_SUCCESS)
            fprintf(file, "%.1f,%.1f ", x_of(curve, curve->pools[i].num_blocks),
                    bottom - l->value(&curve->pools[i]) * scale);
    fputs("\"/>\n", file);
    for (int32_t i = 0; i < curve->num_pools; i++) {
        const simulate_result *pool = &curve->pools[i];
        if (pool->status == PAGEDCL_SUCCESS)
            fprintf(file,
                    "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"><title>%" PRId32
                    " blocks: %.4g</title></circle>\n",
                    x_of(curve, pool->num_blocks), bottom - l->value(pool) * scale, l->colour, pool->num_blocks,
                    l->value(pool));
    }
}

static void write_panel(const simulate_curve *curve, const panel *p, double top, FILE *file) {
    double most = p->most;
    for (int32_t i = 0; i < curve->num_pools && p->most == 0; i++)
        if (curve->pools[i].status == PAGEDCL_SUCCESS)
            most = fmax(most, p->lines[0].value(&curve->pools[i]));
    double distance = most > 0 ? fmax(tick_distance(most), p->least_tick) : 1;
    int num_ticks = most > 0 ? (int)ceil(most / distance) : 1;
    double bottom = top + PANEL;
    double scale = PANEL / (distance * num_ticks);
    for (int i = 0; i <= num_ticks; i++) {
        double y = bottom - distance * i * scale;
        fprintf(file, "<path stroke=\"#ddd\" d=\"M%d %.1fH%d\"/>\n", LEFT, y, RIGHT);
        fprintf(file, "<text class=\"tick\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", LEFT - 8, y + 4,
                distance * i);
    }
    fprintf(file, "<path stroke=\"#444\" fill=\"none\" d=\"M%d %.1fV%.1fH%d\"/>\n", LEFT, top, bottom, RIGHT);
    fprintf(file, "<text class=\"title\" x=\"%d\" y=\"%.1f\">%s</text>\n", LEFT, top - 12, p->title);
    fprintf(file, "<text transform=\"translate(24 %.1f) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
            top + PANEL / 2.0, p->unit);
    for (int i = 0; i < p->num_lines; i++) {
        const line *l = &p->lines[i];
        if (l->name)
            fprintf(file, "<text x=\"%d\" y=\"%.1f\" fill=\"%s\" text-anchor=\"end\">%s</text>\n",
                    RIGHT - 110 * (p->num_lines - 1 - i), top - 12, l->colour, l->name);
        write_line(curve, l, bottom, scale, file);
    }
}

/* A line through all panels at the pool, and what it means in the row above them. */
static void write_mark(const simulate_curve *curve, int32_t index, const char *dashes, int left, const char *meaning,
                       FILE *file) {
    if (index < 0)
        return;
    int32_t num_blocks = curve->pools[index].num_blocks;
    double x = x_of(curve, num_blocks);
    fprintf(file, "<path stroke=\"#222\" stroke-dasharray=\"%s\" d=\"M%d 24h36", dashes, left);
    for (int i = 0; i < NUM_PANELS; i++)
        fprintf(file, "M%.1f %dv%d", x, TOP + i * STRIDE, PANEL);
    fprintf(file, "\"/>\n<text x=\"%d\" y=\"28\">%" PRId32 " blocks: %s</text>\n", left + 44, num_blocks, meaning);
}

/* Pool sizes below the last panel, as many as can be read; the answer's come first. */
static void write_sizes(const simulate_curve *curve, FILE *file) {
    double written[CURVE_MAX_POOLS];
    int num_written = 0;
    for (int32_t i = -2; i < curve->num_pools; i++) {
        int32_t index = i == -2 ? curve->enough : i == -1 ? curve->knee : i;
        if (index < 0)
            continue;
        double x = x_of(curve, curve->pools[index].num_blocks);
        bool room = true;
        for (int j = 0; j < num_written; j++)
            room = room && fabs(written[j] - x) >= LABEL_WIDTH;
        if (!room)
            continue;
        written[num_written++] = x;
        fprintf(file, "<path stroke=\"#444\" d=\"M%.1f %dv5\"/>\n", x, BOTTOM);
        fprintf(file, "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%" PRId32 "</text>\n", x,
                BOTTOM + 19, curve->pools[index].num_blocks);
    }
}

void simulate_svg_write(const simulate_curve *curve, int32_t block_size, FILE *file) {
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n"
            "<style>.title{font-weight:bold}.tick{font-size:12px}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    for (int i = 0; i < NUM_PANELS; i++)
        write_panel(curve, &panels[i], TOP + i * STRIDE, file);
    write_mark(curve, curve->enough, "8 5", LEFT, "from here on no preemption", file);
    write_mark(curve, curve->knee, "2 4", LEFT + 400, "the knee", file);
    write_sizes(curve, file);
    fprintf(file,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">blocks of the pool, %" PRId32
            " tokens each (logarithmic)</text>\n</svg>\n",
            (LEFT + RIGHT) / 2, BOTTOM + 42, block_size);
}
