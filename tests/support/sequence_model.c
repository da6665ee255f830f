/* SPDX-License-Identifier: Apache-2.0 */
#include "sequence_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void model_init(model *m, int32_t num_blocks, int32_t block_size, int32_t num_groups) {
    *m = (model){.num_blocks = num_blocks, .block_size = block_size, .num_groups = num_groups, .next_token = 1};
    snprintf(m->name, sizeof m->name, "%" PRId32 " blocks of %" PRId32 ", %" PRId32 " groups", num_blocks, block_size,
             num_groups);
    pagedcl_blocks_desc desc = PAGEDCL_BLOCKS_DESC_INIT;
    desc.num_blocks = num_blocks;
    desc.block_size = block_size;
    desc.num_groups = num_groups;
    OK(pagedcl_blocks_create(&desc, &m->blocks));
    size_t slots = (size_t)num_blocks * (size_t)block_size;
    for (int32_t group = 0; group < num_groups; group++)
        m->pool[group] = calloc(slots, sizeof(int64_t));
    for (int i = 0; i < MAX_SEQS; i++)
        m->seqs[i].tokens = calloc(slots, sizeof(int64_t));
    m->references = calloc((size_t)num_blocks, sizeof(int32_t));
    m->row = calloc((size_t)num_blocks, sizeof(int32_t));
    m->slots = calloc(slots, sizeof(int64_t));
}

void model_destroy(model *m) {
    pagedcl_blocks_destroy(m->blocks);
    for (int32_t group = 0; group < m->num_groups; group++)
        free(m->pool[group]);
    for (int i = 0; i < MAX_SEQS; i++)
        free(m->seqs[i].tokens);
    free(m->references);
    free(m->row);
    free(m->slots);
}

pagedcl_blocks_stats model_stats(const model *m) {
    pagedcl_blocks_stats stats = PAGEDCL_BLOCKS_STATS_INIT;
    OK(pagedcl_blocks_get_stats(m->blocks, &stats));
    return stats;
}

static int64_t blocks_for(const model *m, int64_t tokens) {
    return (tokens + m->block_size - 1) / m->block_size;
}

/* The block table of sequence i into m->row. */
static void model_table(const model *m, int i, int32_t group) {
    const model_seq *s = &m->seqs[i];
    int64_t num_blocks = -1;
    OK(pagedcl_blocks_table(m->blocks, s->handle, group, m->row, m->num_blocks, &num_blocks));
    CHECK(num_blocks == blocks_for(m, s->length), "%s: sequence %d has %" PRId64 " blocks", m->name, i, num_blocks);
    for (int64_t b = 0; b < m->num_blocks; b++)
        CHECK(b < num_blocks ? m->row[b] >= 0 && m->row[b] < m->num_blocks : m->row[b] == -1,
              "%s: sequence %d, entry %" PRId64 " is %" PRId32, m->name, i, b, m->row[b]);
}

void model_check(model *m) {
    int64_t num_seqs = 0, num_tokens = 0, references = 0, used = 0, shared = 0;
    OK(pagedcl_blocks_check(m->blocks));
    memset(m->references, 0, (size_t)m->num_blocks * sizeof(int32_t));
    for (int i = 0; i < MAX_SEQS; i++) {
        const model_seq *s = &m->seqs[i];
        if (s->handle == 0)
            continue;
        int64_t length = -1;
        OK(pagedcl_blocks_seq_length(m->blocks, s->handle, &length));
        CHECK(length == s->length, "%s: sequence %d has %" PRId64 " tokens, not %" PRId64, m->name, i, length,
              s->length);
        for (int32_t group = 0; group < m->num_groups; group++) {
            model_table(m, i, group);
            for (int64_t b = 0; b < blocks_for(m, s->length); b++)
                m->references[m->row[b]]++;
            for (int64_t p = 0; p < s->length; p++) {
                int64_t token = m->pool[group][(int64_t)m->row[p / m->block_size] * m->block_size + p % m->block_size];
                CHECK(token == s->tokens[p], "%s: sequence %d reads token %" PRId64 " at %" PRId64 ", not %" PRId64,
                      m->name, i, token, p, s->tokens[p]);
            }
        }
        num_seqs++;
        num_tokens += length;
    }
    for (int32_t block = 0; block < m->num_blocks; block++) {
        int32_t refcount = -1;
        OK(pagedcl_blocks_refcount(m->blocks, block, &refcount));
        CHECK(refcount == m->references[block], "%s: block %" PRId32 " has refcount %" PRId32 ", not %" PRId32, m->name,
              block, refcount, m->references[block]);
        references += refcount;
        used += refcount > 0;
        shared += refcount > 1;
    }
    pagedcl_blocks_stats stats = model_stats(m);
    CHECK(stats.total == m->num_blocks && stats.used == used && stats.free == m->num_blocks - used &&
              stats.shared == shared && stats.references == references && stats.num_seqs == num_seqs &&
              stats.num_tokens == num_tokens,
          "%s: the counters are wrong", m->name);
}

void model_create(model *m, int i) {
    OK(pagedcl_blocks_seq_create(m->blocks, &m->seqs[i].handle));
    m->seqs[i].length = 0;
}

void model_share(model *m, int parent, int64_t num_tokens, int child) {
    model_seq *from = &m->seqs[parent], *to = &m->seqs[child];
    if (num_tokens == from->length)
        OK(pagedcl_blocks_fork(m->blocks, from->handle, &to->handle));
    else
        OK(pagedcl_blocks_share(m->blocks, from->handle, num_tokens, &to->handle));
    to->length = num_tokens;
    memcpy(to->tokens, from->tokens, (size_t)num_tokens * sizeof(int64_t));
}

int64_t model_needed(model *m, int i, int64_t num_tokens, size_t *num_copies) {
    const model_seq *s = &m->seqs[i];
    *num_copies = 0;
    if (num_tokens > 0 && s->length % m->block_size != 0)
        for (int32_t group = 0; group < m->num_groups; group++) {
            int32_t refcount = 0;
            model_table(m, i, group);
            OK(pagedcl_blocks_refcount(m->blocks, m->row[s->length / m->block_size], &refcount));
            *num_copies += refcount > 1;
        }
    return (blocks_for(m, s->length + num_tokens) - blocks_for(m, s->length)) * m->num_groups + (int64_t)*num_copies;
}

bool model_append(model *m, int i, int64_t num_tokens) {
    model_seq *s = &m->seqs[i];
    pagedcl_blocks_stats before = model_stats(m);
    size_t want_copies, num_copies = SIZE_MAX;
    int64_t want = model_needed(m, i, num_tokens, &want_copies), needed = -1;
    OK(pagedcl_blocks_needed(m->blocks, s->handle, num_tokens, &needed));
    CHECK(needed == want, "%s: needed is %" PRId64 ", not %" PRId64, m->name, needed, want);

    pagedcl_block_copy copies[MAX_GROUPS];
    pagedcl_status status = pagedcl_blocks_append(m->blocks, s->handle, num_tokens, copies, &num_copies);
    pagedcl_blocks_stats after = model_stats(m);
    if (want > before.free) {
        bool never = blocks_for(m, s->length + num_tokens) * m->num_groups > m->num_blocks;
        before.out_of_blocks += !never;
        CHECK(status == (never ? PAGEDCL_NEVER_FITS : PAGEDCL_OUT_OF_BLOCKS), "%s: %s", m->name,
              pagedcl_status_name(status));
        CHECK(num_copies == SIZE_MAX && memcmp(&before, &after, sizeof before) == 0,
              "%s: the refused append changed something", m->name);
        return false;
    }
    CHECK(status == PAGEDCL_SUCCESS, "%s: %s", m->name, pagedcl_last_error());
    CHECK(num_copies == want_copies, "%s: %zu copies, not %zu", m->name, num_copies, want_copies);
    CHECK(after.used == before.used + want && after.copies == before.copies + (int64_t)num_copies &&
              after.peak_used == (after.used > before.peak_used ? after.used : before.peak_used),
          "%s: the append counted wrongly", m->name);
    for (size_t c = 0; c < num_copies; c++) {
        CHECK(c == 0 || copies[c].group > copies[c - 1].group, "%s: copies are not in group order", m->name);
        CHECK(copies[c].src != copies[c].dst, "%s: copy of a block to itself", m->name);
        int64_t *pool = m->pool[copies[c].group];
        const size_t block = (size_t)m->block_size;
        memcpy(pool + (size_t)copies[c].dst * block, pool + (size_t)copies[c].src * block, block * sizeof *pool);
    }

    for (int32_t group = 0; group < m->num_groups; group++) {
        OK(pagedcl_blocks_slots(m->blocks, s->handle, group, s->length, num_tokens, m->slots));
        for (int64_t t = 0; t < num_tokens; t++)
            m->pool[group][m->slots[t]] = m->next_token + t;
    }
    for (int64_t t = 0; t < num_tokens; t++)
        s->tokens[s->length++] = m->next_token++;
    return true;
}

void model_truncate(model *m, int i, int64_t num_tokens) {
    OK(pagedcl_blocks_truncate(m->blocks, m->seqs[i].handle, num_tokens));
    m->seqs[i].length = num_tokens;
}

void model_free(model *m, int i) {
    pagedcl_seq handle = m->seqs[i].handle;
    OK(pagedcl_blocks_seq_free(m->blocks, handle));
    m->seqs[i].handle = 0;
    CHECK(pagedcl_blocks_seq_free(m->blocks, handle) == PAGEDCL_INVALID_HANDLE, "%s: freed twice", m->name);
}

int32_t model_block(const model *m, int i, int64_t b) {
    model_table(m, i, 0);
    return m->row[b];
}
