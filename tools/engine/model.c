/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include "weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { STAGING_ELEMENTS = 1 << 20 };

typedef struct loader {
    pagedcl_device *device;
    const weights *weights;
    engine_progress progress;
    int64_t done; /* elements on the device */
    int64_t total;
    float *staging;
    tool_error *error;
} loader;

/* One tensor of the files and where it goes: matrices that multiply the same input are loaded one over the other. */
typedef struct part {
    const char *name;
    int64_t rows; /* 0: a vector */
} part;

static bool upload(loader *l, cl_mem target, int64_t offset, const safetensors_tensor *tensor) {
    cl_command_queue queue = pagedcl_device_queue(l->device);
    for (int64_t first = 0; first < tensor->num_elements; first += STAGING_ELEMENTS) {
        int64_t count =
            tensor->num_elements - first < STAGING_ELEMENTS ? tensor->num_elements - first : STAGING_ELEMENTS;
        weights_to_float(tensor, first, count, l->staging);
        cl_int code = clEnqueueWriteBuffer(queue, target, CL_TRUE, (size_t)(offset + first) * sizeof(float),
                                           (size_t)count * sizeof(float), l->staging, 0, NULL, NULL);
        if (code != CL_SUCCESS)
            return tool_try_opencl(l->error, code, "clEnqueueWriteBuffer");
        l->done += count;
        engine_report(&l->progress, "loading weights", (double)l->done / (double)l->total);
    }
    return true;
}

/* Loads the parts, `columns` wide each, into one new buffer. layer below 0: names are whole. */
static bool load(loader *l, int32_t layer, const part *parts, size_t num_parts, int64_t columns, cl_mem *target) {
    const safetensors_tensor *tensors[3];
    int64_t elements = 0;
    for (size_t i = 0; i < num_parts; i++) {
        char name[128];
        if (layer < 0)
            snprintf(name, sizeof name, "%s.weight", parts[i].name);
        else
            snprintf(name, sizeof name, "model.layers.%" PRId32 ".%s.weight", layer, parts[i].name);
        tensors[i] = weights_find(l->weights, name, parts[i].rows, columns, l->error);
        if (tensors[i] == NULL)
            return false;
        elements += tensors[i]->num_elements;
    }
    cl_int code;
    *target = clCreateBuffer(pagedcl_device_context(l->device), CL_MEM_READ_ONLY, (size_t)elements * sizeof(float),
                             NULL, &code);
    if (code != CL_SUCCESS)
        return tool_fail(l->error, "no device memory for %" PRId64 " MiB of weights (OpenCL error %d)",
                         elements * (int64_t)sizeof(float) >> 20, (int)code);
    int64_t offset = 0;
    for (size_t i = 0; i < num_parts; i++) {
        if (!upload(l, *target, offset, tensors[i]))
            return false;
        offset += tensors[i]->num_elements;
    }
    return true;
}

static bool load_layer(loader *l, const model_config *c, int32_t index, model_layer *layer) {
    int64_t q_rows = (int64_t)c->num_heads * c->head_dim;
    int64_t kv_rows = (int64_t)c->num_kv_heads * c->head_dim;
    const part attn_norm[] = {{"input_layernorm", 0}};
    const part qkv[] = {{"self_attn.q_proj", q_rows}, {"self_attn.k_proj", kv_rows}, {"self_attn.v_proj", kv_rows}};
    const part q_norm[] = {{"self_attn.q_norm", 0}};
    const part k_norm[] = {{"self_attn.k_norm", 0}};
    const part attn_out[] = {{"self_attn.o_proj", c->hidden_size}};
    const part mlp_norm[] = {{"post_attention_layernorm", 0}};
    const part gate_up[] = {{"mlp.gate_proj", c->intermediate_size}, {"mlp.up_proj", c->intermediate_size}};
    const part mlp_out[] = {{"mlp.down_proj", c->hidden_size}};
    return load(l, index, attn_norm, 1, c->hidden_size, &layer->attn_norm) &&
           load(l, index, qkv, 3, c->hidden_size, &layer->qkv) &&
           load(l, index, q_norm, 1, c->head_dim, &layer->q_norm) &&
           load(l, index, k_norm, 1, c->head_dim, &layer->k_norm) &&
           load(l, index, attn_out, 1, q_rows, &layer->attn_out) &&
           load(l, index, mlp_norm, 1, c->hidden_size, &layer->mlp_norm) &&
           load(l, index, gate_up, 2, c->hidden_size, &layer->gate_up) &&
           load(l, index, mlp_out, 1, c->intermediate_size, &layer->mlp_out);
}

static int64_t count_parameters(const model_config *c) {
    int64_t q_rows = (int64_t)c->num_heads * c->head_dim;
    int64_t kv_rows = (int64_t)c->num_kv_heads * c->head_dim;
    int64_t layer_rows = 2 * q_rows + 2 * kv_rows + 3 * (int64_t)c->intermediate_size + 2; /* all hidden_size wide */
    int64_t embeddings = (int64_t)c->vocab_size * (c->tied_embeddings ? 1 : 2);
    return c->num_layers * (layer_rows * c->hidden_size + 2 * (int64_t)c->head_dim) + (embeddings + 1) * c->hidden_size;
}

static bool load_all(loader *l, model *m) {
    const model_config *c = &m->config;
    const part embedding[] = {{"model.embed_tokens", c->vocab_size}};
    const part norm[] = {{"model.norm", 0}};
    const part head[] = {{"lm_head", c->vocab_size}};
    if (!load(l, -1, embedding, 1, c->hidden_size, &m->embedding))
        return false;
    for (int32_t i = 0; i < c->num_layers; i++)
        if (!load_layer(l, c, i, &m->layers[i]))
            return false;
    if (!load(l, -1, norm, 1, c->hidden_size, &m->norm))
        return false;
    if (!c->tied_embeddings)
        return load(l, -1, head, 1, c->hidden_size, &m->head);
    cl_int code = clRetainMemObject(m->embedding);
    if (code != CL_SUCCESS)
        return tool_try_opencl(l->error, code, "clRetainMemObject");
    m->head = m->embedding;
    return true;
}

bool model_load(pagedcl_device *device, const char *folder, const model_config *config, engine_progress progress,
                model *m, tool_error *error) {
    *m = (model){.config = *config, .num_parameters = count_parameters(config)};
    weights *w = weights_open(folder, error);
    if (w == NULL)
        return false;
    loader l = {.device = device, .weights = w, .progress = progress, .total = m->num_parameters, .error = error};
    l.staging = malloc(STAGING_ELEMENTS * sizeof *l.staging);
    m->layers = calloc((size_t)config->num_layers, sizeof *m->layers);
    bool ok = l.staging != NULL && m->layers != NULL ? load_all(&l, m) : tool_fail(error, "out of memory");
    free(l.staging);
    weights_close(w);
    return ok;
}

static void release(cl_mem buffer) {
    if (buffer != NULL)
        clReleaseMemObject(buffer);
}

void model_destroy(model *m) {
    release(m->embedding);
    release(m->norm);
    release(m->head);
    for (int32_t i = 0; m->layers != NULL && i < m->config.num_layers; i++) {
        const model_layer *layer = &m->layers[i];
        cl_mem buffers[] = {layer->attn_norm, layer->qkv,      layer->q_norm,  layer->k_norm,
                            layer->attn_out,  layer->mlp_norm, layer->gate_up, layer->mlp_out};
        for (size_t j = 0; j < sizeof buffers / sizeof *buffers; j++)
            release(buffers[j]);
    }
    free(m->layers);
    *m = (model){0};
}
