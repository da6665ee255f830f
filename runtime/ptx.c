/* SPDX-License-Identifier: Apache-2.0 */
#include "ptx.h"

#include "status.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const char source_target[] = ".target sm_90", hopper_target[] = ".target sm_90a";
static const char work_group_size[] = ".reqntid", alone[] = "\n.minnctapersm 1";

enum { MARK_LENGTH = sizeof PCL_PTX_MARK - 1 };

static bool starts_with(const char *text, const char *beginning) {
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

/* One line of the text, without its end, as it is to be for Hopper; returns where the next byte goes. */
static char *append_line(char *to, const char *line, size_t length, size_t *targets, size_t *marks) {
    const char *text = line + strspn(line, " \t");
    if (starts_with(text, PCL_PTX_MARK)) {
        length -= (size_t)(text + MARK_LENGTH - line);
        line = text + MARK_LENGTH;
        ++*marks;
    } else if (starts_with(text, source_target) && strspn(text + sizeof source_target - 1, ", \r\n\t") > 0) {
        memcpy(to, hopper_target, sizeof hopper_target - 1);
        to += sizeof hopper_target - 1;
        length -= (size_t)(text + sizeof source_target - 1 - line);
        line = text + sizeof source_target - 1;
        ++*targets;
    }
    memcpy(to, line, length);
    to += length;
    if (starts_with(text, work_group_size)) {
        memcpy(to, alone, sizeof alone - 1);
        to += sizeof alone - 1;
    }
    return to;
}

static size_t count_of(const char *text, const char *word) {
    size_t count = 0;
    for (const char *at = text; (at = strstr(at, word)) != NULL; at += strlen(word))
        count++;
    return count;
}

pagedcl_status pcl_ptx_for_hopper(const unsigned char *ptx, size_t size, unsigned char **out, size_t *out_size) {
    /* A NUL ends the text, wherever the driver counts it. */
    char *text = malloc(size + 1);
    if (text == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for %zu bytes of PTX", size);
    memcpy(text, ptx, size);
    text[size] = '\0';
    size_t length = strlen(text), targets = 0, marks = 0;
    size_t growth = count_of(text, source_target) + count_of(text, work_group_size) * (sizeof alone - 1);
    char *made = malloc(length + growth + 1);
    if (made == NULL) {
        free(text);
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for %zu bytes of PTX", size);
    }
    char *to = made;
    for (const char *line = text; line < text + length;) {
        size_t line_length = strcspn(line, "\n");
        to = append_line(to, line, line_length, &targets, &marks);
        line += line_length;
        if (*line == '\n')
            *to++ = *line++;
    }
    *to = '\0';
    free(text);
    if (targets != 1 || marks == 0) {
        free(made);
        return pcl_fail(PAGEDCL_UNSUPPORTED,
                        "the driver's binary of the program is not PTX for sm_90 with marked instructions");
    }
    *out = (unsigned char *)made;
    *out_size = (size_t)(to - made);
    return PAGEDCL_SUCCESS;
}
