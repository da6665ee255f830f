/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks_model.h"

#include "blocks.h"
#include "blocks_model_pool.h"

#include <pagedcl/pagedcl.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 3, 4), noreturn)) static void fail(const model *m, int line, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "blocks_model.c:%d: operation %" PRId64 ": ", line, m->counts->operations);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\nlast error: %s\n", pagedcl_last_error());
    va_end(arguments);
    abort();
}

#define CHECK(condition, ...)               \
    do {                                    \
        if (!(condition))                   \
            fail(m, __LINE__, __VA_ARGS__); \
    } while (0)

#define MUST(call) CHECK((call) == PAGEDCL_SUCCESS, "%s failed", #call)

/* A call that may be out of memory, and must then change nothing. */
#define CALL(m, call) (begin_call(m), end_call(m, (call), __LINE__))

static uint8_t next_byte(model *m) {
    return m->position < m->size ? m->data[m->position++] : 0;
}

static int below(model *m, int bound) {
    return next_byte(m) % bound;
}

static pagedcl_blocks_stats stats_of(const model *m) {
    pagedcl_blocks_stats stats = PAGEDCL_BLOCKS_STATS_INIT;
    MUST(pagedcl_blocks_get_stats(m->blocks, &stats));
    return stats;
}

static void begin_call(model *m) {
    m->before = stats_of(m);
    if (m->allow != NULL && m->budget >= 0)
        m->allow(m->budget);
}

static pagedcl_status end_call(model *m, pagedcl_status status, int line) {
    if (m->allow != NULL)
        m->allow(-1);
    if (status == PAGEDCL_SUCCESS)
        return status;
    pagedcl_blocks_stats after = stats_of(m);
    m->before.out_of_blocks += status == PAGEDCL_OUT_OF_BLOCKS;
    if (memcmp(&m->before, &after, sizeof after) != 0)
        fail(m, line, "a refused call (%s) changed a counter", pagedcl_status_name(status));
    if (status == PAGEDCL_OUT_OF_MEMORY && (m->allow == NULL || m->budget < 0))
        fail(m, line, "out of memory");
    m->counts->refused += status != PAGEDCL_OUT_OF_MEMORY;
    m->counts->out_of_memory += status == PAGEDCL_OUT_OF_MEMORY;
    return status;
}

/* Whether the call went well, the status being `want` or, where allocations fail, OUT_OF_MEMORY. */
static bool went(const model *m, pagedcl_status status, pagedcl_status want, int line) {
    if (status != want && status != PAGEDCL_OUT_OF_MEMORY)
        fail(m, line, "%s, not %s", pagedcl_status_name(status), pagedcl_status_name(want));
    return status == PAGEDCL_SUCCESS;
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

static bool arrives(const model *m, const model_seq *s) {
    return s->arrival > m->reached;
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
static void check_all(model *m) {
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
            for (int64_t p = 0; p < s->length && !arrives(m, s); p++)
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
    pagedcl_blocks_stats stats = stats_of(m);
    CHECK(stats.used == used && stats.cached == cached && stats.free == m->num_blocks - used - cached,
          "%" PRId64 " free, %" PRId64 " cached and %" PRId64 " used blocks, not %" PRId64 ", %" PRId64 " and %" PRId64,
          stats.free, stats.cached, stats.used, m->num_blocks - used - cached, cached, used);
    m->counts->evictions = m->evictions_before + stats.evicted;
}

static void listen(void *user, const pagedcl_block_event *event) {
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
static void check_taken(const model *m, int32_t g, int32_t block) {
    for (int32_t i = 0; i < m->group[g].block_size && m->wipe; i++)
        CHECK(m->pool[g][block * m->group[g].block_size + i] == 0, "block %" PRId32 " was not wiped", block);
}

static void copy_block(model *m, int32_t g, int32_t src, int32_t dst) {
    int32_t size = m->group[g].block_size;
    memcpy(&m->pool[g][dst * size], &m->pool[g][src * size], (size_t)size * sizeof(uint64_t));
}

/* A free place for a sequence, NULL: none. */
static model_seq *free_place(model *m) {
    for (int i = 0; i < MODEL_SEQS; i++)
        if (m->seqs[i].state == MODEL_NONE)
            return &m->seqs[i];
    return NULL;
}

static void reach(model *m, uint64_t fence) {
    if (fence > m->reached) {
        model_run_deferred(m, fence);
        m->reached = fence;
    }
    MUST(pagedcl_blocks_reached(m->blocks, fence));
}

void model_run_deferred(model *m, uint64_t fence) {
    size_t kept = 0;
    for (size_t i = 0; i < m->num_deferred; i++) {
        const model_deferred *d = &m->deferred[i];
        if (d->fence > fence) {
            m->deferred[kept++] = *d;
            continue;
        }
        int32_t size = m->group[d->group].block_size;
        uint64_t *host = &m->host[d->group][d->host * size], *block = &m->pool[d->group][d->slot];
        if (d->kind == MODEL_READ)
            continue;
        if (d->kind == MODEL_DOWNLOAD)
            memcpy(host, block, (size_t)size * sizeof *host);
        else
            memcpy(block, host, (size_t)size * sizeof *host);
    }
    m->num_deferred = kept;
}

/*
 * The attention of the sequence reads all that it sees, as late as the fence allows. Tokens behind `length` in a block
 * that it keeps are rolled back; its next step writes there, behind this one.
 */
static void defer_reads(model *m, const model_seq *s, int64_t length, uint64_t fence) {
    for (int32_t g = 0; g < m->num_groups && fence > m->reached; g++) {
        int32_t size = m->group[g].block_size;
        for (int64_t p = 0; p < s->length; p++)
            if (s->rows[g][p / size] >= 0 && (p < length || p / size >= model_blocks_for(&m->group[g], length)))
                model_defer(m, (model_deferred){.kind = MODEL_READ,
                                                .fence = fence,
                                                .group = g,
                                                .slot = s->rows[g][p / size] * size + p % size,
                                                .value = s->values[p]});
    }
}

static uint64_t new_fence(model *m) {
    return below(m, 3) == 0 ? 0 : ++m->last_fence;
}

/* Tokens of which there are few, so that prompts often begin alike. */
static void add_tokens(model *m, model_seq *s, int64_t count) {
    unsigned bits = next_byte(m);
    for (int64_t i = 0; i < count; i++, s->length++) {
        s->tokens[s->length] = bits >> i % 8 & 1;
        model_value_at(s, s->length);
    }
}

/* What is cached of the prompt, by brute force over what events told. *exact is false where windows leave a choice. */
static int64_t expected_hit(const model *m, const model_seq *s, int64_t num_tokens, int32_t min_partial) {
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

static void create(model *m) {
    model_seq *s = free_place(m);
    if (s == NULL)
        return;
    memset(s, 0, sizeof *s);
    s->salt = below(m, MODEL_SALTS);
    /* Often the beginning of another one. */
    const model_seq *like = &m->seqs[below(m, MODEL_SEQS)];
    if (like->state != MODEL_NONE && below(m, 4) > 0) {
        s->length = like->length - below(m, like->length < 4 ? (int)like->length + 1 : 4);
        memcpy(s->tokens, like->tokens, sizeof s->tokens);
        s->salt = like->salt;
        for (int64_t p = 0; p < s->length; p++)
            model_value_at(s, p);
    }
    add_tokens(m, s, s->length + 8 <= MODEL_TOKENS ? below(m, 9) : 0);
    char salt = (char)('a' + s->salt);
    pagedcl_prefix_key key = {.type = PAGEDCL_KEY_SALT, .data = &salt, .size = 1};
    pagedcl_prompt prompt = PAGEDCL_PROMPT_INIT;
    prompt.tokens = s->tokens;
    prompt.num_tokens = s->length;
    prompt.keys = &key;
    prompt.num_keys = s->salt > 0;
    prompt.min_partial = below(m, 4);
    int64_t cached = -1, peeked = -1;
    MUST(pagedcl_prefix_peek(m->blocks, &prompt, &peeked));
    if (below(m, 8) == 0) {
        pagedcl_priority priority = (pagedcl_priority)(below(m, 4) + PAGEDCL_PRIORITY_LOW);
        if (!went(m, CALL(m, pagedcl_prefix_set_priority(m->blocks, &prompt, priority, NULL)), PAGEDCL_SUCCESS,
                  __LINE__))
            return;
    }
    if (!went(m, CALL(m, pagedcl_prefix_seq_create(m->blocks, &prompt, &s->handle, &cached)), PAGEDCL_SUCCESS,
              __LINE__))
        return;
    CHECK(cached == peeked, "peek says %" PRId64 ", create %" PRId64, peeked, cached);
    int64_t expected = m->windowed ? cached : m->prefix ? expected_hit(m, s, s->length, prompt.min_partial) : 0;
    CHECK(cached == expected, "%" PRId64 " tokens of the prompt's %" PRId64 " are cached, not %" PRId64, cached,
          s->length, expected);
    m->counts->hits += cached > 0;
    m->counts->partial_hits += cached % m->unit > 0;
    s->state = MODEL_LIVE;
    s->length = s->recorded = s->dropped_at = cached;
}

static void share(model *m, model_seq *parent) {
    model_seq *s = free_place(m);
    if (s == NULL)
        return;
    int64_t num_tokens = below(m, 2) == 0 ? parent->length : below(m, (int)parent->length + 1);
    pagedcl_status want = parent->swapped || parent->in_step            ? PAGEDCL_NOT_READY
                          : model_window_refuses(m, parent, num_tokens) ? PAGEDCL_INVALID_LENGTH
                                                                        : PAGEDCL_SUCCESS;
    pagedcl_seq made = 0;
    if (!went(m, CALL(m, pagedcl_blocks_share(m->blocks, parent->handle, num_tokens, &made)), want, __LINE__))
        return;
    *s = *parent;
    s->handle = made;
    s->length = num_tokens;
    s->recorded = parent->recorded < num_tokens ? parent->recorded : num_tokens;
    s->dropped_at = parent->dropped_at < num_tokens ? parent->dropped_at : num_tokens;
    s->fence = 0;
}

/* What an append of num_tokens must take, counted from the tables. */
static int64_t needed_blocks(const model *m, const model_seq *s, int64_t num_tokens, int64_t *num_copies,
                             int64_t *held) {
    int64_t needed = *num_copies = *held = 0;
    for (int32_t g = 0; g < m->num_groups; g++) {
        const model_group *group = &m->group[g];
        int64_t before = model_blocks_for(group, s->length), after = model_blocks_for(group, s->length + num_tokens);
        needed += after - before;
        *held += after;
        for (int64_t b = 0; b < before; b++)
            *held -= s->rows[g][b] < 0;
        if (num_tokens > 0 && s->length % group->block_size != 0) {
            int32_t last = s->rows[g][before - 1], refcount = 0;
            MUST(pagedcl_blocks_refcount(m->blocks, last, &refcount));
            *num_copies += refcount > 1 || m->known[last].known;
        }
    }
    return needed + *num_copies;
}

static void append(model *m, model_seq *s) {
    int64_t num_tokens = below(m, 3) == 0 ? below(m, 10) : 1 + below(m, 2);
    if (s->length + num_tokens > MODEL_TOKENS)
        return;
    pagedcl_block_copy copies[MODEL_GROUPS];
    size_t num_copies = 0;
    pagedcl_status want = PAGEDCL_NOT_READY;
    int64_t want_copies = 0, held = 0, needed = 0;
    if (!s->swapped) {
        int64_t want_needed = needed_blocks(m, s, num_tokens, &want_copies, &held);
        MUST(pagedcl_blocks_needed(m->blocks, s->handle, num_tokens, &needed));
        /* Who released a block may still read it: then there is one copy more. */
        int64_t more = needed - want_needed;
        CHECK(more == 0 || (more > 0 && more <= m->num_groups - want_copies && m->last_fence > m->reached),
              "%" PRId64 " blocks are needed, not %" PRId64, needed, want_needed);
        want_copies += more;
        want = held > m->num_blocks             ? PAGEDCL_NEVER_FITS
               : needed > stats_of(m).available ? PAGEDCL_OUT_OF_BLOCKS
                                                : PAGEDCL_SUCCESS;
    }
    if (!went(m, CALL(m, pagedcl_blocks_append(m->blocks, s->handle, num_tokens, copies, &num_copies)), want, __LINE__))
        return;
    CHECK((int64_t)num_copies == want_copies, "%zu copies, not %" PRId64, num_copies, want_copies);
    m->counts->copies += want_copies;
    int64_t before = s->length;
    add_tokens(m, s, num_tokens);
    for (int32_t g = 0; g < m->num_groups; g++) {
        const model_group *group = &m->group[g];
        int64_t end = model_blocks_for(group, before);
        MUST(pagedcl_blocks_table(m->blocks, s->handle, g, s->rows[g], MODEL_TOKENS, NULL));
        for (int64_t b = end; b < model_blocks_for(group, s->length); b++)
            check_taken(m, g, s->rows[g][b]);
    }
    for (size_t c = 0; c < num_copies; c++) {
        check_taken(m, copies[c].group, copies[c].dst);
        copy_block(m, copies[c].group, copies[c].src, copies[c].dst);
        if (m->step_open)
            m->held[m->num_held++] = copies[c].src;
    }
    for (int32_t g = 0; g < m->num_groups; g++) {
        int64_t slots[MODEL_TOKENS];
        MUST(pagedcl_blocks_slots(m->blocks, s->handle, g, before, num_tokens, slots));
        for (int64_t i = 0; i < num_tokens; i++)
            m->pool[g][slots[i]] = s->values[before + i];
    }
    if (m->step_open && !s->in_step) {
        s->in_step = true;
        s->saved_length = before;
    } else if (!m->step_open && num_tokens > 0) {
        model_drop(m, s, before);
    }
}

static void record(model *m, model_seq *s) {
    int64_t most = s->length - s->recorded;
    int64_t num_tokens = below(m, 3) > 0 ? most : below(m, (int)most + 1);
    pagedcl_status want = s->swapped || s->in_step ? PAGEDCL_NOT_READY : PAGEDCL_SUCCESS;
    if (went(m, CALL(m, pagedcl_prefix_record(m->blocks, s->handle, s->tokens + s->recorded, num_tokens)), want,
             __LINE__))
        s->recorded += num_tokens;
}

static void truncate_seq(model *m, model_seq *s) {
    /* What becomes of tokens shows when their step is complete. */
    reach(m, s->fence);
    int64_t num_tokens = below(m, 2) == 0 ? below(m, (int)s->length + 1) : s->length - (s->length > 0);
    pagedcl_status want = s->swapped || s->in_step                 ? PAGEDCL_NOT_READY
                          : model_window_refuses(m, s, num_tokens) ? PAGEDCL_INVALID_LENGTH
                                                                   : PAGEDCL_SUCCESS;
    if (!went(m, CALL(m, pagedcl_blocks_truncate(m->blocks, s->handle, num_tokens)), want, __LINE__))
        return;
    s->length = num_tokens;
    s->recorded = s->recorded < num_tokens ? s->recorded : num_tokens;
    s->dropped_at = s->dropped_at < num_tokens ? s->dropped_at : num_tokens;
}

static void free_seq(model *m, model_seq *s) {
    pagedcl_seq handle = s->handle;
    MUST(pagedcl_blocks_seq_free(m->blocks, handle));
    s->state = s->in_step ? MODEL_ENDING : MODEL_NONE;
    CHECK(pagedcl_blocks_seq_free(m->blocks, handle) == PAGEDCL_INVALID_HANDLE, "sequence freed twice");
}

static void end_step(model *m, bool commit) {
    uint64_t fence = new_fence(m);
    MUST(pagedcl_blocks_check(m->blocks));
    for (int i = 0; i < MODEL_SEQS; i++) {
        model_seq *s = &m->seqs[i];
        if (s->state == MODEL_NONE || !s->in_step)
            continue;
        defer_reads(m, s, commit ? s->length : s->saved_length, fence);
        s->fence = fence > s->fence ? fence : s->fence;
        if (!commit)
            s->length = s->saved_length;
        else if (s->length > s->saved_length)
            model_drop(m, s, s->saved_length);
        s->in_step = false;
        if (s->state == MODEL_ENDING)
            s->state = MODEL_NONE;
    }
    MUST(commit ? pagedcl_blocks_commit(m->blocks, fence) : pagedcl_blocks_rollback(m->blocks, fence));
    m->step_open = false;
    m->num_held = 0;
    m->counts->rollbacks += !commit;
}

static void step(model *m) {
    if (m->step_open) {
        CHECK(pagedcl_blocks_begin(m->blocks) == PAGEDCL_INVALID_ARGUMENT, "a second step was opened");
        end_step(m, below(m, 3) > 0);
        return;
    }
    CHECK(pagedcl_blocks_commit(m->blocks, 0) == PAGEDCL_INVALID_ARGUMENT, "no step was committed");
    CHECK(pagedcl_blocks_rollback(m->blocks, 0) == PAGEDCL_INVALID_ARGUMENT, "no step was rolled back");
    MUST(pagedcl_blocks_begin(m->blocks));
    m->step_open = true;
}

static void swap(model *m, model_seq *s) {
    pagedcl_block_swap swaps[MODEL_GROUPS * MODEL_TOKENS];
    int64_t num_swaps = -1, size = -1;
    bool out = !s->swapped;
    uint64_t fence = new_fence(m);
    pagedcl_blocks_stats stats = stats_of(m);
    MUST(pagedcl_blocks_swap_size(m->blocks, s->handle, &size));
    pagedcl_status status =
        out ? CALL(m,
                   pagedcl_blocks_swap_out(m->blocks, s->handle, fence, swaps, MODEL_GROUPS * MODEL_TOKENS, &num_swaps))
            : CALL(m,
                   pagedcl_blocks_swap_in(m->blocks, s->handle, fence, swaps, MODEL_GROUPS * MODEL_TOKENS, &num_swaps));
    if (status != PAGEDCL_SUCCESS) {
        bool right = out ? (status == PAGEDCL_NOT_READY && s->in_step) ||
                               (status == PAGEDCL_NEVER_FITS && size > stats.host_total) ||
                               (status == PAGEDCL_OUT_OF_BLOCKS && size <= stats.host_total)
                         : (status == PAGEDCL_NOT_READY && s->fence > m->reached) ||
                               (status == PAGEDCL_OUT_OF_BLOCKS && size > stats.available);
        CHECK(right, "swap %s: %s", out ? "out" : "in", pagedcl_status_name(status));
        return;
    }
    CHECK(num_swaps == size, "%" PRId64 " transfers, not %" PRId64, num_swaps, size);
    m->counts->swaps += num_swaps;
    s->fence = fence > s->fence ? fence : s->fence;
    for (int64_t i = 0; i < num_swaps; i++) {
        if (!out)
            check_taken(m, swaps[i].group, swaps[i].block);
        model_defer(m, (model_deferred){.kind = out ? MODEL_DOWNLOAD : MODEL_UPLOAD,
                                        .fence = fence,
                                        .group = swaps[i].group,
                                        .slot = (int64_t)swaps[i].block * m->group[swaps[i].group].block_size,
                                        .host = swaps[i].host_block});
    }
    s->swapped = out;
    s->arrival = out ? 0 : fence;
    model_run_deferred(m, m->reached);
}

/* The sequences that have the block go behind commands under the fence. */
static void put_owners_under(model *m, int32_t block, uint64_t fence) {
    for (model_seq *s = m->seqs; s < m->seqs + MODEL_SEQS; s++)
        for (int32_t g = 0; g < m->num_groups && s->state == MODEL_LIVE && !s->swapped; g++)
            for (int64_t b = 0; b < model_blocks_for(&m->group[g], s->length); b++)
                if (s->rows[g][b] == block && fence > s->fence)
                    s->fence = fence;
}

static void compact(model *m) {
    for (int i = 0; i < MODEL_SEQS; i++)
        if (m->seqs[i].state == MODEL_LIVE && arrives(m, &m->seqs[i]))
            reach(m, m->seqs[i].arrival);
    pagedcl_block_copy copies[MODEL_BLOCKS];
    int64_t num_copies = -1;
    uint64_t fence = new_fence(m);
    pagedcl_status status =
        CALL(m, pagedcl_blocks_compact(m->blocks, fence, copies, below(m, MODEL_BLOCKS + 1), &num_copies));
    if (!went(m, status, m->step_open ? PAGEDCL_INVALID_ARGUMENT : PAGEDCL_SUCCESS, __LINE__))
        return;
    for (int64_t i = 0; i < num_copies; i++) {
        int32_t src = copies[i].src, dst = copies[i].dst;
        CHECK(dst < src, "block %" PRId32 " moves up to %" PRId32, src, dst);
        check_taken(m, copies[i].group, dst);
        copy_block(m, copies[i].group, src, dst);
        put_owners_under(m, src, fence);
        m->known[dst] = m->known[src];
        m->known[src].known = false;
    }
    m->counts->moves += num_copies;
}

static void wipe(model *m) {
    int32_t wiped[MODEL_BLOCKS];
    int64_t num_wiped = -1;
    MUST(pagedcl_blocks_wipe(m->blocks, new_fence(m), wiped, 1 + below(m, MODEL_BLOCKS), &num_wiped));
    for (int64_t i = 0; i < num_wiped; i++)
        for (int32_t g = 0; g < m->num_groups; g++)
            memset(&m->pool[g][wiped[i] * m->group[g].block_size], 0,
                   (size_t)m->group[g].block_size * sizeof(uint64_t));
    m->counts->wipes += num_wiped;
}

static void evict(model *m) {
    int64_t wanted = 1 + below(m, 4), evicted = -1;
    MUST(pagedcl_prefix_evict(m->blocks, wanted, &evicted));
    CHECK(evicted >= wanted || stats_of(m).available <= stats_of(m).free, "too few blocks were evicted");
}

static void operate(model *m) {
    int operation = below(m, 20);
    model_seq *s = &m->seqs[below(m, MODEL_SEQS)];
    m->budget = m->allow != NULL && below(m, 4) == 0 ? below(m, 3) : -1;
    if (operation == 0 || s->state == MODEL_NONE) {
        create(m);
        return;
    }
    /* An engine waits for a sequence that is on its way before it does anything else with it. */
    if (s->state == MODEL_LIVE && arrives(m, s) && operation >= 2 && operation <= 14)
        reach(m, s->arrival);
    bool live = s->state == MODEL_LIVE;
    if (s->swapped && operation > 4 && operation <= 14 && below(m, 8) > 0)
        operation = 4; /* most else would be refused */
    switch (operation) {
    case 1:
        if (live)
            free_seq(m, s);
        break;
    case 2:
        if (live)
            share(m, s);
        break;
    case 3:
        if (live)
            truncate_seq(m, s);
        break;
    case 4:
        if (live)
            swap(m, s);
        break;
    case 5:
    case 6:
    case 7:
    case 8:
        if (live)
            record(m, s);
        break;
    case 15:
        if (m->last_fence > m->reached)
            reach(m, m->reached + 1 + (uint64_t)below(m, (int)(m->last_fence - m->reached)));
        break;
    case 16:
        compact(m);
        break;
    case 17:
        wipe(m);
        break;
    case 18:
        evict(m);
        break;
    case 19:
        step(m);
        break;
    default:
        if (live)
            append(m, s);
        break;
    }
}

static void start(model *m) {
    static const struct {
        int32_t num_groups, block_sizes[MODEL_GROUPS];
        int64_t windows[MODEL_GROUPS];
    } shapes[] = {
        {1, {1}, {0}},       {1, {2}, {0}}, {1, {4}, {0}},       {2, {2, 2}, {0, 0}}, {2, {4, 2}, {0, 0}},
        {2, {1, 4}, {0, 0}}, {1, {2}, {5}}, {2, {2, 2}, {0, 3}}, {2, {2, 4}, {6, 0}}, {2, {1, 2}, {4, 7}},
    };
    size_t shape = next_byte(m) % (sizeof shapes / sizeof *shapes);
    int options = next_byte(m);
    pagedcl_blocks_desc desc = PAGEDCL_BLOCKS_DESC_INIT;
    desc.num_blocks = m->num_blocks = MODEL_BLOCKS - (below(m, 3) == 0 ? below(m, MODEL_BLOCKS) : 0);
    desc.block_size = 3;
    desc.num_groups = m->num_groups = shapes[shape].num_groups;
    desc.group_block_sizes = shapes[shape].block_sizes;
    desc.group_windows = shapes[shape].windows;
    desc.prefix_cache = m->prefix = options % 8 != 0;
    desc.wipe = m->wipe = options / 8 % 4 == 0;
    desc.num_host_blocks = below(m, MODEL_BLOCKS + 1);
    m->blocks = NULL;
    MUST(pagedcl_blocks_create(&desc, &m->blocks));
    if (options / 32 % 4 == 0 && m->prefix)
        m->blocks->prefix.hash_mask = 0;
    MUST(pagedcl_blocks_set_listener(m->blocks, listen, m));
    for (int32_t g = 0; g < m->num_groups; g++) {
        m->group[g] = (model_group){shapes[shape].block_sizes[g], shapes[shape].windows[g]};
        m->unit = m->group[g].block_size > m->unit ? m->group[g].block_size : m->unit;
        m->windowed |= m->group[g].window > 0;
        m->sizes_differ |= m->group[g].block_size != m->group[0].block_size;
    }
    m->budget = -1;
}

void blocks_model_run(const uint8_t *data, size_t size, blocks_model_allow allow, blocks_model_counts *counts) {
    model *m = calloc(1, sizeof *m);
    if (m == NULL)
        abort();
    *m = (model){.data = data, .size = size, .allow = allow, .counts = counts, .evictions_before = counts->evictions};
    start(m);
    while (m->position < m->size) {
        counts->operations++;
        operate(m);
        check_all(m);
    }
    if (m->step_open)
        end_step(m, true);
    for (int i = 0; i < MODEL_SEQS; i++)
        if (m->seqs[i].state == MODEL_LIVE)
            free_seq(m, &m->seqs[i]);
    reach(m, m->last_fence);
    check_all(m);
    pagedcl_blocks_stats stats = stats_of(m);
    CHECK(stats.used == 0 && stats.waiting == 0 && stats.host_used == 0 && stats.num_seqs == 0,
          "blocks are left behind: %" PRId64 " used, %" PRId64 " waiting", stats.used, stats.waiting);
    pagedcl_blocks_destroy(m->blocks);
    free(m->deferred);
    free(m);
}
