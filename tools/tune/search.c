/* SPDX-License-Identifier: Apache-2.0 */
#include "search.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VALUES = 8, MAX_TRIALS = 512, MOST_VALUE = 512, FINAL_ROUNDS = 5 };

/* Sizes of a kernel, as the library names them. */
typedef struct sizes {
    int count;
    char names[MAX_VALUES][24];
    int values[MAX_VALUES];
} sizes;

typedef enum trial_state { IMPOSSIBLE, WRONG, TIMED } trial_state;

typedef struct trial {
    sizes sizes;
    trial_state state;
    double seconds; /* the lower quartile: what else the machine does makes times longer only */
    uint64_t digest;
    int next; /* the neighbour to try next */
} trial;

typedef struct search {
    bench_rig *rig;
    const bench_cell *cell;
    const tune_rules *rules;
    char own_line[1024];
    int count;
    trial trials[MAX_TRIALS]; /* the first has the library's own sizes */
} search;

/* "TUNE_WG=1 TUNE_ROWS=16 ..." at the end of a line. */
static bool read_sizes(const char *line, sizes *s) {
    s->count = 0;
    const char *at = strrchr(line, '\t');
    int used = 0;
    for (at = at != NULL ? at + 1 : line;
         s->count < MAX_VALUES && sscanf(at, "%23[A-Z_]=%d%n", s->names[s->count], &s->values[s->count], &used) == 2;
         at += used + (at[used] == ' '))
        s->count++;
    return s->count > 0 && *at == '\0';
}

static int *value_of(sizes *s, const char *name) {
    for (int i = 0; i < s->count; i++)
        if (strcmp(s->names[i], name) == 0)
            return &s->values[i];
    return NULL;
}

/* No more rows of a tile that has few than of one that has many. */
static void clamp(sizes *s) {
    int *rows = value_of(s, "TUNE_ROWS"), *few = value_of(s, "TUNE_FEW_ROWS");
    if (rows != NULL && few != NULL && *few > *rows)
        *few = *rows;
}

static bool same_sizes(const sizes *a, const sizes *b) {
    return a->count == b->count && memcmp(a->values, b->values, (size_t)a->count * sizeof a->values[0]) == 0;
}

/* The line of a family with other sizes. */
static void write_line(const char *own_line, const sizes *s, char *line, size_t size) {
    int used = snprintf(line, size, "%.*s", (int)(strrchr(own_line, '\t') - own_line), own_line);
    for (int i = 0; i < s->count && used > 0 && (size_t)used < size; i++)
        used += snprintf(line + used, size - (size_t)used, "%c%s=%d", i == 0 ? '\t' : ' ', s->names[i], s->values[i]);
}

/* The device's operators have these sizes from now on; NULL: the library's own. */
static bool use_sizes(const search *s, const sizes *with, tool_error *error) {
    char line[1024] = "", text[1100];
    if (with != NULL)
        write_line(s->own_line, with, line, sizeof line);
    snprintf(text, sizeof text, "pagedcl-tuning 1\n%s\n", line);
    return tool_try(error, pagedcl_device_tune(s->rig->device, text, strlen(text), NULL), "sizes");
}

/* Checked, timed, and checked again, as the benchmark does. What fails is a wrong result or an error of the device. */
static bool time_subject(const search *s, const bench_subject *subject, double seconds, trial *t, tool_error *error) {
    const bench_rules rules = {.seconds = seconds, .min_samples = 3, .max_samples = 100, .cold = !s->cell->warm};
    bench_check ignored = {0};
    bench_timing timing;
    if (!subject->check(subject->user, &subject->work, &ignored, error) ||
        !bench_measure(s->rig, &rules, &subject->work, &timing, error) ||
        !subject->check(subject->user, &subject->work, &ignored, error) ||
        !subject->digest(subject->user, &t->digest, error))
        return false;
    t->seconds = timing.device.low;
    return isfinite(t->seconds) || tool_fail(error, "the clocks gave no times");
}

/* Fails only when the device does; what the kernel cannot have, and what is wrong, is said in the trial. */
static bool run_trial(const search *s, double seconds, trial *t, tool_error *error) {
    bench_subject subject = {0};
    sizes used;
    t->state = IMPOSSIBLE;
    s->rig->variants[0] = '\0';
    if (!use_sizes(s, &t->sizes, error) || !bench_attn_subject(s->rig, s->cell, s->rules->effort, &subject, error))
        return false;
    bool ok = true;
    if (read_sizes(subject.tuning, &used) && same_sizes(&used, &t->sizes)) {
        ok = time_subject(s, &subject, seconds, t, error);
        t->state = ok ? TIMED : WRONG;
        ok = ok || strncmp(error->text, "wrong result", strlen("wrong result")) == 0;
    }
    subject.release(subject.user);
    return ok;
}

/* The rows of a tile of decode are also how many sequences may share a prefix, which a batch that shares nothing would
   tune away. The cpu tier has one work-item in a work-group, and makes no difference between few rows and many. */
static bool is_used(const search *s, const char *name) {
    bool cpu = strstr(s->own_line, " tier=cpu ") != NULL;
    if (s->cell->kind == BENCH_KIND_DECODE && strcmp(name, "TUNE_ROWS") == 0)
        return false;
    return !cpu || (strcmp(name, "TUNE_WG") != 0 && strcmp(name, "TUNE_FEW_ROWS") != 0);
}

/* Work-items of a work-group that help those whose number is tuned. */
static int helpers(const search *s) {
    enum { OF_STREAM = 128 };
    return strstr(s->own_line, "\tattn_decode tier=nv_wgmma ") != NULL ? OF_STREAM : 0;
}

/* The k-th way to be next to some sizes: one of them doubled or halved, a stage more or less. False: it is none. */
static bool neighbour(const search *s, const sizes *from, int k, sizes *to) {
    if (!is_used(s, from->names[k / 2]))
        return false;
    *to = *from;
    int *value = &to->values[k / 2];
    const bool more = k % 2 == 0;
    const int apart = strcmp(to->names[k / 2], "TUNE_WG") == 0 ? helpers(s) : 0;
    if (strcmp(to->names[k / 2], "TUNE_STAGES") == 0)
        *value += more ? 1 : -1;
    else
        *value = apart + (more ? (*value - apart) * 2 : (*value - apart) / 2);
    clamp(to);
    return true;
}

/* Whether the sizes are others than those of every trial, and may be worth one. */
static bool is_new(const search *s, const sizes *candidate) {
    for (int i = 0; i < candidate->count; i++)
        if (candidate->values[i] < 1 || candidate->values[i] > MOST_VALUE)
            return false;
    for (int i = 0; i < s->count; i++)
        if (same_sizes(&s->trials[i].sizes, candidate))
            return false;
    return true;
}

/* The fastest trial that has a neighbour left, and is not hopeless. */
static trial *most_promising(search *s, double best) {
    trial *found = NULL;
    for (int i = 0; i < s->count; i++) {
        trial *t = &s->trials[i];
        bool open = t->state == TIMED && t->next < 2 * t->sizes.count && t->seconds < 1.5 * best;
        if (open && (found == NULL || t->seconds < found->seconds))
            found = t;
    }
    return found;
}

static bool may_win(const search *s, const trial *t) {
    return t->state == TIMED && (!s->rules->same_bits || t->digest == s->trials[0].digest);
}

static trial *fastest(search *s) {
    trial *best = &s->trials[0];
    for (int i = 1; i < s->count; i++)
        if (may_win(s, &s->trials[i]) && s->trials[i].seconds < best->seconds)
            best = &s->trials[i];
    return best;
}

static bool try_all(search *s, double end, tune_found *found, tool_error *error) {
    found->exhausted = false;
    while (s->count < MAX_TRIALS && bench_now() < end) {
        trial *from = most_promising(s, fastest(s)->seconds);
        if (from == NULL) {
            found->exhausted = true;
            break;
        }
        trial *next = &s->trials[s->count];
        *next = (trial){0};
        if (!neighbour(s, &from->sizes, from->next++, &next->sizes) || !is_new(s, &next->sizes))
            continue;
        if (s->rules->progress != NULL)
            s->rules->progress(s->rules->user, found->trials, fastest(s)->seconds, s->trials[0].seconds);
        if (!run_trial(s, s->rules->sample_seconds, next, error))
            return false;
        s->count++;
        found->trials += next->state != IMPOSSIBLE;
        found->wrong += next->state == WRONG;
    }
    return true;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The winner against the library's own sizes, by turns, so that what else the machine does meets both: medians. */
static bool run_final(search *s, trial *best, tune_found *found, tool_error *error) {
    double own[FINAL_ROUNDS], other[FINAL_ROUNDS];
    for (int i = 0; i < FINAL_ROUNDS; i++) {
        trial a = s->trials[0], b = *best;
        if (!run_trial(s, s->rules->sample_seconds, &a, error) || !run_trial(s, s->rules->sample_seconds, &b, error))
            return false;
        if (a.state != TIMED || b.state != TIMED)
            return tool_fail(error, "a result that was right is wrong in another run");
        own[i] = a.seconds;
        other[i] = b.seconds;
    }
    qsort(own, FINAL_ROUNDS, sizeof *own, by_value);
    qsort(other, FINAL_ROUNDS, sizeof *other, by_value);
    found->own = own[FINAL_ROUNDS / 2];
    found->best = other[FINAL_ROUNDS / 2];
    return true;
}

static bool start(search *s, tool_error *error) {
    trial *own = &s->trials[0];
    if (!tune_line_of(s->rig, s->cell, s->own_line, error))
        return false;
    if (!read_sizes(s->own_line, &own->sizes))
        return tool_fail(error, "the sizes of the kernel cannot be read");
    if (!run_trial(s, s->rules->sample_seconds, own, error))
        return false;
    s->count = 1;
    return own->state == TIMED || tool_fail(error, "the library's own sizes: %s", error->text);
}

/* Tries what an earlier search came to. */
static bool try_sizes(search *s, const char *line, tune_found *found, tool_error *error) {
    const char *values = line;
    char text[256];
    for (int tabs = 0; tabs < 5 && *values != '\0'; values++)
        tabs += *values == '\t';
    snprintf(text, sizeof text, "%.*s", (int)strcspn(values, "\t"), values);
    trial *t = &s->trials[s->count];
    *t = (trial){0};
    if (!read_sizes(text, &t->sizes) || t->sizes.count != s->trials[0].sizes.count || !is_new(s, &t->sizes))
        return true;
    if (!run_trial(s, s->rules->sample_seconds, t, error))
        return false;
    s->count++;
    found->trials += t->state != IMPOSSIBLE;
    found->wrong += t->state == WRONG;
    return true;
}

static bool find(search *s, const char *from, double end, tune_found *found, tool_error *error) {
    if (!start(s, error) || (from != NULL && !try_sizes(s, from, found, error)) || !try_all(s, end, found, error))
        return false;
    trial *best = fastest(s);
    found->own = found->best = s->trials[0].seconds;
    if (best != &s->trials[0] && !run_final(s, best, found, error))
        return false;
    /* Less than that is what the clock makes of nothing. */
    if (!(found->best < 0.98 * found->own)) {
        best = &s->trials[0];
        found->best = found->own;
    }
    found->other_bits = best->digest != s->trials[0].digest;
    write_line(s->own_line, &best->sizes, found->line, sizeof found->line);
    size_t used = strlen(found->line);
    char name[192];
    bench_cell_name(s->cell, name, sizeof name);
    snprintf(found->line + used, sizeof found->line - used, "\tus=%.4g\town_us=%.4g\tbits=%s\tsearch=%s\tcell=%s",
             found->best * 1e6, found->own * 1e6, found->other_bits ? "other" : "same",
             found->exhausted ? "whole" : "part", name);
    return true;
}

bool tune_line_of(bench_rig *rig, const bench_cell *cell, char line[1024], tool_error *error) {
    bench_subject subject = {0};
    bench_cell small = *cell;
    small.batch = 1;
    small.context = 2;
    rig->variants[0] = '\0';
    if (!tool_try(error, pagedcl_device_tune(rig->device, NULL, 0, NULL), "sizes") ||
        !bench_attn_subject(rig, &small, 1, &subject, error))
        return false;
    snprintf(line, 1024, "%s", subject.tuning);
    subject.release(subject.user);
    return true;
}

bool tune_search(bench_rig *rig, const bench_cell *cell, const tune_rules *rules, const char *from, tune_found *found,
                 tool_error *error) {
    *found = (tune_found){0};
    search *s = calloc(1, sizeof *s);
    if (s == NULL)
        return tool_fail(error, "out of memory");
    s->rig = rig;
    s->cell = cell;
    s->rules = rules;
    bool quiet = rig->quiet;
    rig->quiet = true; /* that a kernel cannot have some sizes is how that is found out */
    bool ok = find(s, from, bench_now() + rules->seconds, found, error);
    tool_error ignored;
    ok = use_sizes(s, NULL, ok ? error : &ignored) && ok;
    rig->quiet = quiet;
    free(s);
    return ok;
}
