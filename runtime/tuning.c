/* SPDX-License-Identifier: Apache-2.0 */
#include "tuning.h"

#include "cache.h"
#include "device.h"
#include "status.h"

#include <pagedcl/version.h>

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 4 << 20, MAX_LINE = 1024, MAX_VALUE = 1 << 12 };

static const char header[] = "pagedcl-tuning 1";

/* A line: these, with tabs between; then anything. */
enum { PLATFORM, DEVICE, DRIVER, VERSION, FAMILY, VALUES, NUM_FIELDS };

static const struct {
    const char *name;
    size_t offset;
} values[] = {
    {"TUNE_WG", offsetof(pcl_attn_tuning, work_group)}, {"TUNE_ROWS", offsetof(pcl_attn_tuning, rows)},
    {"TUNE_KEYS", offsetof(pcl_attn_tuning, keys)},     {"TUNE_FEW_ROWS", offsetof(pcl_attn_tuning, few_rows)},
    {"TUNE_LANES", offsetof(pcl_attn_tuning, lanes)},   {"TUNE_WARP_ROWS", offsetof(pcl_attn_tuning, warp_rows)},
    {"TUNE_STAGES", offsetof(pcl_attn_tuning, stages)},
};
enum { NUM_VALUES = sizeof values / sizeof values[0] };

static int32_t *value_of(pcl_attn_tuning *tuning, size_t i) {
    return (int32_t *)(void *)((char *)tuning + values[i].offset);
}

/* A name of the driver as the text has it: one word of a line. */
static void write_name(const char *name, char *out, size_t size) {
    snprintf(out, size, "%s", name);
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = ' ';
}

static bool is_name(const char *text, size_t length, const char *name) {
    char own[128];
    write_name(name, own, sizeof own);
    return strlen(own) == length && memcmp(text, own, length) == 0;
}

/* ---- reading ---- */

typedef struct reader {
    const char *source;
    size_t line; /* its number */
    const pagedcl_device_info *info;
    pcl_tuning_list *list;
    size_t capacity;
} reader;

static pagedcl_status bad(const reader *r, const char *what) {
    return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s: line %zu: %s", r->source, r->line, what);
}

/* "TUNE_ROWS=16 TUNE_KEYS=32", each name once. */
static pagedcl_status read_values(const reader *r, const char *text, size_t length, pcl_attn_tuning *tuning) {
    *tuning = (pcl_attn_tuning){0};
    for (const char *at = text, *end = text + length; at < end;) {
        size_t i = 0;
        while (i < NUM_VALUES &&
               !((size_t)(end - at) > strlen(values[i].name) &&
                 memcmp(at, values[i].name, strlen(values[i].name)) == 0 && at[strlen(values[i].name)] == '='))
            i++;
        if (i == NUM_VALUES)
            return bad(r, "a value has an unknown name");
        int32_t value = 0;
        const char *digits = at + strlen(values[i].name) + 1;
        for (at = digits; at < end && *at >= '0' && *at <= '9' && value <= MAX_VALUE; at++)
            value = value * 10 + (*at - '0');
        if (at == digits || value < 1 || value > MAX_VALUE || (at < end && *at != ' '))
            return bad(r, "a value is no number from 1 to 4096");
        if (*value_of(tuning, i) != 0)
            return bad(r, "a value is there twice");
        *value_of(tuning, i) = value;
        at += at < end;
    }
    return length > 0 ? PAGEDCL_SUCCESS : bad(r, "it has no values");
}

static pagedcl_status add(reader *r, const char *family, size_t length, const pcl_attn_tuning *tuning) {
    pcl_tuning_list *list = r->list;
    for (size_t i = 0; i < list->count; i++)
        if (strlen(list->entries[i].family) == length && memcmp(list->entries[i].family, family, length) == 0)
            return bad(r, "the family is there twice for this device");
    if (list->count == r->capacity) {
        size_t capacity = r->capacity == 0 ? 16 : 2 * r->capacity;
        pcl_tuning_entry *entries = realloc(list->entries, capacity * sizeof *entries);
        if (entries == NULL)
            return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for a tuning database");
        list->entries = entries;
        r->capacity = capacity;
    }
    pcl_tuning_entry *entry = &list->entries[list->count++];
    snprintf(entry->family, sizeof entry->family, "%.*s", (int)length, family);
    entry->tuning = *tuning;
    return PAGEDCL_SUCCESS;
}

static pagedcl_status read_line(reader *r, const char *line, size_t length) {
    const char *fields[NUM_FIELDS], *at = line, *end = line + length;
    size_t lengths[NUM_FIELDS];
    for (int i = 0; i < NUM_FIELDS; i++) {
        if (at > end)
            return bad(r, "it has fewer than six fields with tabs between");
        const char *tab = memchr(at, '\t', (size_t)(end - at));
        fields[i] = at;
        lengths[i] = (size_t)((tab != NULL ? tab : end) - at);
        at += lengths[i] + 1;
    }
    if (lengths[FAMILY] == 0 || lengths[FAMILY] >= PCL_FAMILY_SIZE)
        return bad(r, "the name of the family is empty or too long");
    pcl_attn_tuning tuning;
    PCL_TRY(read_values(r, fields[VALUES], lengths[VALUES], &tuning));
    const pagedcl_device_info *info = r->info;
    bool ours = info != NULL && is_name(fields[PLATFORM], lengths[PLATFORM], info->platform_name) &&
                is_name(fields[DEVICE], lengths[DEVICE], info->device_name) &&
                is_name(fields[DRIVER], lengths[DRIVER], info->driver_version) &&
                is_name(fields[VERSION], lengths[VERSION], PAGEDCL_VERSION_STRING);
    return ours ? add(r, fields[FAMILY], lengths[FAMILY], &tuning) : PAGEDCL_SUCCESS;
}

static pagedcl_status read_text(reader *r, const char *text, size_t size) {
    for (const char *at = text, *end = text + size; at < end;) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((newline != NULL ? newline : end) - at);
        r->line++;
        if (length > MAX_LINE)
            return bad(r, "it is longer than 1024 bytes");
        for (size_t i = 0; i < length; i++)
            if (((unsigned char)at[i] < 0x20 && at[i] != '\t') || at[i] == 0x7f)
                return bad(r, "it has a control character");
        if (r->line == 1) {
            if (length != sizeof header - 1 || memcmp(at, header, length) != 0)
                return bad(r, "a tuning database begins with \"pagedcl-tuning 1\"");
        } else if (length > 0 && at[0] != '#') {
            PCL_TRY(read_line(r, at, length));
        }
        at += length + (newline != NULL);
    }
    return PAGEDCL_SUCCESS;
}

pagedcl_status pcl_tuning_parse(const char *source, const char *text, size_t size, const pagedcl_device_info *info,
                                pcl_tuning_list *list) {
    *list = (pcl_tuning_list){0};
    if (text == NULL && size > 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "text is NULL");
    reader r = {.source = source, .info = info, .list = list};
    pagedcl_status status = read_text(&r, text, size);
    if (status != PAGEDCL_SUCCESS)
        pcl_tuning_free(list);
    return status;
}

pagedcl_status pcl_tuning_load(const char *path, const pagedcl_device_info *info, pcl_tuning_list *list) {
    *list = (pcl_tuning_list){0};
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return pcl_fail(PAGEDCL_IO_ERROR, "cannot read the tuning database %s: %s", path, strerror(errno));
    char *text = malloc(MAX_FILE + 1);
    size_t size = text != NULL ? fread(text, 1, MAX_FILE + 1, file) : 0;
    bool failed = ferror(file) != 0;
    fclose(file);
    pagedcl_status status = PAGEDCL_SUCCESS;
    if (text == NULL)
        status = pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for a tuning database");
    else if (failed || size > MAX_FILE)
        status = pcl_fail(PAGEDCL_IO_ERROR, "cannot read the tuning database %s: it is %s", path,
                          failed ? "no file" : "larger than 4 MiB");
    else if (size == 0)
        status = pcl_fail(PAGEDCL_INVALID_ARGUMENT, "the tuning database %s is empty", path);
    else
        status = pcl_tuning_parse(path, text, size, info, list);
    free(text);
    return status;
}

void pcl_tuning_free(pcl_tuning_list *list) {
    free(list->entries);
    *list = (pcl_tuning_list){0};
}

/* ---- entries ---- */

void pcl_tuning_family(const pagedcl_attn_desc *desc, const char *kernel, char family[PCL_FAMILY_SIZE]) {
    bool v_in_k = desc->cache != NULL && desc->cache->desc.v_in_k;
    snprintf(family, PCL_FAMILY_SIZE,
             "%s tier=%s head_dim=%" PRId32 " head_dim_v=%" PRId32 " v_in_k=%d group=%" PRId32
             " kv_dtype=%s q_dtype=%s paged=%d",
             kernel, pagedcl_tier_name(desc->tier), desc->head_dim, desc->head_dim_v, v_in_k,
             desc->num_heads / desc->num_kv_heads, pagedcl_dtype_name(desc->kv_dtype),
             pagedcl_dtype_name(desc->q_dtype), desc->cache != NULL);
}

bool pcl_tuning_find(const pcl_tuning_list *list, const char *family, pcl_attn_tuning *tuning) {
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->entries[i].family, family) == 0) {
            pcl_attn_tuning own = list->entries[i].tuning;
            for (size_t v = 0; v < NUM_VALUES; v++)
                if (*value_of(&own, v) != 0)
                    *value_of(tuning, v) = *value_of(&own, v);
            return true;
        }
    return false;
}

void pcl_tuning_line(const pagedcl_device_info *info, const pcl_tuning_entry *entry, char *line, size_t size) {
    char platform[128], device[128], driver[128], text[256] = "";
    pcl_attn_tuning tuning = entry->tuning;
    write_name(info->platform_name, platform, sizeof platform);
    write_name(info->device_name, device, sizeof device);
    write_name(info->driver_version, driver, sizeof driver);
    for (size_t i = 0; i < NUM_VALUES; i++)
        if (*value_of(&tuning, i) > 0) {
            size_t used = strlen(text);
            snprintf(text + used, sizeof text - used, "%s%s=%" PRId32, used > 0 ? " " : "", values[i].name,
                     *value_of(&tuning, i));
        }
    snprintf(line, size, "%s\t%s\t%s\t%s\t%s\t%s", platform, device, driver, PAGEDCL_VERSION_STRING, entry->family,
             text);
}

/* ---- the public functions ---- */

pagedcl_status pagedcl_tuning_check(const char *text, size_t size) {
    pcl_tuning_list none;
    return pcl_tuning_parse("tuning database", text, size, NULL, &none);
}

pagedcl_status pagedcl_device_tune(pagedcl_device *device, const char *text, size_t size, size_t *count) {
    if (device == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "device is NULL");
    pcl_tuning_list list, before;
    PCL_TRY(pcl_tuning_parse("tuning database", text, size, &device->info, &list));
    pcl_mutex_lock(&device->lock);
    before = device->tuned;
    device->tuned = list;
    pcl_mutex_unlock(&device->lock);
    pcl_tuning_free(&before);
    if (count != NULL)
        *count = list.count;
    return PAGEDCL_SUCCESS;
}
