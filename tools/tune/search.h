/* SPDX-License-Identifier: Apache-2.0 */
/* The search for the sizes with which the attention kernel of a cell is fastest. */
#ifndef TUNE_SEARCH_H
#define TUNE_SEARCH_H

#include "subject.h"

#include <stdbool.h>

typedef struct tune_rules {
    double seconds;        /* when to stop trying; what runs then is finished */
    double sample_seconds; /* for the times of one trial */
    double effort;         /* of a check, as in bench_expected_create */
    bool same_bits;        /* take nothing that gives other bits than the library's own sizes */
    /* Told before each trial: how many were done, and the best so far in seconds. May be NULL. */
    void (*progress)(void *user, int done, double best, double own);
    void *user;
} tune_rules;

typedef struct tune_found {
    char line[1024]; /* of a database: what to take, and what was measured */
    int trials;      /* with sizes that the kernel can have */
    int wrong;       /* of these, that gave a wrong result */
    bool exhausted;  /* there was nothing more to try */
    double own;      /* seconds with the library's own sizes */
    double best;     /* and with those taken, by turns with the others */
    bool other_bits;
} tune_found;

/*
 * The line of the library's own sizes for a cell, which tells the family: nothing is run.
 */
bool tune_line_of(bench_rig *rig, const bench_cell *cell, char line[1024], tool_error *error);

/* from: a line of the family with sizes to begin with beside the library's own, or NULL. Blocks. The rig's device has the library's own sizes afterwards. */
bool tune_search(bench_rig *rig, const bench_cell *cell, const tune_rules *rules, const char *from, tune_found *found,
                 tool_error *error);

#endif
