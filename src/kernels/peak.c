/* SPDX-License-Identifier: Apache-2.0 */
/* Each turn does one FMA on every sum. A sum waits about four cycles for its last one and a core
 * starts at most two a cycle, so eight sums keep it busy; a few more cover slower units. */
#include "kernels/peak.h"

#include <stdint.h>

#include "kernels/kernels_internal.h"

#ifdef ZINC_HAVE_SIMD
#include <immintrin.h>
#endif

#define RUN_SECONDS 0.2e-3
#define FIRST_TURNS 2000
/* x stays near y / (1 - FACTOR): neither grows nor becomes denormal. */
#define FACTOR 0.5f
#define N_SUMS 12

#ifdef ZINC_HAVE_SIMD
__attribute__((target("avx512f"))) static float run_avx512(int64_t turns)
{
    const __m512 a = _mm512_set1_ps(FACTOR), y = _mm512_set1_ps(1.0f);
    __m512 x[N_SUMS];
    for (int i = 0; i < N_SUMS; i++)
        x[i] = _mm512_set1_ps((float)i);
    for (int64_t t = 0; t < turns; t++) {
#pragma GCC unroll 12
        for (int i = 0; i < N_SUMS; i++)
            x[i] = _mm512_fmadd_ps(x[i], a, y);
    }
    for (int i = 1; i < N_SUMS; i++)
        x[0] = _mm512_add_ps(x[0], x[i]);
    return _mm512_cvtss_f32(x[0]);
}

__attribute__((target("avx2,fma"))) static float run_avx2(int64_t turns)
{
    const __m256 a = _mm256_set1_ps(FACTOR), y = _mm256_set1_ps(1.0f);
    __m256 x[N_SUMS];
    for (int i = 0; i < N_SUMS; i++)
        x[i] = _mm256_set1_ps((float)i);
    for (int64_t t = 0; t < turns; t++) {
#pragma GCC unroll 12
        for (int i = 0; i < N_SUMS; i++)
            x[i] = _mm256_fmadd_ps(x[i], a, y);
    }
    for (int i = 1; i < N_SUMS; i++)
        x[0] = _mm256_add_ps(x[0], x[i]);
    return _mm256_cvtss_f32(x[0]);
}

__attribute__((target("avx512f,avx512bf16"))) static float run_dot(int64_t turns)
{
    const __m512bh a = (__m512bh)_mm512_set1_epi32(0x3F003F00), /* pairs of 0.5 */
        y = (__m512bh)_mm512_set1_epi32(0x3F800000);            /* 0 and 1 */
    __m512 x[N_SUMS];
    for (int i = 0; i < N_SUMS; i++)
        x[i] = _mm512_set1_ps((float)i);
    for (int64_t t = 0; t < turns; t++) {
#pragma GCC unroll 12
        for (int i = 0; i < N_SUMS; i++)
            x[i] = _mm512_dpbf16_ps(x[i], a, y);
    }
    for (int i = 1; i < N_SUMS; i++)
        x[0] = _mm512_add_ps(x[0], x[i]);
    return _mm512_cvtss_f32(x[0]);
}

/* Products of empty tiles take as long as others. Four sums: a tile waits for its last product. */
__attribute__((target("amx-tile,amx-bf16"))) static float run_tiles(int64_t turns)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    for (int64_t t = 0; t < turns; t++) {
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 5);
        _tile_dpbf16ps(2, 4, 5);
        _tile_dpbf16ps(3, 4, 5);
    }
    return 0;
}
#endif

static float run_plain(int64_t turns)
{
    float x[N_SUMS];
    for (int i = 0; i < N_SUMS; i++)
        x[i] = (float)i;
    for (int64_t t = 0; t < turns; t++) {
#pragma GCC unroll 12
        for (int i = 0; i < N_SUMS; i++)
            x[i] = x[i] * FACTOR + 1.0f;
    }
    for (int i = 1; i < N_SUMS; i++)
        x[0] += x[i];
    return x[0];
}

/* A turn is a number of operations. */
typedef struct runner {
    float (*run)(int64_t turns);
    double turn;
    bool tiles;
} runner;

static runner best_runner(void)
{
#ifdef ZINC_HAVE_SIMD
    switch (zn_sys_isa()) {
    case ZN_ISA_AMX:
    case ZN_ISA_AVX512_BF16:
    case ZN_ISA_AVX512:
        return (runner){run_avx512, 2 * N_SUMS * 16, false};
    case ZN_ISA_AVX2:
        return (runner){run_avx2, 2 * N_SUMS * 8, false};
    default:
        break;
    }
#endif
    return (runner){run_plain, 2 * N_SUMS, false};
}

#ifdef ZINC_HAVE_SIMD
static runner dot_runner(void)
{
    return (runner){run_dot, 2 * N_SUMS * 32, false};
}
#endif

/* The best rate of the calling thread until `end`. */
static double rate_until(const runner *r, double end)
{
    volatile float sink = 0;
    int64_t turns = FIRST_TURNS;
    double best = 0;
    do {
        const double start = zn_sys_now();
        sink = r->run(turns);
        const double took = zn_sys_now() - start;
        const double rate = r->turn * (double)turns / took;
        best = took > 0 && rate > best ? rate : best;
        if (took < RUN_SECONDS)
            turns *= 2;
    } while (zn_sys_now() < end);
    (void)sink;
    return best;
}

#ifdef ZINC_HAVE_SIMD
/* In turn, so that what disturbs one disturbs both. A dot product is two multiply-adds a lane. */
double zn_peak_dot_ratio(void)
{
    const runner fma = best_runner(), dot = dot_runner();
    double best_fma = 0, best_dot = 0;
    for (int i = 0; i < 5; i++) {
        const double f = rate_until(&fma, 0), d = rate_until(&dot, 0);
        best_fma = f > best_fma ? f : best_fma;
        best_dot = d > best_dot ? d : best_dot;
    }
    return best_dot / best_fma;
}
#endif

/* Every thread times itself, so that none pays for another one's waiting on a busy machine. */
static double rate_of(const runner *r, int n_threads, double seconds)
{
    const double end = zn_sys_now() + seconds;
    double sum = 0;
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(n_threads) reduction(+ : sum) if (n_threads > 1)
#endif
    for (int i = 0; i < n_threads; i++) {
        if (r->tiles)
            zn_tiles_begin();
        sum += rate_until(r, end);
        if (r->tiles)
            zn_tiles_end();
    }
    return sum;
}

double zn_peak_flops(int n_threads, double seconds)
{
    const runner r = best_runner();
    return rate_of(&r, n_threads, seconds);
}

double zn_peak_bf16_flops(int n_threads, double seconds)
{
#ifdef ZINC_HAVE_SIMD
    if (zn_kernels_bf16_pays(zn_kernels_for(zn_sys_isa()))) {
        const runner tiles = {run_tiles, 4 * 2.0 * 16 * 16 * 32, true}, dot = dot_runner();
        return rate_of(zn_sys_isa() == ZN_ISA_AMX ? &tiles : &dot, n_threads, seconds);
    }
#endif
    return zn_peak_flops(n_threads, seconds);
}
