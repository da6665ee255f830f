/* SPDX-License-Identifier: Apache-2.0 */
/* pagedcl bench: how fast attention is on a device, and how near that is to what the device can do. */
#define _POSIX_C_SOURCE 200809L

#include "command.h"
#include "option.h"
#include "report.h"
#include "stored.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CELLS = 256, NOT_GIVEN = -1 };

/* A cell of the user's own: what is NOT_GIVEN, or NULL, is as in the standard set. */
typedef struct own_cell {
    bool wanted;
    unsigned kinds; /* bit k: kind k; 0: decode */
    const char *model;
    int32_t num_heads, num_kv_heads, head_dim, head_dim_v, window, batch, context, query, layers;
    bool v_in_k, has_sinks, ragged;
    double softcap;
} own_cell;

typedef struct arguments {
    const char *device;
    pagedcl_tier tier;
    bool quick;
    bool list;
    bool verbose;
    const char *set; /* NULL: the device's */
    const char *json;
    const char *check;
    regex_t filter;
    bool has_filter;
    double seconds; /* a cell; 0: the default */
    bool no_baseline;
    bool sequential;
    pagedcl_layout layout;
    bool fast_splits;
    bool warm;
    int32_t flush_mib; /* 0: by the device's caches */
    int32_t block_size;
    pagedcl_dtype dtype; /* DEFAULT: as in the standard set */
    own_cell own;
} arguments;

enum {
    KEY_QUICK = 256,
    KEY_SET,
    KEY_LIST,
    KEY_CHECK,
    KEY_TIME,
    KEY_NO_BASELINE,
    KEY_SEQUENTIAL,
    KEY_LAYOUT,
    KEY_SPLITS,
    KEY_WARM,
    KEY_FLUSH,
    KEY_BLOCK_SIZE,
    KEY_DTYPE,
    KEY_KIND,
    KEY_MODEL,
    KEY_HEADS,
    KEY_KV_HEADS,
    KEY_HEAD_DIM,
    KEY_HEAD_DIM_V,
    KEY_V_IN_K,
    KEY_WINDOW,
    KEY_SOFTCAP,
    KEY_SINKS,
    KEY_BATCH,
    KEY_CONTEXT,
    KEY_RAGGED,
    KEY_QUERY,
    KEY_LAYERS,
};

static const struct argp_option options[] = {
    {"device", 'd', "SELECTOR", 0, "Run on this device: P:D, gpu, cpu, a vendor, or a part of its name", 1},
    {"tier", 't', "TIER", 0, "Use these kernels: portable, cpu, nv_mma or nv_wgmma", 1},
    {"verbose", 'v', NULL, 0, "Say what the library logs", 1},
    {NULL, 0, NULL, 0, "What is measured:", 2},
    {"quick", KEY_QUICK, NULL, 0, "A small part of the standard set, measured for a short time", 2},
    {"set", KEY_SET, "SET", 0, "The standard set of other devices: cpu, gpu, or all (that of the device's kind)", 2},
    {"filter", 'f', "REGEX", 0, "Only cells whose names match", 2},
    {"list", KEY_LIST, NULL, 0, "Print the names of the cells, and measure nothing", 2},
    {"time", KEY_TIME, "SECONDS", 0, "Time to spend on a cell (1; quick: 0.3)", 2},
    {"no-baseline", KEY_NO_BASELINE, NULL, 0, "Leave out the gather baseline", 2},
    {"sequential", KEY_SEQUENTIAL, NULL, 0, "Blocks one behind the other instead of shuffled", 2},
    {"layout", KEY_LAYOUT, "LAYOUT", 0,
     "Of a block: nhd, where a token's heads lie together, or hnd, where a head's tokens do (nhd)", 2},
    {"splits", KEY_SPLITS, "MODE", 0,
     "Parts of a sequence in decode and step: fixed, of equal length, or fast, by the device and the batch (fixed)", 2},
    {"warm", KEY_WARM, NULL, 0, "Runs follow each other instead of flushing the caches before each", 2},
    {"flush", KEY_FLUSH, "MIB", 0, "Read so much to flush the caches (4 times the largest that is known, or more)", 2},
    {"block-size", KEY_BLOCK_SIZE, "N", 0, "Tokens that a block holds (16)", 2},
    {"dtype", KEY_DTYPE, "DTYPE", 0,
     "Elements of the pool: float32, float16, bfloat16, int8, float8_e4m3, float8_e5m2, int4", 2},
    {NULL, 0, NULL, 0, "A cell of one's own, instead of the standard set; what is not given is Llama-3-8B's:", 3},
    {"kind", KEY_KIND, "KIND[,KIND...]", 0,
     "decode, prefill, step, write, gather, copy, merge, or several with commas (decode)", 3},
    {"model", KEY_MODEL, "NAME", 0, "A model of the standard set", 3},
    {"heads", KEY_HEADS, "N", 0, "Query heads", 3},
    {"kv-heads", KEY_KV_HEADS, "N", 0, "KV heads", 3},
    {"head-dim", KEY_HEAD_DIM, "N", 0, "Elements of a head", 3},
    {"head-dim-v", KEY_HEAD_DIM_V, "N", 0, "Elements of a head of V, if they are others", 3},
    {"v-in-k", KEY_V_IN_K, NULL, 0, "V is the first elements of K: latent attention", 3},
    {"window", KEY_WINDOW, "N", 0, "Keys that a token sees, at most", 3},
    {"softcap", KEY_SOFTCAP, "C", 0, "Cap of the scores", 3},
    {"sinks", KEY_SINKS, NULL, 0, "With a sink for each head", 3},
    {"batch", KEY_BATCH, "N", 0, "Sequences (1)", 3},
    {"context", KEY_CONTEXT, "N", 0, "Tokens of each sequence, new ones included (1024)", 3},
    {"ragged", KEY_RAGGED, NULL, 0, "Lengths spread by their logarithms, from 1/236 of the context to all of it", 3},
    {"query", KEY_QUERY, "N", 0, "Query tokens of each sequence (decode and step: 1; prefill: all)", 3},
    {"layers", KEY_LAYERS, "N", 0, "Layers of a step (8)", 3},
    {NULL, 0, NULL, 0, "Output:", 4},
    {"json", 'j', "FILE", 0, "Write all results as one JSON document", 4},
    {"check", KEY_CHECK, "FILE", 0, "Compare with such a document, and fail where this run is slower", 4},
    {0},
};

static error_t parse_kinds(const char *value, unsigned *kinds) {
    *kinds = 0;
    for (const char *at = value;; at++) {
        size_t length = strcspn(at, ",");
        unsigned found = 0;
        for (int i = 0; i < BENCH_NUM_KINDS; i++)
            if (strlen(bench_kind_name((bench_kind)i)) == length &&
                strncmp(bench_kind_name((bench_kind)i), at, length) == 0)
                found = 1u << i;
        if (found == 0)
            return option_bad("kind", value,
                              "decode, prefill, step, write, gather, copy, merge, or several with commas between");
        *kinds |= found;
        at += length;
        if (*at == '\0')
            return 0;
    }
}

static error_t parse_filter(const char *value, arguments *a) {
    if (a->has_filter)
        regfree(&a->filter);
    int code = regcomp(&a->filter, value, REG_EXTENDED | REG_NOSUB);
    a->has_filter = code == 0;
    if (code == 0)
        return 0;
    char reason[128];
    regerror(code, &a->filter, reason, sizeof reason);
    command_fail("--filter is \"%s\", which is no regular expression: %s", value, reason);
    return EINVAL;
}

/* The options of a cell of one's own. */
static error_t parse_own(int key, const char *value, own_cell *own) {
    own->wanted = true;
    switch (key) {
    case KEY_KIND:
        return parse_kinds(value, &own->kinds);
    case KEY_MODEL:
        own->model = value;
        return 0;
    case KEY_HEADS:
        return option_count("heads", value, 1, 1 << 16, &own->num_heads);
    case KEY_KV_HEADS:
        return option_count("kv-heads", value, 1, 1 << 16, &own->num_kv_heads);
    case KEY_HEAD_DIM:
        return option_count("head-dim", value, 1, 576, &own->head_dim);
    case KEY_HEAD_DIM_V:
        return option_count("head-dim-v", value, 1, 576, &own->head_dim_v);
    case KEY_V_IN_K:
        own->v_in_k = true;
        return 0;
    case KEY_WINDOW:
        return option_count("window", value, 1, 1 << 30, &own->window);
    case KEY_SOFTCAP:
        return option_number("softcap", value, 1e6, &own->softcap);
    case KEY_SINKS:
        own->has_sinks = true;
        return 0;
    case KEY_BATCH:
        return option_count("batch", value, 1, 1 << 16, &own->batch);
    case KEY_CONTEXT:
        return option_count("context", value, 1, 1 << 24, &own->context);
    case KEY_RAGGED:
        own->ragged = true;
        return 0;
    case KEY_QUERY:
        return option_count("query", value, 1, 1 << 24, &own->query);
    case KEY_LAYERS:
        return option_count("layers", value, 1, 1 << 10, &own->layers);
    default:
        return ARGP_ERR_UNKNOWN;
    }
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
    case KEY_QUICK:
        a->quick = true;
        return 0;
    case KEY_SET:
        a->set = value;
        if (strcmp(value, "cpu") == 0 || strcmp(value, "gpu") == 0 || strcmp(value, "all") == 0)
            return 0;
        return option_bad("set", value, "cpu, gpu or all");
    case 'f':
        return parse_filter(value, a);
    case KEY_LIST:
        a->list = true;
        return 0;
    case KEY_TIME:
        return option_number("time", value, 3600, &a->seconds);
    case KEY_NO_BASELINE:
        a->no_baseline = true;
        return 0;
    case KEY_SEQUENTIAL:
        a->sequential = true;
        return 0;
    case KEY_LAYOUT:
        a->layout = strcmp(value, "hnd") == 0 ? PAGEDCL_LAYOUT_HND : PAGEDCL_LAYOUT_NHD;
        return strcmp(value, "nhd") == 0 || strcmp(value, "hnd") == 0 ? 0 : option_bad("layout", value, "nhd or hnd");
    case KEY_SPLITS:
        a->fast_splits = strcmp(value, "fast") == 0;
        return a->fast_splits || strcmp(value, "fixed") == 0 ? 0 : option_bad("splits", value, "fixed or fast");
    case KEY_WARM:
        a->warm = true;
        return 0;
    case KEY_FLUSH:
        return option_count("flush", value, 1, BENCH_MOST_FLUSH_MIB, &a->flush_mib);
    case KEY_BLOCK_SIZE:
        return option_count("block-size", value, 1, 1 << 16, &a->block_size);
    case KEY_DTYPE:
        return option_dtype("dtype", value, &a->dtype);
    case 'j':
        a->json = value;
        return 0;
    case KEY_CHECK:
        a->check = value;
        return 0;
    default:
        return key >= KEY_KIND && key <= KEY_LAYERS ? parse_own(key, value, &a->own) : option_other(key, value, state);
    }
}

static const struct argp argp = {
    options,
    parse_option,
    NULL,
    "Measures attention, and everything around the KV pool, on a device.\v"
    "First comes what the device can do at most: memory, arithmetic, launches. Then cells, each an operation with the "
    "shape of a model: KIND/MODEL/DTYPE/BATCHxCONTEXT. Each is checked against a reference in double precision before "
    "it is timed, and again afterwards. Bytes and operations are those that the result needs, each once. "
    "docs/bench.md tells more, and what the JSON document holds.\n\n"
    "The exit status is 0; 1 when a result was wrong, when there was nothing to measure, or when --check found a cell "
    "slower; 2 when it could not begin.",
    NULL,
    NULL,
    NULL,
};

static void set_count(int32_t *field, int32_t given) {
    if (given != NOT_GIVEN)
        *field = given;
}

static bool make_own(const own_cell *own, bench_kind kind, bench_cell *cell) {
    if (!bench_cell_default(kind, own->model, cell)) {
        char names[256];
        bench_model_names(names, sizeof names);
        command_fail("no model \"%s\"; there are %s", own->model, names);
        return false;
    }
    bench_model *m = &cell->model;
    const bench_model before = *m;
    set_count(&m->num_heads, own->num_heads);
    set_count(&m->num_kv_heads, own->num_kv_heads);
    set_count(&m->head_dim, own->head_dim);
    if (own->head_dim != NOT_GIVEN)
        m->head_dim_v = own->head_dim;
    set_count(&m->head_dim_v, own->head_dim_v);
    set_count(&m->window, own->window);
    if (own->softcap > 0)
        m->softcap = (float)own->softcap;
    m->v_in_k = m->v_in_k || own->v_in_k;
    m->has_sinks = m->has_sinks || own->has_sinks;
    if (m->head_dim != before.head_dim)
        m->scale = 0;
    if (m->num_heads != before.num_heads || m->num_kv_heads != before.num_kv_heads || m->head_dim != before.head_dim ||
        m->head_dim_v != before.head_dim_v || m->window != before.window || own->softcap > 0 || own->v_in_k ||
        own->has_sinks)
        bench_model_rename(m);
    set_count(&cell->batch, own->batch);
    set_count(&cell->context, own->context);
    if (kind == BENCH_KIND_DECODE || kind == BENCH_KIND_PREFILL || kind == BENCH_KIND_STEP)
        set_count(&cell->query, own->query);
    if (kind == BENCH_KIND_STEP)
        set_count(&cell->layers, own->layers);
    cell->ragged = own->ragged;
    if (m->num_heads % m->num_kv_heads != 0) {
        command_fail("%" PRId32 " query heads are no multiple of %" PRId32 " KV heads", m->num_heads, m->num_kv_heads);
        return false;
    }
    return true;
}

/* One cell of each kind that is wanted, or -1 after a message. */
static int32_t make_own_cells(const own_cell *own, bench_cell *cells) {
    unsigned kinds = own->kinds != 0 ? own->kinds : 1u << BENCH_KIND_DECODE;
    int32_t count = 0;
    for (int kind = 0; kind < BENCH_NUM_KINDS; kind++)
        if ((kinds >> kind & 1) != 0 && !make_own(own, (bench_kind)kind, &cells[count++]))
            return -1;
    return count;
}

/* The standard set that is wanted; its number of cells. */
static int32_t take_set(const arguments *a, bool is_cpu, bench_cell *cells) {
    bool all = a->set != NULL && strcmp(a->set, "all") == 0;
    if (a->set != NULL)
        is_cpu = strcmp(a->set, "cpu") == 0;
    int32_t count = bench_standard_set(is_cpu, a->quick, cells, MAX_CELLS);
    return all ? count + bench_standard_set(true, a->quick, cells + count, MAX_CELLS - count) : count;
}

/* The cells to measure, or -1 after a message. */
static int32_t choose_cells(const arguments *a, bool is_cpu, bench_cell *cells) {
    int32_t count = a->own.wanted ? make_own_cells(&a->own, cells) : take_set(a, is_cpu, cells);
    if (count < 0)
        return -1;
    int32_t kept = 0;
    for (int32_t i = 0; i < count; i++) {
        bench_cell *cell = &cells[i];
        cell->sequential = a->sequential;
        cell->layout = bench_kind_has_pool(cell->kind) ? a->layout : PAGEDCL_LAYOUT_NHD;
        cell->fast_splits = a->fast_splits && bench_kind_has_splits(cell->kind);
        cell->warm = cell->warm || a->warm;
        cell->baseline = cell->baseline && !a->no_baseline;
        set_count(&cell->block_size, a->block_size);
        if (a->dtype != PAGEDCL_DTYPE_DEFAULT)
            cell->dtype = a->dtype;
        char name[192];
        bench_cell_name(cell, name, sizeof name);
        bool twice = false; /* options may make two cells the same */
        for (int32_t j = 0; j < kept && !twice; j++) {
            char other[192];
            bench_cell_name(&cells[j], other, sizeof other);
            twice = strcmp(name, other) == 0;
        }
        if (!twice && (!a->has_filter || regexec(&a->filter, name, 0, NULL, 0) == 0))
            cells[kept++] = *cell;
    }
    return kept;
}

/* A line on a terminal's stderr. */
typedef struct progress_line {
    bool wanted;
    double started_at;
} progress_line;

static void show_progress(const progress_line *p, const char *what, int32_t done, int32_t count) {
    if (!p->wanted)
        return;
    double elapsed = bench_now() - p->started_at;
    fprintf(stderr, "\r\033[K%s (%" PRId32 " of %" PRId32 ")", what, done + 1, count);
    if (done > 0) {
        int left = (int)(elapsed / done * (count - done) + 0.5);
        fprintf(stderr, ", about %d:%02d min left", left / 60, left % 60);
    }
}

static void clear_progress(const progress_line *p) {
    if (p->wanted)
        fputs("\r\033[K", stderr);
}

/* What came of a run. */
typedef struct tally {
    int32_t measured;
    int32_t failed;
    int32_t slower;
    int32_t compared;
} tally;

static void compare(const json_t *stored, const bench_row *row, tally *counts) {
    if (stored == NULL || row->outcome.result != BENCH_PASSED)
        return;
    double before = 0, now = row->outcome.timing.device.median;
    bench_verdict verdict = bench_stored_compare(stored, row, &before);
    counts->compared += verdict != BENCH_NOT_STORED;
    counts->slower += verdict == BENCH_SLOWER;
    if (verdict == BENCH_SLOWER || verdict == BENCH_FASTER)
        printf("    %s: %.3g us before, %.3g us now (%+.1f %%)\n", verdict == BENCH_SLOWER ? "SLOWER" : "faster",
               before * 1e6, now * 1e6, 100 * (now / before - 1));
}

static double cell_seconds(const arguments *a) {
    return a->seconds > 0 ? a->seconds : a->quick ? 0.3 : 1;
}

static void run_cells(const arguments *a, bench_rig *rig, const bench_roofs *roofs, const bench_cell *cells,
                      int32_t count, const json_t *stored, bench_row *rows, tally *counts) {
    const bench_rules rules = {.seconds = a->seconds > 0 ? a->seconds
                                          : a->quick     ? 0.3
                                                         : 1,
                               .min_samples = a->quick ? 3 : 5,
                               .max_samples = 200};
    const progress_line progress = {.wanted = isatty(STDERR_FILENO) == 1, .started_at = bench_now()};
    for (int32_t i = 0; i < count; i++) {
        char name[192];
        bench_cell_name(&cells[i], name, sizeof name);
        show_progress(&progress, name, i, count);
        bench_row_run(rig, roofs, &rules, a->quick ? 1e8 : 5e8, &cells[i], &rows[i]);
        clear_progress(&progress);
        bench_print_row(&rows[i]);
        compare(stored, &rows[i], counts);
        counts->measured += rows[i].outcome.result == BENCH_PASSED;
        counts->failed += rows[i].outcome.result == BENCH_FAILED || rows[i].outcome.result == BENCH_NO_TIMES ||
                          (rows[i].has_baseline && rows[i].baseline.result == BENCH_FAILED);
    }
}

static int write_json(const arguments *a, const bench_rig *rig, const bench_roofs *roofs, const bench_row *rows,
                      int32_t count, const char *started) {
    json_t *document = bench_to_json(rig, roofs, rows, count, started);
    if (document == NULL)
        return command_fail("the JSON document could not be made");
    int code = json_dump_file(document, a->json, JSON_INDENT(2));
    json_decref(document);
    return code == 0 ? EXIT_OK : command_fail("%s: it could not be written", a->json);
}

static int tell_end(const arguments *a, const tally *counts) {
    printf("\n%" PRId32 " measured, %" PRId32 " failed", counts->measured, counts->failed);
    if (a->check != NULL)
        printf("; %" PRId32 " compared, %" PRId32 " slower", counts->compared, counts->slower);
    putchar('\n');
    if (counts->measured == 0)
        puts("n/a: there was nothing to measure");
    else if (a->check != NULL && counts->compared == 0)
        printf("n/a: no cell of this run is in %s\n", a->check);
    bool compared = a->check == NULL || counts->compared > 0;
    return counts->failed == 0 && counts->slower == 0 && counts->measured > 0 && compared ? EXIT_OK : EXIT_FAILED;
}

static int measure(const arguments *a, bench_rig *rig, const bench_cell *cells, int32_t count, const json_t *stored,
                   bench_row *rows) {
    char started[32];
    time_t now = time(NULL);
    struct tm calendar;
    strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &calendar));
    const progress_line progress = {.wanted = isatty(STDERR_FILENO) == 1, .started_at = bench_now()};
    bench_roofs roofs;
    tool_error error;
    show_progress(&progress, "what the device can do", 0, 1);
    double seconds = cell_seconds(a);
    bool measured = bench_roofs_measure(rig, seconds < 1 ? seconds : 1, &roofs, &error);
    clear_progress(&progress);
    if (!measured)
        return command_fail("%s", error.text);
    tally counts = {0};
    bench_print_head(rig, &roofs);
    run_cells(a, rig, &roofs, cells, count, stored, rows, &counts);
    int status = tell_end(a, &counts);
    if (a->json != NULL && write_json(a, rig, &roofs, rows, count, started) != EXIT_OK)
        return EXIT_USAGE;
    return status;
}

static void list_cells(const bench_cell *cells, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        char name[192];
        bench_cell_name(&cells[i], name, sizeof name);
        puts(name);
    }
}

static int run_on(const arguments *a, bench_rig *rig, const json_t *stored) {
    bench_cell *cells = calloc(MAX_CELLS, sizeof *cells);
    bench_row *rows = calloc(MAX_CELLS, sizeof *rows);
    int32_t count = 0;
    int status = EXIT_OK;
    if (cells == NULL || rows == NULL)
        status = command_fail("out of memory");
    else if ((count = choose_cells(a, rig->is_cpu, cells)) < 0)
        status = EXIT_USAGE;
    else if (a->list)
        list_cells(cells, count);
    else
        status = measure(a, rig, cells, count, stored, rows);
    for (int32_t i = 0; i < count; i++)
        bench_row_free(&rows[i]);
    free(rows);
    free(cells);
    return status;
}

/* Whether the results can be written, before they are measured. What the file holds stays. */
static bool can_write(const char *path) {
    FILE *file = fopen(path, "a");
    if (file == NULL) {
        command_fail("%s: %s", path, strerror(errno));
        return false;
    }
    fclose(file);
    return true;
}

static int bench(const arguments *a) {
    if (a->json != NULL && !a->list && !can_write(a->json))
        return EXIT_USAGE;
    json_t *stored = NULL;
    if (a->check != NULL) {
        char text[512];
        const file_error error = {.path = a->check, .text = text, .size = sizeof text};
        stored = bench_stored_open(&error);
        if (stored == NULL)
            return command_fail("%s", text);
    }
    bench_rig rig;
    tool_error error;
    int status;
    if (!bench_rig_open(a->device, a->tier, a->verbose, a->flush_mib, &rig, &error))
        status = command_fail("%s", error.text);
    else if (stored != NULL && strcmp(bench_stored_device(stored), rig.info.device_name) != 0)
        status = command_fail("%s is of the device \"%s\", and this is \"%s\"", a->check, bench_stored_device(stored),
                              rig.info.device_name);
    else
        status = run_on(a, &rig, stored);
    bench_rig_close(&rig);
    json_decref(stored);
    return status;
}

static int run(int argc, char **argv) {
    arguments a = {.block_size = NOT_GIVEN,
                   .own = {.num_heads = NOT_GIVEN,
                           .num_kv_heads = NOT_GIVEN,
                           .head_dim = NOT_GIVEN,
                           .head_dim_v = NOT_GIVEN,
                           .window = NOT_GIVEN,
                           .batch = NOT_GIVEN,
                           .context = NOT_GIVEN,
                           .query = NOT_GIVEN,
                           .layers = NOT_GIVEN}};
    int status = argp_parse(&argp, argc, argv, 0, NULL, &a) == 0 ? bench(&a) : EXIT_USAGE;
    if (a.has_filter)
        regfree(&a.filter);
    return status;
}

const command command_bench = {"bench", "measure attention, beside what the device can do", run};
