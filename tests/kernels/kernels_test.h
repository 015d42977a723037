/* SPDX-License-Identifier: Apache-2.0 */
/* kernels_test.h — what the kernel tests share: a device with threads, numbers, comparisons. */
#ifndef ZN_TESTS_KERNELS_KERNELS_TEST_H
#define ZN_TESTS_KERNELS_KERNELS_TEST_H

#include "zn_test.h"

#include <math.h>

#include "base/hash.h"
#include "base/mem.h"
#include "kernels/kernels.h"

#define KT_MAX_BUFFERS 64

/* One device; `buffers` are freed by the teardown, also after a failed assertion. */
typedef struct kt {
    zn_device *dev;
    zn_stream *s;
    void *buffers[KT_MAX_BUFFERS];
    int n_buffers;
    uint64_t seed;
} kt;

static inline void kt_use_threads(kt *t, int n_threads)
{
    zn_device_close(t->dev);
    t->dev = NULL;
    const zn_device_params params = {.n_threads = n_threads};
    assert_ok(zn_device_open("cpu", &params, &t->dev));
    t->s = zn_device_compute(t->dev);
}

static inline int kt_setup(void **state)
{
    kt *t = NULL;
    if (zn_alloc(&t, sizeof *t, "kernel test") != ZINC_OK)
        return -1;
    *state = t;
    kt_use_threads(t, 1);
    return 0;
}

static inline void kt_clear(kt *t)
{
    for (int i = 0; i < t->n_buffers; i++)
        zn_free(t->buffers[i]);
    t->n_buffers = 0;
}

static inline int kt_teardown(void **state)
{
    kt *t = *state;
    kt_clear(t);
    zn_device_close(t->dev);
    zn_free(t);
    return 0;
}

static inline void *kt_bytes(kt *t, int64_t n_bytes)
{
    assert_true(t->n_buffers < KT_MAX_BUFFERS);
    void *p = NULL;
    assert_ok(zn_alloc(&p, (size_t)n_bytes, "test buffer"));
    t->buffers[t->n_buffers++] = p;
    return p;
}

/* n zeros. */
static inline float *kt_zeros(kt *t, int64_t n)
{
    return kt_bytes(t, n * (int64_t)sizeof(float));
}

/* n normal deviates times `size`. */
static inline float *kt_random(kt *t, int64_t n, double size)
{
    float *x = kt_zeros(t, n);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(size * zn_hash_normal(zn_hash_mix(t->seed++)));
    return x;
}

static inline float *kt_copy(kt *t, const float *x, int64_t n)
{
    float *y = kt_zeros(t, n);
    memcpy(y, x, (size_t)n * sizeof *y);
    return y;
}

/* got = want within `tolerance` of the largest value of want; infinities and NaN must agree. */
static inline void kt_near(const char *what, const char *isa, const float *got, const float *want,
                           int64_t n, double tolerance)
{
    double top = 1e-30;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(want[i]))
            top = fmax(top, fabs((double)want[i]));
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(want[i]) || !isfinite(got[i])) {
            if (!(got[i] == want[i]) && !(isnan(got[i]) && isnan(want[i])))
                fail_msg("%s (%s): element %lld of %lld is %g, the reference says %g", what, isa,
                         (long long)i, (long long)n, (double)got[i], (double)want[i]);
        } else if (!(fabs((double)got[i] - (double)want[i]) <= tolerance * top)) {
            fail_msg("%s (%s): element %lld of %lld is %.9g, the reference says %.9g (largest "
                     "%.3g)",
                     what, isa, (long long)i, (long long)n, (double)got[i], (double)want[i], top);
        }
    }
}

static inline void kt_same_bits(const char *what, const char *isa, const void *got,
                                const void *want, int64_t n_bytes)
{
    const unsigned char *a = got, *b = want;
    for (int64_t i = 0; i < n_bytes; i++)
        if (a[i] != b[i])
            fail_msg("%s (%s): byte %lld of %lld differs", what, isa, (long long)i,
                     (long long)n_bytes);
}

/* The vector tables that this CPU can run; *i goes from 0; NULL after the last. */
static inline const zn_kernels *kt_next_isa(int *i)
{
    while (*i < ZN_ISA_AMX) {
        const zn_isa isa = (zn_isa)++ * i;
        if (isa <= zn_sys_isa() && zn_kernels_for(isa))
            return zn_kernels_for(isa);
    }
    return NULL;
}

#define KT_FOR_EACH_ISA(k)                                                                         \
    int isa_index_ = 0;                                                                            \
    for (const zn_kernels *k = kt_next_isa(&isa_index_); k; k = kt_next_isa(&isa_index_))

#endif
