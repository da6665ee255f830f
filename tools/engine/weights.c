/* SPDX-License-Identifier: Apache-2.0 */
#include "weights.h"

#include "float16.h"
#include "folder.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char INDEX[] = "model.safetensors.index.json";
enum { MAX_SHARDS = 4096 };

typedef struct shard {
    const char *name; /* the file's, owned by the index */
    safetensors *file;
} shard;

struct weights {
    const char *folder;
    json_t *index;            /* NULL: one file */
    const json_t *weight_map; /* tensor name to file name */
    shard *shards;
    size_t num_shards;
};

static safetensors *find_shard(const weights *w, const char *name) {
    for (size_t i = 0; i < w->num_shards; i++)
        if (strcmp(w->shards[i].name, name) == 0)
            return w->shards[i].file;
    return NULL;
}

static bool open_shard(weights *w, const char *name, tool_error *error) {
    char path[FOLDER_MAX_PATH];
    if (w->num_shards == MAX_SHARDS)
        return tool_fail(error, "%s: the index names more than %d files", w->folder, MAX_SHARDS);
    if (strchr(name, '/') != NULL)
        return tool_fail(error, "%s: the index names \"%s\", which is not a file of this folder", w->folder, name);
    if (!folder_path(w->folder, name, path, error))
        return false;
    shard *shards = realloc(w->shards, (w->num_shards + 1) * sizeof *shards);
    if (shards == NULL)
        return tool_fail(error, "out of memory");
    w->shards = shards;
    safetensors *file = safetensors_open(path, error->text, sizeof error->text);
    if (file == NULL)
        return false;
    w->shards[w->num_shards++] = (shard){.name = name, .file = file};
    return true;
}

static bool open_index(weights *w, tool_error *error) {
    w->index = folder_read_json(w->folder, INDEX, error);
    if (w->index == NULL)
        return false;
    w->weight_map = json_object_get(w->index, "weight_map");
    if (!json_is_object(w->weight_map))
        return tool_fail(error, "%s/%s: weight_map is missing or not an object", w->folder, INDEX);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)w->weight_map, key, value) {
        const char *name = json_string_value(value);
        if (name == NULL)
            return tool_fail(error, "%s/%s: the entry of %s is not a file name", w->folder, INDEX, key);
        if (find_shard(w, name) == NULL && !open_shard(w, name, error))
            return false;
    }
    return true;
}

weights *weights_open(const char *folder, tool_error *error) {
    weights *w = calloc(1, sizeof *w);
    if (w == NULL) {
        tool_fail(error, "out of memory");
        return NULL;
    }
    w->folder = folder;
    if (folder_has(folder, INDEX) ? open_index(w, error) : open_shard(w, "model.safetensors", error))
        return w;
    weights_close(w);
    return NULL;
}

void weights_close(weights *w) {
    if (w == NULL)
        return;
    for (size_t i = 0; i < w->num_shards; i++)
        safetensors_close(w->shards[i].file);
    free(w->shards);
    json_decref(w->index);
    free(w);
}

const safetensors_tensor *weights_find(const weights *w, const char *name, int64_t rows, int64_t columns,
                                       tool_error *error) {
    const safetensors *file = w->shards == NULL ? NULL : w->shards[0].file;
    if (w->weight_map != NULL) {
        const char *shard_name = json_string_value(json_object_get(w->weight_map, name));
        file = shard_name == NULL ? NULL : find_shard(w, shard_name);
    }
    const safetensors_tensor *tensor = file == NULL ? NULL : safetensors_find(file, name);
    if (tensor == NULL) {
        tool_fail(error, "%s: the tensor %s is missing", w->folder, name);
        return NULL;
    }
    int64_t shape[2] = {rows, columns};
    int num_dims = rows == 0 ? 1 : 2;
    if (tensor->num_dims != num_dims ||
        memcmp(tensor->shape, shape + 2 - num_dims, (size_t)num_dims * sizeof *shape) != 0) {
        if (rows == 0)
            tool_fail(error, "%s: %s must have the shape [%" PRId64 "] that config.json gives", w->folder, name,
                      columns);
        else
            tool_fail(error, "%s: %s must have the shape [%" PRId64 ", %" PRId64 "] that config.json gives", w->folder,
                      name, rows, columns);
        return NULL;
    }
    if (tensor->dtype != SAFETENSORS_F32 && tensor->dtype != SAFETENSORS_F16 && tensor->dtype != SAFETENSORS_BF16) {
        tool_fail(error, "%s: %s is %s; only F32, F16 and BF16 are read", w->folder, name, tensor->dtype_name);
        return NULL;
    }
    return tensor;
}

void weights_to_float(const safetensors_tensor *tensor, int64_t first, int64_t count, float *values) {
    const unsigned char *data = (const unsigned char *)tensor->data;
    if (tensor->dtype == SAFETENSORS_F32) {
        memcpy(values, data + (size_t)first * sizeof *values, (size_t)count * sizeof *values);
        return;
    }
    float (*convert)(uint16_t) = tensor->dtype == SAFETENSORS_F16 ? float16_to_float : bfloat16_to_float;
    for (int64_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, data + (size_t)(first + i) * sizeof bits, sizeof bits);
        values[i] = convert(bits);
    }
}
