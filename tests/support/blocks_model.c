/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks_model.h"

#include "blocks.h"
#include "blocks_model_pool.h"

#include <pagedcl/pagedcl.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A call that may be out of memory, and must then change nothing. */
#define CALL(m, call) (begin_call(m), end_call(m, (call), __LINE__))

static uint8_t next_byte(model *m) {
    return m->position < m->size ? m->data[m->position++] : 0;
}

static int below(model *m, int bound) {
    return next_byte(m) % bound;
}

static void begin_call(model *m) {
    m->before = model_stats(m);
    if (m->allow != NULL && m->budget >= 0)
        m->allow(m->budget);
}

static pagedcl_status end_call(model *m, pagedcl_status status, int line) {
    if (m->allow != NULL)
        m->allow(-1);
    if (status == PAGEDCL_SUCCESS)
        return status;
    pagedcl_blocks_stats after = model_stats(m);
    m->before.out_of_blocks += status == PAGEDCL_OUT_OF_BLOCKS;
    if (memcmp(&m->before, &after, sizeof after) != 0)
        model_fail(m, __FILE__, line, "a refused call (%s) changed a counter", pagedcl_status_name(status));
    if (status == PAGEDCL_OUT_OF_MEMORY && (m->allow == NULL || m->budget < 0))
        model_fail(m, __FILE__, line, "out of memory");
    m->counts->refused += status != PAGEDCL_OUT_OF_MEMORY;
    m->counts->out_of_memory += status == PAGEDCL_OUT_OF_MEMORY;
    return status;
}

/* Whether the call went well, the status being `want` or, where allocations fail, OUT_OF_MEMORY. */
static bool went(const model *m, pagedcl_status status, pagedcl_status want, int line) {
    if (status != want && status != PAGEDCL_OUT_OF_MEMORY)
        model_fail(m, __FILE__, line, "%s, not %s", pagedcl_status_name(status), pagedcl_status_name(want));
    return status == PAGEDCL_SUCCESS;
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
    int64_t expected = m->windowed ? cached : m->prefix ? model_expected_hit(m, s, s->length, prompt.min_partial) : 0;
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
        want = held > m->num_blocks                ? PAGEDCL_NEVER_FITS
               : needed > model_stats(m).available ? PAGEDCL_OUT_OF_BLOCKS
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
            model_check_taken(m, g, s->rows[g][b]);
    }
    for (size_t c = 0; c < num_copies; c++) {
        model_check_taken(m, copies[c].group, copies[c].dst);
        copy_block(m, copies[c].group, copies[c].src, copies[c].dst);
        if (m->step_open) {
            int32_t size = m->group[copies[c].group].block_size;
            m->held_slots[m->num_held] = (model_deferred){.kind = MODEL_READ,
                                                          .group = copies[c].group,
                                                          .slot = (int64_t)copies[c].src * size,
                                                          .host = (int32_t)(before % size)};
            m->held[m->num_held++] = copies[c].src;
        }
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

/* The copies of the step read their sources as late as the fence allows. */
static void defer_copies(model *m, uint64_t fence) {
    for (int i = 0; i < m->num_held && fence > m->reached; i++)
        for (int32_t slot = 0; slot < m->held_slots[i].host; slot++) {
            model_deferred read = m->held_slots[i];
            read.fence = fence;
            read.slot += slot;
            read.value = m->pool[read.group][read.slot];
            model_defer(m, read);
        }
}

static void end_step(model *m, bool commit) {
    uint64_t fence = new_fence(m);
    MUST(pagedcl_blocks_check(m->blocks));
    if (commit)
        defer_copies(m, fence);
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
    pagedcl_blocks_stats stats = model_stats(m);
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
        if (out)
            model_check_taken_host(m, swaps[i].group, swaps[i].host_block);
        else
            model_check_taken(m, swaps[i].group, swaps[i].block);
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
        if (m->seqs[i].state == MODEL_LIVE && model_arrives(m, &m->seqs[i]))
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
        model_check_taken(m, copies[i].group, dst);
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
    MUST(pagedcl_blocks_wipe_host(m->blocks, wiped, 1 + below(m, MODEL_BLOCKS), &num_wiped));
    for (int64_t i = 0; i < num_wiped; i++)
        for (int32_t g = 0; g < m->num_groups; g++)
            memset(&m->host[g][wiped[i] * m->group[g].block_size], 0,
                   (size_t)m->group[g].block_size * sizeof m->host[g][0]);
    m->counts->wipes += num_wiped;
}

static void evict(model *m) {
    int64_t wanted = 1 + below(m, 4), evicted = -1;
    MUST(pagedcl_prefix_evict(m->blocks, wanted, &evicted));
    CHECK(evicted >= wanted || model_stats(m).available <= model_stats(m).free, "too few blocks were evicted");
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
    if (s->state == MODEL_LIVE && model_arrives(m, s) && operation >= 2 && operation <= 14)
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
    MUST(pagedcl_blocks_set_listener(m->blocks, model_listen, m));
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
        model_check_all(m);
    }
    if (m->step_open)
        end_step(m, true);
    for (int i = 0; i < MODEL_SEQS; i++)
        if (m->seqs[i].state == MODEL_LIVE)
            free_seq(m, &m->seqs[i]);
    reach(m, m->last_fence);
    model_check_all(m);
    pagedcl_blocks_stats stats = model_stats(m);
    CHECK(stats.used == 0 && stats.waiting == 0 && stats.host_used == 0 && stats.num_seqs == 0,
          "blocks are left behind: %" PRId64 " used, %" PRId64 " waiting", stats.used, stats.waiting);
    pagedcl_blocks_destroy(m->blocks);
    free(m->deferred);
    free(m);
}
