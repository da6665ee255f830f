/* SPDX-License-Identifier: Apache-2.0 */
/* How long work tells how far it is. */
#ifndef ENGINE_PROGRESS_H
#define ENGINE_PROGRESS_H

typedef struct engine_progress {
    /* Called with the share of `what` that is done, from 0 to 1. NULL: nobody listens. */
    void (*report)(void *user, const char *what, double done);
    void *user;
} engine_progress;

void engine_report(const engine_progress *progress, const char *what, double done);

#endif
