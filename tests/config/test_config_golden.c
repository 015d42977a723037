/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "config_test.h"

static json_t *load_cases(void)
{
    json_t *cases = NULL;
    assert_ok(zn_json_load(DATA "cases.json", &cases));
    assert_true(json_array_size(cases) > 100);
    return cases;
}

static zinc_status check(json_t *item, zn_config **out)
{
    const char *text = json_string_value(json_object_get(item, "text"));
    const zn_config_facts facts = {.world_size =
                                       json_integer_value(json_object_get(item, "world_size"))};
    const zinc_status status = zn_config_parse(text, strlen(text), "ds.json", out);
    return status == ZINC_OK ? zn_config_resolve(*out, &facts) : status;
}

static void deepspeed_and_zinc_agree_on_what_is_a_configuration(void **state)
{
    (void)state;
    json_t *cases = load_cases();
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *item = json_array_get(cases, i);
        const char *name = json_string_value(json_object_get(item, "name"));
        const bool wanted = json_is_true(json_object_get(item, "ok"));
        zn_config *config = NULL;
        const zinc_status status = check(item, &config);
        if (status != ZINC_OK)
            assert_int_equal(status, ZINC_E_CONFIG);
        if (wanted && status != ZINC_OK && !json_object_get(item, "may_refuse"))
            fail_msg("%s is refused: %s", name, zinc_last_error());
        if (!wanted && status == ZINC_OK && !json_object_get(item, "may_accept"))
            fail_msg("%s is accepted", name);
        zn_config_destroy(config);
    }
    json_decref(cases);
}

static void what_zinc_refuses_more_strictly_names_a_key_or_a_line(void **state)
{
    (void)state;
    json_t *cases = load_cases();
    int n_stricter = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *item = json_array_get(cases, i);
        zn_config *config = NULL;
        if (check(item, &config) != ZINC_OK && json_is_true(json_object_get(item, "ok"))) {
            json_t *json = document(config);
            json_t *first = json_array_get(json_object_get(json, "errors"), 0);
            assert_true(json_is_false(json_object_get(json, "ok")));
            assert_true(*json_string_value(json_object_get(first, "path")) ||
                        json_integer_value(json_object_get(first, "line")) > 0);
            json_decref(json);
            n_stricter++;
        }
        zn_config_destroy(config);
    }
    assert_true(n_stricter > 0);
    json_decref(cases);
}

static void same_number(const char *name, const char *key, json_t *got, json_t *want)
{
    if (!json_is_number(got) || json_number_value(got) != json_number_value(want))
        fail_msg("%s: %s is %g, want %g", name, key, json_number_value(got),
                 json_number_value(want));
}

static void the_batch_triad_and_clipping_come_out_as_in_deepspeed(void **state)
{
    static const char *const keys[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                       "gradient_accumulation_steps", "gradient_clipping"};
    (void)state;
    json_t *cases = load_cases();
    int n_compared = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *item = json_array_get(cases, i);
        zn_config *config = NULL;
        if (check(item, &config) == ZINC_OK && json_is_true(json_object_get(item, "ok"))) {
            json_t *json = document(config);
            for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
                json_t *want = json_object_get(item, keys[k]);
                if (!want)
                    continue;
                same_number(json_string_value(json_object_get(item, "name")), keys[k],
                            json_object_get(json_object_get(json, "resolved"), keys[k]), want);
                n_compared++;
            }
            json_decref(json);
        }
        zn_config_destroy(config);
    }
    assert_true(n_compared > 200);
    json_decref(cases);
}

static void compare_zero(const char *name, const zn_config_values *v, json_t *zero)
{
    const struct {
        const char *key;
        int64_t got;
    } fields[] = {
        {"stage", v->zero.stage},
        {"reduce_scatter", v->zero.reduce_scatter},
        {"contiguous_gradients", v->zero.contiguous_gradients},
        {"allgather_partitions", v->zero.allgather_partitions},
        {"overlap_comm", v->zero.overlap_comm},
        {"round_robin_gradients", v->zero.round_robin_gradients},
        {"reduce_bucket_size", v->zero.reduce_bucket_size},
        {"allgather_bucket_size", v->zero.allgather_bucket_size},
        {"sub_group_size", v->zero.sub_group_size},
        {"prefetch_bucket_size", v->zero.prefetch_bucket_size},
        {"param_persistence_threshold", v->zero.param_persistence_threshold},
        {"model_persistence_threshold", v->zero.model_persistence_threshold},
        {"max_live_parameters", v->zero.max_live_parameters},
        {"max_reuse_distance", v->zero.max_reuse_distance},
        {"gather_16bit_weights_on_model_save", v->zero.gather_16bit_weights_on_model_save},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        json_t *want = json_object_get(zero, fields[i].key);
        const int64_t number =
            json_is_boolean(want) ? json_is_true(want) : json_integer_value(want);
        if (!want || number != fields[i].got)
            fail_msg("%s: %s is %lld, want %lld", name, fields[i].key, (long long)fields[i].got,
                     (long long)number);
    }
}

static void zero_values_and_their_defaults_come_out_as_in_deepspeed(void **state)
{
    (void)state;
    json_t *cases = load_cases();
    int n_compared = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *item = json_array_get(cases, i), *zero = json_object_get(item, "zero");
        zn_config *config = NULL;
        if (check(item, &config) == ZINC_OK && zero) {
            compare_zero(json_string_value(json_object_get(item, "name")), zn_config_get(config),
                         zero);
            n_compared++;
        }
        zn_config_destroy(config);
    }
    assert_true(n_compared > 50);
    json_decref(cases);
}

static void fp16_values_and_their_defaults_come_out_as_in_deepspeed(void **state)
{
    (void)state;
    json_t *cases = load_cases();
    int n_compared = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *item = json_array_get(cases, i), *want = json_object_get(item, "fp16");
        zn_config *config = NULL;
        if (check(item, &config) == ZINC_OK && want) {
            const zn_config_values *v = zn_config_get(config);
            assert_int_equal(v->fp16.enabled, json_is_true(json_object_get(want, "enabled")));
            assert_true(v->fp16.loss_scale ==
                        json_number_value(json_object_get(want, "loss_scale")));
            assert_int_equal(v->fp16.initial_scale_power,
                             json_integer_value(json_object_get(want, "initial_scale_power")));
            assert_int_equal(v->fp16.loss_scale_window,
                             json_integer_value(json_object_get(want, "loss_scale_window")));
            assert_int_equal(v->fp16.hysteresis,
                             json_integer_value(json_object_get(want, "hysteresis")));
            assert_true(v->fp16.min_loss_scale ==
                        json_number_value(json_object_get(want, "min_loss_scale")));
            n_compared++;
        }
        zn_config_destroy(config);
    }
    assert_true(n_compared > 50);
    json_decref(cases);
}

static void the_tutorials_zero2_file_resolves_with_one_trainer_argument(void **state)
{
    (void)state;
    zn_config *config = NULL;
    const zn_config_argument argument = {"per_device_train_batch_size", "4"};
    const zn_config_facts facts = {.world_size = 2, .hidden_size = 64};
    assert_ok(zn_config_load(DATA "tutorial_zero2.json", &config));
    assert_ok(zn_config_override(config, &argument, 1));
    assert_ok(zn_config_resolve(config, &facts));
    const zn_config_values *v = zn_config_get(config);
    assert_int_equal(v->train_batch_size, 8);
    assert_int_equal(v->gradient_accumulation_steps, 1);
    assert_int_equal(v->zero.stage, 2);
    assert_int_equal(v->zero.reduce_bucket_size, 200000000);
    assert_true(v->fp16.enabled);
    assert_true(v->lr == 5e-5);
    assert_true(v->weight_decay == 0.0);
    assert_int_equal(v->steps_per_print, 100);
    assert_string_equal(v->optimizer_type, "AdamW");
    zn_config_destroy(config);
}

static void the_tutorials_offload_file_resolves_without_an_optimizer(void **state)
{
    (void)state;
    zn_config *config = NULL;
    const zn_config_facts facts = {.world_size = 4};
    assert_ok(zn_config_load(DATA "tutorial_zero3_offload.json", &config));
    assert_ok(zn_config_resolve(config, &facts));
    const zn_config_values *v = zn_config_get(config);
    assert_int_equal(v->zero.stage, 3);
    assert_int_equal(v->zero.offload_optimizer, ZN_OFFLOAD_CPU);
    assert_int_equal(v->zero.offload_param, ZN_OFFLOAD_CPU);
    assert_int_equal(v->zero.prefetch_bucket_size, 10000000);
    assert_null(v->optimizer_type);
    assert_true(isnan(v->lr));
    assert_int_equal(v->train_batch_size, 4);
    zn_config_destroy(config);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(deepspeed_and_zinc_agree_on_what_is_a_configuration),
    cmocka_unit_test(what_zinc_refuses_more_strictly_names_a_key_or_a_line),
    cmocka_unit_test(the_batch_triad_and_clipping_come_out_as_in_deepspeed),
    cmocka_unit_test(zero_values_and_their_defaults_come_out_as_in_deepspeed),
    cmocka_unit_test(fp16_values_and_their_defaults_come_out_as_in_deepspeed),
    cmocka_unit_test(the_tutorials_zero2_file_resolves_with_one_trainer_argument),
    cmocka_unit_test(the_tutorials_offload_file_resolves_without_an_optimizer),
};

ZN_TEST_MAIN(tests)
