/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "folder.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Bounds far above any real model; with them no product of two sizes overflows 64 bits. */
enum { MAX_LAYERS = 4096, MAX_HEADS = 65536, MAX_WIDTH = 1 << 24, MAX_POSITIONS = 1 << 28 };

typedef struct reader {
    const char *path;
    const json_t *root;
    tool_error *error;
} reader;

/* The member, or NULL when it is absent or null. */
static const json_t *find(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

/* Absent members take the fallback; a fallback of 0 says that there is none. */
static bool read_int(const reader *r, const char *key, int32_t max, int32_t fallback, int32_t *value) {
    const json_t *member = find(r->root, key);
    if (member == NULL && fallback == 0)
        return tool_fail(r->error, "%s: %s is missing", r->path, key);
    json_int_t number = member == NULL ? fallback : json_integer_value(member);
    if ((member != NULL && !json_is_integer(member)) || number < 1 || number > max)
        return tool_fail(r->error, "%s: %s must be an integer from 1 to %" PRId32, r->path, key, max);
    *value = (int32_t)number;
    return true;
}

static bool read_number(const reader *r, const json_t *object, const char *key, double fallback, double *value) {
    const json_t *member = find(object, key);
    *value = member == NULL ? fallback : json_number_value(member);
    if ((member != NULL && !json_is_number(member)) || !(*value > 0 && isfinite((float)*value)))
        return tool_fail(r->error, "%s: %s must be a number above 0", r->path, key);
    return true;
}

static bool read_bool(const reader *r, const char *key, bool fallback, bool *value) {
    const json_t *member = find(r->root, key);
    if (member != NULL && !json_is_boolean(member))
        return tool_fail(r->error, "%s: %s must be true or false", r->path, key);
    *value = member == NULL ? fallback : json_is_true(member);
    return true;
}

/* Refuses a member that is there and is not the only string this engine computes. */
static bool require_string(const reader *r, const json_t *object, const char *key, const char *wanted) {
    const json_t *member = find(object, key);
    if (member == NULL || (json_is_string(member) && strcmp(json_string_value(member), wanted) == 0))
        return true;
    return tool_fail(r->error, "%s: %s is not \"%s\", and only that is supported", r->path, key, wanted);
}

static bool require_false(const reader *r, const char *key) {
    bool value = false;
    if (!read_bool(r, key, false, &value))
        return false;
    return !value || tool_fail(r->error, "%s: %s is true, which is not supported", r->path, key);
}

static bool read_layer_types(const reader *r) {
    const json_t *types = find(r->root, "layer_types");
    if (types == NULL)
        return true;
    size_t i;
    const json_t *type;
    json_array_foreach(types, i, type) {
        if (!json_is_string(type) || strcmp(json_string_value(type), "full_attention") != 0)
            return tool_fail(r->error, "%s: layer_types has an entry that is not \"full_attention\"", r->path);
    }
    return json_is_array(types) || tool_fail(r->error, "%s: layer_types must be an array", r->path);
}

/* "rope_theta" beside a "rope_scaling" of null, or both inside "rope_parameters" (transformers 5). */
static bool read_rope(const reader *r, model_config *config) {
    const json_t *scaling = find(r->root, "rope_scaling");
    const json_t *parameters = find(r->root, "rope_parameters");
    if (scaling != NULL && !json_is_object(scaling))
        return tool_fail(r->error, "%s: rope_scaling must be an object", r->path);
    if (parameters != NULL && !json_is_object(parameters))
        return tool_fail(r->error, "%s: rope_parameters must be an object", r->path);
    if (!require_string(r, scaling, "rope_type", "default") || !require_string(r, scaling, "type", "default") ||
        !require_string(r, parameters, "rope_type", "default"))
        return false;
    double theta;
    return read_number(r, r->root, "rope_theta", 10000.0, &theta) &&
           read_number(r, parameters, "rope_theta", theta, &config->rope_theta);
}

/* An integer, a list of them, or null. */
static bool read_eos(const reader *r, model_config *config) {
    const json_t *eos = find(r->root, "eos_token_id");
    size_t count = json_is_array(eos) ? json_array_size(eos) : eos != NULL;
    if (count > CONFIG_MAX_EOS)
        return tool_fail(r->error, "%s: eos_token_id has more than %d entries", r->path, CONFIG_MAX_EOS);
    for (size_t i = 0; i < count; i++) {
        const json_t *entry = json_is_array(eos) ? json_array_get(eos, i) : eos;
        json_int_t token = json_integer_value(entry);
        if (!json_is_integer(entry) || token < 0 || token >= config->vocab_size)
            return tool_fail(r->error, "%s: eos_token_id must hold tokens from 0 to %" PRId32, r->path,
                             config->vocab_size - 1);
        config->eos[config->num_eos++] = (int32_t)token;
    }
    return true;
}

static bool read_sizes(const reader *r, model_config *config) {
    if (!read_int(r, "num_hidden_layers", MAX_LAYERS, 0, &config->num_layers) ||
        !read_int(r, "hidden_size", MAX_WIDTH, 0, &config->hidden_size) ||
        !read_int(r, "intermediate_size", MAX_WIDTH, 0, &config->intermediate_size) ||
        !read_int(r, "num_attention_heads", MAX_HEADS, 0, &config->num_heads) ||
        !read_int(r, "num_key_value_heads", MAX_HEADS, config->num_heads, &config->num_kv_heads) ||
        !read_int(r, "head_dim", 256, 128, &config->head_dim) ||
        !read_int(r, "vocab_size", MAX_WIDTH, 0, &config->vocab_size) ||
        !read_int(r, "max_position_embeddings", MAX_POSITIONS, 0, &config->max_positions))
        return false;
    if (config->num_heads % config->num_kv_heads != 0)
        return tool_fail(r->error, "%s: num_attention_heads %" PRId32 " is no multiple of num_key_value_heads %" PRId32,
                         r->path, config->num_heads, config->num_kv_heads);
    if (config->head_dim % 8 != 0)
        return tool_fail(r->error, "%s: head_dim %" PRId32 " is no multiple of 8", r->path, config->head_dim);
    return true;
}

static bool read_config(const reader *r, model_config *config) {
    double eps;
    if (find(r->root, "model_type") == NULL)
        return tool_fail(r->error, "%s: model_type is missing", r->path);
    if (!require_string(r, r->root, "model_type", "qwen3") || !require_string(r, r->root, "hidden_act", "silu") ||
        !require_false(r, "attention_bias") || !require_false(r, "use_sliding_window") || !read_layer_types(r) ||
        !read_sizes(r, config) || !read_number(r, r->root, "rms_norm_eps", 1e-6, &eps) || !read_rope(r, config) ||
        !read_bool(r, "tie_word_embeddings", false, &config->tied_embeddings) || !read_eos(r, config))
        return false;
    config->rms_norm_eps = (float)eps;
    return true;
}

bool model_config_read(const char *folder, model_config *config, tool_error *error) {
    static const char name[] = "config.json";
    char path[FOLDER_MAX_PATH];
    json_t *root = folder_read_json(folder, name, error);
    if (root == NULL)
        return false;
    *config = (model_config){0};
    reader r = {.path = path, .root = root, .error = error};
    bool ok = folder_path(folder, name, path, error) && read_config(&r, config);
    json_decref(root);
    return ok;
}

bool model_config_ends(const model_config *config, int32_t token) {
    for (int32_t i = 0; i < config->num_eos; i++)
        if (config->eos[i] == token)
            return true;
    return false;
}
