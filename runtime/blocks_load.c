/* SPDX-License-Identifier: Apache-2.0 */
/* Loading a file of sequences: all of it is checked, then there is room, then it is loaded. */
#include "blocks_file.h"

#include "file_system.h"
#include "status.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A sequence of the file, pointing into the manifest. */
typedef struct loaded_seq {
    pcl_file_seq head;
    const pcl_file_data *data; /* by group */
    const int32_t *tokens;
    const unsigned char *keys;
    int64_t taken; /* of the shared tokens, those that the parent's blocks give */
} loaded_seq;

typedef struct load {
    pagedcl_blocks *blocks;
    pcl_file_form *forms; /* by group */
    pagedcl_kv_transfer transfer;
    void *user;
    const char *path;
    FILE *file;
    uint64_t data_offset, manifest_offset; /* between them lies the data */
    unsigned char *buffer;
    unsigned char *manifest;
    uint64_t manifest_size;
    loaded_seq *seqs;
    int64_t num_seqs;
} load;

static pagedcl_status bad_file(const load *l, const char *what) {
    return pcl_fail(PAGEDCL_BAD_FILE, "%s: %s", l->path, what);
}

static pagedcl_status read_at(load *l, uint64_t offset, void *bytes, size_t size) {
    if (!pcl_fs_seek(l->file, offset) || (size > 0 && fread(bytes, size, 1, l->file) != 1))
        return pcl_fail(PAGEDCL_IO_ERROR, "cannot read %s: %s", l->path,
                        ferror(l->file) ? strerror(errno) : "it became shorter");
    return PAGEDCL_SUCCESS;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static pagedcl_status check_magic(const load *l, const char *magic) {
    const char *version = magic + PCL_FILE_NAME, *own = pcl_file_magic + PCL_FILE_NAME;
    if (memcmp(magic, pcl_file_magic, PCL_FILE_NAME) != 0 || !is_digit(version[0]) || !is_digit(version[1]))
        return bad_file(l, "is no file of sequences");
    if (memcmp(version, own, 2) != 0)
        return pcl_fail(PAGEDCL_UNSUPPORTED, "%s has version %.2s of the format, and this library reads version %.2s",
                        l->path, version, own);
    return PAGEDCL_SUCCESS;
}

typedef enum value_kind { NUMBER, DTYPE, SCALE } value_kind;

static void write_value(value_kind kind, int64_t value, char *text, size_t size) {
    uint32_t bits = (uint32_t)value;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    if (kind == DTYPE && value >= 0 && value <= INT32_MAX)
        snprintf(text, size, "%s", pagedcl_dtype_name((pagedcl_dtype)value));
    else if (kind == SCALE)
        snprintf(text, size, "%.9g", (double)scale);
    else
        snprintf(text, size, "%" PRId64, value);
}

/* A group of the file must be the manager's and the pool's; of block sizes the data does not depend without windows. */
static pagedcl_status check_group(const load *l, int32_t g, const pcl_file_group *group) {
    const pcl_file_group *own = &l->forms[g].group;
    const struct {
        const char *name;
        value_kind kind;
        int64_t file, pool;
    } fields[] = {
        {"num_layers", NUMBER, group->num_layers, own->num_layers},
        {"num_kv_heads", NUMBER, group->num_kv_heads, own->num_kv_heads},
        {"head_dim", NUMBER, group->head_dim, own->head_dim},
        {"dtype", DTYPE, group->dtype, own->dtype},
        {"head_dim_v", NUMBER, group->head_dim_v, own->head_dim_v},
        {"v_in_k", NUMBER, group->v_in_k, own->v_in_k},
        {"scale_per_row", NUMBER, group->scale_per_row, own->scale_per_row},
        {"k_scale", SCALE, group->k_scale, own->k_scale},
        {"v_scale", SCALE, group->v_scale, own->v_scale},
        {"window", NUMBER, group->window, own->window},
        {"block_size", NUMBER, l->blocks->windowed ? group->block_size : own->block_size, own->block_size},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (fields[i].file == fields[i].pool)
            continue;
        char theirs[32], mine[32];
        write_value(fields[i].kind, fields[i].file, theirs, sizeof theirs);
        write_value(fields[i].kind, fields[i].pool, mine, sizeof mine);
        return pcl_fail(PAGEDCL_UNSUPPORTED,
                        "%s was saved with %s %s in group %" PRId32 ", and is to be loaded with %s", l->path,
                        fields[i].name, theirs, g, mine);
    }
    return PAGEDCL_SUCCESS;
}

/* The tail, the head and the manifest; the file has file_size bytes. */
static pagedcl_status read_frame(load *l, uint64_t file_size) {
    pcl_file_head head;
    pcl_file_tail tail;
    if (file_size < sizeof head + sizeof tail)
        return bad_file(l, "is too short for a file of sequences");
    PCL_TRY(read_at(l, 0, &head, sizeof head));
    PCL_TRY(read_at(l, file_size - sizeof tail, &tail, sizeof tail));
    PCL_TRY(check_magic(l, head.magic));
    if (memcmp(tail.magic, pcl_file_magic, sizeof tail.magic) != 0 ||
        tail.checksum != pcl_file_checksum(0, &tail, offsetof(pcl_file_tail, checksum)))
        return bad_file(l, "is cut off or damaged at its end");
    if (head.num_groups != l->blocks->num_groups)
        return pcl_fail(PAGEDCL_UNSUPPORTED, "%s has %" PRId64 " groups, the manager %" PRId32, l->path,
                        head.num_groups, l->blocks->num_groups);
    l->data_offset = sizeof head + (uint64_t)l->blocks->num_groups * sizeof(pcl_file_group);
    uint64_t end;
    if (tail.manifest_offset < l->data_offset ||
        __builtin_add_overflow(tail.manifest_offset, tail.manifest_size, &end) || end != file_size - sizeof tail ||
        tail.num_seqs < 0 || (uint64_t)tail.num_seqs > tail.manifest_size / sizeof(pcl_file_seq))
        return bad_file(l, "has a tail that does not fit it");

    uint64_t checksum = pcl_file_checksum(0, &head, sizeof head);
    pagedcl_status same = PAGEDCL_SUCCESS;
    for (int32_t g = 0; g < l->blocks->num_groups; g++) {
        pcl_file_group group;
        PCL_TRY(read_at(l, sizeof head + (uint64_t)g * sizeof group, &group, sizeof group));
        checksum = pcl_file_checksum(checksum, &group, sizeof group);
        if (same == PAGEDCL_SUCCESS)
            same = check_group(l, g, &group);
    }
    if (checksum != tail.head_checksum)
        return bad_file(l, "has a damaged head");
    PCL_TRY(same);
    l->manifest_offset = tail.manifest_offset;
    l->manifest_size = tail.manifest_size;
    l->num_seqs = tail.num_seqs;
    l->manifest = malloc(tail.manifest_size + 1);
    l->seqs = calloc((size_t)tail.num_seqs + 1, sizeof *l->seqs);
    if (l->manifest == NULL || l->seqs == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no host memory for the manifest of %s", l->path);
    PCL_TRY(read_at(l, tail.manifest_offset, l->manifest, tail.manifest_size));
    if (pcl_file_checksum(0, l->manifest, tail.manifest_size) != tail.manifest_checksum)
        return bad_file(l, "has a damaged manifest");
    return PAGEDCL_SUCCESS;
}

/* The next count elements of the manifest at *at, padded; NULL when it ends before. */
static const void *next_part(const load *l, uint64_t *at, uint64_t count, uint64_t size) {
    uint64_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > l->manifest_size - *at)
        return NULL;
    const void *part = l->manifest + *at;
    *at += pcl_file_padded(bytes);
    return *at <= l->manifest_size ? part : NULL;
}

/* The first position whose data the sequence itself has. */
static int64_t own_first(const loaded_seq *s, int32_t g) {
    return s->data[g].first > s->head.shared ? s->data[g].first : s->head.shared;
}

/* The checksums of the sequence's data, which must lie between head and manifest. */
static pagedcl_status check_data(load *l, const loaded_seq *s, int32_t g) {
    const pcl_file_data *data = &s->data[g];
    const pcl_group *group = &l->blocks->groups[g];
    uint64_t size, end;
    if (data->first < 0 || data->first > s->head.length ||
        data->first > pcl_first_seen(group, s->head.length) * group->block_size)
        return bad_file(l, "lacks data that a window sees");
    int64_t tokens = s->head.length - own_first(s, g);
    if (__builtin_mul_overflow((uint64_t)tokens, l->forms[g].token_bytes, &size) || data->offset < l->data_offset ||
        __builtin_add_overflow(data->offset, size, &end) || end > l->manifest_offset)
        return bad_file(l, "has data outside itself");
    const uint64_t token_bytes = l->forms[g].token_bytes;
    uint64_t sum = 0, most = (uint64_t)group->block_size * token_bytes;
    bool valid = true;
    for (uint64_t at = data->offset; at < end;) {
        size_t count = (size_t)(end - at < most ? end - at : most);
        PCL_TRY(read_at(l, at, l->buffer, count));
        sum = pcl_file_checksum_tokens(sum, l->buffer, count / token_bytes, token_bytes);
        valid &= pcl_file_scales_are_valid(&l->forms[g], l->buffer, count / token_bytes);
        at += count;
    }
    if (sum != data->checksum)
        return bad_file(l, "has damaged data");
    if (!valid)
        return bad_file(l, "has a scale that is not finite or below 0");
    return PAGEDCL_SUCCESS;
}

static pagedcl_status read_manifest(load *l) {
    uint64_t at = 0;
    for (int64_t i = 0; i < l->num_seqs; i++) {
        loaded_seq *s = &l->seqs[i];
        const pcl_file_seq *head = next_part(l, &at, 1, sizeof *head);
        if (head == NULL)
            return bad_file(l, "has a manifest that ends too early");
        s->head = *head;
        bool whole = head->length >= 0 && head->recorded >= 0 && head->recorded <= head->length && head->shared >= 0 &&
                     head->shared <= head->length && head->num_keys >= 0 && head->parent >= -1 && head->parent < i &&
                     (head->parent >= 0 ? head->shared <= l->seqs[head->parent].head.length && !l->blocks->windowed
                                        : head->shared == 0);
        if (!whole)
            return bad_file(l, "has a sequence that cannot be");
        s->data = next_part(l, &at, (uint64_t)l->blocks->num_groups, sizeof *s->data);
        s->tokens = s->data == NULL ? NULL : next_part(l, &at, (uint64_t)head->recorded, sizeof *s->tokens);
        if (s->tokens == NULL)
            return bad_file(l, "has a manifest that ends too early");
        s->keys = l->manifest + at;
        for (int64_t k = 0; k < head->num_keys; k++) {
            const pcl_file_key *key = next_part(l, &at, 1, sizeof *key);
            if (key == NULL || key->size < 0 || next_part(l, &at, (uint64_t)key->size, 1) == NULL)
                return bad_file(l, "has a manifest that ends too early");
        }
        for (int32_t g = 0; g < l->blocks->num_groups; g++)
            PCL_TRY(check_data(l, s, g));
        if (head->parent >= 0)
            s->taken = head->shared / l->blocks->unit * l->blocks->unit;
    }
    return at == l->manifest_size ? PAGEDCL_SUCCESS : bad_file(l, "has a manifest that goes on too long");
}

static pagedcl_status check_room(const load *l) {
    int64_t needed = 0;
    for (int64_t i = 0; i < l->num_seqs; i++)
        for (int32_t g = 0; g < l->blocks->num_groups; g++) {
            const pcl_group *group = &l->blocks->groups[g];
            int64_t more = pcl_blocks_for(group, l->seqs[i].head.length) - pcl_blocks_for(group, l->seqs[i].taken);
            if (__builtin_add_overflow(needed, more, &needed))
                return bad_file(l, "has more tokens than 64 bits count");
        }
    if (needed > l->blocks->stats.total)
        return pcl_fail(PAGEDCL_NEVER_FITS, "%s needs %" PRId64 " blocks, the pool has %" PRId64, l->path, needed,
                        l->blocks->stats.total);
    if (needed > pcl_blocks_available(l->blocks))
        return pcl_fail(PAGEDCL_OUT_OF_BLOCKS, "%s needs %" PRId64 " blocks, %" PRId64 " can be taken", l->path, needed,
                        pcl_blocks_available(l->blocks));
    return PAGEDCL_SUCCESS;
}

/* Reads the data of positions first .. end - 1, which the sequence or those it shares with have. */
static pagedcl_status read_tokens(load *l, const loaded_seq *s, int32_t g, int64_t first, int64_t end) {
    unsigned char *into = l->buffer;
    while (first < end) {
        const loaded_seq *has = s;
        int64_t until = end;
        while (first < has->head.shared) {
            until = has->head.shared < until ? has->head.shared : until;
            has = &l->seqs[has->head.parent];
        }
        size_t size = (size_t)(until - first) * l->forms[g].token_bytes;
        uint64_t skipped = (uint64_t)(first - own_first(has, g)) * l->forms[g].token_bytes;
        PCL_TRY(read_at(l, has->data[g].offset + skipped, into, size));
        into += size;
        first = until;
    }
    return PAGEDCL_SUCCESS;
}

static pagedcl_status transfer_group(load *l, const loaded_seq *s, pagedcl_seq handle, int32_t g) {
    const pcl_sequence *to = &l->blocks->seqs[(uint32_t)handle];
    const pcl_group *group = &l->blocks->groups[g];
    int64_t i = s->taken / group->block_size, seen = pcl_first_seen(group, s->head.length);
    for (i = seen > i ? seen : i; i < pcl_blocks_for(group, s->head.length); i++) {
        int64_t first = i * group->block_size, left = s->head.length - first;
        int32_t slots = left < group->block_size ? (int32_t)left : group->block_size;
        PCL_TRY(read_tokens(l, s, g, first, first + slots));
        PCL_TRY(l->transfer(l->user, g, to->table[pcl_entry(l->blocks, group, i)], 0, slots, l->buffer));
    }
    return PAGEDCL_SUCCESS;
}

/* The sequence's extra keys, serialised in the manager's buffer; NULL: none. */
static pagedcl_status prepare_keys(load *l, const loaded_seq *s, pcl_keys **prepared) {
    pagedcl_prompt prompt = PAGEDCL_PROMPT_INIT;
    prompt.num_keys = s->head.num_keys;
    pagedcl_prefix_key *keys = calloc((size_t)s->head.num_keys + 1, sizeof *keys);
    if (keys == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no host memory for %" PRId64 " extra keys", s->head.num_keys);
    const unsigned char *at = s->keys;
    for (int64_t k = 0; k < s->head.num_keys; k++) {
        pcl_file_key key;
        memcpy(&key, at, sizeof key);
        at += sizeof key;
        keys[k] = (pagedcl_prefix_key){.type = key.type == (int32_t)key.type ? (int32_t)key.type : 0,
                                       .position = key.position,
                                       .data = at,
                                       .size = (size_t)key.size};
        at += pcl_file_padded((size_t)key.size);
    }
    prompt.keys = keys;
    pagedcl_status status = pcl_keys_prepare(&l->blocks->prefix.keys, &prompt, l->blocks->unit, prepared);
    free(keys);
    return status == PAGEDCL_INVALID_ARGUMENT ? bad_file(l, "has extra keys that cannot be") : status;
}

/* Makes the sequence, of the parent's blocks as far as they are whole. *made is 0 when there is none. */
static pagedcl_status make_sequence(load *l, const loaded_seq *s, const pagedcl_seq *seqs, pagedcl_seq *made) {
    pcl_keys *keys = NULL;
    PCL_TRY(prepare_keys(l, s, &keys));
    pcl_keys *kept = keys == NULL ? NULL : pcl_keys_copy(keys);
    if (keys != NULL && kept == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no host memory for extra keys");
    pagedcl_status status = s->taken > 0 ? pagedcl_blocks_share(l->blocks, seqs[s->head.parent], s->taken, made)
                                         : pagedcl_blocks_seq_create(l->blocks, made);
    if (status != PAGEDCL_SUCCESS) {
        *made = 0;
        pcl_keys_release(kept);
        return status;
    }
    pcl_chain *chain = &l->blocks->chains[(uint32_t)*made];
    pcl_keys_release(chain->keys);
    chain->keys = kept;
    PCL_TRY(pagedcl_blocks_append(l->blocks, *made, s->head.length - s->taken, NULL, NULL));
    pcl_sequence_drop_left(l->blocks, &l->blocks->seqs[(uint32_t)*made], s->head.length);
    for (int32_t g = 0; g < l->blocks->num_groups; g++)
        PCL_TRY(transfer_group(l, s, *made, g));
    return PAGEDCL_SUCCESS;
}

static pagedcl_status make_all(load *l, pagedcl_seq *seqs) {
    pagedcl_status status = PAGEDCL_SUCCESS;
    int64_t count = 0;
    for (; count < l->num_seqs && status == PAGEDCL_SUCCESS; count++)
        status = make_sequence(l, &l->seqs[count], seqs, &seqs[count]);
    if (status == PAGEDCL_SUCCESS) {
        /* Known only now: nothing is found of a file that could not be loaded. */
        for (int64_t i = 0; i < l->num_seqs && status == PAGEDCL_SUCCESS; i++)
            status = pagedcl_prefix_record(l->blocks, seqs[i], l->seqs[i].tokens, l->seqs[i].head.recorded);
    }
    for (int64_t i = count; i-- > 0 && status != PAGEDCL_SUCCESS;)
        if (seqs[i] != 0)
            pagedcl_blocks_seq_free(l->blocks, seqs[i]);
    return status;
}

static pagedcl_status load_file(load *l, pagedcl_seq *seqs, int64_t capacity, int64_t *num_seqs) {
    int64_t file_size = pcl_fs_size(l->file);
    if (file_size < 0)
        return bad_file(l, "is no regular file");
    PCL_TRY(read_frame(l, (uint64_t)file_size));
    if (l->num_seqs > capacity)
        return pcl_fail(PAGEDCL_CAPACITY, "%s has %" PRId64 " sequences, there is room for %" PRId64, l->path,
                        l->num_seqs, capacity);
    PCL_TRY(pcl_file_buffer(l->blocks, l->forms, &l->buffer));
    PCL_TRY(read_manifest(l));
    PCL_TRY(check_room(l));
    pagedcl_seq *made = calloc((size_t)l->num_seqs + 1, sizeof *made);
    if (made == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no host memory to load %s", l->path);
    pagedcl_status loaded = make_all(l, made);
    if (loaded == PAGEDCL_SUCCESS) {
        if (l->num_seqs > 0)
            memcpy(seqs, made, (size_t)l->num_seqs * sizeof *made);
        *num_seqs = l->num_seqs;
    }
    free(made);
    return loaded;
}

pagedcl_status pagedcl_blocks_load(pagedcl_blocks *blocks, const char *path, const pagedcl_kv_geometry *geometry,
                                   pagedcl_kv_transfer transfer, void *user, pagedcl_seq *seqs, int64_t capacity,
                                   int64_t *num_seqs) {
    if (blocks == NULL || path == NULL || geometry == NULL || transfer == NULL || num_seqs == NULL ||
        (seqs == NULL && capacity > 0))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "blocks, path, geometry, transfer, seqs or num_seqs is NULL");
    if (blocks->step.open)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "a step is open; commit or roll back first");
    load l = {.blocks = blocks, .transfer = transfer, .user = user, .path = path};
    PCL_TRY(pcl_file_forms(blocks, geometry, &l.forms));
    l.file = fopen(path, "rb");
    pagedcl_status status = PAGEDCL_SUCCESS;
    if (l.file == NULL)
        status = pcl_fail(PAGEDCL_IO_ERROR, "cannot read %s: %s", path, strerror(errno));
    else
        status = load_file(&l, seqs, capacity, num_seqs);
    if (l.file != NULL)
        fclose(l.file);
    free(l.forms);
    free(l.buffer);
    free(l.manifest);
    free(l.seqs);
    return status;
}
