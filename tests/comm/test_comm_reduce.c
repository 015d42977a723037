/* SPDX-License-Identifier: Apache-2.0 */
/* The sum over ranks: every instruction set against plain C, bit for bit. */
#include "zn_test.h"

#include <math.h>

#include "base/dtype.h"
#include "base/sys.h"
#include "comm/comm_internal.h"

#define N_MAX 1100
#define W_MAX 4

static const zn_dtype dtypes[] = {ZN_DTYPE_F32, ZN_DTYPE_BF16, ZN_DTYPE_F16};

/* Any bit pattern: subnormals, infinities and (rarely two in one sum) NaN among them. */
static void fill(unsigned char *bytes, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        bytes[i] = (unsigned char)(seed >> 24);
    }
}

static void set_16bit(uint16_t *buf, zn_dtype dtype, int64_t i, float x)
{
    buf[i] = dtype == ZN_DTYPE_BF16 ? zn_f32_to_bf16(x) : zn_f32_to_f16(x);
}

typedef void (*sum_fn)(const zn_reduce *reduce);

static void compare(sum_fn fast, zn_reduce r, size_t offset)
{
    static _Alignas(64) unsigned char sources[W_MAX][N_MAX * 4 + 64];
    static _Alignas(64) unsigned char plain[N_MAX * 4 + 64], got[N_MAX * 4 + 64];
    const void *src[W_MAX];
    for (int k = 0; k < r.n_src; k++) {
        fill(sources[k], sizeof sources[k], (uint32_t)k * 77 + 5);
        src[k] = sources[k] + offset * zn_dtype_size(r.src_dtype);
    }
    fill(plain, sizeof plain, 11);
    memcpy(got, plain, sizeof got);
    r.src = src;
    r.dst = plain + offset * zn_dtype_size(r.dst_dtype);
    zn_reduce_sum_ref(&r);
    r.dst = got + offset * zn_dtype_size(r.dst_dtype);
    fast(&r);
    /* The payload of NaN + NaN depends on the order of the operands: compare NaN as NaN. */
    for (int64_t i = 0; i < r.n_elems; i++) {
        const unsigned char *a = plain + ((size_t)i + offset) * zn_dtype_size(r.dst_dtype);
        const unsigned char *b = got + ((size_t)i + offset) * zn_dtype_size(r.dst_dtype);
        uint32_t x = 0, y = 0;
        memcpy(&x, a, zn_dtype_size(r.dst_dtype));
        memcpy(&y, b, zn_dtype_size(r.dst_dtype));
        const uint32_t inf = r.dst_dtype == ZN_DTYPE_F32    ? 0x7F800000u
                             : r.dst_dtype == ZN_DTYPE_BF16 ? 0x7F80u
                                                            : 0x7C00u;
        const uint32_t sign = r.dst_dtype == ZN_DTYPE_F32 ? 0x80000000u : 0x8000u;
        if ((x & ~sign) > inf && (y & ~sign) > inf)
            continue;
        if (x != y)
            fail_msg("%s from %s, %d ranks, %lld elements, element %lld: %08x, want %08x",
                     zn_dtype_name(r.dst_dtype), zn_dtype_name(r.src_dtype), r.n_src,
                     (long long)r.n_elems, (long long)i, (unsigned)y, (unsigned)x);
    }
    const size_t end = ((size_t)r.n_elems + offset) * zn_dtype_size(r.dst_dtype);
    assert_memory_equal(got + end, plain + end, sizeof got - end); /* nothing behind is touched */
}

static void compare_all(sum_fn fast)
{
    static const int64_t sizes[] = {0, 1, 7, 8, 9, 31, 33, 511, 512, 513, 1025};
    for (int s = 0; s < 3; s++)
        for (int d = 0; d < 3; d++)
            for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++)
                for (int w = 1; w <= W_MAX; w++)
                    for (int a = 0; a < 2; a++)
                        compare(fast,
                                (zn_reduce){.n_src = w,
                                            .src_dtype = dtypes[s],
                                            .dst_dtype = dtypes[d],
                                            .accumulate = a == 1,
                                            .n_elems = sizes[n]},
                                n % 3);
}

static void avx2_has_the_bits_of_plain_c(void **state)
{
    (void)state;
#ifdef ZINC_COMM_SIMD
    if (zn_sys_isa() >= ZN_ISA_AVX2) {
        compare_all(zn_reduce_sum_avx2);
        return;
    }
#endif
    skip();
}

static void avx512_has_the_bits_of_plain_c(void **state)
{
    (void)state;
#ifdef ZINC_COMM_SIMD
    if (zn_sys_isa() >= ZN_ISA_AVX512) {
        compare_all(zn_reduce_sum_avx512);
        return;
    }
#endif
    skip();
}

static void ranks_are_added_in_their_order(void **state)
{
    (void)state;
    /* (1e8 + -1e8) + 1 = 1, but 1e8 + (-1e8 + 1) = 0 */
    const float a = 1e8f, b = -1e8f, c = 1.0f;
    const void *src[] = {&a, &b, &c}, *swapped[] = {&c, &b, &a};
    float dst = 5;
    zn_reduce r = {.src = src, .n_src = 3, .dst = &dst, .n_elems = 1};
    zn_reduce_sum(&r);
    assert_true(dst == 1.0f);
    r.src = swapped;
    zn_reduce_sum(&r);
    assert_true(dst == 0.0f);
    r.src = src;
    r.accumulate = true;
    dst = 3;
    zn_reduce_sum(&r);
    assert_true(dst == 4.0f);
}

static void sixteen_bit_sums_are_rounded_once(void **state)
{
    (void)state;
    /* The spacing of bf16 at 256 and of f16 at 2048 is 2: rounded after each addition, 256 + 0.75 +
     * 0.75 stays 256; rounded once it is 258. */
    uint16_t src16[3], dst16;
    const void *src[] = {&src16[0], &src16[1], &src16[2]};
    for (int d = 1; d < 3; d++) {
        const float big = dtypes[d] == ZN_DTYPE_BF16 ? 256 : 2048;
        set_16bit(src16, dtypes[d], 0, big);
        set_16bit(src16, dtypes[d], 1, 0.75f);
        set_16bit(src16, dtypes[d], 2, 0.75f);
        zn_reduce_sum(&(zn_reduce){.src = src,
                                   .n_src = 3,
                                   .src_dtype = dtypes[d],
                                   .dst_dtype = dtypes[d],
                                   .dst = &dst16,
                                   .n_elems = 1});
        assert_true((d == 1 ? zn_bf16_to_f32(dst16) : zn_f16_to_f32(dst16)) == big + 2);
    }
}

static void a_nan_or_infinity_of_any_rank_survives(void **state)
{
    (void)state;
    uint16_t src16[2][9], dst16[9];
    const void *src[] = {src16[0], src16[1]};
    for (int d = 1; d < 3; d++) {
        for (int64_t i = 0; i < 9; i++) {
            set_16bit(src16[0], dtypes[d], i, i == 3 ? NAN : 1.0f);
            set_16bit(src16[1], dtypes[d], i, i == 8 ? INFINITY : 1.0f);
        }
        zn_reduce_sum(&(zn_reduce){.src = src,
                                   .n_src = 2,
                                   .src_dtype = dtypes[d],
                                   .dst_dtype = dtypes[d],
                                   .dst = dst16,
                                   .n_elems = 9});
        for (int i = 0; i < 9; i++) {
            const float x = d == 1 ? zn_bf16_to_f32(dst16[i]) : zn_f16_to_f32(dst16[i]);
            assert_true(i == 3 ? isnan(x) : i == 8 ? isinf(x) : x == 2.0f);
        }
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(avx2_has_the_bits_of_plain_c),
    cmocka_unit_test(avx512_has_the_bits_of_plain_c),
    cmocka_unit_test(ranks_are_added_in_their_order),
    cmocka_unit_test(sixteen_bit_sums_are_rounded_once),
    cmocka_unit_test(a_nan_or_infinity_of_any_rank_survives),
};

ZN_TEST_MAIN(tests)
