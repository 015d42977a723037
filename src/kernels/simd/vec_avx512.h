/* SPDX-License-Identifier: Apache-2.0 */
/* vec_avx512.h — vec.h on 512-bit registers. Included by vec.h only. Layer: kernels. */
#ifndef ZN_KERNELS_SIMD_VEC_AVX512_H
#define ZN_KERNELS_SIMD_VEC_AVX512_H

typedef __m512 vec;
typedef __mmask16 vecm;

#define VL 16
/* The register block of the matrix micro-kernel: 6 x 4 sums, 4 columns and 1 broadcast of 32. */
#define MM_ROWS 6
#define MM_VECS 4

V_INLINE vecm v_tail(int64_t left)
{
    const unsigned lanes = left >= VL ? 0xFFFFu : (1u << left) - 1u;
    return (vecm)lanes;
}

V_INLINE vec v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
V_INLINE void v_store(float *p, vec a)
{
    _mm512_storeu_ps(p, a);
}
V_INLINE vec v_load_n(const float *p, int64_t left)
{
    return left >= VL ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(v_tail(left), p);
}
V_INLINE void v_store_n(float *p, int64_t left, vec a)
{
    if (left >= VL)
        _mm512_storeu_ps(p, a);
    else
        _mm512_mask_storeu_ps(p, v_tail(left), a);
}
V_INLINE vec v_set1(float x)
{
    return _mm512_set1_ps(x);
}
V_INLINE vec v_zero(void)
{
    return _mm512_setzero_ps();
}
V_INLINE vec v_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}
V_INLINE vec v_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}
V_INLINE vec v_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}
V_INLINE vec v_div(vec a, vec b)
{
    return _mm512_div_ps(a, b);
}
/* a b + c */
V_INLINE vec v_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}
/* c - a b */
V_INLINE vec v_fnma(vec a, vec b, vec c)
{
    return _mm512_fnmadd_ps(a, b, c);
}
V_INLINE vec v_sqrt(vec a)
{
    return _mm512_sqrt_ps(a);
}
V_INLINE vec v_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}
V_INLINE vec v_min(vec a, vec b)
{
    return _mm512_min_ps(a, b);
}
V_INLINE vec v_abs(vec a)
{
    return _mm512_abs_ps(a);
}
V_INLINE vec v_copysign(vec size, vec sign)
{
    const vec bit = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(bit, size), _mm512_and_ps(bit, sign));
}
V_INLINE vecm v_lt(vec a, vec b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
/* yes where the mask is set, no elsewhere */
V_INLINE vec v_blend(vecm m, vec yes, vec no)
{
    return _mm512_mask_blend_ps(m, no, yes);
}
/* The first `left` lanes of a, the others of b (or 0). */
V_INLINE vec v_first_or(int64_t left, vec a, vec b)
{
    return v_blend(v_tail(left), a, b);
}
V_INLINE vec v_first(int64_t left, vec a)
{
    return _mm512_maskz_mov_ps(v_tail(left), a);
}
V_INLINE vec v_round(vec a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* a * 2^n for whole n, rounded once */
V_INLINE vec v_scale2(vec a, vec n)
{
    return _mm512_scalef_ps(a, n);
}

V_INLINE __m256 v_fold_add(vec a)
{
    return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}
V_INLINE __m256 v_fold_max(vec a)
{
    return _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
}
V_INLINE float v_sum256(__m256 a)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
V_INLINE float v_max256(__m256 a)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

/* ---- 16-bit types (base/dtype.h has the rounding rules) ---- */

V_INLINE __m256i v_load_h(const uint16_t *p, int64_t left)
{
    return left >= VL ? _mm256_loadu_si256((const __m256i *)p)
                      : _mm256_maskz_loadu_epi16(v_tail(left), p);
}
V_INLINE void v_store_h(uint16_t *p, int64_t left, __m256i h)
{
    if (left >= VL)
        _mm256_storeu_si256((__m256i *)p, h);
    else
        _mm256_mask_storeu_epi16(p, v_tail(left), h);
}
V_INLINE vec v_load_bf16(const uint16_t *p, int64_t left)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v_load_h(p, left)), 16));
}
V_INLINE vec v_load_f16(const uint16_t *p, int64_t left)
{
    return _mm512_cvtph_ps(v_load_h(p, left));
}
V_INLINE __m256i v_to_bf16(vec a)
{
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i near = _mm512_add_epi32(bits, _mm512_set1_epi32(0x8000));
    const __m512i nan = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(is_nan, near, nan), 16));
}
V_INLINE void v_store_bf16(uint16_t *p, int64_t left, vec a)
{
    v_store_h(p, left, v_to_bf16(a));
}
/* ---- floats in two halves: zn_f32_join and zn_f32_low ---- */
V_INLINE vec v_load_halves(const uint16_t *hi, const uint16_t *lo, int64_t left)
{
    const __m512i h = _mm512_cvtepu16_epi32(v_load_h(hi, left));
    const __m512i l = _mm512_cvtepu16_epi32(v_load_h(lo, left));
    const __m512i floor = _mm512_sub_epi32(h, _mm512_srli_epi32(l, 15));
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_slli_epi32(floor, 16), l));
}
V_INLINE void v_store_low(uint16_t *p, int64_t left, vec a)
{
    v_store_h(p, left, _mm512_cvtepi32_epi16(_mm512_castps_si512(a)));
}
V_INLINE __m256i v_to_f16(vec a)
{
    return _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
V_INLINE void v_store_f16(uint16_t *p, int64_t left, vec a)
{
    v_store_h(p, left, v_to_f16(a));
}

/* Around the cache; p is 32-byte aligned. */
V_INLINE void v_stream_h(uint16_t *p, __m256i h)
{
    _mm256_stream_si256((__m256i *)p, h);
}

/* ---- fp64 sums: two halves of a vector, widened ---- */

typedef struct vec_f64 {
    __m512d lo, hi;
} vec_f64;

V_INLINE vec_f64 v_f64_zero(void)
{
    return (vec_f64){.lo = _mm512_setzero_pd(), .hi = _mm512_setzero_pd()};
}
/* acc += a^2 in fp64 */
V_INLINE vec_f64 v_f64_add_square(vec_f64 acc, vec a)
{
    const __m512d lo = _mm512_cvtps_pd(_mm512_castps512_ps256(a));
    const __m512d hi = _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1));
    acc.lo = _mm512_fmadd_pd(lo, lo, acc.lo);
    acc.hi = _mm512_fmadd_pd(hi, hi, acc.hi);
    return acc;
}
V_INLINE double v_f64_sum(vec_f64 a)
{
    double lane[8], sum = 0;
    _mm512_storeu_pd(lane, _mm512_add_pd(a.lo, a.hi));
    for (int i = 0; i < 8; i++)
        sum += lane[i];
    return sum;
}

/* ---- dropout: lanes 2k and 2k+1 take the low and high half of zn_hash_mix(x + k) ---- */

typedef __m512i vec_bits;

V_INLINE vec_bits v_hash(uint64_t x)
{
    __m512i h = _mm512_add_epi64(_mm512_set1_epi64((long long)(x + 0x9E3779B97F4A7C15u)),
                                 _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
    h = _mm512_mullo_epi64(_mm512_xor_si512(h, _mm512_srli_epi64(h, 30)),
                           _mm512_set1_epi64((long long)0xBF58476D1CE4E5B9u));
    h = _mm512_mullo_epi64(_mm512_xor_si512(h, _mm512_srli_epi64(h, 27)),
                           _mm512_set1_epi64((long long)0x94D049BB133111EBu));
    return _mm512_xor_si512(h, _mm512_srli_epi64(h, 31));
}
/* a where the lane's bits are at least `threshold`, 0 elsewhere */
V_INLINE vec v_keep(vec_bits bits, uint32_t threshold, vec a)
{
    return _mm512_maskz_mov_ps(_mm512_cmpge_epu32_mask(bits, _mm512_set1_epi32((int)threshold)), a);
}

#endif
