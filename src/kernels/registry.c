/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>

#include "kernels/kernels_internal.h"
#include "kernels/peak.h"

const zn_kernels *zn_kernels_for(zn_isa isa)
{
    switch (isa) {
    case ZN_ISA_REF:
        return &zn_kernels_ref;
#ifdef ZINC_HAVE_SIMD
    case ZN_ISA_AVX2:
        return &zn_kernels_avx2;
    case ZN_ISA_AVX512:
        return &zn_kernels_avx512;
    case ZN_ISA_AVX512_BF16:
        return &zn_kernels_avx512_bf16;
    case ZN_ISA_AMX:
        return &zn_kernels_amx;
#endif
    default:
        return NULL;
    }
}

const zn_kernels *zn_kernels_get(const zn_device *dev)
{
#ifndef NDEBUG
    if (zn_device_is_guarded(dev))
        return &zn_kernels_guarded;
#else
    (void)dev; /* one device so far, and its table hangs on the CPU alone */
#endif
    const zn_kernels *kernels = zn_kernels_for(zn_sys_isa());
    return kernels ? kernels : &zn_kernels_ref;
}

#ifdef ZINC_HAVE_SIMD
static pthread_once_t dot_once = PTHREAD_ONCE_INIT;
static bool dot_pays;

/* Cores do half or twice as many flops by bf16 dot products as by fp32 multiply-adds; anything
 * between would not repay the rounding. All ranks of a machine must come to the same answer. */
static void measure_dot(void)
{
    dot_pays = zn_peak_dot_ratio() > 1.4;
}

bool zn_kernels_bf16_pays(const zn_kernels *kernels)
{
#ifndef NDEBUG
    if (kernels == &zn_kernels_guarded)
        kernels = zn_kernels_get(NULL);
#endif
    if (kernels == &zn_kernels_amx)
        return true;
    if (kernels != &zn_kernels_avx512_bf16)
        return false;
    pthread_once(&dot_once, measure_dot);
    return dot_pays;
}
#else
bool zn_kernels_bf16_pays(const zn_kernels *kernels)
{
    (void)kernels;
    return false;
}
#endif

/* Rows are cut into at most 64 blocks; a block has a partial sum for the weight and one for the
 * bias. */
int64_t zn_norm_scratch(int64_t C)
{
    return 64 * 2 * C;
}

/* A thread packs a key head's K and V (twice in backward) and holds two blocks of 64 x 64 scores
 * and three of 64 rows; the reference needs the scores of one query. */
int64_t zn_attention_scratch(const zn_attention *a, int n_threads)
{
    const int64_t padded = (a->T + 63) / 64 * 64;
    return n_threads * (3 * padded * a->D + 2 * 64 * 64 + 3 * 64 * a->D);
}
