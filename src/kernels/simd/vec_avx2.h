/* SPDX-License-Identifier: Apache-2.0 */
/* vec_avx2.h — vec.h on 256-bit registers with FMA and F16C. Included by vec.h only.
 * Layer: kernels. */
#ifndef ZN_KERNELS_SIMD_VEC_AVX2_H
#define ZN_KERNELS_SIMD_VEC_AVX2_H

typedef __m256 vec;
typedef __m256 vecm; /* all bits of a lane set or clear */

#define VL 8
/* The register block of the matrix micro-kernel: 6 x 2 sums, 2 columns and 1 broadcast of 16. */
#define MM_ROWS 6
#define MM_VECS 2

V_INLINE __m256i v_tail(int64_t left)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(left >= VL ? VL : (int)left),
                              _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}

V_INLINE vec v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
V_INLINE void v_store(float *p, vec a)
{
    _mm256_storeu_ps(p, a);
}
V_INLINE vec v_load_n(const float *p, int64_t left)
{
    return left >= VL ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, v_tail(left));
}
V_INLINE void v_store_n(float *p, int64_t left, vec a)
{
    if (left >= VL)
        _mm256_storeu_ps(p, a);
    else
        _mm256_maskstore_ps(p, v_tail(left), a);
}
V_INLINE vec v_set1(float x)
{
    return _mm256_set1_ps(x);
}
V_INLINE vec v_zero(void)
{
    return _mm256_setzero_ps();
}
V_INLINE vec v_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}
V_INLINE vec v_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}
V_INLINE vec v_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}
V_INLINE vec v_div(vec a, vec b)
{
    return _mm256_div_ps(a, b);
}
/* a b + c */
V_INLINE vec v_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}
/* c - a b */
V_INLINE vec v_fnma(vec a, vec b, vec c)
{
    return _mm256_fnmadd_ps(a, b, c);
}
V_INLINE vec v_sqrt(vec a)
{
    return _mm256_sqrt_ps(a);
}
V_INLINE vec v_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}
V_INLINE vec v_min(vec a, vec b)
{
    return _mm256_min_ps(a, b);
}
V_INLINE vec v_abs(vec a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
V_INLINE vec v_copysign(vec size, vec sign)
{
    const vec bit = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(bit, size), _mm256_and_ps(bit, sign));
}
V_INLINE vecm v_lt(vec a, vec b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
/* yes where the mask is set, no elsewhere */
V_INLINE vec v_blend(vecm m, vec yes, vec no)
{
    return _mm256_blendv_ps(no, yes, m);
}
/* The first `left` lanes of a, the others of b (or 0). */
V_INLINE vec v_first_or(int64_t left, vec a, vec b)
{
    return v_blend(_mm256_castsi256_ps(v_tail(left)), a, b);
}
V_INLINE vec v_first(int64_t left, vec a)
{
    return _mm256_and_ps(_mm256_castsi256_ps(v_tail(left)), a);
}
V_INLINE vec v_round(vec a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* a * 2^n for whole n in [-252, 254], as two factors that are both normal numbers */
V_INLINE vec v_scale2(vec a, vec n)
{
    const __m256i k = _mm256_cvtps_epi32(n);
    const __m256i k1 = _mm256_srai_epi32(k, 1);
    const __m256i k2 = _mm256_sub_epi32(k, k1);
    const __m256i bias = _mm256_set1_epi32(127);
    a = _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k1, bias), 23)));
    return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k2, bias), 23)));
}

V_INLINE __m256 v_fold_add(vec a)
{
    return a;
}
V_INLINE __m256 v_fold_max(vec a)
{
    return a;
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

V_INLINE __m128i v_load_h(const uint16_t *p, int64_t left)
{
    if (left >= VL)
        return _mm_loadu_si128((const __m128i *)p);
    uint16_t part[VL] = {0};
    memcpy(part, p, (size_t)left * sizeof *p);
    return _mm_loadu_si128((const __m128i *)part);
}
V_INLINE void v_store_h(uint16_t *p, int64_t left, __m128i h)
{
    if (left >= VL) {
        _mm_storeu_si128((__m128i *)p, h);
        return;
    }
    uint16_t part[VL];
    _mm_storeu_si128((__m128i *)part, h);
    memcpy(p, part, (size_t)left * sizeof *p);
}
V_INLINE vec v_load_bf16(const uint16_t *p, int64_t left)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v_load_h(p, left)), 16));
}
V_INLINE vec v_load_f16(const uint16_t *p, int64_t left)
{
    return _mm256_cvtph_ps(v_load_h(p, left));
}
V_INLINE __m128i v_to_bf16(vec a)
{
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i near = _mm256_add_epi32(bits, _mm256_set1_epi32(0x8000));
    const __m256i nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const __m256i h = _mm256_srli_epi32(_mm256_blendv_epi8(near, nan, is_nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(h, h), 0x08);
    return _mm256_castsi256_si128(packed);
}
V_INLINE void v_store_bf16(uint16_t *p, int64_t left, vec a)
{
    v_store_h(p, left, v_to_bf16(a));
}
/* ---- floats in two halves: zn_f32_join and zn_f32_low ---- */
V_INLINE vec v_load_halves(const uint16_t *hi, const uint16_t *lo, int64_t left)
{
    const __m256i h = _mm256_cvtepu16_epi32(v_load_h(hi, left));
    const __m256i l = _mm256_cvtepu16_epi32(v_load_h(lo, left));
    const __m256i floor = _mm256_sub_epi32(h, _mm256_srli_epi32(l, 15));
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(floor, 16), l));
}
V_INLINE void v_store_low(uint16_t *p, int64_t left, vec a)
{
    const __m256i low = _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0xFFFF));
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x08);
    v_store_h(p, left, _mm256_castsi256_si128(packed));
}
V_INLINE __m128i v_to_f16(vec a)
{
    return _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
V_INLINE void v_store_f16(uint16_t *p, int64_t left, vec a)
{
    v_store_h(p, left, v_to_f16(a));
}

/* Around the cache; p is 16-byte aligned. */
V_INLINE void v_stream_h(uint16_t *p, __m128i h)
{
    _mm_stream_si128((__m128i *)p, h);
}

/* ---- fp64 sums: two halves of a vector, widened ---- */

typedef struct vec_f64 {
    __m256d lo, hi;
} vec_f64;

V_INLINE vec_f64 v_f64_zero(void)
{
    return (vec_f64){.lo = _mm256_setzero_pd(), .hi = _mm256_setzero_pd()};
}
/* acc += a^2 in fp64 */
V_INLINE vec_f64 v_f64_add_square(vec_f64 acc, vec a)
{
    const __m256d lo = _mm256_cvtps_pd(_mm256_castps256_ps128(a));
    const __m256d hi = _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1));
    acc.lo = _mm256_fmadd_pd(lo, lo, acc.lo);
    acc.hi = _mm256_fmadd_pd(hi, hi, acc.hi);
    return acc;
}
V_INLINE double v_f64_sum(vec_f64 a)
{
    double lane[4], sum = 0;
    _mm256_storeu_pd(lane, _mm256_add_pd(a.lo, a.hi));
    for (int i = 0; i < 4; i++)
        sum += lane[i];
    return sum;
}

/* ---- dropout: lanes 2k and 2k+1 take the low and high half of zn_hash_mix(x + k) ---- */

typedef __m256i vec_bits;

/* The low 64 bits of a * b, from 32-bit products. */
V_INLINE __m256i v_mul64(__m256i a, __m256i b)
{
    const __m256i cross = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(a, 32), b),
                                           _mm256_mul_epu32(a, _mm256_srli_epi64(b, 32)));
    return _mm256_add_epi64(_mm256_mul_epu32(a, b), _mm256_slli_epi64(cross, 32));
}
V_INLINE vec_bits v_hash(uint64_t x)
{
    __m256i h = _mm256_add_epi64(_mm256_set1_epi64x((long long)(x + 0x9E3779B97F4A7C15u)),
                                 _mm256_set_epi64x(3, 2, 1, 0));
    h = v_mul64(_mm256_xor_si256(h, _mm256_srli_epi64(h, 30)),
                _mm256_set1_epi64x((long long)0xBF58476D1CE4E5B9u));
    h = v_mul64(_mm256_xor_si256(h, _mm256_srli_epi64(h, 27)),
                _mm256_set1_epi64x((long long)0x94D049BB133111EBu));
    return _mm256_xor_si256(h, _mm256_srli_epi64(h, 31));
}
/* a where the lane's bits are at least `threshold`, 0 elsewhere */
V_INLINE vec v_keep(vec_bits bits, uint32_t threshold, vec a)
{
    const __m256i least = _mm256_set1_epi32((int)threshold);
    const __m256i keep = _mm256_cmpeq_epi32(_mm256_max_epu32(bits, least), bits);
    return _mm256_and_ps(_mm256_castsi256_ps(keep), a);
}

#endif
