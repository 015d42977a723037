/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include <math.h>

#include "base/hash.h"

static void mix_gives_the_published_sequence(void **state)
{
    (void)state;
    /* SplitMix64 from seed 0: its n-th output is the finaliser of n steps of the constant. */
    static const uint64_t want[] = {0xE220A8397B1DCDAFu, 0x6E789E6AA1B965F4u, 0x06C45D188009454Fu};
    for (uint64_t i = 0; i < 3; i++)
        assert_true(zn_hash_mix(i * 0x9E3779B97F4A7C15u) == want[i]);
}

static void fnv_gives_the_published_values(void **state)
{
    (void)state;
    const uint64_t start = 0xcbf29ce484222325u;
    assert_true(zn_hash_bytes(start, "", 0) == start);
    assert_true(zn_hash_bytes(start, "a", 1) == 0xaf63dc4c8601ec8cu);
    assert_true(zn_hash_bytes(start, "foobar", 6) == 0x85944171f73967e8u);
    assert_true(zn_hash_bytes(zn_hash_bytes(start, "foo", 3), "bar", 3) == 0x85944171f73967e8u);
}

static void folding_depends_on_order(void **state)
{
    (void)state;
    assert_true(zn_hash_fold(zn_hash_fold(1, 2), 3) != zn_hash_fold(zn_hash_fold(1, 3), 2));
    assert_true(zn_hash_fold(0, 0) != zn_hash_fold(zn_hash_fold(0, 0), 0));
}

static void units_are_below_one_and_even(void **state)
{
    (void)state;
    enum { N = 100000, BINS = 10 };
    int bins[BINS] = {0};
    assert_true(zn_hash_unit(UINT64_MAX) < 1);
    assert_true(zn_hash_unit(0) == 0);
    for (uint64_t i = 0; i < N; i++)
        bins[(int)(BINS * zn_hash_unit(zn_hash_mix(i)))]++;
    for (int b = 0; b < BINS; b++) /* expected 10000, standard deviation 95 */
        assert_in_range(bins[b], 9500, 10500);
}

static void normals_have_the_moments_of_a_normal(void **state)
{
    (void)state;
    enum { N = 200000 };
    double sum = 0, square = 0, fourth = 0;
    for (uint64_t i = 0; i < N; i++) {
        const double x = zn_hash_normal(i);
        assert_true(isfinite(x));
        sum += x;
        square += x * x;
        fourth += x * x * x * x;
    }
    /* Standard deviations of the three means: 0.0022, 0.0032, 0.022. */
    assert_true(fabs(sum / N) < 0.01);
    assert_true(fabs(square / N - 1) < 0.015);
    assert_true(fabs(fourth / N - 3) < 0.1);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(mix_gives_the_published_sequence),
    cmocka_unit_test(fnv_gives_the_published_values),
    cmocka_unit_test(folding_depends_on_order),
    cmocka_unit_test(units_are_below_one_and_even),
    cmocka_unit_test(normals_have_the_moments_of_a_normal),
};

ZN_TEST_MAIN(tests)
