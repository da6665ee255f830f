/* SPDX-License-Identifier: Apache-2.0 */
#include "roofs.h"

#include <math.h>

/* A launch of one of the kernels. */
typedef struct roof {
    const bench_rig *rig;
    bench_kernel kernel;
    bench_argument arguments[3];
    cl_uint num_arguments;
    size_t items;
    size_t group;
} roof;

static bool enqueue(void *user, cl_event *event, tool_error *error) {
    const roof *r = user;
    return bench_launch(r->rig, r->kernel, r->arguments, r->num_arguments, r->items, r->group, event, error);
}

static bool measure(roof *r, double seconds, bench_timing *timing, tool_error *error) {
    const bench_rules rules = {.seconds = seconds, .min_samples = 3, .max_samples = 20};
    const bench_work work = {.enqueue = enqueue, .user = r};
    return bench_measure(r->rig, &rules, &work, timing, error);
}

/* Keeps the better rate; NaN is no rate. */
static void keep_best(double *best, double amount, double seconds) {
    double rate = amount / seconds;
    if (isfinite(rate) && !(rate <= *best))
        *best = rate;
}

/* Work-groups for each compute unit. Where a work-item has its own stretch, it is a work-group. */
static const size_t groups_per_unit[] = {1, 2, 4, 8, 16};
enum { NUM_GROUPS = sizeof groups_per_unit / sizeof groups_per_unit[0] };

/* Of a kernel that touches `bytes` of `in`, `traffic` bytes for each of these. */
static bool measure_memory(const bench_rig *rig, bench_kernel kernel, cl_mem first, cl_mem second, uint64_t bytes,
                           double traffic, double seconds, double *best, tool_error *error) {
    cl_uint seed = 0;
    for (int i = 0; i < NUM_GROUPS; i++) {
        size_t group = rig->is_cpu ? 1 : bench_group(rig, 256);
        size_t items = groups_per_unit[i] * rig->info.compute_units * group;
        cl_ulong count = bytes / (rig->is_cpu ? 64 : 16) / (4 * items) * (4 * items);
        if (count == 0)
            continue;
        roof r = {.rig = rig, .kernel = kernel, .num_arguments = 3, .items = items, .group = group};
        r.arguments[0] = (bench_argument)BENCH_ARGUMENT(first);
        r.arguments[1] = (bench_argument)BENCH_ARGUMENT(count);
        r.arguments[2] = (bench_argument)BENCH_ARGUMENT(second);
        if (kernel == BENCH_WRITE)
            r.arguments[2] = (bench_argument)BENCH_ARGUMENT(seed);
        bench_timing timing;
        if (!measure(&r, seconds / NUM_GROUPS, &timing, error))
            return false;
        keep_best(best, traffic * (double)count * (rig->is_cpu ? 64 : 16), timing.last.median);
    }
    return true;
}

/* Four times the caches, so that what they keep of it from run to run does not count. */
static uint64_t memory_bytes(const bench_rig *rig) {
    uint64_t most = rig->info.global_memory / 8, bytes = 4 * rig->flush_bytes;
    if (most > rig->info.max_allocation)
        most = rig->info.max_allocation;
    if (rig->is_cpu)
        bytes = 2 * rig->flush_bytes;
    return bytes < most ? bytes : most;
}

/* A system may give one buffer slower memory than the next: pages of another size, or farther away. So the best of some
   counts, which are held until all are measured: otherwise they were the same. */
enum { PLACES = 3 };

static bool measure_bandwidths(const bench_rig *rig, double seconds, bench_roofs *roofs, tool_error *error) {
    const uint64_t bytes = memory_bytes(rig), most = rig->info.global_memory / 4 / (bytes + bytes / 2);
    const int places = most < 1 ? 1 : most < PLACES ? (int)most : PLACES;
    const double each = seconds / places;
    cl_mem a[PLACES] = {NULL}, b[PLACES] = {NULL};
    bool ok = true;
    for (int i = 0; i < places && ok; i++) {
        a[i] = bench_buffer(rig, bytes, error);
        b[i] = a[i] != NULL ? bench_buffer(rig, bytes / 2, error) : NULL;
        ok = b[i] != NULL && measure_memory(rig, BENCH_WRITE, a[i], NULL, bytes, 1, each, &roofs->write, error) &&
             measure_memory(rig, BENCH_READ, a[i], rig->sink, bytes, 1, each, &roofs->read, error) &&
             measure_memory(rig, BENCH_COPY, a[i], b[i], bytes / 2, 2, each, &roofs->copy, error);
    }
    for (int i = 0; i < places; i++) {
        if (a[i] != NULL)
            clReleaseMemObject(a[i]);
        if (b[i] != NULL)
            clReleaseMemObject(b[i]);
    }
    return ok;
}

/* operations: of one round of a work-item. The rounds are doubled until a run takes long enough to be measured well. */
static bool measure_rate(const bench_rig *rig, bench_kernel kernel, double operations, double seconds, double *rate,
                         tool_error *error) {
    if (rig->kernels[kernel] == NULL)
        return true;
    cl_int rounds = 128;
    cl_float start = 0.001f;
    roof r = {.rig = rig, .kernel = kernel, .num_arguments = 3};
    r.group = rig->is_cpu ? 1 : bench_group(rig, 256);
    r.items = rig->info.compute_units * r.group * (rig->is_cpu ? 4 : 8);
    r.arguments[0] = (bench_argument)BENCH_ARGUMENT(rig->sink);
    r.arguments[1] = (bench_argument)BENCH_ARGUMENT(rounds);
    r.arguments[2] = (bench_argument)BENCH_ARGUMENT(start);
    bench_timing timing = bench_timing_none();
    do {
        if (!measure(&r, seconds / 8, &timing, error))
            return false;
    } while (!(timing.last.median > 2e-3) && rounds < 1 << 24 && (rounds *= 4));
    /* Other work on the machine may take a core away for one of these. */
    enum { TIMES = 3 };
    for (int i = 0; i < TIMES; i++) {
        if (!measure(&r, seconds / TIMES, &timing, error))
            return false;
        keep_best(rate, operations * rounds * (double)r.items, timing.last.median);
    }
    return true;
}

static bool measure_launch(const bench_rig *rig, double seconds, bench_roofs *roofs, tool_error *error) {
    roof r = {.rig = rig, .kernel = BENCH_NOTHING, .num_arguments = 1, .items = 1, .group = 1};
    r.arguments[0] = (bench_argument)BENCH_ARGUMENT(rig->sink);
    const bench_work work = {.enqueue = enqueue, .user = &r};
    const bench_rules rules = {.seconds = seconds, .min_samples = 5, .max_samples = 200};
    bench_timing timing;
    if (!bench_measure(rig, &rules, &work, &timing, error))
        return false;
    roofs->launch = timing.host.median;
    double waits[64];
    for (int i = 0; i < 64; i++) {
        double begin = bench_now();
        if (!enqueue(&r, NULL, error) || !tool_try_opencl(error, clFinish(rig->queue), "clFinish"))
            return false;
        waits[i] = bench_now() - begin;
    }
    roofs->launch_and_wait = bench_spread_of(waits, 64).median;
    return true;
}

bool bench_roofs_measure(const bench_rig *rig, double seconds, bench_roofs *roofs, tool_error *error) {
    *roofs = (bench_roofs){NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    double chains = 20 * (double)rig->fma_width;
    return measure_bandwidths(rig, seconds, roofs, error) &&
           measure_rate(rig, BENCH_MULTIPLY_ADD, chains, seconds, &roofs->multiply_add, error) &&
           measure_rate(rig, BENCH_MULTIPLY_ADD_HALF, chains, seconds, &roofs->multiply_add_half, error) &&
           measure_rate(rig, BENCH_MATRIX_MULTIPLY, 32768.0 / 32, seconds, &roofs->matrix, error) &&
           measure_launch(rig, seconds, roofs, error);
}
