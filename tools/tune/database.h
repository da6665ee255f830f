/* SPDX-License-Identifier: Apache-2.0 */
/* Tuning databases as files: lines of device, family and sizes, sorted, with what was measured behind them. */
#ifndef TUNE_DATABASE_H
#define TUNE_DATABASE_H

#include "file_error.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct tune_database {
    size_t count;
    char **lines; /* owned, sorted */
} tune_database;

/* Reads and checks a file, and adds its lines: of two for a device and family the one with the smaller us=. */
bool tune_database_merge(tune_database *database, const file_error *error);

/* Puts a line in place of the one for the same device and family. False when out of memory. */
bool tune_database_set(tune_database *database, const char *line);

/* The line for the device and family that another line is for; NULL: none. */
const char *tune_database_find(const tune_database *database, const char *line);

/* Writes a temporary file and renames it. */
bool tune_database_save(const tune_database *database, const file_error *error);

void tune_database_free(tune_database *database);

#endif
