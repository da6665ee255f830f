/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks_file.h"

#include "file_system.h"
#include "status.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A file in the making. */
typedef struct save {
    pagedcl_blocks *blocks;
    pagedcl_kv_transfer transfer;
    void *user;
    FILE *file;
    uint64_t offset;       /* of what is written next */
    pcl_file_form *forms;  /* by group */
    unsigned char *buffer; /* a block's tokens */
    unsigned char *manifest;
    size_t manifest_size, manifest_capacity;
} save;

static pagedcl_status write_bytes(save *s, const void *bytes, size_t size) {
    if (size > 0 && fwrite(bytes, size, 1, s->file) != 1)
        return pcl_fail(PAGEDCL_IO_ERROR, "cannot write the file: %s", strerror(errno));
    s->offset += size;
    return PAGEDCL_SUCCESS;
}

/* Room for `size` more bytes at the end of the manifest, padded with zeros; NULL when there is no memory. */
static void *extend_manifest(save *s, size_t size) {
    size_t end;
    if (__builtin_add_overflow(s->manifest_size, pcl_file_padded(size), &end))
        return NULL;
    if (end > s->manifest_capacity) {
        size_t capacity = end + end / 2;
        unsigned char *grown = realloc(s->manifest, capacity);
        if (grown == NULL)
            return NULL;
        s->manifest = grown;
        s->manifest_capacity = capacity;
    }
    unsigned char *made = s->manifest + s->manifest_size;
    memset(made, 0, end - s->manifest_size);
    s->manifest_size = end;
    return made;
}

static pagedcl_status no_memory(void) {
    return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no host memory for the manifest of a file of sequences");
}

static pagedcl_status add_to_manifest(save *s, const void *bytes, size_t size) {
    void *made = extend_manifest(s, size);
    if (made == NULL)
        return no_memory();
    memcpy(made, bytes, size);
    return PAGEDCL_SUCCESS;
}

/*
 * How much of the sequence an earlier one has. blocks->counted says whose each block is, from 1. A block that two
 * sequences share is at the same place in both and has the same tokens before it.
 */
static void find_parent(const pagedcl_blocks *blocks, const pcl_sequence *from, pcl_file_seq *seq) {
    int64_t row = 0;
    seq->parent = -1;
    /* Windows leave each sequence another part. */
    for (; !blocks->windowed && row < from->length / blocks->unit; row++) {
        bool shared = true;
        for (int32_t column = 0; column < blocks->width; column++)
            shared &= blocks->counted[from->table[row * blocks->width + column]] > 0;
        if (!shared)
            break;
        seq->parent = blocks->counted[from->table[row * blocks->width]] - 1;
    }
    seq->shared = row * blocks->unit;
}

static void claim_blocks(const pagedcl_blocks *blocks, const pcl_sequence *from, int32_t index) {
    for (int32_t g = 0; g < blocks->num_groups; g++)
        for (int64_t i = pcl_blocks_for(&blocks->groups[g], from->length); i-- > 0;) {
            int32_t block = from->table[pcl_entry(blocks, &blocks->groups[g], i)];
            if (block >= 0 && blocks->counted[block] == 0)
                blocks->counted[block] = index + 1;
        }
}

/* Writes the tokens of one group that no parent has. */
static pagedcl_status write_data(save *s, const pcl_sequence *from, int32_t index, int32_t g, int64_t shared,
                                 pcl_file_data *data) {
    const pcl_group *group = &s->blocks->groups[g];
    const pcl_file_form *form = &s->forms[g];
    int64_t i = 0, used = pcl_blocks_for(group, from->length);
    while (i < used && from->table[pcl_entry(s->blocks, group, i)] < 0)
        i++;
    data->first = i * group->block_size;
    data->offset = s->offset;
    for (i = data->first > shared ? i : shared / group->block_size; i < used; i++) {
        int64_t left = from->length - i * group->block_size;
        int32_t slots = left < group->block_size ? (int32_t)left : group->block_size;
        size_t size = (size_t)slots * form->token_bytes;
        PCL_TRY(s->transfer(s->user, g, from->table[pcl_entry(s->blocks, group, i)], 0, slots, s->buffer));
        if (!pcl_file_scales_are_valid(form, s->buffer, (size_t)slots))
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                            "seqs[%" PRId32 "] has a scale that is not finite or below 0 in block %" PRId64
                            " of group %" PRId32 ": was every token written?",
                            index, i, g);
        data->checksum = pcl_file_checksum_tokens(data->checksum, s->buffer, (size_t)slots, form->token_bytes);
        PCL_TRY(write_bytes(s, s->buffer, size));
    }
    return PAGEDCL_SUCCESS;
}

static pagedcl_status add_key(void *user, const pagedcl_prefix_key *key) {
    save *s = user;
    const pcl_file_key head = {.position = key->position, .type = key->type, .size = (int64_t)key->size};
    PCL_TRY(add_to_manifest(s, &head, sizeof head));
    return add_to_manifest(s, key->data, key->size);
}

static pagedcl_status save_sequence(save *s, pagedcl_seq handle, int32_t index) {
    pcl_sequence *from = NULL;
    PCL_TRY(pcl_sequence_find_settled(s->blocks, handle, &from));
    const pcl_chain *chain = pcl_sequence_chain(s->blocks, from);
    pcl_file_seq seq = {.length = from->length, .num_keys = pcl_keys_count(chain->keys)};
    /* Tokens that the tree lost cannot be told. */
    seq.recorded = pcl_chain_is_known(s->blocks, chain) ? chain->recorded : 0;
    find_parent(s->blocks, from, &seq);
    claim_blocks(s->blocks, from, index);
    PCL_TRY(add_to_manifest(s, &seq, sizeof seq));
    for (int32_t g = 0; g < s->blocks->num_groups; g++) {
        pcl_file_data data = {0};
        PCL_TRY(write_data(s, from, index, g, seq.shared, &data));
        PCL_TRY(add_to_manifest(s, &data, sizeof data));
    }
    int32_t *tokens = extend_manifest(s, (size_t)seq.recorded * sizeof *tokens);
    if (tokens == NULL)
        return no_memory();
    if (seq.recorded > 0)
        pcl_chain_tokens(s->blocks, chain, tokens);
    return pcl_keys_each(chain->keys, s->blocks->unit, add_key, s);
}

static pagedcl_status write_file(save *s, const pagedcl_seq *seqs, int64_t num_seqs) {
    pcl_file_head head = {.num_groups = s->blocks->num_groups};
    pcl_file_tail tail = {.num_seqs = num_seqs};
    memcpy(head.magic, pcl_file_magic, sizeof head.magic);
    memcpy(tail.magic, pcl_file_magic, sizeof tail.magic);
    tail.head_checksum = pcl_file_checksum(0, &head, sizeof head);
    PCL_TRY(write_bytes(s, &head, sizeof head));
    for (int32_t g = 0; g < s->blocks->num_groups; g++) {
        const pcl_file_group *group = &s->forms[g].group;
        tail.head_checksum = pcl_file_checksum(tail.head_checksum, group, sizeof *group);
        PCL_TRY(write_bytes(s, group, sizeof *group));
    }
    memset(s->blocks->counted, 0, (size_t)s->blocks->stats.total * sizeof *s->blocks->counted);
    for (int64_t i = 0; i < num_seqs; i++)
        PCL_TRY(save_sequence(s, seqs[i], (int32_t)i));
    tail.manifest_offset = s->offset;
    tail.manifest_size = s->manifest_size;
    tail.manifest_checksum = pcl_file_checksum(0, s->manifest, s->manifest_size);
    PCL_TRY(write_bytes(s, s->manifest, s->manifest_size));
    tail.checksum = pcl_file_checksum(0, &tail, offsetof(pcl_file_tail, checksum));
    PCL_TRY(write_bytes(s, &tail, sizeof tail));
    if (!pcl_fs_sync(s->file))
        return pcl_fail(PAGEDCL_IO_ERROR, "cannot write the file: %s", strerror(errno));
    return PAGEDCL_SUCCESS;
}

/* Writes under another name first. */
static pagedcl_status write_and_rename(save *s, const char *path, const pagedcl_seq *seqs, int64_t num_seqs) {
    char *temporary = pcl_fs_temporary(path);
    if (temporary == NULL)
        return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no host memory for a file name");
    s->file = fopen(temporary, "wb");
    if (s->file == NULL) {
        pagedcl_status failed = pcl_fail(PAGEDCL_IO_ERROR, "cannot write %s: %s", temporary, strerror(errno));
        free(temporary);
        return failed;
    }
    pagedcl_status status = write_file(s, seqs, num_seqs);
    if (fclose(s->file) != 0 && status == PAGEDCL_SUCCESS)
        status = pcl_fail(PAGEDCL_IO_ERROR, "cannot write %s: %s", temporary, strerror(errno));
    if (status == PAGEDCL_SUCCESS && !pcl_fs_replace(temporary, path))
        status = pcl_fail(PAGEDCL_IO_ERROR, "cannot name the file %s: %s", path, strerror(errno));
    if (status != PAGEDCL_SUCCESS)
        remove(temporary);
    free(temporary);
    return status;
}

pagedcl_status pagedcl_blocks_save(pagedcl_blocks *blocks, const char *path, const pagedcl_kv_geometry *geometry,
                                   const pagedcl_seq *seqs, int64_t num_seqs, pagedcl_kv_transfer transfer,
                                   void *user) {
    if (blocks == NULL || path == NULL || geometry == NULL || transfer == NULL || (seqs == NULL && num_seqs > 0))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "blocks, path, geometry, seqs or transfer is NULL");
    if (num_seqs < 0 || num_seqs > INT32_MAX - 1)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "num_seqs is %" PRId64, num_seqs);
    /* Before anything is written. */
    for (int64_t i = 0; i < num_seqs; i++) {
        pcl_sequence *s = NULL;
        PCL_TRY(pcl_sequence_find_settled(blocks, seqs[i], &s));
    }
    save s = {.blocks = blocks, .transfer = transfer, .user = user};
    pagedcl_status status = pcl_file_forms(blocks, geometry, &s.forms);
    if (status == PAGEDCL_SUCCESS)
        status = pcl_file_buffer(blocks, s.forms, &s.buffer);
    if (status == PAGEDCL_SUCCESS)
        status = write_and_rename(&s, path, seqs, num_seqs);
    free(s.forms);
    free(s.buffer);
    free(s.manifest);
    return status;
}
