/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libFuzzer target: tuning databases. The bytes come behind a good head. What is taken has names that end and sizes
 * in their bounds, and is the same when its lines are written and read again; what is refused leaves nothing.
 */
#include "must.h"
#include "tuning.h"

#include <pagedcl/version.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The family's name is not tried here, and nothing else needs OpenCL. */
const char *pagedcl_tier_name(pagedcl_tier tier) {
    return tier == PAGEDCL_TIER_CPU ? "cpu" : "invalid";
}

static void check_bounds(const pcl_attn_tuning *t) {
    const int32_t values[] = {t->work_group, t->rows, t->keys, t->few_rows, t->warp_rows, t->stages, t->lanes};
    int32_t most = 0;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        MUST(values[i] >= 0 && values[i] <= 4096);
        most = values[i] > most ? values[i] : most;
    }
    MUST(most > 0);
}

static void check_again(const pagedcl_device_info *info, const pcl_tuning_entry *entry) {
    char text[2048] = "pagedcl-tuning 1\n";
    size_t used = strlen(text);
    pcl_tuning_list again;
    pcl_tuning_line(info, entry, text + used, sizeof text - used);
    MUST(pcl_tuning_parse("again", text, strlen(text), info, &again) == PAGEDCL_SUCCESS);
    MUST(again.count == 1 && strcmp(again.entries[0].family, entry->family) == 0);
    MUST(memcmp(&again.entries[0].tuning, &entry->tuning, sizeof entry->tuning) == 0);
    pcl_tuning_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char head[] = "pagedcl-tuning 1\np\td\t1\t" PAGEDCL_VERSION_STRING "\t";
    pagedcl_device_info info = {.platform_name = "p", .device_name = "d", .driver_version = "1"};
    char *text = malloc(sizeof head - 1 + size);
    pcl_tuning_list list;
    MUST(text);
    memcpy(text, head, sizeof head - 1);
    if (size > 0)
        memcpy(text + sizeof head - 1, data, size);
    pagedcl_status status = pcl_tuning_parse("fuzz", text, sizeof head - 1 + size, &info, &list);
    if (status != PAGEDCL_SUCCESS)
        MUST(list.count == 0 && list.entries == NULL && pagedcl_last_error()[0] != '\0');
    for (size_t i = 0; i < list.count; i++) {
        pcl_attn_tuning found = {0};
        MUST(strlen(list.entries[i].family) < PCL_FAMILY_SIZE);
        check_bounds(&list.entries[i].tuning);
        check_again(&info, &list.entries[i]);
        MUST(pcl_tuning_find(&list, list.entries[i].family, &found));
    }
    pcl_tuning_free(&list);
    free(text);
    return 0;
}
