/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences, sharing and copy-on-write, case by case. Tests named by b and a number are faults that users have met. */
#include "support/sequence_model.h"

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
    cr_assert_eq(model_stats(&m).used, 1);
    model_append(&m, 0, 1);
    cr_assert_eq(model_stats(&m).used, 2);
    cr_assert_neq(model_block(&m, 0, 0), model_block(&m, 0, 1));
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
    cr_assert_eq(model_stats(&m).free, 4);
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
    cr_assert_eq(model_stats(&m).used, 0);
    model_destroy(&m);
}

Test(sequences, b78_fork_inside_an_earlier_block) {
    model m;
    model_init(&m, 8, 16, 1);
    enum { A, B };
    model_create(&m, A);
    model_append(&m, A, 40);
    model_share(&m, A, 21, B);
    cr_assert_eq(model_stats(&m).used, 3);
    cr_assert_eq(model_stats(&m).shared, 2);
    /* A writes behind what is shared: nothing to copy. B writes into block 1, which A still reads. */
    cr_assert(model_append(&m, A, 10));
    cr_assert_eq(model_stats(&m).copies, 0);
    cr_assert(model_append(&m, B, 10));
    cr_assert_eq(model_stats(&m).copies, 1);
    cr_assert_eq(model_block(&m, A, 0), model_block(&m, B, 0));
    cr_assert_neq(model_block(&m, A, 1), model_block(&m, B, 1));
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
    cr_assert_eq(model_stats(&m).copies, 3, "one for each group");
    cr_assert(model_append(&m, B, 1));
    cr_assert_eq(model_stats(&m).copies, 3);
    for (int64_t p = 16; p < 20; p++)
        cr_assert_eq(m.seqs[A].tokens[p], m.seqs[B].tokens[p]);
    cr_assert_neq(m.seqs[A].tokens[20], m.seqs[B].tokens[20]);
    cr_assert_eq(model_stats(&m).shared, 3, "block 0 of each group");
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
    cr_assert_eq(model_stats(&m).copies, 0);
    cr_assert_eq(model_stats(&m).used, 5);
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
    cr_assert_eq(model_stats(&m).copies, 1);
    model_check(&m);

    /* To a boundary: the next token begins a block of its own. */
    model_truncate(&m, B, 16);
    cr_assert(model_append(&m, B, 4));
    cr_assert_eq(model_stats(&m).copies, 1);
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
    cr_assert_eq(model_stats(&m).used, 2);
    int32_t last = model_block(&m, B, 1);
    cr_assert(model_append(&m, B, 11));
    cr_assert_eq(model_stats(&m).copies, 0);
    cr_assert_eq(model_block(&m, B, 1), last);
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
    cr_assert_eq(model_stats(&m).references, 2);
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
    cr_assert_eq(model_stats(&m).copies, 0);
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
