/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels' arithmetic of addresses, on the host: pools that no machine of the tests could hold. */
#include "lib/address.h"

#include <criterion/criterion.h>

/* B15: blocks of 276,480 elements, on both sides of 2^31 elements. */
Test(address, block_times_stride_is_64_bit) {
    enum { STRIDE = 480 * 9 * 64 };
    const struct {
        int block;
        int64_t want;
    } cases[] = {{7766, 2147143680}, {7767, 2147420160}, {7768, 2147696640}, {7778, 2150461440}, {15536, 4295393280}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        cr_assert_eq(address_row(cases[i].block, 30, 0, 0, STRIDE, 576, 64), cases[i].want, "block %d", cases[i].block);
    cr_assert_eq(address_row(7768, 30, 479, 8, STRIDE, 576, 64), 2147696640 + 479 * 576 + 8 * 64);
}

/* B17: ids that a narrower type would fold. */
Test(address, block_ids_keep_all_their_bits) {
    const int blocks[] = {65535, 65536, 65537, 1 << 20, (1 << 30) - 1};
    for (size_t i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++) {
        cr_assert_eq(address_row(blocks[i], 30, 0, 0, 16384, 1024, 128), blocks[i] * INT64_C(16384));
        cr_assert_eq(address_segment(blocks[i], 30), 0);
    }
}

/* Strides of a caller's pool may be anything: each product is 64-bit, not only that of the block. */
Test(address, tokens_and_heads_are_64_bit) {
    cr_assert_eq(address_row(0, 30, 3, 0, 0, INT64_C(1) << 31, 0), INT64_C(3) << 31);
    cr_assert_eq(address_row(0, 30, 0, 5, 0, 0, INT64_C(1) << 40), INT64_C(5) << 40);
    cr_assert_eq(address_row(1, 30, 1, 1, INT64_C(1) << 50, INT64_C(1) << 45, INT64_C(1) << 41),
                 (INT64_C(1) << 50) + (INT64_C(1) << 45) + (INT64_C(1) << 41));
}

/* A block is counted from its segment's first. */
Test(address, segments_begin_at_zero) {
    for (int shift = 0; shift < 4; shift++)
        for (int block = 0; block < 40; block++) {
            cr_assert_eq(address_segment(block, shift), block / (1 << shift));
            cr_assert_eq(address_row(block, shift, 2, 0, 1000, 10, 1), block % (1 << shift) * 1000 + 20);
        }
}
