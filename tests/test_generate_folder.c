/* SPDX-License-Identifier: Apache-2.0 */
/* Model folders, good and bad, given to the program. */
#define _POSIX_C_SOURCE 200809L

#include "safetensors.h"
#include "support/case_writer.h"
#include "support/temp_folder.h"
#include "support/tool.h"

#include "float16.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *folder;

static void make_folder(void) {
    folder = temp_folder_create();
}

static void remove_folder(void) {
    temp_folder_remove(folder);
}

TestSuite(generate_folder, .init = make_folder, .fini = remove_folder);

static const char *path_of(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_text(const char *name, const char *text) {
    case_writer_bytes(path_of(name), text, strlen(text));
}

#define RUN(...) tool_run_with((const char *const[]){"generate", __VA_ARGS__, NULL}, (const char *const[]){NULL})

/* Refused: exit status 2, nothing on stdout, one line on stderr that says `reason`. */
static void expect_refused(tool_run run, const char *what, const char *reason) {
    cr_expect_eq(run.exit_status, 2, "%s: exit status %d, stderr: %s", what, run.exit_status, run.err);
    cr_expect_str_eq(run.out, "", "%s", what);
    cr_expect_eq(tool_lines(run.err), 1, "%s: not one line: %s", what, run.err);
    cr_expect_not_null(strstr(run.err, reason), "%s: expected \"%s\" in: %s", what, reason, run.err);
    tool_run_free(&run);
}

/* The smallest model: every member that is needed, and its tensors. */
static const char small_config[] = "{\"model_type\": \"qwen3\", \"num_hidden_layers\": 1, \"hidden_size\": 16,"
                                   " \"intermediate_size\": 24, \"num_attention_heads\": 2,"
                                   " \"num_key_value_heads\": 1, \"head_dim\": 8, \"vocab_size\": 256,"
                                   " \"max_position_embeddings\": 64, \"rope_theta\": 1000000.0,"
                                   " \"tie_word_embeddings\": true, \"eos_token_id\": [7, 9]}";
static const char small_tensors[] = "model.embed_tokens.weight BF16 256,16;"
                                    "model.norm.weight F32 16;"
                                    "model.layers.0.input_layernorm.weight F16 16;"
                                    "model.layers.0.self_attn.q_proj.weight F16 16,16;"
                                    "model.layers.0.self_attn.k_proj.weight F32 8,16;"
                                    "model.layers.0.self_attn.v_proj.weight BF16 8,16;"
                                    "model.layers.0.self_attn.q_norm.weight BF16 8;"
                                    "model.layers.0.self_attn.k_norm.weight BF16 8;"
                                    "model.layers.0.self_attn.o_proj.weight BF16 16,16;"
                                    "model.layers.0.post_attention_layernorm.weight BF16 16;"
                                    "model.layers.0.mlp.gate_proj.weight BF16 24,16;"
                                    "model.layers.0.mlp.up_proj.weight BF16 24,16;"
                                    "model.layers.0.mlp.down_proj.weight BF16 16,24";

/* `text` with the first `from` replaced by `to`, for the caller to free. */
static char *replace(const char *text, const char *from, const char *to) {
    const char *place = strstr(text, from);
    cr_assert_not_null(place, "no \"%s\" in %s", from, text);
    size_t before = (size_t)(place - text);
    char *changed = malloc(strlen(text) + strlen(to) + 1);
    cr_assert_not_null(changed);
    memcpy(changed, text, before);
    strcpy(changed + before, to);
    strcat(changed, place + strlen(from));
    return changed;
}

static void write_small_model(void) {
    write_text("config.json", small_config);
    case_writer_zeros(path_of("model.safetensors"), NULL, small_tensors);
}

/* All its weights are zero, so are its logits: it says token 0. */
Test(generate_folder, runs_the_smallest_model) {
    write_small_model();
    tool_run run = RUN("--model", folder, "--prompt", "a", "--tokens", "3", "--json");
    cr_assert_eq(run.exit_status, 0, "%s", run.err);
    json_t *document = json_loads(run.out, 0, NULL);
    json_t *text = json_array_get(json_object_get(document, "texts"), 0);
    json_t *tokens = json_object_get(text, "new_tokens");
    cr_assert_eq(json_array_size(tokens), 3);
    for (size_t i = 0; i < 3; i++)
        cr_assert_eq(json_integer_value(json_array_get(tokens, i)), 0);
    cr_assert_str_eq(json_string_value(json_object_get(text, "finish")), "length");
    cr_assert_str_eq(run.err, "");
    json_decref(document);
    tool_run_free(&run);
}

Test(generate_folder, refuses_bad_configs) {
    static const struct {
        const char *from;
        const char *to;
        const char *reason;
    } changes[] = {
        {"{", "", "config.json: line 1"},
        {"{", "[", "config.json"},
        {small_config, "", "config.json"},
        {small_config, "null", "config.json"},
        {small_config, "[]", "is not a JSON object"},
        {small_config, "{}", "model_type is missing"},
        {"\"qwen3\"", "\"llama\"", "model_type"},
        {"\"qwen3\"", "3", "model_type"},
        {"{", "{\"vocab_size\": 1, ", "duplicate"},
        {"\"num_hidden_layers\": 1,", "", "num_hidden_layers is missing"},
        {"\"num_hidden_layers\": 1", "\"num_hidden_layers\": 0", "num_hidden_layers must be"},
        {"\"num_hidden_layers\": 1", "\"num_hidden_layers\": 1e3", "num_hidden_layers must be"},
        {"\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2", "model.layers.1.input_layernorm.weight is missing"},
        {"\"num_hidden_layers\": 1", "\"num_hidden_layers\": 99999999999999999999", "config.json"},
        {"\"num_hidden_layers\": 1", "\"num_hidden_layers\": 9223372036854775807", "num_hidden_layers must be"},
        {"\"hidden_size\": 16", "\"hidden_size\": -16", "hidden_size must be"},
        {"\"hidden_size\": 16", "\"hidden_size\": 16777216", "must have the shape [256, 16777216]"},
        {"\"hidden_size\": 16", "\"hidden_size\": \"16\"", "hidden_size must be"},
        {"\"num_attention_heads\": 2", "\"num_attention_heads\": 0", "num_attention_heads must be"},
        {"\"num_key_value_heads\": 1", "\"num_key_value_heads\": 3", "is no multiple of"},
        {"\"head_dim\": 8", "\"head_dim\": 12", "head_dim 12 is no multiple of 8"},
        {"\"head_dim\": 8", "\"head_dim\": 512", "head_dim must be"},
        {"\"head_dim\": 8", "\"head_dim\": 16", "q_proj.weight must have the shape [32, 16]"},
        {"\"head_dim\": 8,", "", "q_proj.weight must have the shape [256, 16]"},
        {"1000000.0", "0", "rope_theta must be"},
        {"1000000.0", "\"x\"", "rope_theta must be"},
        {"1000000.0", "1e300", "rope_theta must be"},
        {"\"rope_theta\"", "\"rope_parameters\": [], \"x\"", "rope_parameters must be"},
        {"\"rope_theta\"", "\"rope_parameters\": {\"rope_type\": \"yarn\"}, \"x\"", "rope_type"},
        {"\"rope_theta\"", "\"rope_scaling\": {\"type\": \"linear\"}, \"x\"", "type"},
        {"\"tie_word_embeddings\": true", "\"tie_word_embeddings\": 1", "tie_word_embeddings must be"},
        {"\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false", "lm_head.weight is missing"},
        {"\"tie_word_embeddings\"", "\"attention_bias\": true, \"x\"", "attention_bias is true"},
        {"\"tie_word_embeddings\"", "\"use_sliding_window\": true, \"x\"", "use_sliding_window is true"},
        {"\"tie_word_embeddings\"", "\"layer_types\": [\"sliding_attention\"], \"x\"", "layer_types"},
        {"\"tie_word_embeddings\"", "\"layer_types\": 1, \"x\"", "layer_types"},
        {"\"tie_word_embeddings\"", "\"hidden_act\": \"gelu\", \"x\"", "hidden_act"},
        {"\"tie_word_embeddings\"", "\"rms_norm_eps\": -1, \"x\"", "rms_norm_eps must be"},
        {"[7, 9]", "256", "eos_token_id"},
        {"[7, 9]", "-1", "eos_token_id"},
        {"[7, 9]", "[[]]", "eos_token_id"},
        {"[7, 9]", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "eos_token_id has more than 16"},
        {"\"vocab_size\": 256", "\"vocab_size\": 255", "the tokenizer of this model is not read"},
    };
    write_small_model();
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        char *config = replace(small_config, changes[i].from, changes[i].to);
        write_text("config.json", config);
        expect_refused(RUN("--model", folder, "--prompt", "a", "--tokens", "3"), config, changes[i].reason);
        free(config);
    }
    char *deep = malloc(100001);
    cr_assert_not_null(deep);
    memset(deep, '[', 100000);
    deep[100000] = '\0';
    write_text("config.json", deep);
    free(deep);
    expect_refused(RUN("--model", folder, "--prompt", "a", "--tokens", "3"), "deep", "config.json");
}

Test(generate_folder, refuses_bad_weights) {
    static const struct {
        const char *from;
        const char *to;
        const char *reason;
    } changes[] = {
        {"model.norm.weight F32 16;", "", "model.norm.weight is missing"},
        {"model.norm.weight F32 16", "model.norm.weight F32 17", "model.norm.weight must have the shape [16]"},
        {"model.norm.weight F32 16", "model.norm.weight F32 1,16", "model.norm.weight must have the shape [16]"},
        {"model.norm.weight F32 16", "model.norm.weight I32 16", "model.norm.weight is I32"},
        {"256,16", "16,256", "model.embed_tokens.weight must have the shape [256, 16]"},
        {"256,16", "4096", "model.embed_tokens.weight must have the shape [256, 16]"},
        {"v_proj.weight BF16 8,16", "v_proj.weight BF16 16,16", "v_proj.weight must have the shape [8, 16]"},
    };
    write_text("config.json", small_config);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        char *tensors = replace(small_tensors, changes[i].from, changes[i].to);
        case_writer_zeros(path_of("model.safetensors"), NULL, tensors);
        expect_refused(RUN("--model", folder, "--prompt", "a", "--tokens", "3"), tensors, changes[i].reason);
        free(tensors);
    }
    case_writer_zeros(path_of("model.safetensors"), NULL, small_tensors);
    struct stat status;
    cr_assert_eq(stat(path_of("model.safetensors"), &status), 0);
    const off_t sizes[] = {0, 7, 8, 100, status.st_size - 1};
    for (size_t i = sizeof sizes / sizeof *sizes; i-- > 0;) {
        cr_assert_eq(truncate(path_of("model.safetensors"), sizes[i]), 0);
        expect_refused(RUN("--model", folder, "--prompt", "a", "--tokens", "3"), "truncated", "model.safetensors");
    }
    cr_assert_eq(unlink(path_of("model.safetensors")), 0);
    expect_refused(RUN("--model", folder, "--prompt", "a", "--tokens", "3"), "no weights", "model.safetensors");
}

/* Weights of which every logit is NaN: 0xffff in bfloat16. */
Test(generate_folder, refuses_a_model_that_gives_no_number) {
    write_small_model();
    FILE *file = fopen(path_of("model.safetensors"), "r+b");
    cr_assert_not_null(file);
    unsigned char ones[4096];
    memset(ones, 0xff, sizeof ones);
    cr_assert_eq(fseek(file, -(long)sizeof ones, SEEK_END), 0);
    cr_assert_eq(fwrite(ones, 1, sizeof ones, file), sizeof ones);
    cr_assert_eq(fclose(file), 0);
    expect_refused(RUN("--model", folder, "--prompt", "a", "--tokens", "3", "--json"), "NaN", "not finite");
}

Test(generate_folder, refuses_bad_indexes) {
    static const struct {
        const char *text;
        const char *reason;
    } indexes[] = {
        {"", "model.safetensors.index.json"},
        {"[]", "is not a JSON object"},
        {"{}", "weight_map is missing"},
        {"{\"weight_map\": 3}", "weight_map is missing or not an object"},
        {"{\"weight_map\": {}}", "model.embed_tokens.weight is missing"},
        {"{\"weight_map\": {\"a\": 1}}", "the entry of a is not a file name"},
        {"{\"weight_map\": {\"a\": \"../model.safetensors\"}}", "not a file of this folder"},
        {"{\"weight_map\": {\"a\": \"/etc/passwd\"}}", "not a file of this folder"},
        {"{\"weight_map\": {\"a\": \"missing.safetensors\"}}", "missing.safetensors"},
        {"{\"weight_map\": {\"a\": \"config.json\"}}", "config.json"},
        {"{\"weight_map\": {\"a\": \"..\"}}", ".."},
        {"{\"weight_map\": {\"a\": \"model.safetensors\"}}", "model.embed_tokens.weight is missing"},
        {"{\"weight_map\": {\"model.embed_tokens.weight\": \"model.safetensors\"}}",
         "model.layers.0.input_layernorm.weight is missing"},
    };
    write_small_model();
    for (size_t i = 0; i < sizeof indexes / sizeof *indexes; i++) {
        write_text("model.safetensors.index.json", indexes[i].text);
        expect_refused(RUN("--model", folder, "--prompt", "a", "--tokens", "3"), indexes[i].text, indexes[i].reason);
    }
}

Test(generate_folder, needs_token_ids_without_a_byte_tokenizer) {
    write_small_model();
    write_text("tokenizer.json", "{}");
    expect_refused(RUN("--model", folder, "--prompt", "a", "--tokens", "3"), "text", "--prompt-ids");
    tool_run run = RUN("--model", folder, "--prompt-ids", "97,98", "--tokens", "2");
    cr_expect_eq(run.exit_status, 0, "%s", run.err);
    cr_expect_str_eq(run.out, "97 98 0 0 \n");
    tool_run_free(&run);
}

Test(generate_folder, refuses_bad_options) {
    write_small_model();
    char file[512];
    snprintf(file, sizeof file, "%s", path_of("prompts.txt"));
#define MODEL "--model", folder
    expect_refused(RUN(MODEL), "no prompt", "needs --model and a --prompt");
    expect_refused(RUN("--prompt", "a"), "no model", "needs --model and a --prompt");
    expect_refused(RUN(MODEL, "--prompt"), "no value", "--prompt");
    expect_refused(RUN(MODEL, "--frobnicate"), "unknown option", "--frobnicate");
    expect_refused(RUN(MODEL, "a"), "argument", "\"a\" is no option");
    expect_refused(RUN(MODEL, "--prompt", ""), "empty prompt", "empty");
    expect_refused(RUN("--model", "no/such/folder", "--prompt", "a"), "no folder", "no/such/folder/config.json");
    expect_refused(RUN(MODEL, "--prompt", "a", "--device", "no-such-device"), "device", "no-such-device");
    expect_refused(RUN(MODEL, "--prompt", "a", "--tokens", "0"), "tokens", "--tokens is \"0\"");
    expect_refused(RUN(MODEL, "--prompt", "a", "--tokens", "64"), "tokens", "the model takes at most 64");
    expect_refused(RUN(MODEL, "--prompt", "a", "--tokens", "9x"), "tokens", "--tokens is \"9x\"");
    expect_refused(RUN(MODEL, "--prompt", "a", "--tokens", "99999999999999999999"), "tokens", "--tokens");
    expect_refused(RUN(MODEL, "--prompt", "a", "--temperature", "-1"), "temperature", "--temperature");
    expect_refused(RUN(MODEL, "--prompt", "a", "--temperature", "nan"), "temperature", "--temperature");
    expect_refused(RUN(MODEL, "--prompt", "a", "--top-p", "1.5"), "top-p", "--top-p");
    expect_refused(RUN(MODEL, "--prompt", "a", "--seed", "-1"), "seed", "--seed");
    expect_refused(RUN(MODEL, "--prompt", "a", "--block-size", "0"), "block-size", "--block-size");
    expect_refused(RUN(MODEL, "--prompt", "a", "--kv-dtype", "int2"), "kv-dtype", "--kv-dtype");
    expect_refused(RUN(MODEL, "--prompt", "a", "--pool-blocks", "2147483648"), "pool", "--pool-blocks");
    expect_refused(RUN(MODEL, "--prompt", "a", "--pool-blocks", "2147483647"), "pool", "holds only");
    expect_refused(RUN(MODEL, "--prompt", "a", "--tokens", "32", "--pool-blocks", "1"), "pool", "the pool has 1");
    expect_refused(RUN(MODEL, "--prompt", "a", "--chunk", "0"), "chunk", "--chunk");
    expect_refused(RUN(MODEL, "--prompt", "a", "--max-batch", "-3"), "max-batch", "--max-batch");
    expect_refused(RUN(MODEL, "--prompt-ids", "1,,2"), "ids", "--prompt-ids");
    expect_refused(RUN(MODEL, "--prompt-ids", "1,2,"), "ids", "--prompt-ids");
    expect_refused(RUN(MODEL, "--prompt-ids", ""), "ids", "--prompt-ids");
    expect_refused(RUN(MODEL, "--prompt-ids", "-4"), "ids", "--prompt-ids");
    expect_refused(RUN(MODEL, "--prompt-ids", "256"), "ids", "token 256 is not in the vocabulary of 256");
    expect_refused(RUN(MODEL, "--prompt-file", "no/such/file"), "file", "no/such/file");
    expect_refused(RUN(MODEL, "--prompt-file", folder), "file", "is not a file of text");
    expect_refused(RUN(MODEL, "--prompt-file", "/dev/zero"), "file", "is not a file of text");
    case_writer_bytes(file, "", 0);
    expect_refused(RUN(MODEL, "--prompt-file", file), "file", "holds no prompt");
    case_writer_bytes(file, "a\nb\0c\n", 6);
    expect_refused(RUN(MODEL, "--prompt-file", file), "file", "zero byte");
}

/* The lines of a file and the other options give prompts in their order. */
Test(generate_folder, takes_prompts_from_everywhere) {
    write_small_model();
    char file[512];
    snprintf(file, sizeof file, "%s", path_of("prompts.txt"));
    case_writer_bytes(file, "one\r\n\ntwo", 9);
    tool_run run = RUN("--model", folder, "-p", "first", "-f", file, "--prompt-ids", "33, 34", "-n", "1", "--json");
    cr_assert_eq(run.exit_status, 0, "%s", run.err);
    json_t *document = json_loads(run.out, 0, NULL);
    const json_t *texts = json_object_get(document, "texts");
    static const char *const prompts[] = {"first", "one", "two", "!\""};
    cr_assert_eq(json_array_size(texts), 4);
    for (size_t i = 0; i < 4; i++)
        cr_assert_str_eq(json_string_value(json_object_get(json_array_get(texts, i), "prompt")), prompts[i]);
    json_decref(document);
    tool_run_free(&run);
}

typedef struct entry {
    const char *name;
    const safetensors_tensor *tensor;
} entry;

static json_t *entry_to_json(const entry *e, size_t offset, size_t end) {
    json_t *shape = json_array();
    for (int i = 0; i < e->tensor->num_dims; i++)
        json_array_append_new(shape, json_integer(e->tensor->shape[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape, "data_offsets", (json_int_t)offset,
                     (json_int_t)end);
}

/* Writes the entries whose place is `part` modulo 2 as float32, and where they are into weight_map. */
static void write_shard(const char *name, const entry *entries, size_t count, size_t part, json_t *weight_map) {
    json_t *header = json_object();
    size_t offset = 0;
    for (size_t i = part; i < count; i += 2) {
        size_t end = offset + (size_t)entries[i].tensor->num_elements * sizeof(float);
        json_object_set_new(header, entries[i].name, entry_to_json(&entries[i], offset, end));
        json_object_set_new(weight_map, entries[i].name, json_string(name));
        offset = end;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    FILE *file = fopen(path_of(name), "wb");
    cr_assert(text && file);
    uint64_t length = strlen(text);
    for (int i = 0; i < 8; i++)
        fputc((int)(length >> 8 * i & 0xff), file);
    fputs(text, file);
    for (size_t i = part; i < count; i += 2) {
        const safetensors_tensor *tensor = entries[i].tensor;
        cr_assert_eq(tensor->dtype, SAFETENSORS_BF16);
        for (int64_t j = 0; j < tensor->num_elements; j++) {
            uint16_t bits;
            memcpy(&bits, (const char *)tensor->data + j * (int64_t)sizeof bits, sizeof bits);
            float value = bfloat16_to_float(bits);
            fwrite(&value, sizeof value, 1, file);
        }
    }
    cr_assert_eq(fclose(file), 0);
    free(text);
    json_decref(header);
}

/* The model of the tree in other clothes: float32, two files, a head of its own, the old form of the rotary base. */
static void write_other_form(void) {
    char error[256];
    entry entries[256];
    size_t count = 0;
    safetensors *model = safetensors_open(MODEL_DIR "/model.safetensors", error, sizeof error);
    cr_assert_not_null(model, "%s", error);
    for (; count < safetensors_count(model); count++) {
        const safetensors_tensor *tensor = safetensors_at(model, count);
        entries[count] = (entry){.name = tensor->name, .tensor = tensor};
    }
    entries[count++] = (entry){"lm_head.weight", safetensors_find(model, "model.embed_tokens.weight")};
    json_t *weight_map = json_object();
    write_shard("model-00001-of-00002.safetensors", entries, count, 0, weight_map);
    write_shard("model-00002-of-00002.safetensors", entries, count, 1, weight_map);
    safetensors_close(model);
    json_t *index = json_pack("{s:{s:i}, s:o}", "metadata", "total_size", 0, "weight_map", weight_map);
    cr_assert_eq(json_dump_file(index, path_of("model.safetensors.index.json"), 0), 0);
    json_decref(index);
    json_t *config = json_load_file(MODEL_DIR "/config.json", 0, NULL);
    json_object_del(config, "rope_parameters");
    json_object_set_new(config, "rope_theta", json_real(10000.0));
    json_object_set_new(config, "rope_scaling", json_null());
    json_object_set_new(config, "tie_word_embeddings", json_false());
    cr_assert_eq(json_dump_file(config, path_of("config.json"), 0), 0);
    json_decref(config);
}

/* Both say the same, logits and all: bfloat16 values are float32 values. */
Test(generate_folder, the_form_of_the_weights_changes_nothing) {
    write_other_form();
    const char *models[] = {MODEL_DIR, folder};
    json_t *documents[2];
    for (int i = 0; i < 2; i++) {
        tool_run run = RUN("--model", models[i], "--prompt", "In the beginning", "--tokens", "8", "--json", "--logits");
        cr_assert_eq(run.exit_status, 0, "%s", run.err);
        documents[i] = json_loads(run.out, 0, NULL);
        cr_assert_not_null(documents[i]);
        tool_run_free(&run);
    }
    static const char *const members[] = {"new_tokens", "text", "first_logits"};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        json_t *values[2];
        for (int j = 0; j < 2; j++)
            values[j] = json_object_get(json_array_get(json_object_get(documents[j], "texts"), 0), members[i]);
        cr_assert_not_null(values[0]);
        cr_assert(json_equal(values[0], values[1]), "%s differ", members[i]);
    }
    json_decref(documents[0]);
    json_decref(documents[1]);
}
