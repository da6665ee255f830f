/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element types. A role (Q, KV, OUT) has its dtype in the macro <role>_DTYPE: float32, float16 or bfloat16. Elements
 * are stored as STORAGE(role) and computed on as float. Half storage goes through the core functions vload_half and
 * vstore_half, which need no cl_khr_fp16.
 */
#ifndef TYPES_H
#define TYPES_H

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)

#define STORAGE(role) PASTE(storage_, role##_DTYPE)
#define LOAD8(role) PASTE(load8_, role##_DTYPE)
#define LOAD16(role) PASTE(load16_, role##_DTYPE)
#define STORE8(role) PASTE(store8_, role##_DTYPE)
#define STORE1(role) PASTE(store1_, role##_DTYPE)
#define ROUND8(role) PASTE(round8_, role##_DTYPE)

typedef float storage_float32;
typedef ushort storage_float16;
typedef ushort storage_bfloat16;

/* Eight or sixteen elements from p on; alignment to one element is enough. */
static float8 load8_float32(const __global storage_float32 *p) {
    return vload8(0, p);
}
static float8 load8_float16(const __global storage_float16 *p) {
    return vload_half8(0, (const __global half *)p);
}
static float8 load8_bfloat16(const __global storage_bfloat16 *p) {
    return as_float8(convert_uint8(vload8(0, p)) << 16);
}
static float16 load16_float32(const __global storage_float32 *p) {
    return vload16(0, p);
}
static float16 load16_float16(const __global storage_float16 *p) {
    return vload_half16(0, (const __global half *)p);
}
static float16 load16_bfloat16(const __global storage_bfloat16 *p) {
    return as_float16(convert_uint16(vload16(0, p)) << 16);
}

/* Stores round to nearest even; a NaN stays a NaN. */
static ushort8 bfloat16_bits8(float8 x) {
    uint8 bits = as_uint8(x);
    uint8 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return convert_ushort8(select(rounded, (bits >> 16) | 0x40, isnan(x)));
}
static ushort bfloat16_bits1(float x) {
    uint bits = as_uint(x);
    return (ushort)(isnan(x) ? (bits >> 16) | 0x40 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
static void store8_float32(float8 x, __global storage_float32 *p) {
    vstore8(x, 0, p);
}
static void store8_float16(float8 x, __global storage_float16 *p) {
    vstore_half8_rte(x, 0, (__global half *)p);
}
static void store8_bfloat16(float8 x, __global storage_bfloat16 *p) {
    vstore8(bfloat16_bits8(x), 0, p);
}
static void store1_float32(float x, __global storage_float32 *p) {
    *p = x;
}
static void store1_float16(float x, __global storage_float16 *p) {
    vstore_half_rte(x, 0, (__global half *)p);
}
static void store1_bfloat16(float x, __global storage_bfloat16 *p) {
    *p = bfloat16_bits1(x);
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

#endif
