/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element types. A role (Q, KV, OUT) has its dtype in the macro <role>_DTYPE: float32, float16 or bfloat16, and KV also
 * int8, float8_e4m3, float8_e5m2 or int4. Elements are stored as STORAGE(role) and computed on as float. Half storage
 * goes through the core functions vload_half and vstore_half, which need no cl_khr_fp16. The types of 8 and 4 bits have
 * scales, which are pool.h's business: here are their codes alone.
 *
 * Loads and stores take a base and the index of an element, and need no more alignment than an element has, unless told
 * of it. Those of int4, two of which share a byte, need an even index.
 */
#ifndef TYPES_H
#define TYPES_H

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)

#define STORAGE(role) PASTE(storage_, role##_DTYPE)
#define LOAD1(role) PASTE(load1_, role##_DTYPE)
#define LOAD8(role) PASTE(load8_, role##_DTYPE)
#define LOAD16(role) PASTE(load16_, role##_DTYPE)
#define LOAD_UPTO8(role) PASTE(load_upto8_, role##_DTYPE)
#define STORE1(role) PASTE(store1_, role##_DTYPE)
#define STORE8(role) PASTE(store8_, role##_DTYPE)
#define STORE_UPTO8(role) PASTE(store_upto8_, role##_DTYPE)
#define ROUND8(role) PASTE(round8_, role##_DTYPE)
#define ENCODE8(role) PASTE(encode8_, role##_DTYPE) /* of 8 bits: the codes that STORE8 stores */

/* Whether a role has that dtype, for #if. */
#define IS_FLOAT32(role) PASTE(IS_FLOAT32_, role##_DTYPE)
#define IS_BFLOAT16(role) PASTE(IS_BFLOAT16_, role##_DTYPE)
#define IS_FLOAT32_float32 1
#define IS_FLOAT32_float16 0
#define IS_FLOAT32_bfloat16 0
#define IS_BFLOAT16_float32 0
#define IS_BFLOAT16_float16 0
#define IS_BFLOAT16_bfloat16 1

/* Elements d .. d + 7, d below dim, of a row of dim elements that begins at index `at`; zeros behind the row's end.
   dim is a constant: where it is a multiple of 8 this is one load, or one store. */
#define ROW_LOAD8(role, base, at, d, dim)                                                                              \
    ((dim) % 8 == 0 ? LOAD8(role)(base, (at) + (d)) : LOAD_UPTO8(role)(base, (at) + (d), min(8, (dim) - (d))))
#define ROW_STORE8(role, x, base, at, d, dim) STORE_UPTO8(role)(x, base, (at) + (d), (dim) % 8 == 0 ? 8 : (dim) - (d))

typedef float storage_float32;
typedef ushort storage_float16;
typedef ushort storage_bfloat16;
typedef char storage_int8;
typedef uchar storage_float8_e4m3;
typedef uchar storage_float8_e5m2;
typedef uchar storage_int4; /* the even element in the lower half, the odd one in the upper */

/* Units of storage that 8 elements take; element i, i even, begins in unit UNIT(role, i). */
#define UNITS8(role) PASTE(units8_, role##_DTYPE)
#define UNIT(role, i) (UNITS8(role) == 8 ? (i) : (i) >> 1)
#define units8_float32 8
#define units8_float16 8
#define units8_bfloat16 8
#define units8_int8 8
#define units8_float8_e4m3 8
#define units8_float8_e5m2 8
#define units8_int4 4

/* Where the compiler is clang and the CPU an x86 halves are converted by one instruction: PoCL makes a call of
   vload_half, and four instructions of vload_half16. */
#if defined(__F16C__) && defined(__FLT16_MANT_DIG__)
#define HAS_HALF_TYPE 1
#else
#define HAS_HALF_TYPE 0
#endif

static float load1_float32(const __global storage_float32 *base, long i) {
    return base[i];
}
static float load1_float16(const __global storage_float16 *base, long i) {
#if HAS_HALF_TYPE
    return (float)*(const __global _Float16 *)(base + i);
#else
    return vload_half(0, (const __global half *)base + i);
#endif
}
static float load1_bfloat16(const __global storage_bfloat16 *base, long i) {
    return as_float((uint)base[i] << 16);
}
static float8 load8_float32(const __global storage_float32 *base, long i) {
    return vload8(0, base + i);
}
static float8 load8_float16(const __global storage_float16 *base, long i) {
    return vload_half8(0, (const __global half *)base + i);
}
static float8 load8_bfloat16(const __global storage_bfloat16 *base, long i) {
    return as_float8(convert_uint8(vload8(0, base + i)) << 16);
}
static float16 load16_float32(const __global storage_float32 *base, long i) {
    return vload16(0, base + i);
}
#if HAS_HALF_TYPE
typedef _Float16 half_vector16 __attribute__((ext_vector_type(16), aligned(2)));
static float16 load16_float16(const __global storage_float16 *base, long i) {
    return __builtin_convertvector(*(const __global half_vector16 *)(base + i), float16);
}
#else
static float16 load16_float16(const __global storage_float16 *base, long i) {
    return vload_half16(0, (const __global half *)base + i);
}
#endif
static float16 load16_bfloat16(const __global storage_bfloat16 *base, long i) {
    return as_float16(convert_uint16(vload16(0, base + i)) << 16);
}

/* Stores round to nearest even; a NaN stays a NaN. */
static ushort bfloat16_bits1(float x) {
    uint bits = as_uint(x);
    return (ushort)(isnan(x) ? (bits >> 16) | 0x40 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
static ushort8 half_bits8(float8 x) {
    ushort bits[8];
    vstore_half8_rte(x, 0, (__private half *)bits);
    return vload8(0, bits);
}
static ushort8 bfloat16_bits8(float8 x) {
    uint8 bits = as_uint8(x);
    uint8 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return convert_ushort8(select(rounded, (bits >> 16) | 0x40, isnan(x)));
}
static void store1_float32(float x, __global storage_float32 *base, long i) {
    base[i] = x;
}
static void store1_float16(float x, __global storage_float16 *base, long i) {
    vstore_half_rte(x, 0, (__global half *)base + i);
}
static void store1_bfloat16(float x, __global storage_bfloat16 *base, long i) {
    base[i] = bfloat16_bits1(x);
}
static void store8_float32(float8 x, __global storage_float32 *base, long i) {
    vstore8(x, 0, base + i);
}
static void store8_float16(float8 x, __global storage_float16 *base, long i) {
    vstore_half8_rte(x, 0, (__global half *)base + i);
}
static void store8_bfloat16(float8 x, __global storage_bfloat16 *base, long i) {
    vstore8(bfloat16_bits8(x), 0, base + i);
}

/* What a store followed by a load gives. */
static float8 round8_float32(float8 x) {
    return x;
}
static float8 round8_float16(float8 x) {
    ushort bits[8];
    vstore_half8_rte(x, 0, (__private half *)bits);
    return vload_half8(0, (const __private half *)bits);
}
static float8 round8_bfloat16(float8 x) {
    return as_float8(convert_uint8(bfloat16_bits8(x)) << 16);
}

/* 8-bit integers, symmetric: -128 is not used. */
static float load1_int8(const __global storage_int8 *base, long i) {
    return (float)base[i];
}
static float8 load8_int8(const __global storage_int8 *base, long i) {
    return convert_float8(vload8(0, base + i));
}
static float16 load16_int8(const __global storage_int8 *base, long i) {
    return convert_float16(vload16(0, base + i));
}
static float8 round8_int8(float8 x) {
    return clamp(rint(x), -127.0f, 127.0f);
}
static uchar8 encode8_int8(float8 x) {
    return as_uchar8(convert_char8_sat(round8_int8(x)));
}
static void store8_int8(float8 x, __global storage_int8 *base, long i) {
    vstore8(as_char8(encode8_int8(x)), 0, base + i);
}
static void store1_int8(float x, __global storage_int8 *base, long i) {
    base[i] = convert_char_sat(clamp(rint(x), -127.0f, 127.0f));
}

/*
 * 8-bit floats. Moved to the top of a half their bits are that half, with another exponent bias in the case of e4m3,
 * whose all-ones pattern is NaN, not infinity; halves convert exactly, subnormals included, on every device. One more
 * carries into the exponent's highest bit from that pattern alone, and that bit makes it a half's NaN of the same sign.
 */
#define E4M3_MOVED(wide) (((wide) & (ushort)0x80) << (ushort)8 | ((wide) & (ushort)0x7f) << (ushort)7)
#define E4M3_HALF(moved) ((moved) | (((moved) + (ushort)0x80) & (ushort)0x4000))
static float8 halves8(ushort8 bits) {
    ushort halves[8];
    vstore8(bits, 0, halves);
    return vload_half8(0, (const __private half *)halves);
}
#if HAS_HALF_TYPE
static float16 halves16(ushort16 bits) {
    return __builtin_convertvector(__builtin_astype(bits, half_vector16), float16);
}
#else
static float16 halves16(ushort16 bits) {
    return (float16)(halves8(bits.lo), halves8(bits.hi));
}
#endif
static float8 decode8_float8_e4m3(uchar8 x) {
    ushort8 moved = E4M3_MOVED(convert_ushort8(x));
    return halves8(E4M3_HALF(moved)) * 256.0f;
}
static float16 decode16_float8_e4m3(uchar16 x) {
    ushort16 moved = E4M3_MOVED(convert_ushort16(x));
    return halves16(E4M3_HALF(moved)) * 256.0f;
}
static float8 decode8_float8_e5m2(uchar8 x) {
    return halves8(convert_ushort8(x) << (ushort)8);
}
static float16 decode16_float8_e5m2(uchar16 x) {
    return halves16(convert_ushort16(x) << (ushort)8);
}

/* Rounds to nearest even; what is too large becomes the largest, a NaN stays one. mantissa: its bits; bias: of the
   float's exponent against the code's; smallest: normal number; unit: 1 / the smallest subnormal. */
static uchar8 encode8(float8 x, int mantissa, uint bias, float smallest, float unit, uint largest, uint nan) {
    const uint shift = 23 - mantissa;
    float8 magnitude = fabs(x);
    uint8 bits = as_uint8(magnitude);
    uint8 normal = ((bits + ((1u << (shift - 1)) - 1) + (bits >> shift & 1)) >> shift) - (bias << mantissa);
    uint8 subnormal = convert_uint8_rte(fmin(magnitude, smallest) * unit);
    uint8 code = min(select(normal, subnormal, magnitude < smallest), (uint8)largest);
    code = select(code, (uint8)nan, isnan(x));
    return convert_uchar8(code | (as_uint8(x) >> 24 & 0x80));
}
static uchar8 encode8_float8_e4m3(float8 x) {
    return encode8(x, 3, 120, 0.015625f, 512.0f, 0x7e, 0x7f);
}
static uchar8 encode8_float8_e5m2(float8 x) {
    return encode8(x, 2, 112, 6.103515625e-05f, 65536.0f, 0x7b, 0x7e);
}

#define DEFINE_FLOAT8(dtype)                                                                                           \
    static float8 load8_##dtype(const __global storage_##dtype *base, long i) {                                        \
        return decode8_##dtype(vload8(0, base + i));                                                                   \
    }                                                                                                                  \
    static float16 load16_##dtype(const __global storage_##dtype *base, long i) {                                      \
        return decode16_##dtype(vload16(0, base + i));                                                                 \
    }                                                                                                                  \
    static float load1_##dtype(const __global storage_##dtype *base, long i) {                                         \
        return decode8_##dtype((uchar8)base[i]).s0;                                                                    \
    }                                                                                                                  \
    static float8 round8_##dtype(float8 x) {                                                                           \
        return decode8_##dtype(encode8_##dtype(x));                                                                    \
    }                                                                                                                  \
    static void store8_##dtype(float8 x, __global storage_##dtype *base, long i) {                                     \
        vstore8(encode8_##dtype(x), 0, base + i);                                                                      \
    }                                                                                                                  \
    static void store1_##dtype(float x, __global storage_##dtype *base, long i) {                                      \
        base[i] = encode8_##dtype((float8)x).s0;                                                                       \
    }
DEFINE_FLOAT8(float8_e4m3)
DEFINE_FLOAT8(float8_e5m2)

/* The first `count` of eight elements: load, with zeros for the rest, and store. */
#define DEFINE_UPTO8(dtype)                                                                                            \
    static float8 load_upto8_##dtype(const __global storage_##dtype *base, long i, int count) {                        \
        float x[8];                                                                                                    \
        if (count >= 8)                                                                                                \
            return load8_##dtype(base, i);                                                                             \
        for (int j = 0; j < 8; j++)                                                                                    \
            x[j] = j < count ? load1_##dtype(base, i + j) : 0;                                                         \
        return vload8(0, x);                                                                                           \
    }                                                                                                                  \
    static void store_upto8_##dtype(float8 x, __global storage_##dtype *base, long i, int count) {                     \
        float elements[8];                                                                                             \
        if (count >= 8) {                                                                                              \
            store8_##dtype(x, base, i);                                                                                \
            return;                                                                                                    \
        }                                                                                                              \
        vstore8(x, 0, elements);                                                                                       \
        for (int j = 0; j < count; j++)                                                                                \
            store1_##dtype(elements[j], base, i + j);                                                                  \
    }
DEFINE_UPTO8(float32)
DEFINE_UPTO8(float16)
DEFINE_UPTO8(bfloat16)
DEFINE_UPTO8(int8)
DEFINE_UPTO8(float8_e4m3)
DEFINE_UPTO8(float8_e5m2)

/* 4-bit integers, symmetric: -8 is not used. */
static float8 decode8_int4(uchar4 pairs) {
    float8 x;
    x.even = convert_float4(as_char4(pairs << (uchar)4) >> (char)4);
    x.odd = convert_float4(as_char4(pairs) >> (char)4);
    return x;
}
static float8 round8_int4(float8 x) {
    return clamp(rint(x), -7.0f, 7.0f);
}
static uchar4 encode8_int4(float8 x) {
    char8 code = convert_char8_sat(round8_int4(x));
    return (as_uchar4(code.even) & (uchar)15) | as_uchar4(code.odd) << (uchar)4;
}
static float8 load8_int4(const __global storage_int4 *base, long i) {
    return decode8_int4(vload4(0, base + (i >> 1)));
}
static float16 load16_int4(const __global storage_int4 *base, long i) {
    uchar8 pairs = vload8(0, base + (i >> 1));
    uchar16 codes;
    codes.even = pairs & (uchar)15;
    codes.odd = pairs >> (uchar)4;
    /* Extends the sign: bytes have no shift that does. */
    return convert_float16(as_char16((codes ^ (uchar)8) - (uchar)8));
}
static float8 load_upto8_int4(const __global storage_int4 *base, long i, int count) {
    uchar pairs[4];
    if (count >= 8)
        return load8_int4(base, i);
    for (int j = 0; j < 4; j++)
        pairs[j] = 2 * j < count ? base[(i >> 1) + j] : 0;
    /* The second half of an odd row's last byte may be anything. */
    return select((float8)0, decode8_int4(vload4(0, pairs)), count > (int8)(0, 1, 2, 3, 4, 5, 6, 7));
}
/* Behind the end of a row x has zeros: so has the second half of an odd row's last byte. */
static void store_upto8_int4(float8 x, __global storage_int4 *base, long i, int count) {
    uchar pairs[4];
    vstore4(encode8_int4(x), 0, pairs);
    if (count >= 8)
        vstore4(encode8_int4(x), 0, base + (i >> 1));
    for (int j = 0; count < 8 && 2 * j < count; j++)
        base[(i >> 1) + j] = pairs[j];
}

/* 8 elements as they are stored, in words: what they are, and how many of them are moved at once. With `aligned`, which
   says that they lie at a multiple of their size, all 8 are one load, or one store. NVIDIA's compiler cannot know that of
   vload8's elements, and moves them one by one. */
#define RAW8(role) PASTE(RAW_, role##_DTYPE)
#define DECODE_RAW8(role) PASTE(decode_raw8_, role##_DTYPE)
#define ENCODE_RAW8(role) PASTE(encode_raw8_, role##_DTYPE)
#define LOAD_RAW8(role) PASTE(load_raw8_, role##_DTYPE)
#define STORE_RAW8(role) PASTE(store_raw8_, role##_DTYPE)
#define RAW_float32 uint8
#define RAW_float16 uint4
#define RAW_bfloat16 uint4
#define RAW_int8 uint2
#define RAW_float8_e4m3 uint2
#define RAW_float8_e5m2 uint2
#define RAW_int4 uint

/* 1: vectors are moved at the same speed wherever they lie, as by CPUs. */
#ifndef HAS_UNALIGNED
#if defined(TIER_CPU)
#define HAS_UNALIGNED TIER_CPU
#else
#define HAS_UNALIGNED 0
#endif
#endif

/* Whether that holds for all 8 elements from a multiple of 8 on in rows at `base`, whose offset and strides, or'ed, are
   `elements`. */
#define IS_RAW8_ALIGNED(role, base, elements) ((elements) % 8 == 0 && (size_t)(base) % sizeof(RAW8(role)) == 0)

/* As ROW_LOAD8 and ROW_STORE8: what is stored, and what it is. */
#define ROW_LOAD_RAW8(role, base, at, d, dim, aligned)                                                                 \
    LOAD_RAW8(role)(base, (at) + (d), (dim) % 8 == 0 ? 8 : (dim) - (d), aligned)
#define ROW_STORE_RAW8(role, x, base, at, d, dim, aligned)                                                             \
    STORE_RAW8(role)(x, base, (at) + (d), (dim) % 8 == 0 ? 8 : (dim) - (d), aligned)
#define ROW_LOAD_ALIGNED8(role, base, at, d, dim, aligned)                                                             \
    (HAS_UNALIGNED ? ROW_LOAD8(role, base, at, d, dim)                                                                 \
                   : DECODE_RAW8(role)(ROW_LOAD_RAW8(role, base, at, d, dim, aligned)))
#define ROW_STORE_ALIGNED8(role, x, base, at, d, dim, aligned)                                                         \
    do {                                                                                                               \
        if (HAS_UNALIGNED)                                                                                             \
            ROW_STORE8(role, x, base, at, d, dim);                                                                     \
        else                                                                                                           \
            ROW_STORE_RAW8(role, ENCODE_RAW8(role)(x), base, at, d, dim, aligned);                                     \
    } while (0)

/* vector: of the units of storage that 8 elements take. The first `count` elements are moved; a load has zeros behind
   them, but for the second half of an odd row's last byte. What is not aligned is read unit by unit, volatile: of two
   loads from one place compilers otherwise make one, with the lesser alignment. */
#define DEFINE_RAW8(dtype, vector, decode, encode)                                                                     \
    static float8 decode_raw8_##dtype(RAW_##dtype x) {                                                                 \
        return decode;                                                                                                 \
    }                                                                                                                  \
    static RAW_##dtype encode_raw8_##dtype(float8 x) {                                                                 \
        return encode;                                                                                                 \
    }                                                                                                                  \
    static RAW_##dtype load_raw8_##dtype(const __global storage_##dtype *base, long i, int count, bool aligned) {      \
        const __global storage_##dtype *from = base + (units8_##dtype == 8 ? i : i >> 1);                              \
        storage_##dtype units[units8_##dtype];                                                                         \
        if (count >= 8 && aligned)                                                                                     \
            return *(const __global RAW_##dtype *)from;                                                                \
        if (count >= 8 && HAS_UNALIGNED)                                                                               \
            return PASTE(as_, RAW_##dtype)(PASTE(vload, units8_##dtype)(0, from));                                     \
        for (int j = 0; j < units8_##dtype; j++)                                                                       \
            units[j] = j * (8 / units8_##dtype) < count ? ((const volatile __global storage_##dtype *)from)[j] : 0;    \
        return PASTE(as_, RAW_##dtype)(PASTE(vload, units8_##dtype)(0, units));                                        \
    }                                                                                                                  \
    static void store_raw8_##dtype(RAW_##dtype x, __global storage_##dtype *base, long i, int count, bool aligned) {   \
        __global storage_##dtype *to = base + (units8_##dtype == 8 ? i : i >> 1);                                      \
        storage_##dtype units[units8_##dtype];                                                                         \
        if (count >= 8 && aligned) {                                                                                   \
            *(__global RAW_##dtype *)to = x;                                                                           \
            return;                                                                                                    \
        }                                                                                                              \
        if (count >= 8 && HAS_UNALIGNED) {                                                                             \
            PASTE(vstore, units8_##dtype)(as_##vector(x), 0, to);                                                      \
            return;                                                                                                    \
        }                                                                                                              \
        PASTE(vstore, units8_##dtype)(as_##vector(x), 0, units);                                                       \
        for (int j = 0; j < units8_##dtype; j++)                                                                       \
            if (j * (8 / units8_##dtype) < count)                                                                      \
                to[j] = units[j];                                                                                      \
    }
DEFINE_RAW8(float32, float8, as_float8(x), as_uint8(x))
DEFINE_RAW8(float16, ushort8, halves8(as_ushort8(x)), as_uint4(half_bits8(x)))
DEFINE_RAW8(bfloat16, ushort8, as_float8(convert_uint8(as_ushort8(x)) << 16), as_uint4(bfloat16_bits8(x)))
DEFINE_RAW8(int8, char8, convert_float8(as_char8(x)), as_uint2(encode8_int8(x)))
DEFINE_RAW8(float8_e4m3, uchar8, decode8_float8_e4m3(as_uchar8(x)), as_uint2(encode8_float8_e4m3(x)))
DEFINE_RAW8(float8_e5m2, uchar8, decode8_float8_e5m2(as_uchar8(x)), as_uint2(encode8_float8_e5m2(x)))
DEFINE_RAW8(int4, uchar4, decode8_int4(as_uchar4(x)), as_uint(encode8_int4(x)))

/* Of the types that have a scale: the largest value, how many elements along a row share a scale when scales are stored
   (no row has 1024), and what type that scale has. */
#define LARGEST(role) PASTE(largest_, role##_DTYPE)
#define largest_int8 127.0f
#define largest_float8_e4m3 448.0f
#define largest_float8_e5m2 57344.0f
#define largest_int4 7.0f
#define SCALE_GROUP(role) PASTE(scale_group_, role##_DTYPE)
#define scale_group_int8 1024
#define scale_group_float8_e4m3 1024
#define scale_group_float8_e5m2 1024
#define scale_group_int4 32
#define SCALE_DTYPE_OF(role) PASTE(scale_dtype_, role##_DTYPE)
#define scale_dtype_int8 float32
#define scale_dtype_float8_e4m3 float32
#define scale_dtype_float8_e5m2 float32
#define scale_dtype_int4 float16

/* The least number of a scale's type that is not below a positive x, or the largest. */
#define SCALE_UP(role) PASTE(scale_up_, role##_DTYPE)
static float scale_up_float32(float x) {
    return x;
}
static float scale_up_float16(float x) {
    ushort bits[1];
    float wanted = fmin(x, 65504.0f);
    vstore_half_rte(wanted, 0, (__private half *)bits);
    bits[0] += vload_half(0, (const __private half *)bits) < wanted ? 1 : 0;
    return vload_half(0, (const __private half *)bits);
}

#endif
