/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include <math.h>

#include "base/dtype.h"

static void bf16_rounds_to_nearest_with_ties_away_from_zero(void **state)
{
    (void)state;
    assert_int_equal(zn_f32_to_bf16(1.0f), 0x3F80);
    assert_int_equal(zn_f32_to_bf16(zn_f32_from_bits(0x3F808000u)), 0x3F81); /* a tie */
    assert_int_equal(zn_f32_to_bf16(zn_f32_from_bits(0xBF808000u)), 0xBF81);
    assert_int_equal(zn_f32_to_bf16(zn_f32_from_bits(0x3F807FFFu)), 0x3F80);
    assert_int_equal(zn_f32_to_bf16(INFINITY), 0x7F80);
    assert_true(isnan(zn_bf16_to_f32(zn_f32_to_bf16(zn_f32_from_bits(0x7FFFFFFFu)))));
    assert_true(isnan(zn_bf16_to_f32(zn_f32_to_bf16(zn_f32_from_bits(0xFF800001u)))));
}

static void a_master_is_rebuilt_exactly_from_its_bf16_half_and_the_rest(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 0x7F800000u; i += 997) {
        const uint32_t bits = (uint32_t)i;
        const float x = zn_f32_from_bits(bits), y = zn_f32_from_bits(bits | 0x80000000u);
        assert_int_equal(zn_f32_bits(zn_f32_join(zn_f32_to_bf16(x), zn_f32_low(x))), bits);
        assert_int_equal(zn_f32_bits(zn_f32_join(zn_f32_to_bf16(y), zn_f32_low(y))),
                         bits | 0x80000000u);
    }
    for (uint32_t bits = 0x7F800001u; bits < 0x80000000u; bits += 997) {
        const float nan = zn_f32_from_bits(bits);
        assert_true(isnan(zn_f32_join(zn_f32_to_bf16(nan), zn_f32_low(nan))));
    }
}

static void every_f16_survives_a_round_trip(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000u; h++) {
        const float x = zn_f16_to_f32((uint16_t)h);
        if (isnan(x))
            assert_true(isnan(zn_f16_to_f32(zn_f32_to_f16(x))));
        else
            assert_int_equal(zn_f32_to_f16(x), h);
    }
}

static void f16_rounds_ties_to_even_and_overflows_to_infinity(void **state)
{
    (void)state;
    assert_int_equal(zn_f32_to_f16(2049.0f), zn_f32_to_f16(2048.0f));
    assert_int_equal(zn_f32_to_f16(2051.0f), zn_f32_to_f16(2052.0f));
    assert_int_equal(zn_f32_to_f16(65519.0f), 0x7BFF);
    assert_int_equal(zn_f32_to_f16(65520.0f), 0x7C00);
    assert_int_equal(zn_f32_to_f16(0x1p-25f), 0);
    assert_int_equal(zn_f32_to_f16(0x1.8p-25f), 1);
}

static void names_of_types_are_parsed_in_every_spelling(void **state)
{
    (void)state;
    zn_dtype d;
    assert_int_equal(zn_dtype_parse("torch.bfloat16", &d), 0);
    assert_int_equal(d, ZN_DTYPE_BF16);
    assert_int_equal(zn_dtype_parse("fp16", &d), 0);
    assert_int_equal(d, ZN_DTYPE_F16);
    assert_int_equal(zn_dtype_parse("int4", &d), -1);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(bf16_rounds_to_nearest_with_ties_away_from_zero),
    cmocka_unit_test(a_master_is_rebuilt_exactly_from_its_bf16_half_and_the_rest),
    cmocka_unit_test(every_f16_survives_a_round_trip),
    cmocka_unit_test(f16_rounds_ties_to_even_and_overflows_to_infinity),
    cmocka_unit_test(names_of_types_are_parsed_in_every_spelling),
};

ZN_TEST_MAIN(tests)
