/* SPDX-License-Identifier: Apache-2.0 */
/* Small safetensors files for tests, good and bad. */
#ifndef CASE_WRITER_H
#define CASE_WRITER_H

#include <stddef.h>

void case_writer_bytes(const char *path, const void *bytes, size_t size);

/*
 * A safetensors file whose __metadata__ is the JSON object `metadata` (NULL: none), with tensors full of zero bytes:
 * "name DTYPE dim,dim,..." each, divided by ";". A scalar's dimensions are "-".
 */
void case_writer_zeros(const char *path, const char *metadata, const char *tensors);

typedef struct case_tensor {
    const char *name;
    const char *dtype;
    const char *dims; /* "2,3,4"; "" for a scalar */
    const void *data;
    size_t bytes;
} case_tensor;

/* A safetensors file with these tensors. */
void case_writer_tensors(const char *path, const char *metadata, const case_tensor *tensors, size_t count);

#endif
