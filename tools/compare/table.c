/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include "figures.h"
#include "quantity.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A text from a file: what would command the terminal becomes '?'. */
static void print_text(const char *text) {
    for (const char *c = text; *c; c++)
        putchar((unsigned char)*c < 0x20 || *c == 0x7f ? '?' : *c);
}

static void print_runs(const comparison *c) {
    for (int i = 0; i < c->num_runs; i++) {
        const compare_run *run = &c->runs[i];
        char read[QUANTITY_SIZE], fma[QUANTITY_SIZE], matrix[QUANTITY_SIZE];
        printf("%c  ", compare_letter(i));
        print_text(run->device);
        printf(", driver ");
        print_text(run->driver);
        printf(", tier ");
        print_text(run->tier);
        printf("; pagedcl ");
        print_text(run->version);
        printf(" (");
        print_text(run->commit);
        printf("), ");
        print_text(run->date);
        printf("\n   read %s, float32 multiply-add %s", quantity_bytes(read, run->read),
               quantity_operations(fma, run->multiply_add));
        if (isfinite(run->matrix))
            printf(", float16 matrices %s", quantity_operations(matrix, run->matrix));
        putchar('\n');
    }
    putchar('\n');
}

static void print_result(const compare_cell *cell, int run) {
    const compare_result *r = &cell->results[run];
    char time[QUANTITY_SIZE], rate[QUANTITY_SIZE], share[16] = "", ratio[QUANTITY_SIZE] = "";
    if (run > 0 && isfinite(compare_ratio(cell, run)))
        compare_ratio_text(ratio, compare_ratio(cell, run));
    if (r->state != COMPARE_PASSED) {
        printf(" | %9s  %13s %5s", compare_state_name(r->state), "", "");
    } else {
        if (isfinite(r->roof_share))
            snprintf(share, sizeof share, "%.0f %%", 100 * r->roof_share);
        printf(" | %9s  %13s %5s", quantity_time(time, r->median), compare_rate_text(rate, r), share);
    }
    if (run > 0)
        printf(" %6s%s", ratio, ratio[0] ? "x" : " ");
}

/* As print_text, and nothing in it is Markdown or HTML. */
static void print_plain(const char *text) {
    for (const char *c = text; *c; c++) {
        if (strchr("\\`*_{}[]<>#|&~", *c) != NULL)
            putchar('\\');
        putchar((unsigned char)*c < 0x20 || *c == 0x7f ? '?' : *c);
    }
}

static void print_messages(const comparison *c) {
    for (size_t i = 0; i < c->num_cells; i++)
        for (int run = 0; run < c->num_runs; run++) {
            const compare_result *r = &c->cells[i].results[run];
            if (r->state != COMPARE_FAILED && r->state != COMPARE_SKIPPED)
                continue;
            printf("%c  ", compare_letter(run));
            print_text(c->cells[i].name);
            printf(": %s: ", compare_state_name(r->state));
            print_text(r->message);
            putchar('\n');
        }
}

void compare_print_table(const comparison *c) {
    int width = 4;
    for (size_t i = 0; i < c->num_cells; i++)
        width = (int)strlen(c->cells[i].name) > width ? (int)strlen(c->cells[i].name) : width;
    width = width < 60 ? width : 60;
    print_runs(c);
    printf("%-*s", width, "cell");
    for (int run = 0; run < c->num_runs; run++) {
        printf(" | %c%8s  %13s %5s", compare_letter(run), "device", "rate", "roof");
        if (run > 0)
            printf(" %7s", "than A");
    }
    putchar('\n');
    for (size_t i = 0; i < c->num_cells; i++) {
        print_text(c->cells[i].name);
        printf("%*s", width - (int)strlen(c->cells[i].name) > 0 ? width - (int)strlen(c->cells[i].name) : 0, "");
        for (int run = 0; run < c->num_runs; run++)
            print_result(&c->cells[i], run);
        putchar('\n');
    }
    putchar('\n');
    for (int run = 1; run < c->num_runs; run++)
        for (int kind = 0; kind < BENCH_NUM_KINDS; kind++) {
            int count;
            char ratio[QUANTITY_SIZE];
            double mean = compare_mean_ratio(c, (bench_kind)kind, run, &count);
            if (count > 0)
                printf("%-8s %c is %s times as fast as A, the geometric mean of %d\n",
                       bench_kind_name((bench_kind)kind), compare_letter(run), compare_ratio_text(ratio, mean), count);
        }
    print_messages(c);
}

static void print_markdown_result(const compare_cell *cell, int run) {
    const compare_result *r = &cell->results[run];
    char time[QUANTITY_SIZE], rate[QUANTITY_SIZE], ratio[QUANTITY_SIZE];
    if (r->state != COMPARE_PASSED)
        printf(" %s | | |", compare_state_name(r->state));
    else {
        printf(" %s | %s |", quantity_time(time, r->median), compare_rate_text(rate, r));
        if (isfinite(r->roof_share))
            printf(" %.0f %%", 100 * r->roof_share);
        printf(" |");
    }
    if (run > 0 && isfinite(compare_ratio(cell, run)))
        printf(" %sx |", compare_ratio_text(ratio, compare_ratio(cell, run)));
    else if (run > 0)
        printf(" |");
}

void compare_print_markdown(const comparison *c) {
    for (int i = 0; i < c->num_runs; i++) {
        const compare_run *run = &c->runs[i];
        char read[QUANTITY_SIZE], fma[QUANTITY_SIZE], matrix[QUANTITY_SIZE];
        const char *const parts[] = {run->device, ", ",         run->platform, ", driver ", run->driver, ", tier ",
                                     run->tier,   "; pagedcl ", run->version,  ", ",        run->date};
        printf("- %c: ", compare_letter(i));
        for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++)
            print_plain(parts[k]);
        printf(". Read %s, float32 multiply-add %s", quantity_bytes(read, run->read),
               quantity_operations(fma, run->multiply_add));
        if (isfinite(run->matrix))
            printf(", float16 matrices %s", quantity_operations(matrix, run->matrix));
        puts(".");
    }
    printf("\n| cell |");
    for (int run = 0; run < c->num_runs; run++)
        printf(" %c: time | rate | of roof |%s", compare_letter(run), run > 0 ? " than A |" : "");
    printf("\n| --- |");
    for (int run = 0; run < c->num_runs; run++)
        printf(" --: | --: | --: |%s", run > 0 ? " --: |" : "");
    putchar('\n');
    for (size_t i = 0; i < c->num_cells; i++) {
        printf("| ");
        print_plain(c->cells[i].name);
        printf(" |");
        for (int run = 0; run < c->num_runs; run++)
            print_markdown_result(&c->cells[i], run);
        putchar('\n');
    }
}
