/* SPDX-License-Identifier: Apache-2.0 */
#include "base/dtype.h"

static const struct {
    size_t size;
    const char *name;
    const char *safetensors;
} dtypes[] = {
    [ZN_DTYPE_F32] = {4, "float32", "F32"}, [ZN_DTYPE_BF16] = {2, "bfloat16", "BF16"},
    [ZN_DTYPE_F16] = {2, "float16", "F16"}, [ZN_DTYPE_F64] = {8, "float64", "F64"},
    [ZN_DTYPE_I32] = {4, "int32", "I32"},   [ZN_DTYPE_I64] = {8, "int64", "I64"},
    [ZN_DTYPE_U8] = {1, "uint8", "U8"},     [ZN_DTYPE_BOOL] = {1, "bool", "BOOL"},
};

size_t zn_dtype_size(zn_dtype dtype)
{
    return dtypes[dtype].size;
}

const char *zn_dtype_name(zn_dtype dtype)
{
    return dtypes[dtype].name;
}

const char *zn_dtype_safetensors_name(zn_dtype dtype)
{
    return dtypes[dtype].safetensors;
}

int zn_dtype_parse(const char *name, zn_dtype *out)
{
    static const struct {
        const char *name;
        zn_dtype dtype;
    } names[] = {
        {"float32", ZN_DTYPE_F32}, {"fp32", ZN_DTYPE_F32},  {"f32", ZN_DTYPE_F32},
        {"F32", ZN_DTYPE_F32},     {"float", ZN_DTYPE_F32}, {"bfloat16", ZN_DTYPE_BF16},
        {"bf16", ZN_DTYPE_BF16},   {"BF16", ZN_DTYPE_BF16}, {"float16", ZN_DTYPE_F16},
        {"fp16", ZN_DTYPE_F16},    {"f16", ZN_DTYPE_F16},   {"F16", ZN_DTYPE_F16},
        {"half", ZN_DTYPE_F16},
    };
    if (strncmp(name, "torch.", 6) == 0)
        name += 6;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i].name) == 0) {
            *out = names[i].dtype;
            return 0;
        }
    }
    return -1;
}

uint16_t zn_f32_to_f16(float x)
{
    const uint32_t bits = zn_f32_bits(x);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t mag = bits & 0x7FFFFFFFu;
    if (mag > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00u | ((mag >> 13) & 0x1FFu)); /* NaN */
    if (mag >= 0x477FF000u)
        return (uint16_t)(sign | 0x7C00u); /* rounds to 65536 or more */
    if (mag < 0x38800000u) {               /* subnormal in f16, or zero */
        if (mag < 0x33000000u)
            return (uint16_t)sign;
        const uint32_t shift = 126u - (mag >> 23);
        const uint32_t m = (mag & 0x7FFFFFu) | 0x800000u;
        const uint32_t kept = m >> shift;
        const uint32_t rest = m & ((1u << shift) - 1u);
        const uint32_t half = 1u << (shift - 1u);
        return (uint16_t)(sign | (kept + (rest > half || (rest == half && (kept & 1u)))));
    }
    const uint32_t even = (mag >> 13) & 1u;
    return (uint16_t)(sign | ((mag - 0x38000000u + 0xFFFu + even) >> 13));
}

float zn_f16_to_f32(uint16_t x)
{
    const uint32_t sign = (uint32_t)(x & 0x8000u) << 16;
    const uint32_t exp = (x >> 10) & 0x1Fu;
    uint32_t man = x & 0x3FFu;
    if (exp == 0x1Fu)
        return zn_f32_from_bits(sign | 0x7F800000u | (man << 13));
    if (exp != 0)
        return zn_f32_from_bits(sign | ((exp + 112u) << 23) | (man << 13));
    if (man == 0)
        return zn_f32_from_bits(sign);
    uint32_t e = 113u;
    while (!(man & 0x400u)) {
        man <<= 1;
        e--;
    }
    return zn_f32_from_bits(sign | (e << 23) | ((man & 0x3FFu) << 13));
}
