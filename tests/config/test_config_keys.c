/* SPDX-License-Identifier: Apache-2.0 */
#include "config_test.h"

#define MB "\"train_micro_batch_size_per_gpu\":1,"

static void an_unknown_key_is_refused_with_the_nearest_name_at_any_depth(void **state)
{
    (void)state;
    refused("{\"train_micro_batch_size\":1}", "unknown key",
            "did you mean \"train_micro_batch_size_per_gpu\"?");
    refused("{" MB "\"gradient_cliping\":1}", "ds.json:1:37: gradient_cliping",
            "did you mean \"gradient_clipping\"?");
    refused("{" MB "\"zero_optimisation\":{}}", "zero_optimisation", "\"zero_optimization\"?");
    refused("{" MB "\"zero_optimization\":{\"offload_optimizer\":{\"devise\":\"cpu\"}}}",
            "zero_optimization.offload_optimizer.devise", "did you mean \"device\"?");
    refused("{" MB "\"stage\":2}", "unknown key \"stage\"", "\"zero_optimization.stage\"?");
    refused("{" MB "\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"learning_rate\":1}}}",
            "optimizer.params.learning_rate", "did you mean \"lr\"?");
    refused("{" MB "\"autotuning\":{\"enabled\":false,\"fst\":true}}", "autotuning.fst",
            "did you mean \"fast\"?");
    refused("{" MB "\"zero_optimization.stage\":2}", "unknown key", NULL);
    refused("{" MB "\"qqqq\":2}", "unknown key \"qqqq\"", "remove it");
}

static void only_a_string_at_the_top_can_be_a_remark(void **state)
{
    (void)state;
    zn_config *config = resolved("{" MB "\"_comment\":\"x\",\"my_note\":\"y\"}", 1);
    assert_int_equal(zn_config_n_notes(config), 2);
    zn_config_destroy(config);
    refused("{" MB "\"_comment\":1}", "_comment", "unknown key");
    refused("{" MB "\"fp16\":{\"_comment\":\"x\"}}", "fp16._comment", "unknown key");
}

static void all_errors_of_a_file_are_collected(void **state)
{
    (void)state;
    static const char text[] =
        "{\n\"train_batch_size\": \"8\",\n\"gradient_cliping\": 1,\n"
        "\"zero_optimization\": {\"stage\": 7,\n\"overlap_comm\": \"auto\"},\n"
        "\"fp16\": []}";
    zn_config *config = NULL;
    assert_fails(zn_config_parse(text, sizeof text - 1, "ds.json", &config), ZINC_E_CONFIG,
                 "and 4 more errors");
    assert_int_equal(zn_config_n_errors(config), 5);
    assert_non_null(strstr(zn_config_error(config, 0), "ds.json:2:21: train_batch_size:"));
    assert_non_null(strstr(zn_config_error(config, 1), "ds.json:3:1: gradient_cliping:"));
    assert_non_null(strstr(zn_config_error(config, 2), "ds.json:4:32: zero_optimization.stage:"));
    assert_non_null(strstr(zn_config_error(config, 3), "zero_optimization.overlap_comm:"));
    assert_non_null(strstr(zn_config_error(config, 4), "ds.json:6:9: fp16:"));
    json_t *json = document(config), *first = json_array_get(json_object_get(json, "errors"), 0);
    assert_int_equal(json_array_size(json_object_get(json, "errors")), 5);
    assert_string_equal(json_string_value(json_object_get(first, "path")), "train_batch_size");
    assert_int_equal(json_integer_value(json_object_get(first, "line")), 2);
    assert_int_equal(json_integer_value(json_object_get(first, "column")), 21);
    assert_string_equal(json_string_value(json_object_get(first, "hint")), "remove the quotes");
    json_decref(json);
    zn_config_destroy(config);
}

static void auto_is_refused_where_nothing_computes_it(void **state)
{
    (void)state;
    refused("{" MB "\"zero_optimization\":{\"stage\":\"auto\"}}", "zero_optimization.stage",
            "\"auto\" is not allowed");
    refused("{" MB "\"steps_per_print\":\"auto\"}", "steps_per_print", "\"auto\" is not allowed");
}

static void older_spellings_reach_the_same_values(void **state)
{
    (void)state;
    zn_config *config =
        resolved("{" MB "\"bfloat16\":{\"enabled\":true},\"zero_optimization\":{\"stage\":3,"
                 "\"prefetch_bucket_size\":7,\"cpu_offload\":true,\"cpu_offload_param\":true,"
                 "\"stage3_gather_fp16_weights_on_model_save\":true},\"aio\":{\"thread_count\":3}}",
                 1);
    const zn_config_values *v = zn_config_get(config);
    assert_true(v->bf16.enabled);
    assert_int_equal(v->zero.prefetch_bucket_size, 7);
    assert_int_equal(v->zero.offload_optimizer, ZN_OFFLOAD_CPU);
    assert_int_equal(v->zero.offload_param, ZN_OFFLOAD_CPU);
    assert_true(v->zero.gather_16bit_weights_on_model_save);
    assert_int_equal(v->aio.intra_op_parallelism, 3);
    zn_config_destroy(config);
}

static void an_older_spelling_beside_the_key_is_refused_with_both_lines(void **state)
{
    (void)state;
    refused("{" MB "\"bf16\":{},\n\"bfloat16\":{}}", "ds.json:2:1: bfloat16", "on line 1");
    refused("{" MB "\"zero_optimization\":{\"prefetch_bucket_size\":1,\n"
            "\"stage3_prefetch_bucket_size\":1}}",
            "zero_optimization.prefetch_bucket_size", "on line 2");
    refused("{" MB "\"zero_optimization\":{\"cpu_offload\":true,\n\"offload_optimizer\":{}}}",
            "zero_optimization.cpu_offload", "on line 2");
}

static void clipping_that_an_optimizer_parameter_asks_for_is_done(void **state)
{
    (void)state;
    zn_config *config =
        resolved("{" MB "\"optimizer\":{\"type\":\"Adam\",\"params\":{\"max_grad_norm\":0.5}}}", 1);
    assert_true(zn_config_get(config)->gradient_clipping == 0.5);
    zn_config_destroy(config);
    refused("{" MB "\"gradient_clipping\":1,\"optimizer\":{\"type\":\"Adam\",\"params\":"
            "{\"max_grad_norm\":0.5}}}",
            "max_grad_norm", "gradient_clipping");
}

static void blocks_that_deepspeed_dropped_pass_only_when_switched_off(void **state)
{
    static const char *const names[] = {
        "amp",       "elasticity", "curriculum_learning", "nebula", "progressive_layer_drop",
        "eigenvalue"};
    char text[160];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(text, sizeof text, "{" MB "\"%s\":{\"enabled\":false}}", names[i]);
        zn_config *config = resolved(text, 1);
        assert_int_equal(zn_config_n_notes(config), 1);
        assert_non_null(strstr(zn_config_note(config, 0), names[i]));
        zn_config_destroy(config);
        snprintf(text, sizeof text, "{" MB "\"%s\":{\"enabled\":true}}", names[i]);
        refused(text, names[i], "removed");
    }
}

static void a_key_without_effect_is_noted_once_and_a_refused_one_says_why(void **state)
{
    (void)state;
    zn_config *config = resolved("{" MB "\"disable_allgather\":true,\"wandb\":{\"enabled\":true},"
                                 "\"flops_profiler\":{\"enabled\":false},\"comet\":{},"
                                 "\"zero_optimization\":{\"contiguous_gradients\":true}}",
                                 1);
    assert_int_equal(zn_config_n_notes(config), 2);
    assert_non_null(strstr(zn_config_note(config, 0), "disable_allgather has no effect"));
    zn_config_destroy(config);
    refused("{" MB "\"zero_optimization\":{\"zero_quantized_weights\":true}}",
            "zero_optimization.zero_quantized_weights", "not supported: ");
    refused("{" MB "\"tensor_parallel\":{\"autotp_size\":2}}", "tensor_parallel", "not supported");
    config = resolved("{" MB "\"tensor_parallel\":{\"autotp_size\":1}}", 1);
    zn_config_destroy(config);
}

static void a_key_without_effect_whose_wish_is_fulfilled_anyway_is_no_note(void **state)
{
    (void)state;
    zn_config *config =
        resolved("{" MB "\"zero_allow_untested_optimizer\":true,\"zero_optimization\":{\"stage\":3,"
                 "\"stage3_gather_16bit_weights_on_model_save\":true}}",
                 1);
    assert_int_equal(zn_config_n_notes(config), 0);
    zn_config_destroy(config);
}

static void the_note_of_a_key_without_effect_says_why(void **state)
{
    static const char *const cases[][2] = {
        {"\"prescale_gradients\":true", "the loss carries the division"},
        {"\"gradient_predivide_factor\":2", "the loss carries the division"},
        {"\"zero_optimization\":{\"reduce_scatter\":false}", "always reduce-scattered"},
        {"\"zero_optimization\":{\"offload_optimizer\":{\"buffer_count\":5}}", "three windows"},
        {"\"flops_profiler\":{\"module_depth\":2}", "not of modules"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[200];
        snprintf(text, sizeof text, "{" MB "%s}", cases[i][0]);
        zn_config *config = resolved(text, 1);
        assert_int_equal(zn_config_n_notes(config), 1);
        assert_non_null(strstr(zn_config_note(config, 0), cases[i][1]));
        zn_config_destroy(config);
    }
}

static void parameters_of_another_optimizer_or_scheduler_are_refused(void **state)
{
    (void)state;
    refused("{" MB "\"optimizer\":{\"type\":\"SGD\",\"params\":{\"betas\":[0.9,0.99]}}}",
            "optimizer.params.betas", "SGD has no such parameter");
    refused("{" MB "\"scheduler\":{\"type\":\"WarmupLR\",\"params\":{\"cycle_min_lr\":1}}}",
            "scheduler.params.cycle_min_lr", "WarmupLR has no such parameter");
    refused("{" MB "\"optimizer\":{\"type\":\"Adm\"}}", "optimizer.type", "did you mean");
}

static void a_name_is_near_if_few_letters_differ_or_a_part_is_missing(void **state)
{
    static const char *const names[] = {"learning_rate", "weight_decay", "lr", "warmup_num_steps"};
    (void)state;
    assert_string_equal(zn_nearest_name("learning-rat", names, 4), "learning_rate");
    assert_string_equal(zn_nearest_name("WeightDecay", names, 4), "weight_decay");
    assert_string_equal(zn_nearest_name("rl", names, 4), "lr");
    assert_string_equal(zn_nearest_name("warmup", names, 4), "warmup_num_steps");
    assert_null(zn_nearest_name("banana", names, 4));
    assert_null(zn_nearest_name("", names, 4));
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    static const char text[] =
        "{" MB "\"_note\":\"x\",\"bfloat16\":{\"enabled\":\"auto\"},\"wandb\":{},"
        "\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"lr\":\"auto\"}},\"zero_optimization\":"
        "{\"stage\":2,\"cpu_offload\":true,\"reduce_bucket_size\":\"auto\"}}";
    const zn_config_argument argument = {"learning_rate", "1e-3"};
    const zn_config_facts facts = {.world_size = 2, .hidden_size = 8};
    zinc_status status = ZINC_E_NOMEM;
    for (int64_t n = 0; status == ZINC_E_NOMEM; n++) {
        zn_config *config = NULL;
        zn_buf json = {0};
        zn_mem_fail_after(n);
        status = zn_config_parse(text, sizeof text - 1, "ds.json", &config);
        if (status == ZINC_OK)
            status = zn_config_override(config, &argument, 1);
        if (status == ZINC_OK)
            status = zn_config_resolve(config, &facts);
        if (status == ZINC_OK)
            status = zn_config_append_json(config, &json);
        zn_mem_fail_after(-1);
        zn_buf_fini(&json);
        zn_config_destroy(config);
        assert_true(n < 5000);
    }
    assert_int_equal(status, ZINC_OK);
}

static void collecting_errors_survives_a_failed_allocation(void **state)
{
    (void)state;
    static const char text[] = "{\"a\":1,\"train_batch_size\":\"x\",\"fp16\":{\"b\":2}}";
    zinc_status status = ZINC_E_NOMEM;
    for (int64_t n = 0; status == ZINC_E_NOMEM; n++) {
        zn_config *config = NULL;
        zn_mem_fail_after(n);
        status = zn_config_parse(text, sizeof text - 1, "ds.json", &config);
        zn_mem_fail_after(-1);
        zn_config_destroy(config);
        assert_true(n < 5000);
    }
    assert_int_equal(status, ZINC_E_CONFIG);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(an_unknown_key_is_refused_with_the_nearest_name_at_any_depth),
    cmocka_unit_test(only_a_string_at_the_top_can_be_a_remark),
    cmocka_unit_test(all_errors_of_a_file_are_collected),
    cmocka_unit_test(auto_is_refused_where_nothing_computes_it),
    cmocka_unit_test(older_spellings_reach_the_same_values),
    cmocka_unit_test(an_older_spelling_beside_the_key_is_refused_with_both_lines),
    cmocka_unit_test(clipping_that_an_optimizer_parameter_asks_for_is_done),
    cmocka_unit_test(blocks_that_deepspeed_dropped_pass_only_when_switched_off),
    cmocka_unit_test(a_key_without_effect_is_noted_once_and_a_refused_one_says_why),
    cmocka_unit_test(a_key_without_effect_whose_wish_is_fulfilled_anyway_is_no_note),
    cmocka_unit_test(the_note_of_a_key_without_effect_says_why),
    cmocka_unit_test(parameters_of_another_optimizer_or_scheduler_are_refused),
    cmocka_unit_test(a_name_is_near_if_few_letters_differ_or_a_part_is_missing),
    cmocka_unit_test(every_allocation_may_fail),
    cmocka_unit_test(collecting_errors_survives_a_failed_allocation),
};

ZN_TEST_MAIN(tests)
