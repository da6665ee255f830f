/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the benchmark runs beside the library: it fills tensors, empties caches, and finds the device's roofs.
 * CONTIGUOUS 1: each work-item has a stretch of memory of its own, as a CPU's core likes it; 0: neighbours read
 * neighbours, as a GPU's. FMA_WIDTH: floats in a vector. WITH_NV_MMA 1: the program is matrix_multiply alone, in NVIDIA's PTX.
 */
#if !defined(CONTIGUOUS) || !defined(FMA_WIDTH) || !defined(WITH_NV_MMA)
#error "CONTIGUOUS, FMA_WIDTH and WITH_NV_MMA must be defined"
#endif

#if !WITH_NV_MMA

#ifdef cl_khr_fp16
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#endif

#include "value.h"

/*
 * Rows of columns, contiguous from element `first`, `count` elements in all: scale times the value of each. dtype: 1
 * float32, 2 float16, 3 bfloat16, which must hold it exactly. One work-item an element.
 */
__kernel void fill(__global uint *out, const ulong first, const ulong count, const int dtype, const uint seed,
                   const ulong first_row, const ulong columns, const int bits, const float scale) {
    const ulong place = get_global_id(0), row = place / columns, i = first + place;
    if (place >= count)
        return;
    const float value = scale * value_at(value_key(seed, first_row + row), (uint)(place - row * columns), bits);
    if (dtype == 1)
        ((__global float *)out)[i] = value;
    else if (dtype == 2)
        vstore_half(value, i, (__global half *)out);
    else
        ((__global ushort *)out)[i] = (ushort)(as_uint(value) >> 16);
}

#if CONTIGUOUS
typedef uint16 vector;
#define BEGIN(count) (get_global_id(0) * ((count) / get_global_size(0)))
#define END(count) ((get_global_id(0) + 1) * ((count) / get_global_size(0)))
#define STEP 1
#else
typedef uint4 vector;
#define BEGIN(count) get_global_id(0)
#define END(count) (count)
#define STEP get_global_size(0)
#endif

/* Of all three, count is in vectors, a multiple of four times the global size. */

/* Four independent loads are on their way at once. */
__kernel void read_memory(__global const vector *in, const ulong count, __global uint *out) {
    vector a = 0, b = 0, c = 0, d = 0;
    for (ulong i = BEGIN(count); i < END(count); i += 4 * STEP) {
        a ^= in[i];
        b ^= in[i + STEP];
        c ^= in[i + 2 * STEP];
        d ^= in[i + 3 * STEP];
    }
    const vector all = a ^ b ^ c ^ d;
#if CONTIGUOUS
    const uint8 half_of_all = all.lo ^ all.hi;
    const uint4 rest = half_of_all.lo ^ half_of_all.hi;
#else
    const uint4 rest = all;
#endif
    if ((rest.x ^ rest.y ^ rest.z ^ rest.w) == 0x9e3779b9u) /* no compiler knows that it rarely is */
        out[0] = 1;
}

__kernel void write_memory(__global vector *out, const ulong count, const uint seed) {
    for (ulong i = BEGIN(count); i < END(count); i += 4 * STEP) {
        const vector value = (vector)((uint)i ^ seed);
        out[i] = value;
        out[i + STEP] = value + 1;
        out[i + 2 * STEP] = value + 2;
        out[i + 3 * STEP] = value + 3;
    }
}

__kernel void copy_memory(__global const vector *in, const ulong count, __global vector *out) {
    for (ulong i = BEGIN(count); i < END(count); i += 4 * STEP) {
        const vector a = in[i], b = in[i + STEP], c = in[i + 2 * STEP], d = in[i + 3 * STEP];
        out[i] = a;
        out[i + STEP] = b;
        out[i + 2 * STEP] = c;
        out[i + 3 * STEP] = d;
    }
}

#define WIDE_(type, width) type##width
#define WIDE(type, width) WIDE_(type, width)

/* Compilers fuse it, where the device can; PoCL's mad is a product and a sum, at half the rate. */
#pragma OPENCL FP_CONTRACT ON
#define MULTIPLY_ADD(a, x, y) ((a) * (x) + (y))

/* Ten chains of multiply-adds that do not wait for each other: 20 * FMA_WIDTH operations a round and work-item. */
#define DEFINE_MULTIPLY_ADD(name, type, multiply_add)                                        \
    __kernel void name(__global float *out, const int rounds, const float start) {           \
        typedef WIDE(type, FMA_WIDTH) wide;                                                  \
        const wide x = (wide)(type)0.999f, y = (wide)(type)start;                            \
        wide a = (wide)(type)get_global_id(0), b = a + y, c = b + y, d = c + y, e = d + y;   \
        wide f = e + y, g = f + y, h = g + y, i = h + y, j = i + y;                          \
        for (int round = 0; round < rounds; round++) {                                       \
            a = multiply_add(a, x, y), b = multiply_add(b, x, y), c = multiply_add(c, x, y); \
            d = multiply_add(d, x, y), e = multiply_add(e, x, y), f = multiply_add(f, x, y); \
            g = multiply_add(g, x, y), h = multiply_add(h, x, y), i = multiply_add(i, x, y); \
            j = multiply_add(j, x, y);                                                       \
        }                                                                                    \
        const wide sum = a + b + c + d + e + f + g + h + i + j;                              \
        type single[FMA_WIDTH];                                                              \
        WIDE(vstore, FMA_WIDTH)(sum, 0, single);                                             \
        for (int k = 1; k < FMA_WIDTH; k++)                                                  \
            single[0] += single[k];                                                          \
        if (single[0] == (type)1234.5f)                                                      \
            out[0] = 1;                                                                      \
    }

DEFINE_MULTIPLY_ADD(multiply_add, float, MULTIPLY_ADD)
#ifdef cl_khr_fp16
DEFINE_MULTIPLY_ADD(multiply_add_half, half, fma)
#endif

/* As little as a kernel can do. One work-item. */
__kernel void nothing(__global uint *out) {
    out[0] = 0;
}

#else

/*
 * float16 matrices with float32 sums. Each sub-group of 32 multiplies eight pairs of 16 x 16 and 16 x 8 a round: 32768
 * operations.
 */
__kernel void matrix_multiply(__global float *out, const int rounds, const float start) {
    const uint x = as_uint(start), y = x ^ (uint)get_local_id(0);
    float sums[32];
#pragma unroll
    for (int i = 0; i < 32; i++)
        sums[i] = start;
    for (int round = 0; round < rounds; round++) {
#pragma unroll
        for (int i = 0; i < 32; i += 4)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                         "{%0,%1,%2,%3},{%4,%5,%4,%5},{%4,%5},{%0,%1,%2,%3};"
                         : "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
                         : "r"(x), "r"(y));
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 32; i++)
        sum += sums[i];
    if (sum == 1234.5f)
        out[0] = 1;
}

#endif
