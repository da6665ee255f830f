/* SPDX-License-Identifier: Apache-2.0 */
/* Running a case on a device, and judging what came out. */
#ifndef CASE_RUN_H
#define CASE_RUN_H

#include "case.h"

#include <pagedcl/attn.h>

typedef enum case_result {
    CASE_PASSED,
    CASE_FAILED,
    CASE_UNSUPPORTED,
} case_result;

typedef struct case_outcome {
    case_result result;
    pagedcl_tier tier;  /* of the attention kernels; AUTO when none was made */
    double max_error;   /* negative: nothing was compared */
    char message[1024]; /* why it failed or is unsupported, or how it was refused, as it should be; may be "" */
} case_outcome;

/* Everything that the case needs is made for it and released; what programs cost is paid once a device. */
void case_run(pagedcl_device *device, const case_file *file, pagedcl_tier tier, case_outcome *outcome);

#endif
