/* SPDX-License-Identifier: Apache-2.0 */
/* Taking times of commands, by the device's clock and by the host's. */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include "rig.h"

/* Seconds. NaN throughout when nothing was measured. */
typedef struct bench_spread {
    double median;
    double low, high; /* the quartiles */
    double min, max;
} bench_spread;

typedef struct bench_timing {
    int32_t count;       /* samples */
    int32_t repeats;     /* runs in a sample, one behind the other; times are of one run */
    bench_spread device; /* from the end of the command before the run to the end of the run, on the device's clock */
    bench_spread last;   /* of the run's last command alone, likewise */
    bench_spread host;   /* from before the call until the host knows that it is done */
} bench_timing;

/* What is measured. */
typedef struct bench_work {
    /* Enqueues one run; *event, when event is not NULL, covers it. */
    bool (*enqueue)(void *user, cl_event *event, tool_error *error);
    void *user;
} bench_work;

typedef struct bench_rules {
    double seconds; /* to spend, warm-up not counted */
    int32_t min_samples;
    int32_t max_samples;
    bool cold; /* before each sample the caches are flushed. Otherwise a sample is of several runs if they are short */
} bench_rules;

/* A timing of nothing. */
bench_timing bench_timing_none(void);

/* Sorts the values. A value that is not above 0, which no run takes, makes the spread NaN. */
bench_spread bench_spread_of(double *values, int32_t count);

/* Runs the work, to warm up and then to be measured. */
bool bench_measure(const bench_rig *rig, const bench_rules *rules, const bench_work *work, bench_timing *timing,
                   tool_error *error);

#endif
