/* SPDX-License-Identifier: Apache-2.0 */
#include "option.h"

#include "command.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

error_t option_bad(const char *option, const char *value, const char *wanted) {
    command_fail("--%s is \"%s\"; it must be %s", option, value, wanted);
    return EINVAL;
}

error_t option_count(const char *option, const char *value, int32_t least, int32_t most, int32_t *count) {
    char *end;
    errno = 0;
    long parsed = strtol(value, &end, 10);
    if (errno != 0 || end == value || *end != '\0' || parsed < least || parsed > most) {
        char wanted[80];
        snprintf(wanted, sizeof wanted, "a whole number from %" PRId32 " to %" PRId32, least, most);
        return option_bad(option, value, wanted);
    }
    *count = (int32_t)parsed;
    return 0;
}

error_t option_number(const char *option, const char *value, double most, double *number) {
    char *end;
    double parsed = strtod(value, &end);
    if (end == value || *end != '\0' || !(parsed > 0 && parsed <= most)) {
        char wanted[80];
        snprintf(wanted, sizeof wanted, "a number above 0, at most %g", most);
        return option_bad(option, value, wanted);
    }
    *number = parsed;
    return 0;
}

/* Names are numbered from 1 on, up to the first one that is "invalid". */
static error_t find_name(const char *option, const char *value, const char *(*name_of)(int), int *found) {
    char wanted[256] = "one of ";
    for (int i = 1; strcmp(name_of(i), "invalid") != 0; i++) {
        *found = i;
        if (strcmp(value, name_of(i)) == 0)
            return 0;
        size_t used = strlen(wanted);
        snprintf(wanted + used, sizeof wanted - used, "%s%s", i == 1 ? "" : ", ", name_of(i));
    }
    return option_bad(option, value, wanted);
}

static const char *name_of_dtype(int dtype) {
    return pagedcl_dtype_name((pagedcl_dtype)dtype);
}

static const char *name_of_tier(int tier) {
    return pagedcl_tier_name((pagedcl_tier)tier);
}

error_t option_dtype(const char *option, const char *value, pagedcl_dtype *dtype) {
    int found = 0;
    error_t bad = find_name(option, value, name_of_dtype, &found);
    if (bad == 0)
        *dtype = (pagedcl_dtype)found;
    return bad;
}

error_t option_tier(const char *option, const char *value, pagedcl_tier *tier) {
    int found = 0;
    error_t bad = find_name(option, value, name_of_tier, &found);
    if (bad == 0)
        *tier = (pagedcl_tier)found;
    return bad;
}

error_t option_other(int key, const char *value, struct argp_state *state) {
    if (key == ARGP_KEY_INIT) {
        state->err_stream = NULL; /* getopt's line about a bad option is enough */
        return 0;
    }
    if (key != ARGP_KEY_ARG)
        return ARGP_ERR_UNKNOWN;
    command_fail("\"%s\" is no option; %s takes no other argument", value, state->name);
    return EINVAL;
}
