/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs that cross the API begin with `size_t struct_size`, and fields are only ever appended. So a caller built
 * against an older header passes a shorter struct, one built against a newer header a longer one; the common front part
 * is what both know. These two are the only places that look at struct_size.
 */
#ifndef PCL_STRUCT_SIZE_H
#define PCL_STRUCT_SIZE_H

#include "status.h"

#include <stddef.h>
#include <string.h>

/*
 * PCL_READ_STRUCT(mine, theirs, last): copies the caller's *theirs into *mine; fields that theirs lacks become zero,
 * which means their default. Fails when theirs is NULL or ends before `last`, the last field of the type's first
 * version.
 *
 *     pagedcl_blocks_desc own;
 *     PCL_TRY(PCL_READ_STRUCT(&own, desc, num_groups));
 */
#define PCL_READ_STRUCT(mine, theirs, last) \
    pcl_read_struct((mine), sizeof *(mine), PCL_END_OF_FIELD(mine, last), (theirs), #theirs)

/*
 * PCL_FILL_STRUCT(theirs, mine, last): copies *mine into the caller's *theirs as far as theirs reaches, and leaves
 * theirs->struct_size as it is. Fails, with nothing written, as PCL_READ_STRUCT does.
 */
#define PCL_FILL_STRUCT(theirs, mine, last) \
    pcl_fill_struct((theirs), (mine), sizeof *(mine), PCL_END_OF_FIELD(mine, last), #theirs)

#define PCL_END_OF_FIELD(object, field) ((size_t)((const char *)(&(object)->field + 1) - (const char *)(object)))

/* 0 when there is no struct. */
static inline size_t pcl_struct_size(const void *theirs) {
    size_t size = 0;
    if (theirs != NULL)
        memcpy(&size, theirs, sizeof size);
    return size;
}

static inline pagedcl_status pcl_refuse_struct(const void *theirs, size_t first_size, const char *name) {
    if (theirs == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "%s is NULL", name);
    return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                    "%s->struct_size is %zu, less than the %zu bytes of the first version; set it by the _INIT macro",
                    name, pcl_struct_size(theirs), first_size);
}

static inline pagedcl_status pcl_read_struct(void *mine, size_t size, size_t first_size, const void *theirs,
                                             const char *name) {
    size_t their_size = pcl_struct_size(theirs);
    if (their_size < first_size)
        return pcl_refuse_struct(theirs, first_size, name);
    memset(mine, 0, size);
    memcpy(mine, theirs, their_size < size ? their_size : size);
    memcpy(mine, &size, sizeof size);
    return PAGEDCL_SUCCESS;
}

static inline pagedcl_status pcl_fill_struct(void *theirs, const void *mine, size_t size, size_t first_size,
                                             const char *name) {
    size_t their_size = pcl_struct_size(theirs);
    if (their_size < first_size)
        return pcl_refuse_struct(theirs, first_size, name);
    size_t end = their_size < size ? their_size : size;
    memcpy((char *)theirs + sizeof(size_t), (const char *)mine + sizeof(size_t), end - sizeof(size_t));
    return PAGEDCL_SUCCESS;
}

#endif
