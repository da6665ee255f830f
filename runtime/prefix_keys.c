/* SPDX-License-Identifier: Apache-2.0 */
#include "prefix_keys.h"

#include "status.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What stands before the bytes of each key. */
typedef struct key_head {
    int64_t size;
    int32_t type;
    int32_t offset; /* of its position in the unit */
} key_head;

static pagedcl_status check_keys(const pagedcl_prompt *prompt) {
    if (prompt->num_keys < 0 || (prompt->num_keys > 0 && prompt->keys == NULL))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "num_keys is %" PRId64 "%s", prompt->num_keys,
                        prompt->num_keys < 0 ? "; it is 0 or more" : ", but keys is NULL");
    for (int64_t i = 0; i < prompt->num_keys; i++) {
        const pagedcl_prefix_key *key = &prompt->keys[i];
        if (key->type < PAGEDCL_KEY_ADAPTER || (key->type > PAGEDCL_KEY_SALT && key->type < PAGEDCL_KEY_USER))
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                            "key %" PRId64 " has type %" PRId32 ", which is neither known nor the caller's own (%d on)",
                            i, key->type, PAGEDCL_KEY_USER);
        if (key->position < 0 || (key->data == NULL && key->size > 0))
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "key %" PRId64 " has %s", i,
                            key->position < 0 ? "a negative position" : "no data");
        if (i > 0 &&
            (key->position < key[-1].position || (key->position == key[-1].position && key->type < key[-1].type)))
            return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                            "key %" PRId64 " comes before the one in front of it; sort keys by position, then by type",
                            i);
    }
    return PAGEDCL_SUCCESS;
}

static bool measure(const pagedcl_prompt *prompt, size_t *num_bytes, size_t *total) {
    *num_bytes = 0;
    for (int64_t i = 0; i < prompt->num_keys; i++)
        if (__builtin_add_overflow(*num_bytes, sizeof(key_head), num_bytes) ||
            __builtin_add_overflow(*num_bytes, prompt->keys[i].size, num_bytes))
            return false;
    return prompt->num_keys <= INT32_MAX &&
           !__builtin_add_overflow(*num_bytes, sizeof(pcl_keys) + (size_t)prompt->num_keys * sizeof(pcl_keys_part),
                                   total);
}

static size_t size_of(const pcl_keys *keys) {
    return sizeof *keys + (size_t)keys->num_parts * sizeof *keys->parts + keys->num_bytes;
}

static uint64_t hash_bytes(const unsigned char *bytes, size_t size) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

pagedcl_status pcl_keys_prepare(pcl_keys_buffer *buffer, const pagedcl_prompt *prompt, int32_t unit, pcl_keys **keys) {
    PCL_TRY(check_keys(prompt));
    *keys = NULL;
    if (prompt->num_keys == 0)
        return PAGEDCL_SUCCESS;
    size_t num_bytes, total;
    if (!measure(prompt, &num_bytes, &total))
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "%" PRId64 " keys do not fit memory", prompt->num_keys);
    if (total > buffer->capacity) {
        pcl_keys *grown = realloc(buffer->keys, total);
        if (grown == NULL)
            return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no host memory for %" PRId64 " extra keys", prompt->num_keys);
        buffer->keys = grown;
        buffer->capacity = total;
    }

    pcl_keys *made = buffer->keys;
    made->num_parts = 0;
    for (int64_t i = 0; i < prompt->num_keys; i++)
        if (i == 0 || prompt->keys[i].position / unit != prompt->keys[i - 1].position / unit)
            made->parts[made->num_parts++] = (pcl_keys_part){.unit = prompt->keys[i].position / unit};
    made->references = 1;
    made->num_bytes = num_bytes;
    made->bytes = (unsigned char *)&made->parts[made->num_parts];
    size_t end = 0;
    pcl_keys_part *part = made->parts;
    for (int64_t i = 0; i < prompt->num_keys; i++) {
        const pagedcl_prefix_key *key = &prompt->keys[i];
        key_head head = {(int64_t)key->size, key->type, (int32_t)(key->position % unit)};
        if (key->position / unit != part->unit)
            (++part)->offset = end;
        memcpy(made->bytes + end, &head, sizeof head);
        if (key->size > 0)
            memcpy(made->bytes + end + sizeof head, key->data, key->size);
        end += sizeof head + key->size;
        part->size = end - part->offset;
    }
    for (int32_t i = 0; i < made->num_parts; i++)
        made->parts[i].hash = hash_bytes(made->bytes + made->parts[i].offset, made->parts[i].size);
    *keys = made;
    return PAGEDCL_SUCCESS;
}

pcl_keys *pcl_keys_copy(const pcl_keys *keys) {
    pcl_keys *copy = malloc(size_of(keys));
    if (copy == NULL)
        return NULL;
    memcpy(copy, keys, size_of(keys));
    copy->references = 1;
    copy->bytes = (unsigned char *)&copy->parts[copy->num_parts];
    return copy;
}

pcl_keys *pcl_keys_retain(pcl_keys *keys) {
    if (keys != NULL)
        keys->references++;
    return keys;
}

void pcl_keys_release(pcl_keys *keys) {
    if (keys != NULL && --keys->references == 0)
        free(keys);
}

int32_t pcl_keys_part_of(const pcl_keys *keys, int64_t unit) {
    if (keys == NULL)
        return -1;
    int32_t low = 0, high = keys->num_parts;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (keys->parts[middle].unit < unit)
            low = middle + 1;
        else
            high = middle;
    }
    return low < keys->num_parts && keys->parts[low].unit == unit ? low : -1;
}

pagedcl_status pcl_keys_each(const pcl_keys *keys, int32_t unit,
                             pagedcl_status (*call)(void *user, const pagedcl_prefix_key *key), void *user) {
    for (int32_t p = 0; keys != NULL && p < keys->num_parts; p++) {
        const pcl_keys_part *part = &keys->parts[p];
        for (size_t at = part->offset; at < part->offset + part->size;) {
            key_head head;
            memcpy(&head, keys->bytes + at, sizeof head);
            const pagedcl_prefix_key key = {.type = head.type,
                                            .position = part->unit * unit + head.offset,
                                            .data = keys->bytes + at + sizeof head,
                                            .size = (size_t)head.size};
            PCL_TRY(call(user, &key));
            at += sizeof head + key.size;
        }
    }
    return PAGEDCL_SUCCESS;
}

static pagedcl_status count_key(void *user, const pagedcl_prefix_key *key) {
    (void)key;
    ++*(int64_t *)user;
    return PAGEDCL_SUCCESS;
}

int64_t pcl_keys_count(const pcl_keys *keys) {
    int64_t count = 0;
    pcl_keys_each(keys, 1, count_key, &count);
    return count;
}

bool pcl_keys_equal_parts(const pcl_keys *a, int32_t part_a, const pcl_keys *b, int32_t part_b) {
    if (part_a < 0 || part_b < 0)
        return part_a < 0 && part_b < 0;
    const pcl_keys_part *of_a = &a->parts[part_a], *of_b = &b->parts[part_b];
    return of_a->size == of_b->size && memcmp(a->bytes + of_a->offset, b->bytes + of_b->offset, of_a->size) == 0;
}

bool pcl_keys_equal(const pcl_keys *a, const pcl_keys *b) {
    if (a == NULL || b == NULL)
        return a == b;
    if (a->num_parts != b->num_parts || a->num_bytes != b->num_bytes || memcmp(a->bytes, b->bytes, a->num_bytes) != 0)
        return false;
    for (int32_t i = 0; i < a->num_parts; i++)
        if (a->parts[i].unit != b->parts[i].unit || a->parts[i].size != b->parts[i].size)
            return false;
    return true;
}
