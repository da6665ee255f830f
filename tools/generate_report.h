/* SPDX-License-Identifier: Apache-2.0 */
/* What `pagedcl generate` tells at its end: a table, or one JSON document with the texts. */
#ifndef GENERATE_REPORT_H
#define GENERATE_REPORT_H

#include "engine.h"
#include "tokenizer.h"

/* What was run. */
typedef struct generate_run {
    const char *model; /* the folder */
    const model_config *config;
    const tokenizer *tokenizer;
    const engine_options *options;
    pagedcl_device *device;
    const engine *engine;
    double started_at; /* engine_now() when the program began */
} generate_run;

/* To stderr: stdout holds the texts alone. */
bool generate_report_table(const generate_run *run, tool_error *error);

/* To stdout. with_logits: those of the first new token of each prompt too. */
bool generate_report_json(const generate_run *run, bool with_logits, tool_error *error);

#endif
