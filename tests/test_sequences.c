/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences, sharing and copy-on-write. The model at the heart of it keeps every sequence's tokens in a plain array,
 * and beside the manager a simulated pool: tokens are stored where the slots say, blocks are copied when the manager
 * names a copy. After every call each sequence must read back exactly its own tokens through its tables.
 */
#include "blocks.h"
#include "support/allocations.h"
#include "support/random.h"

#include <pagedcl/blocks.h>

#include <criterion/criterion.h>

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A Criterion assertion costs microseconds even when it holds: too much for millions. */
#define CHECK(condition, ...)            \
    do {                                 \
        if (!(condition))                \
            cr_assert_fail(__VA_ARGS__); \
    } while (0)

#define OK(call) CHECK((call) == PAGEDCL_SUCCESS, "%s: %s", #call, pagedcl_last_error())

enum { MAX_GROUPS = 3, MAX_SEQS = 8 };

typedef struct model_seq {
    pagedcl_seq handle; /* 0: none */
    int64_t length;
    int64_t *tokens;
} model_seq;

typedef struct model {
    char name[96]; /* for messages */
    pagedcl_blocks *blocks;
    int32_t num_blocks, block_size, num_groups;
    int64_t *pool[MAX_GROUPS]; /* [num_blocks, block_size]: the token in every slot */
    int64_t next_token;        /* every token is a number of its own */
    model_seq seqs[MAX_SEQS];
    int32_t *references; /* by block, counted from the tables */
    int32_t *row;        /* room for a table */
    int64_t *slots;      /* room for the slots of a sequence */
} model;

static void model_init(model *m, int32_t num_blocks, int32_t block_size, int32_t num_groups) {
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

static void model_destroy(model *m) {
    pagedcl_blocks_destroy(m->blocks);
    for (int32_t group = 0; group < m->num_groups; group++)
        free(m->pool[group]);
    for (int i = 0; i < MAX_SEQS; i++)
        free(m->seqs[i].tokens);
    free(m->references);
    free(m->row);
    free(m->slots);
}

static pagedcl_blocks_stats stats_of(const pagedcl_blocks *blocks) {
    pagedcl_blocks_stats stats = PAGEDCL_BLOCKS_STATS_INIT;
    OK(pagedcl_blocks_get_stats(blocks, &stats));
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

/* Everything that must hold after every call. */
static void model_check(model *m) {
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
    pagedcl_blocks_stats stats = stats_of(m->blocks);
    CHECK(stats.total == m->num_blocks && stats.used == used && stats.free == m->num_blocks - used &&
              stats.shared == shared && stats.references == references && stats.num_seqs == num_seqs &&
              stats.num_tokens == num_tokens,
          "%s: the counters are wrong", m->name);
}

static void model_create(model *m, int i) {
    OK(pagedcl_blocks_seq_create(m->blocks, &m->seqs[i].handle));
    m->seqs[i].length = 0;
}

static void model_share(model *m, int parent, int64_t num_tokens, int child) {
    model_seq *from = &m->seqs[parent], *to = &m->seqs[child];
    if (num_tokens == from->length)
        OK(pagedcl_blocks_fork(m->blocks, from->handle, &to->handle));
    else
        OK(pagedcl_blocks_share(m->blocks, from->handle, num_tokens, &to->handle));
    to->length = num_tokens;
    memcpy(to->tokens, from->tokens, (size_t)num_tokens * sizeof(int64_t));
}

/* The free blocks that an append must take: the new ones, and a copy for each last block that others point at too. */
static int64_t model_needed(model *m, int i, int64_t num_tokens, size_t *num_copies) {
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

/* Appends, copies what the manager names, stores new tokens. False when the pool is too small; it says so itself. */
static bool model_append(model *m, int i, int64_t num_tokens) {
    model_seq *s = &m->seqs[i];
    pagedcl_blocks_stats before = stats_of(m->blocks);
    size_t want_copies, num_copies = SIZE_MAX;
    int64_t want = model_needed(m, i, num_tokens, &want_copies), needed = -1;
    OK(pagedcl_blocks_needed(m->blocks, s->handle, num_tokens, &needed));
    CHECK(needed == want, "%s: needed is %" PRId64 ", not %" PRId64, m->name, needed, want);

    pagedcl_block_copy copies[MAX_GROUPS];
    pagedcl_status status = pagedcl_blocks_append(m->blocks, s->handle, num_tokens, copies, &num_copies);
    pagedcl_blocks_stats after = stats_of(m->blocks);
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

static void model_truncate(model *m, int i, int64_t num_tokens) {
    OK(pagedcl_blocks_truncate(m->blocks, m->seqs[i].handle, num_tokens));
    m->seqs[i].length = num_tokens;
}

static void model_free(model *m, int i) {
    pagedcl_seq handle = m->seqs[i].handle;
    OK(pagedcl_blocks_seq_free(m->blocks, handle));
    m->seqs[i].handle = 0;
    CHECK(pagedcl_blocks_seq_free(m->blocks, handle) == PAGEDCL_INVALID_HANDLE, "%s: freed twice", m->name);
}

/* The physical block of logical block b of sequence i. */
static int32_t block_at(const model *m, int i, int64_t b) {
    model_table(m, i, 0);
    return m->row[b];
}

static int64_t used_blocks(const model *m) {
    return stats_of(m->blocks).used;
}

/* Lengths [30, 32, 70], blocks of 32: there is room for a token in each, the second sequence needing a block for it. */
Test(sequences, worked_decode_table) {
    model m;
    model_init(&m, 7, 32, 1);
    enum { FIRST, SECOND, THIRD, OTHER, ANOTHER };
    for (int i = FIRST; i <= ANOTHER; i++)
        model_create(&m, i);
    model_append(&m, SECOND, 32);
    model_append(&m, OTHER, 1);
    model_append(&m, FIRST, 30);
    model_append(&m, THIRD, 32);
    model_append(&m, ANOTHER, 1);
    model_append(&m, THIRD, 38);
    model_free(&m, ANOTHER);
    model_free(&m, OTHER);

    const int64_t needed[] = {0, 1, 0};
    for (int i = FIRST; i <= THIRD; i++) {
        size_t num_copies;
        cr_assert_eq(model_needed(&m, i, 1, &num_copies), needed[i]);
        cr_assert(model_append(&m, i, 1));
        model_check(&m);
    }
    const int32_t want[3][4] = {{2, -1, -1, -1}, {0, 1, -1, -1}, {3, 5, 6, -1}};
    const int64_t want_slot[3] = {2 * 32 + 30, 1 * 32 + 0, 6 * 32 + 6};
    const int64_t want_length[3] = {31, 33, 71};
    for (int i = FIRST; i <= THIRD; i++) {
        int32_t row[4];
        int64_t slot, length;
        OK(pagedcl_blocks_table(m.blocks, m.seqs[i].handle, 0, row, 4, NULL));
        OK(pagedcl_blocks_seq_length(m.blocks, m.seqs[i].handle, &length));
        OK(pagedcl_blocks_slots(m.blocks, m.seqs[i].handle, 0, length - 1, 1, &slot));
        cr_assert_eq(length, want_length[i]);
        cr_assert_eq(slot, want_slot[i]);
        cr_assert_arr_eq(row, want[i], sizeof row);
    }
    model_destroy(&m);
}

Test(sequences, b28_append_at_a_block_boundary_takes_a_new_block) {
    model m;
    model_init(&m, 2, 16, 1);
    model_create(&m, 0);
    model_append(&m, 0, 16);
    cr_assert_eq(used_blocks(&m), 1);
    model_append(&m, 0, 1);
    cr_assert_eq(used_blocks(&m), 2);
    cr_assert_neq(block_at(&m, 0, 0), block_at(&m, 0, 1));
    model_check(&m);
    cr_assert(model_append(&m, 0, 15));
    cr_assert_not(model_append(&m, 0, 1));
    model_check(&m);
    model_destroy(&m);
}

Test(sequences, b71_two_owners_never_get_one_block) {
    model m;
    model_init(&m, 4, 16, 1);
    model_create(&m, 0);
    model_append(&m, 0, 16);
    model_free(&m, 0); /* frees twice inside: the second time refused */
    cr_assert_eq(stats_of(m.blocks).free, 4);
    for (int i = 0; i < 4; i++) {
        model_create(&m, i);
        cr_assert(model_append(&m, i, 16));
    }
    model_check(&m);
    model_destroy(&m);
}

Test(sequences, b73_fork_holds_its_own_references) {
    model m;
    model_init(&m, 4, 16, 1);
    enum { A, B, C };
    model_create(&m, A);
    model_append(&m, A, 32);
    model_share(&m, A, 32, B);
    model_free(&m, B);
    model_share(&m, A, 32, C);
    model_free(&m, A);
    model_check(&m);
    cr_assert_eq(m.seqs[C].length, 32);
    model_free(&m, C);
    cr_assert_eq(used_blocks(&m), 0);
    model_destroy(&m);
}

Test(sequences, b78_fork_inside_an_earlier_block) {
    model m;
    model_init(&m, 8, 16, 1);
    enum { A, B };
    model_create(&m, A);
    model_append(&m, A, 40);
    model_share(&m, A, 21, B);
    cr_assert_eq(used_blocks(&m), 3);
    cr_assert_eq(stats_of(m.blocks).shared, 2);
    /* A writes behind what is shared: nothing to copy. B writes into block 1, which A still reads. */
    cr_assert(model_append(&m, A, 10));
    cr_assert_eq(stats_of(m.blocks).copies, 0);
    cr_assert(model_append(&m, B, 10));
    cr_assert_eq(stats_of(m.blocks).copies, 1);
    cr_assert_eq(block_at(&m, A, 0), block_at(&m, B, 0));
    cr_assert_neq(block_at(&m, A, 1), block_at(&m, B, 1));
    model_check(&m);
    model_destroy(&m);
}

Test(sequences, b80_the_first_writer_copies_the_last_one_does_not) {
    model m;
    model_init(&m, 12, 16, 3);
    enum { A, B };
    model_create(&m, A);
    model_append(&m, A, 20);
    model_share(&m, A, 20, B);
    cr_assert(model_append(&m, A, 1));
    cr_assert_eq(stats_of(m.blocks).copies, 3, "one for each group");
    cr_assert(model_append(&m, B, 1));
    cr_assert_eq(stats_of(m.blocks).copies, 3);
    for (int64_t p = 16; p < 20; p++)
        cr_assert_eq(m.seqs[A].tokens[p], m.seqs[B].tokens[p]);
    cr_assert_neq(m.seqs[A].tokens[20], m.seqs[B].tokens[20]);
    cr_assert_eq(stats_of(m.blocks).shared, 3, "block 0 of each group");
    model_check(&m);
    model_destroy(&m);
}

Test(sequences, a_full_shared_block_is_not_copied) {
    model m;
    model_init(&m, 8, 16, 1);
    enum { A, B, C };
    model_create(&m, A);
    model_append(&m, A, 32);
    model_share(&m, A, 32, B);
    model_share(&m, A, 16, C);
    for (int i = A; i <= C; i++)
        cr_assert(model_append(&m, i, 1));
    cr_assert_eq(stats_of(m.blocks).copies, 0);
    cr_assert_eq(used_blocks(&m), 5);
    model_check(&m);
    model_destroy(&m);
}

Test(sequences, truncate_into_a_shared_block_then_append) {
    model m;
    model_init(&m, 8, 16, 1);
    enum { A, B };
    model_create(&m, A);
    model_append(&m, A, 40);
    model_share(&m, A, 40, B);
    model_truncate(&m, A, 20);
    model_check(&m);
    cr_assert(model_append(&m, A, 4));
    cr_assert_eq(stats_of(m.blocks).copies, 1);
    model_check(&m);

    /* To a boundary: the next token begins a block of its own. */
    model_truncate(&m, B, 16);
    cr_assert(model_append(&m, B, 4));
    cr_assert_eq(stats_of(m.blocks).copies, 1);
    model_check(&m);

    /* To nothing and on. */
    model_truncate(&m, A, 0);
    cr_assert(model_append(&m, A, 20));
    model_check(&m);
    model_destroy(&m);
}

Test(sequences, after_the_parent_is_freed_the_child_writes_in_place) {
    model m;
    model_init(&m, 3, 16, 1);
    enum { A, B };
    model_create(&m, A);
    model_append(&m, A, 40);
    model_share(&m, A, 21, B);
    model_free(&m, A);
    cr_assert_eq(used_blocks(&m), 2);
    int32_t last = block_at(&m, B, 1);
    cr_assert(model_append(&m, B, 11));
    cr_assert_eq(stats_of(m.blocks).copies, 0);
    cr_assert_eq(block_at(&m, B, 1), last);
    model_check(&m);
    model_destroy(&m);
}

Test(sequences, share_of_nothing) {
    model m;
    model_init(&m, 3, 16, 1);
    model_create(&m, 0);
    model_share(&m, 0, 0, 1);
    model_append(&m, 0, 20);
    model_share(&m, 0, 0, 2);
    cr_assert_eq(stats_of(m.blocks).references, 2);
    model_free(&m, 0);
    cr_assert(model_append(&m, 1, 20));
    cr_assert(model_append(&m, 2, 16));
    model_check(&m);
    model_destroy(&m);
}

Test(sequences, append_of_nothing_copies_nothing) {
    model m;
    model_init(&m, 3, 16, 1);
    model_create(&m, 0);
    model_append(&m, 0, 20);
    model_share(&m, 0, 20, 1);
    cr_assert(model_append(&m, 1, 0));
    cr_assert_eq(pagedcl_blocks_append(m.blocks, m.seqs[1].handle, 0, NULL, NULL), PAGEDCL_SUCCESS);
    cr_assert_eq(stats_of(m.blocks).copies, 0);
    model_check(&m);
    model_destroy(&m);
}

/* A pool with room for two of three groups, or for all new blocks but not for the copy. */
Test(sequences, out_of_blocks_is_all_or_nothing) {
    model m;
    model_init(&m, 5, 4, 3);
    model_create(&m, 0);
    model_append(&m, 0, 4);
    model_create(&m, 1);
    cr_assert_not(model_append(&m, 1, 1));
    cr_assert_str_eq(pagedcl_last_error(),
                     "append of 1 tokens needs 3 blocks, 2 are available; free or truncate a sequence");
    cr_assert_not(model_append(&m, 0, 1));
    cr_assert_str_eq(pagedcl_last_error(), "a sequence of 5 tokens needs 6 blocks; the pool has 5, whoever else goes");
    model_check(&m);
    model_destroy(&m);

    model_init(&m, 4, 4, 1);
    model_create(&m, 0);
    model_append(&m, 0, 6);
    model_share(&m, 0, 6, 1);
    model_create(&m, 2);
    model_append(&m, 2, 1);
    cr_assert_not(model_append(&m, 1, 3));
    cr_assert_str_eq(pagedcl_last_error(),
                     "append of 3 tokens needs 2 blocks, 1 is available; free or truncate a sequence");
    model_check(&m);
    cr_assert(model_append(&m, 1, 2));
    model_check(&m);
    model_destroy(&m);
}

Test(sequences, refused_arguments) {
    model m;
    model_init(&m, 4, 4, 1);
    pagedcl_blocks *blocks = m.blocks;
    model_create(&m, 0);
    model_append(&m, 0, 6);
    model_share(&m, 0, 6, 1);
    pagedcl_seq seq = m.seqs[0].handle, made = 77;
    size_t num_copies = 77;
    int32_t row[4] = {77, 77, 77, 77};
    int64_t slots[4] = {77}, count = 77;
    pagedcl_block_copy copy;

    cr_assert_eq(pagedcl_blocks_append(blocks, seq, -1, &copy, &num_copies), PAGEDCL_INVALID_ARGUMENT);
    cr_assert_eq(pagedcl_blocks_append(blocks, seq, 1, NULL, &num_copies), PAGEDCL_INVALID_ARGUMENT);
    cr_assert_eq(pagedcl_blocks_append(blocks, seq, 1, &copy, NULL), PAGEDCL_INVALID_ARGUMENT);
    cr_assert_eq(pagedcl_blocks_append(NULL, seq, 1, &copy, &num_copies), PAGEDCL_INVALID_ARGUMENT);
    cr_assert_eq(pagedcl_blocks_needed(blocks, seq, -1, &count), PAGEDCL_INVALID_ARGUMENT);
    cr_assert_eq(pagedcl_blocks_needed(blocks, seq, 1, NULL), PAGEDCL_INVALID_ARGUMENT);
    cr_assert_eq(pagedcl_blocks_share(blocks, seq, -1, &made), PAGEDCL_INVALID_LENGTH);
    cr_assert_eq(pagedcl_blocks_share(blocks, seq, 7, &made), PAGEDCL_INVALID_LENGTH);
    cr_assert_eq(pagedcl_blocks_share(blocks, seq, INT64_MAX, &made), PAGEDCL_INVALID_LENGTH);
    cr_assert_eq(pagedcl_blocks_share(blocks, seq, 1, NULL), PAGEDCL_INVALID_ARGUMENT);
    cr_assert_eq(pagedcl_blocks_fork(blocks, seq, NULL), PAGEDCL_INVALID_ARGUMENT);
    cr_assert_eq(pagedcl_blocks_fork(NULL, seq, &made), PAGEDCL_INVALID_ARGUMENT);
    cr_assert_eq(pagedcl_blocks_truncate(blocks, seq, -1), PAGEDCL_INVALID_LENGTH);
    cr_assert_eq(pagedcl_blocks_truncate(blocks, seq, 7), PAGEDCL_INVALID_LENGTH);
    cr_assert_eq(pagedcl_blocks_seq_create(blocks, NULL), PAGEDCL_INVALID_ARGUMENT);
    cr_assert_eq(pagedcl_blocks_seq_create(NULL, &made), PAGEDCL_INVALID_ARGUMENT);
    cr_assert_eq(pagedcl_blocks_seq_length(blocks, seq, NULL), PAGEDCL_INVALID_ARGUMENT);
    cr_assert_eq(pagedcl_blocks_table(blocks, seq, -1, row, 4, &count), PAGEDCL_INVALID_ARGUMENT);
    cr_assert_eq(pagedcl_blocks_table(blocks, seq, 1, row, 4, &count), PAGEDCL_INVALID_ARGUMENT);
    cr_assert_eq(pagedcl_blocks_table(blocks, seq, 0, row, 1, &count), PAGEDCL_CAPACITY);
    cr_assert_eq(pagedcl_blocks_table(blocks, seq, 0, row, -1, &count), PAGEDCL_CAPACITY);
    cr_assert_eq(pagedcl_blocks_table(blocks, seq, 0, NULL, 4, &count), PAGEDCL_INVALID_ARGUMENT);
    cr_assert_eq(pagedcl_blocks_slots(blocks, seq, 1, 0, 1, slots), PAGEDCL_INVALID_ARGUMENT);
    cr_assert_eq(pagedcl_blocks_slots(blocks, seq, 0, 0, 1, NULL), PAGEDCL_INVALID_ARGUMENT);
    const int64_t outside[][2] = {{-1, 1},        {0, -1},        {0, 7},         {6, 1},
                                  {7, 0},         {INT64_MAX, 1}, {1, INT64_MAX}, {INT64_MAX, INT64_MAX},
                                  {INT64_MIN, 0}, {0, INT64_MIN}};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
        cr_assert_eq(pagedcl_blocks_slots(blocks, seq, 0, outside[i][0], outside[i][1], slots), PAGEDCL_INVALID_LENGTH,
                     "case %zu", i);
    cr_assert_eq(pagedcl_blocks_slots(blocks, seq, 0, 6, 0, NULL), PAGEDCL_SUCCESS);

    cr_assert(made == 77 && num_copies == 77 && count == 77 && slots[0] == 77 && row[0] == 77);
    model_check(&m);
    model_destroy(&m);
}

static void assert_handle_refused(pagedcl_blocks *blocks, pagedcl_seq seq) {
    pagedcl_block_copy copies[MAX_GROUPS];
    pagedcl_seq made = 77;
    size_t num_copies = 77;
    int64_t number = 77;
    int32_t row[1] = {77};
    const pagedcl_status got[] = {
        pagedcl_blocks_share(blocks, seq, 0, &made),
        pagedcl_blocks_fork(blocks, seq, &made),
        pagedcl_blocks_append(blocks, seq, 1, copies, &num_copies),
        pagedcl_blocks_needed(blocks, seq, 1, &number),
        pagedcl_blocks_truncate(blocks, seq, 0),
        pagedcl_blocks_seq_free(blocks, seq),
        pagedcl_blocks_seq_length(blocks, seq, &number),
        pagedcl_blocks_table(blocks, seq, 0, row, 1, &number),
        pagedcl_blocks_slots(blocks, seq, 0, 0, 0, &number),
    };
    for (size_t i = 0; i < sizeof got / sizeof *got; i++)
        cr_assert_eq(got[i], PAGEDCL_INVALID_HANDLE, "function %zu accepted 0x%" PRIx64, i, seq);
    cr_assert(made == 77 && num_copies == 77 && number == 77 && row[0] == 77);
}

Test(sequences, b106_stale_zero_and_invented_handles) {
    model m;
    model_init(&m, 4, 4, 1);
    assert_handle_refused(m.blocks, 0);
    model_create(&m, 0);
    model_append(&m, 0, 1);
    pagedcl_seq alive = m.seqs[0].handle;
    model_create(&m, 1);
    pagedcl_seq stale = m.seqs[1].handle;
    model_free(&m, 1);
    model_create(&m, 1); /* in the entry of the freed one */
    cr_assert_neq(m.seqs[1].handle, stale);
    const pagedcl_seq bad[] = {
        0,          stale,      alive + 1, alive + 2, alive ^ (pagedcl_seq)1 << 32, alive + ((pagedcl_seq)1 << 63),
        UINT32_MAX, UINT64_MAX, 1,
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (bad[i] != m.seqs[1].handle)
            assert_handle_refused(m.blocks, bad[i]);
    model_check(&m);
    model_destroy(&m);
}

Test(sequences, handles_are_never_reused) {
    model m;
    model_init(&m, 1, 4, 1);
    pagedcl_seq last = 0;
    for (int turn = 0; turn < 1000; turn++) {
        model_create(&m, 0);
        cr_assert_gt(m.seqs[0].handle, last);
        last = m.seqs[0].handle;
        model_free(&m, 0);
    }
    cr_assert_eq(m.blocks->num_seqs, 1, "one entry serves them all");

    /* Four thousand million turns later. */
    m.blocks->seqs[0].generation = UINT32_MAX - 1;
    model_create(&m, 0);
    pagedcl_seq spent = m.seqs[0].handle;
    model_free(&m, 0);
    model_create(&m, 0);
    cr_assert_neq((uint32_t)m.seqs[0].handle, (uint32_t)spent);
    cr_assert_neq(m.seqs[0].handle, 0);
    assert_handle_refused(m.blocks, spent);
    model_check(&m);
    model_destroy(&m);
}

Test(sequences, out_of_memory_changes_nothing) {
    pagedcl_blocks_desc desc = PAGEDCL_BLOCKS_DESC_INIT;
    desc.num_blocks = 8;
    desc.block_size = 4;
    pagedcl_status status = PAGEDCL_OUT_OF_MEMORY;
    for (int64_t allowed = 0; status != PAGEDCL_SUCCESS; allowed++) {
        pagedcl_blocks *blocks = NULL;
        allocations_allow(allowed);
        status = pagedcl_blocks_create(&desc, &blocks);
        allocations_allow(-1);
        cr_assert_eq(status, allowed < 5 ? PAGEDCL_OUT_OF_MEMORY : PAGEDCL_SUCCESS);
        cr_assert_eq(blocks == NULL, status != PAGEDCL_SUCCESS);
        pagedcl_blocks_destroy(blocks);
    }

    model m;
    model_init(&m, 16, 4, 3);
    pagedcl_seq made = 77, others[15];
    pagedcl_block_copy copies[3];
    size_t num_copies = 77;
    allocations_allow(0);
    cr_assert_eq(pagedcl_blocks_seq_create(m.blocks, &made), PAGEDCL_OUT_OF_MEMORY);
    allocations_allow(-1);
    model_create(&m, 0);
    model_append(&m, 0, 6);
    model_share(&m, 0, 6, 1);
    model_check(&m);

    /* The table cannot grow, though there are blocks, and a copy would come before. */
    allocations_allow(0);
    cr_assert_eq(pagedcl_blocks_append(m.blocks, m.seqs[1].handle, 4, copies, &num_copies), PAGEDCL_OUT_OF_MEMORY);
    cr_assert_eq(pagedcl_blocks_share(m.blocks, m.seqs[0].handle, 5, &made), PAGEDCL_OUT_OF_MEMORY);
    allocations_allow(-1);
    model_check(&m);

    /* The list of sequences cannot grow; then it can, but there is no memory for the table. */
    for (int i = 0; i < 14; i++)
        OK(pagedcl_blocks_seq_create(m.blocks, &others[i]));
    cr_assert_eq(m.blocks->num_seqs, m.blocks->seq_capacity);
    for (int64_t allowed = 0; allowed < 2; allowed++) {
        allocations_allow(allowed);
        cr_assert_eq(pagedcl_blocks_share(m.blocks, m.seqs[0].handle, 5, &made), PAGEDCL_OUT_OF_MEMORY);
    }
    allocations_allow(-1);
    for (int i = 0; i < 14; i++)
        OK(pagedcl_blocks_seq_free(m.blocks, others[i]));
    cr_assert(made == 77 && num_copies == 77);
    model_check(&m);
    cr_assert(model_append(&m, 1, 4));
    model_check(&m);
    model_destroy(&m);
}

/* Every order in which four members of every small family share, write and end. */
static void next_permutation(int *order) {
    int i = 2, j = 3;
    while (i >= 0 && order[i] > order[i + 1])
        i--;
    if (i < 0)
        return;
    while (order[j] < order[i])
        j--;
    int swap = order[i];
    order[i] = order[j];
    order[j] = swap;
    for (int low = i + 1, high = 3; low < high; low++, high--) {
        swap = order[low];
        order[low] = order[high];
        order[high] = swap;
    }
}

Test(sequences, small_families_in_every_order, .timeout = 300) {
    enum { BLOCK = 2, ORDERS = 24 };
    const int64_t shared[] = {1, BLOCK, BLOCK + 1}; /* of BLOCK + 1 tokens */
    model m;
    model_init(&m, 12, BLOCK, 1);
    for (int tree = 0; tree < 2 * 3 * 27; tree++) {
        const int parent[] = {-1, 0, tree % 2, tree / 2 % 3};
        const int64_t at[] = {0, shared[tree / 6 % 3], shared[tree / 18 % 3], shared[tree / 54]};
        int writes[] = {0, 1, 2, 3};
        for (int w = 0; w < ORDERS; w++, next_permutation(writes)) {
            int ends[] = {0, 1, 2, 3};
            for (int e = 0; e < ORDERS; e++, next_permutation(ends)) {
                model_create(&m, 0);
                model_append(&m, 0, BLOCK + 1);
                for (int i = 1; i < 4; i++) {
                    int64_t most = m.seqs[parent[i]].length;
                    model_share(&m, parent[i], at[i] < most ? at[i] : most, i);
                }
                for (int i = 0; i < 4; i++) {
                    CHECK(model_append(&m, writes[i], 1), "tree %d: %s", tree, pagedcl_last_error());
                    model_check(&m);
                }
                for (int i = 0; i < 4; i++) {
                    model_free(&m, ends[i]);
                    model_check(&m);
                    /* Another one overwrites what was freed. */
                    model_create(&m, 4);
                    CHECK(model_append(&m, 4, stats_of(m.blocks).free * BLOCK), "tree %d", tree);
                    model_check(&m);
                    model_free(&m, 4);
                }
                CHECK(used_blocks(&m) == 0, "tree %d leaves blocks behind", tree);
            }
        }
    }
    model_destroy(&m);
}

/* One random call on the model, whatever it may give. */
static void random_step(model *m, random_state *random) {
    int i = random_below(random, MAX_SEQS), j = random_below(random, MAX_SEQS);
    model_seq *s = &m->seqs[i];
    if (s->handle == 0) {
        if (i == j || m->seqs[j].handle == 0)
            model_create(m, i);
        else
            model_share(m, j, random_below(random, (int32_t)m->seqs[j].length + 1), i);
        return;
    }
    switch (random_below(random, 10)) {
    case 0:
        model_free(m, i);
        break;
    case 1:
        model_truncate(m, i, random_below(random, (int32_t)s->length + 1));
        break;
    case 2:
        if (i != j && m->seqs[j].handle == 0)
            model_share(m, i, s->length, j);
        break;
    case 3:
        model_append(m, i, random_below(random, 4 * m->block_size));
        break;
    default:
        model_append(m, i, random_below(random, 3));
        break;
    }
}

Test(sequences, random_walk, .timeout = 300) {
    enum { STEPS = 40000 };
    /* Pools that run out all the time, and pools that seldom do. */
    static const struct {
        int32_t num_blocks, block_size, num_groups;
    } pools[] = {{1, 1, 1},   {5, 1, 1},  {40, 1, 1}, {4, 2, 1},  {24, 2, 1}, {3, 16, 1},
                 {12, 16, 1}, {10, 1, 3}, {9, 2, 3},  {40, 2, 3}, {9, 16, 3}, {24, 16, 3}};
    const char *chosen = getenv("TEST_SEED");
    uint64_t seed = chosen != NULL ? strtoull(chosen, NULL, 0) : 2026;
    printf("random_walk: TEST_SEED=%" PRIu64 "\n", seed);
    for (size_t p = 0; p < sizeof pools / sizeof *pools; p++) {
        model m;
        random_state random = {seed + p};
        model_init(&m, pools[p].num_blocks, pools[p].block_size, pools[p].num_groups);
        size_t length = strlen(m.name);
        for (int step = 0; step < STEPS; step++) {
            snprintf(m.name + length, sizeof m.name - length, ", seed %" PRIu64 ", step %d", seed, step);
            random_step(&m, &random);
            model_check(&m);
        }
        pagedcl_blocks_stats stats = stats_of(m.blocks);
        cr_assert_gt(stats.out_of_blocks, 0, "%s: the walk never ran out of blocks", m.name);
        cr_assert(stats.copies > 0 || m.block_size == 1 || m.num_blocks < 2 * m.num_groups, "%s: the walk never copied",
                  m.name);
        for (int i = 0; i < MAX_SEQS; i++)
            if (m.seqs[i].handle != 0)
                model_free(&m, i);
        model_check(&m);
        cr_assert_eq(used_blocks(&m), 0);
        model_destroy(&m);
    }
}
