/* SPDX-License-Identifier: Apache-2.0 */
/* The tuning database: a device's entries of it, and their text. */
#ifndef PCL_TUNING_H
#define PCL_TUNING_H

#include "attn_tuning.h"
#include "thread.h"

#include <pagedcl/tuning.h>

enum { PCL_FAMILY_SIZE = 192 };

/* Of all variants of a kernel that are tuned alike. */
typedef struct pcl_tuning_entry {
    char family[PCL_FAMILY_SIZE];
    pcl_attn_tuning tuning; /* 0 where the entry says nothing */
} pcl_tuning_entry;

/* What a device has taken in. Guarded by the device's lock. */
typedef struct pcl_tuning_list {
    size_t count;
    pcl_tuning_entry *entries; /* owned */
} pcl_tuning_list;

/* The entries of a text that are for a device. `source` names the text in messages. Errors: as pagedcl_tuning_check. */
pagedcl_status pcl_tuning_parse(const char *source, const char *text, size_t size, const pagedcl_device_info *info,
                                pcl_tuning_list *list);

/* The same with a file; also IO_ERROR. */
pagedcl_status pcl_tuning_load(const char *path, const pagedcl_device_info *info, pcl_tuning_list *list);

void pcl_tuning_free(pcl_tuning_list *list);

/* Names the family of an operator's kernel, whose description is complete. */
void pcl_tuning_family(const pagedcl_attn_desc *desc, const char *kernel, char family[PCL_FAMILY_SIZE]);

/* Puts an entry's values over `tuning`; false when the list has none of the family. */
bool pcl_tuning_find(const pcl_tuning_list *list, const char *family, pcl_attn_tuning *tuning);

/* The line of an entry, as pagedcl_attn_get_tuning. */
void pcl_tuning_line(const pagedcl_device_info *info, const pcl_tuning_entry *entry, char *line, size_t size);

#endif
