/* SPDX-License-Identifier: Apache-2.0 */
/* pagedcl compare: runs of pagedcl bench side by side. */
#include "command.h"
#include "option.h"
#include "page.h"
#include "table.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

typedef struct arguments {
    const char *paths[COMPARE_MAX_RUNS];
    int num_paths;
    const char *html;
    bool markdown;
} arguments;

enum { KEY_HTML = 256, KEY_MARKDOWN };

static const struct argp_option options[] = {
    {"html", KEY_HTML, "FILE", 0, "Write a page with charts, which needs no network and no other file", 1},
    {"markdown", KEY_MARKDOWN, NULL, 0, "Print the table as Markdown", 1},
    {0},
};

static error_t parse_option(int key, char *value, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case KEY_HTML:
        a->html = value;
        return 0;
    case KEY_MARKDOWN:
        a->markdown = true;
        return 0;
    case ARGP_KEY_ARG:
        if (a->num_paths == COMPARE_MAX_RUNS) {
            command_fail("more than %d runs; leave some out", COMPARE_MAX_RUNS);
            return EINVAL;
        }
        a->paths[a->num_paths++] = value;
        return 0;
    case ARGP_KEY_END:
        if (a->num_paths > 0)
            return 0;
        command_fail("which runs? name files that `pagedcl bench --json FILE` wrote");
        return EINVAL;
    default:
        return option_other(key, value, state);
    }
}

static const struct argp argp = {
    options,
    parse_option,
    "A.json [B.json...]",
    "Shows runs that `pagedcl bench --json` wrote side by side, and the first as what the others are measured by.\v"
    "A cell is shown with the median of its device time, its bytes or operations a second, its share of the nearest "
    "roof of its own run, and how many times as fast as in the first run it is. What failed or was skipped is told "
    "below; - is a cell that a run does not have. With one run the page shows that alone.\n\n"
    "The exit status is 0; 2 when a file is damaged, when shapes or contracts of the runs differ, or when a run has no "
    "cell in common with another.",
    NULL,
    NULL,
    NULL,
};

static int write_page(const comparison *c, const char *path) {
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return command_fail("%s: %s", path, strerror(errno));
    compare_page_write(c, file);
    bool written = ferror(file) == 0;
    written = fclose(file) == 0 && written;
    return written ? EXIT_OK : command_fail("%s: it could not be written", path);
}

static int run(int argc, char **argv) {
    arguments a = {0};
    if (argp_parse(&argp, argc, argv, 0, NULL, &a) != 0)
        return EXIT_USAGE;
    char text[512];
    file_error error = {.text = text, .size = sizeof text};
    comparison c;
    if (!comparison_open(a.paths, a.num_paths, &error, &c))
        return command_fail("%s", text);
    int status = a.html != NULL ? write_page(&c, a.html) : EXIT_OK;
    if (status == EXIT_OK)
        (a.markdown ? compare_print_markdown : compare_print_table)(&c);
    comparison_close(&c);
    return status;
}

const command command_compare = {"compare", "show runs of bench side by side, as a table and as a page", run};
