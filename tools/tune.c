/* SPDX-License-Identifier: Apache-2.0 */
/* pagedcl tune: finds the sizes with which the attention kernels are fastest on a device, and keeps them. */
#define _POSIX_C_SOURCE 200809L

#include "command.h"
#include "database.h"
#include "option.h"
#include "quantity.h"
#include "search.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_CELLS = 64, MAX_MERGED = 64 };

typedef struct arguments {
    const char *device;
    pagedcl_tier tier;
    bool verbose;
    const char *database;
    double seconds;
    bool again, same_bits, merge, is_quick;
    const char *model;
    pagedcl_dtype dtype;
    int kind; /* of bench_kind; -1: both */
    int32_t num_heads, num_kv_heads, head_dim;
    int32_t flush_mib; /* 0: by the device's caches */
    const char *merged[MAX_MERGED];
    int num_merged;
} arguments;

enum {
    KEY_SECONDS = 256,
    KEY_AGAIN,
    KEY_SAME_BITS,
    KEY_MERGE,
    KEY_MODEL,
    KEY_DTYPE,
    KEY_KIND,
    KEY_HEADS,
    KEY_KV_HEADS,
    KEY_HEAD_DIM,
    KEY_QUICK,
    KEY_FLUSH
};

static const struct argp_option options[] = {
    {"device", 'd', "SELECTOR", 0, "Tune this device: P:D, gpu, cpu, a vendor, or a part of its name", 1},
    {"tier", 't', "TIER", 0, "Tune these kernels: portable, cpu, nv_mma or nv_wgmma", 1},
    {"verbose", 'v', NULL, 0, "Say what the library logs", 1},
    {"database", 'o', "FILE", 0, "The tuning database to read and to write (pagedcl.tuning)", 2},
    {"seconds", KEY_SECONDS, "S", 0, "Time to spend in all (300)", 2},
    {"again", KEY_AGAIN, NULL, 0, "Families that the database has, too", 2},
    {"same-bits", KEY_SAME_BITS, NULL, 0, "Take only what gives the bits of the library's own sizes", 2},
    {"quick", KEY_QUICK, NULL, 0, "Small batches, timed for moments: to try it out", 2},
    {"flush", KEY_FLUSH, "MIB", 0, "Read so much to flush the caches (4 times what the driver says of them, or more)",
     2},
    {NULL, 0, NULL, 0, "What is tuned; without these, models of the benchmark's standard set:", 3},
    {"model", KEY_MODEL, "NAME", 0, "This model of the standard set", 3},
    {"dtype", KEY_DTYPE, "DTYPE", 0, "Elements of the pool (float16; of CPUs also float32)", 3},
    {"kind", KEY_KIND, "KIND", 0, "decode or prefill (both)", 3},
    {"heads", KEY_HEADS, "N", 0, "Query heads", 3},
    {"kv-heads", KEY_KV_HEADS, "N", 0, "KV heads", 3},
    {"head-dim", KEY_HEAD_DIM, "N", 0, "Elements of a head", 3},
    {NULL, 0, NULL, 0, "Databases of others:", 4},
    {"merge", KEY_MERGE, NULL, 0, "Put the databases A, B ... into that of --database, and tune nothing", 4},
    {0},
};

static error_t parse_kind(const char *value, int *kind) {
    *kind = strcmp(value, "decode") == 0 ? BENCH_KIND_DECODE : strcmp(value, "prefill") == 0 ? BENCH_KIND_PREFILL : -1;
    return *kind >= 0 ? 0 : option_bad("kind", value, "decode or prefill");
}

static error_t parse_merged(const char *value, arguments *a) {
    if (a->num_merged == MAX_MERGED) {
        command_fail("more than %d databases at once", MAX_MERGED);
        return EINVAL;
    }
    a->merged[a->num_merged++] = value;
    return 0;
}

/* What belongs together. */
static error_t check_arguments(const arguments *a) {
    if (a->merge && a->num_merged == 0)
        command_fail("--merge of what? name the databases");
    else if (!a->merge && a->num_merged > 0)
        command_fail("\"%s\" is no option; only --merge takes files", a->merged[0]);
    else if (a->num_heads > 0 && a->num_kv_heads > 0 && a->num_heads % a->num_kv_heads != 0)
        command_fail("%" PRId32 " query heads are no multiple of %" PRId32 " KV heads", a->num_heads, a->num_kv_heads);
    else
        return 0;
    return EINVAL;
}

static error_t parse_option(int key, char *value, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case 'd':
        a->device = value;
        return 0;
    case 't':
        return option_tier("tier", value, &a->tier);
    case 'v':
        a->verbose = true;
        return 0;
    case KEY_FLUSH:
        return option_count("flush", value, 1, BENCH_MOST_FLUSH_MIB, &a->flush_mib);
    case 'o':
        a->database = value;
        return 0;
    case KEY_SECONDS:
        return option_number("seconds", value, 1e6, &a->seconds);
    case KEY_AGAIN:
        a->again = true;
        return 0;
    case KEY_SAME_BITS:
        a->same_bits = true;
        return 0;
    case KEY_QUICK:
        a->is_quick = true;
        return 0;
    case KEY_MERGE:
        a->merge = true;
        return 0;
    case KEY_MODEL:
        a->model = value;
        return 0;
    case KEY_DTYPE:
        return option_dtype("dtype", value, &a->dtype);
    case KEY_KIND:
        return parse_kind(value, &a->kind);
    case KEY_HEADS:
        return option_count("heads", value, 1, 1 << 16, &a->num_heads);
    case KEY_KV_HEADS:
        return option_count("kv-heads", value, 1, 1 << 16, &a->num_kv_heads);
    case KEY_HEAD_DIM:
        return option_count("head-dim", value, 1, 576, &a->head_dim);
    case ARGP_KEY_ARG:
        return parse_merged(value, a);
    case ARGP_KEY_END:
        return check_arguments(a);
    default:
        return option_other(key, value, state);
    }
}

static const struct argp argp = {
    options,
    parse_option,
    "\n--merge A B...",
    "Finds the sizes (TUNE_ macros) with which the attention kernels are fastest on a device, and keeps them in a "
    "tuning "
    "database.\v"
    "Each trial is compared with a reference in double precision before and after it is timed. The winner of a family "
    "(kernel, tier, head_dims, dtypes, query heads per KV head) is timed against the library's own sizes by turns, and "
    "taken if it is 2 % faster or more. The database is written after each family; families that were searched to "
    "their end are left out, so that the same call goes on where another was ended.\n\n"
    "A program that uses PagedCL takes a database by the environment's PAGEDCL_TUNING, or by the options of its "
    "device. "
    "docs/tuning.md tells more.\n\n"
    "The exit status is 0; 1 when a trial gave a wrong result; 2 when it could not begin or the device failed.",
    NULL,
    NULL,
    NULL,
};

/* ---- what is tuned ---- */

/* A batch that is long enough to be typical and short enough to be tried often. */
static bool make_cell(const arguments *a, bool is_cpu, bench_kind kind, const char *model, pagedcl_dtype dtype,
                      bench_cell *cell) {
    if (!bench_cell_default(kind, model, cell)) {
        char names[256];
        bench_model_names(names, sizeof names);
        command_fail("no model \"%s\"; there are %s", model, names);
        return false;
    }
    bench_model *m = &cell->model;
    if (a->num_heads > 0 || a->num_kv_heads > 0 || a->head_dim > 0) {
        m->num_heads = a->num_heads > 0 ? a->num_heads : m->num_heads;
        m->num_kv_heads = a->num_kv_heads > 0 ? a->num_kv_heads : m->num_kv_heads;
        if (a->head_dim > 0) {
            m->head_dim = m->head_dim_v = a->head_dim;
            m->scale = 0;
        }
        bench_model_rename(m);
    }
    bool decode = kind == BENCH_KIND_DECODE;
    cell->dtype = dtype;
    cell->baseline = false;
    cell->batch = a->is_quick ? 2 : is_cpu ? (decode ? 4 : 1) : (decode ? 64 : 4);
    cell->context = a->is_quick ? 64 : is_cpu ? (decode ? 4096 : 512) : (decode ? 4096 : 2048);
    if (m->num_heads % m->num_kv_heads == 0)
        return true;
    command_fail("%" PRId32 " query heads are no multiple of %" PRId32 " KV heads", m->num_heads, m->num_kv_heads);
    return false;
}

/* The cells of all families, or -1 after a message. */
static int choose_cells(const arguments *a, bool is_cpu, bench_cell cells[MAX_CELLS]) {
    static const char *const standard[] = {"llama3-8b", "qwen3-0.6b", "gpt-oss", "gemma2-9b", "llama3-70b"};
    bool own = a->model != NULL || a->num_heads > 0 || a->num_kv_heads > 0 || a->head_dim > 0;
    int num_models = own ? 1 : (int)(sizeof standard / sizeof standard[0]), count = 0;
    pagedcl_dtype dtypes[2] = {a->dtype != PAGEDCL_DTYPE_DEFAULT ? a->dtype : PAGEDCL_FLOAT16, PAGEDCL_FLOAT32};
    int num_dtypes = a->dtype == PAGEDCL_DTYPE_DEFAULT && is_cpu ? 2 : 1;
    for (int d = 0; d < num_dtypes; d++)
        for (int m = 0; m < num_models; m++)
            for (int kind = BENCH_KIND_DECODE; kind <= BENCH_KIND_PREFILL; kind++) {
                if (a->kind >= 0 && a->kind != kind)
                    continue;
                const char *model = own ? a->model : standard[m];
                if (!make_cell(a, is_cpu, (bench_kind)kind, model, dtypes[d], &cells[count++]))
                    return -1;
            }
    return count;
}

/* ---- tuning ---- */

/* A line on a terminal's stderr. */
typedef struct progress_line {
    bool wanted;
    const char *family;
    int done, count; /* families */
    double end;
} progress_line;

static void show_progress(void *user, int trials, double best, double own) {
    const progress_line *p = user;
    char best_text[QUANTITY_SIZE], own_text[QUANTITY_SIZE];
    if (!p->wanted)
        return;
    int left = (int)fmax(0, p->end - bench_now() + 0.5);
    fprintf(stderr, "\r\033[K%s (%d of %d): %d tried, %s, was %s; at most %d:%02d min left", p->family, p->done + 1,
            p->count, trials, quantity_time(best_text, best), quantity_time(own_text, own), left / 60, left % 60);
}

static void clear_progress(const progress_line *p) {
    if (p->wanted)
        fputs("\r\033[K", stderr);
}

typedef struct session {
    const arguments *arguments;
    bench_rig rig;
    tune_database database;
    file_error file;
    double end;
    int tuned, faster, wrong, known;
} session;

/* "decode/llama3-8b/float16/4x4096  1.38 ms, was 1.90 ms: 1.38 times as fast (TUNE_ROWS=8 ...)" */
static void tell(const char *name, const tune_found *found) {
    char best[QUANTITY_SIZE], own[QUANTITY_SIZE];
    const char *values = found->line;
    for (int tabs = 0; tabs < 5; values++)
        tabs += *values == '\t';
    printf("%-40s %9s, was %9s: %.2f times as fast; %.*s%s; %d trials%s", name, quantity_time(best, found->best),
           quantity_time(own, found->own), found->own / found->best, (int)strcspn(values, "\t"), values,
           found->other_bits ? ", other bits" : "", found->trials, found->exhausted ? ", all" : "");
    if (found->wrong > 0)
        printf(", %d WRONG", found->wrong);
    putchar('\n');
    fflush(stdout);
}

static int tune_cell(session *s, const bench_cell *cell, int done, int count) {
    char name[192], line[1024];
    tool_error error = {0};
    bench_cell_name(cell, name, sizeof name);
    if (!tune_line_of(&s->rig, cell, line, &error)) {
        if (error.status == PAGEDCL_UNSUPPORTED) {
            printf("%-40s skipped: %s\n", name, error.text);
            return EXIT_OK;
        }
        return command_fail("%s: %s", name, error.text);
    }
    const char *known = tune_database_find(&s->database, line);
    if (!s->arguments->again && known != NULL && strstr(known, "\tsearch=part") == NULL) {
        s->known++;
        return EXIT_OK;
    }
    double left = s->end - bench_now();
    if (left <= 0 && s->tuned > 0) /* each call comes further by one family at least */
        return EXIT_OK;
    progress_line progress = {isatty(STDERR_FILENO) == 1, name, done, count, s->end};
    /* Some of the time is for the last comparison of each family. */
    const tune_rules rules = {.seconds = 0.75 * left / (count - done),
                              .sample_seconds = s->arguments->is_quick ? 0.005 : 0.15,
                              .effort = s->arguments->is_quick ? 1e7 : 5e7,
                              .same_bits = s->arguments->same_bits,
                              .progress = show_progress,
                              .user = &progress};
    tune_found found;
    bool ok = tune_search(&s->rig, cell, &rules, known, &found, &error);
    clear_progress(&progress);
    if (!ok)
        return command_fail("%s: %s", name, error.text);
    tell(name, &found);
    s->tuned++;
    s->faster += found.best < found.own;
    s->wrong += found.wrong;
    if (!tune_database_set(&s->database, found.line))
        return command_fail("out of memory");
    return tune_database_save(&s->database, &s->file) ? EXIT_OK : command_fail("%s", s->file.text);
}

static int tune_cells(session *s) {
    bench_cell cells[MAX_CELLS];
    int count = choose_cells(s->arguments, s->rig.is_cpu, cells), status = EXIT_OK;
    if (count < 0)
        return EXIT_USAGE;
    for (int i = 0; i < count && status == EXIT_OK; i++)
        status = tune_cell(s, &cells[i], i, count);
    if (status != EXIT_OK)
        return status;
    printf("%d tuned, %d of them faster; %d were known, %d are left; %s\n", s->tuned, s->faster, s->known,
           count - s->tuned - s->known, s->file.path);
    return s->wrong > 0 ? EXIT_FAILED : EXIT_OK;
}

/* What the file has already; a file that is not there has nothing. */
static bool read_database(session *s) {
    FILE *file = fopen(s->file.path, "r");
    if (file == NULL && errno == ENOENT)
        return true;
    if (file != NULL)
        fclose(file);
    if (tune_database_merge(&s->database, &s->file))
        return true;
    command_fail("%s", s->file.text);
    return false;
}

static int tune(session *s) {
    const arguments *a = s->arguments;
    tool_error error;
    if (!read_database(s))
        return EXIT_USAGE;
    /* Whether it can be written, before time is spent. */
    if (!tune_database_save(&s->database, &s->file))
        return command_fail("%s", s->file.text);
    bool opened = bench_rig_open(a->device, a->tier, a->verbose, a->flush_mib, &s->rig, &error);
    s->end = bench_now() + a->seconds;
    int status = opened ? tune_cells(s) : command_fail("%s", error.text);
    bench_rig_close(&s->rig);
    return status;
}

static int merge(session *s) {
    if (!read_database(s))
        return EXIT_USAGE;
    for (int i = 0; i < s->arguments->num_merged; i++) {
        file_error other = s->file;
        other.path = s->arguments->merged[i];
        if (!tune_database_merge(&s->database, &other))
            return command_fail("%s", other.text);
    }
    if (!tune_database_save(&s->database, &s->file))
        return command_fail("%s", s->file.text);
    printf("%zu lines in %s\n", s->database.count, s->file.path);
    return EXIT_OK;
}

static int run(int argc, char **argv) {
    arguments a = {.database = "pagedcl.tuning", .seconds = 300, .kind = -1};
    if (argp_parse(&argp, argc, argv, 0, NULL, &a) != 0)
        return EXIT_USAGE;
    char text[512];
    session s = {.arguments = &a, .file = {.path = a.database, .text = text, .size = sizeof text}};
    int status = a.merge ? merge(&s) : tune(&s);
    tune_database_free(&s.database);
    return status;
}

const command command_tune = {"tune", "find the sizes with which the kernels are fastest here", run};
