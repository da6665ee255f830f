/* SPDX-License-Identifier: Apache-2.0 */
/* Quantities as people read them: three digits and a unit, "n/a" for what is no number. */
#ifndef BENCH_QUANTITY_H
#define BENCH_QUANTITY_H

enum { QUANTITY_SIZE = 24 };

/* Each writes into `text` and returns it. */
const char *quantity_time(char text[QUANTITY_SIZE], double seconds);
const char *quantity_bytes(char text[QUANTITY_SIZE], double bytes_per_second);
const char *quantity_operations(char text[QUANTITY_SIZE], double operations_per_second);

#endif
