/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "config_test.h"

#define MB "\"train_micro_batch_size_per_gpu\":1,"

/* Parse, override, resolve for two ranks; returns the last status. */
static zinc_status with_arguments(const char *text, const zn_config_argument *arguments, int n,
                                  zn_config_facts facts, zn_config **out)
{
    assert_ok(zn_config_parse(text, strlen(text), "ds.json", out));
    facts.world_size = 2;
    const zinc_status status = zn_config_override(*out, arguments, n);
    return status == ZINC_OK ? zn_config_resolve(*out, &facts) : status;
}

static void one_or_two_missing_members_of_the_triad_follow(void **state)
{
    static const struct {
        const char *text;
        int64_t batch, micro, steps;
    } cases[] = {
        {"{\"train_batch_size\":8,\"train_micro_batch_size_per_gpu\":2,"
         "\"gradient_accumulation_steps\":2}",
         8, 2, 2},
        {"{\"train_batch_size\":8}", 8, 4, 1},
        {"{\"train_micro_batch_size_per_gpu\":2}", 4, 2, 1},
        {"{\"train_batch_size\":8,\"gradient_accumulation_steps\":2}", 8, 2, 2},
        {"{\"train_batch_size\":8,\"train_micro_batch_size_per_gpu\":\"auto\"}", 8, 4, 1},
        {"{\"train_batch_size\":\"auto\",\"train_micro_batch_size_per_gpu\":3,"
         "\"gradient_accumulation_steps\":\"auto\"}",
         6, 3, 1},
        {"{\"train_batch_size\":\"auto\",\"gradient_accumulation_steps\":5}", 10, 1, 5},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        zn_config *config = resolved(cases[i].text, 2);
        const zn_config_values *v = zn_config_get(config);
        assert_int_equal(v->train_batch_size, cases[i].batch);
        assert_int_equal(v->train_micro_batch_size_per_gpu, cases[i].micro);
        assert_int_equal(v->gradient_accumulation_steps, cases[i].steps);
        zn_config_destroy(config);
    }
}

static void a_triad_that_does_not_multiply_out_names_all_members_and_near_choices(void **state)
{
    (void)state;
    refused("{\"train_batch_size\":7}", "train_batch_size 7 (ds.json:1)", "6 or 8");
    refused("{\"train_batch_size\":8,\"train_micro_batch_size_per_gpu\":3}", "world size 2",
            "6 or 12");
    refused("{\"train_batch_size\":16,\"train_micro_batch_size_per_gpu\":4,\n"
            "\"gradient_accumulation_steps\":4}",
            "gradient_accumulation_steps 4 (ds.json:2)",
            "train_batch_size 32, or gradient_accumulation_steps 2");
    refused("{\"gradient_accumulation_steps\":4}", "neither train_batch_size nor", NULL);
}

static void a_batch_size_beyond_64_bits_is_refused(void **state)
{
    static const char text[] = "{\"train_micro_batch_size_per_gpu\":2147483647,"
                               "\"gradient_accumulation_steps\":2147483647}";
    (void)state;
    zn_config *config = NULL;
    const zn_config_facts facts = {.world_size = 1000};
    assert_ok(zn_config_parse(text, sizeof text - 1, "ds.json", &config));
    assert_fails(zn_config_resolve(config, &facts), ZINC_E_CONFIG, "does not fit");
    zn_config_destroy(config);
}

static void sizes_from_the_hidden_size_are_whole_numbers(void **state)
{
    static const char text[] =
        "{" MB "\"zero_optimization\":{\"stage\":3,\"reduce_bucket_size\":\"auto\","
        "\"stage3_prefetch_bucket_size\":\"auto\","
        "\"stage3_param_persistence_threshold\":\"auto\"}}";
    (void)state;
    zn_config *config = NULL;
    zn_config_facts facts = {.world_size = 1, .hidden_size = 66};
    assert_ok(zn_config_parse(text, sizeof text - 1, "ds.json", &config));
    assert_ok(zn_config_resolve(config, &facts));
    assert_int_equal(zn_config_get(config)->zero.reduce_bucket_size, 4356);
    assert_int_equal(zn_config_get(config)->zero.prefetch_bucket_size, 3920);
    assert_int_equal(zn_config_get(config)->zero.param_persistence_threshold, 660);
    facts.hidden_size = 0; /* again, with less known */
    assert_ok(zn_config_resolve(config, &facts));
    assert_int_equal(zn_config_get(config)->zero.reduce_bucket_size, 500000000);
    assert_non_null(strstr(zn_config_origin(config, "zero_optimization.reduce_bucket_size"),
                           "auto: the model's hidden size is not known"));
    zn_config_destroy(config);
}

static void an_argument_fills_absent_and_auto_keys(void **state)
{
    static const zn_config_argument arguments[] = {
        {"max_grad_norm", "0.01"}, {"learning_rate", "2e-3"}, {"adam_beta2", "0.95"},
        {"bf16", "true"},          {"output_dir", "ignored"}, {"gradient_accumulation_steps", "3"},
    };
    (void)state;
    zn_config *config = NULL;
    const zn_config_facts facts = {0};
    assert_ok(with_arguments("{" MB "\"bf16\":{\"enabled\":\"auto\"},\"optimizer\":{\"type\":"
                             "\"AdamW\",\"params\":{\"lr\":\"auto\",\"betas\":\"auto\"}},"
                             "\"scheduler\":{\"type\":\"WarmupLR\",\"params\":{\"warmup_max_lr\":"
                             "\"auto\",\"warmup_num_steps\":\"auto\"}}}",
                             arguments, 6, facts, &config));
    const zn_config_values *v = zn_config_get(config);
    assert_true(v->gradient_clipping == 0.01);
    assert_true(v->lr == 2e-3 && v->warmup_max_lr == 2e-3);
    assert_true(v->beta1 == 0.9 && v->beta2 == 0.95);
    assert_true(v->bf16.enabled);
    assert_int_equal(v->gradient_accumulation_steps, 3);
    assert_int_equal(v->warmup_num_steps, 1);
    assert_true(isnan(v->weight_decay)); /* neither given nor auto: the optimizer's default */
    assert_string_equal(zn_config_origin(config, "gradient_clipping"), "argument --max_grad_norm");
    assert_string_equal(zn_config_origin(config, "train_micro_batch_size_per_gpu"), "ds.json:1");
    assert_string_equal(zn_config_origin(config, "zero_optimization.stage"), "default");
    assert_true(zn_config_is_explicit(config, "train_micro_batch_size_per_gpu"));
    assert_false(zn_config_is_explicit(config, "optimizer.params.lr"));
    assert_false(zn_config_is_explicit(config, "gradient_clipping"));
    zn_config_destroy(config);
}

static void every_contradiction_with_the_file_is_listed_with_both_sides(void **state)
{
    static const zn_config_argument arguments[] = {
        {"max_grad_norm", "1.0"}, {"learning_rate", "2e-3"}, {"weight_decay", "0.01"}};
    (void)state;
    zn_config *config = NULL;
    const zn_config_facts facts = {0};
    assert_fails(with_arguments("{" MB "\"gradient_clipping\":0.3,\n\"optimizer\":{\"type\":"
                                "\"AdamW\",\"params\":{\"lr\":1e-3,\"weight_decay\":1e-2}}}",
                                arguments, 3, facts, &config),
                 ZINC_E_CONFIG, "and 1 more error");
    assert_int_equal(zn_config_n_errors(config), 2);
    assert_non_null(strstr(zn_config_error(config, 0), "ds.json:1 says 0.3"));
    assert_non_null(strstr(zn_config_error(config, 0), "argument --max_grad_norm says 1.0"));
    assert_non_null(strstr(zn_config_error(config, 1), "ds.json:2 says 0.001"));
    zn_config_destroy(config);
}

static void an_argument_that_is_no_number_is_refused_by_name(void **state)
{
    static const zn_config_argument arguments[] = {
        {"learning_rate", "fast"}, {"per_device_train_batch_size", "2.5"}, {"adam_beta1", "1"}};
    (void)state;
    zn_config *config = NULL;
    const zn_config_facts facts = {0};
    assert_fails(with_arguments("{" MB "}", arguments, 3, facts, &config), ZINC_E_CONFIG,
                 "--learning_rate");
    assert_int_equal(zn_config_n_errors(config), 3);
    zn_config_destroy(config);
}

static const char decay[] = "{\"train_micro_batch_size_per_gpu\":4,\"gradient_accumulation_steps\":"
                            "2,\"scheduler\":{\"type\":\"WarmupDecayLR\",\"params\":{"
                            "\"total_num_steps\":\"auto\",\"warmup_num_steps\":\"auto\"}}}";

static void the_length_of_the_run_fills_the_schedule(void **state)
{
    static const zn_config_argument ratio = {"warmup_ratio", "0.1"};
    static const zn_config_argument both[] = {{"warmup_steps", "7"}, {"max_steps", "50"}};
    (void)state;
    zn_config *config = NULL;
    /* 100 samples: 13 batches of 8, 7 steps of 2, 3 epochs of 7 steps */
    const zn_config_facts data = {.n_samples = 100, .n_epochs = 3};
    assert_ok(with_arguments(decay, &ratio, 1, data, &config));
    assert_int_equal(zn_config_get(config)->total_num_steps, 21);
    assert_int_equal(zn_config_get(config)->warmup_num_steps, 3);
    assert_string_equal(zn_config_origin(config, "scheduler.params.warmup_num_steps"),
                        "argument --warmup_ratio");
    zn_config_destroy(config);
    assert_ok(with_arguments(decay, both, 2, data, &config));
    assert_int_equal(zn_config_get(config)->total_num_steps, 50);
    assert_int_equal(zn_config_get(config)->warmup_num_steps, 7);
    zn_config_destroy(config);
}

static void a_warmup_is_as_deepspeed_takes_it(void **state)
{
    (void)state;
#define WARMUP MB "\"scheduler\":{\"type\":\"WarmupLR\",\"params\":"
    refused("{" WARMUP "{\"warmup_num_steps\":0}}}", "scheduler.params.warmup_num_steps", ">= 1");
    refused("{" WARMUP "{\"warmup_num_steps\":10.0}}}", "scheduler.params.warmup_num_steps",
            "10.0");
    zn_config *config = resolved("{" WARMUP "{\"warmup_num_steps\":1e3}}}", 1);
    assert_int_equal(zn_config_get(config)->warmup_num_steps, 1000);
    zn_config_destroy(config);
    config = resolved("{" WARMUP "{\"warmup_type\":\"cubic\"}}}", 1);
    assert_string_equal(zn_config_get(config)->warmup_type, "log");
    assert_int_equal(zn_config_n_notes(config), 1);
    assert_non_null(strstr(zn_config_note(config, 0), "\"cubic\""));
    zn_config_destroy(config);
}

static void a_run_of_unknown_length_is_no_error_yet(void **state)
{
    (void)state;
    zn_config *config = resolved(decay, 2);
    assert_int_equal(zn_config_get(config)->total_num_steps, -1);
    assert_non_null(strstr(zn_config_origin(config, "scheduler.params.total_num_steps"), "auto: "));
    zn_config_destroy(config);
}

static void rules_that_span_keys_are_checked(void **state)
{
    (void)state;
    refused("{" MB "\"fp16\":{\"enabled\":true},\"bf16\":{\"enabled\":true}}", "fp16.enabled",
            "bf16.enabled");
    refused("{" MB "\"prescale_gradients\":true,\"zero_optimization\":{\"stage\":2}}",
            "prescale_gradients", "stage 2");
    refused("{" MB "\"gradient_predivide_factor\":2,\"zero_optimization\":{\"stage\":3}}",
            "gradient_predivide_factor", "stage 3");
    refused("{" MB "\"zero_optimization\":{\"stage\":3,\"offload_param\":{\"device\":\"nvme\"}}}",
            "zero_optimization.offload_param.device", "nvme_path");
    refused("{" MB "\"zero_optimization\":{\"stage\":1,\"offload_optimizer\":{\"ratio\":0.5}}}",
            "zero_optimization.offload_optimizer.ratio", "stage 3 only");
    refused("{" MB "\"scheduler\":{\"type\":\"OneCycle\"}}", "scheduler.params.cycle_min_lr",
            "OneCycle needs it");
}

static void nothing_scatters_gradients_below_stage_2_or_without_reduce_scatter(void **state)
{
    (void)state;
    zn_config *config =
        resolved("{" MB "\"prescale_gradients\":true,\"zero_optimization\":{\"stage\":1}}", 1);
    assert_true(zn_config_get(config)->prescale_gradients);
    zn_config_destroy(config);
    config = resolved("{" MB "\"gradient_predivide_factor\":2,\"zero_optimization\":{\"stage\":2,"
                      "\"reduce_scatter\":false}}",
                      1);
    assert_true(zn_config_get(config)->gradient_predivide_factor == 2);
    zn_config_destroy(config);
}

static void without_a_file_everything_has_its_default(void **state)
{
    static const zn_config_argument micro = {"per_device_train_batch_size", "8"};
    (void)state;
    zn_config *config = NULL;
    const zn_config_facts facts = {.world_size = 4};
    assert_ok(zn_config_load(NULL, &config));
    assert_ok(zn_config_override(config, &micro, 1));
    assert_ok(zn_config_resolve(config, &facts));
    const zn_config_values *v = zn_config_get(config);
    assert_int_equal(v->train_batch_size, 32);
    assert_int_equal(v->zero.stage, 0);
    assert_true(v->gradient_clipping == 1.0);
    assert_null(v->scheduler_type);
    assert_int_equal(v->warmup_num_steps, -1);
    assert_int_equal(v->cycle_momentum, -1);
    assert_int_equal(v->zero.model_persistence_threshold, INT64_MAX);
    assert_string_equal(v->csv_monitor.job_name, "DeepSpeedJobName");
    zn_config_destroy(config);
}

static void a_missing_file_is_named(void **state)
{
    (void)state;
    zn_config *config = NULL;
    assert_fails(zn_config_load("/nowhere/ds.json", &config), ZINC_E_IO, "/nowhere/ds.json");
    assert_fails(zn_config_load("/", &config), ZINC_E_IO, "folder");
    assert_null(config);
}

static void impossible_facts_are_refused(void **state)
{
    (void)state;
    zn_config *config = resolved("{\"train_micro_batch_size_per_gpu\":1}", 1);
    const zn_config_facts none = {0}, wide = {.world_size = 1, .hidden_size = INT64_MAX};
    assert_fails(zn_config_resolve(config, &none), ZINC_E_INVALID, "world size");
    assert_fails(zn_config_resolve(config, &wide), ZINC_E_INVALID, "hidden size");
    zn_config_destroy(config);
}

static void the_document_has_every_honoured_key_nested_with_its_origin(void **state)
{
    (void)state;
    zn_config *config =
        resolved("{\"train_batch_size\":\n4,\"zero_optimization\":{\"stage\":2}}", 2);
    json_t *json = document(config), *all = json_object_get(json, "resolved");
    json_t *zero = json_object_get(all, "zero_optimization");
    json_t *origin = json_object_get(json, "origin");
    assert_true(json_is_true(json_object_get(json, "ok")));
    assert_int_equal(json_integer_value(json_object_get(zero, "stage")), 2);
    assert_int_equal(json_integer_value(json_object_get(zero, "reduce_bucket_size")), 500000000);
    assert_true(json_is_false(json_object_get(json_object_get(all, "fp16"), "enabled")));
    assert_string_equal(json_string_value(json_object_get(origin, "train_batch_size")),
                        "ds.json:2");
    assert_string_equal(json_string_value(json_object_get(origin, "fp16.enabled")), "default");
    assert_null(json_object_get(all, "optimizer"));
    assert_true(json_is_array(json_object_get(json, "notes")));
    json_decref(json);
    zn_config_destroy(config);
}

static void the_plain_form_is_strict_json_with_auto_kept(void **state)
{
    static const char text[] =
        "{// c\n\"train_batch_size\": \"auto\", \"steps_per_print\": Infinity,"
        "\"zero_optimization\": {\"reduce_bucket_size\": 2e8,}, }";
    (void)state;
    zn_config *config = NULL;
    zn_buf plain = {0};
    json_t *json = NULL;
    assert_ok(zn_config_parse(text, sizeof text - 1, "ds.json", &config));
    assert_ok(zn_config_append_plain(config, &plain));
    assert_ok(zn_json_parse(plain.data, plain.n, "plain", &json));
    assert_string_equal(json_string_value(json_object_get(json, "train_batch_size")), "auto");
    assert_true(json_is_null(json_object_get(json, "steps_per_print")));
    json_t *size =
        json_object_get(json_object_get(json, "zero_optimization"), "reduce_bucket_size");
    assert_true(json_is_integer(size));
    assert_int_equal(json_integer_value(size), 200000000);
    json_decref(json);
    zn_buf_fini(&plain);
    zn_config_destroy(config);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(one_or_two_missing_members_of_the_triad_follow),
    cmocka_unit_test(a_triad_that_does_not_multiply_out_names_all_members_and_near_choices),
    cmocka_unit_test(a_batch_size_beyond_64_bits_is_refused),
    cmocka_unit_test(sizes_from_the_hidden_size_are_whole_numbers),
    cmocka_unit_test(an_argument_fills_absent_and_auto_keys),
    cmocka_unit_test(every_contradiction_with_the_file_is_listed_with_both_sides),
    cmocka_unit_test(an_argument_that_is_no_number_is_refused_by_name),
    cmocka_unit_test(the_length_of_the_run_fills_the_schedule),
    cmocka_unit_test(a_warmup_is_as_deepspeed_takes_it),
    cmocka_unit_test(a_run_of_unknown_length_is_no_error_yet),
    cmocka_unit_test(rules_that_span_keys_are_checked),
    cmocka_unit_test(nothing_scatters_gradients_below_stage_2_or_without_reduce_scatter),
    cmocka_unit_test(without_a_file_everything_has_its_default),
    cmocka_unit_test(a_missing_file_is_named),
    cmocka_unit_test(impossible_facts_are_refused),
    cmocka_unit_test(the_document_has_every_honoured_key_nested_with_its_origin),
    cmocka_unit_test(the_plain_form_is_strict_json_with_auto_kept),
};

ZN_TEST_MAIN(tests)
