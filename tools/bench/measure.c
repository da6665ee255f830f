/* SPDX-License-Identifier: Apache-2.0 */
#include "measure.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_SAMPLES = 1000, MAX_REPEATS = 50 };

typedef struct samples {
    double device[MAX_SAMPLES];
    double last[MAX_SAMPLES];
    double host[MAX_SAMPLES];
} samples;

static bench_spread no_spread(void) {
    return (bench_spread){NAN, NAN, NAN, NAN, NAN};
}

bench_timing bench_timing_none(void) {
    return (bench_timing){.device = no_spread(), .last = no_spread(), .host = no_spread()};
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Between the two nearest values. */
static double quantile(const double *sorted, int32_t count, double share) {
    double place = share * (count - 1);
    int32_t below = (int32_t)place;
    int32_t above = below + 1 < count ? below + 1 : below;
    return sorted[below] + (place - below) * (sorted[above] - sorted[below]);
}

bench_spread bench_spread_of(double *values, int32_t count) {
    for (int32_t i = 0; i < count; i++)
        if (!(values[i] > 0))
            return no_spread();
    if (count < 1)
        return no_spread();
    qsort(values, (size_t)count, sizeof *values, by_value);
    return (bench_spread){.median = quantile(values, count, 0.5),
                          .low = quantile(values, count, 0.25),
                          .high = quantile(values, count, 0.75),
                          .min = values[0],
                          .max = values[count - 1]};
}

static bool event_time(cl_event event, cl_profiling_info what, double *seconds, tool_error *error) {
    cl_ulong nanoseconds = 0;
    cl_int code = clGetEventProfilingInfo(event, what, sizeof nanoseconds, &nanoseconds, NULL);
    *seconds = (double)nanoseconds * 1e-9;
    return tool_try_opencl(error, code, "clGetEventProfilingInfo");
}

static bool finish(const bench_rig *rig, tool_error *error) {
    return tool_try_opencl(error, clFinish(rig->queue), "clFinish");
}

static bool run_often(const bench_work *work, int32_t repeats, cl_event *event, tool_error *error) {
    for (int32_t i = 0; i < repeats; i++)
        if (!work->enqueue(work->user, i + 1 < repeats ? NULL : event, error))
            return false;
    return true;
}

/* Keeps the device busy while the host enqueues what comes next, and then gives the time at which that begins. */
static bool lead_in(const bench_rig *rig, const bench_rules *rules, cl_event *event, tool_error *error) {
    const bench_argument nothing[] = {BENCH_ARGUMENT(rig->sink)};
    cl_int rounds = rig->is_cpu ? 100 : 4000;
    cl_float start = 0.001f;
    const bench_argument busy[] = {BENCH_ARGUMENT(rig->sink), BENCH_ARGUMENT(rounds), BENCH_ARGUMENT(start)};
    bool ok = rules->cold ? bench_flush(rig, error)
                          : bench_launch(rig, BENCH_MULTIPLY_ADD, busy, 3, bench_group(rig, 256), bench_group(rig, 256),
                                         NULL, error);
    return ok && bench_launch(rig, BENCH_NOTHING, nothing, 1, 1, 1, event, error);
}

static bool sample_device(const bench_rig *rig, const bench_rules *rules, const bench_work *work, int32_t repeats,
                          double *device, double *last, tool_error *error) {
    cl_event before = NULL, event = NULL;
    double begin = 0, start = 0, end = 0;
    bool ok = lead_in(rig, rules, &before, error) && run_often(work, repeats, &event, error) && finish(rig, error) &&
              event_time(before, CL_PROFILING_COMMAND_END, &begin, error) &&
              event_time(event, CL_PROFILING_COMMAND_START, &start, error) &&
              event_time(event, CL_PROFILING_COMMAND_END, &end, error);
    if (before != NULL)
        clReleaseEvent(before);
    if (event != NULL)
        clReleaseEvent(event);
    *device = (end - begin) / repeats;
    *last = end - start;
    return ok;
}

static bool sample_host(const bench_rig *rig, const bench_rules *rules, const bench_work *work, int32_t repeats,
                        double *host, tool_error *error) {
    if ((rules->cold && !bench_flush(rig, error)) || !finish(rig, error))
        return false;
    double begin = bench_now();
    bool ok = run_often(work, repeats, NULL, error) && finish(rig, error);
    *host = (bench_now() - begin) / repeats;
    return ok;
}

/* The first run may build, allocate, fault pages in; a device that idled may be slow. */
static bool warm_up(const bench_rig *rig, const bench_work *work, const bench_rules *rules, int32_t *repeats,
                    tool_error *error) {
    const double enough = rules->seconds < 0.1 ? rules->seconds : 0.1;
    double begin = bench_now(), took = 0;
    int32_t runs = 0;
    do {
        double start = bench_now();
        if (!run_often(work, 1, NULL, error) || !finish(rig, error))
            return false;
        took = bench_now() - start;
        runs++;
    } while (runs < 2 || bench_now() - begin < enough);
    *repeats = 1;
    if (!rules->cold && took < 1e-3)
        *repeats = took > 1e-3 / MAX_REPEATS ? (int32_t)(1e-3 / took) : MAX_REPEATS;
    return true;
}

static bool take_samples(const bench_rig *rig, const bench_rules *rules, const bench_work *work, samples *s,
                         bench_timing *timing, tool_error *error) {
    int32_t most = rules->max_samples < MAX_SAMPLES ? rules->max_samples : MAX_SAMPLES;
    double begin = bench_now();
    while (timing->count < most && (timing->count < rules->min_samples || bench_now() - begin < rules->seconds)) {
        int32_t i = timing->count;
        if (!sample_device(rig, rules, work, timing->repeats, &s->device[i], &s->last[i], error) ||
            !sample_host(rig, rules, work, timing->repeats, &s->host[i], error))
            return false;
        timing->count++;
    }
    return true;
}

bool bench_measure(const bench_rig *rig, const bench_rules *rules, const bench_work *work, bench_timing *timing,
                   tool_error *error) {
    *timing = bench_timing_none();
    samples *s = malloc(sizeof *s);
    if (s == NULL)
        return tool_fail(error, "out of memory");
    bool ok = warm_up(rig, work, rules, &timing->repeats, error) && take_samples(rig, rules, work, s, timing, error);
    if (ok) {
        timing->device = bench_spread_of(s->device, timing->count);
        timing->last = bench_spread_of(s->last, timing->count);
        timing->host = bench_spread_of(s->host, timing->count);
    }
    free(s);
    return ok;
}
