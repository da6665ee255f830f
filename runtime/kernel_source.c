/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel_source.h"

#include "status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* X(kernel): the kernels that the build embeds. */
#define KERNELS(X)        \
    X(attn_append)        \
    X(attn_decode)        \
    X(attn_decode_stream) \
    X(attn_maps)          \
    X(attn_merge)         \
    X(attn_tables)        \
    X(attn_varlen)        \
    X(attn_varlen_stream) \
    X(attn_varlen_wgmma)  \
    X(cache)              \
    X(host_pool)          \
    X(merge)              \
    X(nv_probe)           \
    X(nv_wgmma_probe)

#define DECLARE_SOURCE(kernel) extern const char pcl_source_##kernel[];
KERNELS(DECLARE_SOURCE)
#undef DECLARE_SOURCE

static const struct embedded {
    const char *kernel, *source;
} embedded[] = {
#define EMBEDDED(kernel) {#kernel, pcl_source_##kernel},
    KERNELS(EMBEDDED)
#undef EMBEDDED
};

enum { MAX_DEPTH = 16, PATH_SIZE = 1024 };

/* A text that grows. */
typedef struct text {
    char *bytes;
    size_t used, capacity;
} text;

static pagedcl_status append(text *t, const char *bytes, size_t size) {
    if (t->capacity - t->used <= size) {
        size_t capacity = 2 * (t->used + size + 1);
        char *longer = realloc(t->bytes, capacity);
        if (longer == NULL)
            return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory for a kernel's source");
        t->bytes = longer;
        t->capacity = capacity;
    }
    memcpy(t->bytes + t->used, bytes, size);
    t->used += size;
    t->bytes[t->used] = '\0';
    return PAGEDCL_SUCCESS;
}

static pagedcl_status append_line_mark(text *t, size_t line, const char *name) {
    char mark[PATH_SIZE];
    int length = snprintf(mark, sizeof mark, "#line %zu \"%s\"\n", line, name);
    return append(t, mark, (size_t)length < sizeof mark ? (size_t)length : sizeof mark - 1);
}

static pagedcl_status append_file(text *t, const char *dir, const char *name, int depth);

/* The lines of an open file, with the files that it includes in their places. */
static pagedcl_status append_lines(text *t, FILE *file, const char *dir, const char *name, int depth) {
    char line[PATH_SIZE], included[PATH_SIZE];
    size_t number = 1;
    PCL_TRY(append_line_mark(t, 1, name));
    while (fgets(line, sizeof line, file) != NULL) {
        size_t length = strlen(line);
        if (sscanf(line, "#include \"%1023[^\"]\"", included) == 1) {
            PCL_TRY(append_file(t, dir, included, depth + 1));
            PCL_TRY(append_line_mark(t, number + 1, name));
        } else {
            PCL_TRY(append(t, line, length));
        }
        number += length > 0 && line[length - 1] == '\n';
    }
    return ferror(file) ? pcl_fail(PAGEDCL_IO_ERROR, "cannot read %s/%s", dir, name) : PAGEDCL_SUCCESS;
}

static pagedcl_status append_file(text *t, const char *dir, const char *name, int depth) {
    char path[2 * PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = depth < MAX_DEPTH ? fopen(path, "rb") : NULL;
    if (file == NULL)
        return pcl_fail(PAGEDCL_IO_ERROR, "cannot read %s, in the folder that PAGEDCL_KERNEL_DIR names", path);
    pagedcl_status status = append_lines(t, file, dir, name, depth);
    fclose(file);
    return status;
}

pagedcl_status pcl_kernel_source(const char *name, size_t length, const char **source, char **owned) {
    *owned = NULL;
    const char *dir = getenv("PAGEDCL_KERNEL_DIR");
    if (dir != NULL && dir[0] != '\0') {
        char file_name[PATH_SIZE];
        text t = {0};
        snprintf(file_name, sizeof file_name, "%.*s.cl", (int)length, name);
        pagedcl_status status = append_file(&t, dir, file_name, 0);
        if (status != PAGEDCL_SUCCESS) {
            free(t.bytes);
            return status;
        }
        *source = *owned = t.bytes;
        return PAGEDCL_SUCCESS;
    }
    for (size_t i = 0; i < sizeof embedded / sizeof embedded[0]; i++)
        if (strlen(embedded[i].kernel) == length && memcmp(embedded[i].kernel, name, length) == 0) {
            *source = embedded[i].source;
            return PAGEDCL_SUCCESS;
        }
    return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "there is no kernel %.*s", (int)length, name);
}
