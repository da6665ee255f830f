/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading safetensors files: an 8-byte little-endian header length, a JSON header, and the tensors' bytes. Files are
 * hostile until proved: every offset, size, shape and dtype is checked here, so users need not check again.
 */
#ifndef SAFETENSORS_H
#define SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

enum { SAFETENSORS_MAX_DIMS = 8 };

typedef enum safetensors_dtype {
    SAFETENSORS_F32,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_I64,
    SAFETENSORS_I32,
    SAFETENSORS_OTHER, /* a dtype of the format that nothing here reads; its size is checked all the same */
} safetensors_dtype;

typedef struct safetensors_tensor {
    const char *name;
    safetensors_dtype dtype;
    const char *dtype_name; /* as in the file: "BF16" */
    int num_dims;
    int64_t shape[SAFETENSORS_MAX_DIMS]; /* at least 0 each; a product beyond 2^62 is refused */
    int64_t num_elements;
    const void *data; /* inside the mapped file; not necessarily aligned */
    size_t num_bytes; /* num_elements * size of dtype */
} safetensors_tensor;

typedef struct safetensors safetensors;

/*
 * Maps the file and checks its whole header. NULL on failure, with one line in error[0 .. error_size) that names the
 * file and what is wrong.
 */
safetensors *safetensors_open(const char *path, char *error, size_t error_size);
void safetensors_close(safetensors *file); /* NULL is allowed */

/* The tensor of that name, or NULL. It belongs to the file. */
const safetensors_tensor *safetensors_find(const safetensors *file, const char *name);

/* All tensors, in the header's order. */
size_t safetensors_count(const safetensors *file);
const safetensors_tensor *safetensors_at(const safetensors *file, size_t index);

/* The string of __metadata__ of that name, or NULL. It belongs to the file. */
const char *safetensors_metadata(const safetensors *file, const char *key);

/* Bytes of one element; 0 for SAFETENSORS_OTHER. */
size_t safetensors_dtype_size(safetensors_dtype dtype);

#endif
