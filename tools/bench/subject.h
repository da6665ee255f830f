/* SPDX-License-Identifier: Apache-2.0 */
/* A cell made ready on a device: what is run, what it costs, and how its result is checked. */
#ifndef BENCH_SUBJECT_H
#define BENCH_SUBJECT_H

#include "expected.h"
#include "measure.h"

#include <pagedcl/pagedcl.h>

typedef struct bench_subject {
    bench_work work;
    bench_work baseline;   /* enqueue NULL: there is none */
    char no_baseline[256]; /* and why */
    double bytes;          /* that must come from memory or go there, each once */
    double operations;     /* that the result takes, two for a multiply-add; 0: what matters is memory alone */
    bool copies;           /* as many bytes are written as are read */
    pagedcl_tier tier;     /* of the attention kernels; AUTO: there are none */
    size_t variants_size;  /* of the rig's variants what is the work's */
    char tuning[1024];     /* of the attention kernel, a line of a tuning database; empty: there is none */
    /* Spoils the result, runs the work once and compares. False with "wrong result: ..." when that is what is wrong. */
    bool (*check)(void *user, const bench_work *work, bench_check *check, tool_error *error);
    /* A hash of the bits of the last result. NULL: not of this kind. */
    bool (*digest)(void *user, uint64_t *hash, tool_error *error);
    void (*release)(void *user);
    void *user;
} bench_subject;

/* Each makes subjects of some kinds. After a failure nothing is left. effort: as in bench_expected_create. */
bool bench_attn_subject(const bench_rig *rig, const bench_cell *cell, double effort, bench_subject *subject,
                        tool_error *error);
bool bench_cache_subject(const bench_rig *rig, const bench_cell *cell, double effort, bench_subject *subject,
                         tool_error *error);
bool bench_merge_subject(const bench_rig *rig, const bench_cell *cell, double effort, bench_subject *subject,
                         tool_error *error);

#endif
