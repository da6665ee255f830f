/* SPDX-License-Identifier: Apache-2.0 */
#include "plan_share.h"

#include "status.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void pcl_share_release(pcl_share *share) {
    free(share->ranges);
    free(share->items);
    free(share->members);
    free(share->first_entries);
    free(share->entries);
    free(share->taken);
    free(share->slots);
    *share = (pcl_share){0};
}

/* An array of `count` elements in place of *array, whose content is not needed. */
static bool renew(void *array, int64_t count, size_t size) {
    void **old = array, *fresh = (uint64_t)count <= SIZE_MAX / size ? malloc((size_t)count * size) : NULL;
    if (fresh == NULL)
        return false;
    free(*old);
    *old = fresh;
    return true;
}

static pagedcl_status no_memory(void) {
    return pcl_fail(PAGEDCL_OUT_OF_MEMORY, "no memory to find shared prefixes");
}

pagedcl_status pcl_share_begin(pcl_share *share, int32_t num_seqs) {
    share->num_items = share->num_members = 0;
    if (num_seqs <= share->seq_capacity)
        return PAGEDCL_SUCCESS;
    int64_t capacity = 2 * share->seq_capacity > num_seqs ? 2 * share->seq_capacity : num_seqs;
    share->seq_capacity = 0;
    if (!renew(&share->ranges, capacity, sizeof *share->ranges) ||
        !renew(&share->first_entries, capacity, sizeof *share->first_entries))
        return no_memory();
    share->seq_capacity = capacity;
    return PAGEDCL_SUCCESS;
}

static int64_t power_of_two_from(int64_t value) {
    int64_t power = 1;
    while (power < value)
        power *= 2;
    return power;
}

/* Slots of the hash table: at least two an entry. */
static int64_t slots_for(int64_t entries) {
    return power_of_two_from(2 * entries);
}

static pagedcl_status grow_entries(pcl_share *share, int64_t entries) {
    if (entries <= share->entry_capacity)
        return PAGEDCL_SUCCESS;
    int64_t capacity = power_of_two_from(entries);
    share->entry_capacity = 0;
    if (!renew(&share->items, capacity / 2, sizeof *share->items) ||
        !renew(&share->members, capacity, sizeof *share->members) ||
        !renew(&share->entries, capacity, sizeof *share->entries) ||
        !renew(&share->taken, capacity, sizeof *share->taken) ||
        !renew(&share->slots, slots_for(capacity), sizeof *share->slots))
        return no_memory();
    share->entry_capacity = capacity;
    return PAGEDCL_SUCCESS;
}

/* The table entries that a split of a sequence reads. */
typedef struct blocks {
    const int32_t *first;
    int64_t count;
} blocks;

static blocks blocks_of(const pcl_share_batch *batch, int32_t seq, int64_t split) {
    int64_t first = split * batch->split_keys / batch->block_size;
    int64_t last = ((split + 1) * batch->split_keys - 1) / batch->block_size;
    return (blocks){batch->table + seq * batch->stride + first, last - first + 1};
}

/* Mixes as splitmix64 does. */
static uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t hash_of(blocks b, int64_t split) {
    uint64_t hash = mixed((uint64_t)split + 1);
    for (int64_t i = 0; i < b.count; i++)
        hash = (hash ^ (uint32_t)b.first[i]) * UINT64_C(0x9e3779b97f4a7c15);
    return mixed(hash);
}

/* Puts an entry behind the list of those that have the same blocks. */
static void insert(pcl_share *share, const pcl_share_batch *batch, int64_t at, int64_t num_slots) {
    pcl_share_entry *entry = &share->entries[at];
    blocks own = blocks_of(batch, entry->seq, entry->split);
    entry->hash = hash_of(own, entry->split);
    int64_t slot = (int64_t)(entry->hash & (uint64_t)(num_slots - 1));
    for (; share->slots[slot] >= 0; slot = (slot + 1) & (num_slots - 1)) {
        pcl_share_entry *head = &share->entries[share->slots[slot]];
        if (head->hash != entry->hash || head->split != entry->split)
            continue;
        blocks others = blocks_of(batch, head->seq, head->split);
        if (memcmp(own.first, others.first, (size_t)own.count * sizeof *own.first) != 0)
            continue;
        share->entries[head->last].next = at;
        head->last = at;
        head->count++;
        return;
    }
    share->slots[slot] = at;
    entry->last = at;
    entry->count = 1;
}

/* Work items for `count` sequences with the same blocks, up to `most` in one. */
static int64_t parts_of(int64_t count, int64_t most) {
    return (count + most - 1) / most;
}

static int64_t work_with(const pcl_share *share, int64_t num_entries, int64_t num_work, int64_t most) {
    for (int64_t i = 0; i < num_entries; i++)
        if (share->entries[i].count > 1)
            num_work -= share->entries[i].count - parts_of(share->entries[i].count, most);
    return num_work;
}

/* Divides a list evenly into items; a sequence that is left alone stays as it is. */
static void emit(pcl_share *share, int64_t head, int64_t most) {
    int64_t count = share->entries[head].count, parts = parts_of(count, most), at = head;
    for (int64_t part = 0; part < parts; part++) {
        int64_t size = count / parts + (part < count % parts);
        if (size > 1)
            share->items[share->num_items++] =
                (pcl_share_item){share->entries[at].split, (int32_t)size, share->num_members};
        for (int64_t i = 0; i < size; i++, at = share->entries[at].next) {
            share->taken[at] = size > 1;
            if (size > 1)
                share->members[share->num_members++] = share->entries[at].seq;
        }
    }
}

pagedcl_status pcl_share_find(pcl_share *share, const pcl_share_batch *batch) {
    int64_t num_entries = 0;
    for (int32_t seq = 0; seq < batch->num_seqs; seq++) {
        share->first_entries[seq] = num_entries;
        num_entries += share->ranges[seq].end - share->ranges[seq].begin;
    }
    if (num_entries < 2 || batch->most_members < 2)
        return PAGEDCL_SUCCESS;
    PCL_TRY(grow_entries(share, num_entries));
    int64_t num_slots = slots_for(num_entries), at = 0;
    memset(share->slots, 0xff, (size_t)num_slots * sizeof *share->slots);
    memset(share->taken, 0, (size_t)num_entries * sizeof *share->taken);
    for (int32_t seq = 0; seq < batch->num_seqs; seq++)
        for (int64_t split = share->ranges[seq].begin; split < share->ranges[seq].end; split++, at++) {
            share->entries[at] = (pcl_share_entry){.seq = seq, .split = (int32_t)split, .next = -1};
            insert(share, batch, at, num_slots);
        }
    int64_t most = batch->most_members;
    while (most > 1 && work_with(share, num_entries, batch->num_work, most) < batch->least_work)
        most = (most + 1) / 2;
    for (int64_t i = 0; i < num_entries && most > 1; i++)
        if (share->entries[i].count > 1)
            emit(share, i, most);
    return PAGEDCL_SUCCESS;
}

bool pcl_share_has(const pcl_share *share, int32_t seq, int64_t split) {
    if (share->num_items == 0)
        return false;
    const pcl_share_range *range = &share->ranges[seq];
    return split >= range->begin && split < range->end &&
           share->taken[share->first_entries[seq] + split - range->begin];
}
