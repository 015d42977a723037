/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.h — element types and the one rounding of each 16-bit type.
 *
 * bf16: nearest, ties away from zero. hi = (bits + 0x8000) >> 16, lo = bits & 0xFFFF, so that a
 *   master is rebuilt exactly as ((hi - (lo >> 15)) << 16) | lo. NaN keeps its sign and stays NaN.
 * f16: nearest, ties to even (what the hardware instruction does); overflow gives infinity.
 * Bulk conversions are in kernels/ (zn_kernels.convert); these are the scalar definitions they are
 * held against. Layer: base. */
#ifndef ZN_BASE_DTYPE_H
#define ZN_BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum zn_dtype {
    ZN_DTYPE_F32,
    ZN_DTYPE_BF16,
    ZN_DTYPE_F16,
    ZN_DTYPE_F64,
    ZN_DTYPE_I32,
    ZN_DTYPE_I64,
    ZN_DTYPE_U8,
    ZN_DTYPE_BOOL,
} zn_dtype;

/** Bytes of one element. */
size_t zn_dtype_size(zn_dtype dtype);

/** Name as people write it: "float32", "bfloat16", "float16", … */
const char *zn_dtype_name(zn_dtype dtype);

/** Name in a safetensors header: "F32", "BF16", "F16", … */
const char *zn_dtype_safetensors_name(zn_dtype dtype);

/** Parse any spelling of f32/bf16/f16 ("fp32", "float32", "torch.float32", "F32", "bfloat16", …).
 *  Returns 0, or -1 if the name is unknown. */
int zn_dtype_parse(const char *name, zn_dtype *out);

static inline uint32_t zn_f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float zn_f32_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint16_t zn_f32_to_bf16(float x)
{
    const uint32_t bits = zn_f32_bits(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) /* NaN: the carry must not run into the sign */
        return (uint16_t)((bits >> 16) | 0x0040u);
    return (uint16_t)((bits + 0x8000u) >> 16);
}

static inline float zn_bf16_to_f32(uint16_t x)
{
    return zn_f32_from_bits((uint32_t)x << 16);
}

/* A float in two halves: its bf16 value, which rounds it, and the low bits of its own. */
static inline uint16_t zn_f32_low(float x)
{
    return (uint16_t)(zn_f32_bits(x) & 0xFFFFu);
}

/** The float whose halves are zn_f32_to_bf16(x) and zn_f32_low(x): exact but for the payload of a
 *  NaN, which stays one. */
static inline float zn_f32_join(uint16_t hi, uint16_t lo)
{
    return zn_f32_from_bits(((uint32_t)(hi - (lo >> 15)) << 16) | lo);
}

uint16_t zn_f32_to_f16(float x);
float zn_f16_to_f32(uint16_t x);

#endif
