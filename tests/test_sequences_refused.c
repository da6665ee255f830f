/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments and handles that no sequence has, and allocations that fail: each is a status, and nothing changes. */
#include "blocks.h"
#include "support/allocations.h"
#include "support/sequence_model.h"

#include <inttypes.h>

Test(sequences_refused, refused_arguments) {
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

Test(sequences_refused, b106_stale_zero_and_invented_handles) {
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

Test(sequences_refused, handles_are_never_reused) {
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

Test(sequences_refused, out_of_memory_changes_nothing) {
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
