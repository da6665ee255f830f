/* SPDX-License-Identifier: Apache-2.0 */
/* The block manager in words and pictures. */
#include "blocks.h"

#include "status.h"

#include <pagedcl/blocks_report.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

pagedcl_status pagedcl_blocks_set_listener(pagedcl_blocks *blocks, pagedcl_block_listener listener, void *user) {
    if (blocks == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "blocks is NULL");
    blocks->listener = listener;
    blocks->listener_user = user;
    return PAGEDCL_SUCCESS;
}

/* A text that is only measured while it has no memory. */
typedef struct writer {
    char *text;
    size_t capacity;
    size_t length;
} writer;

__attribute__((format(printf, 2, 3))) static void print(writer *w, const char *format, ...) {
    char *end = w->text != NULL ? w->text + w->length : NULL;
    size_t room = w->text != NULL ? w->capacity - w->length : 0;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(end, room, format, arguments);
    va_end(arguments);
    if (length > 0)
        w->length += (size_t)length;
}

static void print_char(writer *w, char character) {
    if (w->text != NULL)
        w->text[w->length] = character;
    w->length++;
}

typedef struct report {
    const pagedcl_blocks *blocks;
    int32_t columns;
} report;

/* Writes what `print_report` prints, after it was measured. */
static pagedcl_status write_text(void (*print_report)(writer *, const report *), const report *r, char *text,
                                 size_t capacity, size_t *length) {
    if (r->blocks == NULL || length == NULL || (text == NULL && capacity > 0))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "blocks, text or length is NULL");
    writer measure = {0}, w = {.text = text, .capacity = capacity};
    print_report(&measure, r);
    *length = measure.length;
    if (measure.length >= capacity)
        return pcl_fail(PAGEDCL_BUFFER_TOO_SMALL, "the text takes %zu bytes, there is room for %zu", measure.length + 1,
                        capacity);
    print_report(&w, r);
    text[w.length] = '\0';
    return PAGEDCL_SUCCESS;
}

static void print_prometheus(writer *w, const report *r) {
    pagedcl_blocks_stats stats = PAGEDCL_BLOCKS_STATS_INIT;
    pagedcl_blocks_get_stats(r->blocks, &stats);
    const struct {
        const char *name, *type, *help;
        int64_t value;
    } metrics[] = {
        {"total", "gauge", "Blocks of the pool.", stats.total},
        {"free", "gauge", "Blocks without references or known tokens.", stats.free},
        {"cached", "gauge", "Blocks without references that can be found by their tokens.", stats.cached},
        {"used", "gauge", "Blocks with one reference or more.", stats.used},
        {"shared", "gauge", "Blocks with two references or more.", stats.shared},
        {"available", "gauge", "Blocks that can be taken now.", stats.available},
        {"waiting", "gauge", "Free and cached blocks whose fence is not reached.", stats.waiting},
        {"unwiped", "gauge", "Free blocks that must be wiped first.", stats.unwiped},
        {"peak_used", "gauge", "The largest number of used blocks so far.", stats.peak_used},
        {"references", "gauge", "References of all tables.", stats.references},
        {"sequences", "gauge", "Sequences that live.", stats.num_seqs},
        {"swapped_sequences", "gauge", "Sequences that are swapped out.", stats.num_swapped},
        {"tokens", "gauge", "Tokens of all sequences.", stats.num_tokens},
        {"host_total", "gauge", "Blocks of the host tier.", stats.host_total},
        {"host_unwiped", "gauge", "Free blocks of the host tier that must be wiped first.", stats.host_unwiped},
        {"host_used", "gauge", "Blocks of the host tier that hold sequences.", stats.host_used},
        {"copies_total", "counter", "Copy-on-write copies.", stats.copies},
        {"out_of_blocks_total", "counter", "Calls refused for want of blocks.", stats.out_of_blocks},
        {"prefix_lookups_total", "counter", "Prompts looked up.", stats.lookups},
        {"prefix_hits_total", "counter", "Prompts of which something was found.", stats.hits},
        {"prefix_lookup_tokens_total", "counter", "Tokens of the prompts looked up.", stats.lookup_tokens},
        {"prefix_hit_tokens_total", "counter", "Tokens found.", stats.hit_tokens},
        {"stored_total", "counter", "Blocks that became known by their tokens.", stats.stored},
        {"evicted_total", "counter", "Cached blocks that were evicted.", stats.evicted},
        {"swapped_out_total", "counter", "Blocks swapped out.", stats.swapped_out},
        {"swapped_in_total", "counter", "Blocks swapped in.", stats.swapped_in},
        {"compacted_total", "counter", "Blocks moved by compaction.", stats.compacted},
    };
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++)
        print(w, "# HELP pagedcl_blocks_%s %s\n# TYPE pagedcl_blocks_%s %s\npagedcl_blocks_%s %" PRId64 "\n",
              metrics[i].name, metrics[i].help, metrics[i].name, metrics[i].type, metrics[i].name, metrics[i].value);
}

pagedcl_status pagedcl_blocks_prometheus(const pagedcl_blocks *blocks, char *text, size_t capacity, size_t *length) {
    return write_text(print_prometheus, &(report){.blocks = blocks}, text, capacity, length);
}

static void print_sequence(writer *w, const pagedcl_blocks *blocks, int32_t index) {
    const pcl_sequence *s = &blocks->seqs[index];
    print(w, "sequence 0x%" PRIx64 ": %" PRId64 " tokens, %" PRId64 " recorded%s%s, fence %" PRIu64 "\n",
          pcl_sequence_handle(blocks, index), s->length, blocks->chains[index].recorded,
          s->in_step ? ", in the open step" : "", s->state == PCL_SEQ_ENDING ? ", ending" : "", s->fence);
    for (int32_t g = 0; g < blocks->num_groups; g++) {
        print(w, "  group %" PRId32 ", %s:", g, s->swapped ? "host blocks" : "blocks");
        for (int64_t i = 0; i < pcl_blocks_for(&blocks->groups[g], s->length); i++)
            print(w, " %" PRId32, s->table[pcl_entry(blocks, &blocks->groups[g], i)]);
        print(w, "\n");
    }
}

static void print_dump(writer *w, const report *r) {
    const pagedcl_blocks *blocks = r->blocks;
    for (int32_t i = 0; i < blocks->num_seqs; i++)
        if (blocks->seqs[i].state != PCL_SEQ_FREE)
            print_sequence(w, blocks, i);
    static const char *const priorities[] = {"low", "normal", "high", "pinned"};
    for (int32_t block = 0; block < blocks->stats.total; block++) {
        const pcl_block *b = &blocks->block[block];
        if (b->node == PCL_ROOT)
            continue;
        const pcl_node *node = &blocks->prefix.nodes[b->node];
        print(w,
              "block %" PRId32 ": %" PRId32 " references, known by hash %016" PRIx64 " behind %016" PRIx64
              ", priority %s%s\n",
              block, b->refcount, node->hash, blocks->prefix.nodes[node->parent].hash,
              priorities[node->priority - PAGEDCL_PRIORITY_LOW], node->keys != NULL ? ", with extra keys" : "");
    }
}

pagedcl_status pagedcl_blocks_dump(const pagedcl_blocks *blocks, char *text, size_t capacity, size_t *length) {
    return write_text(print_dump, &(report){.blocks = blocks}, text, capacity, length);
}

static char map_char(const pcl_block *b, const pcl_node *nodes) {
    if (b->refcount > 0)
        return "0123456789+"[b->refcount < 10 ? b->refcount : 10];
    if (b->node != PCL_ROOT)
        return "cC"[nodes[b->node].priority == PAGEDCL_PRIORITY_PINNED];
    return "~."[b->list == PCL_READY];
}

static void print_map(writer *w, const report *r) {
    for (int32_t block = 0; block < r->blocks->stats.total; block++) {
        print_char(w, map_char(&r->blocks->block[block], r->blocks->prefix.nodes));
        if ((block + 1) % r->columns == 0 || block + 1 == r->blocks->stats.total)
            print_char(w, '\n');
    }
}

pagedcl_status pagedcl_blocks_map(const pagedcl_blocks *blocks, int32_t columns, char *text, size_t capacity,
                                  size_t *length) {
    if (columns < 0)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "columns is %" PRId32 "; it is at least 1, or 0 for 64", columns);
    return write_text(print_map, &(report){.blocks = blocks, .columns = columns == 0 ? 64 : columns}, text, capacity,
                      length);
}
