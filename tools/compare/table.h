/* SPDX-License-Identifier: Apache-2.0 */
/* The comparison on a terminal. */
#ifndef COMPARE_TABLE_H
#define COMPARE_TABLE_H

#include "comparison.h"

/* To stdout. */
void compare_print_table(const comparison *c);

/* The same as Markdown, for a document or an issue. */
void compare_print_markdown(const comparison *c);

#endif
