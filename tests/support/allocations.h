/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations that fail when a test wants it: the program is linked with --wrap=malloc,--wrap=calloc,--wrap=realloc, so
 * that what is compiled into it, the library included, allocates here.
 */
#ifndef ALLOCATIONS_H
#define ALLOCATIONS_H

#include <stdint.h>

/* The next `count` allocations succeed and the following ones fail; below 0: all succeed. */
void allocations_allow(int64_t count);

#endif
