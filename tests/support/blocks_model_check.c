/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold after every operation of the model. */
#include "blocks_model_pool.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void model_fail(const model *m, const char *file, int line, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s:%d: operation %" PRId64 ": ", file, line, m->counts->operations);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\nlast error: %s\n", pagedcl_last_error());
    va_end(arguments);
    abort();
}

pagedcl_blocks_stats model_stats(const model *m) {
    pagedcl_blocks_stats stats = PAGEDCL_BLOCKS_STATS_INIT;
    MUST(pagedcl_blocks_get_stats(m->blocks, &stats));
    return stats;
}

bool model_arrives(const model *m, const model_seq *s) {
    return s->arrival > m->reached;
}

static void check_value(const model *m, const model_seq *s, int32_t g, int64_t p, const char *when) {
    int32_t size = m->group[g].block_size, block = s->rows[g][p / size];
    if (block < 0)
        return;
    uint64_t found = m->pool[g][block * size + p % size];
    CHECK(found == s->values[p],
          "%s, sequence %d, group %" PRId32 ", position %" PRId64 ", block %" PRId32 ": a wrong value", when,
          (int)(s - m->seqs), g, p, block);
}

/* What commands under a fence may still read. */
static void check_deferred_reads(const model *m) {
    for (size_t i = 0; i < m->num_deferred; i++) {
        const model_deferred *d = &m->deferred[i];
        CHECK(d->kind != MODEL_READ || m->pool[d->group][d->slot] == d->value,
              "group %" PRId32 ", slot %" PRId64 ": overwritten before fence %" PRIu64 " was reached", d->group,
              d->slot, d->fence);
    }
}

/* Reads the tables of every sequence again, and everything through them. */
void model_check_all(model *m) {
    MUST(pagedcl_blocks_check(m->blocks));
    check_deferred_reads(m);
    int32_t references[MODEL_BLOCKS] = {0};
    int64_t used = 0, cached = 0;
    for (int i = 0; i < MODEL_SEQS; i++) {
        model_seq *s = &m->seqs[i];
        if (s->state == MODEL_NONE)
            continue;
        int64_t length = s->length;
        if (s->state == MODEL_LIVE)
            MUST(pagedcl_blocks_seq_length(m->blocks, s->handle, &length));
        CHECK(length == s->length, "sequence %d has %" PRId64 " tokens, not %" PRId64, i, length, s->length);
        for (int32_t g = 0; g < m->num_groups && !s->swapped; g++) {
            if (s->state == MODEL_LIVE)
                MUST(pagedcl_blocks_table(m->blocks, s->handle, g, s->rows[g], MODEL_TOKENS, NULL));
            int64_t first = model_first_seen(&m->group[g], s->dropped_at);
            for (int64_t b = 0; b < model_blocks_for(&m->group[g], s->length); b++) {
                CHECK((s->rows[g][b] < 0) == (b < first),
                      "sequence %d, group %" PRId32 ", entry %" PRId64 " is %" PRId32, i, g, b, s->rows[g][b]);
                if (s->rows[g][b] >= 0)
                    references[s->rows[g][b]]++;
            }
            for (int64_t p = 0; p < s->length && !model_arrives(m, s); p++)
                check_value(m, s, g, p, "read back");
        }
    }
    for (int i = 0; i < m->num_held; i++)
        references[m->held[i]]++;
    for (int32_t block = 0; block < m->num_blocks; block++) {
        int32_t refcount = -1;
        MUST(pagedcl_blocks_refcount(m->blocks, block, &refcount));
        CHECK(refcount == references[block], "block %" PRId32 " has refcount %" PRId32 ", not %" PRId32, block,
              refcount, references[block]);
        used += refcount > 0;
        cached += refcount == 0 && m->known[block].known;
    }
    pagedcl_blocks_stats stats = model_stats(m);
    CHECK(stats.used == used && stats.cached == cached && stats.free == m->num_blocks - used - cached,
          "%" PRId64 " free, %" PRId64 " cached and %" PRId64 " used blocks, not %" PRId64 ", %" PRId64 " and %" PRId64,
          stats.free, stats.cached, stats.used, m->num_blocks - used - cached, cached, used);
    m->counts->evictions = m->evictions_before + stats.evicted;
}

void model_listen(void *user, const pagedcl_block_event *event) {
    model *m = user;
    model_known *known = &m->known[event->block];
    if (event->type == PAGEDCL_BLOCK_EVICTED || event->type == PAGEDCL_BLOCK_REMOVED) {
        CHECK(known->known, "block %" PRId32 " was evicted, but never stored", event->block);
        known->known = false;
    } else if (event->type == PAGEDCL_BLOCK_STORED) {
        CHECK(!known->known, "block %" PRId32 " was stored twice", event->block);
        const model_seq *s = m->seqs;
        while (s->state != MODEL_LIVE || s->handle != event->seq)
            s++;
        const model_group *group = &m->group[event->group];
        int64_t b = 0;
        while (s->rows[event->group][b] != event->block)
            b++;
        int64_t unit = b * group->block_size / m->unit;
        *known = (model_known){.known = true,
                               .group = event->group,
                               .index = b,
                               .unit = unit,
                               .value = s->values[(unit + 1) * m->unit - 1],
                               .parent = unit == 0 ? model_salt(s->salt) : s->values[unit * m->unit - 1]};
        memcpy(known->tokens, &s->tokens[unit * m->unit], (size_t)m->unit * sizeof(int32_t));
        CHECK(memcmp(known->tokens, event->tokens, (size_t)event->num_tokens * sizeof(int32_t)) == 0,
              "block %" PRId32 " was stored with other tokens", event->block);
    }
}

/* A block that was just taken is under no fence, and clean where that is promised. */
void model_check_taken(const model *m, int32_t g, int32_t block) {
    for (int32_t i = 0; i < m->group[g].block_size && m->wipe; i++)
        CHECK(m->pool[g][block * m->group[g].block_size + i] == 0, "block %" PRId32 " was not wiped", block);
}

void model_check_taken_host(const model *m, int32_t g, int32_t host_block) {
    for (int32_t i = 0; i < m->group[g].block_size && m->wipe; i++)
        CHECK(m->host[g][host_block * m->group[g].block_size + i] == 0, "host block %" PRId32 " was not wiped",
              host_block);
}

/* What is cached of the prompt, by brute force over what events told. */
int64_t model_expected_hit(const model *m, const model_seq *s, int64_t num_tokens, int32_t min_partial) {
    int64_t units = 0;
    for (; (units + 1) * m->unit <= num_tokens - 1; units++) {
        bool complete = true;
        for (int32_t g = 0; g < m->num_groups; g++)
            for (int64_t j = 0; j < m->unit / m->group[g].block_size; j++)
                complete &= model_knows(m, g, units * (m->unit / m->group[g].block_size) + j,
                                        s->values[(units + 1) * m->unit - 1]);
        if (!complete)
            break;
    }
    uint64_t parent = units == 0 ? model_salt(s->salt) : s->values[units * m->unit - 1];
    int64_t longest = min_partial > 1 ? min_partial - 1 : 0, found = 0;
    for (int32_t block = 0; block < m->num_blocks && !m->sizes_differ; block++) {
        const model_known *known = &m->known[block];
        int64_t common = 0;
        if (!known->known || known->unit != units || known->parent != parent)
            continue;
        while (common < m->unit && units * m->unit + common < num_tokens - 1 &&
               known->tokens[common] == s->tokens[units * m->unit + common])
            common++;
        if (common > longest)
            found = longest = common;
    }
    return units * m->unit + found;
}
