/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Instructions of NVIDIA's GPUs of compute capability 9.0, in the words of the PTX ISA: matrix products of a
 * warpgroup, which is 4 warps from a multiple of 4 on. The driver compiles OpenCL C for
 * a target that has none of the products: they are comments for it, behind HOPPER, until runtime/ptx.c shows them to
 * the assembler.
 *
 * A warpgroup has 64 rows of a product, each of its warps 16. The accumulators of warp w, lane l, columns 8 j ..: 4
 * floats as of mma() in nv/warp.h. A product runs on while other instructions do: what it reads and writes is touched
 * after a wait only. Local memory that was written by other instructions it sees after fence_async().
 */
#ifndef NV_WARPGROUP_H
#define NV_WARPGROUP_H

#include "nv/mbarrier.h"

#define HOPPER "//@SM90A "

#define WARPGROUP 128

/* Lists of accumulators of products with 16 .. 256 columns, which are the first operands of an instruction. */
#define REGISTERS_16 "%0,%1,%2,%3,%4,%5,%6,%7"
#define REGISTERS_32 REGISTERS_16 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define REGISTERS_48 REGISTERS_32 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define REGISTERS_64 REGISTERS_48 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define REGISTERS_80 REGISTERS_64 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define REGISTERS_96 REGISTERS_80 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define REGISTERS_112 REGISTERS_96 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define REGISTERS_128 REGISTERS_112 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define REGISTERS_144 REGISTERS_128 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define REGISTERS_160 REGISTERS_144 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define REGISTERS_176 REGISTERS_160 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define REGISTERS_192 REGISTERS_176 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define REGISTERS_208 REGISTERS_192 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define REGISTERS_224 REGISTERS_208 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define REGISTERS_240 REGISTERS_224 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define REGISTERS_256 REGISTERS_240 ",%120,%121,%122,%123,%124,%125,%126,%127"

#define OPERANDS_8(c, i)                                                                                    \
    "+f"((c)[i]), "+f"((c)[i + 1]), "+f"((c)[i + 2]), "+f"((c)[i + 3]), "+f"((c)[i + 4]), "+f"((c)[i + 5]), \
        "+f"((c)[i + 6]), "+f"((c)[i + 7])
#define OPERANDS_16(c) OPERANDS_8(c, 0)
#define OPERANDS_32(c) OPERANDS_16(c), OPERANDS_8(c, 8)
#define OPERANDS_48(c) OPERANDS_32(c), OPERANDS_8(c, 16)
#define OPERANDS_64(c) OPERANDS_48(c), OPERANDS_8(c, 24)
#define OPERANDS_80(c) OPERANDS_64(c), OPERANDS_8(c, 32)
#define OPERANDS_96(c) OPERANDS_80(c), OPERANDS_8(c, 40)
#define OPERANDS_112(c) OPERANDS_96(c), OPERANDS_8(c, 48)
#define OPERANDS_128(c) OPERANDS_112(c), OPERANDS_8(c, 56)
#define OPERANDS_144(c) OPERANDS_128(c), OPERANDS_8(c, 64)
#define OPERANDS_160(c) OPERANDS_144(c), OPERANDS_8(c, 72)
#define OPERANDS_176(c) OPERANDS_160(c), OPERANDS_8(c, 80)
#define OPERANDS_192(c) OPERANDS_176(c), OPERANDS_8(c, 88)
#define OPERANDS_208(c) OPERANDS_192(c), OPERANDS_8(c, 96)
#define OPERANDS_224(c) OPERANDS_208(c), OPERANDS_8(c, 104)
#define OPERANDS_240(c) OPERANDS_224(c), OPERANDS_8(c, 112)
#define OPERANDS_256(c) OPERANDS_240(c), OPERANDS_8(c, 120)

#define REGISTERS(columns) PASTE(REGISTERS_, columns)
#define OPERANDS(columns) PASTE(OPERANDS_, columns)
#define STRING_OF(x) #x
#define STRING(x) STRING_OF(x)

#define WGMMA(columns) "wgmma.mma_async.sync.aligned.m64n" STRING(columns) "k16.f32." PTX(KV) "." PTX(KV) " {"

/*
 * c = a * b^T, or c += where `add`: c float[columns / 2], a 64 rows and b `columns` rows of 16 elements, both by
 * descriptors. columns is a number, a multiple of 16 up to 256.
 */
#define PRODUCT(columns, c, a, b, add)                                                  \
    asm volatile(HOPPER "{ .reg .pred add; setp.ne.s32 add, %[ADD], 0; " WGMMA(columns) \
                     REGISTERS(columns) "}, %[A], %[B], add, 1, 1, 0, 0; }"             \
                 : OPERANDS(columns)(c)                                                 \
                 : [A] "l"(a), [B] "l"(b), [ADD] "r"(add))

/* c += a * b: a a fragment as of mma(), b 16 rows of `columns` elements. */
#define PRODUCT_OF_REGISTERS(columns, c, a, b)                                                              \
    asm volatile(HOPPER WGMMA(columns) REGISTERS(columns) "}, {%[A0],%[A1],%[A2],%[A3]}, %[B], 1, 1, 1, 1;" \
                 : OPERANDS(columns)(c)                                                                     \
                 : [A0] "r"((a)[0]), [A1] "r"((a)[1]), [A2] "r"((a)[2]), [A3] "r"((a)[3]), [B] "l"(b))

/* The same of 64 rows of 16 elements of a matrix. */
#define PRODUCT_OF_ROWS(columns, c, a, b)                                                 \
    asm volatile(HOPPER WGMMA(columns) REGISTERS(columns) "}, %[A], %[B], 1, 1, 1, 0, 1;" \
                 : OPERANDS(columns)(c)                                                   \
                 : [A] "l"(a), [B] "l"(b))

/* Before products whose accumulators other instructions have written. */
static void products_begin(void) {
    asm volatile(HOPPER "wgmma.fence.sync.aligned;" : : : "memory");
}

/* The products since the last call are one group. */
static void products_commit(void) {
    asm volatile(HOPPER "wgmma.commit_group.sync.aligned;" : : : "memory");
}

/* Waits for all groups but the last `pending`, a number, whose last accumulators are c. */
#define PRODUCTS_WAIT(columns, c, pending) \
    asm volatile(HOPPER "wgmma.wait_group.sync.aligned " #pending ";" : OPERANDS(columns)(c) : : "memory")

/* Waits for all groups but the last; what they accumulate is not to be touched before PRODUCTS_WAIT. */
static void products_wait_all_but_last(void) {
    asm volatile(HOPPER "wgmma.wait_group.sync.aligned 1;" : : : "memory");
}

/*
 * A matrix in local memory: rows of 64 elements, 128 bytes, of which row r has its 16-byte piece i where piece i ^ r %
 * 8 would be; every 8 rows begin at a multiple of 1024, `rows_of_8` further than those before. Where rows are what is
 * summed up over, the next 64 columns are `columns_of_64` bytes further.
 */
static ulong matrix_at(uint address, uint columns_of_64, uint rows_of_8) {
    const uint swizzle_128 = 1u << 30;
    return as_ulong((uint2)(address >> 4 | columns_of_64 >> 4 << 16, rows_of_8 >> 4 | swizzle_128));
}

/* The same matrix, `bytes` further. */
static ulong matrix_further(ulong matrix, uint bytes) {
    const uint2 words = as_uint2(matrix);
    return as_ulong((uint2)(words.x + (bytes >> 4), words.y));
}

/* The same, added up just there: of many products compilers would add up all beforehand, and run out of registers. */
static ulong matrix_further_here(ulong matrix, uint bytes) {
    ulong further;
    asm volatile("add.s64 %0, %1, %2;" : "=l"(further) : "l"(matrix), "l"((ulong)(bytes >> 4)));
    return further;
}

/* From now on the warps of a warpgroup have that many registers, a multiple of 8: fewer, or more, for which others
   have to have gone down. */
#define REGISTERS_DOWN_TO(count) asm volatile(HOPPER "setmaxnreg.dec.sync.aligned.u32 " STRING(count) ";")
#define REGISTERS_UP_TO(count) asm volatile(HOPPER "setmaxnreg.inc.sync.aligned.u32 " STRING(count) ";")

/* Stores 4 matrices of 8 x 8 elements, of which lane l has columns 2 (l % 4) and the next of row l / 4, to local
   memory: row l % 8 of matrix l / 8 to the address that lane l names, aligned to 16. */
static void store_matrices(uint address, const uint *words) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};"
                 :
                 : "r"(address), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
}

/* A barrier of a warpgroup, whose number is `id`, above 0. */
static void warpgroup_barrier(int id) {
    asm volatile("barrier.cta.sync.aligned %0, %1;" : : "r"(id), "n"(WARPGROUP) : "memory");
}

/* The same; whether some work-item of the warpgroup has x. */
static bool warpgroup_any(int id, bool x) {
    uint any;
    asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; barrier.cta.red.or.aligned.pred q, %2, %3, p; "
                 "selp.u32 %0, 1, 0, q; }"
                 : "=r"(any)
                 : "r"((uint)x), "r"(id), "n"(WARPGROUP)
                 : "memory");
    return any != 0;
}

/* A turn of two warpgroups at the barrier `id`: one waits for it, the other passes it on, and goes on. */
static void turn_wait(int id) {
    asm volatile("barrier.cta.sync.aligned %0, %1;" : : "r"(id), "n"(2 * WARPGROUP) : "memory");
}
static void turn_pass(int id) {
    asm volatile("barrier.cta.arrive.aligned %0, %1;" : : "r"(id), "n"(2 * WARPGROUP) : "memory");
}

#endif
