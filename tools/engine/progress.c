/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include <stddef.h>

void engine_report(const engine_progress *progress, const char *what, double done) {
    if (progress->report != NULL)
        progress->report(progress->user, what, done);
}
