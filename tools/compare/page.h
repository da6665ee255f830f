/* SPDX-License-Identifier: Apache-2.0 */
/* The comparison as a page: one HTML document without scripts that loads nothing. */
#ifndef COMPARE_PAGE_H
#define COMPARE_PAGE_H

#include "comparison.h"

#include <stdio.h>

/* Whether the writes succeeded is in the stream's error state. */
void compare_page_write(const comparison *c, FILE *file);

#endif
