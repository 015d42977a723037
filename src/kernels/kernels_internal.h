/* SPDX-License-Identifier: Apache-2.0 */
/* kernels_internal.h — rules that every implementation of the table shares.
 *
 * Which keys a query sees, which elements dropout keeps, how a range is cut for threads: written
 * once here, so that the reference and the vector kernels cannot drift apart.
 * Layer: kernels. */
#ifndef ZN_KERNELS_KERNELS_INTERNAL_H
#define ZN_KERNELS_KERNELS_INTERNAL_H

#include "base/hash.h"
#include "kernels/kernels.h"

extern const zn_kernels zn_kernels_ref;
#ifdef ZINC_HAVE_SIMD
extern const zn_kernels zn_kernels_avx2;
extern const zn_kernels zn_kernels_avx512, zn_kernels_avx512_bf16, zn_kernels_amx;
#endif

#ifndef NDEBUG
extern const zn_kernels zn_kernels_guarded; /* of a guarded device */
#endif

/* A loop whose turns may run on n_threads threads; the turns must not depend on one another. */
#define ZN_STRINGIFY(x) #x
#ifdef _OPENMP
#define ZN_PARALLEL_FOR(n_threads)                                                                 \
    _Pragma(ZN_STRINGIFY(omp parallel for schedule(static) num_threads(n_threads)                  \
                         if ((n_threads) > 1)))
#else
#define ZN_PARALLEL_FOR(n_threads) (void)(n_threads);
#endif

/** zn_kernels.gemm by oneDNN (gemm_dnnl.c; only where ZINC_HAVE_DNNL). */
zinc_status zn_gemm_dnnl(zn_stream *s, bool trans_a, bool trans_b, int64_t M, int64_t N, int64_t K,
                         float alpha, const float *A, int64_t lda, const float *B, int64_t ldb,
                         float beta, float *C, int64_t ldc);

/** zn_kernels.gemm_bf16 by bf16 dot products and by tiles (gemm_bf16.c; ZINC_HAVE_SIMD only). */
zinc_status zn_gemm_bf16_dot(zn_stream *s, int64_t M, int64_t N, int64_t K, const zn_operand *A,
                             const zn_operand *B, const zn_result *C, float *scratch);
zinc_status zn_gemm_bf16_amx(zn_stream *s, int64_t M, int64_t N, int64_t K, const zn_operand *A,
                             const zn_operand *B, const zn_result *C, float *scratch);

/** Between these the calling thread's tiles are 16 rows of 64 bytes (AMX only). */
void zn_tiles_begin(void);
void zn_tiles_end(void);

/** Check that an optimizer call's types are among f32, bf16, f16. Errors: E_INVALID. */
ZINC_MUST_CHECK zinc_status zn_check_update(const char *name, const zn_update_args *args);
/** Check that `dtype` is f32, bf16 or f16. Errors: E_INVALID names the kernel. */
ZINC_MUST_CHECK zinc_status zn_check_float(const char *name, zn_dtype dtype);
/** Check that ids[0..N) lie in [lowest, V). Errors: E_INVALID names the row and the id. */
ZINC_MUST_CHECK zinc_status zn_check_ids(const char *name, const int32_t *ids, int64_t N,
                                         int32_t lowest, int64_t V);

static inline float zn_load(const void *x, zn_dtype dtype, int64_t i)
{
    if (dtype == ZN_DTYPE_F32)
        return ((const float *)x)[i];
    const uint16_t h = ((const uint16_t *)x)[i];
    return dtype == ZN_DTYPE_BF16 ? zn_bf16_to_f32(h) : zn_f16_to_f32(h);
}

static inline void zn_store(void *x, zn_dtype dtype, int64_t i, float value)
{
    if (dtype == ZN_DTYPE_F32)
        ((float *)x)[i] = value;
    else
        ((uint16_t *)x)[i] = dtype == ZN_DTYPE_BF16 ? zn_f32_to_bf16(value) : zn_f32_to_f16(value);
}

static inline int64_t zn_min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t zn_max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- dropout: one 64-bit hash serves two neighbours, 32 bits each ---- */

/* The random stream of one row of activations: position t of global sample `sample`. */
static inline uint64_t zn_dropout_row(uint64_t seed, const int64_t *sample, int64_t b, int64_t t)
{
    const uint64_t who = (uint64_t)(sample ? sample[b] : b);
    return zn_hash_fold(zn_hash_fold(seed, who), (uint64_t)t);
}

/* Elements whose 32 bits lie below this are dropped. */
static inline uint32_t zn_dropout_threshold(float p)
{
    const double t = (double)p * 0x1p32;
    return t >= 0x1p32 ? UINT32_MAX : (uint32_t)t;
}

static inline bool zn_dropout_keep(uint64_t row, int64_t i, uint32_t threshold)
{
    const uint64_t h = zn_hash_mix(row + (uint64_t)(i >> 1));
    return (uint32_t)(i & 1 ? h >> 32 : h) >= threshold;
}

/* ---- attention: who sees whom ---- */

static inline int64_t zn_attention_first_key(const zn_attention *a, int64_t t)
{
    return a->window > 0 && t >= a->window ? t - a->window + 1 : 0;
}

/* Whether query t of row b sees key j, for j in [first_key, t]. */
static inline bool zn_attention_sees(const zn_attention *a, int64_t b, int64_t t, int64_t j)
{
    if (a->key_mask && !a->key_mask[b * a->T + j])
        return false;
    return !a->segment || a->segment[b * a->T + j] == a->segment[b * a->T + t];
}

/* The random stream of the probabilities of one query. */
static inline uint64_t zn_attention_dropout_row(const zn_attention *a, int64_t b, int64_t h,
                                                int64_t t)
{
    return zn_dropout_row(zn_hash_fold(a->dropout_seed, (uint64_t)h), a->sample, b, t);
}

#endif
