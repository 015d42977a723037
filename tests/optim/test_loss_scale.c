/* SPDX-License-Identifier: Apache-2.0 */
#include "zn_test.h"

#include "base/json.h"
#include "optim/loss_scale.h"

static int64_t integer(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static zn_loss_scaler scaler_of(const json_t *c)
{
    return zn_loss_scaler_dynamic((int)integer(c, "initial_scale_power"),
                                  integer(c, "loss_scale_window"), (int)integer(c, "hysteresis"),
                                  json_is_true(json_object_get(c, "consecutive_hysteresis")),
                                  json_number_value(json_object_get(c, "min_loss_scale")));
}

static void run_case(const json_t *c, size_t index)
{
    zn_loss_scaler scaler = scaler_of(c);
    assert_true(scaler.scale == json_number_value(json_object_get(c, "initial_scale")));
    const json_t *overflow = json_object_get(c, "overflow");
    const json_t *scale_after = json_object_get(c, "scale_after");
    const json_t *left_after = json_object_get(c, "hysteresis_after");
    const json_t *error = json_object_get(c, "error");
    const size_t n_good = json_array_size(scale_after);
    for (size_t k = 0; k < n_good; k++) {
        const bool over = json_integer_value(json_array_get(overflow, k)) != 0;
        assert_ok(zn_loss_scaler_update(&scaler, over));
        const double want = json_number_value(json_array_get(scale_after, k));
        if (scaler.scale != want)
            fail_msg("case %zu step %zu: scale %g, want %g", index, k + 1, scaler.scale, want);
        assert_int_equal(scaler.hysteresis_left, json_integer_value(json_array_get(left_after, k)));
    }
    if (json_is_object(error)) {
        assert_int_equal(integer(error, "step"), (int64_t)n_good + 1);
        const zn_loss_scaler before = scaler;
        assert_fails(zn_loss_scaler_update(&scaler, true), ZINC_E_ABORTED, "min_loss_scale");
        assert_true(scaler.scale == before.scale && scaler.iteration == before.iteration);
    }
}

static void dynamic_scales_follow_the_peer_on_every_step(void **state)
{
    (void)state;
    json_t *cases = NULL;
    assert_ok(zn_json_load(ZN_TEST_DATA "/optim/loss_scale_cases.json", &cases));
    const size_t n = json_array_size(cases);
    assert_true(n >= 15);
    for (size_t i = 0; i < n; i++)
        run_case(json_array_get(cases, i), i);
    json_decref(cases);
}

static void a_static_scale_never_moves_and_never_aborts(void **state)
{
    (void)state;
    zn_loss_scaler scaler = zn_loss_scaler_static(128.0);
    zn_loss_scaler none = zn_loss_scaler_none();
    for (int i = 0; i < 50; i++) {
        assert_ok(zn_loss_scaler_update(&scaler, i % 3 == 0));
        assert_ok(zn_loss_scaler_update(&none, i % 3 == 0));
        assert_true(scaler.scale == 128.0 && none.scale == 1.0);
    }
    assert_int_equal(scaler.iteration, 50);
    assert_int_equal(scaler.last_overflow, 48);
}

static void a_copied_scaler_continues_as_the_original(void **state)
{
    (void)state;
    zn_loss_scaler whole = zn_loss_scaler_dynamic(10, 4, 2, false, 1.0);
    for (int i = 0; i < 17; i++)
        assert_ok(zn_loss_scaler_update(&whole, i == 3 || i == 9));
    zn_loss_scaler resumed = whole;
    for (int i = 17; i < 40; i++) {
        assert_ok(zn_loss_scaler_update(&whole, i == 30));
        assert_ok(zn_loss_scaler_update(&resumed, i == 30));
        assert_true(whole.scale == resumed.scale);
    }
    assert_true(whole.scale > 1024.0); /* it did grow */
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(dynamic_scales_follow_the_peer_on_every_step),
    cmocka_unit_test(a_static_scale_never_moves_and_never_aborts),
    cmocka_unit_test(a_copied_scaler_continues_as_the_original),
};

ZN_TEST_MAIN(tests)
