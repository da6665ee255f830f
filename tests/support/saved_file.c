/* SPDX-License-Identifier: Apache-2.0 */
#include "saved_file.h"

#include "blocks_file.h"

#include <string.h>

/* The manifest's begin when it lies in the file with `needed` bytes or more, or NULL. */
static unsigned char *manifest_of(unsigned char *bytes, size_t size, uint64_t needed, pcl_file_tail *tail) {
    if (size < sizeof(pcl_file_head) + sizeof *tail)
        return NULL;
    memcpy(tail, bytes + size - sizeof *tail, sizeof *tail);
    if (tail->manifest_offset > size || tail->manifest_size > size - tail->manifest_offset ||
        tail->manifest_size < needed)
        return NULL;
    return bytes + tail->manifest_offset;
}

static size_t data_at(int group) {
    return sizeof(pcl_file_seq) + (size_t)group * sizeof(pcl_file_data);
}

unsigned char *saved_file_data(unsigned char *bytes, size_t size, int group, size_t token_bytes, int64_t *num_tokens) {
    pcl_file_tail tail;
    pcl_file_seq seq;
    pcl_file_data data;
    const unsigned char *manifest = manifest_of(bytes, size, data_at(group) + sizeof data, &tail);
    if (manifest == NULL)
        return NULL;
    memcpy(&seq, manifest, sizeof seq);
    memcpy(&data, manifest + data_at(group), sizeof data);
    if (data.first < 0 || data.first > seq.length || data.offset > size ||
        (uint64_t)(seq.length - data.first) > (size - data.offset) / token_bytes)
        return NULL;
    *num_tokens = seq.length - data.first;
    return bytes + data.offset;
}

void saved_file_seal_data(unsigned char *bytes, size_t size, int group, size_t token_bytes) {
    int64_t num_tokens = 0;
    pcl_file_tail tail;
    const unsigned char *tokens = saved_file_data(bytes, size, group, token_bytes, &num_tokens);
    unsigned char *manifest = manifest_of(bytes, size, 0, &tail);
    if (tokens == NULL)
        return;
    uint64_t sum = pcl_file_checksum_tokens(0, tokens, (size_t)num_tokens, token_bytes);
    memcpy(manifest + data_at(group) + offsetof(pcl_file_data, checksum), &sum, sizeof sum);
}

void saved_file_seal(unsigned char *bytes, size_t size, int num_groups) {
    const size_t head_size = sizeof(pcl_file_head), group_size = sizeof(pcl_file_group);
    pcl_file_tail tail;
    if (size < head_size + sizeof tail)
        return;
    const unsigned char *manifest = manifest_of(bytes, size, 0, &tail);
    memcpy(bytes, pcl_file_magic, sizeof pcl_file_magic);
    memcpy(tail.magic, pcl_file_magic, sizeof tail.magic);
    if (manifest != NULL)
        tail.manifest_checksum = pcl_file_checksum(0, manifest, tail.manifest_size);
    tail.head_checksum = pcl_file_checksum(0, bytes, head_size);
    for (size_t g = 0; g < (size_t)num_groups && head_size + (g + 1) * group_size <= size; g++)
        tail.head_checksum = pcl_file_checksum(tail.head_checksum, bytes + head_size + g * group_size, group_size);
    tail.checksum = pcl_file_checksum(0, &tail, offsetof(pcl_file_tail, checksum));
    memcpy(bytes + size - sizeof tail, &tail, sizeof tail);
}
