/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "database.h"

#include <pagedcl/tuning.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 4 << 20 };

/* Platform, device, driver, version and family: up to the fifth tab. */
static size_t key_length(const char *line) {
    size_t length = 0;
    for (int tabs = 0; line[length] != '\0' && (tabs += line[length] == '\t') < 5;)
        length++;
    return length;
}

static int compare_keys(const char *a, const char *b) {
    size_t x = key_length(a), y = key_length(b);
    int order = memcmp(a, b, x < y ? x : y);
    return order != 0 ? order : (x > y) - (x < y);
}

/* The first line that is not before the key of a line. */
static size_t place_of(const tune_database *database, const char *line) {
    size_t place = 0;
    while (place < database->count && compare_keys(database->lines[place], line) < 0)
        place++;
    return place;
}

static bool is_at(const tune_database *database, size_t place, const char *line) {
    return place < database->count && compare_keys(database->lines[place], line) == 0;
}

const char *tune_database_find(const tune_database *database, const char *line) {
    size_t place = place_of(database, line);
    return is_at(database, place, line) ? database->lines[place] : NULL;
}

bool tune_database_set(tune_database *database, const char *line) {
    size_t place = place_of(database, line);
    char *copy = strdup(line);
    if (copy == NULL)
        return false;
    if (is_at(database, place, line)) {
        free(database->lines[place]);
        database->lines[place] = copy;
        return true;
    }
    char **lines = realloc(database->lines, (database->count + 1) * sizeof *lines);
    if (lines == NULL) {
        free(copy);
        return false;
    }
    memmove(lines + place + 1, lines + place, (database->count - place) * sizeof *lines);
    lines[place] = copy;
    database->lines = lines;
    database->count++;
    return true;
}

/* What was measured; infinite when the line does not tell. */
static double microseconds_of(const char *line) {
    const char *at = strstr(line, "\tus=");
    double value = at != NULL ? strtod(at + 4, NULL) : 0;
    return value > 0 ? value : INFINITY;
}

static bool merge_text(tune_database *database, char *text, const file_error *error) {
    char *rest = text;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        if (strchr(line, '\t') == NULL || line[0] == '#')
            continue; /* the head, comments */
        const char *own = tune_database_find(database, line);
        if ((own == NULL || microseconds_of(line) < microseconds_of(own)) && !tune_database_set(database, line))
            return file_fail(error, "out of memory");
    }
    return true;
}

bool tune_database_merge(tune_database *database, const file_error *error) {
    FILE *file = fopen(error->path, "rb");
    if (file == NULL)
        return file_fail(error, "%s", strerror(errno));
    char *text = malloc(MAX_FILE + 1);
    size_t size = text != NULL ? fread(text, 1, MAX_FILE, file) : 0;
    bool whole = ferror(file) == 0 && fgetc(file) == EOF;
    fclose(file);
    bool ok = false;
    if (text == NULL)
        file_fail(error, "out of memory");
    else if (!whole)
        file_fail(error, "it cannot be read, or is larger than 4 MiB");
    else if (size == 0)
        file_fail(error, "it is empty");
    else if (pagedcl_tuning_check(text, size) != PAGEDCL_SUCCESS)
        file_fail(error, "%s", pagedcl_last_error());
    else {
        text[size] = '\0';
        ok = merge_text(database, text, error);
    }
    free(text);
    return ok;
}

bool tune_database_save(const tune_database *database, const file_error *error) {
    size_t size = strlen(error->path) + 8;
    char *temporary = malloc(size);
    if (temporary == NULL)
        return file_fail(error, "out of memory");
    snprintf(temporary, size, "%s.tmp", error->path);
    FILE *file = fopen(temporary, "w");
    bool ok = file != NULL;
    if (ok) {
        fputs("pagedcl-tuning 1\n# Made by `pagedcl tune`: platform, device, driver, version of "
              "PagedCL,\n# family, sizes; then what was measured.\n",
              file);
        for (size_t i = 0; i < database->count; i++)
            fprintf(file, "%s\n", database->lines[i]);
        ok = ferror(file) == 0;
        ok = fclose(file) == 0 && ok;
    }
    ok = ok && rename(temporary, error->path) == 0;
    if (!ok)
        file_fail(error, "%s", strerror(errno));
    free(temporary);
    return ok;
}

void tune_database_free(tune_database *database) {
    for (size_t i = 0; i < database->count; i++)
        free(database->lines[i]);
    free(database->lines);
    *database = (tune_database){0};
}
