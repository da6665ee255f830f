/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of a cell as table and page show them. */
#ifndef COMPARE_FIGURES_H
#define COMPARE_FIGURES_H

#include "comparison.h"
#include "quantity.h"

/* "", "FAIL", "skipped", and "-" where the run has no such cell. */
const char *compare_state_name(compare_state state);

/* Bytes or operations a second, whichever is nearer to its roof. */
const char *compare_rate_text(char text[QUANTITY_SIZE], const compare_result *result);

/* A ratio in three digits, without a sign behind it. */
const char *compare_ratio_text(char text[QUANTITY_SIZE], double ratio);

#endif
