/* SPDX-License-Identifier: Apache-2.0 */
/* vec.h — one vector of floats, whatever the instruction set.
 *
 * The kernels in simd/ (the .inc files) are written once over these functions. avx2/avx2_table.c
 * and avx512/avx512_table.c include them all, each in one translation unit with its own compiler
 * flags, so nothing here crosses a file and names need no prefix.
 *
 *   vec       VL floats (8 or 16)           vecm   a lane mask
 *   v_load_n / v_store_n(p, left): the first min(left, VL) lanes; the others read as 0 and are not
 *   touched in memory. A range that ends anywhere is worked with the very same instructions, so
 *   element-wise results do not depend on how a range is cut.
 *
 * Layer: kernels. */
#ifndef ZN_KERNELS_SIMD_VEC_H
#define ZN_KERNELS_SIMD_VEC_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/dtype.h"

#define V_INLINE static inline __attribute__((always_inline, unused))

/* Before a loop whose count is a constant after inlining: its vectors must become registers. */
#ifdef __clang__
#define V_UNROLL _Pragma("clang loop unroll(full)")
#else
#define V_UNROLL _Pragma("GCC unroll 8")
#endif

#ifdef __AVX512F__
#include "kernels/simd/vec_avx512.h"
#else
#include "kernels/simd/vec_avx2.h"
#endif

V_INLINE vec v_neg(vec a)
{
    return v_sub(v_set1(-0.0f), a);
}

/* Load and store in any of the three float types; the loops that use them have a constant or
 * predictable dtype. */
V_INLINE vec v_load_as(const void *p, zn_dtype dtype, int64_t i, int64_t left)
{
    if (dtype == ZN_DTYPE_F32)
        return v_load_n((const float *)p + i, left);
    const uint16_t *h = (const uint16_t *)p + i;
    return dtype == ZN_DTYPE_BF16 ? v_load_bf16(h, left) : v_load_f16(h, left);
}

V_INLINE void v_store_as(void *p, zn_dtype dtype, int64_t i, int64_t left, vec a)
{
    if (dtype == ZN_DTYPE_F32)
        v_store_n((float *)p + i, left, a);
    else if (dtype == ZN_DTYPE_BF16)
        v_store_bf16((uint16_t *)p + i, left, a);
    else
        v_store_f16((uint16_t *)p + i, left, a);
}

/* Sum of the lanes, halves folded onto each other: always in the same order. */
V_INLINE float v_sum(vec a)
{
    return v_sum256(v_fold_add(a));
}

V_INLINE float v_hmax(vec a)
{
    return v_max256(v_fold_max(a));
}

V_INLINE void v_prefetch(const void *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T0);
}

/* e^x: x = n ln2 + r, |r| <= ln2/2, e^r by a minimax polynomial of degree 6 (relative error below
 * 1e-8 before rounding), times 2^n. Exactly 0 where the result is not a normal number (below
 * -87.33), which the CPU would compute a hundred times slower; inf above 88.73, NaN for NaN. */
V_INLINE vec v_exp(vec x)
{
    const vec least = v_set1(-87.33f);
    const vecm tiny = v_lt(x, least);
    /* the constant goes first: max and min return the second operand if one is NaN */
    x = v_min(v_set1(89.0f), v_max(least, x));
    const vec n = v_round(v_mul(x, v_set1(1.44269504f)));
    vec r = v_fnma(n, v_set1(0.693359375f), x);
    r = v_fnma(n, v_set1(-2.12194440e-4f), r);
    vec q = v_set1(0.001392617612f);
    q = v_fma(q, r, v_set1(0.008363173075f));
    q = v_fma(q, r, v_set1(0.04166655466f));
    q = v_fma(q, r, v_set1(0.1666657703f));
    q = v_fma(q, r, v_set1(0.5f));
    q = v_fma(v_mul(r, r), q, r);
    return v_blend(tiny, v_zero(), v_scale2(v_add(q, v_set1(1.0f)), n));
}

/* tanh: x + x^3 P(x^2) near 0, (1 - t)/(1 + t) with t = e^(-2|x|) elsewhere. */
V_INLINE vec v_tanh(vec x)
{
    const vec size = v_abs(x);
    const vec s = v_mul(x, x);
    vec p = v_set1(-0.005923726206f);
    p = v_fma(p, s, v_set1(0.02087346058f));
    p = v_fma(p, s, v_set1(-0.05382375887f));
    p = v_fma(p, s, v_set1(0.1333258371f));
    p = v_fma(p, s, v_set1(-0.3333332702f));
    const vec near = v_fma(v_mul(p, s), x, x);
    const vec t = v_exp(v_mul(v_set1(-2.0f), size));
    const vec far = v_div(v_sub(v_set1(1.0f), t), v_add(v_set1(1.0f), t));
    return v_blend(v_lt(size, v_set1(0.65f)), near, v_copysign(far, x));
}

/* erf: x + x P(x^2) up to 1, 1 - e^Q(|x|) with Q = log(erfc) beyond; 1 from 4 on. */
V_INLINE vec v_erf(vec x)
{
    const vec size = v_min(v_set1(4.0f), v_abs(x));
    const vec s = v_mul(x, x);
    vec p = v_set1(7.875875063e-5f);
    p = v_fma(p, s, v_set1(-0.0008016864287f));
    p = v_fma(p, s, v_set1(0.005189087423f));
    p = v_fma(p, s, v_set1(-0.02685421201f));
    p = v_fma(p, s, v_set1(0.1128359472f));
    p = v_fma(p, s, v_set1(-0.3761262667f));
    p = v_fma(p, s, v_set1(0.1283791658f));
    const vec near = v_fma(p, x, x);
    vec q = v_set1(1.638637325e-6f);
    q = v_fma(q, size, v_set1(-4.608744729e-5f));
    q = v_fma(q, size, v_set1(0.0005970529461f));
    q = v_fma(q, size, v_set1(-0.004760747711f));
    q = v_fma(q, size, v_set1(0.02642437093f));
    q = v_fma(q, size, v_set1(-0.1100856803f));
    q = v_fma(q, size, v_set1(-0.6318202468f));
    q = v_fma(q, size, v_set1(-1.130236723f));
    q = v_fma(q, size, v_set1(0.000320914383f));
    const vec far = v_sub(v_set1(1.0f), v_exp(q));
    return v_blend(v_lt(size, v_set1(1.0f)), near, v_copysign(far, x));
}

#endif
