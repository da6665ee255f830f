/* SPDX-License-Identifier: Apache-2.0 */
/* The curve over pool sizes as one picture. */
#ifndef SIMULATE_SVG_H
#define SIMULATE_SVG_H

#include "simulate_curve.h"

#include <stdio.h>

/*
 * Writes an SVG document that needs no other file. At least one pool fits. Whether the writes succeeded is in the
 * stream's error state.
 */
void simulate_svg_write(const simulate_curve *curve, int32_t block_size, FILE *file);

#endif
